"""Custom collectives of ASTRA-sim: Chakra traces of sends and receives, one file a rank.

A trace says what is sent, but not of which chunk. Those that are made from MSCCL's XML, as the ones
that come with ASTRA-sim, hold that XML (``input_file`` of the metadata): it is played and verified,
and every trace that is there has to send and receive what it says, in the same order and in one
size a chunk. A trace without it promises nothing that could be verified, and is refused.
"""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

import numpy as np

from ridgeline.bounded_files import decoded, read_bytes
from ridgeline.errors import ConfigError
from ridgeline.network.msccl import parse_msccl
from ridgeline.network.user_collectives import UserCollective
from ridgeline.workload.trace import chakra_files
from ridgeline.workload.trace import chakra_wire as wire

_SEND, _RECEIVE = 5, 6
_NAME_FIELD, _TEXT_FIELD, _ATTRIBUTE_FIELD = 1, 29, 2
_MOST_BYTES = 256 * 2**20


def read_chakra_collective(path: str | Path) -> UserCollective:
    """Read a custom collective and verify what it does.

    Parameters
    ----------
    path
        One of the files ``prefix.<rank>.et``, or ``prefix.et``: those that are there are compared.

    Raises
    ------
    ConfigError
        If there is no such trace, it holds no algorithm, or does something else.
    WrongCollectiveError
        If the algorithm does not do its operation.
    """
    path = Path(path)
    files = chakra_files.found_files(path)
    found: UserCollective | None = None
    unit: float | None = None
    text = ""
    for rank, file in files.items():
        raw = read_bytes(file, _MOST_BYTES)
        own = _algorithm(raw, str(file))
        if found is None:
            text, found = own, parse_msccl(own, str(file))
        elif own != text:
            raise ConfigError(f"the algorithm is another one than in {min(files)}", file=str(file))
        if rank >= found.n_ranks:
            raise ConfigError(f"rank {rank} of {found.n_ranks}", file=str(file))
        unit = _compare(found, rank, raw, str(file), unit)
    assert found is not None
    return found


def _algorithm(raw: bytes, file: str) -> str:
    """Return the XML in the metadata of a trace, its first message."""
    size, at = _varint(raw, 0, file)
    end = at + size
    if end > len(raw):
        raise ConfigError("the file ends in the middle of a message", file=file)
    while at < end:
        field, value, at = _field(raw, at, file)
        if field != _ATTRIBUTE_FIELD:
            continue
        inside, parts = 0, {}
        while inside < len(value):
            number, part, inside = _field(value, inside, file)
            parts[number] = part
        if parts.get(_NAME_FIELD) == b"input_file":
            return decoded(parts.get(_TEXT_FIELD, b""), file)
    raise ConfigError(
        "a trace says what is sent, but not of which chunk, so it cannot be verified; allowed: "
        "traces that hold the XML of MSCCL that they are made from (input_file)",
        file=file,
    )


def _field(raw: bytes, at: int, file: str) -> tuple[int, bytes, int]:
    """Return number and content of a field, and where the next begins; of numbers no content."""
    tag, at = _varint(raw, at, file)
    kind = tag & 7
    if kind == 0:
        _, at = _varint(raw, at, file)
        return tag >> 3, b"", at
    size = {1: 8, 5: 4}.get(kind)
    if size is None:
        size, at = _varint(raw, at, file)
    if at + size > len(raw) or kind not in {1, 2, 5}:
        raise ConfigError(f"byte {at}: this is no Chakra trace", file=file)
    return tag >> 3, raw[at : at + size], at + size


def _varint(raw: bytes, at: int, file: str) -> tuple[int, int]:
    value = shift = 0
    while at < len(raw) and shift < 64:
        value |= (raw[at] & 127) << shift
        at, shift = at + 1, shift + 7
        if raw[at - 1] < 128:
            return value, at
    raise ConfigError(f"byte {at}: this is no Chakra trace", file=file)


def _compare(
    found: UserCollective, rank: int, raw: bytes, file: str, unit: float | None
) -> float | None:
    """Compare the messages of a trace with those of its algorithm; return the bytes of a chunk."""
    read, problem, place = wire.parse(np.frombuffer(raw, np.uint8), np.array([len(raw)]))
    if problem:
        raise ConfigError(f"byte {place}: {wire.PROBLEMS[problem]}", file=file)
    column = {name: read.numbers[k] for k, name in enumerate(wire.NUMBERS)}
    asked: defaultdict[tuple[int, int], list[int]] = defaultdict(list)
    for message in found.messages:
        if message.source == rank:
            asked[_SEND, message.target].append(message.chunks)
        if message.target == rank:
            asked[_RECEIVE, message.source].append(message.chunks)
    done: defaultdict[tuple[int, int], list[float]] = defaultdict(list)
    for node, kind in enumerate(read.nodes[wire.TYPE].tolist()):
        if kind in {_SEND, _RECEIVE}:
            peer = column["comm_dst" if kind == _SEND else "comm_src"][node]
            if np.isnan(peer):
                raise ConfigError(f"node {node} does not say its other end", file=file)
            done[kind, int(peer)].append(float(column["comm_size"][node]))
    for kind, peer in sorted({*asked, *done}):
        chunks, sizes = asked[kind, peer], done[kind, peer]
        what = f"{'sends to' if kind == _SEND else 'receives from'} rank {peer}"
        if len(chunks) != len(sizes):
            raise ConfigError(
                f"rank {rank} {what} {len(sizes)} times; its algorithm {len(chunks)} times",
                file=file,
            )
        for k, (count, size) in enumerate(zip(chunks, sizes, strict=True)):
            unit = size / count if unit is None else unit
            if abs(size - unit * count) > 1e-6 * unit:
                raise ConfigError(
                    f"message {k} that rank {rank} {what} has {size:g} B; {count} chunks of"
                    f" {unit:g} B are {count * unit:g} B",
                    file=file,
                )
    return unit
