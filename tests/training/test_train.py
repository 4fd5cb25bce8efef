"""Whole runs from files: published runs, determinism, cost and carbon by hand, and bad files."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

import ridgeline as rl
from ridgeline.cli import execute
from ridgeline.errors import ConfigError, RidgelineError
from ridgeline.report.power import idle_node_power
from ridgeline.training import goodput
from ridgeline.training.failures import FailureCause, between_failures_s
from ridgeline.training.figure import binned
from ridgeline.training.train import train
from thoroughly import further

EXAMPLES = Path(__file__).parents[2] / "docs" / "examples" / "runs"
DAY_S = 86400.0
CURTAILED = "{start: 1 h, duration: 25 h, slower: 2.0, power: 0.5}"
SMALL = """\
kind: run
name: small
model: lenet5
cluster: dgx1-v100
plan: {data: 8, batch: 512, precision: fp32}
step: {time: 2 s, node_power: 3 kW, source: test}
target: {samples: 512000}
checkpoint: {every: 100, save_time: 10 s}
failures:
  any: {per_1000_node_days: 200000}
recovery: {restart: 60 s, spares: 2}
facility: {pue: 1.2, grid: FRA, electricity: 0.1 USD/kWh, device_hour: 2.5 USD/h}
tuning_runs: 3
"""


def written(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "run.yaml"
    path.write_text(text)
    return path


def test_projections_of_rsc_1() -> None:
    """6.50 failures per 1,000 node-days: 1.80 h on 2,048 nodes, 13.5 min on 16,384."""
    cause = [FailureCause(per_1000_node_days=6.5)]
    assert between_failures_s(cause, 2048) / 3600 == pytest.approx(1.80, abs=0.005)
    assert between_failures_s(cause, 16384) / 60 == pytest.approx(13.5, abs=0.05)
    assert between_failures_s([], 8) == math.inf


@pytest.mark.parametrize("seeds", [5, *further(20)])
def test_bloom_takes_107_days_undisturbed_and_at_most_115(seeds: int) -> None:
    found = train(EXAMPLES / "bloom-176b.yaml", seeds=seeds)
    assert found.undisturbed_s / DAY_S == pytest.approx(107.0, rel=0.01)
    assert 107.0 < found.wall_s / DAY_S < 115.0
    assert found.checkpoint is not None
    assert found.checkpoint.size_bytes == pytest.approx(2.3e12, rel=0.1)


def test_the_same_seeds_give_the_same_bytes_on_any_number_of_processes(tmp_path: Path) -> None:
    path = written(tmp_path, SMALL)
    one = train(path, seeds=4)
    two = train(path, seeds=4, processes=2)
    assert one.to_json() == two.to_json()
    assert one.outcomes[0].wall_s != one.outcomes[1].wall_s


def test_energy_cost_and_carbon_by_hand(tmp_path: Path) -> None:
    """Without failures: 1,000 steps of 2 s and 9 saves of 10 s."""
    text = SMALL.replace("failures:\n  any: {per_1000_node_days: 200000}\n", "")
    found = train(written(tmp_path, text))
    (outcome,) = found.outcomes
    assert outcome.wall_s == pytest.approx(2000.0 + 90.0)
    took = outcome.footprint
    idle = idle_node_power(rl.load_cluster("dgx1-v100").nodes).wall_w
    energy_j = 1.2 * (2000.0 * 3000.0 + 90.0 * idle + 2090.0 * 2 * idle)  # two spares stand by
    assert took.energy_j == pytest.approx(energy_j)
    assert took.electricity_usd == pytest.approx(energy_j / 3.6e6 * 0.1)
    assert took.rent_usd == pytest.approx(8 * 2090.0 / 3600 * 2.5)
    assert took.device_hours == pytest.approx(8 * 2090.0 / 3600)
    assert took.carbon_kg is not None
    per_kwh = took.carbon_kg / (energy_j / 3.6e6)
    assert 0.02 < per_kwh < 0.1  # France
    assert found.to_dict()["with_tuning"]["energy_j"] == pytest.approx(4 * energy_j)


def test_hours_of_the_day_weigh_the_carbon(tmp_path: Path) -> None:
    """A run of 2,000 s from midnight: all of it in an hour without carbon."""
    text = SMALL.replace("grid: FRA", "carbon: 100 g/kWh, hourly: [%s]")
    text = text.replace("failures:\n  any: {per_1000_node_days: 200000}\n", "")
    none = train(written(tmp_path, text % ", ".join(["0"] + ["1"] * 23)))
    even = train(written(tmp_path, text % ", ".join(["1"] * 24)))
    assert none.outcomes[0].footprint.carbon_kg == 0.0
    footprint = even.outcomes[0].footprint
    assert footprint.carbon_kg == pytest.approx(footprint.energy_j / 3.6e6 * 0.1)


def test_a_quality_stands_for_the_measured_amount(tmp_path: Path) -> None:
    text = (
        SMALL.replace("samples: 512000", "quality: {benchmark: resnet}")
        .replace("batch: 512,", "batch: 4096,")
        .replace("target:", "dataset_samples: 1281167\ntarget:")
    )
    found = train(written(tmp_path, text))
    assert found.amount is not None
    assert found.amount.unit == "epochs"
    assert 36 < found.amount.low < found.amount.amount < found.amount.high < 45
    assert found.steps == math.ceil(found.amount.amount * 1281167 / 4096)
    outside = text.replace("batch: 4096,", "batch: 400000,")
    with pytest.raises(RidgelineError, match="measured at batches of 408 to 86,016"):
        train(written(tmp_path, outside))


def test_points_of_your_own(tmp_path: Path) -> None:
    """AlexNet-BN at 32K: the law of the user's points, and no word beyond them."""
    points = (
        "quality: {benchmark: mine, unit: samples, points: "
        "[{batch: 100, amount: 10000}, {batch: 1000, amount: 19000}]}"
    )
    text = SMALL.replace("samples: 512000", points)
    found = train(written(tmp_path, text))
    assert found.steps == math.ceil((9000 + 10 * 512) / 512)


