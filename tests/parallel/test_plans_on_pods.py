"""Pipelines: bubbles, memory, conservation, and folded ranks against all ranks."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import pytest
from pods import write_pod

from ridgeline.errors import ConfigError
from ridgeline.hardware import load_cluster
from ridgeline.parallel.partition.pipeline_partition import partition
from ridgeline.parallel.plan.plan import Plan
from ridgeline.report.result import Result
from ridgeline.simulation import simulate
from ridgeline.workload.files import load_model
from ridgeline.workload.graph import Pass, Role
from stacked import stacked

FOLDER = tempfile.TemporaryDirectory()
POD = str(write_pod(Path(FOLDER.name)))
FREE = {  # communication takes no time
    "link_types.cable.bandwidth": "1e9 TB/s",
    "link_types.cable.latency": "0 s",
    "node.link_types.slot.bandwidth": "1e9 TB/s",
    "node.link_types.slot.latency": "0 s",
    "node.link_types.wire.bandwidth": "1e9 TB/s",
    "node.link_types.wire.latency": "0 s",
    "node.collective_latency": "0 s",
}
CHAIN = """
kind: model
name: small
family: mlp
title: Chain
citation: made for tests
inputs: 2048
widths: [{}]
activation: relu
""".format(", ".join(["2048"] * 32))


def step(model: str, fold: bool = True, reference: bool = False, **fields: Any) -> Result:
    plan = stacked(**{"global_batch": 16, "precision": "fp16-mixed", **fields})
    return simulate(load_model(model), load_cluster(POD), plan, fold=fold, reference=reference)


@pytest.mark.parametrize(
    ("model", "fields"),
    [
        ("mlp", {"tensor": 2, "data": 2}),
        ("resnet18", {"pipeline": 4, "micro_batch": 8}),
        ("resnet18", {"data": 4, "tensor": 2}),
        ("resnet18", {"pipeline": 2, "tensor": 2, "micro_batch": 8, "schedule": "gpipe"}),
        ("gpt2", {"data": 2, "tensor": 4, "pipeline": 2, "micro_batch": 4, "recompute": "full"}),
        ("gpt2", {"tensor": 4, "sequence": 4}),
        ("gpt2", {"data": 2, "tensor": 2, "pipeline": 2, "order": "data-tensor-context-pipeline"}),
        ("gpt2", {"pipeline": 2, "tensor": 2, "micro_batch": 4, "schedule": "zero-bubble"}),
        ("gpt2", {"pipeline": 2, "virtual_stages": 2, "micro_batch": 4, "schedule": "interleaved"}),
        ("gpt2", {"pipeline": 4, "tensor": 2, "micro_batch": 4, "schedule": "zero-bubble-v"}),
        ("t5-small", {"data": 2, "pipeline": 4, "micro_batch": 4}),
        ("gpt2", {"context": 2, "tensor": 2, "data": 2, "sequence": 2}),
        ("gpt2", {"context": 4, "pipeline": 2, "micro_batch": 8}),
        ("gpt2", {"data": 4, "zero_stage": 1, "micro_batch": 2}),
        ("gpt2", {"data": 4, "zero_stage": 3, "micro_batch": 2}),
        ("resnet18", {"data": 4, "zero_stage": 2}),
        ("gpt2", {"data": 2, "tensor": 2, "pipeline": 2, "zero_stage": 1, "micro_batch": 4}),
        ("alexnet", {"data": 8, "layers": "fc*:data=1"}),
        ("alexnet", {"data": 8, "layers": "fc6:tensor=4;fc*:tensor=2", "zero_stage": 1}),
        ("gpt2", {"data": 2, "tensor": 2, "pipeline": 2, "layers": "*.feed-forward.*:tensor=4"}),
        ("gpt2", {"data": 4, "context": 2, "layers": "blocks.1.*:tensor=2", "zero_stage": 2}),
    ],
)
def test_folded_equals_unfolded(model: str, fields: dict[str, Any]) -> None:
    folded, whole = step(model, **fields), step(model, fold=False, **fields)
    fewer = folded.manifest["ranks"]["simulated"] < whole.manifest["ranks"]["simulated"]
    alone = fields.get("data", 1) * fields.get("tensor", 1) * fields.get("context", 1) == 1
    assert alone or fewer
    assert "slowest_stands_for_all" not in folded.manifest["ranks"]
    assert folded.step_time_s == pytest.approx(whole.step_time_s, rel=1e-9)
    for part, joules in whole.energy_j.items():
        assert folded.energy_j[part] == pytest.approx(joules, rel=1e-9)
    assert folded.traffic_bytes == pytest.approx(whole.traffic_bytes, rel=1e-12)
    assert folded.memory_bytes == whole.memory_bytes


@pytest.mark.parametrize(
    "fields",
    [
        {"data": 2, "tensor": 2, "pipeline": 2, "micro_batch": 8},
        {"data": 8, "micro_batch": 1, "layers": "layer4*:tensor=4;layer3*:tensor=2;fc:tensor=8"},
    ],
)
def test_the_reference_engine_agrees(fields: dict[str, Any]) -> None:
    fast, slow = step("resnet18", **fields), step("resnet18", reference=True, **fields)
    assert fast.step_time_s == pytest.approx(slow.step_time_s, rel=1e-9)
    assert fast.memory_bytes == slow.memory_bytes


@pytest.mark.parametrize("schedule", ["1f1b", "gpipe"])
@pytest.mark.parametrize(("stages", "micro_batches"), [(2, 4), (4, 4), (4, 16)])
def test_the_bubble_of_equal_stages(
    schedule: str, stages: int, micro_batches: int, tmp_path: Path
) -> None:
    """(K - 1) / (M + K - 1) of the time of forward and backward (Huang et al., GPipe, 2019)."""
    (tmp_path / "chain.yaml").write_text(CHAIN)
    plan = Plan(
        pipeline=stages, schedule=schedule, global_batch=2048 * micro_batches,
        micro_batch=2048, precision="fp16-mixed",
    )  # fmt: skip
    cluster = load_cluster(POD, FREE)
    result = simulate(load_model(str(tmp_path / "chain.yaml")), cluster, plan)
    timeline = result.details.timeline
    program = timeline.program
    works = program.kind != program.kind_names.index(Pass.UPDATE.value)
    length = timeline.end_s[works].max()
    busy = [
        timeline.durations_s[works & (program.stream == stream)].sum()
        for stream, name in enumerate(program.stream_names)
        if name.endswith("compute")
    ]
    # Stages are not quite equal: the first has no gradient of its input, the last has the loss.
    filled = (sum(busy) - max(busy)) / micro_batches
    assert length == pytest.approx(max(busy) + filled, rel=0.03)
    bubble = (stages - 1) / (micro_batches + stages - 1)
    assert 1 - max(busy) / length == pytest.approx(bubble, rel=0.08)


def test_a_schedule_that_fills_the_bubble_is_faster_and_holds_more() -> None:
    fields = {"pipeline": 4, "global_batch": 16, "micro_batch": 2}
    gpipe = step("gpt2", schedule="gpipe", **fields)
    one = step("gpt2", schedule="1f1b", **fields)
    zero = step("gpt2", schedule="zero-bubble", **fields)
    assert zero.step_time_s < one.step_time_s <= gpipe.step_time_s * 1.01
    assert one.memory_bytes["activations"] < gpipe.memory_bytes["activations"]


def test_1f1b_holds_as_many_micro_batches_as_stages() -> None:
    """The first stage holds K of them, whatever M is (Narayanan et al., SC 2021, 2.2.1)."""
    how = {"pipeline": 4, "micro_batch": 1, "stage_balance": "layers"}  # the same stages in both
    few = step("gpt2", global_batch=4, **how)
    many = step("gpt2", global_batch=16, **how)
    assert many.memory_bytes["activations"] == few.memory_bytes["activations"]


def test_hidden_communication_never_costs_time() -> None:
    fields = {"tensor": 4, "micro_batch": 4}
    assert (
        step("gpt2", overlap__tensor=True, **fields).step_time_s
        < step("gpt2", overlap__tensor=False, **fields).step_time_s
    )


def test_work_is_conserved() -> None:
    alone = step("gpt2", micro_batch=4)
    for fields in ({"pipeline": 4}, {"tensor": 4}, {"pipeline": 2, "tensor": 2, "data": 2}):
        parts = step("gpt2", micro_batch=4, **fields)
        assert parts.flops_per_step == alone.flops_per_step
        done = {
            place.place: units
            for place, units in zip(
                parts.details.timeline.program.accounts,
                parts.details.timeline.ledger().values(),
                strict=True,
            )
        }
        assert done["matrix.fp16"] == pytest.approx(alone.flops_per_step, rel=1e-4)  # vocabulary


def test_shared_state_by_the_formula() -> None:
    """Rajbhandari et al., ZeRO, SC 2020, Section 3.1: K = 8 of Adam's states, 4 of gradients."""
    plain, *shared = [
        step("gpt2", data=8, global_batch=16, micro_batch=1, zero_stage=z).memory_bytes
        for z in range(4)
    ]
    weights = load_model("gpt2").training(1, "fp16-mixed").parameters
    assert plain["optimizer"] == 8 * weights
    assert plain["gradients"] >= 4 * weights
    for number, memory in enumerate(shared, start=1):
        assert memory["optimizer"] == pytest.approx(8 * weights / 8, rel=1e-3)
        if number >= 2:  # what is not scattered yet is in buckets
            assert memory["gradients"] < 4 * weights / 8 + 2**28
    assert shared[2]["weights"] == pytest.approx(plain["weights"] / 8, rel=1e-3)


