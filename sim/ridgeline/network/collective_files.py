"""Read collectives of users from files, and verify them: MSCCL, MSCCL++, Chakra, rounds in YAML."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import Literal

import numpy as np
from pydantic import Field

from ridgeline.config import Strict, read_yaml, validate
from ridgeline.errors import ConfigError
from ridgeline.network.message_schedule import make_script, make_step
from ridgeline.network.user_collectives import Message, UserCollective
from ridgeline.network.verification import verify_script

SUFFIXES = frozenset({".xml", ".json", ".et", ".yaml", ".yml"})
"""Of files with a collective: MSCCL's XML, MSCCL++'s JSON, Chakra traces, and rounds in YAML."""


def is_collective_file(algorithm: str) -> bool:
    """Tell whether the name of an algorithm is that of a file."""
    return Path(algorithm).suffix in SUFFIXES


@lru_cache(maxsize=32)
def _read(path: str, changed: int) -> UserCollective:
    suffix = Path(path).suffix
    if suffix == ".xml":
        from ridgeline.network.msccl import read_msccl

        return read_msccl(path)
    if suffix == ".json":
        from ridgeline.network.mscclpp import read_mscclpp

        return read_mscclpp(path)
    if suffix == ".et":
        from ridgeline.network.chakra_collective import read_chakra_collective

        return read_chakra_collective(path)
    return _read_rounds(path)


def _files(path: Path) -> list[Path]:
    """Return the files of a collective: of a Chakra trace there is one a rank."""
    if path.suffix != ".et":
        return [path]
    from ridgeline.workload.trace.chakra_files import found_files

    return list(found_files(path).values())


def read_collective(path: str | Path) -> UserCollective:
    """Read a collective from a file, and verify it.

    Raises
    ------
    RidgelineError
        If it cannot be read, or does not do what its operation promises.
    """
    try:
        changed = max(one.stat().st_mtime_ns for one in _files(Path(path)))
    except OSError as error:
        raise ConfigError(f"cannot be read: {error.strerror or error}", file=str(path)) from error
    return _read(str(path), changed)


class _RoundMessage(Strict):
    source: int = Field(alias="from", ge=0)
    target: int = Field(alias="to", ge=0)
    chunk: int = Field(ge=0)
    add: bool = False
    """Whether the target adds what it gets to what it has."""


class _Rounds(Strict):
    """A collective as rounds of messages."""

    kind: Literal["collective"]
    name: str
    operation: Literal["all-reduce", "all-gather", "reduce-scatter", "all-to-all", "broadcast"]
    ranks: int = Field(ge=2, le=4096)
    chunks: int = Field(ge=1, le=65536)
    """Of the payload: of an all-gather and a reduce-scatter the same number of each rank, in order;
    of an all-to-all of each pair, by source and then by target."""
    rounds: list[list[_RoundMessage]]
    """Messages that are sent at once, round by round."""


def _read_rounds(path: str) -> UserCollective:
    """Read rounds of messages from YAML."""
    of = validate(read_yaml(path), _Rounds)
    n, chunks = of.ranks, of.chunks
    pairs = of.operation == "all-to-all"
    places = {"all-reduce": 1, "broadcast": 1, "all-to-all": n * n}.get(of.operation, n)
    if chunks % places:
        raise ConfigError(
            f"{of.operation} of {n} ranks needs a multiple of {places} chunks; found {chunks}",
            file=path,
            field="chunks",
        )
    steps, messages = [], []
    for number, sent in enumerate(of.rounds):
        for index, one in enumerate(sent):
            if max(one.source, one.target) >= n or one.chunk >= chunks or one.source == one.target:
                raise ConfigError(
                    f"a message goes between two of ranks 0 to {n - 1} with one of chunks 0 to "
                    f"{chunks - 1}; found {one.source} to {one.target}, chunk {one.chunk}",
                    file=path,
                    field=f"rounds.{number}.{index}",
                )
        for add in (False, True):
            own = [one for one in sent if one.add is add]
            if own:
                source, target, chunk = np.array(
                    [(one.source, one.target, one.chunk) for one in own], np.int64
                ).T
                wave = 0 if not add or len(own) == len(sent) else 1
                steps.append(make_step(source, target, chunk, span=chunks, combine=add, wave=wave))
        messages += [Message(number, one.source, one.target, 1) for one in sent]
    place = np.arange(chunks) // (chunks // places)
    whole = {"all-to-all": float(n)}.get(of.operation, 1.0)
    asked = np.full(places, whole / places)
    script = make_script(
        np.full(chunks, whole / chunks),
        steps,
        owner=place % n if pairs else place if places == n else None,
        origin=place // n if pairs else None,
    )
    verify_script(of.name, of.operation, script, asked, n)
    return UserCollective(of.name, of.operation, n, whole / chunks, tuple(messages))
