"""Chakra execution traces, one ``prefix.<rank>.et`` a rank, as an Execution and back.

Schema: MLCommons Chakra, schema/protobuf/et_def.proto; attributes as ASTRA-sim 2 uses them:
``num_ops`` and ``tensor_size`` of a compute node, ``comm_type``, ``comm_size`` and ``pg_name`` of
a collective, ``comm_src``, ``comm_dst`` and ``comm_tag`` of a send or receive. Groups of ranks are
in a JSON file ``{"name": [ranks]}``. ASTRA-sim counts an all-gather (and a gather) by what one
rank gives, an Execution by the whole that is gathered.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ridgeline.errors import ConfigError
from ridgeline.workload.execution import (
    COLLECTIVES,
    FORMATS,
    Execution,
    Indices,
    Ints,
    TaskKind,
    check_execution,
)
from ridgeline.workload.trace import chakra_files, chakra_ids
from ridgeline.workload.trace import chakra_wire as wire

STREAMS = ("compute", "host", "network", "send", "receive", "memory")
VERSION = "0.0.4"

_KINDS = {
    0: TaskKind.MARK,
    1: TaskKind.MARK,
    2: TaskKind.MEMORY,
    3: TaskKind.MEMORY,
    4: TaskKind.COMPUTE,
    5: TaskKind.SEND,
    6: TaskKind.RECEIVE,
    7: TaskKind.COLLECTIVE,
    8: TaskKind.HOST,  # storage, batch and checkpoint: what the host does around the step
    9: TaskKind.HOST,
    10: TaskKind.HOST,
}
STREAM_OF = {
    TaskKind.MARK: 1,
    TaskKind.COMPUTE: 0,
    TaskKind.HOST: 1,
    TaskKind.MEMORY: 5,
    TaskKind.COLLECTIVE: 2,
    TaskKind.SEND: 3,
    TaskKind.RECEIVE: 4,
}
COMM_TYPES = {
    0: 0,
    1: 1,
    2: 2,
    3: 3,
    4: 4,
    5: 5,
    6: 6,
    7: 7,
    8: 7,
    9: 8,
}  # comm_type -> COLLECTIVES
OF_ONE_RANK = (COLLECTIVES.index("all-gather"), COLLECTIVES.index("gather"))
_WORLD_GROUPS = frozenset({"", "default_pg"})
"""Names of the group of all ranks, unless the groups' file says otherwise."""


def load(path: str | Path, options: Mapping[str, Any] | None = None) -> Execution:
    """Read the traces of all ranks beside a file ``prefix.<rank>.et``.

    Parameters
    ----------
    path
        One of the files, or ``prefix.et``, or a single trace of one rank.
    options
        ``groups``: JSON file of the groups; default: ``prefix.comm_groups.json`` if there is one.

    Raises
    ------
    ConfigError
        If a file is missing, damaged or says something impossible; with file and byte or node.
    """
    path = Path(path)
    files = chakra_files.rank_files(path)
    prefix = chakra_files.prefix_of(path)
    collector = Collector(prefix, chakra_files.groups_of(path, prefix, options or {}), len(files))
    for some in chakra_files.portions(files):
        collector.add(*some)
    return collector.execution()


class Names:
    """Numbers for texts, in order of first appearance."""

    def __init__(self, texts: Iterable[str] = ()) -> None:
        self.numbers: dict[str, int] = {}
        for text in texts:
            self(text)

    def __call__(self, text: str) -> int:
        """Return the number of a text."""
        return self.numbers.setdefault(text, len(self.numbers))

    def __iter__(self) -> Iterator[str]:
        return iter(self.numbers)


