"""Routers of experts and rotations of latent attention, op by op (`functions=routed`)."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import ridgeline as rl
from ridgeline.parallel.passes.unfused_router import UNFUSED, Kernels, with_routing_apart
from ridgeline.workload.graph import Graph, Op, Pass
from stacked import stacked

Array = npt.NDArray[np.float64]
SHAPE = {"layers": 2, "vocabulary": 64, "sequence": 32, "hidden": 64, "feed_forward.width": 96}


def training(name: str, precision: str = "bf16-mixed", **fields: Any) -> Graph:
    return rl.load_model(name, {**SHAPE, **fields}).training(2, precision)


def streamed(op: Op, graph: Graph) -> int:
    return graph.read_bytes(op) + graph.write_bytes(op)


def check(graph: Graph, kinds: set[str]) -> None:
    """Ops of some kinds stream as often as the table says; the others stay what they are."""
    written = with_routing_apart(graph)
    changed = set()
    for before, after in zip(graph.ops, written.ops, strict=True):
        if after is before:
            continue
        changed.add(before.kind)
        unfused = UNFUSED[before.kind]
        kernels = unfused.forward if before.pass_ is Pass.FORWARD else unfused.gradient
        first, made = graph.tensors[before.inputs[0]], graph.tensors[before.outputs[0]]
        largest = max(first, made, key=lambda tensor: tensor.elements)
        size = largest.elements * (4 if unfused.wide else 2)
        others = {*before.inputs[1:], *before.outputs[1:]}
        small = sum(graph.tensors[name].bytes for name in others)
        assert after.kernels == len(kernels)
        assert streamed(after, written) == sum(map(sum, kernels), Fraction(0)) * size + small
        assert (after.inputs, after.outputs) == (before.inputs, before.outputs)
        assert after.in_place == before.in_place
    assert changed == kinds
    assert written.flops() == graph.flops()
    assert written.tensors == graph.tensors


@settings(max_examples=10, deadline=None)
@given(st.integers(1, 3), st.sampled_from([4, 8]))
def test_routers_and_rotations_of_latent_attention_change(chosen: int, experts: int) -> None:
    mixture = {"mixture.experts": experts, "mixture.top_k": chosen, "mixture.width": 32}
    check(training("deepseek-v2-lite", **mixture), {"rotary", "top-k"})
    check(training("mixtral-8x7b", **mixture), {"top-k"})


def test_networks_without_either_stay_as_they_are() -> None:
    check(training("llama3-8b"), set())


class Counted:
    """Parts of an array, and what each kernel on them reads and writes of the whole."""

    def __init__(self, whole: int) -> None:
        self.whole, self.kernels = whole, []

    def run(self, made: Array, *read: Array) -> Array:
        def share(size: int) -> Fraction:
            return Fraction(size, self.whole)

        self.kernels.append((share(sum(a.size for a in read)), share(made.size)))
        return made

    def of(self, kernels: Kernels) -> bool:
        """Whether the kernels are these, but for those too small to count."""
        return self.kernels == [k for k in kernels if k != (0, 0)]


@settings(max_examples=20, deadline=None)
@given(st.integers(1, 6), st.integers(1, 4), st.integers(0, 2**31))
def test_the_rotation_is_that_of_complex_numbers(rows: int, pairs: int, seed: int) -> None:
    """Op by op, forward and back, and counted."""
    generator = np.random.default_rng(seed)
    x, dy = generator.normal(size=(2, rows, 2 * pairs))
    angle = np.tile(generator.normal(size=(rows, pairs)), 2)
    cos, sin = np.cos(angle), np.sin(angle)
    turn = np.exp(1j * angle[:, :pairs])

    count = Counted(x.size)
    t = count.run(np.concatenate((x[:, ::2], x[:, 1::2]), 1), x)
    straight = count.run(t * cos, t)
    minus = count.run(-t[:, pairs:], t[:, pairs:])
    half = count.run(np.concatenate((minus, t[:, :pairs]), 1), t)
    across = count.run(half * sin, half)
    y = count.run(straight + across, straight, across)
    y = count.run(np.concatenate((y, x[:, :0]), 1), y)
    turned = (x[:, ::2] + 1j * x[:, 1::2]) * turn
    assert np.allclose(y, np.concatenate((turned.real, turned.imag), 1))
    assert count.of(UNFUSED["rotary"].forward)

    count = Counted(x.size)
    dhalf = count.run(dy * sin, dy)
    minus = count.run(-dhalf[:, :pairs], dhalf[:, :pairs])
    joined = count.run(np.concatenate((dhalf[:, pairs:], minus), 1), dhalf)
    straight = count.run(dy * cos, dy)
    dt = count.run(joined + straight, joined, straight)
    parts = []
    for first, of in ((0, dt[:, :pairs]), (1, dt[:, pairs:])):
        part = count.run(np.zeros_like(x))
        part[:, first::2] = of
        count.run(of, of)
        parts.append(part)
    dx = count.run(parts[0] + parts[1], *parts)
    rest = count.run(np.zeros_like(x))
    dx = count.run(dx + rest, dx, rest)
    back = (dy[:, :pairs] + 1j * dy[:, pairs:]) * turn.conj()
    assert np.allclose(dx[:, ::2], back.real)
    assert np.allclose(dx[:, 1::2], back.imag)
    assert count.of(UNFUSED["rotary"].gradient)


def test_a_step_is_longer_by_launches_and_traffic_and_does_the_same() -> None:
    def step(**fields: Any) -> rl.Result:
        plan = stacked(global_batch=2, data=2, expert=2, micro_batch=1, **fields)
        model = rl.load_model("deepseek-v2-lite", {"layers": 2})
        return rl.simulate(model, rl.load_cluster("hgx-b200"), plan)

    fused, routed = step(), step(kernels__fusion="routed")
    pieces = [UNFUSED[kind] for kind in ("rotary", "rotary", "rotary", "rotary", "top-k")]
    launches = sum(len(u.forward) + len(u.gradient) - 2 for u in pieces) * 2.15e-6
    assert launches < routed.step_time_s - fused.step_time_s < 3 * launches
    assert routed.flops_per_step == fused.flops_per_step
    assert routed.memory_bytes == fused.memory_bytes


def test_other_words_are_refused() -> None:
    with pytest.raises(rl.ConfigError, match="allowed: fused, primitive, eager, routed"):
        stacked(global_batch=1, kernels__fusion="routes")
