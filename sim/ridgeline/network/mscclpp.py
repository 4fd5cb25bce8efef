"""MSCCL++ plans: JSON of threadblocks and operations on each other's memory, played by chunks.

GPUs read and write buffers of others; only signals, barriers and semaphores say what is done before
what (a packet carries a flag, so that who reads it waits for it). A plan is right if every output
is, and if nothing reads or writes a chunk while another threadblock may still write it: two
accesses of which one writes have to be ordered by signals, which vector clocks tell (C. J. Fidge,
"Timestamps in message-passing systems that preserve the partial ordering", 1988). What was written
by another GPU has to be ordered before the end of the kernel of the GPU that has it.

A message is what an operation reads of, or writes to, another GPU; its round is the number of
messages before it on the longest way. Operations on a switch (NVLS) are refused.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict, deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from ridgeline.bounded_files import read_json
from ridgeline.errors import ConfigError, nearest
from ridgeline.network.chunk_buffers import MOST_CHUNKS, ChunkBuffers, Content, Place
from ridgeline.network.operations import operation_named
from ridgeline.network.user_collectives import Message, UserCollective
from ridgeline.network.verification import WrongCollectiveError

_OPERATIONS = ("all-reduce", "all-gather", "reduce-scatter", "all-to-all")
_REFUSED = ("all-to-allv", "send-recv", "broadcast", "reduce")
_LOST = {"LL": 2.0, "Simple": 1.0}
"""Bytes on the wire over those of payload, by protocol."""
_SIGNALS = {"signal": "signal", "rlxsignal": "signal", "wait": "wait", "rlxwait": "wait"}
_MOVES = frozenset({"copy", "put", "get", "ppkt", "upkt", "cpkt"})
_ADDS = frozenset({"re", "rre", "res", "rres", "repkt", "respkt"})
_PACKETS = frozenset({"upkt", "repkt", "respkt"})
"""Operations that wait for the packets that they read in scratch."""
_WRITES_PACKETS = frozenset({"ppkt", "cpkt", "respkt"})
_QUIET = frozenset({"nop", "flush"})
_SYNC = frozenset({"barrier", "sem_acquire", "sem_release"})
_KNOWN = sorted({*_SIGNALS, *_MOVES, *_ADDS, *_QUIET, *_SYNC, "pipeline"})
_MOST_BYTES = 256 * 2**20


class _Access(NamedTuple):
    """A chunk that an operation reads or writes: of its own GPU, or of another one."""

    rank: int
    buffer: str
    chunk: int


class _Op(NamedTuple):
    """One operation; what it reads and writes by chunk: the same place in every row is one chunk.

    Attributes
    ----------
    sources, targets
        [operands][chunks].
    part
        Threadblock of its group, and how many share the operation.
    ids
        Channels (peer and number), semaphores, or the barrier and its threadblocks.
    """

    name: str
    where: str
    sources: tuple[tuple[_Access, ...], ...] = ()
    targets: tuple[tuple[_Access, ...], ...] = ()
    part: tuple[int, int] = (0, 1)
    ids: tuple[tuple[int, int], ...] = ()


@dataclass(slots=True)
class _Block:
    """One threadblock and how far it is.

    Attributes
    ----------
    clock
        Of every threadblock, how many operations are known to be done.
    level
        Messages before the next operation on the longest way.
    """

    rank: int
    number: int
    ops: tuple[_Op, ...]
    clock: list[int] = field(default_factory=list)
    level: int = 0
    done: int = 0


def read_mscclpp(path: str | Path) -> UserCollective:
    """Read an MSCCL++ plan and verify what it does.

    Raises
    ------
    ConfigError
        If the file is no such plan, or its operation is none that can be verified.
    WrongCollectiveError
        If a rank does not end up with a chunk, threadblocks wait for each other for ever, or one
        reads or writes what another one may still write.
    """
    file = str(path)
    plan = _Plan(read_json(path, _MOST_BYTES), file)
    buffers = ChunkBuffers(
        f"{plan.op} of {file}", plan.op, plan.n, plan.chunks, inplace=plan.inplace
    )
    player = _Player(plan, buffers)
    messages = player.play()
    player.check()
    share = _LOST[plan.protocol] / (plan.chunks * plan.pieces)
    return UserCollective(plan.name, plan.op, plan.n, share, tuple(messages))


class _Plan:
    """What a file says.

    Attributes
    ----------
    pieces
        That every chunk is divided into, so that threadblocks of a group share it.
    """

    def __init__(self, data: Any, file: str) -> None:
        self.file = file
        if not isinstance(data, Mapping) or "gpus" not in data:
            raise ConfigError("expected a plan of MSCCL++, with gpus", file=file)
        found = str(data.get("collective", ""))
        self.name = str(data.get("name") or Path(file).stem)
        named = {"sendrecv": "send-recv", "alltoallv": "all-to-allv"}.get(found, found)
        self.op = operation_named(named, (*_OPERATIONS, *_REFUSED))
        if self.op in _REFUSED:
            self._fail(
                "collective", f"{found} cannot be verified; allowed: {', '.join(_OPERATIONS)}"
            )
        self.protocol = str(data.get("protocol", "Simple"))
        if self.protocol not in _LOST:
            self._fail("protocol", f"found {self.protocol!r}; allowed: {', '.join(_LOST)}")
        self.inplace = bool(data.get("inplace", False))
        gpus = self._objects(data, "gpus", "")
        self.n = len(gpus)
        if self.n < 2:
            self._fail("gpus", f"a collective has at least 2 GPUs; found {self.n}")
        self.chunks = max(
            self._whole(gpu, name, f"gpus.{g}", 0)
            for g, gpu in enumerate(gpus)
            for name in ("input_chunks", "output_chunks")
        )
        places = 1 if self.op == "all-reduce" else self.n
        if self.chunks == 0 or self.chunks % places:
            self._fail(
                "gpus.0.input_chunks",
                f"{self.op} of {self.n} GPUs has a multiple of {places} chunks; found"
                f" {self.chunks}",
            )
        if sorted(self._whole(gpu, "id", f"gpus.{g}", 0) for g, gpu in enumerate(gpus)) != list(
            range(self.n)
        ):
            self._fail("gpus", f"the ids of {self.n} GPUs are 0 to {self.n - 1}")
        self.blocks = [block for g, gpu in enumerate(gpus) for block in self._blocks(gpu, g)]
        sizes = [op.part[1] for block in self.blocks for op in block.ops]
        self.pieces = math.lcm(1, *sizes)
        if (pieces := self.n * self.chunks * self.pieces) > MOST_CHUNKS:
            self._fail("gpus", f"{pieces} pieces of chunks; at most {MOST_CHUNKS} are followed")
        self.starts = {  # of semaphores
            (self._whole(gpu, "id", f"gpus.{g}", 0), number): self._whole(
                {"init_value": 0, **one}, "init_value", f"gpus.{g}.semaphores.{number}", 0
            )
            for g, gpu in enumerate(gpus)
            for number, one in enumerate(self._objects(gpu, "semaphores", f"gpus.{g}", ()))
        }
        if sum(self.starts.values()) > MOST_CHUNKS:
            self._fail("gpus", f"semaphores start with more than {MOST_CHUNKS} in all")

    def _fail(self, field_: str, message: str) -> None:
        raise ConfigError(message, file=self.file, field=field_)

    def _list(self, holder: Any, name: str, where: str) -> Sequence[Any]:
        found = holder.get(name) if isinstance(holder, Mapping) else None
        if not isinstance(found, list):
            self._fail(f"{where}.{name}".lstrip("."), f"expected a list; found {found!r:.40}")
        assert isinstance(found, list)
        return found

    def _objects(
        self, holder: Mapping[str, Any], name: str, where: str, default: Sequence[Any] | None = None
    ) -> Sequence[Mapping[str, Any]]:
        if default is not None and name not in holder:
            return default
        found = self._list(holder, name, where)
        for number, one in enumerate(found):
            if not isinstance(one, Mapping):
                at = f"{where}.{name}.{number}".lstrip(".")
                self._fail(at, f"expected an object; found {one!r:.40}")
        return found

    def _whole(self, holder: Any, name: str, where: str, least: int) -> int:
        found = holder.get(name) if isinstance(holder, Mapping) else None
        if not isinstance(found, int) or isinstance(found, bool) or found < least:
            self._fail(
                f"{where}.{name}", f"a whole number of at least {least}; found {found!r:.40}"
            )
        assert isinstance(found, int)
        return found

    def _blocks(self, gpu: Mapping[str, Any], g: int) -> Iterator[_Block]:
        where, rank = f"gpus.{g}", self._whole(gpu, "id", f"gpus.{g}", 0)
        peers: list[tuple[int, int]] = []  # of each channel: its peer, and which of those it is
        count: Counter[int] = Counter()
        for c, channel in enumerate(self._objects(gpu, "channels", where)):
            if channel.get("channel_type") not in ("memory", "port"):
                self._fail(
                    f"{where}.channels.{c}.channel_type",
                    f"channels of memory or of a port are played; found"
                    f" {channel.get('channel_type')!r:.40} (what switches add up is nvls)",
                )
            for peer in self._list(channel, "connected_to", f"{where}.channels.{c}"):
                if not isinstance(peer, int) or not 0 <= peer < self.n or peer == rank:
                    self._fail(f"{where}.channels.{c}.connected_to", f"no other GPU {peer!r:.40}")
                peers.append((peer, count[peer]))
                count[peer] += 1
        remote = []
        for b, one in enumerate(self._objects(gpu, "remote_buffers", where, ())):
            of = self._whole(one, "rank", f"{where}.remote_buffers.{b}", 0)
            if of >= self.n:
                self._fail(f"{where}.remote_buffers.{b}.rank", f"GPU {of} of {self.n}")
            remote.append((of, str(one.get("type"))))
        for t, block in enumerate(self._objects(gpu, "threadblocks", where)):
            at = f"{where}.threadblocks.{t}"
            own = self._numbers(block, "channels", "channel_ids", at)
            far = self._numbers(block, "remote_buffer_refs", "remote_buffer_ids", at)
            ways = _Ways(
                rank,
                [peers[self._index(i, peers, at, "channel")] for i in own],
                [remote[self._index(i, remote, at, "remote buffer")] for i in far],
            )
            ops = tuple(self._ops(self._objects(block, "ops", at), f"{at}.ops", ways))
            yield _Block(rank, self._whole(block, "id", at, 0), ops)

    def _numbers(self, block: Mapping[str, Any], name: str, ids: str, where: str) -> list[Any]:
        """Return what the objects of a threadblock's list number, one after another."""
        at = f"{where}.{name}"
        return [
            number
            for o, one in enumerate(self._objects(block, name, where, ()))
            if ids in one
            for number in self._list(one, ids, f"{at}.{o}")
        ]

    def _index(self, number: Any, things: Sequence[Any], where: str, what: str) -> int:
        if not isinstance(number, int) or not 0 <= number < len(things):
            self._fail(where, f"{what} {number!r:.40} of {len(things)}")
        assert isinstance(number, int)
        return number

    def _ops(self, ops: Sequence[Mapping[str, Any]], where: str, ways: _Ways) -> Iterator[_Op]:
        for k, op in enumerate(ops):
            at, name = f"{where}.{k}", str(op.get("name"))
            if name == "pipeline":  # its pieces all go the same way
                yield from self._ops(self._objects(op, "ops", at), f"{at}.ops", ways)
                continue
            if name not in _KNOWN:
                self._fail(
                    at,
                    f"operation {name!r} is not played{nearest(name, _KNOWN)}"
                    f" (known: {', '.join(_KNOWN)})",
                )
            ids: list[tuple[int, int]] = []
            if name in _SIGNALS:
                ids = [
                    ways.channels[self._index(i, ways.channels, at, "channel")]
                    for i in self._list(op, "channel_ids", at)
                ]
            elif name in {"sem_acquire", "sem_release"}:
                listed = self._list(op, "semaphore_ids", at)
                ids = [(self._whole({"id": i}, "id", at, 0), 0) for i in listed]
            elif name == "barrier":
                number = self._whole(op, "barrier_id", at, 0)
                ids = [(number, self._whole(op, "num_threadblocks", at, 1))]
            info = op.get("tbg_info")
            part = (0, 1)
            if info is not None:
                size = self._whole(info, "tbg_size", at, 1)
                part = self._whole(info, "tb_id", at, 0), size
                if part[0] >= size:
                    self._fail(at, f"threadblock {part[0]} of a group of {size}")
            sources = self._accesses(op, "src_buff", at, ways)
            targets = self._accesses(op, "dst_buff", at, ways)
            moved = name in _MOVES | _ADDS
            sizes = {len(row) for row in (*sources, *targets)}
            if moved and (not sources or not targets or len(sizes) != 1):
                self._fail(at, f"{name} has sources and targets of one size; found {sorted(sizes)}")
            yield _Op(name, at, sources, targets, part, tuple(ids))

    def _accesses(
        self, op: Mapping[str, Any], name: str, where: str, ways: _Ways
    ) -> tuple[tuple[_Access, ...], ...]:
        found = []
        for one in self._objects(op, name, where, ()):
            if "buffer_id" in one:
                number = self._index(one["buffer_id"], ways.remote, where, "remote buffer")
                rank, buffer = ways.remote[number]
            elif "switch_channel_id" in one:
                self._fail(where, "operations on a switch are not played")
            else:
                rank, buffer = ways.rank, str(one.get("type"))
            if buffer not in {"i", "o", "s"}:
                self._fail(where, f"a buffer is i, o or s; found {buffer!r:.40}")
            first = self._whole(one, "index", f"{where}.{name}", 0)
            size = self._whole(one, "size", f"{where}.{name}", 1)
            if first + size > MOST_CHUNKS:
                self._fail(f"{where}.{name}", f"chunk {first + size} of at most {MOST_CHUNKS}")
            found.append(tuple(_Access(rank, buffer, first + k) for k in range(size)))
        return tuple(found)


