"""Buffers of the ranks of a collective, chunk by chunk: what they begin with and must end with.

A chunk's content is contributions of ranks. Files of MSCCL and MSCCL++ name places in an input, an
output and scratch buffers; in place, a rank's input is a part of its output, or is it.
"""

from __future__ import annotations

from collections import Counter

from ridgeline.network.verification import WrongCollectiveError

Content = Counter[tuple[int, int]]
"""Contributions to a chunk: (rank, its chunk) and how often."""
Place = tuple[int, str, int]
"""A rank, one of its buffers, and a chunk there."""


MOST_CHUNKS = 2**20
"""That are followed one by one, of all ranks together."""


class ChunkBuffers:
    """Buffers of all ranks while a collective is played.

    Parameters
    ----------
    label
        Of the collective, for messages.
    op
        all-reduce, all-gather, reduce-scatter or all-to-all.
    n
        Ranks.
    chunks
        Of the operation's whole: of an all-gather those of the output, else those of the input.

    Raises
    ------
    WrongCollectiveError
        If there are more than `MOST_CHUNKS`.
    """

    def __init__(self, label: str, op: str, n: int, chunks: int, *, inplace: bool) -> None:
        self.label, self.op, self.n, self.chunks, self.inplace = label, op, n, chunks, inplace
        if n * chunks > MOST_CHUNKS:
            raise WrongCollectiveError(
                f"{label}: {n} ranks of {chunks} chunks; at most {MOST_CHUNKS} are followed in all"
            )
        self.each = chunks // n if op != "all-reduce" else chunks
        self.held: dict[Place, Content] = {}
        for rank in range(n):
            for chunk in range(self.each if op == "all-gather" else chunks):
                self.held[self.place(rank, "i", chunk)] = Counter({(rank, chunk): 1})

    def place(self, rank: int, buffer: str, chunk: int) -> Place:
        """Return where a chunk lies."""
        if self.inplace and buffer == "i" and self.op in {"all-gather", "all-reduce"}:
            return rank, "o", chunk + (rank * self.each if self.op == "all-gather" else 0)
        if self.inplace and buffer == "o" and self.op == "reduce-scatter":
            return rank, "i", chunk + rank * self.each
        if self.inplace and self.op == "all-to-all" and buffer == "i":
            return rank, "o", chunk
        return rank, buffer, chunk

    def ends(self) -> list[tuple[int, int, Place]]:
        """Return every chunk of every rank's output, and where it lies."""
        count = self.each if self.op == "reduce-scatter" else self.chunks
        return [
            (rank, chunk, self.place(rank, "o", chunk))
            for rank in range(self.n)
            for chunk in range(count)
        ]

    def check(self) -> None:
        """Raise WrongCollectiveError unless every rank has what the operation promises."""
        for rank, chunk, place in self.ends():
            held, wanted = self.held.get(place, Counter()), self._wanted(rank, chunk)
            if held == wanted:
                continue
            less, more = wanted - held, held - wanted
            parts = [f"misses the contribution of rank {r}" for r, _ in list(less)[:1]]
            parts += [f"has too much of rank {r}" for r, _ in list(more)[:1]]
            what = " and ".join(parts) if held else "misses it"
            raise WrongCollectiveError(f"{self.label}: rank {rank}, chunk {chunk}: {what}")

    def _wanted(self, rank: int, chunk: int) -> Content:
        if self.op == "all-reduce":
            return Counter({(r, chunk): 1 for r in range(self.n)})
        if self.op == "reduce-scatter":
            return Counter({(r, rank * self.each + chunk): 1 for r in range(self.n)})
        source, part = divmod(chunk, self.each)
        own = part if self.op == "all-gather" else rank * self.each + part
        return Counter({(source, own): 1})
