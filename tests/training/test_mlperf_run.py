"""A submission to MLPerf as a run file: the step and the samples of its row in the suite."""

from __future__ import annotations

from importlib import resources
from pathlib import Path

import pytest

from ridgeline.study.validate.mlperf import predict
from ridgeline.study.validate.normalised_rows import NormalRow
from ridgeline.study.validate.outcome import Outcome
from ridgeline.study.validate.rows import MeasuredRow, read_rows
from ridgeline.training.run_file import point_of, read_run
from ridgeline.training.train import train

RUN = Path(__file__).parents[2] / "docs" / "examples" / "runs" / "mlperf" / "bert-dgx-a100.yaml"


def row() -> MeasuredRow:
    table = resources.files("ridgeline.study.validate").joinpath("data", "mlperf.csv")
    return next(of for of in read_rows(Path(str(table))) if of.id == "mlp-v2.1-890")


def test_it_has_the_step_and_the_samples_of_its_row() -> None:
    run, of = read_run(RUN), NormalRow.of(row())
    point = point_of(run)
    assert (point.model, point.cluster, point.software) == (of.model, of.machine, of.software)
    plan = point.load("plan")
    assert (plan.data, plan.global_batch, plan.micro_batch) == (8, 448, 56)
    factor = float(of.quantity.partition("*")[2])
    assert run.target.samples == pytest.approx(factor * plan.global_batch, rel=1e-6)


def test_the_run_takes_the_time_that_the_suite_predicts() -> None:
    (found,) = predict([row()])
    assert isinstance(found, Outcome)
    assert train(RUN).wall_s == pytest.approx(found.predicted, rel=1e-3)
