"""Graphs of single kernels: their FLOPs and bytes against counting one by one."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ridgeline.errors import RidgelineError
from ridgeline.kernels.efficiency_table import keys_of
from ridgeline.workload.expert_load import loaded_rank
from ridgeline.workload.graph import Op
from ridgeline.workload.kernel_graphs import (
    ELEMENTWISE,
    PRODUCTS,
    attention_graph,
    cast_graph,
    causal_conv_graph,
    compulsory_bytes,
    delta_rule_graph,
    elementwise_graph,
    experts_graph,
    linear_graph,
    norm_graph,
    product_formats,
    scan_graph,
    softmax_graph,
)
from ridgeline.workload.ops.attention import met_scores
from ridgeline.workload.ops.linear_attention import DeltaHeads
from ridgeline.workload.ops.state_space import StateSpaceSizes

SMALL = st.integers(1, 40)


def only(ops: tuple[Op, ...]) -> Op:
    (op,) = ops
    return op


@pytest.mark.parametrize("name", PRODUCTS)
def test_a_product_has_its_flops_in_every_format(name: str) -> None:
    formats = product_formats(name)
    graph = linear_graph(6, 32, 48, formats, batch=2)
    assert graph.flops() == 2 * 2 * 6 * 32 * 48
    assert [op.kind for op in graph.ops] == ["quantise"] * formats.quantises + ["gemm"]


def test_a_plain_product_moves_each_matrix_once() -> None:
    graph = linear_graph(3, 5, 7, product_formats("bf16"))
    assert compulsory_bytes(graph) == 2 * (3 * 7 + 5 * 7 + 3 * 5)


def test_weights_of_fewer_bits_are_stored_so_and_multiplied_as_what_they_meet() -> None:
    narrow = linear_graph(16, 64, 64, product_formats("int8-wo"))
    assert narrow.tensors["gemm.weight"].bytes == 64 * 64
    assert narrow.tensors[only(narrow.ops).inputs[0]].format == "bf16"
    four = linear_graph(16, 64, 64, product_formats("int4-wo"))
    assert four.tensors["gemm.weight"].bytes == 64 * 64 // 2 + 64 * 64 // 16 + 4


def test_an_unknown_format_names_the_nearest() -> None:
    with pytest.raises(RidgelineError, match="did you mean 'fp8-block'"):
        product_formats("fp8-blok")


def scores(rows: int, columns: int, window: int) -> list[tuple[int, int]]:
    """Return every (query, key) that a causal mask and a window leave, one by one."""
    behind = columns - rows
    return [
        (i, j)
        for i, j in itertools.product(range(rows), range(columns))
        if j <= i + behind and (not window or j > i + behind - window)
    ]


@given(SMALL, SMALL, st.integers(0, 50))
@settings(max_examples=60)
def test_the_scores_that_attention_meets_are_counted_exactly(
    rows: int, more: int, window: int
) -> None:
    columns = rows + more
    if rows == 1:
        rows, columns = 2, columns + 1
    graph = attention_graph(1, 4, 2, 8, rows, columns, causal=True, window=window)
    expected = len(scores(rows, columns, window))
    assert met_scores(only(graph.ops)) * rows * columns == pytest.approx(expected)


@given(st.integers(1, 40), st.integers(0, 48))
@settings(max_examples=60)
def test_tiles_of_keys_of_a_window_are_those_that_it_touches(tiles: int, window: int) -> None:
    """Windows of whole tiles: the last query of a tile reaches back by as many, and its own."""
    length, reach = tiles * 128, window * 128
    graph = attention_graph(1, 1, 1, 64, max(length, 2), max(length, 2), causal=True, window=reach)
    met = [min(i + 1, window + 1) if window else i + 1 for i in range(tiles)]
    assert keys_of(only(graph.ops)).met == pytest.approx(sum(met) / tiles)


def test_a_window_as_long_as_the_keys_is_none() -> None:
    plain = attention_graph(2, 4, 2, 8, 64, 64, causal=True)
    assert attention_graph(2, 4, 2, 8, 64, 64, causal=True, window=64).ops == plain.ops
    with pytest.raises(RidgelineError, match="causal"):
        attention_graph(2, 4, 2, 8, 64, 64, causal=False, window=3)


def test_generation_reads_the_part_of_the_cache_that_its_window_reaches() -> None:
    graph = attention_graph(3, 8, 2, 16, 1, 100, causal=True, window=10, kv_format="fp8-e4m3")
    op = only(graph.ops)
    assert not op.causal
    assert op.matrix_flops == 3 * 8 * 10 * (2 * 16 + 2 * 16)
    assert graph.tensors["K"].bytes == 3 * 10 * 2 * 16


def test_attention_has_four_flops_for_each_feature_of_each_score() -> None:
    graph = attention_graph(2, 6, 3, 16, 32, 64, causal=False)
    assert graph.flops() == 2 * 6 * 32 * 64 * 4 * 16
    moved = 2 * (2 * 32 * 6 * 16 + 2 * 2 * 64 * 3 * 16)  # queries, results; keys and values
    assert compulsory_bytes(graph) == moved + 2 * 32 * 6 * 16 * 2 + 4 * 2 * 6 * 32


@pytest.mark.parametrize("gated", [True, False])
def test_experts_do_two_or_three_products_a_row(gated: bool) -> None:
    graph = experts_graph(24, 4, 8, 32, 16, product_formats("bf16"), gated=gated)
    assert graph.flops() == 24 * 2 * 32 * 16 * (3 if gated else 2)
    kinds = [op.kind for op in graph.ops]
    assert kinds[0] == "dispatch"
    assert kinds[-1] == "combine"


def test_experts_without_rows_are_refused() -> None:
    with pytest.raises(RidgelineError, match="rows"):
        experts_graph(3, 4, 8, 32, 16, product_formats("bf16"))


@given(
    st.integers(1, 300),
    st.sampled_from([(8, 2), (64, 8), (256, 16)]),
    st.integers(1, 4),
    st.sampled_from(["balanced", "power_law_1.01", "power_law_1.2", "power_law_1"]),
)
@settings(max_examples=60, deadline=None)
def test_the_fullest_rank_has_at_least_its_share(
    tokens: int, shape: tuple[int, int], top_k: int, spread: str
) -> None:
    experts, ranks = shape
    found = loaded_rank(tokens, experts, top_k, ranks, spread)
    share = tokens * top_k / ranks
    assert 1 <= found.active <= min(found.rows, experts // ranks)
    if spread == "balanced":
        assert abs(found.rows - share) <= 1
    else:  # rounding of every expert's load may lose half a row each
        assert found.rows >= share - experts / ranks
        assert found.rows <= tokens * top_k + experts


def test_loads_need_a_known_distribution_and_whole_experts() -> None:
    with pytest.raises(RidgelineError, match="did you mean 'balanced'"):
        loaded_rank(8, 8, 2, 2, "balance")
    with pytest.raises(RidgelineError, match="cannot share"):
        loaded_rank(8, 8, 2, 3)


@pytest.mark.parametrize("op", ELEMENTWISE)
def test_elementwise_functions_move_what_the_table_says(op: str) -> None:
    graph = elementwise_graph(op, 6, 5)
    tensors = 3 if op in {"add", "mul", "div", "pow"} else 2
    assert compulsory_bytes(graph) == 4 * tensors * 30
    assert only(graph.ops).vector_flops >= 30


def test_norm_softmax_and_cast_read_and_write_once() -> None:
    assert compulsory_bytes(softmax_graph(6, 5)) == 4 * 2 * 30
    norm = norm_graph(6, 5)
    assert compulsory_bytes(norm) == 4 * 2 * 30 + 2 * 2 * 5 + 2 * 4 * 6  # weights, statistics
    assert compulsory_bytes(cast_graph(6, 5, "bf16", "fp8-e4m3")) == 30 * 3


def test_a_causal_convolution_has_two_flops_a_tap() -> None:
    graph = causal_conv_graph(2, 5, 7, 4)
    op = only(graph.ops)
    assert op.vector_flops == 2 * 5 * 7 * (2 * 4 + 6)
    assert compulsory_bytes(graph) == 2 * (2 * (2 * 5 * 7) + 2 * (2 * 3 * 7)) + 2 * 7 * 4


def delta_macs(positions: int, heads: DeltaHeads) -> int:
    """Count the multiply-accumulates of whole chunks, product by product."""
    macs, c = 0, heads.chunk
    for _ in range(positions // c):
        for _ in range(heads.values):
            macs += c * c * heads.key_size  # K K'
            macs += c * c * c // 3  # its inverse
            macs += c * c * (heads.key_size + heads.value_size)  # T K, T V
            macs += c * heads.key_size * heads.value_size  # W S
            macs += c * c * heads.key_size  # Q K'
            macs += c * heads.key_size * heads.value_size  # Q S
            macs += c * c * heads.value_size  # (Q K') U
            macs += c * heads.key_size * heads.value_size  # K' U
    return macs


@given(st.integers(1, 4), st.sampled_from([(2, 4, 32, 64), (4, 4, 128, 128)]))
@settings(max_examples=20)
def test_the_products_of_a_chunked_delta_rule_are_all_counted(
    chunks: int, shape: tuple[int, int, int, int]
) -> None:
    keys, values, key_size, value_size = shape
    heads = DeltaHeads(keys, key_size, values, value_size)
    graph = delta_rule_graph(1, 64 * chunks, heads)
    expected = 2 * delta_macs(64 * chunks, heads)
    assert graph.flops() >= expected
    assert graph.flops() == pytest.approx(expected, rel=1e-2)  # a rank is a whole number


def test_a_step_of_the_delta_rule_reads_states_once_and_writes_each() -> None:
    heads = DeltaHeads(2, 16, 4, 32)
    state = 3 * 4 * 16 * 32
    one, two = (delta_rule_graph(3, n, heads, step=True) for n in (1, 2))
    assert only(one.ops).vector_flops == 7 * state
    assert only(two.ops).vector_flops == 2 * 7 * state
    extra = compulsory_bytes(two) - compulsory_bytes(one)
    assert extra == 4 * state + 2 * 3 * (2 * 2 * 16 + 2 * 4 * 32)


def test_heads_of_values_share_heads_of_keys() -> None:
    with pytest.raises(RidgelineError, match="heads of keys"):
        delta_rule_graph(1, 64, DeltaHeads(3, 16, 4, 16))


def test_a_scan_grows_with_its_positions() -> None:
    sizes = StateSpaceSizes(heads=8, size=16, groups=2, state=32, chunk=64)
    short, long = (scan_graph(2, n, sizes) for n in (128, 256))
    assert long.flops() == 2 * short.flops()
    assert compulsory_bytes(long) > compulsory_bytes(short)


def test_a_call_over_a_cache_writes_new_keys_and_quantises_queries() -> None:
    """Of 3 new positions of 40: keys and values of 2 heads, queries of 4, 16 features each."""
    shape = (2, 4, 2, 16, 3, 40)
    bare = attention_graph(*shape, causal=True, format="fp8-e4m3")
    called = attention_graph(*shape, causal=True, format="fp8-e4m3", projected="bf16")
    write, quantise, *rest = called.ops
    assert [op.kind for op in rest] == [op.kind for op in bare.ops]
    assert called.read_bytes(write) == 2 * (2 * 3 * 2 * 2 * 16)
    assert called.write_bytes(write) == 2 * 3 * 2 * 2 * 16
    assert called.read_bytes(quantise) == 2 * (2 * 3 * 4 * 16)
    assert called.write_bytes(quantise) == 2 * 3 * 4 * 16
    wide = attention_graph(*shape, causal=True, projected="bf16")
    assert len(wide.ops) == len(bare.ops) + 1
