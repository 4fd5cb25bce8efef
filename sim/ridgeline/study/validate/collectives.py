"""Collectives over the links of a machine, in the form of nccl-tests."""

from __future__ import annotations

import math
import shlex
from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import lru_cache
from typing import Any

from ridgeline.errors import RidgelineError
from ridgeline.hardware.device import Device
from ridgeline.network.collectives import CollectiveResult
from ridgeline.study.collective_point import CollectivePoint
from ridgeline.study.import_rows.names import find_name
from ridgeline.study.validate.measured import device_named
from ridgeline.study.validate.outcome import Outcome, Skipped, predict_each
from ridgeline.study.validate.predicted_interval import stated
from ridgeline.study.validate.rows import MeasuredRow
from ridgeline.study.written_fields import assignments

COLUMNS = ("operation", "size", "machine", "ranks", "algorithm", "measured", "source")
SHIPPED = "collectives.csv"
SAMPLES = ("measured/collectives.csv.gz", "share_alike/collectives.csv")
CALLED = ("library", "launch", "number_format")
"""Columns of how a collective was called; empty ones are as `Settings` has them."""
_LARGE, _SCALE, _LAUNCH_S = "64 GiB", 1.68, 5e-6
"""Of measured calls: the size whose rate is the roofline of others; the best scaled roofline."""
MEASURED_CALLS = "measured-collectives"
"""The kind of prediction of a measured call, by which its range is stated."""
_QUANTITY = "busbw_bytes_per_s"


@lru_cache(maxsize=4096)
def _simulated(
    name: str, asked: tuple[tuple[str, Any], ...], replaced: tuple[tuple[str, Any], ...]
) -> CollectiveResult:
    """Price a collective; rows of the same one share it."""
    return CollectivePoint(name, dict(asked), dict(replaced)).simulate()[0]


def predict(rows: Iterable[MeasuredRow]) -> Iterator[Outcome | Skipped]:
    """Predict the bus bandwidth of every collective."""
    return predict_each(rows, _one)


def _one(row: MeasuredRow) -> Outcome:
    row.check()
    op, size, name, algorithm = map(row.text, ("operation", "size", "machine", "algorithm"))
    ranks, measured = row.whole("ranks"), row.number("measured")
    if not ranks or measured is None:
        raise RidgelineError("the ranks or what was measured is not given")
    fields = dict(assignments(row.text("machine_fields")))
    asked: dict[str, Any] = {"operation": op, "size": size, "ranks": ranks, "algorithm": algorithm}
    asked |= {name: row.text(name) for name in CALLED if row.text(name)}
    if "launch" not in asked:  # nccl-tests and the like, without graphs
        asked["launch"] = "stream"
    if per_node := row.whole("ranks_per_node") if row.text("ranks_per_node") else None:
        asked["ranks_per_node"] = per_node
    replaced = {f"cluster.{path}": value for path, value in fields.items()}
    result = _simulated(name, tuple(asked.items()), tuple(replaced.items()))
    if result.busbw_bytes_per_s is None:
        raise RidgelineError("no time passes, so there is no bandwidth")
    words = ["ridgeline", "collective", op, size, name, "--ranks", str(ranks)]
    words += ["--algorithm", algorithm]
    for field in (*CALLED, "ranks_per_node"):
        if field in asked:
            words += [f"--{field.replace('_', '-')}", str(asked[field])]
    for path, value in replaced.items():
        words += ["--set", f"{path}={value}"]
    made = Outcome(
        file=row.file,
        line=row.line,
        id=row.id,
        group=f"{row.text('sweep')} {op} {ranks}",
        sweep=f"{row.text('sweep')} {op} {ranks}",
        configuration=f"{op} of {result.size_bytes:.3g} B, {ranks} in {name}, {result.algorithm}",
        quantity=_QUANTITY,
        predicted=result.busbw_bytes_per_s,
        measured=measured,
        source=row.text("source"),
        command=shlex.join([*words, "--quantity", _QUANTITY]),
        **stated("collectives", result.busbw_bytes_per_s),
    )
    if "device_key" not in row.values:
        return made
    large = {**{k: v for k, v in asked.items() if k not in CALLED}, "size": _LARGE}
    most = _simulated(name, tuple(large.items()), tuple(replaced.items())).busbw_bytes_per_s
    return _as_time(made, row, result, shlex.join([*words, "--quantity", "time_s"]), most)


def _as_time(
    made: Outcome, row: MeasuredRow, result: CollectiveResult, command: str, most: float | None
) -> Outcome:
    """Return the outcome of a measured call: its time, beside what the rate of large ones makes."""
    assert result.busbw_bytes_per_s is not None
    on_bus = result.busbw_bytes_per_s * result.time_s
    roofline_s = on_bus / most if most else math.nan
    return replace(
        made,
        quantity="time_s",
        predicted=result.time_s,
        measured=on_bus / made.measured,
        trivial={
            "roofline": roofline_s,
            "scaled roofline": _SCALE * roofline_s + _LAUNCH_S,
        },
        command=command,
        device=row.text("device_key"),
        format=row.text("dtype"),
        kind=f"{row.text('operation')}{' between nodes' if (row.whole('nodes') or 1) > 1 else ''}",
        **stated(MEASURED_CALLS, result.time_s, device=_device(row)),
    )


def _device(row: MeasuredRow) -> Device | None:
    """Return the described device of a measured call, by whose distance its range is stated."""
    name = find_name("devices", row.text("device_key"))
    return None if name is None else device_named(name)
