"""Estimates the distributions behind stated uncertainties, from the measurements that ship.

    python benchmarks/estimate_uncertainty.py [--processes N] [SUITE ...]

writes ``residuals.csv`` and the spreads between devices in ``spreads.csv`` of
``sim/ridgeline/report/uncertainty/`` from kernels, ``model_error.csv`` from whole predictions, and
``step_errors.csv`` from steps, by family of software and maker of devices; with suites named
("several-devices": steps of several), only their rows. To be run again whenever predictions change.

*Scatter* of a class of kernels: what 68 % of |log(measured / predicted)| around the median stay
within, weighted by measured time, since a step is dominated by its long kernels. Of collectives it
is the same within groups (machine, operation, devices), and "links" between their medians.

*Spread* between devices: standard deviation of the logarithms of one class's shares over devices
that were measured themselves, pooled over classes; "generation" over devices of one process node
and vendor, "other" over all; "own" is the scatter of a class over the root of its kernels.

*Model error*: two half-normal sides around the weighted median of log(measured / predicted), so
wide that with the spread of the parameters of each row the share of weight below and above is what
it says; they are rounded up, since a side often ends exactly at a measurement. Every group weighs
the same. The nominal share is taken as large as it must be for rows of a device, and rows of a
source, that were left out of the estimate to be inside in 90 % of cases. Fewer than ten devices (or
sources) cannot show 90 %, since one that is outside is more than the tenth that may be: they are
stated and do not decide. Where neither decides, groups of rows that were left out do. Of steps all
three decide, few or not, since it is new devices and programs that a step is predicted for.
"""

from __future__ import annotations

import argparse
import csv
import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

import device_ranges
from ridgeline import catalog
from ridgeline.errors import RidgelineError
from ridgeline.hardware import load_device
from ridgeline.kernels.efficiency_table import filter_class
from ridgeline.report.uncertainty import class_key, distributions, ground, sample
from ridgeline.study.import_rows import steps
from ridgeline.study.import_rows.baseline_rows import in_source_words
from ridgeline.study.import_rows.names import find_name
from ridgeline.study.parallel_run import workers
from ridgeline.study.validate import (
    SUITES,
    Outcome,
    collectives,
    measured,
    shipped,
    shipped_files,
    validate,
)
from ridgeline.study.validate.energy import NODES, of_node
from ridgeline.study.validate.normalised_rows import NormalRow
from ridgeline.study.validate.predicted_interval import kernel_spread
from ridgeline.study.validate.rows import MeasuredRow, read_rows
from ridgeline.study.validate.statistics import weighted_quantile
from ridgeline.workload.graph import Conv

TABLES = Path(distributions.__file__).parent
Z95 = 1.6448536269514722
ONE_SIGMA = 0.6827  # share of a normal distribution within a standard deviation
STATED = 0.9
TOLERANCE = 0.02  # of one of the two shares, where their mean is as stated
MOST_LEFT_OUT = 0.5
FEWEST = 10
OUTSIDE = (
    0.09, 0.08, 0.07, 0.06, 0.05, 0.045, 0.04, 0.035, 0.03, 0.025, 0.02, 0.015, 0.01, 0.005,
)  # fmt: skip
WIDER = (1.1, 1.2, 1.35, 1.5)
SEVERAL = "several-devices"
TABLE_OF = {
    NODES: "energy",
    **{kind: suite for suite, kind in measured.FRAMEWORK_CALLS.items()},
    collectives.MEASURED_CALLS: "collectives",
}
STEP_TABLES = {"llm": "llm", "single-device": "single-device", SEVERAL: "multi-device"}
"""Kinds of steps, and the suites that have their rows."""
POINTS = {"multi-device", "pipeline"}
SPREADS = ("gemm", "conv2d", "recurrence")


@dataclass(frozen=True)
class Residual:
    """One row: measured against predicted, and what the parameters explain of it."""

    error: float
    spread: float
    group: str
    device: str
    source: str
    place: tuple[str, int] = ("", 0)


