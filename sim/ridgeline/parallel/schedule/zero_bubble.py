"""ZB-H1: gradients of weights wait, to fill the time in which a stage would be idle.

With no more activations held than the first stage of 1F1B holds.
"""

from __future__ import annotations

from ridgeline.parallel.schedule.one_f_one_b import warm_ups
from ridgeline.parallel.schedule.slots import SlotArrays, one_forward_one_backward, schedule


def bubble_s(
    stages: int, chunks: int, forward_s: float, backward_s: float, weight_s: float
) -> float:
    """F + B - W for each stage but one, where W is not the longest (table 1); never less than F, B.

    For at least as many micro-batches as stages; fewer leave less to fill the time with.
    """
    return (stages - 1) * max(forward_s + backward_s - weight_s, forward_s, backward_s)


@schedule(
    "zero-bubble",
    source="Qi, Wan, Huang and Lin, Zero bubble pipeline parallelism, ICLR 2024, arXiv:2401.10241,"
    " section 2.1 (ZB-H1) and table 1",
    bubble_s=bubble_s,
    in_flight=lambda stage, stages, micro_batches, chunks: min(stages, micro_batches),
    splits_backward=True,
)
def zero_bubble(stages: int, micro_batches: int, chunks: int) -> SlotArrays:
    """Return 1F1B with each W as many micro-batches late as there are stages before this one."""
    return one_forward_one_backward(
        range(micro_batches), 0, 0, warm_ups(stages, micro_batches), range(stages)
    )
