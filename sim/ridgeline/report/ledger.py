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

if TYPE_CHECKING:
    import polars


STATIC = "static"
KEPT = "B kept"
"""Unit of what a memory level kept from op to op; it costs nothing that other rows do not have."""
WAITING = "waiting"
WHOLE = ""  # of a row that is not told apart by operand


class LedgerEntry(NamedTuple):
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


COLUMNS = tuple(name.rstrip("_") for name in LedgerEntry._fields)


@dataclass(frozen=True)
class Ledger:
    """The rows of one step, as rows or as columns.

    ``polars.DataFrame(ledger.columns)`` and ``pandas.DataFrame(ledger.columns)`` take it as it is.
    """

    entries: tuple[LedgerEntry, ...]

    def __len__(self) -> int:
        return len(self.entries)

    def __iter__(self) -> Iterator[LedgerEntry]:
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
                with temporary.open("wb") as stream:  # polars takes no path that is not UTF-8
                    self.to_polars().write_parquet(stream)
            except ImportError as error:
                raise ConfigError(
                    "Parquet needs polars: pip install 'ridgeline[study]'; or write .csv",
                    file=str(path),
                ) from error

    def __repr__(self) -> str:
        return f"<Ledger of {len(self)} rows, {math.fsum(self.columns['energy_j']):.4g} J>"

    def _repr_html_(self) -> str:
        from ridgeline.report.html.blocks import table_html

        return table_html(COLUMNS, self.entries[:_SHOWN], f"{self!r}")


_SHOWN = 20
