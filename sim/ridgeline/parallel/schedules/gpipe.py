"""GPipe: all forwards, then all backwards, the last micro-batch first."""

from __future__ import annotations

from ridgeline.parallel.schedules.slots import Orders, Schedule, Slot


def order(stages: int, micro_batches: int, chunks: int) -> Orders:
    """Return the same order for every stage."""
    forward = [Slot("F", i) for i in range(micro_batches)]
    backward = [Slot("B", i) for i in reversed(range(micro_batches))]
    return [forward + backward for _ in range(stages)]


SCHEDULE = Schedule(
    name="gpipe",
    source="Huang et al., GPipe, NeurIPS 2019, arXiv:1811.06965, section 2.3: a share of"
    " (K - 1) / (M + K - 1) is idle",
    order=order,
    bubble_s=lambda stages, chunks, forward_s, backward_s, weight_s: (
        (stages - 1) * (forward_s + backward_s + weight_s)
    ),
    in_flight=lambda stage, stages, micro_batches, chunks: micro_batches,
)
