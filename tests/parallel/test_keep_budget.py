"""Recomputation within a budget: the cheapest choice there is, found by trying all of them."""

from __future__ import annotations

import itertools
import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_recompute import SGD, assert_same_gradients, assert_well_formed

import ridgeline as rl
from oracles.graph_networks import forward_graphs
from oracles.graph_zoo import TINY, tiny
from ridgeline.errors import ConfigError, RidgelineError
from ridgeline.parallel.checkpointing.blocks import forward_blocks
from ridgeline.parallel.checkpointing.keep_budget import (
    KeptChoice,
    block_choices,
    keep_within,
    least_work,
)
from ridgeline.parallel.checkpointing.mode_text import RecomputeMode
from ridgeline.parallel.checkpointing.ops import insides, needed, recompute_blocks
from ridgeline.parallel.checkpointing.recompute import MODES, with_recompute
from ridgeline.workload import load_model, training_graph
from ridgeline.workload.graph import Gemm, Graph, Pass, Role
from thoroughly import further

MOST = 11  # activations of a block that are tried in all combinations


def repeated_work(graph: Graph, changed: Graph, work: list[float]) -> float:
    """Sum the work of the ops that a graph repeats, of products with several results by columns."""
    by_name = {op.name: (op, of) for op, of in zip(graph.ops, work, strict=True)}
    total = 0.0
    for op in changed.ops:
        if op.pass_ is Pass.RECOMPUTE:
            first, of = by_name[op.name.rsplit(".again", 1)[0]]
            part = isinstance(op.loops, Gemm) and op.loops.n / first.loops.n  # type: ignore[union-attr]
            total += of * (part or 1.0)
    return total


def every_choice(graph: Graph, blocks: Any, work: list[float]) -> list[tuple[int, float]]:
    """Bytes and work of keeping any set of activations of the inside of blocks, by doing it."""
    names = sorted(frozenset().union(*insides(graph, blocks)))
    found = []
    for count in range(len(names) + 1):
        for kept in itertools.combinations(names, count):
            changed = recompute_blocks(graph, blocks, kept=frozenset(kept))
            found.append((changed.activation_bytes, repeated_work(graph, changed, work)))
    return found


def small(graph: Graph, seed: int) -> list[tuple[int, ...]]:
    """Give a few stretches of the forward pass with few activations inside."""
    order = [i for i, op in enumerate(graph.ops) if op.pass_ is Pass.FORWARD]
    rng = random.Random(seed)
    start = rng.randrange(len(order))
    blocks = [tuple(order[start : start + rng.randint(2, 9)])]
    if rng.random() < 0.5 and start > 2:
        blocks.insert(0, tuple(order[max(start - 4, 0) : start]))
    return blocks if len(frozenset().union(*insides(graph, blocks))) <= MOST else blocks[:0]


def cheapest_is_found(graph: Graph, blocks: Any, seed: int) -> None:
    rng = random.Random(seed)
    work = [float(rng.randint(0, 9)) for _ in graph.ops]
    choices, anyway = block_choices(graph, blocks, work)
    rest = graph.activation_bytes - sum(graph.sizes[name] for name in anyway)
    tried = every_choice(graph, blocks, work)
    for budget in {size for size, _ in tried}:
        least = min(of for size, of in tried if size <= budget)
        chosen = least_work(choices, budget - rest)
        assert chosen is not None
        kept = frozenset[str]().union(*(one.kept for one in chosen))
        changed = recompute_blocks(graph, blocks, kept=kept)
        assert changed.activation_bytes <= budget
        assert repeated_work(graph, changed, work) == pytest.approx(least)


@settings(max_examples=25, deadline=None)
@given(forward_graphs(), st.integers(0, 2**32 - 1))
def test_no_choice_of_activations_is_cheaper(forward: Graph, seed: int) -> None:
    graph = training_graph(forward, SGD)
    blocks = small(graph, seed)
    if any(blocks):
        cheapest_is_found(graph, blocks, seed)


