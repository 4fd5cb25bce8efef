"""GPipe: all forwards, then all backwards, the last micro-batch first."""

from __future__ import annotations

from ridgeline.parallel.schedule.slots import SlotArrays, schedule


@schedule(
    "gpipe",
    source="Huang et al., GPipe, NeurIPS 2019, arXiv:1811.06965, section 2.3: a share of"
    " (K - 1) / (M + K - 1) is idle",
    bubble_s=lambda stages, chunks, forward_s, backward_s, weight_s: (
        (stages - 1) * (forward_s + backward_s + weight_s)
    ),
    in_flight=lambda stage, stages, micro_batches, chunks: micro_batches,
)
def gpipe(stages: int, micro_batches: int, chunks: int) -> SlotArrays:
    """Return the same order for every stage."""
    import numpy as np

    n, i = 2 * micro_batches, np.arange(micro_batches, dtype=np.int32)
    return SlotArrays(
        np.arange(stages + 1) * n,
        np.tile(np.repeat(np.array((0, 1), np.uint8), micro_batches), stages),
        np.tile(np.concatenate((i, i[::-1])), stages),
        np.zeros(stages * n, np.int32),
    )