def test_sharing_moves_what_the_paper_says() -> None:
    """Section 7: twice the gradients as one all-reduce, and half of that again with stage 3."""
    moved = []
    for z in range(4):
        result = step("gpt2", data=8, global_batch=8, zero_stage=z)
        wire = sum(result.traffic_bytes[name] for name in ("wire", "slot", "cable"))
        moved.append(wire)
    assert moved[1] < moved[0]  # weights are gathered in 16 bits
    assert moved[1] == pytest.approx(moved[2], rel=0.01)
    assert moved[3] > 1.2 * moved[2]


def test_recomputation_trades_time_for_memory() -> None:
    plain = step("gpt2", pipeline=2, micro_batch=4)
    full = step("gpt2", pipeline=2, micro_batch=4, recompute="full")
    assert full.step_time_s > plain.step_time_s
    assert full.memory_bytes["activations"] < 0.5 * plain.memory_bytes["activations"]
    assert full.flops_per_step == plain.flops_per_step
    assert full.hfu > 1.2 * full.mfu


@pytest.mark.parametrize("model", ["gpt2", "bert-base", "t5-small", "mask-rcnn", "gnmt", "dlrm"])
def test_stages_hold_all_ops_and_what_they_need(model: str) -> None:
    graph = load_model(model).training(1, "fp16-mixed")
    cut = partition(graph, [op.matrix_flops + 1.0 for op in graph.ops], 4)
    flops = sum(op.matrix_flops for part in cut.parts for op in part.graph.ops)
    assert flops == sum(op.matrix_flops for op in graph.ops)
    for number, part in enumerate(cut.parts):
        came = {name for receipt in part.receipts for name in receipt.tensors}
        made = {name for op in part.graph.ops for name in op.outputs}
        for op in part.graph.ops:
            for name in op.inputs:
                held = part.graph.tensors[name].role in {
                    Role.WEIGHT, Role.INPUT, Role.BUFFER, Role.STATE,
                }  # fmt: skip
                assert held or name in made or name in came, (number, op.name, name)
        for receipt in part.receipts:
            source = {n for op in cut.parts[receipt.source].graph.ops for n in op.outputs}
            assert source.issuperset(receipt.tensors)
            assert receipt.forward == (receipt.source < number)
    updated = [
        op.inputs[0] for p in cut.parts for op in p.graph.ops if op.pass_ is Pass.UPDATE
        and op.kind == "optimizer"
    ]  # fmt: skip
    shared = {tie.weight: len(tie.gradients) for tie in cut.ties}
    weights = {t.name for t in graph.tensors.values() if t.role is Role.WEIGHT} - graph.frozen
    assert sorted(updated) == sorted(w for w in weights for _ in range(shared.get(w, 1)))


