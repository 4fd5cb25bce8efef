"""Extension points: wrong registrations and plug-ins are clear errors, right ones are found."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import ridgeline as rl
from ridgeline import plugins, register
from ridgeline.cli import execute
from ridgeline.errors import ConfigError, RidgelineError
from ridgeline.parallel.schedule import SCHEDULES, PipelineSchedule, Slot
from ridgeline.registry import Registry
from ridgeline.workload.families import FAMILIES, Network
from ridgeline.workload.kinds import KINDS
from ridgeline.workload.optimizers import OPTIMIZERS

NETWORK = """
from ridgeline import register
from ridgeline.workload import ops
from ridgeline.workload.families import Network
from ridgeline.workload.kinds import Cost


@register.op_kind("test-cube", forward=Cost(2, "element", "x x x"){sharding})
def CUBE(g, op):
    g.derive(CUBE, op, op.inputs, (g.gradient(op.outputs[0]), *op.inputs), flops=1)


@register.family("test-cubes")
class Cubes(Network):
    def build(self, b):
        x, labels = b.input("x", (b.batch, 64)), b.input("labels", (b.batch,), "int64")
        x = ops.linear(b, "up", x, 256)
        y = b.activation("cube.y", b.shape(x), b.format(x))
        b.emit(CUBE, "cube", (x,), (y,), flops=CUBE.forward.of(b.elements(y)))
        return ops.cross_entropy(b, "loss", ops.linear(b, "down", y, 64), labels)