LEAVING: tuple[Callable[[Residual], str], ...] = (
    lambda row: row.device,
    lambda row: row.source,
    lambda row: row.group,
)


@dataclass(frozen=True)
class Fit:
    """Two half-normal sides around a median."""

    median: float
    low: float
    high: float

    def covers(self, row: Residual) -> bool:
        """Tell whether a row is inside 5 to 95 %."""
        off = row.error - self.median
        return (
            -Z95 * math.hypot(self.low, row.spread)
            <= off
            <= Z95 * math.hypot(self.high, row.spread)
        )


def weights(rows: Sequence[Residual]) -> np.ndarray:
    """Give every group the same weight; they sum to 1."""
    sizes = Counter(row.group for row in rows)
    found = np.array([1.0 / sizes[row.group] for row in rows])
    return found / found.sum()


def fit(rows: Sequence[Residual], outside: float, wider: float = 1.0) -> Fit:
    """Fit both sides so that `outside` of the weight lies beyond each, then widen them."""
    weight = weights(rows)
    error = np.array([row.error for row in rows])
    spread = np.array([row.spread for row in rows])
    median = weighted_quantile(error, weight, 0.5)
    sides = []
    for sign in (-1.0, 1.0):
        # the side that would just reach each row; those within the parameters' spread need none
        needed = np.sqrt(np.maximum((sign * (error - median) / Z95) ** 2 - spread**2, 0.0))
        needed[sign * (error - median) <= 0] = 0.0
        sides.append(wider * weighted_quantile(needed, weight, 1.0 - outside))
    return Fit(median, *sides)


def left_out(
    rows: Sequence[Residual],
    outside: float,
    of: Callable[[Residual], str],
    wider: float = 1.0,
) -> float | None:
    """Coverage of rows whose device (or source) was left out of the estimate.

    What makes up more than half of the weight is not left out: the rest says nothing of it.
    """
    weight = dict(zip(map(id, rows), weights(rows), strict=True))
    inside = counted = 0.0
    for name in sorted({of(row) for row in rows}):
        out = [row for row in rows if of(row) == name]
        share = sum(weight[id(row)] for row in out)
        if share <= MOST_LEFT_OUT:
            made = fit([row for row in rows if of(row) != name], outside, wider)
            inside += sum(weight[id(row)] for row in out if made.covers(row))
            counted += share
    return float(inside / counted) if counted > MOST_LEFT_OUT / 2 else None


def estimate(rows: Sequence[Residual], *, strictly: bool = False) -> tuple[Fit, list[float | None]]:
    """Find the narrowest sides with which what was left out is covered as often as stated.

    Parameters
    ----------
    strictly
        Devices and sources decide however few they are, as far as they can be left out, and the
        sides are widened beyond all rows if that is what it takes.

    Returns
    -------
    tuple
        The sides, and the coverage of devices, sources and groups that were left out.
    """
    least = 2 if strictly else FEWEST
    deciding = [i for i, of in enumerate(LEAVING[:2]) if len(set(map(of, rows))) >= least]
    deciding = [*deciding, 2] if strictly else deciding or [2]
    tries = [(outside, 1.0) for outside in OUTSIDE]
    for outside, wider in [*tries, *((OUTSIDE[-1], w) for w in WIDER if strictly)]:
        made = fit(rows, outside, wider)
        shares = [left_out(rows, outside, of, wider) for of in LEAVING]
        known = [share for i in deciding if (share := shares[i]) is not None]
        if known and np.mean(known) >= STATED and min(known) >= STATED - TOLERANCE:
            break
    else:
        if strictly:  # never as often as stated: as wide as all rows are
            made = fit(rows, OUTSIDE[-1])
            shares = [left_out(rows, OUTSIDE[-1], of) for of in LEAVING]
    return made, shares


NORMALISED = ("gemm", "conv", "rnn", "collectives")
"""Suites whose measured calls of frameworks have ranges of their own (`TABLE_OF`)."""


def _files(suite: str) -> tuple[Path, ...]:
    """Tables that a kind of prediction is estimated from."""
    table = TABLE_OF.get(suite, suite)
    files = shipped_files(table)
    if table in NORMALISED:
        return files[:1] if suite == table else files[1:]
    return files


