"""Interleaved 1F1B: each stage has several chunks of the model, so the pipeline fills sooner."""

from __future__ import annotations

from ridgeline.parallel.schedule.slots import SlotArrays, one_forward_one_backward, schedule


def in_flight(stage: int, stages: int, micro_batches: int, chunks: int) -> int:
    """Two for each later stage, and all micro-batches of a group in the chunks before the last."""
    return min(2 * (stages - 1 - stage) + (chunks - 1) * stages + 1, micro_batches * chunks)


@schedule(
    "interleaved",
    source="Narayanan et al., SC 2021, arXiv:2104.04473, section 2.2.2; its activations:"
    " Korthikanti et al., arXiv:2205.05198, section 4.2.3",
    bubble_s=lambda stages, chunks, forward_s, backward_s, weight_s: (
        (stages - 1) * (forward_s + backward_s + weight_s) / chunks
    ),
    in_flight=in_flight,
    interleaves=True,
)
def interleaved(stages: int, micro_batches: int, chunks: int) -> SlotArrays:
    """Return the order of every stage.

    As many micro-batches as there are stages go through chunk 0, then the same ones through chunk
    1, and so on; backward likewise from the last chunk.
    """
    import numpy as np

    i, chunk = np.arange(micro_batches).reshape(-1, 1, stages), np.arange(chunks)[:, None]
    micro_batch, chunk = (each.ravel() for each in np.broadcast_arrays(i, chunk))
    warm_up = [in_flight(stage, stages, micro_batches, chunks) - 1 for stage in range(stages)]
    return one_forward_one_backward(micro_batch, chunk, chunks - 1 - chunk, warm_up)