"""
MODEL = "kind: model\nname: cubes\nfamily: test-cubes\ntitle: Cubes\n"


@pytest.fixture
def restored() -> Iterator[None]:
    """Take out afterwards what a test has registered."""
    registries: list[Registry[Any, Any]] = [KINDS, FAMILIES, SCHEDULES, OPTIMIZERS]
    known = [(registry, dict(registry)) for registry in registries]
    loaded = dict(plugins._modules), dict(plugins._digests)
    yield
    for registry, things in known:
        registry._things = things
    plugins._modules, plugins._digests = loaded


def two(a: object, b: object) -> None:
    """Take two parameters."""


@pytest.mark.parametrize(
    ("put", "said"),
    [
        (lambda: register.op_kind("gelu")(two), r"op kind 'gelu' is registered twice"),
        (lambda: register.op_kind("new")(len), r"op kind 'new': the gradient rule must be a "),
        (
            lambda: register.op_kind("new", sharding=lambda op: op)(None),
            r"op kind 'new': sharding must be a function of \(op, tensors\), found one of \(op\)",
        ),
        (lambda: register.family("new")(dict), "network family 'new' must be a class of Network"),
        (lambda: register.family("new")(Network), "network family 'new': Network has no method build"),  # noqa: E501
        (
            lambda: register.schedule("new", source="here", in_flight=two)(two),
            r"schedule 'new': what is decorated must be a function of \(stages, micro_batches, chunks",  # noqa: E501
        ),
        (lambda: register.collective("all-reduce", "new")(two), "collective algorithm all-reduce 'new'"),  # noqa: E501
        (lambda: register.topology("New")(two), r"inline topology 'New' must be a function of \(argum"),  # noqa: E501
        (lambda: register.topology("SlimFly")(str), "inline topology 'SlimFly' is registered twice"),  # noqa: E501
        (lambda: register.fabric("new")(two), r"fabric 'new' must be a function of \(drawing, fabric"),  # noqa: E501
        (lambda: register.routing("new")(two), r"routing 'new' must be a function of \(topology"),
        (lambda: register.engine_model("new")(two), r"engine model 'new' must be a function of \(jobs"),  # noqa: E501
        (lambda: register.graph_pass("new", 1, two)(two), r"graph pass 'new': when must be a function"),  # noqa: E501
        (lambda: register.figure("new")(len), r"figure 'new' must be a function of \(result, ax\)"),
        (lambda: register.launch_reader("new", two)(two), "reader of launch files 'new' must be a"),
        (lambda: register.verb("run", help="", example="")(two), "verb 'run' is registered twice"),
        (lambda: register.optimizer("new", states=()), "optimizer 'new': missing 3 required"),
        (lambda: register.optimizer("adam", states=(), flops_per_weight=1, rule="", source=""), "twice"),  # noqa: E501
    ],
)  # fmt: skip
def test_a_wrong_registration_is_an_error(put: Any, said: str) -> None:
    with pytest.raises(RidgelineError, match=said) as error:
        put()
    if "verb" not in said and "new': missing" not in said and "class" not in said:
        assert "method build" in said or Path(__file__).name in str(error.value)


def test_the_grammar_has_no_other_decorator() -> None:
    with pytest.raises(
        AttributeError, match=r"ridgeline.register has no 'kind' \(it has: collective"
    ):
        register.kind  # noqa: B018
    for name in dir(register):
        assert callable(getattr(register, name))


@pytest.mark.parametrize("divided", [False, True])
def test_an_op_kind_without_a_sharding_rule_is_named_on_screen(
    divided: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str], restored: None
) -> None:
    rule = ", sharding=elementwise_sharding" if divided else ""
    code = "from ridgeline.workload.sharding_rules import elementwise_sharding\n" + NETWORK
    plugin, model = tmp_path / "cubes.py", tmp_path / "cubes.yaml"
    plugin.write_text(code.format(sharding=rule))
    model.write_text(MODEL)
    for tensor in (1, 4):
        words = ["run", str(model), "dgx-a100", "--plan", f"tensor={tensor}", "--batch", "256"]
        assert execute([*words, "-v", "--plugin", str(plugin)]) == 0
        said = (
            "every device that shares a layer does all of test-cube (2 ops), since these op kinds"
        )
        printed = " ".join(capsys.readouterr().out.split())
        assert (said in printed) == (tensor > 1 and not divided)


@pytest.mark.parametrize(
    ("orders", "said"),
    [
        ([[Slot("F", 0)]], "has orders of 1 stages"),
        ([[Slot("F", 0), Slot("B", 0)], [Slot("F", 0)]], r"stage 1 leaves out \('B', 0, 0\)"),
        ([[Slot("F", 0), Slot("B", 0)] * 2] * 2, "stage 0 does a slot twice"),
        ([[Slot("F", 0), Slot("B", 0), Slot("W", 0)]] * 2, "stage 0 has a slot that is no work of it"),  # noqa: E501
        ([[Slot("B", 0), Slot("F", 0)]] * 2, r"never ends: stage 0 waits for ever at \('B', 0, 0\)"),  # noqa: E501
    ],
)  # fmt: skip
def test_wrong_orders_of_a_schedule_are_an_error(orders: list[list[Slot]], said: str) -> None:
    schedule = PipelineSchedule("x", "here", lambda *_: orders, lambda *_: 1)
    with pytest.raises(RidgelineError, match=f"schedule x of 2 stages and 1 micro-batches.*{said}"):
        schedule(2, 1)


@pytest.mark.parametrize("name", ["1f1b", "gpipe", "zero-bubble", "zero-bubble-v"])
def test_shipped_orders_pass_the_check_of_users_orders(name: str) -> None:
    shipped = SCHEDULES[name]
    orders = shipped(3, 6, 1 + shipped.turns)
    PipelineSchedule(
        name, "here", lambda *_: orders, shipped.in_flight,
        splits_backward=shipped.splits_backward, interleaves=shipped.turns, turns=shipped.turns,
    )(3, 6, 1 + shipped.turns)  # fmt: skip


@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("x = 1\ny = x +\n", r"plug\.py:2: the plug-in ends with SyntaxError"),
        (
            "x = 1\n\nx.y\n",
            r"plug\.py:3: the plug-in ends with AttributeError: 'int' object has no",
        ),
        ("from ridgeline import register\nregister.op_kind('gelu')(None)\n", r"twice.*plug\.py:2"),
    ],
)
def test_a_wrong_plug_in_is_one_message(
    code: str, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plugin = tmp_path / "plug.py"
    plugin.write_text(code)
    for _ in range(2):  # what failed is not taken for loaded
        assert execute(["list", "devices", f"--plugin={plugin}"]) == 2
        with pytest.raises(ConfigError if "ends with" in said else RidgelineError, match=said):
            rl.load_plugin(plugin)
    assert execute(["list", "--plugin", str(tmp_path / "no.py")]) == 2
    assert execute(["list", "--plugin"]) == 2
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 4
    assert "cannot be read: No such file" in lines[2]
    assert "--plugin needs a Python file" in lines[3]


def test_processes_and_manifests_know_a_plug_in(tmp_path: Path, restored: None) -> None:
    plugin, model = tmp_path / "cubes.py", tmp_path / "cubes.yaml"
    plugin.write_text(NETWORK.format(sharding=""))
    model.write_text(MODEL)
    code = "import sys, ridgeline as rl; print(rl.load_model(sys.argv[1]).network.family)"
    with plugins.named([str(plugin)]):
        done = subprocess.run(
            [sys.executable, "-c", code, str(model)],
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
            capture_output=True, text=True, check=True,
        )  # fmt: skip
        result = rl.simulate(str(model), "dgx-a100", rl.Plan(global_batch=8), software="ideal")
    assert done.stdout.strip() == "test-cubes"
    assert plugins.VARIABLE not in os.environ
    assert len(result.manifest["plugins"]["cubes.py"]) == 64
    assert rl.load_plugin(plugin) is rl.load_plugin(plugin)