class _Ways(NamedTuple):
    """A threadblock's GPU, and by number what its channels and remote buffers are."""

    rank: int
    channels: list[tuple[int, int]]
    remote: list[tuple[int, str]]


Known = tuple[list[int], int]
"""Clock and level of a threadblock when it signalled."""


class _Player:
    """Takes operations in any order that signals allow."""

    def __init__(self, plan: _Plan, buffers: ChunkBuffers) -> None:
        self.plan, self.buffers, self.label = plan, buffers, buffers.label
        self.blocks = plan.blocks
        for block in self.blocks:
            block.clock = [0] * len(self.blocks)
        self.signals: defaultdict[tuple[int, int, int], deque[Known]] = defaultdict(deque)
        self.semaphores: defaultdict[tuple[int, int], deque[Known]] = defaultdict(deque)
        for key, count in plan.starts.items():
            self.semaphores[key].extend([([0] * len(self.blocks), 0)] * count)
        self.waiting: defaultdict[tuple[int, int], dict[int, int]] = defaultdict(dict)
        self.passed: Counter[int] = Counter()  # barriers, by threadblock
        self.written: dict[tuple[Place, int], tuple[int, int]] = {}  # threadblock and its operation
        self.reads: defaultdict[tuple[Place, int], dict[int, int]] = defaultdict(dict)
        self.packets: dict[tuple[Place, int], Known] = {}
        self.pieces: dict[tuple[Place, int], Content] = {
            (place, piece): content
            for place, content in buffers.held.items()
            for piece in range(plan.pieces)
        }
        self.messages: list[Message] = []

    def play(self) -> list[Message]:
        """Take all operations and return the messages."""
        moved = True
        while moved:
            moved = False
            for number, block in enumerate(self.blocks):
                while block.done < len(block.ops) and self._take(number, block):
                    moved = True
        for block in self.blocks:
            if block.done < len(block.ops):
                op = block.ops[block.done]
                raise WrongCollectiveError(
                    f"{self.label}: threadblock {block.number} of rank {block.rank} waits for ever"
                    f" in {op.where} ({op.name})"
                )
        return self.messages

    def _take(self, number: int, block: _Block) -> bool:
        """Take the next operation of a threadblock, if what it waits for is there."""
        op = block.ops[block.done]
        if not self._came(number, block, op):
            return False
        block.clock[number] = block.done + 1
        if op.name in _MOVES | _ADDS:
            self._move(number, block, op)
        kind = _SIGNALS.get(op.name, op.name)
        if kind == "signal":
            for peer, way in op.ids:
                self.signals[block.rank, peer, way].append((list(block.clock), block.level))
        elif kind == "sem_release":
            for semaphore, _ in op.ids:
                self.semaphores[block.rank, semaphore].append((list(block.clock), block.level))
        block.done += 1
        return True

    def _came(self, number: int, block: _Block, op: _Op) -> bool:
        """Tell whether what an operation waits for is there; if so, the threadblock knows it."""
        kind = _SIGNALS.get(op.name, op.name)
        if kind == "wait":
            queues = {one: self.signals[one[0], block.rank, one[1]] for one in op.ids}
        elif kind == "sem_acquire":
            queues = {one: self.semaphores[block.rank, one[0]] for one in op.ids}
        elif kind == "barrier":
            return self._passes_barrier(number, block, op)
        elif op.name in _PACKETS:
            keys = [key for row in op.sources for key in self._keys(row, op) if key[0][1] == "s"]
            if not all(key in self.packets for key in keys):
                return False
            for key in keys:
                _learn(block, self.packets[key])
            return True
        else:
            return True
        if any(len(queues[one]) < count for one, count in Counter(op.ids).items()):
            return False
        for one in op.ids:
            _learn(block, queues[one].popleft())
        return True

    def _passes_barrier(self, number: int, block: _Block, op: _Op) -> bool:
        ((which, count),) = op.ids
        key = block.rank, which
        here = self.waiting[key]
        here.setdefault(number, block.done)
        if len(here) < count:
            return False
        others = [self.blocks[k] for k in here]
        known = [(list(one.clock), one.level) for one in others]
        for one in others:
            for what in known:
                _learn(one, what)
            if one is not block:
                one.clock[self.blocks.index(one)] = one.done + 1
                one.done += 1
        self.waiting[key] = {}
        return True

    def _keys(self, row: Sequence[_Access], op: _Op) -> list[tuple[Place, int]]:
        """Return the pieces of chunks that an operation touches."""
        mine, size = op.part
        share = self.plan.pieces // size
        return [
            (self.buffers.place(*one), piece)
            for one in row
            for piece in range(mine * share, (mine + 1) * share)
        ]

    def _move(self, number: int, block: _Block, op: _Op) -> None:
        """Read, add up and write, and take note of what crosses between GPUs."""
        adds = op.name in _ADDS
        rows = [self._keys(row, op) for row in op.sources]
        for row in rows:
            for key in row:
                self._read(number, block, op, key)
        n_far = len({row[0].rank for row in op.sources if row[0].rank != block.rank})
        for operand in op.sources:
            if operand[0].rank != block.rank:
                count = len(operand) * self.plan.pieces // op.part[1]
                self.messages.append(Message(block.level, operand[0].rank, block.rank, count))
        block.level += n_far > 0
        targets = [self._keys(row, op) for row in op.targets]
        if adds:
            values = []
            for column in zip(*rows, strict=True):
                total: Content = Counter()
                for key in column:
                    total.update(self.pieces[key])
                values.append(total)
            written = [(row, values) for row in targets]
        else:
            if len(rows) != len(targets):
                self._wrong(block, op, f"has {len(rows)} sources for {len(targets)} targets")
            written = [
                (row, [self.pieces[key] for key in source])
                for row, source in zip(targets, rows, strict=True)
            ]
        far = False
        for row, values in written:
            for key, value in zip(row, values, strict=True):
                self._write(number, block, op, key, value)
        for operand in op.targets:
            if operand[0].rank != block.rank:
                count = len(operand) * self.plan.pieces // op.part[1]
                self.messages.append(Message(block.level, block.rank, operand[0].rank, count))
                far = True
        if op.name in _WRITES_PACKETS:
            known = list(block.clock), block.level + far
            for row in targets:
                for key in row:
                    if key[0][1] == "s":
                        self.packets[key] = known
        block.level += far

    def _read(self, number: int, block: _Block, op: _Op, key: tuple[Place, int]) -> None:
        if key not in self.pieces:
            rank, buffer, chunk = key[0]
            self._wrong(block, op, f"reads chunk {chunk} of buffer {buffer} of rank {rank}, which"
                        " holds nothing")  # fmt: skip
        self._check_order(block, op, key, "reads")
        self.reads[key][number] = block.done + 1

    def _write(
        self, number: int, block: _Block, op: _Op, key: tuple[Place, int], value: Content
    ) -> None:
        self._check_order(block, op, key, "writes")
        for other, at in self.reads[key].items():
            if block.clock[other] < at:
                self._race(block, op, key, "writes", other, "read")
        self.reads[key] = {}
        self.written[key] = number, block.done + 1
        self.pieces[key] = Counter(value)

    def _check_order(self, block: _Block, op: _Op, key: tuple[Place, int], what: str) -> None:
        other, at = self.written.get(key, (0, 0))
        if block.clock[other] < at:
            self._race(block, op, key, what, other, "written")

    def _race(
        self, block: _Block, op: _Op, key: tuple[Place, int], what: str, other: int, done: str
    ) -> None:
        (rank, buffer, chunk), by = key[0], self.blocks[other]
        self._wrong(block, op, f"{what} chunk {chunk} of buffer {buffer} of rank {rank}, which"
                    f" threadblock {by.number} of rank {by.rank} may not have {done} yet: no signal"
                    " orders them")  # fmt: skip

    def _wrong(self, block: _Block, op: _Op, what: str) -> None:
        raise WrongCollectiveError(
            f"{self.label}: threadblock {block.number} of rank {block.rank} {what}"
            f" ({op.where}, {op.name})"
        )

    def check(self) -> None:
        """Raise WrongCollectiveError unless every rank has its output when its kernel ends."""
        ends = [[0] * len(self.blocks) for _ in range(self.plan.n)]
        for block in self.blocks:
            ends[block.rank] = [
                max(pair) for pair in zip(ends[block.rank], block.clock, strict=True)
            ]
        for rank, chunk, place in self.buffers.ends():
            for piece in range(self.plan.pieces):
                other, at = self.written.get((place, piece), (0, 0))
                if ends[rank][other] < at:
                    by = self.blocks[other]
                    raise WrongCollectiveError(
                        f"{self.label}: rank {rank} may end before threadblock {by.number} of rank"
                        f" {by.rank} has written its chunk {chunk}: no signal orders them"
                    )
        for piece in range(self.plan.pieces):
            self.buffers.held = {
                place: content for (place, of), content in self.pieces.items() if of == piece
            }
            self.buffers.check()


def _learn(block: _Block, known: Known) -> None:
    """Let a threadblock know what another one knew when it signalled."""
    clock, level = known
    block.clock = [max(pair) for pair in zip(block.clock, clock, strict=True)]
    block.level = max(block.level, level)
