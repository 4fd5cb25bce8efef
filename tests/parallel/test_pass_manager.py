"""The pass manager: which graph passes a stack asks for, in which order, and how often they run."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

import ridgeline as rl
from ridgeline import catalog
from ridgeline.hardware import load_device
from ridgeline.parallel import lower as lowering
from ridgeline.parallel.pass_manager import PASSES, PassContext, run_passes
from ridgeline.parallel.plan.resolved import NEUTRAL
from ridgeline.software import Stack, load_software
from stacked import stacked

DEVICE = load_device("v100-sxm2-16gb")
ASKED: list[tuple[str, dict[str, Any]]] = [
    ("channels-first-copies", {"kernels.layout": "channels-first"}),
    ("prefetch-all-gather", {"overlap.tensor": True}),
    ("input-gradients", {"kernels.input_gradients": True}),
    ("convolution-algorithms", {"kernels.conv_workspace": "8 MiB"}),
    ("gradient-accumulation-fusion", {"gradients.accumulation_fusion": True}),
    ("norm-by-channel", {"kernels.norm": "by-channel"}),
    ("fused-norms", {"kernels.norm": "fused"}),
    ("folded-norms", {"kernels.norm": "fused"}),
    ("attention-transpose", {"kernels.attention_transpose": True}),
    ("unfused-router", {"kernels.fusion": "routed"}),
    ("decompose", {"kernels.fusion": "eager"}),
    ("decompose-gemm", {"overlap.tensor": "pieces"}),
    ("atomic-scatter-add", {"moe.combine": "atomic"}),
    ("multi-tensor-launches", {"optimizer.impl": "fused"}),
    ("optimizer-op-by-op", {"optimizer.impl": "per-tensor"}),
]
ALWAYS = {"gradient-formats", "unpacked-weights"}  # return most graphs as they are

# Asked for by a unit behind the accumulators, by a host whose inputs are waited for, and by matrix
# units that read operands in 8 bits in either layout.
OF_DEVICES = {"tpu-v1": {"product-epilogues", "host-inputs"}, "b200": {"one-layout"}}


def asked(stack: Stack) -> set[str]:
    return {one.name for one in PASSES.values() if one.when(PassContext(stack, DEVICE)) is not None}


def test_every_pass_is_asked_for_by_a_setting() -> None:
    assert {name for name, _ in ASKED}.union(ALWAYS, *OF_DEVICES.values()) == set(PASSES)
    assert asked(NEUTRAL) == ALWAYS
    for device, passes in OF_DEVICES.items():
        of = PassContext(NEUTRAL, load_device(device))
        found = {name for name, one in PASSES.items() if one.when(of) is not None}
        assert found == ALWAYS | passes


@pytest.mark.parametrize(("name", "settings"), ASKED)
def test_a_setting_asks_for_its_pass(name: str, settings: dict[str, Any]) -> None:
    assert name in asked(NEUTRAL.with_settings(settings))


def test_passes_have_places_of_their_own() -> None:
    orders = [one.order for one in PASSES.values()]
    assert len(set(orders)) == len(orders)


def test_no_pass_leaves_the_graph_as_it_is() -> None:
    graph = rl.load_model("resnet18").training(2, "fp16-mixed")
    assert run_passes(graph, NEUTRAL, DEVICE) is graph


@pytest.mark.parametrize("name", catalog.names("software"))
def test_a_graph_is_rewritten_once(name: str) -> None:
    graph = rl.load_model("resnet18").training(2, "fp16-mixed")
    stack = load_software(name)
    assert run_passes(graph, stack, DEVICE) is run_passes(graph, stack, DEVICE)


def test_lowering_has_no_ladder_of_settings() -> None:
    """What a stack does to the graph is a pass; `lower` names no setting of kernels."""
    text = Path(str(lowering.__file__)).read_text(encoding="utf-8")
    named = set(re.findall(r"stack\.(\w+)\.(\w+)", text))
    assert {group for group, _ in named} <= {"host", "kernels", "moe", "overlap", "optimizer"}
    assert not re.findall(r"^    if .*stack\.", text, re.MULTILINE)


@pytest.mark.parametrize(
    ("model", "machine", "fields"),
    [
        ("alexnet", "dgx1-v100", {"spatial": "2", "kernels__input_gradients": True}),
        (
            "llama2-7b",
            "dgx-a100",
            {
                "precision": "bf16-mixed",
                "micro_batch": 1,
                "gradients__accumulation_fusion": True,
                "gradients__main_grads": "flat",
            },
        ),
    ],
)
def test_passes_go_together(model: str, machine: str, fields: dict[str, Any]) -> None:
    network = rl.load_model(model, {"layers": 2} if model == "llama2-7b" else {})
    result = rl.simulate(network, machine, stacked(global_batch=4, **fields))
    plain = {name: value for name, value in fields.items() if "__" not in name}
    assert result.step_time_s > 0
    assert (
        result.flops_per_step
        == rl.simulate(network, machine, stacked(global_batch=4, **plain)).flops_per_step
    )
