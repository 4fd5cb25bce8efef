"""Themes, and figures that are drawn of files: widths, titles that fit, scaling, links."""

from __future__ import annotations

import json

import numpy as np
import pytest

import ridgeline as rl
from ridgeline.errors import ConfigError, RidgelineError
from ridgeline.report.figures.links import loads
from ridgeline.report.figures.result import FIGURES, PICTURES, draw, save
from ridgeline.report.figures.themes import THEMES, theme
from ridgeline.study.scaling import scaling
from ridgeline.study.scaling_figures import draw as draw_scaling


@pytest.fixture(scope="module")
def result() -> rl.Result:
    return rl.simulate(
        "lenet5", "dgx1-v100", rl.Plan(data=8, global_batch=512, precision="fp16-mixed")
    )


@pytest.mark.parametrize("kind", [*FIGURES, *PICTURES])
def test_nothing_above_or_below_a_printed_figure_is_cut_off(kind: str, result: rl.Result) -> None:
    figure = result.plot(kind, theme="print").get_figure(root=True)
    assert figure is not None
    figure.canvas.draw()
    inside = figure.get_tightbbox()
    _, high = figure.get_size_inches()
    assert inside.y0 >= -0.02
    assert inside.y1 <= high + 0.02


def test_a_printed_figure_is_narrower_and_written_finer(result, tmp_path) -> None:
    from matplotlib.image import imread

    wide = {}
    for name, wanted in THEMES.items():
        axes = result.plot("time", theme=name)
        assert axes.get_figure(root=True).get_size_inches()[0] == wanted.width_in
        save(axes, tmp_path / f"{name}.png")
        wide[name] = imread(tmp_path / f"{name}.png").shape[1]
    assert wide["print"] == round(4.2 * 480)
    assert wide["screen"] == round(5.6 * 150)


def test_a_theme_holds_for_all_that_is_drawn_in_it_and_ends(result) -> None:
    def width() -> float:
        return float(draw("energy", result).get_figure(root=True).get_size_inches()[0])

    with theme("print"), theme(None):
        assert width() == THEMES["print"].width_in
    assert width() == THEMES["screen"].width_in
    with pytest.raises(ConfigError, match=r"no theme 'prnt'; did you mean 'print'"), theme("prnt"):
        pass


@pytest.fixture(scope="module")
def study():
    return scaling(
        "lenet5", "dgx1-v100", [1, 2, 4], strategies=["data"], batch=256, precision="fp32"
    )


@pytest.mark.parametrize("kind", ["scaling", "distributed-roofline"])
def test_a_saved_scaling_study_draws_as_it_did(kind: str, study, tmp_path) -> None:
    saved = json.loads(json.dumps(study.to_dict()))
    save(draw_scaling(kind, saved), tmp_path / "saved.png")
    save(study.plot(kind), tmp_path / "made.png")
    assert (tmp_path / "saved.png").read_bytes() == (tmp_path / "made.png").read_bytes()
    lines = {line.get_gid(): line for line in draw_scaling(kind, saved).get_lines()}
    if kind == "scaling":
        assert list(lines["data"].get_ydata()) == [p.result.samples_per_s for p in study.points]
    else:
        sent = [p for p in study.points if p.binding is not None]
        assert list(lines["points: data"].get_xdata()) == [p.flop_per_byte for p in sent]
        assert list(lines["points: data"].get_ydata()) == [p.flop_per_s for p in sent]


def test_a_scaling_study_is_stamped_with_what_its_points_are_made_of(study) -> None:
    axes = study.plot()
    stamp = next(text for text in axes.texts if text.get_gid() == "stamp").get_text()
    assert study.to_dict()["hash"] in stamp.replace("\n", " ")


@pytest.mark.parametrize("saved", [{}, {"points": []}, {"points": [{}]}, [], None, {"points": 3}])
def test_what_is_no_scaling_study_is_refused(saved: object) -> None:
    with pytest.raises(ConfigError, match="no scaling study"):
        draw_scaling("scaling", saved, file="x.json")  # type: ignore[arg-type]


def test_links_are_as_busy_as_the_engine_kept_them(result) -> None:
    program = result.details.lowered.program
    axes = draw("topology", result)
    busy = next(c for c in axes.collections if c.get_array() is not None)
    of_links = [i for i, name in enumerate(program.resource_names) if "->" in name]
    share = (loads(program) / program.capacity / result.step_time_s)[of_links]
    assert max(busy.get_array()) == pytest.approx(share.max(), rel=1e-12)
    assert 0 < share.max() <= 1
    assert f"busiest link {share.max():.1%}"[:14] in axes.get_title(loc="left")


def test_one_device_has_no_links_to_draw() -> None:
    alone = rl.simulate("lenet5", "tpu-v2", rl.Plan(global_batch=8))
    with pytest.raises(RidgelineError, match="no links"):
        alone.plot("topology")


def test_loads_are_work_times_how_often_it_is_done(result) -> None:
    program = result.details.lowered.program
    expected = np.zeros(len(program.capacity))
    for cost in program.cost.tolist():
        for phase in range(program.phase_ptr[cost], program.phase_ptr[cost + 1]):
            for work in range(program.work_ptr[phase], program.work_ptr[phase + 1]):
                expected[program.work_resource[work]] += (
                    program.work_amount[work] * program.repeat[phase]
                )
    np.testing.assert_allclose(loads(program), expected, rtol=1e-9)