def residuals(suite: str, processes: int = 1) -> list[Residual]:
    """Predict all rows of a kind of prediction."""
    table = TABLE_OF.get(suite, suite)
    files = _files(suite)
    rows = {(row.file, row.line): row for path in files for row in read_rows(path)}
    return [
        residual
        for path in files
        for outcome in validate(table, path, processes).outcomes
        if table != "energy" or of_node(rows[outcome.file, outcome.line]) == (suite == NODES)
        if (residual := _residual(suite, outcome, rows[outcome.file, outcome.line])) is not None
    ]


def _residual(suite: str, outcome: Outcome, row: MeasuredRow) -> Residual | None:
    points = suite in POINTS
    if outcome.points != points or outcome.predicted <= 0 or outcome.measured <= 0:
        return None
    error = (
        outcome.measured - outcome.predicted
        if points
        else math.log(outcome.measured / outcome.predicted)
    )
    spread = 0.0
    if outcome.quantity in {"samples/s", "images/s", "sequences/s", "tokens/s"}:
        error = -error  # of the time
    name = _machine(row)
    if suite in {"gemm", "conv", "rnn"} and "asked" in row.values:
        spread = kernel_spread(load_device(name), row.text("op"), row.text("asked"))
    place = outcome.file, outcome.line
    return Residual(error, spread, outcome.group, name, _source(row), place)


@dataclass(frozen=True)
class Step:
    """A measured step: its residual, and what it is pooled by."""

    residual: Residual
    family: str
    vendor: str
    devices: int


def step_rows(kind: str, rows: Iterable[MeasuredRow]) -> Iterator[Step]:
    """Predict measured steps of a kind, times and rates."""
    for row in rows:
        several = (row.whole("n_accel") or 1) > 1 if kind != "llm" else False
        if row.text("skip") or several != (kind == SEVERAL):
            continue
        try:
            if several and not row.number("throughput"):
                continue
            wanted = NormalRow.of(_as_throughput(row) if several else row)
            result = wanted.shared()
            error = math.log(wanted.measured / wanted.value(result))
        except RidgelineError:
            continue
        is_time = wanted.quantity.endswith("_s") and "per_s" not in wanted.quantity
        found = ground.of_step(result.details)
        yield Step(
            Residual(
                error if is_time else -error,
                sample(result).spread,
                row.text("group"),
                wanted.device,
                row.text("source").split("@")[0].split()[0],
            ),
            found.family,
            found.vendor,
            result.details.plan.devices,
        )


def _as_throughput(row: MeasuredRow) -> MeasuredRow:
    made = steps.normal(in_source_words(row))
    return MeasuredRow(row.file, row.line, {**row.values, **made, "one": ""})


def write_step_ranges(found: Mapping[str, Sequence[Step]]) -> None:
    """Write the ranges of steps on devices that nobody measured, by kind, family and maker."""
    ranges: dict[str, list[dict[str, str]]] = {}
    devices: dict[str, device_ranges.Errors] = {}
    for kind, all_steps in found.items():
        for family, vendor in sorted({(step.family, step.vendor) for step in all_steps}):
            mine = [s.residual for s in all_steps if (s.family, s.vendor) == (family, vendor)]
            rows = [row for row in mine if row.device in catalog.names("devices")]
            if len({row.device for row in rows}) < 2:
                continue
            name = " ".join((kind, family, vendor))
            errors = device_ranges.errors_of(
                *(
                    [getattr(row, of) for row in rows]
                    for of in ("error", "spread", "group", "device")
                )
            )
            made = [float(word) for word in step_error(all_steps, family, vendor)[3:6]]
            devices[name] = errors
            ranges[name] = device_ranges.lines(
                name, errors, device_ranges.Sides(*made), points=False
            )
    device_ranges.write(TABLES, ranges, devices)


