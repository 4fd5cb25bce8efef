"""1F1B: as few forwards as keep the later stages busy, then one forward, one backward."""

from __future__ import annotations

from ridgeline.parallel.schedule.slots import SlotArrays, one_forward_one_backward, schedule


def warm_ups(stages: int, micro_batches: int) -> list[int]:
    """Return the forwards of every stage before its pairs."""
    return [min(stages - 1 - stage, micro_batches) for stage in range(stages)]


def further_ahead(stages: int, micro_batches: int, ahead: int) -> SlotArrays:
    """Return the order of stages that do so many more forwards before their pairs.

    They are the first ones of a longer pipeline, whose other stages have plans of their own.
    """
    counts = [min(count + ahead, micro_batches) for count in warm_ups(stages, micro_batches + 1)]
    return one_forward_one_backward(range(micro_batches), 0, 0, counts)


def in_flight(stage: int, stages: int, micro_batches: int, chunks: int) -> int:
    """As many as there are stages from this one on."""
    return min(stages - stage, micro_batches)


def bubble_s(
    stages: int, chunks: int, forward_s: float, backward_s: float, weight_s: float
) -> float:
    """Fill and drain the pipeline."""
    return (stages - 1) * (forward_s + backward_s + weight_s)


@schedule(
    "1f1b",
    source="Narayanan et al., Efficient large-scale language model training on GPU clusters, SC"
    " 2021, arXiv:2104.04473, section 2.2.1 (PipeDream-Flush)",
    bubble_s=bubble_s,
    in_flight=in_flight,
)
def one_f_one_b(stages: int, micro_batches: int, chunks: int) -> SlotArrays:
    """Return the order of every stage; the first has stages - 1 forwards before the pairs."""
    return one_forward_one_backward(range(micro_batches), 0, 0, warm_ups(stages, micro_batches))