class Collector:
    """Turns what stands in the files into the arrays of an Execution."""

    def __init__(self, name: str, groups: Mapping[str, Sequence[int]], world: int) -> None:
        self.name, self.world, self.groups = name, world, groups
        self.labels, self.streams = Names(), Names(STREAMS)
        self.group_number = {name: number for number, name in enumerate(groups)}
        self.group_sizes = np.array([world, *map(len, groups.values())])
        self.parts: dict[str, list[Any]] = {}
        self.n_tasks = 0
        self.n_invalid = 0
        self.n_removed = 0  # dependencies on nodes that are not there
        self.first_removed = ""

    def add(self, raw: wire.Bytes, ends: Ints, files: Sequence[str]) -> None:
        """Add the traces of the next ranks."""
        read, problem, place = wire.parse(raw, ends)
        if problem:
            file = int(np.searchsorted(ends, place, "right"))
            start = int(ends[file - 1]) if file else 0
            raise ConfigError(
                f"byte {place - start}: {wire.PROBLEMS[problem]}",
                file=files[min(file, len(files) - 1)],
            )
        _Portion(self, raw, read, files).put()
        self.n_tasks += read.nodes.shape[1]

    def put(self, **arrays: Any) -> None:
        """Keep the arrays of a portion."""
        for name, values in arrays.items():
            self.parts.setdefault(name, []).append(values)

    def execution(self) -> Execution:
        """Return everything that was added."""

        def whole(name: str) -> Any:
            return np.concatenate(self.parts[name])

        if self.n_tasks == 0:
            raise ConfigError("the trace has no nodes", file=self.name)
        members = list(self.groups.values())
        counts = whole("count")
        execution = Execution(
            name=self.name,
            ranks=np.arange(len(counts), dtype=np.int32),
            world=self.world,
            task_ptr=np.concatenate([[0], np.cumsum(counts)]).astype(np.int64),
            id=whole("id"),
            kind=whole("kind"),
            stream=whole("stream"),
            label=whole("label"),
            start_s=whole("start_s"),
            duration_s=whole("duration_s"),
            flops=whole("flops"),
            size_bytes=whole("size_bytes"),
            format=whole("format"),
            op=whole("op"),
            group=whole("group"),
            peer=whole("peer"),
            tag=whole("tag"),
            dep_ptr=np.concatenate([[0], np.cumsum(whole("dep_count"))]).astype(np.int64),
            dep_index=whole("dep_index"),
            group_ptr=np.cumsum([0, *map(len, members)], dtype=np.int64),
            group_rank=np.array([rank for ranks in members for rank in ranks], np.int32),
            group_names=tuple(self.groups),
            stream_names=tuple(self.streams),
            label_names=tuple(self.labels),
            notes=tuple(self.notes()),
        )
        check_execution(execution)
        return execution

    def notes(self) -> Iterator[str]:
        """Say what was found that is no task."""
        if self.n_invalid:
            yield f"{self.n_invalid} nodes of type 0 (INVALID_NODE) take no time"
        if self.n_removed:
            yield (
                f"{self.n_removed} dependencies are on nodes that are not in the trace and are left"
                f" out, the first of {self.first_removed}"
            )


