"""A number without a unit, or with a wrong one, is answered by one that is accepted."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from ridgeline import catalog, units
from ridgeline.errors import ConfigError
from ridgeline.hardware import load_device, load_energy_table
from ridgeline.hardware.load import description, load_cluster, load_node
from ridgeline.hardware.schema import SCHEMAS, Model, reachable_models, schema_fields
from ridgeline.hardware.templates import device_template
from ridgeline.unit_proposals import proposal

LOADERS = {"devices": load_device, "nodes": load_node, "clusters": load_cluster}
ROOTS: dict[str, Model] = {
    "devices": SCHEMAS["device-schema"],
    "nodes": SCHEMAS["node-schema"],
    "clusters": SCHEMAS["cluster-schema"],
}
Place = tuple[str, ...]
FIELDS = {
    (model.__name__, field.name): (model, field)
    for root in ROOTS.values()
    for model in reachable_models(root)
    for field in schema_fields(model)
    if field.unit
}


def quantities(model: Model, data: Any, path: Place = ()) -> Iterator[tuple[str, str, Place]]:
    """Yield model, field and place of every quantity that stands in a document."""
    for field in schema_fields(model):
        value = data.get(field.name)
        if value is None:
            continue
        items: list[tuple[Place, Any]] = [((), value)]
        if field.mapped:
            items = [((key,), item) for key, item in value.items()]
        elif isinstance(value, list):
            items = [((str(i),), item) for i, item in enumerate(value)]
        for more, item in items:
            place = (*path, field.name, *more)
            if field.unit:
                yield model.__name__, field.name, place
            elif field.models and isinstance(item, dict):
                yield from quantities(field.models[0], item, place)


@cache
def places() -> dict[tuple[str, str], tuple[str, str, Place]]:
    """Find one place in a shipped description for every field that takes a quantity."""
    found: dict[tuple[str, str], tuple[str, str, Place]] = {}
    for kind, root in ROOTS.items():
        for name in catalog.names(kind):
            for model, field, place in quantities(root, description(kind, name).data):
                found.setdefault((model, field), (kind, name, place))
    return found


@pytest.mark.parametrize("of", sorted(FIELDS), ids=".".join)
def test_every_field_with_a_unit_has_a_proposal(of: tuple[str, str]) -> None:
    model, field = FIELDS[of]
    raw = {"a": 10} if field.mapped else 10
    with pytest.raises(ValidationError) as error:
        model.model_validate({field.name: raw})
    found = [
        problem["ctx"]["error"]
        for problem in error.value.errors()
        if problem["loc"][0] == field.name and problem["type"] == "value_error"
    ]
    assert isinstance(found[0], units.QuantityError)
    said = proposal(10, found[0].unit, (field.name,), {})
    assert said is not None
    written = re.search(r"write '10 ([^']+)'", said)
    assert written is not None
    assert units.dimension_of(written[1]) == units.dimension_of(found[0].unit)


def is_refused_for_its_unit(load: Any, name: str, path: str, text: str) -> bool:
    try:
        load(name, {path: text})
    except ConfigError as error:  # a clock that makes no rate of the engine is read, and refused
        return "unit" in str(error)
    return False


@pytest.mark.parametrize("of", sorted(places()), ids=".".join)
@pytest.mark.parametrize("bare", [10, 1.4, 900])
def test_what_is_proposed_for_a_bare_number_is_accepted(of: tuple[str, str], bare: float) -> None:
    kind, name, place = places()[of]
    load, path = LOADERS[kind], ".".join(place)
    with pytest.raises(ConfigError, match="a number without a unit") as error:
        load(name, {path: bare})
    message = str(error.value)
    assert f"found {bare}" in message
    written = re.search(r"write '([^']+)'", message)
    assert written is not None
    assert written[1].startswith(str(bare))
    assert not is_refused_for_its_unit(load, name, path, written[1])


@pytest.mark.parametrize(
    ("raw", "unit", "location", "beside", "text"),
    [
        (10, "s", "memory.l2.latency", {}, "10 ns"),
        (400, "s", "memory.hbm.latency.value", {}, "400 ns"),
        (5, "s", "launch_latency", {}, "5 us"),
        (5e-6, "s", "launch_latency", {}, "5 us"),
        (500, "s", "link_types.wire.latency", {}, "500 us"),
        (900, "B/s", "memory.hbm.bandwidth", {}, "900 GB/s"),
        (3.35, "B/s", "memory.hbm.bandwidth", {}, "3.35 TB/s"),
        (9e11, "B/s", "memory.hbm.bandwidth", {}, "900 GB/s"),
        ("900 GB", "B/s", "memory.hbm.bandwidth", {}, "900 GB/s"),
        ("900 gb/s", "B/s", "memory.hbm.bandwidth", {}, "900 GB/s"),
        ("900 GBps", "B/s", "memory.hbm.bandwidth", {}, "900 GB/s"),
        ("900 Gbps", "B/s", "memory.hbm.bandwidth", {}, "900 Gb/s"),
        (16, "B", "memory.hbm.capacity", {"kind": "dram"}, "16 GiB"),
        (16, "B", "memory.l2.capacity", {"kind": "sram"}, "16 MiB"),
        (256, "B", "memory.rf.capacity", {"kind": "registers"}, "256 KiB"),
        (2**24, "B", "memory.l2.capacity", {"kind": "sram"}, "16 MiB"),
        ("16", "B", "host.memory", {}, "16 GiB"),
        (48, "B", "engines.e.bsp.memory", {}, "48 KiB"),
        ("16 GB/s", "B", "memory.l2.capacity", {}, "16 GB"),
        (1.4, "Hz", "engines.e.array.clock", {}, "1.4 GHz"),
        (940, "Hz", "engines.e.array.clock", {}, "940 MHz"),
        ("2 ns", "Hz", "engines.e.array.clock", {}, "500 MHz"),
        (312, "FLOP/s", "engines.e.rates.bf16", {}, "312 TFLOP/s"),
        ("312 TOPS", "FLOP/s", "engines.e.rates.int8", {}, "312 TFLOP/s"),
        ("312 TFLOPS", "FLOP/s", "engines.e.rates.int8", {}, "312 TFLOP/s"),
        ("312 TFLOP", "FLOP/s", "engines.e.rates.int8", {}, "312 TFLOP/s"),
        (30, "W", "idle_power", {}, "30 W"),
        ("30 J", "W", "idle_power", {}, "30 W"),
        ("30 Watts", "W", "idle_power", {}, "30 W"),
        (815, "m2", "area", {}, "815 mm2"),
        ("815 mm", "m2", "area", {}, "815 mm2"),
        (5, "m", "process_node", {}, "5 nm"),
        ("$8,000", "USD", "price", {}, "8000 USD"),
        ("4 pJ", "J/B", "energy", {}, "4 pJ/bit"),
    ],
)
def test_proposals(
    raw: object, unit: str, location: str, beside: dict[str, str], text: str
) -> None:
    said = proposal(raw, unit, tuple(location.split(".")), beside)
    assert said is not None
    assert f"write {text!r}" in said
    units.parse(text, unit)


@given(
    number=st.floats(1e-12, 1e15) | st.integers(1, 10**15),
    unit=st.sampled_from(["s", "B", "B/s", "FLOP/s", "FLOP", "W", "m", "m2", "Hz", "USD", "J/B"]),
    field=st.sampled_from(["latency", "bandwidth", "capacity", "clock", "x"]),
)
def test_a_field_of_any_dimension_has_a_proposal_of_it(
    number: float, unit: str, field: str
) -> None:
    said = proposal(number, unit, ("memory", "l2", field), {"kind": "sram"})
    assert said is not None
    written = re.search(r"write '([^']+)'", said)
    assert written is not None
    value, found = units.split(written[1])
    assert float(value) > 0
    assert units.dimension_of(found or "") == units.dimension_of(unit)


@pytest.mark.parametrize(
    "raw", [None, True, [1], {}, "fast", "", float("nan"), "3 parsecs", "1e-300 s"]
)
def test_what_is_no_number_has_no_proposal(raw: object) -> None:
    assert proposal(raw, "s", ("launch_latency",), {}) is None


def test_energies_are_proposed_for_entries(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    text = device_template("gpu")
    for old, new, wanted in (
        ("energy: dram.hbm2", "energy: 7", "'7 pJ/bit', or the name of an entry"),
        ("energy: dram.hbm2", "energy: '7'", "'7 pJ/bit', or the name of an entry"),
        ("{fp32: flop.fp32}", "{fp32: 0.5}", "'0.5 pJ/FLOP', or the name of an entry"),
    ):
        path.write_text(text.replace(old, new))
        with pytest.raises(ConfigError, match=re.escape(f"write {wanted}")) as error:
            load_device(str(path))
        assert error.value.line is not None
    with pytest.raises(ConfigError, match="valid string"):
        load_energy_table("jouppi-7nm", {"entries.flop.fp32.voltage": 1})
    for entry, wanted in (("flop.fp32", "2 pJ/FLOP"), ("sram.l1", "2 pJ/bit")):
        with pytest.raises(ConfigError, match=re.escape(f"write '{wanted}'")):
            load_energy_table("jouppi-7nm", {f"entries.{entry}.value": 2})
