"""MSCCL algorithms: XML of threadblocks and steps, played on symbolic chunks before it is priced.

A threadblock takes its steps in order; a step waits for the message that it receives and for the
step of another threadblock that it names. Messages between two GPUs on a channel arrive in order.
What a buffer's chunk holds is told as contributions of ranks, so that at the end every GPU must
have what the operation promises. Threadblocks run at the same time: two of a GPU that touch a
chunk, one of them writing, must be ordered by what they wait for, or the outcome is by chance.
Vector clocks tell (C. Flanagan and S. Freund, FastTrack, PLDI 2009): steps are always the same
ones, so that an order without races is like every other. A message's round is the number of
messages before it on the longest way: messages of one round are sent at once.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple
from xml.etree import ElementTree

import numpy as np
import numpy.typing as npt

from ridgeline.bounded_files import read_text
from ridgeline.errors import ConfigError
from ridgeline.network.chunk_buffers import MOST_CHUNKS, ChunkBuffers, Content, Place
from ridgeline.network.operations import operation_named
from ridgeline.network.user_collectives import Message, UserCollective
from ridgeline.network.verification import WrongCollectiveError

Ints = npt.NDArray[np.int64]
_OPERATIONS = ("all-reduce", "all-gather", "reduce-scatter", "all-to-all")
_LOST = {"LL": 2.0, "LL128": 128 / 120, "Simple": 1.0}
"""Bytes on the wire over those of payload, by protocol."""
_RECEIVES = frozenset({"r", "rcs", "rrc", "rrs", "rrcs"})
_SENDS = frozenset({"s", "rcs", "rrs", "rrcs"})
_REDUCES = frozenset({"rrc", "rrs", "rrcs"})
_READS = _REDUCES | {"s", "cpy", "re"}
_WRITES = frozenset({"r", "rcs", "rrc", "rrcs", "cpy", "re"})
_TYPES = _RECEIVES | _SENDS | {"re", "cpy", "nop"}


class _Step(NamedTuple):
    kind: str
    source: tuple[str, int]
    target: tuple[str, int]
    n: int
    after: tuple[int, int] | None
    """Threadblock and step that must be done."""


@dataclass(slots=True)
class _Block:
    """One threadblock: whom it sends to and receives from, and how far it is."""

    gpu: int
    number: int
    send: int
    receive: int
    channel: int
    steps: tuple[_Step, ...]
    done: int = 0
    levels: list[int] = field(default_factory=list)
    clocks: list[Ints] = field(default_factory=list)
    """After each step, how many steps of every threadblock are known to be done."""


@dataclass(slots=True)
class _Touched:
    """Who has touched a chunk since it was written, that writer included: threadblock, its step."""

    writer: tuple[int, int] | None = None
    readers: dict[int, int] = field(default_factory=dict)


def read_msccl(path: str | Path) -> UserCollective:
    """Read an MSCCL XML file and verify what it does; raises as `parse_msccl`."""
    return parse_msccl(read_text(path), str(path))


def parse_msccl(text: str, file: str) -> UserCollective:
    """Read MSCCL's XML and verify what it does.

    Raises
    ------
    ConfigError
        If the file is no such XML, or its operation is none that can be verified.
    WrongCollectiveError
        If a rank does not end up with a chunk, the steps wait for each other for ever, or two
        threadblocks touch a chunk in no order.
    """
    try:
        root = ElementTree.fromstring(text)
    except ElementTree.ParseError as error:
        line, column = error.position
        raise ConfigError(f"not XML: {error}", file=file, line=line, column=column) from error
    if root.tag != "algo":
        raise ConfigError(f"expected an <algo> of MSCCL, found <{root.tag}>", file=file)
    op = operation_named(root.get("coll", ""), (*_OPERATIONS, "custom"))
    if op == "custom":
        raise ConfigError(
            "a custom collective promises nothing that could be verified; allowed: "
            f"{', '.join(_OPERATIONS)}",
            file=file,
            field="coll",
        )
    n = _whole(root, "ngpus", file)
    chunks = _whole(root, "nchunksperloop", file)
    blocks = [block for gpu in root.iter("gpu") for block in _blocks(gpu, n, file)]
    if sum(step.n for block in blocks for step in block.steps) > MOST_CHUNKS:
        raise ConfigError(f"its steps move more than {MOST_CHUNKS} chunks", file=file, field="cnt")
    inplace = root.get("inplace") == "1"
    buffers = ChunkBuffers(f"{op} of {file}", op, n, chunks, inplace=inplace)
    messages = _Player(buffers, blocks).play()
    buffers.check()
    lost = _LOST.get(root.get("proto", "Simple"), 1.0)
    name = root.get("name") or Path(file).stem
    return UserCollective(name, op, n, lost / chunks, tuple(messages))


def _whole(element: ElementTree.Element, name: str, file: str, least: int = 1) -> int:
    text = element.get(name, "")
    try:
        value = int(text)
    except ValueError:
        value = least - 1
    if not least <= value <= MOST_CHUNKS:
        raise ConfigError(
            f"<{element.tag}> needs {name}, a whole number from {least} to {MOST_CHUNKS}; found"
            f" {text!r:.60}",
            file=file,
            field=name,
        )
    return value


def _blocks(gpu: ElementTree.Element, n: int, file: str) -> Iterator[_Block]:
    rank = _whole(gpu, "id", file, 0)
    for tb in gpu.iter("tb"):
        ends = [_whole(tb, name, file, -1) for name in ("send", "recv")]
        if rank >= n or max(ends) >= n:
            raise ConfigError(
                f"gpu {max(rank, *ends)} of {n} (0 to {n - 1})", file=file, field="tb"
            )
        steps = tuple(_step(step, file) for step in tb.iter("step"))
        number = _whole(tb, "id", file, 0)
        yield _Block(rank, number, ends[0], ends[1], _whole(tb, "chan", file, 0), steps)


def _step(step: ElementTree.Element, file: str) -> _Step:
    kind = step.get("type", "")
    if kind not in _TYPES:
        raise ConfigError(
            f"a step is one of {', '.join(sorted(_TYPES))}; found {kind!r}", file=file, field="type"
        )
    at = [
        (step.get(f"{end}buf", "i"), _whole(step, f"{end}off", file, -1)) for end in ("src", "dst")
    ]
    block, number = _whole(step, "depid", file, -1), _whole(step, "deps", file, -1)
    after = None if block < 0 or number < 0 else (block, number)
    return _Step(kind, at[0], at[1], _whole(step, "cnt", file, 0), after)


_Sent = tuple[list[Content], int, Ints]
"""A message under way: its chunks, its round, and what is known to be done before it."""


class _Player:
    """Takes the steps of all threadblocks."""

    def __init__(self, buffers: ChunkBuffers, blocks: Sequence[_Block]) -> None:
        self.label, self.blocks = buffers.label, blocks
        self.held, self._place = buffers.held, buffers.place
        self.index = {(block.gpu, block.number): k for k, block in enumerate(blocks)}
        self.touched: dict[Place, _Touched] = {}

    def play(self) -> list[Message]:
        """Take all steps and return the messages."""
        blocks = self.blocks
        queues: dict[tuple[int, int, int], deque[_Sent]] = {}
        by_number = {(block.gpu, block.number): block for block in blocks}
        messages: list[Message] = []
        moved = True
        while moved:
            moved = False
            for block in blocks:
                while block.done < len(block.steps) and self._take(
                    block, by_number, queues, messages
                ):
                    moved = True
        for block in blocks:
            if block.done < len(block.steps):
                step = block.steps[block.done]
                why = f"a message from rank {block.receive} that is never sent"
                if step.after is not None and not self._is_done(block, by_number, step):
                    why = (
                        f"step {step.after[1]} of threadblock {step.after[0]}, which is never done"
                    )
                raise WrongCollectiveError(
                    f"{self.label}: step {block.done} of threadblock {block.number} of rank "
                    f"{block.gpu} waits for {why}"
                )
        return messages

    def _is_done(
        self, block: _Block, by_number: dict[tuple[int, int], _Block], step: _Step
    ) -> bool:
        if step.after is None:
            return True
        other = by_number.get((block.gpu, step.after[0]))
        return other is not None and other.done > step.after[1]

    def _take(
        self,
        block: _Block,
        by_number: dict[tuple[int, int], _Block],
        queues: dict[tuple[int, int, int], deque[_Sent]],
        messages: list[Message],
    ) -> bool:
        """Take the next step of a threadblock, if what it waits for is there."""
        step, own = block.steps[block.done], self.index[block.gpu, block.number]
        if not self._is_done(block, by_number, step):
            return False
        level = block.levels[-1] if block.levels else 0
        clock = block.clocks[-1].copy() if block.clocks else np.zeros(len(self.blocks), np.int64)
        if step.after is not None:
            other = by_number[block.gpu, step.after[0]]
            level = max(level, other.levels[step.after[1]])
            np.maximum(clock, other.clocks[step.after[1]], out=clock)
        values: list[Content] = []
        if step.kind in _RECEIVES:
            queue = queues.get((block.receive, block.gpu, block.channel))
            if not queue:
                return False
            values, sent, known = queue.popleft()
            level = max(level, sent)
            np.maximum(clock, known, out=clock)
        clock[own] = block.done + 1
        self._check_order(block, step, clock)
        values = self._moved(block, step, values)
        if step.kind in _SENDS:
            if block.send < 0:
                raise WrongCollectiveError(
                    f"{self.label}: threadblock {block.number} of rank {block.gpu} sends to nobody"
                )
            queue = queues.setdefault((block.gpu, block.send, block.channel), deque())
            queue.append(([Counter(value) for value in values], level + 1, clock))
            messages.append(Message(level, block.gpu, block.send, step.n))
        block.levels.append(level)
        block.clocks.append(clock)
        block.done += 1
        return True

    def _check_order(self, block: _Block, step: _Step, clock: Ints) -> None:
        """Complain if a step touches what another threadblock writes, in no order with it."""
        reads = [step.source] if step.kind in _READS else []
        reads += [step.target] if step.kind == "re" else []
        for at in reads:
            self._touch(block, at, step.n, clock, writes=False)
        if step.kind in _WRITES:
            self._touch(block, step.target, step.n, clock, writes=True)

    def _touch(
        self, block: _Block, at: tuple[str, int], n: int, clock: Ints, *, writes: bool
    ) -> None:
        own = self.index[block.gpu, block.number]
        for chunk in range(at[1], at[1] + n):
            place = self._place(block.gpu, at[0], chunk)
            seen = self.touched.setdefault(place, _Touched())
            others = list(seen.readers.items()) if writes else []
            others += [] if seen.writer is None else [seen.writer]
            for other, before in others:
                if clock[other] <= before:
                    raise WrongCollectiveError(
                        f"{self.label}: rank {block.gpu}: step {block.done} of threadblock"
                        f" {block.number} {'writes' if writes else 'reads'} chunk {chunk} of buffer"
                        f" {at[0]}, which step {before} of threadblock {self.blocks[other].number}"
                        f" {'touches' if writes else 'writes'}, and neither waits for the other"
                    )
            if writes:
                self.touched[place] = _Touched(writer=(own, block.done))
            else:
                seen.readers[own] = block.done

    def _moved(self, block: _Block, step: _Step, values: list[Content]) -> list[Content]:
        """Do what a step does in the memory of its GPU, and return what it would send."""
        if step.kind == "nop":
            return []
        if step.kind in {"s", "cpy"}:
            values = [self._read(block, step.source, k) for k in range(step.n)]
        elif step.kind == "re":
            values = [
                self._read(block, step.source, k) + self._read(block, step.target, k)
                for k in range(step.n)
            ]
        elif step.kind in _REDUCES:
            values = [v + self._read(block, step.source, k) for k, v in enumerate(values)]
        if step.kind in _WRITES:
            for k, value in enumerate(values):
                self.held[self._place(block.gpu, step.target[0], step.target[1] + k)] = value
        return values

    def _read(self, block: _Block, at: tuple[str, int], k: int) -> Content:
        place = self._place(block.gpu, at[0], at[1] + k)
        if place not in self.held:
            raise WrongCollectiveError(
                f"{self.label}: rank {block.gpu} reads chunk {at[1] + k} of buffer {at[0]} in step "
                f"{block.done} of threadblock {block.number}, but has nothing there"
            )
        return self.held[place]
