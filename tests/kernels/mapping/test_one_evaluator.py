"""Searched and given mappings, steps and reports: one figure for one mapping, on random devices."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from check_mapping_monotone import (
    ROUNDING,
    below_ledger,
    better,
    device,
    drawn,
    shape,
    timed,
    value,
)
from ridgeline.errors import RidgelineError
from ridgeline.hardware import load_device
from ridgeline.kernels.single_op import gemm

CASES = 24


@pytest.mark.parametrize("case", range(CASES))
def test_more_of_a_resource_is_never_slower_nor_below_the_ledger(case: int) -> None:
    """A fixed sample of ``benchmarks/check_mapping_monotone.py``, through what users call."""
    rng = random.Random(f"test {case}")
    numbers, what = drawn(rng), shape(rng)
    numbers["levels"] = numbers["levels"][:2]
    name, more = better(numbers, rng)
    goals = ["time", "energy", "edp"] if len(numbers["levels"]) == 1 and name != "level" else []
    one, other, goal = device(numbers), device(more), rng.choice(["time", *goals])
    try:
        before = timed(what, one, "fast", goal)
    except RidgelineError:
        return
    after = timed(what, other, "fast", goal)
    assert value(after, goal) <= value(before, goal) * ROUNDING, name
    assert not below_ledger(before, one)
    assert not below_ledger(after, other)


@pytest.mark.parametrize("case", range(CASES))
def test_what_was_searched_costs_the_same_when_it_is_given(case: int, tmp_path: Path) -> None:
    rng = random.Random(f"given {case}")
    numbers, what = drawn(rng), shape(rng)
    on = device(numbers)
    try:
        found = timed(what, on, rng.choice(["fast", "optimal"]), "time")
    except RidgelineError:
        return
    assert found.mapped is not None
    path = tmp_path / "mapping.yaml"
    path.write_text(found.mapped["file"])
    given = timed(what, on, str(path), "time")
    if len(numbers["levels"]) > 1:  # a file lays the last tiles out as the first one
        assert given.time_s == pytest.approx(found.time_s, rel=0.01)
        return
    assert given.time_s == pytest.approx(found.time_s, rel=1e-9)
    assert given.mapped is not None
    for border, by_operand in found.mapped["moved_bytes"].items():
        if not border.endswith("engine"):  # equally fast ways of a tile may read other words
            assert given.mapped["moved_bytes"][border] == pytest.approx(by_operand)


def test_a_mapping_that_does_not_fit_names_level_and_operand(tmp_path: Path) -> None:
    path = tmp_path / "mapping.yaml"
    path.write_text("kind: mapping\nlevels:\n  - level: hbm\n    loops: []\n")
    with pytest.raises(
        RidgelineError, match=r"do not fit vmem: a .* B, b .* B; [ab] takes the most"
    ):
        gemm(65536, 512, 65536, "tpu-v2", mapping=str(path))


def test_a_tpu_v1_adds_sums_up_in_its_accumulators() -> None:
    """Reused weights run at the rate of the array: 86 of 92 TOPS are published for CNN0."""
    on = load_device("tpu-v1")
    found = gemm(2888, 256, 2304, on)
    assert found.mapped is not None
    assert {"weights - buffer", "weights - engine", "accumulators - engine"} < set(
        found.mapped["moved_bytes"]
    )
    assert found.mapped["time_s"]["compute"] < 3.41e9 / 86e12 * 1.05
