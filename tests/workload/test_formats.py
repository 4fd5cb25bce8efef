"""Number formats against NumPy's own and against every number that they hold."""

from __future__ import annotations

import math
from functools import cache
from itertools import pairwise
from statistics import NormalDist

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from ridgeline.errors import RidgelineError
from ridgeline.workload import formats
from ridgeline.workload.formats import FORMATS
from ridgeline.workload.rounding import LogNormal, Normal, quantise, range_loss

FLOATS = [f.name for f in FORMATS.values() if f.kind == "float"]
SMALL = ["fp16", "bf16", "fp8-e4m3", "fp8-e5m2", "fp8-block", "mxfp8", "mxfp4", "nvfp4"]
FIXED = ["int8", "flex16+5"]
wide = hnp.arrays(
    np.float64, st.integers(1, 40), elements=st.floats(-1e6, 1e6, allow_subnormal=False)
)


@cache
def every_number(name: str) -> np.ndarray:
    """All finite numbers at least 0 in order, read off the bits, not computed by the format."""
    format_ = FORMATS[name]
    codes = np.arange(2 ** (format_.bits - 1))
    exponent, mantissa = np.divmod(codes, 2**format_.mantissa_bits)
    bias = 2 ** (format_.exponent_bits - 1) - 1
    top = 2**format_.exponent_bits - 1
    values = np.where(
        exponent == 0,
        mantissa * 2.0 ** (1 - bias - format_.mantissa_bits),
        (1 + mantissa / 2**format_.mantissa_bits) * 2.0 ** (exponent - bias),
    )
    # OCP 8-bit formats: only S.1111.111 is not a number
    if name in {"fp8-e4m3", "fp8-block", "mxfp8"}:
        return values[:-1]
    return values if name in {"mxfp4", "nvfp4"} else values[exponent < top]


@pytest.mark.parametrize("name", SMALL)
def test_the_extremes_are_those_of_the_bits(name: str) -> None:
    numbers, format_ = every_number(name), FORMATS[name]
    assert numbers[-1] == format_.largest
    assert numbers[1] == format_.least
    assert numbers[2**format_.mantissa_bits] == format_.least_normal


def test_published_extremes() -> None:
    largest = {name: FORMATS[name].largest for name in SMALL}
    assert largest["fp16"] == 65504
    assert largest["fp8-e4m3"] == 448
    assert largest["fp8-e5m2"] == 57344
    assert largest["nvfp4"] == 6
    assert FORMATS["fp8-e4m3"].least == 2.0**-9
    assert FORMATS["fp8-e5m2"].least == 2.0**-16
    assert FORMATS["fp32"].largest == np.finfo(np.float32).max


def nearest_even(x: float, numbers: np.ndarray) -> float:
    """Round by looking through all numbers; the next one after the last is where infinity begins.

    The codes alternate between even and odd mantissas, so that an even code is an even mantissa.
    """
    steps = np.append(numbers, 2 * numbers[-1] - numbers[-2])
    distance = np.abs(steps - abs(x))
    near = np.flatnonzero(distance == distance.min())
    chosen = int(next((code for code in near if code % 2 == 0), near[0]))
    return math.nan if chosen == len(numbers) else math.copysign(numbers[chosen], x)


@settings(max_examples=150, deadline=None)
@given(
    st.sampled_from(SMALL),
    st.one_of(
        st.floats(-1e5, 1e5),
        st.floats(-600, 600),
        st.floats(-1e-3, 1e-3),
        st.integers(-2000, 2000).map(lambda n: n * 2.0**-17),
    ),
)
def test_rounding_is_to_the_nearest_of_all_numbers_ties_to_even(name: str, x: float) -> None:
    expected = nearest_even(x, every_number(name))
    (found,) = quantise([x], name)
    if math.isnan(expected) and FORMATS[name].kept == "nothing":
        assert found == math.copysign(6, x)
    elif math.isnan(expected):
        assert math.isnan(found) if FORMATS[name].kept == "code" else math.isinf(found)
        (held,) = quantise([x], name, overflow="saturate")
        assert held == math.copysign(FORMATS[name].largest, x)
    else:
        assert found == expected


