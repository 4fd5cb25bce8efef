"""The live check with PyTorch, where it is installed (`make test-trace`)."""

from __future__ import annotations

import math

import pytest

from ridgeline.errors import RidgelineError
from ridgeline.study.calibrate import machine
from ridgeline.study.live import Check, live
from ridgeline.study.live.pair import exchange_s, run_pair
from ridgeline.workload.trace.torch_entry import trace

torch = pytest.importorskip("torch")


def test_predictions_are_near_what_is_measured() -> None:
    said: list[str] = []
    made = live(Check(backend="torch", quick=True, seconds=2.0, threads=1), said.append)
    assert {row.group for row in made.outcomes} == {"mlp", "cnn", "lstm", "transformer"}
    assert made.summary.median_abs_error < 1.0  # a quick one, on a machine that may be busy
    assert made.summary.median_abs_error < made.trivial["peak rate"].median_abs_error
    measuring = said.index("measuring")
    assert sum("predicted" in words for words in said[:measuring]) == len(made.outcomes)
    assert len(made.skipped) == 1


def test_networks_are_traced_as_they_are() -> None:
    from ridgeline.study.live.torch_networks import CASES

    for case in CASES:
        network = case.build()
        model = trace(case.build(), case.inputs(4), loss="cross-entropy", name=case.name)
        graph = model.training(case.batches[0])
        assert graph.parameters == sum(p.numel() for p in network.parameters())


@pytest.mark.skipif(machine.usable_cores() < 2, reason="two processes need two cores")
def test_two_processes_exchange_gradients() -> None:
    small, large = exchange_s((2**12, 2**22), 1, 5)
    assert 0 < small.processor_s < large.processor_s
    assert all(math.isfinite(seconds) for seconds in (*small, *large))


def test_a_process_that_fails_is_named() -> None:
    with pytest.raises(RidgelineError, match=r"one of two processes failed: .*KeyError"):
        run_pair({"do": "train", "cases": [["no such network", 1, 1]], "threads": 1})