def test_too_many_stages() -> None:
    with pytest.raises(ConfigError, match=r"can be cut into .* stages at most"):
        step("mlp", pipeline=32, global_batch=32, micro_batch=1)


MIXTURE = """
kind: model
name: small
family: decoder
title: Mixture
citation: made for tests
vocabulary: 1024
sequence: 256
layers: 2
hidden: 512
attention: {heads: 8, bias: false, output_bias: false}
feed_forward: {width: 512, activation: swiglu, bias: false}
mixture: {experts: 8, top_k: 2, width: 512}
norm: rms-norm
positions: rotary
tied: false
"""


@pytest.mark.parametrize(
    "fields",
    [
        {"data": 4, "expert": 4},
        {"data": 8, "expert": 2, "micro_batch": 1},
        {"data": 4, "expert": 4, "tensor": 2, "pipeline": 2, "micro_batch": 2},
        {"data": 4, "expert": 2, "zero_stage": 1, "micro_batch": 1},
        {"data": 8, "expert": 2, "zero_stage": 3, "micro_batch": 2},
    ],
)
def test_experts_are_shared_and_folded(fields: dict[str, Any], tmp_path: Path) -> None:
    """All weights of a mixture but 1/e of its experts; every token crosses four times a layer."""
    (tmp_path / "mixture.yaml").write_text(MIXTURE)
    model = str(tmp_path / "mixture.yaml")
    folded, whole = step(model, **fields), step(model, fold=False, **fields)
    assert folded.step_time_s == pytest.approx(whole.step_time_s, rel=1e-9)
    assert folded.traffic_bytes == pytest.approx(whole.traffic_bytes, rel=1e-12)
    assert folded.memory_bytes == whole.memory_bytes
    alone = step(model, **{**fields, "expert": 1})
    assert folded.flops_per_step == alone.flops_per_step
    if fields.get("zero_stage") != 3:  # else all of it is shared by all ranks, either way
        assert folded.memory_bytes["weights"] < alone.memory_bytes["weights"]
    program = folded.details.timeline.program
    exchanged = [name for name in program.label_names if name.endswith("all-to-all")]
    assert len(exchanged) == 4 * 2


def test_ranks_share_all_optimizer_state_however_experts_lie(tmp_path: Path) -> None:
    """Of d ranks each has a d-th: of all else by sharding, of experts by both together."""
    (tmp_path / "mixture.yaml").write_text(MIXTURE)
    model = str(tmp_path / "mixture.yaml")
    for sharding in (1, 2, 3):
        held = [
            step(model, data=4, expert=e, zero_stage=sharding, micro_batch=1).memory_bytes
            for e in (1, 2, 4)
        ]
        assert len({memory["optimizer"] for memory in held}) == 1
        gathered = [memory["weights"] for memory in held]
        assert gathered == sorted(gathered, reverse=True)


def test_experts_must_divide(tmp_path: Path) -> None:
    (tmp_path / "mixture.yaml").write_text(MIXTURE)
    with pytest.raises(ConfigError, match="expert=16 does not divide the 8 experts"):
        step(str(tmp_path / "mixture.yaml"), data=16, expert=16)
    with pytest.raises(ConfigError, match="gpt2 has no experts"):
        step("gpt2", data=2, expert=2)
    with pytest.raises(ConfigError, match="expert=3 must divide data=4"):
        step("gpt2", data=4, expert=3)
