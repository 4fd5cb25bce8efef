"""What a run costs by category, its figure, and progress bars."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ridgeline.cli import execute
from ridgeline.errors import RidgelineError
from ridgeline.report.progress import bar_html, progress_bar
from ridgeline.training import goodput
from ridgeline.training.train import train
from ridgeline.verbosity import Verbosity, saying

RUN = """\
kind: run
name: small
model: lenet5
cluster: dgx1-v100
plan: {data: 8, batch: 512, precision: fp32}
step: {time: 2 s, node_power: 3 kW, source: test}
target: {steps: 2000}
checkpoint: {every: 100, save_time: 10 s}
failures: {any: {per_1000_node_days: 20000}}
recovery: {restart: 60 s, spares: 2}
tuning_runs: 3
"""
PRICES = "facility: {electricity: 0.1 USD/kWh, device_hour: 2.5 USD/h}\n"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    file = tmp_path / "run.yaml"
    file.write_text(RUN + PRICES)
    return file


def test_costs_sum_to_rent_and_electricity(path: Path) -> None:
    found = train(path, seeds=3)
    costs = found.costs()
    rents = [of.footprint.rent_usd or 0.0 for of in found.outcomes]
    powers = [of.footprint.electricity_usd or 0.0 for of in found.outcomes]
    assert sum(costs["rent"].values()) == pytest.approx(sum(rents) / 3)
    assert sum(costs["electricity"].values()) == pytest.approx(sum(powers) / 3)
    saved = found.time_s[goodput.SAVE]
    assert costs["rent"][goodput.SAVE] == pytest.approx(8 * saved / 3600 * 2.5)
    lost = found.time_s[goodput.LOST_WORK] / found.time_s[goodput.PRODUCTIVE]
    of_steps = costs["electricity"]
    assert of_steps[goodput.LOST_WORK] == pytest.approx(lost * of_steps[goodput.PRODUCTIVE])
    assert lost > 0


def test_without_prices_costs_are_device_hours(path: Path) -> None:
    path.write_text(RUN, encoding="utf-8")
    found = train(path)
    (kind,) = found.costs()
    assert kind == "device time"
    assert sum(found.costs()[kind].values()) == pytest.approx(
        found.outcomes[0].footprint.device_hours
    )


def test_the_figure_draws_the_costs(path: Path, tmp_path: Path, capsys: Any) -> None:
    import matplotlib.pyplot as plt

    found = train(path)
    ax = found.plot("costs")
    costs = found.costs()
    drawn = sum(bar.get_width() for bar in ax.patches)
    shown = [label.get_text() for label in ax.get_yticklabels()]
    expected = sum(of[name] for of in costs.values() for name in shown)
    assert drawn == pytest.approx(expected)
    assert expected > 0.99 * sum(sum(of.values()) for of in costs.values())
    plt.close("all")
    with pytest.raises(RidgelineError, match="timeline and costs"):
        found.plot("cost")  # type: ignore[arg-type]
    figure = tmp_path / "costs.png"
    assert execute(["train", str(path), "--costs", str(figure)]) == 0
    assert figure.stat().st_size > 1000
    assert execute(["train", str(path), "--costs", str(figure), "--vary", "seed=1,2"]) == 2
    assert "--costs: costs are of one run" in capsys.readouterr().err


def test_progress(path: Path, capsys: Any) -> None:
    assert train(path, seeds=2, progress=True).to_json() == train(path, seeds=2).to_json()
    with progress_bar("points", 3) as advance:
        advance(2)
    assert capsys.readouterr().out == ""  # on standard error alone
    assert 'value="2" max="3"' in bar_html("a <b>", 3, 2)
    assert "a &lt;b&gt;: 2 of 3" in bar_html("a <b>", 3, 2)
    assert bar_html("a", 3, 3) == ""


def test_progress_is_a_line_now_and_then_where_nobody_watches(
    capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = iter([0.0, 29.0, 31.0, 40.0, 62.0, 99.0])
    monkeypatch.setattr("ridgeline.report.progress.time.monotonic", lambda: next(clock))
    with progress_bar("points", 1200) as advance:
        for count in (1, 11, 100, 888, 200):
            advance(count)
    assert capsys.readouterr() == (
        "", "ridgeline: points: 12 of 1,200\nridgeline: points: 1,000 of 1,200\n"
    )  # fmt: skip
    with saying(Verbosity.QUIET), progress_bar("points", 3) as advance:
        advance(2)
    assert capsys.readouterr() == ("", "")