@given(st.integers(1, 10**6))
def test_blocks_share_a_scale(elements: int) -> None:
    blocks = math.ceil(elements / 16)
    assert FORMATS["nvfp4"].tensor_bits(elements) == 4 * elements + 8 * blocks + 32
    assert FORMATS["fp8-e4m3"].tensor_bits(elements) == 8 * elements


@pytest.mark.parametrize("name", SMALL)
def test_numbers_and_the_middles_between_them(name: str) -> None:
    numbers = every_number(name)
    assert np.array_equal(quantise(numbers, name), numbers)
    middles = (numbers[1:] + numbers[:-1]) / 2
    even = np.where(np.arange(len(middles)) % 2 == 0, numbers[:-1], numbers[1:])
    assert np.array_equal(quantise(middles, name), even)


@pytest.mark.parametrize(("name", "dtype"), [("fp16", np.float16), ("fp32", np.float32)])
def test_ieee_formats_round_as_numpy_does(name: str, dtype: type[np.floating]) -> None:
    random = np.random.default_rng(7)
    x = random.standard_normal(100_000) * np.exp2(random.uniform(-170, 140, 100_000))
    x = np.concatenate([x, x * 2.0**-30, [0.0, -0.0, np.inf, -np.inf]])
    with np.errstate(over="ignore", under="ignore"):
        expected = x.astype(dtype).astype(np.float64)
    assert np.array_equal(quantise(x, name), expected)
    assert np.array_equal(quantise(x, "fp64"), x)


def test_narrow_significands_of_fp32_range() -> None:
    x = np.random.default_rng(3).standard_normal(10_000)
    for name, bits in (("tf32", 10), ("bf16", 7)):
        relative = np.abs(quantise(x, name) / x - 1)
        assert relative.max() <= 2.0 ** -(bits + 1)
        assert relative.max() > 0.9 * 2.0 ** -(bits + 1)


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(FLOATS + FIXED), wide)
def test_rounding_again_changes_nothing_and_order_is_kept(name: str, x: np.ndarray) -> None:
    step = {"step": 0.5} if name in FIXED else {}
    once = quantise(x, name, overflow="saturate", **step)  # type: ignore[arg-type]
    again = quantise(once, name, overflow="saturate", **step)  # type: ignore[arg-type]
    assert np.array_equal(again, once)
    order = np.argsort(x)
    assert (np.diff(once[order]) >= 0).all()
    mirrored = quantise(-x, name, overflow="saturate", **step)  # type: ignore[arg-type]
    assert np.array_equal(mirrored, -once)


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(FIXED), wide)
def test_a_fixed_format_just_holds_the_largest_value(name: str, x: np.ndarray) -> None:
    rounded, largest = quantise(x, name), float(np.abs(x).max())
    if largest < 1e-280:
        return
    step = formats.step_for(FORMATS[name], largest)
    assert np.abs(rounded - x).max() <= 0.5 * step * (1 + 1e-9)
    assert largest <= FORMATS[name].largest * step * (1 + 1e-12)
    if name == "flex16+5":
        assert math.frexp(step)[0] == 0.5  # a power of two
        assert largest > FORMATS[name].largest * step / 2 * (1 - 1e-12)  # and the least that does


@pytest.mark.parametrize("name", FLOATS + FIXED)
def test_bits_of_a_tensor(name: str) -> None:
    format_ = FORMATS[name]
    shared = {
        "flex16+5": 5, "fp8-block": 8 * 32, "mxfp8": 32 * 8, "mxfp4": 32 * 8, "nvfp4": 63 * 8 + 32,
    }  # fmt: skip
    assert format_.tensor_bits(1000) == 1000 * format_.bits + shared.get(name, 0)
    if format_.kind == "float" and name != "tf32":
        assert 1 + format_.exponent_bits + format_.mantissa_bits == format_.bits
    assert formats.bytes_of(name) == formats.FORMAT_BYTES[name]


# what is lost of a distribution


