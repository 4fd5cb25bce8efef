"""A collective of gradients as a software stack sends it: in buckets."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from ridgeline.errors import RidgelineError
from ridgeline.network.collectives import CollectiveResult
from ridgeline.software.stack import Stack

SUMS = ("all-reduce", "reduce-scatter")
"""Collectives that sum gradients, of which alone a stack says how they are sent."""


def in_buckets(
    stack: Stack, op: str, size_bytes: float, priced: Callable[[float], CollectiveResult]
) -> tuple[CollectiveResult, int]:
    """Price gradients that a stack sums in buckets, one after the other, with nothing beside them.

    Buckets have at least ``gradients.bucket`` and ``gradients.bucket_per_rank`` for each rank. What
    else a stack says is of a step, not of its collectives: what they overlap, what they slow.

    Parameters
    ----------
    priced
        Prices a collective of so many bytes.

    Returns
    -------
    tuple
        What all take together, and how many there are.

    Raises
    ------
    RidgelineError
        Of another collective than sums.
    """
    if op not in SUMS:
        raise RidgelineError(
            f"a software stack says how gradients are summed ({', '.join(SUMS)}), nothing of {op}"
        )
    ranks = priced(size_bytes).n_ranks
    bucket = max(stack.gradients.bucket, stack.gradients.bucket_per_rank * ranks, 1.0)
    count = max(int(size_bytes // bucket), 1)
    one = priced(size_bytes / count)
    together = replace(
        one, size_bytes=size_bytes, time_s=one.time_s * count, energy_j=one.energy_j * count
    )
    return together, count
