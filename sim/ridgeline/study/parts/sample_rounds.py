"""Rounds of samples: which micro-batch of one part has the samples of which of another.

A part works through the samples of a step in rounds: in round j its replicas have ``data`` chunks
of ``micro_batch`` samples each, in order. So sample n is in chunk n // micro_batch, whose round is
chunk // data and whose replica is chunk % data; and parts of different degrees meet sample by
sample.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple


class SampleRounds(NamedTuple):
    """How a part goes through the samples of a step."""

    data: int
    micro_batch: int
    rounds: int

    @property
    def samples(self) -> int:
        """Of one round."""
        return self.data * self.micro_batch


class Piece(NamedTuple):
    """Samples that a replica of one part has in a round and a replica of another in another."""

    source_round: int
    source: int
    target_round: int
    target: int
    samples: int


def pieces(source: SampleRounds, target: SampleRounds) -> list[Piece]:
    """Return which samples both parts have together; in all, each sample of the step once."""
    found, at, total = [], 0, source.samples * source.rounds
    while at < total:
        a, b = at // source.micro_batch, at // target.micro_batch
        end = min((a + 1) * source.micro_batch, (b + 1) * target.micro_batch)
        (i, s), (j, t) = divmod(a, source.data), divmod(b, target.data)
        found.append(Piece(i, s, j, t, end - at))
        at = end
    return found


def forwards_before(own: SampleRounds, behind: SampleRounds, needs: Sequence[int]) -> list[int]:
    """Return how many rounds forward a part has done when each of its gradients can come.

    Parameters
    ----------
    behind, needs
        The part behind it, and how many rounds forward that one does before it gives back the
        gradients of each round.
    """
    found = []
    for j in range(own.rounds):
        last = -(-(j + 1) * own.samples // behind.samples) - 1
        found.append(min(own.rounds, -(-needs[last] * behind.samples // own.samples)))
    return found
