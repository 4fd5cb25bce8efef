"""Patterns of zeros: how they are written, what they leave to store, and how they spread."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ridgeline.errors import ConfigError
from ridgeline.workload import Pass, Role, load_model
from ridgeline.workload.sparsity import Sparsity, n_of_m, parse
from ridgeline.workload.zeros import densities, with_zeros

sizes = st.integers(1, 200)
shares = st.floats(0.01, 1.0)
bit_widths = st.sampled_from([8, 16, 32])


@st.composite
def patterns(draw: st.DrawFn) -> Sparsity:
    kind = draw(st.sampled_from(["unstructured", "block", "activation", "n:m"]))
    if kind == "n:m":
        of = draw(st.integers(1, 16))
        return n_of_m(draw(st.integers(1, of)), of)
    block = (draw(st.integers(1, 32)), draw(st.integers(1, 32))) if kind == "block" else (1, 1)
    return Sparsity(kind, draw(shares), block=block)


@given(patterns())
def test_a_pattern_is_read_from_what_it_prints(pattern: Sparsity) -> None:
    again = parse(str(pattern))
    assert again is not None
    assert (again.kind, again.group, again.block) == (pattern.kind, pattern.group, pattern.block)
    assert again.density == pytest.approx(pattern.density, rel=1e-5)


def test_the_parts_say_the_same_as_the_text() -> None:
    assert parse(None) is None
    assert parse("none") is None
    assert parse((2, 4)) == parse("2:4") == n_of_m(2, 4)
    assert parse(None, 0.3) == parse("unstructured 0.3")
    assert parse(None, 0.3, "activation") == parse("activation 0.3")
    assert parse(None, 0.1, block="8x4") == parse("block 8x4 0.1") == parse(None, 0.1, block=(8, 4))


@pytest.mark.parametrize(
    ("given_", "said"),
    [
        (("4:2",), "1 <= N <= M"),
        (("0:0",), "1 <= N <= M"),
        (("blok 8x8 0.1",), "cannot read"),
        (("unstructurd 0.1",), "did you mean 'unstructured'"),
        (("unstructured 1.5",), "at most 1"),
        (("unstructured 0",), "above 0"),
        (("block 8 0.1",), "rows x columns"),
        (("2:4", 0.3), "either a pattern or a density"),
        ((None, None, "block"), "needs a density"),
        ((None, 0.3, "block"), "block size"),
        ((None, 0.5, "n:m"), "such as 2:4"),
        (((1, 2, 3),), "cannot read"),
    ],
)
def test_what_cannot_be_read_is_an_error(given_: tuple[object, ...], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        parse(*given_)  # type: ignore[arg-type]


# storage


@given(patterns(), sizes, sizes, bit_widths)
def test_nothing_takes_more_room_than_when_dense(s: Sparsity, k: int, n: int, bits: int) -> None:
    stored = s.stored(k, n, bits)
    assert 0 <= stored.total <= k * n * bits
    assert stored.element_bits >= s.nonzeros(k, n) * bits * (1 - 1e-12)
    if s.density == 1:
        assert stored == (k * n * bits, 0)


@given(patterns(), sizes, sizes, bit_widths, shares)
def test_fewer_non_zeros_never_take_more_room(
    s: Sparsity, k: int, n: int, bits: int, other: float
) -> None:
    if s.kind == "n:m":
        of = s.group[1]
        kept = max(1, round(other * of))
        fewer, more = sorted((s, n_of_m(kept, of)), key=lambda each: each.group[0])
    else:
        changed = Sparsity(s.kind, other, block=s.block)
        fewer, more = sorted((s, changed), key=lambda each: each.density)
    assert fewer.stored(k, n, bits).total <= more.stored(k, n, bits).total * (1 + 1e-12)


@settings(max_examples=50)
@given(st.integers(1, 60), st.integers(1, 30), st.integers(0, 2**32 - 1))
def test_encodings_are_counted_on_real_matrices(k: int, n: int, seed: int) -> None:
    """The two encodings of a matrix with exactly this many non-zeros, element by element."""
    random = np.random.default_rng(seed)
    matrix = random.random((k, n)) < random.random()
    if not matrix.any():
        return
    bits = 16
    bitmap = matrix.sum() * bits + matrix.size
    coordinates = [(i, j) for j in range(n) for i in range(k) if matrix[i, j]]
    columns = len(coordinates) * (bits + max(1, math.ceil(math.log2(k)))) + 32 * (n + 1)
    stored = Sparsity("unstructured", float(matrix.mean())).stored(k, n, bits)
    assert stored.total == pytest.approx(min(bitmap, columns, matrix.size * bits))


@given(st.integers(1, 200), st.integers(1, 12), st.data())
def test_n_of_m_keeps_the_most_of_every_group(k: int, of: int, data: st.DataObject) -> None:
    kept = data.draw(st.integers(1, of))
    most = sum(min(kept, len(range(first, min(first + of, k)))) for first in range(0, k, of))
    assert n_of_m(kept, of).compressed(k) == most


def test_two_of_four_takes_two_bits_an_element() -> None:
    stored = n_of_m(2, 4).stored(64, 64, 16)
    assert stored == (64 * 64 * 16 / 2, 64 * 64 * 2 / 2)


# densities in a network


def test_densities_follow_the_zeros_of_a_real_pass() -> None:
    """ReLU, max pooling of it, and the way back, counted on random numbers."""
    model = load_model("lenet5", {"relu_density": 0.5})
    assert with_zeros(model.forward(1), None, 1.0).tensors == model.forward(1).tensors
    random = np.random.default_rng(5)
    x = np.maximum(random.standard_normal((200, 200)), 0)  # half of it zero
    windows = x.reshape(100, 2, 100, 2).transpose(0, 2, 1, 3).reshape(100, 100, 4)
    pooled = windows.max(axis=-1)
    back = np.zeros_like(windows)
    np.put_along_axis(back, windows.argmax(axis=-1)[..., None], 1.0, axis=-1)
    counted = {"relu": (x > 0).mean(), "pool": (pooled > 0).mean(), "back": (back != 0).mean()}
    graph = load_model("vgg16").training(1)
    found = densities(graph, 0.5)
    forward = {op.kind: op for op in graph.ops if op.pass_ is Pass.FORWARD}
    assert found[forward["relu"].outputs[0]] == pytest.approx(counted["relu"], abs=0.02)
    pool = next(op for op in graph.ops if op.kind == "max-pool" and op.pass_ is Pass.FORWARD)
    assert found[pool.outputs[0]] == pytest.approx(counted["pool"], abs=0.02)
    ups = [op for op in graph.ops if op.kind == "max-pool" and op.pass_ is Pass.INPUT_GRADIENT]
    assert ups
    for up in ups:
        expected = counted["back"] * found.get(up.inputs[0], 1.0)
        assert found[up.outputs[0]] == pytest.approx(expected, abs=0.01)
    for op in graph.ops:
        if op.kind == "relu" and op.pass_ is Pass.INPUT_GRADIENT:
            dy, y = (found.get(name, 1.0) for name in op.inputs)
            assert found[op.outputs[0]] == pytest.approx(dy * y)


def test_only_operands_of_contractions_carry_zeros() -> None:
    graph = load_model("vgg16", {"weight_sparsity": "2:4", "relu_density": 0.5}).training(1)
    read = {name for op in graph.ops if op.loops is not None for name in op.inputs[:2]}
    for tensor in graph.tensors.values():
        if tensor.sparsity is not None:
            assert tensor.name in read
            is_weight = tensor.role in {Role.WEIGHT, Role.WEIGHT_COPY}
            assert str(tensor.sparsity) == "2:4" if is_weight else tensor.sparsity.density < 1
    assert any("zeros assumed: weights 2:4" in note for note in graph.notes)
    dense = load_model("vgg16").training(1)
    assert graph.flops() == dense.flops()
    assert not any(tensor.sparsity for tensor in dense.tensors.values())


@pytest.mark.parametrize(
    ("field", "value", "said"),
    [
        ("weight_sparsity", "2;4", "cannot read the sparsity"),
        ("weight_sparsity", "activation 0.5", "give relu_density"),
        ("relu_density", 0, "greater than 0"),
    ],
)
def test_a_model_with_wrong_zeros_is_refused(field: str, value: object, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        load_model("lenet5", {field: value})