def step_error(all_steps: Sequence[Step], family: str, vendor: str) -> list[str]:
    """Return the row of ``step_errors.csv`` of a family of software on devices of a maker.

    Of a family with fewer than ten groups, all steps on these devices tell, and each side is
    widened until nine of ten of the family's own are inside.
    """
    of_maker = [step.residual for step in all_steps if step.vendor == vendor]
    mine = [s for s in all_steps if (s.family, s.vendor) == (family, vendor)]
    own = [step.residual for step in mine]
    pooled = len({row.group for row in own}) < FEWEST
    used = of_maker if pooled else own
    made, shares = estimate(used, strictly=True)
    while pooled and coverage(made, own) < STATED:
        made = Fit(made.median, 1.1 * made.low, 1.1 * made.high)
    return [
        family, vendor, "yes" if pooled else "no", f"{made.median:.6f}",
        *(f"{math.ceil(side * 1e6 + 1) / 1e6:.6f}" for side in (made.low, made.high)),
        str(len(own)), str(len({row.device for row in own})), str(len({r.source for r in own})),
        str(max(step.devices for step in mine)),
        str(len(used)), str(len({row.group for row in used})),
        *("" if share is None else f"{share:.3f}" for share in shares[:2]),
    ]  # fmt: skip


def coverage(made: Fit, rows: Sequence[Residual]) -> float:
    """Return the share of rows inside 5 to 95 %, each group the same."""
    return float(sum(w for w, row in zip(weights(rows), rows, strict=True) if made.covers(row)))


def write_step_errors(kinds: Sequence[str], found: Mapping[str, Sequence[Step]]) -> None:
    """Write the rows of ``step_errors.csv`` of these kinds; others stay."""
    path = TABLES / "step_errors.csv"
    kept = []
    if path.exists():
        with path.open(newline="", encoding="utf-8") as stream:
            kept = [row for row in list(csv.reader(stream))[1:] if row[0] not in kinds]
    for kind in kinds:
        cells = sorted({(step.family, step.vendor) for step in found[kind]})
        for family, vendor in cells:
            kept.append([kind, *step_error(found[kind], family, vendor)])
            print(*kept[-1], flush=True)
    header = [
        "kind", "family", "vendor", "pooled", "median", "low", "high", "n", "devices", "sources",
        "most_devices", "from_rows", "from_groups", "by_device", "by_source",
    ]  # fmt: skip
    _write("step_errors.csv", header, sorted(kept))


def _machine(row: MeasuredRow) -> str:
    if "device_key" in row.values:
        return row.text("device_key")
    if "device" in row.values:
        return row.text("machine")
    text = row.values.get("accelerator") or row.values.get("task") or ""
    return find_name("devices", text) or text


def _source(row: MeasuredRow) -> str:
    columns = ("suite", "framework", "ref", "system", "kind")
    for column in () if {"device", "device_key"} & set(row.values) else columns:
        if row.values.get(column):
            return row.values[column].split()[0]
    return row.text("source").split("@")[0].split()[0]


def kernel_tables() -> tuple[list[list[str]], dict[tuple[str, str], float]]:
    """Return the rows of ``residuals.csv`` and the spreads between devices."""
    found: dict[tuple[str, ...], list[tuple[float, float]]] = {}
    for suite in ("gemm", "conv", "rnn"):
        rows = {row.line: row for row in read_rows(shipped(suite))}
        for outcome in validate(suite, shipped(suite)).outcomes:
            row = rows[outcome.line]
            device = row.text("machine")
            key = _class_of(row)
            if key is not None:
                error = math.log(outcome.measured / outcome.predicted)
                found.setdefault((device, *key), []).append((error, outcome.measured))
    lines, scatters = [], {}
    for (device, *key), pairs in sorted(found.items()):
        node = load_device(device).process_node
        if len(pairs) < 3 or node is None or not _measured(device, tuple(key)):
            continue
        error, weight = np.array(pairs).T
        middle = weighted_quantile(error, weight, 0.5)
        scatter = weighted_quantile(np.abs(error - middle), weight, ONE_SIGMA)
        scatters[device, *key] = scatter / math.sqrt(len(pairs)), key[1]
        size = f"{round(node.value * 1e9)}"
        lines.append([device, size, *key, str(len(pairs)), f"{scatter:.3f}"])
    own: dict[str, list[float]] = {}
    for value, op in scatters.values():
        own.setdefault(op, []).append(value)
    spreads = {(op, "own"): float(np.median(values)) for op, values in own.items()}
    return lines, spreads | _between({line[0] for line in lines})


