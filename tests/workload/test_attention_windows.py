"""Attention to a part of the keys: windows, chunks, sinks and chosen keys."""

import numpy as np
import pytest

import ridgeline as rl
from ridgeline.errors import ConfigError
from ridgeline.kernels.pricing import unmasked
from ridgeline.parallel.sharding.divide import ShardingSpec, divide
from ridgeline.workload import ops
from ridgeline.workload.builder import GraphBuilder
from ridgeline.workload.numerics import find
from ridgeline.workload.ops.attention import met_scores

LAYER = {
    "layers": 2, "hidden": 64, "vocabulary": 32, "feed_forward.width": 64, "dataset": "",
    "mixture.experts": 4, "mixture.width": 32, "published": {},
}  # fmt: skip


def attention(rows, columns, **masks):
    b = GraphBuilder("attention", 1, find("fp32"))
    q, k = (b.input(name, (1, n, 8)) for name, n in (("q", rows), ("k", columns)))
    v = b.input("v", (1, columns, 8))
    ops.flash_attention(b, "flash", q, k, v, 2, 2, scale=1.0, **masks)
    return b.ops[-1]


def seen(rows, columns, causal, window=0, chunk=0):
    """Enumerate which keys each query meets; queries are the last ones of the positions."""
    i, j = np.arange(columns - rows, columns)[:, None], np.arange(columns)
    met = (j <= i) if causal else np.ones((rows, columns), bool)
    if window:
        met = met & (j > i - window)
    if chunk:
        met = met & (i // chunk == j // chunk)
    return met


def test_scores_of_windows_and_chunks_are_those_that_are_met():
    rng = np.random.default_rng(7)
    for _ in range(300):
        columns, size = int(rng.integers(1, 40)), int(rng.integers(1, 50))
        mask = str(rng.choice(["window", "chunk"]))
        causal = mask == "window" or bool(rng.integers(2))
        rows = int(rng.integers(1, columns + 1)) if causal else columns
        op = attention(rows, columns, causal=causal, **{mask: size})
        met = seen(rows, columns, causal, **{mask: size})
        if size < columns:  # else it hides nothing that the causal mask does not hide
            assert met_scores(op) * rows * columns == pytest.approx(met.sum())
            assert op.met_share == pytest.approx(met.mean())
        else:
            assert op.met_share == 1


@pytest.mark.parametrize("mask", ["window", "chunk"])
def test_the_cost_of_long_sequences_is_linear_in_the_window(mask):
    whole, flops, tiles = 65536, [], []
    for size in (1024, 2048, 4096):
        fields = {"attention.kernel": "flash", "attention.window": 0, "sequence": whole}
        fields[f"attention.{mask}"] = size
        model = rl.load_model("gpt-oss-20b", {**LAYER, "attention.full_every": 0, **fields})
        graph = model.training(1)
        of = [op for op in graph.ops if op.kind == "flash-attention"]
        flops.append(sum(op.matrix_flops * op.met_share for op in of))
        tiles.append(sum(op.matrix_flops * unmasked(op) for op in of))
        counted = graph.flops() + graph.recomputed_flops
        assert counted - sum(op.matrix_flops for op in graph.ops if op not in of) == pytest.approx(
            flops[-1], rel=0.3
        )
    for costs in (flops, tiles):
        assert costs[1] / costs[0] == pytest.approx(2, rel=0.1)
        assert costs[2] / costs[1] == pytest.approx(2, rel=0.1)


def test_every_so_many_layers_are_full():
    model = rl.load_model(
        "gpt-oss-20b",
        {**LAYER, "layers": 5, "attention.kernel": "flash", "attention.window": 16,
         "attention.full_every": 2, "sequence": 64},
    )  # fmt: skip
    shares = [op.met_share for op in model.forward(1).ops if op.kind == "flash-attention"]
    assert [share == 1 for share in shares] == [False, True, False, True, False]


def test_a_ring_refuses_windows():
    fields = {"layers": 2, "attention.kernel": "flash", "attention.window": 256}
    graph = rl.load_model("gemma3-1b", fields).training(1)
    assert divide(graph, ShardingSpec(context=8)).graph.flops() > 0
    with pytest.raises(ConfigError, match=r"window or chunk.*all-gather"):
        divide(graph, ShardingSpec(context=8, ring=True))
