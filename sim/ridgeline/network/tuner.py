"""Tables of NCCL's tuner plug-in: which algorithm and protocol to take, by size, nodes and ranks.

CSV as its example plug-in reads it (NVIDIA/nccl, plugins/tuner/example): collective, least and most
bytes, algorithm, protocol, channels, nodes, ranks, operations of a group, registered buffers; -1
stands for any, the first row that matches counts, and the last two columns may be left out.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from ridgeline.bounded_files import read_text
from ridgeline.errors import ConfigError, RidgelineError, nearest
from ridgeline.network import nccl
from ridgeline.network.schedule import CollectiveSchedule, closed_form_time_s
from ridgeline.network.topology import Topology

SUFFIXES = (".conf", ".csv")
_COLLECTIVES = {
    "broadcast": "broadcast",
    "reduce": "reduce",
    "allgather": "all-gather",
    "reducescatter": "reduce-scatter",
    "allreduce": "all-reduce",
}
_ALGORITHMS = ("tree", "ring", "collnet_direct", "collnet_chain", "nvls", "nvls_tree", "pat")
_PROTOCOLS = ("ll", "ll128", "simple")
_COLUMNS = ("collective_type", "min_bytes", "max_bytes", "algorithm", "protocol", "channels",
            "nNodes", "nRanks", "numPipeOps", "regBuff")  # fmt: skip
_ANY = -1
_LEAST_BYTES = 1024


class TunerRow(NamedTuple):
    """One row; numbers below zero stand for any."""

    op: str
    least_bytes: int
    most_bytes: int
    algorithm: str
    protocol: str
    channels: int = _ANY
    nodes: int = _ANY
    ranks: int = _ANY

    @property
    def name(self) -> str:
        """The algorithm with its protocol, as `nccl` names it."""
        name = self.algorithm.replace("_", "-")
        return name if name.startswith("nvls") else f"{name}-{self.protocol}"

    def matches(self, op: str, size_bytes: float, nodes: int, ranks: int) -> bool:
        """Tell whether the row is for a collective."""
        return (
            self.op == op
            and self.least_bytes <= size_bytes <= self.most_bytes
            and self.nodes in {_ANY, nodes}
            and self.ranks in {_ANY, ranks}
        )


def read_tuner(path: str | Path) -> list[TunerRow]:
    """Read a table.

    Raises
    ------
    ConfigError
        With file, line and column of the first mistake.
    """
    rows = []
    for number, line in enumerate(read_text(path).splitlines(), 1):
        text = line.strip()
        if not text or text.startswith("#"):
            continue
        cells = [cell.strip() for cell in text.split(",")]
        if cells[0] in {"collective_type", "collective"}:
            continue
        rows.append(_row(cells, str(path), number))
    if not rows:
        raise ConfigError("a tuner's table without rows", file=str(path))
    return rows


def _row(cells: Sequence[str], file: str, line: int) -> TunerRow:
    if not 8 <= len(cells) <= len(_COLUMNS):
        raise ConfigError(
            f"a row has 8 to {len(_COLUMNS)} columns ({', '.join(_COLUMNS)}); found {len(cells)}",
            file=file,
            line=line,
        )
    for column, known in ((0, _COLLECTIVES), (3, _ALGORITHMS), (4, _PROTOCOLS)):
        if cells[column].lower() not in known:
            raise ConfigError(
                f"found {cells[column]!r}{nearest(cells[column], known)}"
                f" (known: {', '.join(known)})",
                file=file,
                line=line,
                field=_COLUMNS[column],
            )
    numbers = {}
    for column in (1, 2, *range(5, len(cells))):
        try:
            numbers[column] = int(cells[column])
        except ValueError:
            raise ConfigError(
                f"a whole number; found {cells[column]!r}",
                file=file,
                line=line,
                field=_COLUMNS[column],
            ) from None
    op, algorithm, protocol = (cells[column].lower() for column in (0, 3, 4))
    return TunerRow(
        _COLLECTIVES[op], numbers[1], numbers[2], algorithm, protocol,
        *(numbers[column] for column in (5, 6, 7)),
    )  # fmt: skip


def tuned_schedule(
    path: str, op: str, topology: Topology, group: Sequence[int], size_bytes: float
) -> CollectiveSchedule:
    """Return what NCCL takes with a table: that of the first row that matches, or its own choice.

    Raises
    ------
    RidgelineError
        If NCCL has no such algorithm here.
    """
    nodes = _nodes(topology, group)
    options = {one.algorithm: one for one in nccl.candidates(op, topology, group, size_bytes)}
    if not options:
        raise RidgelineError(f"{path} is for machines that NCCL drives; {topology.name} is none")
    for row in read_tuner(path):
        if row.matches(op, size_bytes, nodes, len(group)):
            if row.name not in options:
                raise RidgelineError(
                    f"{path} takes {row.name} for {op}, which is not modelled here"
                    f"{nearest(row.name, options)} (there are: {', '.join(options)})"
                )
            return options[row.name]
    chosen = nccl.choice(op, topology, group, size_bytes)
    assert chosen is not None
    return chosen


def best_rows(
    ops: Sequence[str], topology: Topology, group: Sequence[int], most_bytes: float
) -> list[TunerRow]:
    """Return the fastest algorithm and protocol by size; borders to the byte, between powers of 2.

    Raises
    ------
    RidgelineError
        If NCCL does not drive the links.
    """
    rows: list[TunerRow] = []
    nodes, ranks = _nodes(topology, group), len(group)
    for op in ops:
        sizes = [_LEAST_BYTES]
        while sizes[-1] * 2 <= most_bytes:
            sizes.append(sizes[-1] * 2)
        names = [_fastest(op, topology, group, size) for size in sizes]
        begin, name = 0, names[0]
        for below, above, other in zip(sizes, sizes[1:], names[1:], strict=False):
            low = below
            while name != other:  # a third one may be the fastest in between
                high = above
                while high - low > 1:
                    middle = (low + high) // 2
                    if _fastest(op, topology, group, middle) == name:
                        low = middle
                    else:
                        high = middle
                rows.append(_row_of(op, begin, low, name, nodes, ranks))
                begin, low, name = high, high, _fastest(op, topology, group, high)
        rows.append(_row_of(op, begin, max(int(most_bytes), begin), name, nodes, ranks))
    return rows


def _row_of(op: str, least: int, most: int, name: str, nodes: int, ranks: int) -> TunerRow:
    algorithm, _, protocol = name.partition("-")
    if algorithm == "nvls":
        algorithm, protocol = name.replace("-", "_"), "simple"
    return TunerRow(op, least, most, algorithm, protocol, _ANY, nodes, ranks)


def _fastest(op: str, topology: Topology, group: Sequence[int], size_bytes: float) -> str:
    found = nccl.candidates(op, topology, group, size_bytes)
    if not found:
        raise RidgelineError(
            f"NCCL has no {op} on {topology.name}: its table has"
            f" {', '.join(_COLLECTIVES.values())} on links that it drives"
        )
    return min((closed_form_time_s(one, topology), one.algorithm) for one in found)[1]


def _nodes(topology: Topology, group: Sequence[int]) -> int:
    return len(set(topology.node_of[topology.devices[list(group)]].tolist()))


def tuner_text(rows: Sequence[TunerRow]) -> str:
    """Write a table."""
    known = {op: name for name, op in _COLLECTIVES.items()}
    lines = [f"# {','.join(_COLUMNS)}"]
    lines += [
        f"{known[row.op]},{row.least_bytes},{row.most_bytes},{row.algorithm},{row.protocol},"
        f"{row.channels},{row.nodes},{row.ranks},-1,-1"
        for row in rows
    ]
    return "\n".join(lines) + "\n"
