"""Quantities: exact scales, refusals, and show and parse as each other's inverse."""

from __future__ import annotations

import math
from decimal import Decimal
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, ValidationError

from ridgeline import units
from ridgeline.errors import ConfigError
from thoroughly import sample_of

SCALES: dict[str, int | Fraction] = {  # exact, written out once more
    "": 1,
    "k": 10**3,
    "M": 10**6,
    "G": 10**9,
    "T": 10**12,
    "P": 10**15,
    "E": 10**18,
    "m": Fraction(1, 10**3),
    "u": Fraction(1, 10**6),
    "µ": Fraction(1, 10**6),
    "n": Fraction(1, 10**9),
    "p": Fraction(1, 10**12),
    "f": Fraction(1, 10**15),
    "Ki": 2**10,
    "Mi": 2**20,
    "Gi": 2**30,
    "Ti": 2**40,
    "Pi": 2**50,
}
BASES = ["s", "B", "FLOP", "J", "m", "USD", "op", "W", "Hz", "B/s", "FLOP/s", "J/B", "m2"]


@pytest.mark.parametrize(
    ("text", "unit", "value"),
    [
        ("900 GB/s", "B/s", 9e11),
        ("16 GiB", "B", 16 * 2**30),
        ("16 GB", "B", 16e9),
        ("100 Gb/s", "B/s", 12.5e9),
        ("100 Gbit/s", "B/s", 12.5e9),
        ("3.97 pJ/bit", "J/B", 8 * 3.97e-12),
        ("1 pJ/MAC", "J/FLOP", 0.5e-12),
        ("1 TMAC/s", "FLOP/s", 2e12),
        ("815 mm2", "m2", 815e-6),
        ("815 mm^2", "m2", 815e-6),
        ("0.5 W/mm2", "W/m2", 0.5e6),
        ("0.2 pJ/bit/mm", "J/B/m", 1.6e-9),
        ("2 min", "s", 120.0),
        ("1 kWh", "J", 3.6e6),
        ("300 W", "J/s", 300.0),
        ("1_000 B", "B", 1000.0),
        ("-5 W", "W", -5.0),
        (".5us", "s", 5e-7),
        ("1e3 USD", "USD", 1000.0),
        ("2 B*s/s", "B", 2.0),
    ],
)
def test_quantities_have_the_value_of_their_unit(text: str, unit: str, value: float) -> None:
    assert units.parse(text, unit) == value


@given(
    number=st.decimals("-1e6", "1e6", allow_nan=False, places=6),
    prefix=st.sampled_from(sorted(SCALES)),
    base=st.sampled_from(["B", "FLOP", "J", "W", "s"]),
)
def test_prefixes_are_applied_exactly(number: Decimal, prefix: str, base: str) -> None:
    exact = Fraction(number) * Fraction(SCALES[prefix])
    assert units.parse(f"{number} {prefix}{base}", base) == float(exact)


@given(
    value=st.floats(1e-15, 1e20) | st.floats(-1e20, -1e-15),
    unit=st.sampled_from(BASES),
    digits=st.integers(1, 12),
)
def test_parse_reads_what_show_writes(value: float, unit: str, digits: int) -> None:
    back = units.parse(units.show(value, unit, digits), unit)
    # show rounds up to the next prefix from 0.9995 on, whatever the number of digits
    assert back == pytest.approx(value, rel=0.5 * 10.0 ** (1 - digits) * 1.0001, abs=0)


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (9e11, "B/s", "900 GB/s"),
        (0.0, "J", "0 J"),
        (999.6, "B", "1 kB"),
        (8.15e-4, "m2", "815 mm2"),
        (1e18, "FLOP", "1e+18 FLOP"),
        (2.5e-6, "s", "2.5 us"),
        (-2.5e-6, "s", "-2.5 us"),
        (math.inf, "s", "inf s"),
    ],
)
def test_quantities_for_people(value: float, unit: str, text: str) -> None:
    assert units.show(value, unit) == text


@pytest.mark.parametrize("bare", [5, 5.0, None, True, ["5 B"], "5", " 7.5 ", "1e9"])
def test_a_number_without_a_unit_is_refused(bare: object) -> None:
    with pytest.raises(ConfigError, match="no unit"):
        units.parse(bare, "B")