def counted(x: np.ndarray, name: str, scale: float, step: float | None) -> tuple[float, ...]:
    """Shares read off the rounded values."""
    format_ = FORMATS[name]
    rounded = quantise(x, name, scale=scale, step=step)
    if format_.kind == "fixed":
        unit = step or formats.step_for(format_, float(np.abs(x * scale).max()))
        over = np.abs(np.rint(x * scale / unit)) > format_.largest
        normal = unit / scale
    else:  # 7 is between 6 and 8, whose mantissa is even
        over = np.abs(x * scale) >= 7 if FORMATS[name].kept == "nothing" else ~np.isfinite(rounded)
        normal = format_.least_normal / scale
    lost = (x != 0) & (rounded == 0)
    return over.mean(), lost.mean(), (~lost & (x != 0) & (np.abs(x) < normal)).mean()


@settings(max_examples=100, deadline=None)
@given(
    st.sampled_from([*SMALL, *FIXED]),
    hnp.arrays(
        np.float64,
        st.integers(1, 60),
        elements=st.one_of(
            st.just(0.0),
            st.floats(-70000, 70000, width=32),
            st.floats(-(2.0**-13), 2.0**-13, width=32),
        ),
    ),
    st.sampled_from([1.0, 1024.0, 2.0**-6]),
)
def test_shares_of_values_are_those_of_the_rounded_values(
    name: str, x: np.ndarray, scale: float
) -> None:
    if not x.any():
        return
    loss = range_loss(x, name, scale=scale)
    expected = counted(x, name, scale, None)
    assert (loss.overflow, loss.underflow, loss.subnormal) == pytest.approx(expected, abs=1e-12)


def test_ties_at_both_ends() -> None:
    assert range_loss([464.0], "fp8-e4m3").overflow == 0  # 448 is even, and 480 is no number
    assert range_loss([np.nextafter(464, 500)], "fp8-e4m3").overflow == 1
    assert range_loss([65520.0], "fp16").overflow == 1  # half a step above 65504, which is odd
    assert range_loss([2.0**-25], "fp16").underflow == 1
    assert range_loss([np.nextafter(2.0**-25, 1)], "fp16").subnormal == 1


@pytest.mark.parametrize("name", [*SMALL, *FIXED])
@pytest.mark.parametrize(
    "distribution", [Normal(30.0), Normal(0.01, 0.02), LogNormal(-8, 6), LogNormal(10, 3)]
)
def test_closed_forms_against_the_quantiles_of_the_distribution(
    name: str, distribution: Normal | LogNormal
) -> None:
    count = 20_000
    z = np.array([NormalDist().inv_cdf((i + 0.5) / count) for i in range(count)])
    if isinstance(distribution, Normal):
        x = distribution.mean + distribution.std * z
    else:
        x = np.exp2(distribution.mean_log2 + distribution.std_log2 * z)
    step = 2.0**-6 if name in FIXED else None
    closed = range_loss(distribution, name, step=step)
    exact = range_loss(x, name, step=step)
    for share in ("overflow", "underflow", "subnormal"):
        assert getattr(closed, share) == pytest.approx(getattr(exact, share), abs=2 / count), share


def test_loss_scaling_trades_underflow_for_overflow() -> None:
    gradients = LogNormal(-22, 4)
    losses = [range_loss(gradients, "fp16", scale=2.0**n) for n in range(0, 40, 4)]
    assert all(a.underflow >= b.underflow for a, b in pairwise(losses))
    assert all(a.overflow <= b.overflow for a, b in pairwise(losses))
    assert losses[0].underflow > 0.2
    assert losses[4].underflow + losses[4].overflow < 0.01
    assert range_loss(gradients, "bf16").underflow < 1e-20  # has the range of fp32


@pytest.mark.parametrize(
    ("values", "name", "more", "said"),
    [
        ([1.0], "fp9", {}, "did you mean"),
        ([1.0], "int64", {}, "indices"),
        ([], "fp16", {}, "no values"),
        ([1.0], "fp16", {"scale": 0.0}, "scale must be"),
        (Normal(1.0), "int8", {}, "give a step"),
        (Normal(0.0), "fp16", {}, "spread"),
    ],
)
def test_what_cannot_be_rounded_is_an_error(
    values: object, name: str, more: dict[str, float], said: str
) -> None:
    with pytest.raises(RidgelineError, match=said):
        range_loss(values, name, **more)  # type: ignore[arg-type]