def _class_of(row: MeasuredRow) -> tuple[str, ...] | None:
    format_, op, pass_ = map(row.text, ("asked", "op", "pass"))
    if op == "gemm":
        return class_key(format_, "gemm", None, None)
    if op == "conv":
        r, s, a, b = (row.whole(name) or 1 for name in ("R", "S", "stride_h", "stride_w"))
        loops = Conv(1, 1, 8, 8, 1, r, s, stride=(a, b), padding=(r, s))
        return class_key(format_, "conv2d", pass_, filter_class(loops))
    alone = pass_ in {"forward", "input-gradient"}
    return class_key(format_, "recurrence", pass_, None) if alone else None


def _measured(device: str, key: tuple[str, ...]) -> bool:
    return key in _shares(device)


def _shares(device: str) -> dict[tuple[str, ...], float]:
    return {
        class_key(row.format, row.op, row.pass_, row.filter): row.fraction.value
        for row in reversed(load_device(device).achievable)
        if row.stored is None and row.fraction.basis in {"measured", "derived"}
    }


def _between(devices: Iterable[str]) -> dict[tuple[str, str], float]:
    """Pooled standard deviations of log shares within and across generations."""
    described = {name: load_device(name) for name in sorted(devices)}
    spreads = {}
    for op in SPREADS:
        for relation in ("generation", "other"):
            sets: dict[tuple[str, ...], list[float]] = {}
            for name, device in described.items():
                assert device.process_node is not None
                generation = (device.vendor, f"{device.process_node.value * 1e9:.0f}")
                for key, share in _shares(name).items():
                    if key[1] == op:
                        place = (*key, *generation) if relation == "generation" else key
                        sets.setdefault(place, []).append(math.log(share))
            squares = sum(float(np.var(v)) * len(v) for v in sets.values() if len(v) > 1)
            freedom = sum(len(v) - 1 for v in sets.values() if len(v) > 1)
            spreads[op, relation] = math.sqrt(squares / freedom)
    return spreads


def _links() -> dict[tuple[str, str], float]:
    """Spread of collectives between and within groups."""
    groups: dict[str, list[float]] = {}
    for outcome in validate("collectives", shipped("collectives")).outcomes:
        error = math.log(outcome.measured / outcome.predicted)
        groups.setdefault(outcome.group, []).append(error)
    middles = {name: float(np.median(errors)) for name, errors in groups.items()}
    within = [abs(e - middles[name]) for name, errors in groups.items() for e in errors]
    between = np.abs(np.array(list(middles.values())) - np.median(list(middles.values())))
    return {
        ("links", "own"): float(np.quantile(between, ONE_SIGMA)),
        ("collectives", "own"): float(np.quantile(within, ONE_SIGMA)),
    }


def write_kernels() -> None:
    """Write the tables that follow from kernels."""
    lines, spreads = kernel_tables()
    header = ["device", "process_node_nm", "format", "op", "pass", "filter", "n", "scatter"]
    _write("residuals.csv", header, lines)
    path = TABLES / "spreads.csv"
    with path.open(newline="", encoding="utf-8") as stream:
        header, *rows = csv.reader(stream)
    spreads |= _links()
    source = "benchmarks/estimate_uncertainty.py, from kernels.csv and collectives.csv"
    kept = [row for row in rows if (row[0], row[1]) not in spreads]
    made = [[op, rel, f"{sd:.3f}", "measured", source] for (op, rel), sd in sorted(spreads.items())]
    _write("spreads.csv", header, [*made, *kept])


