"""Mean power of devices and nodes while they train.

Two kinds of rows are steps: power of one device by its own sensor, under a power limit that is part
of ``config``; and power of a node over a whole run of MLPerf Training, at the wall or behind its
supplies (``power_basis``). Networks of runs have the form of submissions; else formats and the time
to launch an op are PyTorch's. A limit caps the power of a step at full clock: it stands as the
design power of the board.
"""

from __future__ import annotations

import re

from ridgeline.software.load import load_software
from ridgeline.study.import_rows.names import device_in
from ridgeline.study.import_rows.runs import (
    SUBMISSION,
    WorkloadRun,
    step_of,
    submitted,
    usual_precision,
    workload,
)
from ridgeline.study.validate.rows import MeasuredRow

READS = (
    "kind", "workload", "accelerator", "n_accel", "batch", "config", "power_W", "power_basis",
    "source",
)  # fmt: skip
_PROGRAM = "pytorch"
_BEHIND = "DC-side"
_ROUND = re.compile(r"MLPerf (v[\d.]+)")
_LIMIT = re.compile(r"power_limit=([\d.]+)\s*W")


def normal(row: MeasuredRow) -> dict[str, str]:
    """Return the step whose power was measured."""
    basis = row.text("power_basis")
    node = basis.startswith("node")
    if not node and not basis.startswith("NVML"):
        return {"skip": f"not the power of a training step: {row.text('kind')}"}
    measured, batch, devices = row.number("power_W"), row.whole("batch"), row.whole("n_accel")
    if not measured or not batch or not devices:
        return {"skip": "the power, the batch or the number of devices is not given"}
    device = device_in(row.text("accelerator"))
    if device is None:
        return {"skip": f"no description of the device {row.text('accelerator')}"}
    round_ = _ROUND.search(row.text("config")) if node else None
    name = row.text("workload")
    work = submitted(name, round_[1]) if round_ else workload(name)
    precision = usual_precision(device, mixed=node, formats=work.formats)
    stack = SUBMISSION if node else _PROGRAM
    settings = {} if node else {"host.launch_time": load_software(_PROGRAM).host.launch_time}
    job = WorkloadRun(device, devices, batch, precision, place=row.text("config") if node else "")
    made = step_of(work, job, stack, settings).columns()
    if node:
        where = re.sub(r" run .*", "", row.text("config"))
        quantity = "node_supplied_w" if _BEHIND in basis else "node_wall_w"
    else:
        where, quantity = row.text("source").split("@")[0], "device_power_w"
        if limit := _LIMIT.search(row.text("config")):
            made |= {"machine_fields": f"device.tdp={float(limit[1])} W", "limit_w": limit[1]}
    return {
        **made,
        "quantity": quantity,
        "measured": repr(measured),
        "group": f"{name} {devices} x {device} {where}",
        "sweep": f"{name} {devices} x {device}",
    }
