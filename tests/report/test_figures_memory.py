"""The figure of memory op by op draws what the memory says."""

import numpy as np
import pytest

import ridgeline as rl
from ridgeline.cli import execute
from ridgeline.report.figures.memory import held
from ridgeline.workload import Pass


def test_kinds_are_stacked_to_what_is_held(tmp_path):
    plan = rl.Plan(global_batch=4, precision="fp16-mixed")
    memory = rl.memory("resnet18", plan, recompute="full")
    ax = held(memory)
    below = np.zeros(len(memory.held_bytes))
    for k, area in enumerate(ax.collections[: len(memory.kinds)]):
        vertices = area.get_paths()[0].vertices
        below = below + memory.held_bytes[:, k] / 2**30
        for at in (0, memory.fullest, len(below) - 1):
            over = vertices[(vertices[:, 0] == at), 1]
            assert over.max() >= below[at] - 1e-9
            assert np.isclose(over, below[at]).any()
    (peak,) = (line for line in ax.lines if line.get_gid() == "peak")
    assert peak.get_ydata()[0] == pytest.approx(memory.peak["total"] / 2**30)
    begins = {line.get_gid(): line.get_xdata()[0] for line in ax.lines}
    passes = [op.pass_ for op in memory.graph.ops]
    assert begins["begin: update"] == passes.index(Pass.UPDATE)
    assert begins["begin: backward"] == sum(p is Pass.FORWARD for p in passes)


def test_the_verb_writes_it(tmp_path, capsys):
    path = tmp_path / "memory.svg"
    assert execute(["memory", "mlp", "--batch", "8", "--out", str(path)]) == 0
    assert "wrote" in capsys.readouterr().out
    assert path.read_text().startswith("<?xml")


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--offload", "al"], "'all'"),
        (["--recompute", "ful"], "'full'"),
        (["--budget", "12"], "no unit"),
        (["--plan", "tensor=2"], "tensor"),
    ],
)
def test_mistakes_end_in_one_message(capsys, arguments, says):
    assert execute(["memory", "mlp", "--batch", "8", *arguments]) == 2
    assert says in capsys.readouterr().err