def write_model_errors(suites: Sequence[str], processes: int = 1) -> None:
    """Write the rows of ``model_error.csv`` and of the ranges by device of these suites."""
    path = TABLES / "model_error.csv"
    with path.open(newline="", encoding="utf-8") as stream:
        header, *rows = csv.reader(stream)
    kept = {row[0]: row for row in rows if row}
    ranges: dict[str, list[dict[str, str]]] = {}
    devices: dict[str, device_ranges.Errors] = {}
    for suite in suites:
        found = residuals(suite, processes)
        made, shares = estimate(found)
        by_device = _errors_by_device(suite, found)
        if by_device is not None:
            own = device_ranges.Sides(made.median, made.low, made.high)
            devices[suite] = by_device
            ranges[suite] = device_ranges.lines(suite, by_device, own, points=suite in POINTS)
        kept[suite] = [
            suite,
            "points" if suite in POINTS else "log",
            f"{made.median:.6f}",
            *(f"{math.ceil(side * 1e6 + 1) / 1e6:.6f}" for side in (made.low, made.high)),
            str(len(found)),
            str(len({row.group for row in found})),
            *("" if share is None else f"{share:.3f}" for share in shares),
            "study/validate/data/" + " ".join(path.name for path in _files(suite)),
        ]
        print(*kept[suite], flush=True)
    _write("model_error.csv", header, [kept[name] for name in sorted(kept)])
    device_ranges.write(TABLES, ranges, devices)


ALIKE = (
    "convergence",
    "imagenet",
    "mlperf",
    "pipeline",
    "multi-device",
    "node-power",
    "collectives",
)
"""Kinds of predictions whose ranges are of all devices alike."""


def _errors_by_device(suite: str, found: Sequence[Residual]) -> device_ranges.Errors | None:
    """Return the errors of a kind with each row's device left out; None of one device."""
    rows = [row for row in found if row.device in catalog.names("devices")]
    if suite in ALIKE or len({row.device for row in rows}) < 2:
        return None
    without = device_ranges.left_out_errors(TABLE_OF.get(suite, suite), _files(suite))
    return device_ranges.errors_of(
        [without.get(row.place, row.error) for row in rows],
        [row.spread for row in rows],
        [row.group for row in rows],
        [row.device for row in rows],
    )


def _write(name: str, header: list[str], rows: Iterable[Sequence[str]]) -> None:
    with (TABLES / name).open("w", newline="", encoding="utf-8") as stream:
        writer = csv.writer(stream, lineterminator="\n")
        writer.writerow(header)
        writer.writerows(rows)


def _steps_of(part: tuple[str, Sequence[MeasuredRow]]) -> list[Step]:
    return list(step_rows(*part))


def all_steps(kinds: Sequence[str], processes: int) -> dict[str, list[Step]]:
    """Predict the measured steps of some kinds; some processes share the rows."""
    parts = [
        (kind, rows[first : first + _PART])
        for kind in kinds
        for rows in [read_rows(shipped(STEP_TABLES[kind]))]
        for first in range(0, len(rows), _PART)
    ]
    found: dict[str, list[Step]] = {kind: [] for kind in kinds}
    if processes == 1:
        for kind, part in parts:
            found[kind] += step_rows(kind, part)
        return found
    with workers(processes) as pool:
        running = [(part[0], pool.submit(_steps_of, part)) for part in parts]
        for kind, one in running:
            found[kind] += one.result()
    return found


_PART = 64
"""Rows of steps that a process predicts at a time."""


def main() -> None:
    """Write the tables of all kinds, or of those that are named."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("kinds", nargs="*", metavar="SUITE")
    parser.add_argument("--processes", type=int, default=1)
    asked = parser.parse_args()
    wanted = asked.kinds or [*SUITES, *TABLE_OF, SEVERAL]
    if {"gemm", "conv", "rnn"} & set(wanted):
        write_kernels()
        distributions._residuals.cache_clear()
        distributions._spreads.cache_clear()
    write_model_errors([name for name in wanted if name not in STEP_TABLES], asked.processes)
    kinds = [name for name in wanted if name in STEP_TABLES]
    found = all_steps(kinds, asked.processes)
    write_step_errors(kinds, found)
    write_step_ranges(found)


if __name__ == "__main__":
    main()
