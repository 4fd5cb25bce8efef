"""The ledger of a step: every counted event by op, pass, operand and place, with its energy.

A row is what all devices in use do in one step. Rows of one component sum to that part of
``energy_j``, rows in bytes of one place to that entry of ``traffic_bytes``, and all rows to the
step's energy. Static power stands in rows of its own, by what the devices were doing meanwhile.
"""

from __future__ import annotations

import csv
import math
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ridgeline.errors import ConfigError, RidgelineError, nearest
from ridgeline.kernels import OpCost
from ridgeline.parallel.lower import COLLECTIVE
from ridgeline.workload.graph import Pass

if TYPE_CHECKING:
    import polars

    from ridgeline.report.result import Result
    from ridgeline.workload.graph import Graph, Op

STATIC = "static"
KEPT = "B kept"
"""Unit of what a memory level kept from op to op; it costs nothing that other rows do not have."""
WAITING = "waiting"
_WHOLE = ""  # of a row that is not told apart by operand


class Entry(NamedTuple):
    """One row.

    Attributes
    ----------
    op, layer, kind
        Of the graph; a collective is its own op.
    pass_
        forward, input-gradient, weight-gradient, update or collective; of static power also
        waiting, while a device computes nothing.
    operand
        Role of the tensor that was moved, "partial-sum" or "message"; empty for arithmetic.
    tensor
        Its name.
    component
        The part of ``energy_j`` that the row belongs to.
    place
        Engine and format, memory level or link class.
    unit
        "FLOP", "B" or, of static power, "s"; "B kept" of operands that the place has kept from
        other ops, so that no level behind it passed them.
    amount
        How many of them.
    """

    op: str
    layer: str
    kind: str
    pass_: str
    operand: str
    tensor: str
    component: str
    place: str
    unit: str
    amount: float
    energy_j: float


COLUMNS = tuple(name.rstrip("_") for name in Entry._fields)


@dataclass(frozen=True)
class Ledger:
    """The rows of one step, as rows or as columns.

    ``polars.DataFrame(ledger.columns)`` and ``pandas.DataFrame(ledger.columns)`` take it as it is.
    """

    entries: tuple[Entry, ...]

    def __len__(self) -> int:
        return len(self.entries)

    def __iter__(self) -> Iterator[Entry]:
        return iter(self.entries)

    @cached_property
    def columns(self) -> Mapping[str, Any]:
        """Name -> column: lists of text, arrays of float64 for ``amount`` and ``energy_j``."""
        table = dict(zip(COLUMNS, map(list, zip(*self.entries, strict=True)), strict=True))
        if not self.entries:
            table = {name: [] for name in COLUMNS}
        return table | {name: np.array(table[name], np.float64) for name in ("amount", "energy_j")}

    def by(self, *names: str, value: str = "energy_j") -> dict[Any, float]:
        """Sum ``energy_j`` or ``amount`` over rows that agree in some columns.

        Returns
        -------
        dict
            Values of the columns -> exactly rounded sum; the key is a tuple if there are several.

        Raises
        ------
        RidgelineError
            If there is no such column, or amounts of different units would be added.
        """
        for name in (*names, value):
            if name not in COLUMNS:
                raise RidgelineError(
                    f"the ledger has no column {name!r}{nearest(name, COLUMNS)} "
                    f"(it has: {', '.join(COLUMNS)})"
                )
        if value not in {"energy_j", "amount"}:
            raise RidgelineError(f"only energy_j and amount can be summed, not {value!r}")
        if value == "amount" and not {"unit", "place"} & set(names):
            raise RidgelineError("amounts of different units do not add up: sum them by unit, too")
        parts: dict[Any, list[float]] = defaultdict(list)
        keys = [self.columns[name] for name in names]
        for key, amount in zip(zip(*keys, strict=True), self.columns[value].tolist(), strict=True):
            parts[key[0] if len(names) == 1 else key].append(amount)
        return {key: math.fsum(amounts) for key, amounts in parts.items()}

    def to_polars(self) -> polars.DataFrame:
        """Return it as a polars data frame."""
        import polars

        return polars.DataFrame(dict(self.columns))

    def to_pandas(self) -> Any:
        """Return it as a pandas data frame."""
        import pandas  # type: ignore[import-untyped]  # not one of ours

        return pandas.DataFrame(dict(self.columns))

    def write(self, path: str | Path) -> None:
        """Write it as ``.csv`` or ``.parquet``, by the suffix.

        Raises
        ------
        ConfigError
            If the suffix is another one, the file cannot be written, or polars is missing.
        """
        from ridgeline.report.files import replacing

        suffix = Path(path).suffix.lower()
        if suffix not in {".csv", ".parquet"}:
            raise ConfigError(
                f"the suffix {suffix!r} is no format for tables; use .csv or .parquet",
                file=str(path),
            )
        with replacing(path) as temporary:
            if suffix == ".csv":
                with temporary.open("w", newline="", encoding="utf-8") as file:
                    writer = csv.writer(file, lineterminator="\n")
                    writer.writerow(COLUMNS)
                    writer.writerows(self.entries)
                return
            try:
                self.to_polars().write_parquet(temporary)
            except ImportError as error:
                raise ConfigError(
                    "Parquet needs polars: pip install 'ridgeline[study]'; or write .csv",
                    file=str(path),
                ) from error

    def __repr__(self) -> str:
        return f"<Ledger of {len(self)} rows, {math.fsum(self.columns['energy_j']):.4g} J>"

    def _repr_html_(self) -> str:
        from ridgeline.report.html.result import table_html

        return table_html(COLUMNS, self.entries[:_SHOWN], f"{self!r}")