@pytest.mark.parametrize(
    ("text", "unit"),
    [("5 B", "s"), ("5 B", "B/s"), ("5 J/B", "J/FLOP"), ("5 W", "J"), ("5 m", "m2"), ("5 m2", "m")],
)
def test_another_dimension_is_refused(text: str, unit: str) -> None:
    with pytest.raises(ConfigError, match="another dimension"):
        units.parse(text, unit)


@pytest.mark.parametrize(
    "text",
    ["5 parsecs", "5 kmin", "5 B/", "5 /s", "5 B//s", "5 GiGB", "GB", "five GB", "5 GB extra", ""],
)
def test_what_is_no_quantity_is_refused(text: str) -> None:
    with pytest.raises(ConfigError):
        units.parse(text, "B")


@pytest.mark.parametrize(
    "text", ["1e400 B", "1e999999 EB", "1e999999999999999999 B", "9" * 70 + "e300 EB"]
)
def test_what_no_float_can_hold_is_out_of_range(text: str) -> None:
    with pytest.raises(ConfigError, match=r"out of range|not a quantity"):
        units.parse(text, "B")


def test_a_long_text_is_not_quoted_whole() -> None:
    with pytest.raises(ConfigError) as caught:
        units.parse("9" * 10_000 + " B", "B")
    assert len(str(caught.value)) < 200


@sample_of(25, 100, st.text(max_size=40))
def test_any_text_is_read_or_refused(text: str) -> None:
    try:
        value = units.parse(text, "B/s")
    except ConfigError:
        return
    assert math.isfinite(value)


class Sizes(BaseModel):
    """One field of each kind of bound."""

    size: units.Bytes
    wait: units.Seconds


def test_types_of_quantities_refuse_what_is_below_their_bound() -> None:
    assert Sizes(size="1 KiB", wait="0 s").size == 1024
    with pytest.raises(ValidationError, match="more than 0"):
        Sizes(size="0 B", wait="0 s")
    with pytest.raises(ValidationError, match="at least 0"):
        Sizes(size="1 B", wait="-1 s")


@given(st.floats(1e-9, 1e18), st.just(0.0) | st.floats(1e-40, 1e6))
def test_types_of_quantities_write_what_they_read(size: float, wait: float) -> None:
    sizes = Sizes(size=f"{size!r} B", wait=f"{wait!r} s")
    assert sizes == Sizes.model_validate_json(sizes.model_dump_json())
    assert sizes.size == size


def test_no_size_is_too_large_for_whole_numbers_of_64_bits() -> None:
    assert Sizes(size=f"{2**60} B", wait="0 s").size == units.MOST_BYTES
    with pytest.raises(ValidationError, match="must be at most"):
        Sizes(size="1153 PB", wait="0 s")


@pytest.mark.parametrize(
    ("written", "meant"),
    [("GBps", "GB/s"), ("Gbps", "Gb/s"), ("TFLOPS", "TFLOP/s"), ("gb/s", "GB"), ("gib", "GiB"),
     ("mhz", "MHz"), ("watt", None), ("furlong", None)],
)  # fmt: skip
def test_a_unit_in_other_letters_is_known_again(written: str, meant: str | None) -> None:
    with pytest.raises(ConfigError) as caught:
        units.quantity(f"2 {written}")
    assert (f"did you mean '{meant}'" in str(caught.value)) == (meant is not None)
    assert ("did you mean" in str(caught.value)) == (meant is not None)


@pytest.mark.parametrize(
    ("found", "means"),
    [("32 Gib", "'32 GiB' for bytes, or '32 Gibit' for bits"),
     ("16 Mb", "'16 MB' for bytes, or '16 Mbit' for bits"), ("8 b", "'8 B' for bytes")],
)  # fmt: skip
def test_a_size_in_bits_says_what_is_likely_meant(found: str, means: str) -> None:
    with pytest.raises(ConfigError, match=means):
        units.parse(found, "B")
    with pytest.raises(ValidationError, match=means):
        Sizes(size=found, wait="0 s")
    assert units.parse(f"{found}/s", "B/s") == units.parse(f"{found}it", "B")
