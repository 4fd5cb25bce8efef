"""Optimizers that take whole matrices: their arithmetic counted by doing it, state, and rules."""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

import ridgeline as rl
from oracles.graph_zoo import tiny
from ridgeline.errors import ConfigError, RidgelineError
from ridgeline.workload import Role, load_model, memory_entries, optimizers
from ridgeline.workload.graph import Graph, Pass
from ridgeline.workload.ops import matrices_of
from ridgeline.workload.optimizers import OPTIMIZERS, STATE_FORMATS

Matrix = npt.NDArray[np.float64]
MATRIX_RULES = [name for name, rule in OPTIMIZERS.items() if rule.products]
NETWORKS = ["gpt", "bert", "cifar", "mixtral"]


class Counted:
    """Products of matrices that count what they multiply."""

    def __init__(self) -> None:
        self.flops = 0

    def __call__(self, a: Matrix, b: Matrix) -> Matrix:
        self.flops += 2 * a.shape[0] * a.shape[1] * b.shape[1]
        return a @ b


def muon(g: Matrix, product: Counted) -> Matrix:
    """Newton-Schulz as Keller Jordan has it: on the side that is shorter."""
    x = g.T if g.shape[0] > g.shape[1] else g
    x = x / (np.linalg.norm(x) + 1e-7)
    for _ in range(5):
        gram = product(x, x.T)
        x = 3.4445 * x + product(-4.7750 * gram + 2.0315 * product(gram, gram), x)
    return x.T if g.shape[0] > g.shape[1] else x


def soap(g: Matrix, product: Counted) -> Matrix:
    """One step of SOAP between two decompositions, eigenvectors being given."""
    rows, columns = (np.linalg.qr(np.eye(n) + 0.1)[0] for n in g.shape)
    product(g, g.T)
    product(g.T, g)
    turned = product(product(rows.T, g), columns)
    moment = product(product(rows.T, g), columns)
    return product(product(rows, moment / (np.abs(turned) + 1)), columns.T)


def shampoo(g: Matrix, product: Counted) -> Matrix:
    product(g, g.T)
    product(g.T, g)
    return product(product(np.eye(g.shape[0]), g), np.eye(g.shape[1]))


DONE: dict[str, Callable[[Matrix, Counted], Matrix]] = {
    "muon": muon, "soap": soap, "shampoo": shampoo
}  # fmt: skip


def matrices(graph: Graph, stacks: dict[str, bool]) -> list[tuple[int, int]]:
    """Rows and columns of every matrix that is updated whole, those of stacks one by one."""
    found = []
    for name, stacked in stacks.items():
        shape = graph.tensors[name].shape
        if stacked:
            found += [shape[-2:]] * math.prod(shape[:-2])
        else:
            found.append((shape[0], math.prod(shape[1:])))
    return found


@pytest.mark.parametrize("rule", MATRIX_RULES)
@pytest.mark.parametrize("network", NETWORKS)
def test_products_are_those_that_the_rule_does(network: str, rule: str) -> None:
    model = tiny(network)
    graph = model.training(2, "bf16-mixed", OPTIMIZERS[rule])
    product, rng = Counted(), np.random.default_rng(0)
    stacks = matrices_of(model.forward(2, "bf16-mixed"))
    for shape in matrices(graph, stacks):
        DONE[rule](rng.normal(size=shape), product)
    assert graph.flops(Pass.UPDATE) == product.flops > 0
    assert graph.useful_flops == model.training(2, "bf16-mixed").useful_flops


def test_newton_schulz_makes_singular_values_alike() -> None:
    """What is counted is the iteration that the rule means."""
    g = np.random.default_rng(1).normal(size=(24, 40))
    values = np.linalg.svd(muon(g, Counted()), compute_uv=False)
    assert np.all((values > 0.6) & (values < 1.4))


@pytest.mark.parametrize("network", NETWORKS)
def test_embeddings_classifiers_norms_and_biases_have_the_other_rule(network: str) -> None:
    model = tiny(network)
    graph = model.training(2, "bf16-mixed", OPTIMIZERS["muon"])
    whole = matrices_of(model.forward(2, "bf16-mixed"))
    rule_of = {op.inputs[0]: dict(op.attrs)["rule"] for op in graph.ops if op.kind == "optimizer"}
    assert {name for name, rule in rule_of.items() if rule == "muon"} == whole.keys()
    for name in rule_of.keys() - whole.keys():
        shape = graph.tensors[name].shape
        read = [op for op in graph.ops if op.pass_ is Pass.FORWARD and name in op.inputs]
        table = any("embedding" in op.kind for op in read)
        last = name.startswith(("head", "classifier", "masked", "pooler", "fc", "output"))
        assert len(shape) < 2 or table or last or network == "bert", name


