"""Fused attention of libraries: many queries in tiles, or one query over split keys.

Prefill and encoders. A thread block has a tile of queries of one head and goes through the tiles of
keys that mask and window leave. Each costs its two products at a share of the processor's rate, and
its exponentials; where these overlap, the longer of both. Blocks are handed out to processors: the
call takes the longest block, or all work over all processors with a part of an unfilled last wave.
Kernels that pack the query heads of one head of keys have a row of a tile for each of them.

Generation. A block has the query heads of one head of keys of a sequence, or a part of its keys
where there are processors left; partial results are then combined by a second pass. A processor
reads so many bytes a cycle at most, all together the bandwidth of memory, or of the last cache
where a repeated call finds its keys there.

One core with a matrix and a vector unit (TPU) takes sequences of a paged cache one after the other:
rows of queries are filled up to a tile, and each score costs vector operations.

Over a cache, new keys and values are put there first, and queries are quantised that are multiplied
in 8 bits: bytes, and cycles for each token.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from ridgeline.kernels.library.kernel_model import (
    Constant,
    DiscreteConstant,
    Floats,
    KernelModel,
    Work,
)

SHAPE = ("batch", "heads", "kv_heads", "head_dim", "seq_q", "seq_kv", "window")
_WIDE = 128  # features of a head beyond which tiles no longer fit registers and shared memory
_GRANULE = 16  # features that an instruction multiplies at a time
_OUTPUT_BYTES = 2
_PROJECTED_BYTES = 2


def attention_work(
    shape: Mapping[str, int], *, causal: bool, cached: bool, q_bytes: float, kv_bytes: float
) -> dict[str, float]:
    """Return the work of a call.

    Parameters
    ----------
    shape
        By `SHAPE`; window 0: none.
    cached
        Whether new keys and values are put into a cache first.
    """
    return {
        **{name: float(shape[name]) for name in SHAPE},
        "causal": float(causal),
        "cached": float(cached),
        "q_bytes": q_bytes,
        "kv_bytes": kv_bytes,
    }


def _tiles(work: Work, choices: Mapping[str, float]) -> Work:
    """Count the tiles of keys of a head's blocks, those of the longest, and the blocks."""
    rows, keys = int(choices["tile_rows"]), int(choices["tile_keys"])
    found = []
    for queries, kv, window, causal, group in zip(
        work["seq_q"], work["seq_kv"], work["window"], work["causal"],
        work["heads"] / work["kv_heads"], strict=True,
    ):  # fmt: skip
        packed = int(group) if choices["packs"] else 1
        blocks = -(-int(queries) * packed // rows)
        first_row = np.arange(blocks) * rows
        first = kv - queries + first_row // packed
        last = kv - queries + np.minimum((first_row + rows - 1) // packed + 1, queries)
        end = np.ceil((last if causal else np.full(blocks, kv)) / keys)
        begin = np.zeros(blocks)
        if window and choices["skips"]:
            begin = np.maximum(0, first - window + 1) // keys
        met = end - begin
        found.append((met.sum() / packed, met.max(), blocks / packed))
    total, longest, blocks_ = np.array(found).T
    return {
        **work,
        "tiles": total,
        "longest": longest,
        "blocks": blocks_,
        "tile": np.full(len(total), float(rows * keys)),
    }


def _prefill_s(work: Work, x: Mapping[str, Floats]) -> Floats:
    rate = work["flop_s"] / work["processors"] * x["share"]
    wide = 1 + x["wide"] * (work["head_dim"] > _WIDE)
    odd = 1 + x["odd"] * (work["head_dim"] % _GRANULE > 0)
    products = 4 * work["tile"] * work["head_dim"] / rate * wide * odd
    softmax = work["tile"] * x["softmax_cycles"] / work["clock"]
    tile = np.maximum(products, softmax) + (1 - x["overlap"]) * np.minimum(products, softmax)
    ends = x["block_cycles"] / work["clock"]
    heads = work["batch"] * work["heads"]
    blocks = heads * work["blocks"]
    mean = heads * (work["tiles"] * tile + work["blocks"] * ends) / work["processors"]
    longest = work["longest"] * tile + ends
    waves = np.ceil(blocks / work["processors"]) * work["processors"] / blocks
    several = np.maximum(longest, mean * (1 + x["tail"] * (waves - 1)))
    kernel = np.where(blocks <= work["processors"], longest, several)
    queries = work["batch"] * work["seq_q"] * work["heads"] * work["head_dim"]
    keys = 2 * work["batch"] * work["seq_kv"] * work["kv_heads"] * work["head_dim"]
    moved = queries * (work["q_bytes"] + _OUTPUT_BYTES) + keys * work["kv_bytes"]
    kernel = np.maximum(kernel, moved / (work["far_bps"] * x["far_share"]))
    put = keys * (_PROJECTED_BYTES + work["kv_bytes"])
    put = put + queries * (_PROJECTED_BYTES + 1) * (work["q_bytes"] < _PROJECTED_BYTES)
    tokens = work["batch"] * work["seq_q"] * x["token_cycles"]
    before = put / (work["far_bps"] * x["cache_share"])
    before = before + tokens / (work["processors"] * work["clock"])
    return kernel + work["cached"] * before


PREFILL = KernelModel(
    "attention-prefill",
    (
        Constant("share", 0.02, 1.0, 0.6),
        Constant("softmax_cycles", 0.01, 2.0, 0.0625),
        Constant("overlap", 0.0, 1.0, 0.7),
        Constant("block_cycles", 0.0, 40e3, 2e3),
        Constant("tail", 0.0, 1.0, 0.3),
        Constant("far_share", 0.2, 1.0, 0.8),
        Constant("cache_share", 0.05, 1.0, 0.8),
        Constant("token_cycles", 0.0, 3e3, 100.0),
        Constant("wide", 0.0, 1.5, 0.1),
        Constant("odd", 0.0, 4.0, 0.1),
    ),
    (
        DiscreteConstant("tile_rows", (128, 64, 16)),
        DiscreteConstant("tile_keys", (64, 128, 32)),
        DiscreteConstant("packs", (0, 1)),
        DiscreteConstant("skips", (1, 0)),
    ),
    _tiles,
    _prefill_s,
)


def _parts(work: Work, choices: Mapping[str, float]) -> Work:
    """Count blocks, the parts that keys are split into, and the tiles of a part."""
    group = work["heads"] / work["kv_heads"]
    window = np.where(work["window"] > 0, work["window"], work["seq_kv"])
    keys = np.minimum(window, work["seq_kv"]) if choices["skips"] else work["seq_kv"]
    single = group > choices["most_packed"]  # each head for itself
    together = np.where(single, 1.0, choices["packed_heads"])
    blocks = work["batch"] * work["kv_heads"] * np.ceil(group / together)
    tiles = np.ceil(keys / choices["tile_keys"])
    slots = work["processors"] * choices["resident"]
    parts = np.ones_like(blocks)
    if choices["least_tiles"]:
        able = np.ceil(tiles / choices["least_tiles"])
        parts = np.minimum(np.maximum(1, np.floor(slots / blocks)), able)
        if choices["splits_groups_only"]:
            parts = np.where(group > 1, parts, 1.0)
    return {
        **work,
        "keys": keys,
        "single": single.astype(np.float64),
        "parts": parts,
        "length": np.ceil(tiles / parts) * choices["tile_keys"],
        "waves": np.maximum(1, blocks * parts / slots),
        "whole": tiles * choices["tile_keys"],
        "whole_waves": np.maximum(1, blocks / slots),
    }


def _decode_s(work: Work, x: Mapping[str, Floats]) -> Floats:
    wide = 1 + x["wide"] * (work["head_dim"] > _WIDE)
    ends = np.where(work["single"] > 0, x["single_cycles"], x["block_cycles"])
    key_cycles = work["head_dim"] * 2 * work["kv_bytes"] / x["bytes_per_cycle"] * wide
    blocks = (work["length"] * key_cycles + ends) / work["clock"] * work["waves"]
    whole = (work["whole"] * key_cycles + ends) / work["clock"] * work["whole_waves"]
    heads = work["batch"] * work["heads"] * work["head_dim"]
    moved = work["batch"] * work["keys"] * 2 * work["kv_heads"] * work["head_dim"]
    moved = moved * work["kv_bytes"] + heads * 2 * _OUTPUT_BYTES
    stays = moved < x["near_kept"] * work["near_bytes"]
    near, far = work["near_bps"] * x["near_share"], work["far_bps"] * x["far_share"]
    memory = moved / np.where(stays, np.maximum(near, far), far)
    tokens = work["batch"] * x["token_cycles"] / (work["processors"] * work["clock"])
    split = np.maximum(blocks, memory) + x["combine_us"] * 1e-6 * (work["parts"] > 1)
    return np.minimum(split, np.maximum(whole, memory)) + tokens


DECODE = KernelModel(
    "attention-decode",
    (
        Constant("bytes_per_cycle", 2.0, 200.0, 30.0),
        Constant("far_share", 0.2, 1.0, 0.8),
        Constant("near_share", 0.1, 1.0, 0.5),
        Constant("near_kept", 0.1, 1.0, 0.5),
        Constant("combine_us", 0.0, 10.0, 2.0),
        Constant("block_cycles", 0.0, 20e3, 2e3),
        Constant("single_cycles", 0.0, 60e3, 3e3),
        Constant("token_cycles", 0.0, 3e3, 100.0),
        Constant("wide", 0.0, 2.0, 0.1),
    ),
    (
        DiscreteConstant("tile_keys", (64, 128)),
        DiscreteConstant("least_tiles", (1, 4, 0)),
        DiscreteConstant("packed_heads", (64, 16, 1, 8, 32)),
        DiscreteConstant("resident", (1, 2, 4)),
        DiscreteConstant("splits_groups_only", (0, 1)),
        DiscreteConstant("most_packed", (1024, 32, 16)),
        DiscreteConstant("skips", (1, 0)),
    ),
    _parts,
    _decode_s,
)


def _systolic_s(work: Work, x: Mapping[str, Floats]) -> Floats:
    scores = work["tiles"] * work["tile"] * work["heads"]
    softmax = scores * x["score_flops"] / work["vector_flop_s"]
    products = scores * 4 * work["head_dim"] / (work["flop_s"] * x["share"])
    keys = 2 * work["seq_kv"] * work["kv_heads"] * work["head_dim"] * work["kv_bytes"]
    each = np.maximum(np.maximum(softmax, products), keys / (work["far_bps"] * x["far_share"]))
    return work["batch"] * (x["sequence_us"] * 1e-6 + each)


SYSTOLIC = KernelModel(
    "attention-systolic",
    (
        Constant("score_flops", 1.0, 100.0, 20.0),
        Constant("share", 0.02, 1.0, 0.3),
        Constant("far_share", 0.1, 1.0, 0.8),
        Constant("sequence_us", 0.0, 20.0, 2.0),
    ),
    (
        DiscreteConstant("tile_rows", (32, 16, 64, 128)),
        DiscreteConstant("tile_keys", (32, 128, 256)),
        DiscreteConstant("packs", (0, 1)),
        DiscreteConstant("skips", (1,)),
    ),
    _tiles,
    _systolic_s,
)
