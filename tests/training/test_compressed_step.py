"""Steps with compressed gradients: against published ratios, links, and bounds."""

from __future__ import annotations

from pathlib import Path

import pytest

from ridgeline.errors import ConfigError
from ridgeline.training.run_file import point_of, read_run
from ridgeline.training.train import run_facts

FOLDER = Path(__file__).parents[2] / "docs" / "examples" / "runs" / "dgc"


def step_s(name: str, **overrides: object) -> float:
    fields = {path.replace("__", "."): value for path, value in overrides.items()}
    return run_facts(read_run(FOLDER / name, fields))[0].steps.time_s


def test_dgc_on_slow_links_beats_whole_gradients_on_ten_times_as_fast_ones() -> None:
    """Lin et al., figure 6: more than 40 times one node, against about 30."""
    ratio = step_s("alexnet-dense-10-gbe.yaml") / step_s("alexnet-dgc-1-gbe.yaml")
    assert ratio == pytest.approx(40 / 30, rel=0.15)


@pytest.mark.parametrize("method", ["none", "fp16", "1-bit-adam", "powersgd-rank-2"])
def test_fewer_bytes_are_never_slower_but_for_packing(method: str) -> None:
    """On 1 Gb/s every method gains; none is faster than a step that sends nothing."""
    sent = {"gradients.compression": method}
    compressed = step_s("alexnet-dgc-1-gbe.yaml", **sent)
    whole = step_s("alexnet-dgc-1-gbe.yaml", **{"gradients.compression": "none"})
    assert compressed <= whole
    if method != "none":
        assert compressed < 0.95 * whole
    alone = {"plan.data": 4, "plan.batch": 2048}
    one = point_of(read_run(FOLDER / "alexnet-dense-10-gbe.yaml", alone)).simulate()
    assert compressed >= one.step_time_s - one.time_s["exposed_communication"]


def test_nothing_compressed_is_the_step_itself() -> None:
    run = read_run(FOLDER / "alexnet-dgc-1-gbe.yaml", {"gradients.compression": "none"})
    simulated = point_of(run).simulate().step_time_s
    assert run_facts(run)[0].steps.time_s == pytest.approx(simulated, rel=1e-9)


@pytest.mark.parametrize(
    ("overrides", "says"),
    [
        ({"plan.tensor": 2, "plan.data": 128}, "data-parallel alone"),
        ({"plan.zero_stage": 1}, "data-parallel alone"),
        ({"plan.data": 1, "plan.batch": 512}, "one device sends no gradients"),
        ({"gradients.compression": "dgc"}, "no gradient compression is called 'dgc'"),
    ],
)
def test_steps_without_gradients_to_compress(overrides: dict[str, object], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        step_s("alexnet-dgc-1-gbe.yaml", **overrides)
