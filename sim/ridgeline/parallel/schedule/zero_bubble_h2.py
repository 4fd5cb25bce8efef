"""ZB-H2: further forwards before the first backward fill the time in which a stage would be idle.

With almost twice the activations that the first stage of 1F1B holds. Its stages begin and end a
step one after the other, as wide apart as the forwards, so its bubble is that of each stage alone.
A step of a Plan is the time from one beginning of a stage to its next: stage k does k gradients of
weights of the step before first, updates its weights, and then begins. Nothing may be needed of all
stages at once in between: the paper checks sums over all gradients (norms, overflows) afterwards.
"""

from __future__ import annotations

from ridgeline.parallel.schedule.slots import SlotArrays, one_forward_one_backward, schedule


def bubble_s(
    stages: int, chunks: int, forward_s: float, backward_s: float, weight_s: float
) -> float:
    """F + B - 2 W for each stage but one, where W is not the longest (table 1); at least 0."""
    return (stages - 1) * max(forward_s + backward_s - 2 * weight_s, 0.0)


@schedule(
    "zero-bubble-h2",
    source="Qi, Wan, Huang and Lin, Zero bubble pipeline parallelism, ICLR 2024, arXiv:2401.10241,"
    " section 2.2 (ZB-H2) and table 1",
    bubble_s=bubble_s,
    in_flight=lambda stage, stages, micro_batches, chunks: min(2 * stages - 1, micro_batches),
    splits_backward=True,
    carried=lambda stage, stages, micro_batches, chunks: min(stage, micro_batches),
)
def zero_bubble_h2(stages: int, micro_batches: int, chunks: int) -> SlotArrays:
    """Return 2 (K - k) - 1 forwards, then a backward and a forward in turn, on stage k of K.

    Each W is 2 k micro-batches late. The last of these forwards and the first backward are a pair.
    """
    warm_up = [min(2 * (stages - k) - 1, micro_batches) - 1 for k in range(stages)]
    late = range(0, 2 * stages, 2)
    return one_forward_one_backward(range(micro_batches), 0, 0, warm_up, late)
