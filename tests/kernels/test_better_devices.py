"""A device with any better value of its data sheet is never slower: products at the same power."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest

from check_better_devices import ROUNDING, VALUES, better, own_gpu, products
from ridgeline.hardware import load_device
from ridgeline.hardware.device import Device
from ridgeline.kernels import pricing
from ridgeline.kernels.kernel_price import KernelPrice, price_kernels
from ridgeline.workload.graph import Graph
from ridgeline.workload.kernel_graphs import linear_graph, product_formats
from thoroughly import further

LIMITED = ("l4", "t4", "mi300x", "rtx-4090", "l40s", "b200")
"""Boards whose power limit lowers the clock of some products."""
CASES = 12


@cache
def board(name: str) -> tuple[Device, list[Graph], list[KernelPrice]]:
    """Return a board, products, and what they take on it."""
    device = load_device(name)
    graphs = products(device, CASES, np.random.default_rng(len(name)))
    return device, graphs, price_kernels(graphs, device)


@pytest.mark.parametrize("what", VALUES)
@pytest.mark.parametrize("name", [*LIMITED[:3], *further(*LIMITED[3:])])
def test_a_better_device_is_never_slower(name: str, what: str) -> None:
    device, graphs, before = board(name)
    for factor in (1.3, 3.0):
        after = price_kernels(graphs, better(device, what, factor))
        for graph, old, new in zip(graphs, before, after, strict=True):
            assert new.time_s <= (1 + ROUNDING) * old.time_s, (graph.name, factor)


@pytest.mark.parametrize("name", ["l4", "t4", "rtx-4090"])
def test_what_another_engine_excludes_is_no_faster(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    device = load_device(name)
    sizes = (2 ** np.random.default_rng(3).uniform(6.0, 13.0, (80, 3))).astype(int).tolist()
    graphs = [linear_graph(m, n, k, product_formats("fp16")) for m, n, k in sizes]
    found = price_kernels(graphs, device)
    monkeypatch.setattr(pricing, "is_calibrated", lambda *_: True)  # nothing is excluded
    assert price_kernels(graphs, device) == found


@pytest.mark.parametrize("what", VALUES)
def test_a_better_device_that_nobody_has_measured_is_never_slower(what: str) -> None:
    rng = np.random.default_rng(len(what))
    for device in (own_gpu(rng) for _ in range(6)):
        graphs = products(device, 10, rng)
        before = price_kernels(graphs, device)
        after = price_kernels(graphs, better(device, what, 1.3))
        for graph, old, new in zip(graphs, before, after, strict=True):
            assert new.time_s <= (1 + ROUNDING) * old.time_s, graph.name


@pytest.mark.parametrize(
    ("name", "sizes", "format_", "what", "factor"),
    [
        ("mi300x", (5326, 132, 11356), "tf32", "memory", 1.07),  # 6 parts, not 32, within the limit
        ("mi100", (3360, 229, 260), "fp16", "near levels", 1.07),  # results pass the L2, too
        ("a10g", (2890, 3571, 807), "tf32", "registers", 2.0),  # a smaller wave fits into the L2
    ],
)
def test_what_was_slower_with_a_better_device(
    name: str, sizes: tuple[int, int, int], format_: str, what: str, factor: float
) -> None:
    device = load_device(name)
    graph = linear_graph(*sizes, product_formats(format_))
    (old,), (new,) = (price_kernels([graph], d) for d in (device, better(device, what, factor)))
    assert new.time_s <= (1 + ROUNDING) * old.time_s


def test_a_tile_that_moves_less_is_chosen_under_the_limit() -> None:
    # The fastest tile at full clock draws more than 750 W; with more bandwidth it was another one.
    device = load_device("mi300x")
    graph = linear_graph(6357, 4940, 151, product_formats("tf32"))
    (old,), (new,) = (price_kernels([graph], d) for d in (device, better(device, "memory", 2.0)))
    assert new.time_s <= old.time_s