@pytest.mark.parametrize("seed", [*range(4), *further(*range(4, 40))])
@pytest.mark.parametrize("name", ["gpt", "t5", "cifar", "mixtral"])
def test_stretches_of_networks_are_solved_exactly(name: str, seed: int) -> None:
    graph = tiny(name).training(2, "fp16-mixed", SGD)
    blocks = small(graph, seed)
    if any(blocks):
        cheapest_is_found(graph, blocks, seed)


@pytest.mark.parametrize("seed", range(20))
def test_the_knapsack_equals_enumeration(seed: int) -> None:
    rng = random.Random(seed)
    pool = [
        [
            KeptChoice(rng.randint(0, 30), float(rng.randint(0, 30)), frozenset({str(n)}))
            for n in range(rng.randint(1, 4))
        ]
        for _ in range(3)
    ]
    classes = [rng.choice(pool) for _ in range(rng.randint(1, 6))]
    for budget in range(0, 120, 7):
        fitting = [
            sum(one.work for one in each)
            for each in itertools.product(*classes)
            if sum(one.size_bytes for one in each) <= budget
        ]
        chosen = least_work(classes, budget)
        assert (chosen is None) is (not fitting)
        if chosen is not None:
            assert sum(one.size_bytes for one in chosen) <= budget
            assert sum(one.work for one in chosen) == min(fitting)
            assert all(one in each for one, each in zip(chosen, classes, strict=True))


@pytest.mark.parametrize("name", ["gpt", "bert", "cifar", "t5", "mixtral"])
def test_gradients_stay_and_the_budget_holds(name: str) -> None:
    graph = tiny(name).training(2, "fp16-mixed", SGD)
    least = with_recompute(graph, "full").activation_bytes
    before = -1
    for share in (0.25, 0.5, 0.75, 1.0):
        budget = least + share * (graph.activation_bytes - least)
        changed = keep_within(graph, budget)
        assert_well_formed(graph, changed)
        assert_same_gradients(graph, changed)
        assert changed.activation_bytes <= budget
        work = sum(op.matrix_flops + op.vector_flops for op in changed.ops)
        assert before < 0 or work <= before  # more room, no more work
        before = work


def test_ends_are_the_whole_blocks_and_nothing() -> None:
    graph = tiny("gpt").training(2, "fp16-mixed", SGD)
    assert with_recompute(graph, "budget:1") is graph
    least = min(with_recompute(graph, mode).activation_bytes for mode in ("full", "selective"))
    assert with_recompute(graph, f"budget:{least} B").activation_bytes <= least
    with pytest.raises(RidgelineError, match=r"keep at least .* more than the budget of"):
        with_recompute(graph, "budget:1 B")


@pytest.mark.parametrize("name", ["gpt", "mixtral"])
def test_blocks_that_are_counted_are_formed_again(name: str) -> None:
    of, fields = TINY[name]
    graph = load_model(of, {**fields, "layers": 4}).training(2, "fp16-mixed", SGD)
    blocks = forward_blocks(graph)
    assert len(blocks) == 4

    def again(mode: str, runs: int = 1) -> set[int]:
        changed = with_recompute(graph, mode, runs=runs)
        assert_same_gradients(graph, changed)
        repeated = {op.name.rsplit(".again", 1)[0] for op in changed.ops if ".again" in op.name}
        return {n for n, b in enumerate(blocks) if any(graph.ops[i].name in repeated for i in b)}

    assert again("full:1") == again("full") == {0, 1, 2, 3}
    assert again("full:2") == {1, 3}
    assert again("full:3") == {2}
    assert again("block:1") == {0}
    assert again("block:1", runs=2) == {0, 2}
    assert again("block:9", runs=2) == {0, 1, 2, 3}
    assert again("uniform:2") == {0, 1, 2, 3}
    fewer = with_recompute(graph, "uniform:2").activation_bytes
    assert fewer < with_recompute(graph, "full").activation_bytes


