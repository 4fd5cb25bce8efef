"""Link bandwidth and latency of a node from measured collectives.

Rows are of one node, in the columns of tables of measured collectives, of nccl-tests' sweeps, or of
aiconfigurator's. As devices are (`table_fit`), a node is fitted by factors, one after the other:
the share of the bandwidth that payload reaches on the links between devices, their latency, and
what a collective takes besides.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ridgeline import units
from ridgeline.errors import ConfigError, RidgelineError, nearest
from ridgeline.hardware.load import load_node
from ridgeline.hardware.node import Node
from ridgeline.network.collectives import bus_bandwidth
from ridgeline.study.calibrate.table_fit import Residuals, least_factor
from ridgeline.study.collective_point import CollectivePoint
from ridgeline.study.import_rows.collectives import translated
from ridgeline.study.validate.rows import MeasuredRow

Floats = NDArray[np.float64]
COLUMNS = ("op", "n_accel", "size_bytes")
AICONFIGURATOR = ("op_name", "nccl_dtype", "num_gpus", "message_size", "latency")
OPERATIONS = (
    "all-reduce", "all-gather", "reduce-scatter", "all-to-all", "broadcast", "reduce", "send-recv",
)  # fmt: skip
_BYTES = {"half": 2, "float16": 2, "bfloat16": 2, "float": 4, "float32": 4, "int8": 1}
_LEAST_ROWS = 6
_MOST_ROWS = 72
_TURNS = 2
_DIGITS = 4


@dataclass(frozen=True, slots=True)
class LinkCall:
    """One measured collective of a node."""

    row: MeasuredRow
    operation: str
    size_bytes: float
    ranks: int
    measured_s: float
    is_held_out: bool

    @property
    def words(self) -> str:
        """What was called: equal calls are priced once."""
        return f"{self.operation} {self.size_bytes:g} B {self.ranks}"


@dataclass(frozen=True)
class LinkFactor:
    """A value of the node that is fitted: its path from the node, its unit and its base."""

    path: tuple[str, ...]
    unit: str
    base: float
    low: float
    high: float

    @property
    def name(self) -> str:
        """Dotted path of the value in the node."""
        return ".".join(self.path)

    def text(self, factor: float) -> str | float:
        """Write the value as a file of a node does."""
        value = self.base * factor
        return units.show(value, self.unit, _DIGITS) if self.unit else round(value, _DIGITS)


@dataclass(frozen=True)
class LinkFit:
    """A node that is fitted to collectives: factors by value, and errors before and after."""

    node: str
    calls: tuple[LinkCall, ...]
    skipped: Mapping[str, int]
    factors: Mapping[LinkFactor, float]
    before: Mapping[str, Mapping[str, Residuals]]
    after: Mapping[str, Mapping[str, Residuals]]


def are_collectives(rows: Sequence[MeasuredRow]) -> bool:
    """Tell whether a table is of collectives."""
    columns = translated(rows[0]).values
    return all(name in columns for name in COLUMNS) or all(
        name in rows[0].values for name in AICONFIGURATOR
    )


def read_collectives(
    rows: Sequence[MeasuredRow], node: Node
) -> tuple[list[LinkCall], dict[str, int]]:
    """Return the collectives of rows that one node can run, and why others are left out.

    Raises
    ------
    ConfigError
        If a cell is no number.
    """
    calls: list[LinkCall] = []
    skipped: dict[str, int] = {}
    for row in rows:
        try:
            made = _call(row, node)
        except ConfigError:
            raise
        except RidgelineError as error:
            skipped[str(error)] = skipped.get(str(error), 0) + 1
            continue
        calls.append(made)
    return calls, skipped


def _call(row: MeasuredRow, node: Node) -> LinkCall:
    ours = _of_aiconfigurator(row) if "message_size" in row.values else translated(row)
    operation = ours.text("op").replace("_", "-")
    if operation not in OPERATIONS:
        raise RidgelineError(
            f"no collective is called {operation!r}{nearest(operation, OPERATIONS)}"
        )
    ranks, size = ours.whole("n_accel"), ours.number("size_bytes")
    if ours.text("nodes") not in ("", "1"):
        raise RidgelineError("of several nodes")
    if not ranks or ranks < 2 or not size or size <= 0:
        raise RidgelineError("no ranks or no size")
    if ranks > node.count:
        raise RidgelineError(f"more ranks than the node has devices ({node.count})")
    time_us, busbw = ours.number("time_us"), ours.number("busbw_GBps")
    if time_us is not None and time_us > 0:
        measured_s = time_us * 1e-6
    elif busbw is not None and busbw > 0:
        measured_s = bus_bandwidth(operation, ranks, size, 1.0) / (busbw * 1e9)
    else:
        raise RidgelineError("no measured time or bandwidth")
    words = f"{operation} {size:g} {ranks}"
    held = zlib.crc32(words.encode()) % 3 == 0
    return LinkCall(row, operation, size, ranks, measured_s, held)


def _of_aiconfigurator(row: MeasuredRow) -> MeasuredRow:
    type_ = row.text("nccl_dtype")
    if type_ not in _BYTES:
        raise RidgelineError(f"no size is known of {type_!r}{nearest(type_, _BYTES)}")
    elements, latency_ms = row.number("message_size"), row.number("latency")
    values = {
        "op": {"alltoall": "all-to-all"}.get(row.text("op_name"), row.text("op_name")),
        "n_accel": row.text("num_gpus"),
        "size_bytes": "" if elements is None else repr(elements * _BYTES[type_]),
        "time_us": "" if latency_ms is None else repr(latency_ms * 1e3),
    }
    return MeasuredRow(row.file, row.line, values)


def fit_links(node: str, calls: Sequence[LinkCall], skipped: Mapping[str, int]) -> LinkFit:
    """Fit a node to the collectives that are not held out.

    Raises
    ------
    RidgelineError
        If there are too few.
    """
    known = [call for call in calls if not call.is_held_out]
    if len(known) < _LEAST_ROWS:
        raise RidgelineError(
            f"{len(known)} collectives of one node are too few: {_LEAST_ROWS} are needed"
        )
    ordered = sorted(known, key=lambda call: (call.operation, call.ranks, call.size_bytes))
    places = np.linspace(0, len(ordered) - 1, min(len(ordered), _MOST_ROWS)).round().astype(int)
    sample = [ordered[i] for i in dict.fromkeys(places.tolist())]
    wanted = np.array([call.measured_s for call in sample])
    factors = dict.fromkeys(_factors(load_node(node)), 1.0)
    for turn in range(_TURNS):
        for one in factors:

            def loss(factor: float, one: LinkFactor = one) -> float:
                times = predicted_s(node, sample, {**factors, one: factor})
                return float(np.mean(np.abs(times / wanted - 1)))

            factors[one] = least_factor(loss, one.low, one.high, factors[one], again=turn > 0)
    nothing = dict.fromkeys(factors, 1.0)
    return LinkFit(
        node,
        tuple(calls),
        skipped,
        factors,
        _residuals(node, calls, nothing),
        _residuals(node, calls, factors),
    )


def _factors(node: Node) -> list[LinkFactor]:
    """Return what is fitted: of the fastest links that end at devices."""
    ends = {
        link.type: node.link_types[link.type].bandwidth.value * link.count
        for link in node.links
        if any(end.startswith("device") for pair in link.ends for end in pair)
    }
    if not ends:
        raise RidgelineError(f"no link of {node.name!r} ends at a device")
    name = max(ends, key=lambda type_: ends[type_])
    link = node.link_types[name]
    found = [
        LinkFactor(("link_types", name, "achievable"), "", link.achievable.value, 0.3,
                   1.0 / link.achievable.value),
        LinkFactor(("link_types", name, "latency"), "s", link.latency.value, 0.2, 5.0),
    ]  # fmt: skip
    if node.collective_latency is not None and node.collective_latency.value > 0:
        value = node.collective_latency.value
        found.append(LinkFactor(("collective_latency",), "s", value, 0.2, 5.0))
    return found


def predicted_s(
    node: str, calls: Sequence[LinkCall], factors: Mapping[LinkFactor, float]
) -> Floats:
    """Return the times of collectives on a node whose values are multiplied by factors."""
    replaced = {
        f"cluster.node.{one.name}": one.text(factor)
        for one, factor in factors.items()
        if factor != 1.0
    }
    times: dict[str, float] = {}
    for call in calls:
        if call.words not in times:
            asked = {
                "operation": call.operation,
                "size": f"{call.size_bytes!r} B",
                "ranks": call.ranks,
            }
            times[call.words] = CollectivePoint(node, asked, replaced).simulate()[0].time_s
    return np.array([times[call.words] for call in calls])


def _residuals(
    node: str, calls: Sequence[LinkCall], factors: Mapping[LinkFactor, float]
) -> dict[str, dict[str, Residuals]]:
    found: dict[str, dict[str, Residuals]] = {}
    for part, are in (("fitted", False), ("held out", True)):
        ours = [call for call in calls if call.is_held_out == are]
        if not ours:
            continue
        times = predicted_s(node, ours, factors)
        wanted = np.array([call.measured_s for call in ours])
        names = np.array([call.operation for call in ours])
        every = {"all": np.ones(len(ours), dtype=bool)}
        which = every | {name: names == name for name in sorted(set(names.tolist()))}
        found[part] = {
            name: Residuals.of(names[mine].tolist(), times[mine], wanted[mine])
            for name, mine in which.items()
        }
    return found
