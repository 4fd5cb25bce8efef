"""``compare``: normalisations, scaling, accuracy, ranges of ratios, findings, figure, mistakes."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest

import ridgeline as rl
from ridgeline.cli import execute
from ridgeline.errors import RidgelineError
from ridgeline.report.figures.result import save
from ridgeline.report.uncertainty.ground import ground_of
from ridgeline.report.uncertainty.paired import RatioRange, SharedDraws, ratio_range
from ridgeline.study.compare import NORMALISATIONS, Comparison, compare, point_of
from ridgeline.study.lint import lint

HBM = Path(__file__).parents[2] / "docs" / "examples" / "hbm.csv"


def step(cluster: str = "dgx1-v100", data: int = 1, batch: int = 64) -> rl.Result:
    plan = rl.Plan(data=data, global_batch=batch, precision="fp16-mixed")
    return rl.simulate("resnet18", cluster, plan)


@pytest.fixture(scope="module")
def one() -> rl.Result:
    return step()


@pytest.fixture(scope="module")
def two() -> rl.Result:
    return step(data=2, batch=128)


@pytest.fixture(scope="module")
def found(one: rl.Result, two: rl.Result) -> Comparison:
    return compare(one, two)


def test_every_normalisation_is_what_it_says(
    found: Comparison, one: rl.Result, two: rl.Result
) -> None:
    area = one.manifest["device"]["area_mm2"]
    a, b = found.sides
    assert a.numbers["samples_per_s_per_device"] == one.samples_per_s
    assert b.numbers["samples_per_s_per_device"] == two.samples_per_s / 2
    assert b.numbers["samples_per_s_per_mm2"] == pytest.approx(two.samples_per_s / 2 / area)
    assert b.numbers["samples_per_s_per_usd"] is None  # no price is known
    assert b.numbers["samples_per_j"] == pytest.approx(128 / two.energy_j["total"])
    (ratio,) = found.ratios
    assert set(ratio.values) == set(NORMALISATIONS)
    for name, value in ratio.values.items():
        ours, theirs = b.numbers[name], a.numbers[name]
        assert value == (None if ours is None or theirs is None else ours / theirs)


def test_a_price_that_is_given_is_used() -> None:
    side = 'lenet5 v100-sxm2-16gb --batch 8 --set cluster.device.price="8000 USD"'
    numbers = compare(side, side).sides[0].numbers
    assert numbers["samples_per_s_per_usd"] == pytest.approx(numbers["samples_per_s"] / 8000)


@pytest.mark.parametrize(
    ("data", "batch", "scaling"),
    [(1, 128, "none"), (2, 64, "strong"), (2, 128, "weak"), (4, 128, "weak and")],
)  # fmt: skip
def test_scaling_and_accuracy_are_said(one: rl.Result, data: int, batch: int, scaling: str) -> None:
    (ratio,) = compare(one, step(data=data, batch=batch)).ratios
    assert ratio.scaling.startswith(scaling)
    assert ratio.accuracy.startswith("accuracy unmodelled")
    assert ("batch differ" in ratio.accuracy) == (batch != 64)


def test_epochs_to_one_accuracy_scale_the_ratio(one: rl.Result, two: rl.Result) -> None:
    (ratio,) = compare(one, two, epochs=[90, 100]).ratios
    assert ratio.at_equal_accuracy == pytest.approx(ratio.values["samples_per_s"] * 0.9)
    assert compare(one, two).ratios[0].at_equal_accuracy is None


def test_a_step_over_itself_has_no_range(one: rl.Result) -> None:
    found = ratio_range(one, one)
    assert isinstance(found, RatioRange)
    assert found.model_error == "shared"
    assert found.throughput == pytest.approx((1.0, 1.0), rel=1e-12)
    assert found.independent[0] < 0.8
    assert found.independent[1] > 1.2


def test_a_ratio_over_another_is_the_other_way_round(one: rl.Result, two: rl.Result) -> None:
    there, back = ratio_range(two, one), ratio_range(one, two)
    assert isinstance(there, RatioRange)
    assert isinstance(back, RatioRange)
    for name in ("throughput", "energy_efficiency"):
        (low, high), (low_back, high_back) = getattr(there, name), getattr(back, name)
        assert low == pytest.approx(1 / high_back, rel=1e-3)
        assert high == pytest.approx(1 / low_back, rel=1e-3)


def test_what_is_shared_cancels(one: rl.Result) -> None:
    larger = step(batch=128)
    alike, unlike = ratio_range(larger, one), ratio_range(step("dgx-a100"), one)
    assert isinstance(alike, RatioRange)
    assert isinstance(unlike, RatioRange)

    def width(ends: tuple[float, float]) -> float:
        return math.log(ends[1] / ends[0])

    assert width(alike.throughput) < 0.7 * width(alike.independent)
    assert width(alike.throughput) < width(unlike.throughput)
    assert (alike.model_error, unlike.model_error) == ("shared", "independent")
    assert "device v100" in alike.shared
    assert "device" not in unlike.shared
    ours = larger.uncertainty
    assert ours is not None
    assert width(alike.throughput) < width((ours["step_time_s"]["p05"], ours["step_time_s"]["p95"]))


def test_shared_draws_depend_on_names_and_not_on_their_order() -> None:
    a, b = SharedDraws(1, 256, 0), SharedDraws(1, 256, 1)
    first, second = a.whole("x", 0.1, "d"), a.whole("y", 0.1, "d")
    assert np.array_equal(b.whole("y", 0.1, "d"), second)
    assert np.array_equal(b.whole("x", 0.1, "d"), first)
    assert not np.array_equal(b.whole("x", 0.1, "e"), first)
    assert np.array_equal(a.own(0.2, "k"), b.own(0.2, "k"))
    assert not np.array_equal(a.own(0.2, ""), b.own(0.2, ""))
    logs = [np.log(draws.own(1.0, whose, "layer")) for draws, whose in ((a, "8"), (b, "16"))]
    assert 0.8 < np.corrcoef(logs)[0, 1] < 0.98
    assert np.std(logs[0]) == pytest.approx(1.0, abs=0.15)


def test_a_bound_has_no_range_and_says_why(one: rl.Result) -> None:
    bound = rl.simulate("resnet18", "dgx1-v100", rl.Plan(global_batch=64), software="ideal")
    assert ground_of(bound.details).step is None
    (ratio,) = compare(one, bound).ratios
    assert "ideal is a bound" in str(ratio.range)


def test_json_is_plain_and_honest(found: Comparison, tmp_path: Path) -> None:
    file = tmp_path / "c.json"
    found.to_json(file)
    assert json.loads(file.read_text()) == found.to_dict()
    report = lint(file)
    assert (report.codes, report.kind) == ((), "comparison")
    assert found.findings == ()


def test_machines_of_other_generations_are_refused_and_stamped(tmp_path: Path) -> None:
    old, new = (
        f"lenet5 {device} --batch 32 --precision fp32" for device in ("k40", "h100-pcie-80gb")
    )
    found = compare(old, new)
    assert [f.code for f in found.findings] == ["H4"]
    with pytest.raises(RidgelineError, match=r"no figure .* H4"):
        found.plot()
    file = tmp_path / "f.svg"
    save(found.plot(override=["H4"]), file)
    assert "OVERRIDDEN: H4" in file.read_text()
    assert compare(old, new, claim="Ten years apart: across generations of hardware").findings == ()


def test_the_figure_draws_the_ratios(found: Comparison) -> None:
    axes = found.plot()
    widths = {c.get_gid(): c.get_width() for c in axes.patches if c.get_gid()}
    (ratio,) = found.ratios
    for name, value in ratio.values.items():
        assert widths.get(f"B {name}") == value
    assert lint(axes).codes == ()


def test_rows_of_tables_and_points_of_studies() -> None:
    rows = compare(f"{HBM}:1", f"{HBM}:3")
    assert "no range" in str(rows.ratios[0].range)
    study = str(HBM.with_suffix(".yaml"))
    again = compare(f"{study}:1", f"{study}:3")
    from_rows = compare(f"{HBM}:1", f"{HBM}:3", study=study)
    assert again.ratios[0].values == from_rows.ratios[0].values
    assert rows.ratios[0].values["samples_per_s"] == pytest.approx(
        again.ratios[0].values["samples_per_s"], rel=0.05
    )


def test_the_words_of_run_are_read_as_run_reads_them() -> None:
    words = "resnet18 dgx1-v100 --plan data=8,recompute=full --batch 1_024 --software ideal"
    point = point_of(words)
    assert (point.model, point.cluster, point.software) == ("resnet18", "dgx1-v100", "ideal")
    assert dict(point.plan) == {"data": "8", "recompute": "full", "global_batch": 1024}
    spaced = point_of("resnet18 dgx1-v100 --batch=8 --set 'cluster.device.launch_latency=3 us'")
    assert spaced.overrides == {"cluster.device.launch_latency": "3 us"}


@pytest.mark.parametrize(
    ("sides", "says"),
    [
        (["lenet5 k40 --batch 8"], "2 to 26 sides"),
        (["lenet5 k40 --batch 8", "lenet5 k4 --batch 8"], "no cluster, node or device"),
        (["lenet5 k40 --bach 8", "lenet5 k40"], "did you mean '--batch'"),
        (["lenet5 k40 --batch x", "lenet5 k40"], "whole number"),
        (["lenet5 k40 --batch", "lenet5 k40"], "needs a value"),
        (["lenet5", "lenet5 k40"], "a network and a machine"),
        (["lenet5 'k40", "lenet5 k40"], "cannot be read"),
        ([str(HBM), f"{HBM}:1"], "say which row"),
        ([f"{HBM}:99", f"{HBM}:1"], "there is no row 99"),
        ([f"{HBM.with_suffix('.yaml')}:99", f"{HBM}:1"], "there is no point 99"),
        (["none.json", f"{HBM}:1"], "cannot be read"),
        ([f"{HBM}:1", f"{HBM}:2", "--epochs", "1"], "one number above 0"),
        ([f"{HBM}:1", f"{HBM}:2", "--epochs", "a,b"], "expected numbers"),
        ([f"{HBM}:1", f"{HBM}:2", "--override", "H99"], "no rule 'H99'"),
        ([f"{HBM}:1", f"{HBM}:2", "--out", "no/where.svg"], "cannot be written"),
    ],
)
def test_mistakes(sides: list[str], says: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert execute(["compare", *sides]) == 2
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert says in err


@pytest.mark.parametrize(
    ("stacks", "says"),
    [
        (("ideal", "pytorch"), "A is a bound (software ideal), B a prediction"),
        (("pytorch", "ideal"), "B is a bound (software ideal), A a prediction"),
        (("ideal", "ideal"), "both sides are bounds (software ideal)"),
        (("pytorch", "pytorch-compile"), "the software differs (A: pytorch, B: pytorch-compile"),
        (("pytorch", "pytorch"), ""),
    ],
)
def test_a_bound_beside_a_prediction_is_said_everywhere(
    stacks: tuple[str, str], says: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    sides = [f"mlp dgx-h100 --batch 8 --software {name}" for name in stacks]
    file = tmp_path / "sides.svg"
    execute(["compare", *sides, "--out", str(file), "--override", "H4"])
    said = capsys.readouterr().out
    saved = rl.compare(*sides).to_dict()
    assert says in said
    assert says in saved["ratios"][0]["software"]
    assert saved["ratios"][0]["software"] == saved["software_statement"]
    assert ("the software differs" in said) == says.startswith("the software")
    assert ("no prediction" in said) == ("bound" in says)
    assert ("no prediction" in file.read_text("utf-8")) == ("bound" in says)