def test_recomputed_ops_are_counted_in_bytes_and_flops() -> None:
    """What every module saves and costs, counted op by op over the graph."""
    graph = tiny("mixtral").training(2, "fp16-mixed", SGD)
    for mode in ("mlp", "moe", "moe_act", "layernorm", "core_attn", "full:1", "budget:0.7"):
        try:
            changed = with_recompute(graph, mode)
        except ConfigError:
            continue
        again = [op for op in changed.ops if op.pass_ is Pass.RECOMPUTE]
        by_name = {op.name: op for op in graph.ops}
        flops = sum(by_name[op.name.rsplit(".again", 1)[0]].matrix_flops for op in again)
        assert sum(op.matrix_flops for op in changed.ops) == flops + sum(
            op.matrix_flops for op in graph.ops
        )
        read = {n for op in changed.ops if op.pass_ is not Pass.FORWARD for n in op.inputs}
        made = {n for op in changed.ops if op.pass_ is Pass.FORWARD for n in op.outputs}
        kept = sum(
            t.bytes
            for t in changed.tensors.values()
            if t.name in read
            and (t.role is Role.INPUT or (t.role is Role.ACTIVATION and t.name in made))
        )
        assert changed.activation_bytes == kept
        assert kept < graph.activation_bytes or mode == "core_attn"


def test_needed_ops_are_what_is_done_again() -> None:
    graph = tiny("gpt").training(2, "fp16-mixed", SGD)
    changed = with_recompute(graph, "full")
    read = {n for op in graph.ops if op.pass_ is not Pass.FORWARD for n in op.inputs}
    blocks = forward_blocks(graph)
    ops = [
        graph.ops[i].name
        for block, inside in zip(blocks, insides(graph, blocks), strict=True)
        for i in needed(graph, block, inside, read).ops
    ]
    done = [op.name.rsplit(".again", 1)[0] for op in changed.ops if op.pass_ is Pass.RECOMPUTE]
    assert sorted(done) == sorted(ops)


@pytest.mark.parametrize(
    "text", ["full", "none", "full:2", "block:3", "uniform:1", "budget:0.4", "mlp+layernorm"]
)
def test_modes_are_written_as_they_are_read(text: str) -> None:
    assert RecomputeMode.parse(str(RecomputeMode.parse(text, MODES)), MODES) == (
        RecomputeMode.parse(text, MODES)
    )


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("ful", "did you mean 'full'"),
        ("full:0", "a number of blocks from 1, found '0'"),
        ("blok:2", "did you mean 'block'"),
        ("budget:0", "a share above 0, up to 1"),
        ("budget:1.5", "a share above 0, up to 1"),
        ("budget:8 GBs", "a share of the activations"),
        ("budget:-1 B", "a size above 0 B"),
    ],
)
def test_what_is_no_mode_is_explained(text: str, said: str) -> None:
    with pytest.raises(ConfigError, match=r"plan\.recompute"):
        rl.Plan(global_batch=8, recompute=text)
    with pytest.raises(ValueError, match=said):
        RecomputeMode.parse(text, MODES)


def test_a_plan_recomputes_within_a_budget_and_by_stages() -> None:
    plan = {"global_batch": 16, "data": 2, "micro_batch": 2, "precision": "bf16-mixed"}
    results = {
        mode: rl.simulate(
            "gpt2", "dgx-h100", rl.Plan(**plan, pipeline=2, recompute=mode)  # type: ignore[arg-type]
        )
        for mode in ("none", "block:2", "budget:0.8", "budget:0.5", "full")
    }  # fmt: skip
    held = {mode: result.memory_bytes["activations"] for mode, result in results.items()}
    assert held["full"] < held["budget:0.5"] < held["budget:0.8"] <= held["block:2"] < held["none"]
    times = {mode: result.step_time_s for mode, result in results.items()}
    assert times["none"] < times["budget:0.8"] < times["budget:0.5"] < times["full"]
    assert results["budget:0.5"].mfu < results["budget:0.5"].hfu
