"""Collectives written to files: MSCCL's XML, Chakra traces that ASTRA-sim plays, GOAL.

- MSCCL: for every peer a rank has a threadblock that sends, and one that receives; what a step
  waits for besides its threadblock are steps of others (``depid``, ``deps``), on steps of their own
  where there are several. Read again by `msccl`.
- Chakra: one file a rank, of sends and receives (``all-reduce-implementation-custom`` in a system
  file of ASTRA-sim). Like the traces that come with it they hold the XML, so that what they move
  can be verified when they are read (`chakra_collective`).
- GOAL, the schedules of LogGOPSim (T. Hoefler, T. Schneider and A. Lumsdaine, "LogGOPSim -
  Simulating Large-Scale Applications in the LogGOPS Model", LSAP 2010): a send waits for what it
  passes on.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple
from xml.etree import ElementTree

from ridgeline.errors import ConfigError
from ridgeline.network.message_graph import GraphMessage, messages_of
from ridgeline.network.message_schedule import MessageSchedule
from ridgeline.workload.trace import chakra_encode as encode
from ridgeline.workload.trace.chakra import VERSION

_MSCCL_NAMES = {
    "all-reduce": "allreduce",
    "all-gather": "allgather",
    "reduce-scatter": "reducescatter",
}
"""Operations whose slots are chunks of one payload, the same for all ranks."""
SUFFIXES = (".goal", ".et", ".xml")


def written_files(
    path: str, op: str, name: str, script: MessageSchedule, n: int
) -> dict[str, bytes]:
    """Return what the files of a collective hold, by path.

    Parameters
    ----------
    path
        Its suffix says what is written; of a Chakra trace ``prefix.et`` becomes ``prefix.0.et``,
        ``prefix.1.et``, ...
    n
        Ranks.

    Raises
    ------
    ConfigError
        If there is no such kind of file, or it cannot hold the collective.
    """
    suffix = Path(path).suffix
    if suffix not in SUFFIXES:
        raise ConfigError(
            f"a schedule is written as {', '.join(SUFFIXES)}; found {suffix!r}", file=path
        )
    messages = messages_of(script)
    if suffix == ".goal":
        return {path: goal_text(messages, n).encode()}
    text = msccl_text(path, op, name, script, messages, n)
    if suffix == ".xml":
        return {path: text.encode()}
    prefix = path.removesuffix(".et")
    traces = {f"{prefix}.{rank}.et": trace for rank, trace in enumerate(_traces(text, messages, n))}
    return traces


def goal_text(messages: Sequence[GraphMessage], n: int) -> str:
    """Write a GOAL schedule; bytes are whole, and a message has at least one."""
    lines = [f"num_ranks {n}", ""]
    for rank in range(n):
        own: dict[tuple[str, int], int] = {}
        said, waits = [], []
        for m, one in enumerate(messages):
            if one.source == rank:
                own["send", m] = len(own) + 1
                size, label = max(1, round(one.size_bytes)), own["send", m]
                said.append(f"l{label}: send {size}b to {one.target} tag {one.round}")
                waits += [f"l{label} requires l{own['receive', k]}" for k in one.send_after]
            if one.target == rank:
                own["receive", m] = len(own) + 1
                size = max(1, round(one.size_bytes))
                said.append(f"l{own['receive', m]}: recv {size}b from {one.source} tag {one.round}")
        lines += [f"rank {rank} {{", *said, *waits, "}", ""]
    return "\n".join(lines)


class _Step(NamedTuple):
    kind: str
    first: int
    n_slots: int
    after: tuple[tuple[int, int], ...]


def msccl_text(
    path: str, op: str, name: str, script: MessageSchedule, messages: Sequence[GraphMessage], n: int
) -> str:
    """Write MSCCL's XML, in place.

    Raises
    ------
    ConfigError
        If the operation's slots are not those of one payload, or they are of unequal sizes.
    """
    sizes, slots = script.slot_bytes, len(script.slot_bytes)
    if op not in _MSCCL_NAMES:
        raise ConfigError(
            f"{op} is not written as MSCCL's chunks (allowed: {', '.join(_MSCCL_NAMES)}); as"
            " .goal it is",
            file=path,
        )
    if sizes.max() > sizes.min() * (1 + 1e-9):
        raise ConfigError(
            f"chunks of MSCCL are of one size; those of {name} are of {sizes.min():g} to"
            f" {sizes.max():g} B",
            file=path,
        )
    if op != "all-reduce" and any(
        int(owner) != slot // (slots // n) for slot, owner in enumerate(script.owner)
    ):
        raise ConfigError(f"the chunks of {name} are not in the order of ranks", file=path)
    root = ElementTree.Element(
        "algo",
        name=name,
        proto="Simple",
        nchannels="1",
        nchunksperloop=str(slots),
        ngpus=str(n),
        coll=_MSCCL_NAMES[op],
        inplace="1",
    )
    held = "i" if op != "all-gather" else "o"
    for rank in range(n):
        gpu = ElementTree.SubElement(
            root, "gpu", id=str(rank), i_chunks=str(slots), o_chunks="0", s_chunks="0"
        )
        for number, (peer, sends, steps) in enumerate(_threadblocks(messages, rank)):
            ends = {"send": str(peer if sends else -1), "recv": str(-1 if sends else peer)}
            block = ElementTree.SubElement(gpu, "tb", {"id": str(number), "chan": "0", **ends})
            for k, (kind, first, count, after) in enumerate(_single(steps)):
                depid, dep = after if after else (-1, -1)
                ElementTree.SubElement(
                    block,
                    "step",
                    s=str(k),
                    type=kind,
                    srcbuf=held,
                    srcoff=str(first),
                    dstbuf=held,
                    dstoff=str(first),
                    cnt=str(count),
                    depid=str(depid),
                    deps=str(dep),
                    hasdep="1",
                )
    ElementTree.indent(root)
    return ElementTree.tostring(root, encoding="unicode") + "\n"


def _threadblocks(
    messages: Sequence[GraphMessage], rank: int
) -> Iterator[tuple[int, bool, list[_Step]]]:
    """Yield peer, direction and steps of every threadblock of a rank.

    A threadblock's steps are counted with those on which they wait for several others.
    """
    mine: dict[tuple[bool, int], list[int]] = defaultdict(list)
    for m, one in enumerate(messages):
        if one.source == rank:
            mine[True, one.target].append(m)
        if one.target == rank:
            mine[False, one.source].append(m)
    number = {key: k for k, key in enumerate(mine)}
    where: dict[tuple[bool, int], tuple[int, int]] = {}
    waits: dict[tuple[bool, int], list[tuple[bool, int]]] = {}
    for key, own in mine.items():
        sends, at = key[0], 0
        for m in own:
            one = messages[m]
            sent_on, received = one.receive_after
            needs = [(False, k) for k in one.send_after]
            if not sends:
                needs = [(True, k) for k in sent_on] + [(False, k) for k in received]
            waits[sends, m] = needs
            at += max(1, len(needs))
            where[sends, m] = number[key], at - 1
    for key, own in mine.items():
        steps = []
        for m in own:
            one = messages[m]
            kind = "s" if key[0] else "rrc" if one.combine else "r"
            after = tuple(where[need] for need in waits[key[0], m])
            steps.append(_Step(kind, one.first, one.n_slots, after))
        yield key[1], key[0], steps


def _single(steps: Sequence[_Step]) -> Iterator[tuple[str, int, int, tuple[int, int] | None]]:
    """Give every step one other to wait for: empty steps wait for the others."""
    for kind, first, count, after in steps:
        for other in after[:-1]:
            yield "nop", 0, 0, other
        yield kind, first, count, after[-1] if after else None


def _traces(text: str, messages: Sequence[GraphMessage], n: int) -> Iterator[bytes]:
    """Yield the Chakra trace of every rank."""
    head = encode.field(1, VERSION.encode())
    for key, value in (("schema", f"1.0.2-chakra.{VERSION}"), ("input_file", text)):
        head += encode.field(2, encode.field(1, key.encode()) + encode.field(29, value.encode()))
    for rank in range(n):
        parts = [encode.message(head)]
        ids: dict[tuple[bool, int], int] = {}
        for m, one in enumerate(messages):
            for sends in (True, False):
                if rank != (one.source if sends else one.target):
                    continue
                ids[sends, m] = number = len(ids)
                kind = "SEND" if sends else "RECV"
                node = encode.field(1, number) if number else b""
                node += encode.field(2, f"COMM_{kind}_NODE_{one.round}_{m}".encode())
                node += encode.field(3, 5 if sends else 6)
                deps = [ids[False, k] for k in one.send_after] if sends else []
                if deps:
                    node += encode.field(5, b"".join(map(encode.varint, deps)))
                node += encode.attribute("comm_type", 5 if sends else 6)
                node += encode.attribute("comm_size", max(1, round(one.size_bytes)))
                node += encode.attribute("comm_src", one.source)
                node += encode.attribute("comm_dst", one.target)
                node += encode.attribute("comm_tag", 0)
                parts.append(encode.message(node))
        yield b"".join(parts)
