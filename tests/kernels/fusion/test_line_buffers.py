"""Rows of fused layers: the closed form against a player that holds every row by name."""

from __future__ import annotations

import random

import pytest

from fused_graphs import random_region, with_sums
from ridgeline.kernels.fusion.line_buffers import Halo, held_bytes, row_schedule
from ridgeline.kernels.fusion.regions import FusedRegion, RowRead


class _Player:
    """Computes rows from rows that are held, and throws away what nothing reads any more."""

    def __init__(self, region: FusedRegion, tile: int, halo: str) -> None:
        self.region, self.halo = region, halo
        self.steps = -(-region.rows // tile)
        self.work = self._wanted(tile)
        self.held: set[tuple[int, int]] = set()
        self.computed = [0] * len(region.tensors)
        self.loaded = [0] * len(region.tensors)
        self.streamed = 0
        self.most = 0.0

    def _behind(self, read: RowRead, out: set[int]) -> set[int]:
        rows = range(self.region.tensors[read.tensor].rows)
        window = read.window
        return {
            row
            for o in out
            for row in range(
                o * window.stride - window.padding,
                o * window.stride - window.padding + window.size,
            )
            if row in rows
        }

    def _wanted(self, tile: int) -> list[list[set[int]]]:
        """List by step and op the rows that it computes."""
        region, done = self.region, [set[int]() for _ in self.region.tensors]
        every = []
        for i in range(self.steps):
            need = [set[int]() for _ in region.tensors]
            need[region.last] = set(range(i * tile, min((i + 1) * tile, region.rows)))
            step: list[set[int]] = []
            for place in range(len(region.ops) - 1, -1, -1):
                op = region.ops[place]
                if op.follows >= 0:
                    step.insert(0, set())
                    continue
                out = region.tensors[op.writes]
                now = need[op.writes]
                if self.halo == "line-buffer":  # in order, so that none is left out between two
                    now = set(range(max(now, default=-1) + 1)) - done[op.writes]
                    if i == self.steps - 1:
                        now = set(range(out.rows)) - done[op.writes]
                if now:  # a span
                    now = set(range(min(now), max(now) + 1))
                done[op.writes] |= now
                step.insert(0, now)
                for read in op.reads:
                    need[read.tensor] |= self._behind(read, now)
            for place, op in enumerate(region.ops):
                if op.follows >= 0:  # what has come of the tensor by now, and was not taken yet
                    rows = region.tensors[op.follows].rows
                    come = done[op.follows]
                    if region.tensors[op.follows].producer < 0:
                        come = set(range(max(need[op.follows], default=-1) + 1))
                    if i == self.steps - 1:
                        come = set(range(rows))
                    step[place] = come - done[op.writes]
                    done[op.writes] |= step[place]
            every.append(step)
        return every

    def _needed_later(self, done: set[tuple[int, int]]) -> set[tuple[int, int]]:
        """Return the rows that (step, op) pairs which are not done still read."""
        return {
            (read.tensor, row)
            for i, step in enumerate(self.work)
            for k, out in enumerate(step)
            if (i, k) not in done
            for read in self.region.ops[k].reads
            for row in self._behind(read, out)
        }

    def play(self, held_inputs: bool) -> None:
        region = self.region
        inputs = [t for t, about in enumerate(region.tensors) if about.producer < 0]
        done: set[tuple[int, int]] = set()
        for i in range(self.steps):
            for k, op in enumerate(region.ops):
                out = self.work[i][k]
                for read in op.reads:
                    rows = self._behind(read, out)
                    if read.tensor in inputs:
                        if rows:
                            self.loaded[read.tensor] = max(self.loaded[read.tensor], max(rows) + 1)
                        if not held_inputs:
                            self.streamed += len(rows)
                        continue
                    assert {(read.tensor, row) for row in rows} <= self.held
                if any(r.tensor == op.writes for o in region.ops for r in o.reads):
                    self.held |= {(op.writes, row) for row in out}
                self.computed[op.writes] += len(out)
                if self.halo == "line-buffer":  # rows that nothing reads are not held
                    self._evict(done)
                self.most = max(self.most, self._size())
                done.add((i, k))
                if self.halo == "recompute":
                    # what only a later step reads again is computed again there
                    later = {
                        (read.tensor, row)
                        for later_k in range(k + 1, len(region.ops))
                        for read in region.ops[later_k].reads
                        for row in range(region.tensors[read.tensor].rows)
                    }
                    self.held &= later
                else:
                    self._evict(done)

    def _evict(self, done: set[tuple[int, int]]) -> None:
        """Keep of every tensor what lies behind the first row that is still read."""
        first: dict[int, int] = {}
        for tensor, row in self._needed_later(done):
            first[tensor] = min(first.get(tensor, row), row)
        self.held = {(t, row) for t, row in self.held if t in first and row >= first[t]}

    def _size(self) -> float:
        return sum(self.region.tensors[t].row_bytes for t, _ in self.held)


@pytest.mark.parametrize("halo", ["line-buffer", "recompute", "sums"])
def test_rows_and_buffers_are_those_of_a_player(halo: str) -> None:
    rng = random.Random(22)
    for _ in range(400):
        region = random_region(rng)
        if halo == "sums":
            region = with_sums(rng, region)
        tile = rng.randint(1, region.rows)
        kind: Halo = "recompute" if halo == "recompute" else "line-buffer"
        schedule = row_schedule(region, tile, kind)
        player = _Player(region, tile, kind)
        player.play(held_inputs=False)
        for t, tensor in enumerate(region.tensors):
            if tensor.producer >= 0:
                assert schedule.made[t].rows.sum() == player.computed[t]
        streamed = sum(
            spans.rows.sum()
            for op, reads in zip(region.ops, schedule.read, strict=True)
            for read, spans in zip(op.reads, reads, strict=True)
            if region.tensors[read.tensor].producer < 0
        )
        # Windows that leave rows out are streamed with these.
        gaps = any(r.window.stride > r.window.size for op in region.ops for r in op.reads)
        assert streamed == player.streamed or (gaps and streamed >= player.streamed)
        assert held_bytes(schedule, held_inputs=False) == pytest.approx(player.most)
