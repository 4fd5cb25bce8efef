"""The files of a Chakra trace: one ``prefix.<rank>.et`` a rank, and the groups of ranks as JSON."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ridgeline.bounded_files import read_bytes, read_json
from ridgeline.errors import ConfigError, nearest
from ridgeline.workload.execution import MAX_RANKS, Ints
from ridgeline.workload.trace import chakra_wire as wire

MAX_RANK_BYTES = 2**29
PORTION_BYTES = 8 * 2**20
MAX_GROUP_BYTES = 64 * 2**20
GROUPS_SUFFIX = ".comm_groups.json"
_NAME = re.compile(r"(?P<prefix>.*)\.(?P<rank>\d{1,6})\.et")


def portions(files: Sequence[Path]) -> Iterator[tuple[wire.Bytes, Ints, list[str]]]:
    """Read some files at a time: their bytes, where each ends, and their names."""
    raw: list[bytes] = []
    ends: list[int] = []
    names: list[str] = []
    for file in files:
        raw.append(read_bytes(file, MAX_RANK_BYTES))
        if len(raw[-1]) == 0:
            raise ConfigError("the file is empty", file=str(file))
        names.append(str(file))
        ends.append(len(raw[-1]) + (ends[-1] if ends else 0))
        if ends[-1] > PORTION_BYTES:
            yield np.frombuffer(b"".join(raw), np.uint8), np.array(ends), names
            raw, ends, names = [], [], []
    if raw:
        yield np.frombuffer(b"".join(raw), np.uint8), np.array(ends), names


def groups_of(path: Path, prefix: str, options: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
    """Read the groups from where the options say, or from beside the trace; none if neither."""
    for name in options:
        if name != "groups":
            near = nearest(name, ["groups"])
            raise ConfigError(f"unknown option{near} (known: groups)", file=str(path), field=name)
    beside = path.with_name(prefix + GROUPS_SUFFIX)
    if "groups" in options:
        return read_groups(str(options["groups"]))
    return read_groups(beside) if beside.exists() else {}


def rank_files(path: Path) -> list[Path]:
    """Return the files of all ranks, in order, or raise ConfigError if one is missing."""
    if path.exists() and not _NAME.fullmatch(path.name):
        return [path]
    prefix, found = prefix_of(path), found_files(path)
    for rank in range(len(found)):
        if rank not in found:
            raise ConfigError(
                f"the trace of rank {rank} is missing ({prefix}.{rank}.et); there are"
                f" {len(found)} files up to rank {max(found)}",
                file=str(path),
            )
    return [found[rank] for rank in range(len(found))]


def found_files(path: Path) -> dict[int, Path]:
    """Return the files of a trace by rank, as far as there are any; raise ConfigError if none."""
    prefix = prefix_of(path)
    found = {}
    try:
        for file in path.parent.iterdir():
            match = _NAME.fullmatch(file.name)
            if match and match["prefix"] == prefix:
                found[int(match["rank"])] = file
    except OSError as error:
        raise ConfigError(f"cannot be read: {error.strerror}", file=str(path.parent)) from error
    if not found:
        raise ConfigError("there is no such trace", file=str(path))
    if len(found) > MAX_RANKS:
        raise ConfigError(f"more than {MAX_RANKS} ranks", file=str(path))
    return dict(sorted(found.items()))


def prefix_of(path: Path) -> str:
    """Return what the names of all ranks' files begin with."""
    match = _NAME.fullmatch(path.name)
    return match["prefix"] if match else path.name.removesuffix(".et")


def read_groups(path: str | Path) -> dict[str, tuple[int, ...]]:
    """Read ``{"name": [ranks], ...}``, or raise ConfigError."""
    file = str(path)
    data = read_json(path, MAX_GROUP_BYTES)
    if not isinstance(data, dict):
        raise ConfigError("expected an object of groups of ranks", file=file)
    groups = {}
    for name, ranks in data.items():
        if (
            not isinstance(ranks, list)
            or not ranks
            or not all(type(rank) is int and 0 <= rank < MAX_RANKS for rank in ranks)
            or len(set(ranks)) != len(ranks)
        ):
            raise ConfigError(
                f"expected a list of different ranks, found {ranks!r:.60}", file=file, field=name
            )
        groups[name] = tuple(ranks)
    return groups
