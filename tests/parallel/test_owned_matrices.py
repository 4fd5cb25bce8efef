"""Whole matrices on several devices: gathered over tensor, shared over ranks of ZeRO."""

from __future__ import annotations

import functools
from collections import Counter
from typing import Any

import pytest

import ridgeline as rl
from oracles.graph_zoo import tiny
from ridgeline.parallel.emit.zero import with_sharding
from ridgeline.parallel.sharding.divide import ShardingSpec, divide
from ridgeline.workload.graph import Gemm, Graph, Pass, Role
from ridgeline.workload.ops import matrices_of
from ridgeline.workload.ops.matrix_update import OF
from ridgeline.workload.optimizers import OPTIMIZERS

STEPS = 5  # of Newton and Schulz


def graph_of(name: str, rule: str = "muon", batch: int = 4) -> Graph:
    return tiny(name).training(batch, "bf16-mixed", OPTIMIZERS[rule])


def on_matrices(graph: Graph) -> Counter[tuple[int, int, int]]:
    """How many products of each size updates do."""
    found: Counter[tuple[int, int, int]] = Counter()
    for op in graph.ops:
        if op.kind == "orthogonalise":
            assert isinstance(op.loops, Gemm)
            found[op.loops.m, op.loops.n, op.loops.k] += op.loops.batch
    return found


def assert_written_before_read(graph: Graph) -> None:
    held = {Role.INPUT, Role.WEIGHT, Role.BUFFER, Role.STATE}
    written = {t.name for t in graph.tensors.values() if t.role in held}
    for op in graph.ops:
        assert written.issuperset(op.inputs), op.name
        written.update(op.outputs)


@pytest.mark.parametrize("rule", ["muon", "soap"])
@pytest.mark.parametrize("name", ["gpt", "mixtral"])
def test_tensor_parallel_devices_gather_every_matrix(name: str, rule: str) -> None:
    """Each does all of it, as Megatron-Core's "duplicated"; only divided matrices are gathered."""
    graph = graph_of(name, rule)
    found = divide(graph, ShardingSpec(tensor=2))
    assert on_matrices(found.graph) == on_matrices(graph)
    gathers = [op for op in found.graph.ops if op.kind == "all-gather" and op.pass_ is Pass.UPDATE]
    directions = {f"{w}.direction": w for w in matrices_of(tiny(name).forward(4, "bf16-mixed"))}
    divided = {d for d, w in directions.items() if w in found.divided}
    assert {op.inputs[0] for op in gathers} == divided
    for op in gathers:
        made = found.graph.tensors[op.outputs[0]]
        assert dict(op.attrs)["size_bytes"] == made.bytes
        assert made.bytes >= graph.tensors[op.inputs[0]].bytes  # more where heads are copied
    assert_written_before_read(found.graph)


@pytest.mark.parametrize("tensor", [1, 2])
@pytest.mark.parametrize("ranks", [2, 3, 7, 64])
@pytest.mark.parametrize("stage", [1, 2, 3])
@pytest.mark.parametrize("name", ["gpt", "mixtral"])
def test_ranks_share_whole_matrices(name: str, stage: int, ranks: int, tensor: int) -> None:
    graph = divide(graph_of(name), ShardingSpec(tensor=tensor)).graph
    shared = with_sharding(graph, stage, ranks, 1e6)
    every, mine = begun(graph), begun(shared)
    assert mine.keys() == every.keys()
    for size, count in every.items():
        assert mine[size] == -(-count // ranks)  # the fullest rank has one more than others at most
    exchanged = [op for op in shared.ops if op.name.endswith(".exchange")]
    owned = {str(v) for op in shared.ops for k, v in op.attrs if k == OF and op.loops is not None}
    assert len(exchanged) == (2 * len(owned) if stage >= 2 else 0)
    for op in exchanged:
        assert dict(op.attrs)["size_bytes"] == shared.tensors[op.inputs[0]].bytes
    if stage < 3:  # stage 3 reads what collectives have made in place of weights
        read = {n for op in shared.ops for n in op.inputs if ".direction." in n}
        made = {n for op in shared.ops for n in op.outputs}
        assert read <= made


def begun(graph: Graph) -> Counter[tuple[int, int, int]]:
    """How many matrices of each size are done, by the first products of their updates."""
    found: Counter[tuple[int, int, int]] = Counter()
    for op in graph.ops:
        if op.kind == "orthogonalise" and op.name.endswith(".update.1"):
            assert isinstance(op.loops, Gemm)
            found[op.loops.m, op.loops.n, op.loops.k] += op.loops.batch // STEPS
    return found


def test_a_step_with_muon_costs_what_its_products_cost() -> None:
    def step(rule: str, **fields: Any) -> rl.Result:
        plan = rl.Plan(global_batch=8, precision="bf16-mixed", optimizer=rule, **fields)
        return rl.simulate("gpt2", "dgx-h100", plan)

    alone = step("muon").time_s["optimizer"] - step("adamw").time_s["optimizer"]
    flops = rl.load_model("gpt2").training(1, "bf16-mixed", OPTIMIZERS["muon"]).flops(Pass.UPDATE)
    assert flops / 989.4e12 < alone < 10 * flops / 989.4e12  # small matrices: far from the peak
    shared = step("muon", data=8, zero_stage=1).time_s["optimizer"]
    every = step("muon", data=8).time_s["optimizer"]
    assert every / 8 < shared < every / 3  # each rank has two of twelve matrices of each size
    assert step("muon").memory_bytes["optimizer"] < step("adamw").memory_bytes["optimizer"]


@functools.cache
def usual_step(**plan: int) -> rl.Result:
    return rl.simulate("gpt2", "dgx-h100", rl.Plan(global_batch=8, precision="bf16-mixed", **plan))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "plan",
    [
        {"data": 2, "pipeline": 2, "tensor": 2, "zero_stage": 3, "micro_batch": 1},
        {"data": 4, "pipeline": 2, "zero_stage": 2, "micro_batch": 1},
        {"data": 8, "zero_stage": 2},
        {"data": 4, "context": 2, "zero_stage": 1},
    ],
)
@pytest.mark.parametrize("rule", ["muon", "soap", "shampoo"])
def test_plans_of_all_kinds_run(rule: str, plan: dict[str, int]) -> None:
    result = rl.simulate(
        "gpt2",
        "dgx-h100",
        rl.Plan(global_batch=8, precision="bf16-mixed", optimizer=rule, **plan),  # type: ignore[arg-type]
    )
    usual = usual_step(**plan)
    assert result.step_time_s > usual.step_time_s
    assert result.hfu == pytest.approx(usual.hfu * usual.step_time_s / result.step_time_s, rel=0.01)


def test_experts_are_shared_with_their_ranks() -> None:
    plan = {"data": 8, "expert": 4, "zero_stage": 1, "micro_batch": 1, "global_batch": 8}
    held = {
        rule: rl.simulate(
            rl.load_model("qwen3-30b-a3b", {"layers": 2}), "dgx-h100",
            rl.Plan(precision="bf16-mixed", optimizer=rule, **plan),  # type: ignore[arg-type]
        ).memory_bytes["optimizer"]
        for rule in ("adamw", "muon")
    }  # fmt: skip
    assert 0.5 <= held["muon"] / held["adamw"] < 0.8
