"""Power and time of training under power limits, and the limit with the least energy a sample.

Rows of one network, device, batch and optimiser that differ in the limit are a sweep. Of each row
the mean power is predicted, and its time over that at the highest limit of the sweep; of each sweep
the limit with the least energy, and the energy that is lost by setting the predicted one (Zeus: J.
You et al., "Zeus: Understanding and Optimizing GPU Energy Consumption of DNN Training", NSDI 2023).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from ridgeline.errors import RidgelineError
from ridgeline.report.power import device_power_w
from ridgeline.study.validate import energy
from ridgeline.study.validate.normalised_rows import NormalRow
from ridgeline.study.validate.outcome import Outcome, Skipped, skip_for
from ridgeline.study.validate.rows import MeasuredRow

COLUMNS = (*energy.COLUMNS, "limit_w", "time_s")
SHIPPED = energy.SHIPPED
POWER, TIME, BEST, LOST = (
    "power_w",
    "relative time",
    "best limit_w",
    "energy at the predicted limit",
)
_AS_LIMIT = ("device.tdp=", "device.power_limit=")
_LIMIT = re.compile(r"power_limit=\S*")


@dataclass(frozen=True, slots=True)
class _Setting:
    """A row: its limit, and power and time as measured and as predicted."""

    row: MeasuredRow
    step: NormalRow
    limit_w: float
    measured: tuple[float, float]
    predicted: tuple[float, float]


def predict(rows: Iterable[MeasuredRow]) -> Iterator[Outcome | Skipped]:
    """Predict every row with a limit, and every sweep of at least two of them."""
    sweeps: dict[tuple[str, ...], list[_Setting]] = {}
    for row in rows:
        if not row.text("limit_w") and not row.text("skip"):
            continue
        try:
            row.check()
            setting = _setting(row)
        except RidgelineError as error:
            yield skip_for(row, error)
            continue
        config = _LIMIT.sub("", row.text("config"))
        sweeps.setdefault((row.text("sweep"), row.text("batch"), config), []).append(setting)
    for sweep in sweeps.values():
        yield from _compared(sorted(sweep, key=lambda setting: setting.limit_w))


def _setting(row: MeasuredRow) -> _Setting:
    values = {**row.values, "machine_fields": row.text("machine_fields").replace(*_AS_LIMIT)}
    step = NormalRow.of(replace(row, values=values))
    limit_w, power_w, time_s = (row.number(name) for name in ("limit_w", "measured", "time_s"))
    if not limit_w or not power_w or not time_s:
        raise RidgelineError("the limit, the power or the time is not given")
    result = step.shared()
    predicted = (device_power_w(result), result.step_time_s)
    return _Setting(row, step, limit_w, (power_w, time_s), predicted)


def _compared(sweep: list[_Setting]) -> Iterator[Outcome]:
    top = sweep[-1]
    for one in sweep:
        share = {"78 % of the limit": 0.78 * one.limit_w}
        yield _outcome(one, POWER, one.predicted[0], one.measured[0], share, limit=one.limit_w)
        if one is not top:
            slower = [times[1] / full[1] for times, full in (
                (one.predicted, top.predicted), (one.measured, top.measured))]  # fmt: skip
            yield _outcome(one, TIME, slower[0], slower[1], {"no slower": 1.0})
    if len({one.limit_w for one in sweep}) < 2:
        return
    found = min(sweep, key=lambda one: one.predicted[0] * one.predicted[1])
    best = min(sweep, key=lambda one: one.measured[0] * one.measured[1])
    least_j, lost_j, full_j = (one.measured[0] * one.measured[1] for one in (best, found, top))
    yield _outcome(best, BEST, found.limit_w, best.limit_w, {"the highest": top.limit_w})
    yield _outcome(best, LOST, lost_j / least_j, 1.0, {"the highest": full_j / least_j})


def _outcome(
    one: _Setting,
    quantity: str,
    predicted: float,
    measured: float,
    trivial: dict[str, float],
    limit: float | None = None,
) -> Outcome:
    row, step = one.row, one.step
    return Outcome(
        file=row.file,
        line=row.line,
        id=f"{row.id} {quantity}",
        group=f"{step.model} {step.machine}",
        sweep=row.text("sweep"),
        configuration=f"{step.model}, {step.plan}, {step.machine}, {one.limit_w:g} W",
        quantity=quantity,
        predicted=predicted,
        measured=measured,
        source=row.text("source"),
        trivial=trivial,
        aside=quantity in {BEST, LOST},
        command=step.command() if quantity == POWER else "",
        limit=limit,
    )
