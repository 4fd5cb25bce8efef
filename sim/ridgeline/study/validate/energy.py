"""Mean power of devices and nodes while they train (`ridgeline.report.power`).

Two kinds of rows are steps: power of one device by its own sensor, under a power limit that is part
of ``config``; and power of a node over a whole run of MLPerf Training, at the wall or behind its
supplies (``power_basis``). Of each configuration the networks are those of ``workloads.yaml``, of
MLPerf in the form of its submissions; else formats and the time to issue an op are PyTorch's.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Any

from ridgeline.report.power import device_power_w, node_power
from ridgeline.study.validate.frameworks import framework_of
from ridgeline.study.validate.names import device_in
from ridgeline.study.validate.outcome import Outcome, Skipped, predict_each, skip
from ridgeline.study.validate.rows import Row
from ridgeline.study.validate.stated import stated
from ridgeline.study.validate.workloads import (
    Workload,
    run_step,
    submitted,
    usual_precision,
    workload,
)

COLUMNS = (
    "kind", "workload", "accelerator", "n_accel", "batch", "config", "power_W", "power_basis",
    "source",
)  # fmt: skip
SHIPPED = "power.csv"
NODES = "node-power"
"""The kind of what is stated of a node: a wall in a room errs otherwise than a sensor on a chip."""
_NODE_W = 7000.0  # of the trivial predictor: a node of eight H100
_SHARE = 0.78  # of the power limit: the other
_BEHIND = "DC-side"
_ROUND = re.compile(r"MLPerf (v[\d.]+)")


def predict(rows: Iterable[Row]) -> Iterator[Outcome | Skipped]:
    """Predict the power of every row that is a training step."""
    return predict_each(rows, _one)


def of_node(row: Row) -> bool:
    """Tell whether the power of a whole node was measured."""
    return row.text("power_basis").startswith("node")


def _run(row: Row, *, node: bool) -> tuple[Workload, tuple[tuple[str, Any], ...]]:
    """Return what was trained, and further fields of its plan."""
    round_ = _ROUND.search(row.text("config"))
    if node and round_ is not None:
        return submitted(row.text("workload"), round_[1])
    return workload(row.text("workload")), ()


def _one(row: Row) -> Outcome | Skipped:
    basis, node = row.text("power_basis"), of_node(row)
    if not node and not basis.startswith("NVML"):
        return skip(row, f"not the power of a training step: {row.text('kind')}")
    measured, batch, devices = row.number("power_W"), row.whole("batch"), row.whole("n_accel")
    if not measured or not batch or not devices:
        return skip(row, "the power, the batch or the number of devices is not given")
    device = device_in(row.text("accelerator"))
    if device is None:
        return skip(row, f"no description of the device {row.text('accelerator')}")
    work, options = _run(row, node=node)
    limit = re.search(r"power_limit=([\d.]+)\s*W", row.text("config"))
    precision = usual_precision(device, mixed=node, formats=work.formats)
    issue_s = 0.0 if node else framework_of("pytorch").issue_s
    result = run_step(work, device, devices, batch, precision, issue_s, options=options)
    if node:
        power = node_power(result)
        predicted = power.supplied_w if _BEHIND in basis else power.wall_w
        trivial = {"7 kW": _NODE_W} if result.details.cluster.nodes.count == 8 else {}
        where = re.sub(r" run .*", "", row.text("config"))
    else:
        limit_w = float(limit[1]) if limit else None
        predicted = device_power_w(result, limit_w)
        trivial = {"78 % of the limit": _SHARE * limit_w} if limit_w else {}
        where = row.text("source").split("@")[0]
    return Outcome(
        file=row.file,
        line=row.line,
        id=row.id,
        group=f"{row.text('workload')} {devices} x {device} {where}",
        sweep=f"{row.text('workload')} {devices} x {device}",
        configuration=f"{work}, batch {batch}, {precision}, {devices} x {device}, "
        + (f"{basis[:12].rstrip()}" if node else f"limit {limit[1]} W" if limit else "no limit"),
        quantity="power_w",
        predicted=predicted,
        measured=measured,
        source=row.text("source"),
        trivial=trivial,
        **stated(NODES if node else "energy", predicted),
    )
