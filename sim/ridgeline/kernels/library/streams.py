"""Kernels that pass over the rows of a matrix: casts, norms, softmax, elementwise functions.

A call takes its bytes at the bandwidth of memory, or of the last cache where a repeated call finds
them there; at least the cycles of its elements. Each row costs cycles of its own, and the last one
cannot be finished before a block has gone through it. Functions of whole rows read them again where
they are longer than a block keeps in registers: from the cache, or from memory where the rows of
all blocks together no longer fit there.
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


def stream_work(
    rows: int, columns: int, *, read_bytes: float, written_bytes: float, warm: bool
) -> dict[str, float]:
    """Return the work of a call.

    Parameters
    ----------
    read_bytes, written_bytes
        Of each element.
    warm
        Whether the call is repeated, so that what fits into the last cache is found there.
    """
    return {
        "rows": float(rows),
        "columns": float(columns),
        "read_bytes": read_bytes,
        "written_bytes": written_bytes,
        "warm": float(warm),
    }


def _flight(work: Work, choices: Mapping[str, float]) -> Work:
    """Count the bytes of the rows that all blocks work on, and the waves of these."""
    blocks = work["processors"] * choices["resident"]
    flying = np.minimum(work["rows"], blocks) * work["columns"] * work["read_bytes"]
    again = np.where(work["columns"] > choices["held_columns"], 1.0, 0.0)
    waves = np.ceil(work["rows"] / blocks)
    return {**work, "flying": flying, "again": again, "waves": waves}


def _stream_s(work: Work, x: Mapping[str, Floats]) -> Floats:
    elements = work["rows"] * work["columns"]
    cycles = 1 / (work["processors"] * work["clock"])
    moved = elements * (work["read_bytes"] + work["written_bytes"])
    near, far = work["near_bps"] * x["near_share"], work["far_bps"] * x["far_share"]
    stays = (work["warm"] > 0) & (moved < x["near_kept"] * work["near_bytes"])
    memory = moved / np.where(stays, np.maximum(near, far), far)
    reread = x["again"] * work["again"] * elements * work["read_bytes"]
    over = np.log2(work["flying"] / (x["flying_kept"] * work["near_bytes"])) / 2 + 0.5
    missed = np.clip(over, 0, 1)
    memory = memory + reread * (missed / far + (1 - missed) / near)
    busy = np.maximum(memory, elements * x["element_cycles"] * cycles)
    chain = work["waves"] * work["columns"] * x["chain_cycles"] / work["clock"]
    return np.maximum(busy, chain) + work["rows"] * x["row_cycles"] * cycles


STREAM = KernelModel(
    "stream",
    (
        Constant("far_share", 0.2, 1.05, 0.9),
        Constant("near_share", 0.05, 1.0, 0.5),
        Constant("near_kept", 0.05, 1.0, 0.5),
        Constant("element_cycles", 0.0, 2.0, 0.01),
        Constant("row_cycles", 0.0, 4e3, 50.0),
        Constant("chain_cycles", 0.0, 2.0, 0.05),
        Constant("again", 0.0, 3.0, 1.0),
        Constant("flying_kept", 0.05, 2.0, 0.5),
    ),
    (
        DiscreteConstant("resident", (8, 2, 16, 32)),
        DiscreteConstant("held_columns", (1e9, 1024, 512, 4096)),
    ),
    _flight,
    _stream_s,
)