class _Portion:
    """The nodes of some files, on their way into a collector."""

    def __init__(
        self, to: Collector, raw: wire.Bytes, read: wire.Wire, files: Sequence[str]
    ) -> None:
        self.to, self.raw, self.read, self.files = to, raw, read, files
        self.nodes = read.nodes

    def put(self) -> None:
        """Give everything to the collector."""
        nodes, kind = self.nodes, self.kinds()
        op = self.ops(kind)
        group = self.groups(kind)
        p2p = (kind == TaskKind.SEND) | (kind == TaskKind.RECEIVE)
        size = np.where(
            p2p | (kind == TaskKind.COLLECTIVE),
            self.number("comm_size"),
            self.number("tensor_size"),
        )
        size[(op == COLLECTIVES.index("barrier")) & np.isnan(size)] = 0.0
        of_one = (op == OF_ONE_RANK[0]) | (op == OF_ONE_RANK[1])
        size[of_one] *= self.to.group_sizes[group[of_one] + 1]
        stated = (nodes[wire.DURATION_US] != 0) | (kind == TaskKind.HOST)
        peer = np.where(kind == TaskKind.SEND, self.whole("comm_dst", -1), np.int32(-1))
        peer = np.where(kind == TaskKind.RECEIVE, self.whole("comm_src", -1), peer)
        self.check_numbers(kind, peer, size)
        dep_count, dep_index = self.deps()
        self.to.n_invalid += int((nodes[wire.TYPE] == 0).sum())
        self.to.put(
            count=np.diff(self.read.file_ptr),
            id=nodes[wire.ID].copy(),
            kind=kind,
            stream=self.streams(kind),
            label=self.labels(),
            start_s=self.seconds("ridgeline_start_s", wire.START_US, nodes[wire.START_US] != 0),
            duration_s=self.seconds("ridgeline_duration_s", wire.DURATION_US, stated),
            flops=self.number("num_ops").copy(),
            size_bytes=size,
            format=self.formats(),
            op=op,
            group=group,
            peer=peer,
            tag=np.where(p2p, self.whole("comm_tag", 0), np.int32(0)),
            dep_count=dep_count,
            dep_index=dep_index,
        )

    def fail(self, node: int, message: str) -> ConfigError:
        """Return an error that names the file and the node."""
        file = int(np.searchsorted(self.read.file_ptr, node, "right")) - 1
        return ConfigError(f"node {self.nodes[wire.ID, node]}: {message}", file=self.files[file])

    def check_numbers(self, kind: Any, peer: Any, size: Any) -> None:
        """Raise ConfigError unless every message and collective says what it needs."""
        for name in ("num_ops", "tensor_size", "comm_size"):
            values = self.number(name)
            bad = np.flatnonzero((values < 0) | np.isinf(values))
            if len(bad):
                node = int(bad[0])
                raise self.fail(node, f"{name} is {values[node]:g}, allowed is 0 or more")
        p2p = (kind == TaskKind.SEND) | (kind == TaskKind.RECEIVE)
        lonely = np.flatnonzero(p2p & ((peer < 0) | (peer >= self.to.world)))
        if len(lonely):
            node = int(lonely[0])
            field = "comm_dst" if kind[node] == TaskKind.SEND else "comm_src"
            found = "is missing" if peer[node] == -1 else f"is {peer[node]}"
            ranks = "the only rank is 0" if self.to.world == 1 else f"0 to {self.to.world - 1}"
            raise self.fail(node, f"{field}, the rank of the other side, {found} (ranks: {ranks})")
        silent = np.flatnonzero((p2p | (kind == TaskKind.COLLECTIVE)) & np.isnan(size))
        if len(silent):
            raise self.fail(int(silent[0]), "comm_size, the bytes that it moves, is missing")

    def number(self, name: str) -> Any:
        """[N] A number of every node, NaN where there is none."""
        return self.read.numbers[wire.NUMBERS.index(name)]

    def whole(self, name: str, absent: int) -> Any:
        """[N] A number of every node that must be whole and fit into 32 bits."""
        values = self.number(name)
        whole, bad = chakra_ids.whole_numbers(values, absent)
        if bad >= 0:
            raise self.fail(bad, f"{name} is {values[bad]:.17g}, a whole number is needed")
        return whole

    def seconds(self, name: str, column: int, stated: Any) -> Any:
        """[N] A time: the exact attribute, else the microseconds of the schema's field."""
        rounded = np.where(stated, self.nodes[column] / 1e6, np.nan)
        exact = self.number(name)
        return np.where(np.isnan(exact), rounded, exact)

    def kinds(self) -> Any:
        """[N] What every node does."""
        types = self.nodes[wire.TYPE]
        bad = (types < 0) | (types > max(_KINDS))
        if bad.any():
            node = int(np.argmax(bad))
            known = f"{min(_KINDS)} to {max(_KINDS)}"
            raise self.fail(node, f"type {types[node]} is not known (known: {known})")
        kind = np.array(list(_KINDS.values()), np.uint8)[types]
        of_host = self.number("is_cpu_op") > 0
        kind[of_host & (kind != TaskKind.MARK)] = TaskKind.HOST
        return kind

    def ops(self, kind: Any) -> Any:
        """[N] Which collective."""
        op = np.full(len(kind), -1, np.int8)
        chosen = kind == TaskKind.COLLECTIVE
        comm_type = self.whole("comm_type", -1)
        bad = chosen & ((comm_type < 0) | (comm_type > max(COMM_TYPES)))
        if bad.any():
            node = int(np.argmax(bad))
            raise self.fail(
                node,
                "comm_type is missing"
                if comm_type[node] == -1
                else f"comm_type {comm_type[node]} is not known (known: 0 to {max(COMM_TYPES)})",
            )
        op[chosen] = np.array(list(COMM_TYPES.values()), np.int8)[comm_type[chosen]]
        return op

    def texts(self, at: Any, size: Any, hashes: Any) -> tuple[list[str], Ints, Ints]:
        """Return the different texts by first appearance, which one each is, and who has it."""
        which, first = chakra_ids.distinct(hashes)
        texts = [
            self.raw[at[i] : at[i] + size[i]].tobytes().decode("utf-8", "replace") for i in first
        ]
        return texts, which, first

    def named(self, attribute: str, among: Any = True) -> tuple[Ints, list[str], Ints, Ints]:
        """Return which nodes have a text, the different ones, which of them, and the first node."""
        columns = self.read.texts[wire.TEXTS.index(attribute)]
        chosen = np.flatnonzero((columns[wire.SIZE] >= 0) & among)
        at, size, hashes = columns[:, chosen]
        texts, which, first = self.texts(at, size, hashes)
        return chosen, texts, which, chosen[first]

    def labels(self) -> Indices:
        """[N] Names of the nodes."""
        nodes = self.nodes
        texts, which, _ = self.texts(
            nodes[wire.NAME_AT], nodes[wire.NAME_SIZE], nodes[wire.NAME_HASH]
        )
        return np.array([self.to.labels(text) for text in texts], np.int32)[which]

    def streams(self, kind: Any) -> Indices:
        """[N] Where every node is played."""
        stream: Indices = np.array([STREAM_OF[k] for k in TaskKind], np.int32)[kind]
        chosen, texts, which, _ = self.named("ridgeline_stream")
        stream[chosen] = np.array([self.to.streams(one) for one in texts], np.int32)[which]
        return stream

    def formats(self) -> Any:
        """[N] Number formats."""
        formats = np.full(self.nodes.shape[1], -1, np.int8)
        chosen, texts, which, first = self.named("ridgeline_format")
        for text, node in zip(texts, first, strict=True):
            if text not in FORMATS:
                known = ", ".join(FORMATS)
                raise self.fail(int(node), f"number format {text!r} is not known (known: {known})")
        formats[chosen] = np.array([FORMATS.index(one) for one in texts], np.int8)[which]
        return formats

    def groups(self, kind: Any) -> Indices:
        """[N] Groups of the collectives."""
        group = np.full(self.nodes.shape[1], -1, np.int32)
        collective = kind == TaskKind.COLLECTIVE
        chosen, texts, which, first = self.named("pg_name", collective)
        numbers = [self.group(name, int(node)) for name, node in zip(texts, first, strict=True)]
        group[chosen] = np.array(numbers, np.int32)[which]
        columns = self.read.texts[wire.TEXTS.index("pg_name")]
        whole = np.flatnonzero((columns[wire.SIZE] == wire.WHOLE) & collective)
        for value in np.unique(columns[wire.AT, whole]):  # some writers number the groups
            here = whole[columns[wire.AT, whole] == value]
            group[here] = self.group(str(value), int(here[0]))
        return group

    def group(self, name: str, node: int) -> int:
        """Return the number of a group, -1 for all ranks."""
        known = self.to.group_number
        if name in known:
            return known[name]
        if name in _WORLD_GROUPS:
            return -1
        if name == "0" and not known:  # PyTorch's name of it
            return -1
        if known:
            listed = ", ".join(list(known)[:20])
            raise self.fail(node, f"there is no group {name!r} (there are: {listed})")
        raise self.fail(
            node,
            f"it names the group {name!r}, and there is no file of groups"
            f" ({self.to.name}{chakra_files.GROUPS_SUFFIX}, or the option groups)",
        )

    def deps(self) -> tuple[Ints, Indices]:
        """[N] How many nodes each one waits for, and which: numbers of tasks in place of ids."""
        ids, file_ptr, deps = self.nodes[wire.ID], self.read.file_ptr, self.read.deps.copy()
        order, twin = chakra_ids.order_of(ids, file_ptr)
        if twin >= 0:
            raise self.fail(twin, "another node has the same id")
        counts = np.diff(self.read.dep_ptr)
        if chakra_ids.find_ids(ids, file_ptr, order, self.read.dep_ptr, deps):
            gone = np.flatnonzero(deps < 0)
            waiting = np.searchsorted(self.read.dep_ptr, gone, "right") - 1
            if not self.to.n_removed:
                example = self.fail(int(waiting[0]), f"waits for {self.read.deps[gone[0]]}")
                self.to.first_removed = str(example)
            self.to.n_removed += len(gone)
            counts = counts - np.bincount(waiting, minlength=len(counts))
            deps = deps[deps >= 0]
        return counts, (deps + self.to.n_tasks).astype(np.int32)