_SHOWN = 20


def ledger(result: Result) -> Ledger:
    """Return the ledger of a result; equal tasks are counted together, never one by one."""
    details = result.details
    program, lowered = details.timeline.program, details.lowered
    known = {op.name: (op, cost) for op, cost in zip(lowered.ops, lowered.op_costs, strict=True)}
    keys, of_task = np.unique(
        np.stack([program.label, program.kind, program.cost]), axis=1, return_inverse=True
    )
    times = np.bincount(of_task.ravel(), weights=program.multiplicity, minlength=keys.shape[1])
    sums: dict[tuple[str, ...], tuple[float, float]] = {}
    for label, kind, row, count in zip(*keys.tolist(), times.tolist(), strict=True):
        name, pass_ = program.label_names[label], program.kind_names[kind]
        op, cost = known.get(name, (None, lowered.cost_of_row.get(row)))
        of_op = (name, op.layer if op else "", op.kind if op else pass_, pass_)
        for event in range(program.event_ptr[row], program.event_ptr[row + 1]):
            account = program.accounts[program.event_account[event]]
            units = float(program.event_count[event])
            split = _operands(account.unit, account.place, units, pass_, op, cost, lowered.graph)
            for operand, tensor, part in split:
                key = (*of_op, operand, tensor, account.component, account.place, account.unit)
                amount, energy_j = sums.get(key, (0.0, 0.0))  # ranks have cost rows of their own
                more = count * part
                sums[key] = amount + more, energy_j + more * account.price_j
        for level, size in cost.kept_bytes.items() if cost is not None else ():
            component = details.cluster.device.memory[level].kind
            key = (*of_op, _WHOLE, "", component, level, KEPT)
            sums[key] = sums.get(key, (0.0, 0.0))[0] + count * size, 0.0
    entries = [Entry._make((*key, *values)) for key, values in sums.items()]
    return Ledger((*entries, *_static(result)))


def _operands(
    unit: str,
    place: str,
    units: float,
    pass_: str,
    op: Op | None,
    cost: OpCost | None,
    graph: Graph,
) -> Iterator[tuple[str, str, float]]:
    """Split the units of one event into (operand, tensor, units), which sum to them."""
    if unit != "B":
        yield _WHOLE, "", units
    elif pass_ == COLLECTIVE:
        yield "message", "", units
    elif op is None or cost is None:
        yield _WHOLE, "", units
    elif place in cost.moved:
        moved = cost.moved[place]
        for name, size in zip(op.inputs[:2], (moved.a, moved.b), strict=False):
            yield graph.tensors[name].role.value, name, size
        yield from _tensors(op, graph, moved.rest, first_input=2)
        if moved.partial:
            yield "partial-sum", op.outputs[0], moved.partial
    else:
        yield from _tensors(op, graph, units, first_input=0)


def _tensors(
    op: Op, graph: Graph, units: float, first_input: int
) -> Iterator[tuple[str, str, float]]:
    """Split bytes in the ratio in which an op streams its tensors; one used twice stands once."""
    streamed: dict[str, float] = defaultdict(float)
    passes = op.input_passes or (1,) * len(op.inputs)
    written = op.output_passes or (1,) * len(op.outputs)
    for name, times in (
        *zip(op.inputs[first_input:], passes[first_input:], strict=True),
        *zip(op.outputs, written, strict=True),
    ):
        streamed[name] += float(times * graph.tensors[name].bytes)
    total = math.fsum(streamed.values())
    for name, size in streamed.items():
        if size:
            yield graph.tensors[name].role.value, name, units * (size / total)


def _static(result: Result) -> Iterator[Entry]:
    """Idle power over the step, by what the devices were doing.

    Where tasks of one device overlap, its time is shared out in the ratio of their durations.
    """
    timeline, details = result.details.timeline, result.details
    program, makespan_s = timeline.program, timeline.makespan_s
    power_w = details.cluster.device.idle_power.value
    passes = {pass_.value for pass_ in Pass}
    computing = np.array([name in passes for name in program.kind_names])[program.kind]
    ranks, n_kinds = len(program.rank_multiplicity), len(program.kind_names)
    cell = program.stream_rank[program.stream].astype(np.int64) * n_kinds + program.kind
    busy = np.bincount(
        cell, weights=timeline.durations_s * computing, minlength=ranks * n_kinds
    ).reshape(ranks, n_kinds)
    overlap = np.maximum(1.0, busy.sum(axis=1, keepdims=True) / makespan_s if makespan_s else 1.0)
    device_s = program.rank_multiplicity @ (busy / overlap)
    spent = dict(zip(program.kind_names, device_s.tolist(), strict=True))
    spent = {name: seconds for name, seconds in spent.items() if name in passes}
    whole = details.plan.devices * makespan_s
    spent[WAITING] = max(whole - math.fsum(spent.values()), 0.0)
    for pass_, seconds in spent.items():
        yield Entry(
            STATIC, "", STATIC, pass_, _WHOLE, "", STATIC, "device", "s", seconds, power_w * seconds
        )