def test_a_loss_by_chinchilla(tmp_path: Path) -> None:
    text = (
        SMALL.replace("model: lenet5", "model: gpt2-xl")
        .replace("samples: 512000", "loss: {loss: 2.6}")
        .replace("fp32", "fp16-mixed")
    )
    found = train(written(tmp_path, text))
    parameters = rl.load_model("gpt2-xl").training(1).parameters
    tokens = (410.7 / (2.6 - 1.69 - 406.4 / parameters**0.34)) ** (1 / 0.28)
    assert found.steps == math.ceil(tokens / 1024 / 512)
    with pytest.raises(RidgelineError, match=r"never reach a loss of 1\.8"):
        train(written(tmp_path, text.replace("loss: 2.6", "loss: 1.8")))


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("samples: 512000", "samples: 512000, steps: 3", "give one of steps"),
        ("every: 100", "every: dayly", "checkpoint.every"),
        ("every: 100", "every: 0", "checkpoint.every"),
        ("grid: FRA", "grid: alabma", "no grid is called 'alabma'; did you mean 'alabama'"),
        ("any: {", "any: {effect: slow, ", "a slow-down needs a factor above 1"),
        ("any: {", "any: {factor: 2.0, ", "factor is of a slow-down"),
        ("model: lenet5", "model: lenet6", "did you mean 'lenet5'"),
        ("tuning_runs: 3", "tuning_runs: -1", "tuning_runs"),
        ("tuning_runs: 3", "stragglers: {backup_workers: 8}", "8 backup workers of 8 replicas"),
        ("tuning_runs: 3", "ramp: {start: 600, samples: 5}", "a ramp starts below the batch"),
        ("samples: 512000", "epochs: 2", "dataset_samples"),
        ("samples: 512000", "tokens: 1e9", "has no tokens"),
        ("recovery:", "recoverie:", "did you mean 'recovery'"),
        ("200000", "2000000000", "per_1000_node_days"),
        ("save_time: 10 s", "save_time: 20 h", "the run would not get on"),
        ("2.5 USD/h", "2.5 USD", "USD/s"),
        ("grid: FRA", f"hourly: [{', '.join(['1'] * 24)}]", "hours weigh an intensity"),
        ("tuning_runs: 3", "maintenance: {every: 0 s, time: 1 min}", "maintenance.every"),
        ("tuning_runs: 3", "maintenance: {every: 60 s, time: 1 min}", "does not fit between"),
        ("tuning_runs: 3", f"curtailment: {CURTAILED}", "must be less than a day"),
        ("tuning_runs: 3", "gradients: {compression: fp16}", "is stated, so gradients says"),
        ("tuning_runs: 3", "local_steps: {every: 5}", "is stated, so local_steps says"),
        ("tuning_runs: 3", "dataset: imagenet", "know nothing of input: give input, too"),
        ("samples: 512000", "phases: [{steps: 5}]", "phases are simulated, without step"),
        ("save_time: 10 s", "save_time: 10 s, mode: in-memory", "leave out save_time"),
        ("any: {per", "any: {effect: slow, factor: 2, detection: 9 h, per", "would not get on"),
    ],
)
def test_bad_files_say_where(tmp_path: Path, old: str, new: str, says: str) -> None:
    assert old in SMALL
    with pytest.raises(RidgelineError) as error:
        train(written(tmp_path, SMALL.replace(old, new)))
    assert says in str(error.value)


def test_seeds_are_bounded(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="seeds"):
        train(written(tmp_path, SMALL), seeds=0)


def test_the_figure_shows_the_shares_of_time(tmp_path: Path) -> None:
    found = train(written(tmp_path, SMALL))
    edges, shares = binned(found)
    total = sum(shares[name] for name in goodput.CATEGORIES)
    assert total == pytest.approx(1.0)
    ax = found.plot()
    drawn = {patch.get_label() for patch in ax.patches}
    assert goodput.PRODUCTIVE in drawn
    assert edges[-1] == pytest.approx(found.outcomes[0].wall_s)


def test_the_verb(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = written(tmp_path, SMALL)
    assert execute(["train", str(path), "--seeds", "2"]) == 0
    text = capsys.readouterr().out
    assert "where the time goes" in text
    assert "with 3 tuning runs" in text
    assert execute(["train", str(path), "--seeds", "2", "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["steps"] == 1000
    assert len(answer["outcomes"]) == 2
    bad = written(tmp_path, SMALL.replace("kind: run", "kind: runs"))
    assert execute(["train", str(bad)]) == 2
    assert "kind" in capsys.readouterr().err


def test_every_example_is_read_as_a_run() -> None:
    for path in EXAMPLES.glob("*.yaml"):
        assert rl.load(path).kind == "run"
