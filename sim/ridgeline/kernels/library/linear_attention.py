"""Linear attention of libraries: chunks of a sequence, and the state that they hand on.

Inside a chunk are products of the matrix units; what kernels hand to each other passes memory. The
state of a head goes from chunk to chunk, so that a block that owns a part of its values takes as
many steps as there are chunks (Yang et al., 2024, arXiv:2406.06484; Dao and Gu, 2024,
arXiv:2405.21060). In generation each position is a chunk, and states come from memory and go back.

Causal convolutions before it pass over the positions of each feature. Some kernels have a block for
each feature of a sequence, however short it is, or go from sequence to sequence on the host.
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
from ridgeline.workload.ops.linear_attention import DeltaHeads

_STATE_BYTES = 4
_BYTES = 2


def chunk_work(
    sequences: int, positions: int, heads: DeltaHeads, *, step: bool
) -> dict[str, float]:
    """Return the work of a call: chunk by chunk, or position by position (`step`)."""
    return {
        "sequences": float(sequences),
        "positions": float(positions),
        "key_heads": float(heads.keys),
        "key_size": float(heads.key_size),
        "value_heads": float(heads.values),
        "value_size": float(heads.value_size),
        "per_feature": float(heads.per_feature),
        "step": float(step),
    }


def _chunks(work: Work, choices: Mapping[str, float]) -> Work:
    """Count chunks, and the waves of blocks that go through them."""
    chunk = np.where(work["step"] > 0, 1.0, choices["chunk"])
    chunks = np.ceil(work["positions"] / chunk)
    parts = np.ceil(work["value_size"] / choices["block_values"])
    blocks = work["sequences"] * work["value_heads"] * parts
    return {
        **work,
        "chunk": chunk,
        "chunks": chunks,
        "waves": np.maximum(1.0, blocks / (work["processors"] * choices["resident"])),
    }


def _linear_s(work: Work, x: Mapping[str, Floats]) -> Floats:
    tokens = work["sequences"] * work["positions"]
    keys, values = work["key_size"], work["value_size"]
    filled = work["sequences"] * work["chunks"] * work["chunk"]
    inside = 2 * work["chunk"] * (2 * keys + 2 * values)
    flops = filled * work["value_heads"] * (inside + 4 * keys * values)
    read = 2 * work["key_heads"] * keys + 2 * work["value_heads"] * values
    read = read + work["per_feature"] * work["value_heads"] * keys
    between = work["value_heads"] * (keys + values)
    states = work["sequences"] * work["value_heads"] * keys * values * _STATE_BYTES
    passed = np.where(work["step"] > 0, states * (1 + work["positions"]), 0.0)
    moved = _BYTES * tokens * read + passed
    handed = np.where(work["step"] > 0, 0.0, _BYTES * tokens * between)
    handed = handed + np.where(work["step"] > 0, 0.0, states * work["chunks"] / 2)
    all_moved = moved + x["handed"] * handed
    stays = all_moved < x["near_kept"] * work["near_bytes"]
    near, far = work["near_bps"] * x["near_share"], work["far_bps"] * x["far_share"]
    memory = all_moved / np.where(stays, np.maximum(near, far), far)
    arithmetic = flops / (work["flop_s"] * x["share"])
    chain = work["waves"] * work["chunks"] * x["chunk_cycles"] / work["clock"]
    each = tokens * work["value_heads"] * x["head_cycles"]
    return (
        np.maximum(arithmetic, memory) + chain + each / (work["processors"] * work["clock"])
    )  # fmt: skip


LINEAR = KernelModel(
    "linear-attention",
    (
        Constant("share", 0.005, 1.0, 0.2),
        Constant("far_share", 0.1, 1.0, 0.7),
        Constant("near_share", 0.05, 1.0, 0.5),
        Constant("near_kept", 0.05, 1.0, 0.5),
        Constant("handed", 0.0, 10.0, 3.0),
        Constant("chunk_cycles", 0.0, 20e3, 2e3),
        Constant("head_cycles", 0.0, 300.0, 5.0),
    ),
    (
        DiscreteConstant("chunk", (64, 128)),
        DiscreteConstant("block_values", (64, 32, 128)),
        DiscreteConstant("resident", (1, 2, 4)),
    ),
    _chunks,
    _linear_s,
)


def causal_convolution_work(
    sequences: int, positions: int, features: int, key_features: int, number_bytes: float
) -> dict[str, float]:
    """Return the work of a causal convolution.

    Parameters
    ----------
    key_features
        Those of the keys alone, which is all that some programs measured.
    """
    return {
        "sequences": float(sequences),
        "positions": float(positions),
        "all_features": float(features),
        "key_features": float(key_features),
        "bytes": 2 * number_bytes,
    }


def _features(work: Work, choices: Mapping[str, float]) -> Work:
    name = "key_features" if choices["keys_only"] else "all_features"
    return {**work, "features": work[name]}


def _convolution_s(work: Work, x: Mapping[str, Floats]) -> Floats:
    rows = work["sequences"] * work["features"]
    moved = rows * work["positions"] * work["bytes"]
    stays = moved < x["near_kept"] * work["near_bytes"]
    near, far = work["near_bps"] * x["near_share"], work["far_bps"] * x["far_share"]
    cycles = 1 / (work["processors"] * work["clock"])
    busy = rows * work["positions"] * x["element_cycles"] * cycles
    busy = np.maximum(busy, moved / np.where(stays, np.maximum(near, far), far))
    apart = work["sequences"] * x["sequence_us"] * 1e-6
    return busy + rows * x["row_cycles"] * cycles + apart + x["host_us"] * 1e-6


CAUSAL_CONVOLUTION = KernelModel(
    "causal-convolution",
    (
        Constant("far_share", 0.1, 1.05, 0.8),
        Constant("near_share", 0.05, 1.0, 0.5),
        Constant("near_kept", 0.05, 1.0, 0.5),
        Constant("element_cycles", 0.0, 4.0, 0.1),
        Constant("row_cycles", 0.0, 1e3, 20.0),
        Constant("sequence_us", 0.0, 15.0, 0.0),
        Constant("host_us", 0.0, 900.0, 0.0),  # beyond the fixed time of a call: without a graph
    ),
    (DiscreteConstant("keys_only", (0, 1)),),
    _features,
    _convolution_s,
)
