"""Predict first, measure after: with NumPy alone, and two processes as a node."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pytest

import ridgeline as rl
from ridgeline.cli import execute
from ridgeline.hardware import load_device
from ridgeline.study.calibrate import document
from ridgeline.study.live import node_of
from ridgeline.study.live.numpy_networks import CASES, logits, model_of, step_of

sys.path.insert(0, str(Path(__file__).parents[1] / "calibrate"))


def test_with_numpy_alone(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["validate", "--live", "--backend", "numpy", "--quick", "--seconds", "0.5"]
    assert execute([*arguments, "--json", "--rows"]) == 0
    said = capsys.readouterr()
    answer = json.loads(said.out)
    assert answer["suite"] == "live"
    assert answer["summary"]["n"] == len(CASES)
    assert answer["summary"]["median_abs_error"] < 3.0  # a machine may be busy; not lost
    (reason,) = answer["skipped"]
    assert "PyTorch with gloo" in reason
    rows = [row for row in answer["rows"] if row["skipped"] is None]
    for row in rows:
        assert row["measured"] > 0
        assert row["predicted"] > row["trivial"]["peak rate"]
    order = [said.err.index(f"{case.name}, batch") for case in CASES]
    assert max(order) < said.err.index("measuring")  # all predictions come first


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_the_step_that_is_measured_is_the_one_that_is_predicted(case: object) -> None:
    graph = model_of(case).training(16)
    widths = list(zip(case.widths, case.widths[1:], strict=False))
    forward = sum(2 * 16 * a * b for a, b in widths)
    assert graph.flops() == 3 * forward - 2 * 16 * widths[0][0] * widths[0][1]
    assert graph.parameters == sum(a * b + b for a, b in widths)


def test_the_step_in_numpy_descends() -> None:
    """Its gradients are right: after steps on one mini-batch the loss is lower."""
    case = CASES[1]
    step = step_of(case, 32)
    weights = next(c.cell_contents for c in step.__closure__ if isinstance(c.cell_contents, list))
    x, labels = (
        next(
            c.cell_contents
            for c in step.__closure__
            if isinstance(c.cell_contents, np.ndarray) and c.cell_contents.ndim == ndim
        )
        for ndim in (2, 1)
    )

    def loss() -> float:
        z = logits(x, weights)
        z = z - z.max(axis=1, keepdims=True)
        return float((np.log(np.exp(z).sum(axis=1)) - z[np.arange(32), labels]).mean())

    before, old = loss(), [w.copy() for w in weights]
    step()
    # One step of rate r lowers the loss by r times the squared length of the gradient.
    length = sum(
        float(((a - b).astype(float) ** 2).sum()) for a, b in zip(weights, old, strict=True)
    )
    assert before - loss() == pytest.approx(length / 1e-3, rel=0.05)


def test_two_processes_are_a_node_that_exchanges_as_measured(tmp_path: Path) -> None:
    device = load_device("xeon-phi-7250")
    sizes, begin_s, rate = (2**12, 2**18, 2**20, 2**22), 3e-4, 2e9
    times = [begin_s + size / rate for size in sizes]
    path = tmp_path / "pair.yaml"
    fields = node_of("xeon-phi-7250", device, sizes, times)
    document.write(path, {**fields, "device": "xeon-phi-7250"}, "two")
    for size in (10_000, 3_000_000):
        result = rl.collective("all-reduce", size, str(path))
        assert result.time_s == pytest.approx(begin_s + size / rate, rel=1e-3)


def test_flags_that_do_not_go_together(capsys: pytest.CaptureFixture[str]) -> None:
    for arguments, words in (
        (["validate", "gemm", "--live"], "leave out the suite"),
        (["validate", "gemm", "--calibration", "x.yaml"], "go with --live"),
        (["validate", "--live", "--calibration", "missing.yaml"], "missing.yaml"),
        (
            ["validate", "--live", "--calibration", "xeon-phi-7250", "--backend", "numpy"],
            "describes 68 cores",
        ),
    ):
        assert execute(arguments) == 2
        assert words in capsys.readouterr().err
