"""Options of ``ridgeline memory`` that mean nothing without, or beside, another are refused."""

import json

import pytest

import ridgeline as rl
from ridgeline.cli import execute, main


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--library", "cudnn4"], "belongs to convolutions"),
        (["--fit", "v100-sxm2-16gb", "--recompute", "full"], "--recompute: --fit looks"),
        (["--fit", "v100-sxm2-16gb", "--offload", "all"], "--offload: --fit looks"),
        (["--fit", "v100-sxm2-16gb", "--library", "cudnn4"], "--library: --fit looks"),
        (["--fit", "v100-sxm2-16gb", "--out", "x.png"], "--out: --fit looks"),
        (["--fit", "v100-sxm2-16gb", "--allocation", "at-once"], "--allocation: --fit looks"),
        (["--allocation", "at-once", "--out", "x.png"], "has no moments to draw"),
    ],
)
def test_an_option_that_would_do_nothing_is_refused(options, message, capsys):
    with pytest.raises(SystemExit) as end:
        main(["memory", "vgg16", "--batch", "2", *options])
    assert end.value.code == 2
    assert message in " ".join(capsys.readouterr().err.split())


def test_all_at_once_is_the_sum_of_its_parts(capsys):
    options = ["--batch", "256", "--precision", "fp32", "--allocation", "at-once", "--json"]
    assert execute(["memory", "vgg16", *options]) == 0
    bare = json.loads(capsys.readouterr().out)["at_once_bytes"]
    options += ["--convolutions", "titan-x-maxwell", "--library", "cudnn4"]
    assert execute(["memory", "vgg16", *options]) == 0
    whole = json.loads(capsys.readouterr().out)["at_once_bytes"]
    parts = ("feature_maps", "gradient_maps", "weights", "weight_gradients", "workspace")
    assert (
        whole["total"] == sum(whole[name] for name in parts) == bare["total"] + whole["workspace"]
    )
    assert bare["workspace"] == 0 < whole["workspace"]
    assert whole["weights"] == whole["weight_gradients"] == 4 * 138357544
    assert whole["map_share"] == pytest.approx(1 - 8 * 138357544 / whole["total"])
    assert whole["offloadable"] == pytest.approx(16e9, rel=0.05)  # vDNN's "up to 16 GB"


def test_all_at_once_is_of_a_step_that_holds_all():
    memory = rl.memory("vgg16", rl.Plan(global_batch=2, precision="fp32"), recompute="full")
    with pytest.raises(rl.errors.RidgelineError, match="without recomputation"):
        assert memory.at_once
