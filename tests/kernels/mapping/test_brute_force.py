"""A fixed sample of ``benchmarks/check_mapping_brute.py``: mappers against everything, played."""

from __future__ import annotations

import random

import pytest

from check_mapping_brute import OBJECTIVES, compared, drawn, everything
from ridgeline.errors import RidgelineError
from ridgeline.kernels.mapping.mapper import map_contraction

CASES = 30


@pytest.mark.parametrize("case", range(CASES))
def test_mappers_find_the_least_time_energy_and_product(case: int) -> None:
    """Of every tiling in every order, with every way to compute each of its tiles."""
    what, on, mapper, base = drawn(random.Random(f"test {case}"))
    played = everything(what, on, mapper, most=16)
    if played is None:
        return
    for objective in OBJECTIVES:
        found, least = compared(what, on, mapper, objective, base, played)
        assert found == pytest.approx(least, rel=1e-9), objective


def test_a_slower_way_of_a_tile_counts_for_the_product() -> None:
    """Of some cases the best product is of tiles that are neither the fastest nor the least."""
    better = 0
    for case in range(110, 120):
        what, on, mapper, base = drawn(random.Random(f"ways {case}"))
        try:
            found = [map_contraction(*what, on, mapper, goal, base) for goal in OBJECTIVES]
        except RidgelineError:
            continue
        products = [(one.time_s + base.time_s) * (one.energy_j + base.energy_j) for one in found]
        edp = products.pop(OBJECTIVES.index("edp"))
        assert edp <= min(products) * (1 + 1e-9)
        better += edp < min(products) * (1 - 1e-6)
    assert better > 0