def test_state_of_a_mixture_is_one_momentum() -> None:
    graph = load_model("qwen3-30b-a3b", {"layers": 1}).training(1, "bf16-mixed", OPTIMIZERS["muon"])
    rule_of = {op.inputs[0]: dict(op.attrs)["rule"] for op in graph.ops if op.kind == "optimizer"}
    size = sum(
        graph.tensors[name].elements * {"muon": 4, "adamw": 8}[str(rule)]
        for name, rule in rule_of.items()
    )
    assert memory_entries(graph).initial["optimizer"] == size


def test_sides_of_a_matrix_have_state_up_to_a_length() -> None:
    rule = OPTIMIZERS["soap"]
    assert rule.sides(64, 128) == {"rows": 64, "columns": 128}
    assert rule.sides(64, 20_000) == {"rows": 64}
    assert OPTIMIZERS["muon"].sides(64, 64) == {}
    graph = tiny("gpt").training(2, "fp32", rule)
    names = [t.name for t in graph.tensors.values() if t.role is Role.STATE]
    sided = [name for name in names if ".covariance." in name or ".eigenvectors." in name]
    assert len(sided) == 4 * len(matrices_of(tiny("gpt").forward(2, "fp32")))
    for name in sided:
        assert len(set(graph.tensors[name].shape)) == 1
    decomposed = sum(
        math.ceil((2 + Fraction(8, 3)) / 10 * graph.tensors[name].shape[0] ** 3)
        for name in sided
        if ".covariance." in name
    )
    vectors = sum(op.vector_flops for op in graph.ops if op.kind == "orthogonalise")
    added = sum(
        2 * op.loops.batch * op.loops.m * op.loops.n  # type: ignore[union-attr]
        for op in graph.ops
        if op.kind == "orthogonalise"
    )
    assert vectors == decomposed + added


@pytest.mark.parametrize(
    ("rule", "bytes_per_weight"), [("lion", 4), ("adamw", 8), ("adamw-8bit", 2 * (1 + 4 / 256))]
)
def test_state_bytes_of_rules(rule: str, bytes_per_weight: float) -> None:
    graph = load_model("mlp").training(2, "bf16-mixed", OPTIMIZERS[rule])
    large = [t for t in graph.tensors.values() if t.role is Role.WEIGHT and t.elements >= 4096]
    small = [t for t in graph.tensors.values() if t.role is Role.WEIGHT and t.elements < 4096]
    in_full = 4 * len(OPTIMIZERS[rule].states)
    size = sum(math.ceil(t.elements * bytes_per_weight) for t in large)
    size += sum(t.elements * in_full for t in small)
    assert memory_entries(graph).initial["optimizer"] == pytest.approx(size, abs=2 * len(large) * 4)


@pytest.mark.parametrize("state", STATE_FORMATS)
@pytest.mark.parametrize("rule", ["adamw", "muon", "adafactor"])
def test_state_is_kept_in_any_format(rule: str, state: str) -> None:
    model = load_model("mlp")
    of = optimizers.find(rule, state)
    graph = model.training(2, "bf16-mixed", of)
    for tensor in graph.tensors.values():
        if tensor.role is Role.STATE:
            narrow = state if state in {"fp32", "bf16", "fp16"} else {state, "fp32"}
            assert tensor.format in ({narrow} if isinstance(narrow, str) else narrow)
    full = model.training(2, "bf16-mixed", OPTIMIZERS[rule])
    assert memory_entries(graph).initial["optimizer"] <= memory_entries(full).initial["optimizer"]


def test_a_plan_says_the_format_of_state() -> None:
    def step(**fields: Any) -> rl.Result:
        plan = rl.Plan(global_batch=8, precision="bf16-mixed", **fields)
        return rl.simulate("gpt2", "dgx-h100", plan)

    held = {
        state: step(optimizer_state=state).memory_bytes["optimizer"]
        for state in (None, "fp32", "bf16", "int8-block")
    }
    assert held[None] == held["fp32"] == 2 * held["bf16"]
    assert held["int8-block"] == pytest.approx(held["fp32"] / 4 * (1 + 4 / 256), rel=0.01)
    wide, narrow = (step(optimizer_state=state).time_s["optimizer"] for state in ("fp32", "bf16"))
    assert narrow < wide
    with pytest.raises(ConfigError, match="did you mean 'bf16'"):
        rl.Plan(global_batch=8, optimizer_state="bf1")
    with pytest.raises(RidgelineError, match="optimizer state is not kept in 'nvfp4'"):
        optimizers.find("adamw", "nvfp4")
