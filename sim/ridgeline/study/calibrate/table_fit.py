"""Parameters of a device that measured calls of its kernels tell, one after the other.

Each parameter is a factor on what the base device states: a class of achievable shares, the share
of the farthest memory's bandwidth, the rate of the last level on chip, the launch latency; where
power was measured, idle power, energy of arithmetic and of bytes. The whole pricing of
`ridgeline.kernels` is the model. In turns, each factor takes the value with the least mean
of |predicted / measured - 1| over the calls that tell it, groups (suite, format, kind) weighing the
same: coordinate descent, from the base. A bandwidth is told by calls that are bound by it, a launch
latency by short calls: from others it would take the blame for their errors. A factor that lowers
the error by less than `LEAST_GAIN` of itself stays at 1, as does one that fewer than `LEAST_ROWS`
calls tell, or with which the error of all calls is greater.

Convolutions and products of DeepBench's tables begin at shares by class as the shipped devices have
them (`kernel_shares`).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

import numpy as np
from numpy.typing import NDArray

from ridgeline.hardware.device import Achievable, Device, MemoryLevel, Ramp
from ridgeline.hardware.sourced import Sourced
from ridgeline.kernels.efficiency_table import filter_class
from ridgeline.kernels.pricing import price
from ridgeline.study.calibrate import kernel_shares
from ridgeline.study.calibrate.kernel_tables import KernelTable, TableCall
from ridgeline.study.validate.kernel_power import meter_key
from ridgeline.study.validate.measured import PricedRow, priced_on
from ridgeline.study.validate.power_meter import power_meter
from ridgeline.study.validate.statistics import weighted_quantile
from ridgeline.workload.graph import Conv, Graph
from ridgeline.workload.kernel_graphs import compulsory_bytes
from ridgeline.workload.ops.attention import FLASH

Floats = NDArray[np.float64]
Whole = NDArray[np.intp]
LEAST_GAIN = 0.01
LEAST_ROWS = 10
MOST_ROWS = 240
"""Calls that decide about one factor; of more, every so many by their times."""
_TURNS = 2
_GRID = 8
_CLOSER = 5
_AGAIN = 1.3
_GOLDEN = (math.sqrt(5) - 1) / 2
_BOUND = 0.7
"""Share of a call's time from which on what it must move tells the bandwidth of memory."""
_SHORT = 6.0
"""Launch latencies below which a call tells them."""


@dataclass(frozen=True)
class ShareClass:
    """A class of achievable shares: engine, format, op, and for convolutions pass and filter."""

    engine: str
    format: str
    op: str
    pass_: str | None = None
    filter: str | None = None

    def __str__(self) -> str:
        words = (self.op, self.format, self.pass_ or "", self.filter or "")
        return " ".join(filter(None, words))

    def has(self, row: Achievable) -> bool:
        """Tell whether a row of a device is of the class."""
        return (
            (row.engine, row.format, row.op, row.stored)
            == (self.engine, self.format, self.op, None)
            and self.pass_ in (None, row.pass_)
            and self.filter in (None, row.filter)
        )


@dataclass(frozen=True)
class Parameter:
    """One factor on a value of the device.

    Attributes
    ----------
    name
        In words, as it is printed.
    unit
        Of the value; "" of a share.
    applied
        Returns a device with the value times a factor.
    value
        Reads the value of a device.
    rows
        Calls that it acts on.
    telling
        Those of them that tell it; None: all.
    """

    name: str
    unit: str
    applied: Callable[[Device, float], Device]
    value: Callable[[Device], float]
    rows: Whole
    low: float
    high: float
    telling: Whole | None = None
    is_power: bool = False


@dataclass(frozen=True)
class Fitted:
    """A parameter and what was found.

    Attributes
    ----------
    before, after
        Mean of |predicted / measured - 1| over its calls that are not held out.
    """

    parameter: Parameter
    base: float
    value: float
    rows: Whole
    before: float
    after: float

    @property
    def is_changed(self) -> bool:
        """Tell whether the calls tell another value than the base's."""
        return self.value != self.base


@dataclass
class TableFit:
    """A device that is fitted to calls.

    Attributes
    ----------
    classes
        Class of shares of each call; None where no contraction decides.
    """

    base: Device
    calls: Sequence[TableCall]
    device: Device = field(init=False)
    found: list[Fitted] = field(default_factory=list)
    classes: list[ShareClass | None] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.device = self.base
        self.classes = list(_classes(self.calls, self.base))


def predicted(calls: Sequence[TableCall], device: Device, *, power: bool = False) -> Floats:
    """Return the time (or power) of every call on a device; not a number where it has no price."""
    found = np.full(len(calls), np.nan)
    index = {(call.row.file, call.row.line): i for i, call in enumerate(calls)}
    for made in priced_on(device, [(call.row, call.call) for call in calls]):
        if isinstance(made, PricedRow):
            value = made.power_w(power_meter(*meter_key(made))) if power else made.time_s
            found[index[made.row.file, made.row.line]] = value
    return found


def measured_of(calls: Sequence[TableCall], *, power: bool = False) -> Floats:
    """Return what was measured."""
    return np.array([(call.power_w or np.nan) if power else call.measured_s for call in calls])


def weights_of(groups: Sequence[Hashable]) -> Floats:
    """Weigh every group the same, however many members it has."""
    sizes = Counter(groups)
    return np.array([1.0 / sizes[group] for group in groups])


def _groups(calls: Sequence[TableCall]) -> list[Hashable]:
    return [call.group for call in calls]


def fit_tables(base: Device, tables: Sequence[KernelTable]) -> TableFit:
    """Fit a device to the calls of tables that are not held out."""
    calls = [call for table in tables for call in table.calls]
    made = TableFit(base, calls)
    made.device = _from_kernels(made, tables)
    start = made.device
    parameters = list(_parameters(made))
    factors = dict.fromkeys((one.name for one in parameters), 1.0)
    tells = {one.name: one.rows if one.telling is None else one.telling for one in parameters}
    samples = {name: _sampled(rows, calls) for name, rows in tells.items()}
    others = {one.name: _sampled(one.rows, calls) for one in parameters if one.telling is not None}

    def device_of(changed: Mapping[str, float]) -> Device:
        device = start
        for one in parameters:
            if changed[one.name] != 1.0:
                device = one.applied(device, changed[one.name])
        return device

    def error(one: Parameter, rows: Whole, factor: float) -> float:
        tried = device_of({**factors, one.name: factor})
        return _size([calls[i] for i in rows], tried, power=one.is_power)

    for turn in range(_TURNS):
        for one in parameters:
            rows, now = samples[one.name], factors[one.name]
            loss = partial(error, one, rows)
            found = least_factor(loss, one.low, one.high, now, again=turn > 0)
            everywhere = others.get(one.name)
            if everywhere is not None and found != 1.0:
                worse = error(one, everywhere, found) > error(one, everywhere, 1.0)
                found = 1.0 if worse else found
            factors[one.name] = found
    made.device = device_of(factors)
    for one in parameters:
        ours = [calls[i] for i in tells[one.name]]
        before, after = (_size(ours, d, power=one.is_power) for d in (base, made.device))
        old, new = (one.value(device) for device in (base, made.device))
        made.found.append(Fitted(one, old, new, tells[one.name], before, after))
    return made


def _size(calls: Sequence[TableCall], device: Device, *, power: bool) -> float:
    wanted, weights = measured_of(calls, power=power), weights_of(_groups(calls))
    errors = np.abs(predicted(calls, device, power=power) / wanted - 1)
    known = np.isfinite(errors)
    return float(weights[known] @ errors[known] / weights[known].sum()) if known.any() else math.nan


def least_factor(
    loss: Callable[[float], float], least: float, most: float, now: float, *, again: bool
) -> float:
    """Return the factor of the least loss: a grid, then golden section between its neighbours.

    1 (the base's value) unless another is better than that by `LEAST_GAIN`. `again`: the grid is
    closer around the factor that was found before.
    """
    tried: dict[float, float] = {}

    def at(factor: float) -> float:
        if factor not in tried:
            tried[factor] = loss(factor)
        return tried[factor]

    near = (now / _AGAIN, now * _AGAIN) if again else (least, most)
    ends = max(least, near[0]), min(most, near[1])
    points = np.geomspace(*ends, 3 if again else _GRID).tolist()
    grid = sorted({*points, 1.0, now})
    best = min(grid, key=at)
    place = grid.index(best)
    low, high = (math.log(grid[i]) for i in (max(place - 1, 0), min(place + 1, len(grid) - 1)))
    for _ in range(_CLOSER):
        nearer, farther = (high - _GOLDEN * (high - low), low + _GOLDEN * (high - low))
        if at(math.exp(nearer)) <= at(math.exp(farther)):
            high = farther
        else:
            low = nearer
    best = min(tried, key=lambda factor: (tried[factor], abs(math.log(factor))))
    return best if tried[best] < (1 - LEAST_GAIN) * at(1.0) else 1.0


def _sampled(rows: Whole, calls: Sequence[TableCall]) -> Whole:
    if len(rows) <= MOST_ROWS:
        return rows
    ordered = rows[np.argsort([calls[i].measured_s for i in rows], kind="stable")]
    return ordered[np.linspace(0, len(rows) - 1, MOST_ROWS).round().astype(np.intp)]


def _from_kernels(made: TableFit, tables: Sequence[KernelTable]) -> Device:
    """Return the base with shares by class of DeepBench's kernels, where these are better."""
    rows = [
        row.values
        for table in tables
        for row, call in zip(table.kernels, table.calls, strict=False)
        if not call.is_held_out
    ]
    device = made.base
    if not rows:
        return device
    kernels = kernel_shares.kernels_of(rows, device)
    shares = [*kernel_shares.fractions_of(kernels)]
    if not shares:
        return device
    new = kernel_shares.with_rows(
        device, [_share_row(one, device.launch_latency.value) for one in shares]
    ).achievable
    classes = {(row.engine, row.format, row.op, row.stored) for row in new}
    kept = [r for r in device.achievable if (r.engine, r.format, r.op, r.stored) not in classes]
    tried = device.model_copy(update={"achievable": (*new, *kept)})
    ours = [call for call in made.calls if not call.is_held_out]
    before, after = (_size(ours, one, power=False) for one in (device, tried))
    return tried if after < before else device


def _share_row(share: kernel_shares.Fraction, launch_s: float) -> dict[str, object]:
    stored, as_, multiplied = share.format.partition("-as-")
    row: dict[str, object] = {
        "engine": share.engine,
        "format": multiplied if as_ else stored,
        "op": share.op,
        "fraction": {"value": share.value, "source": "tables", "basis": "measured"},
    }
    more: dict[str, object] = {
        "stored": stored if as_ else None,
        "pass": share.pass_,
        "filter": share.filter,
        "block": kernel_shares.BLOCK if share.blocked else None,
        "latency": {"value": f"{launch_s + share.more_s} s", "source": "tables",
                    "basis": "measured"} if share.more_s else None,
    }  # fmt: skip
    return {**row, **{name: value for name, value in more.items() if value is not None}}


def _classes(calls: Sequence[TableCall], device: Device) -> Iterator[ShareClass | None]:
    known: dict[tuple[object, ...], ShareClass | None] = {}
    for call in calls:
        key = (*call.group, _filters(call.call.graph))
        if key not in known:
            known[key] = _class_of(call.call.graph, device)
        yield known[key]


def _filters(graph: Graph) -> str:
    return " ".join(filter_class(op.loops) for op in graph.ops if isinstance(op.loops, Conv))


def _class_of(graph: Graph, device: Device) -> ShareClass | None:
    """Return the class of the contraction that does most of a call's arithmetic."""
    products = [op for op in graph.ops if op.loops is not None]
    if not products:
        return None
    op = max(products, key=lambda one: one.matrix_flops)
    used = price(op, graph, device).engine_work
    if not used:
        return None
    engine, _, format_ = max(used, key=lambda name: used[name]).rpartition(".")
    if isinstance(op.loops, Conv):
        return ShareClass(engine, format_, "conv2d", op.priced_as.value, filter_class(op.loops))
    return ShareClass(engine, format_, "attention" if op.kind == FLASH.name else "gemm")


def _parameters(made: TableFit) -> Iterator[Parameter]:
    base, calls = made.device, made.calls
    known = [i for i, call in enumerate(calls) if not call.is_held_out]

    def rows(wanted: Callable[[int], bool]) -> Whole:
        return np.array([i for i in known if wanted(i)], dtype=np.intp)

    every = rows(lambda _: True)
    found: list[Parameter] = []
    for class_ in dict.fromkeys(one for one in made.classes if one is not None):
        mine = np.array([i for i in known if made.classes[i] == class_], dtype=np.intp)
        found.append(_of_share(base, class_, mine))
        if class_.op == "attention":
            found.append(_of_ramp(base, class_, mine))
    far = base.far_memory
    share = base.memory[far].achievable.value
    alone_s = predicted(calls, base)
    streamed_s = np.array([_streamed_s(call.call.graph, base) for call in calls])
    found.append(
        Parameter(
            f"{far}: share of the bandwidth", "", _with_share(far),
            lambda d: d.memory[far].achievable.value, every, 0.5 / share, 1.0 / share,
            rows(lambda i: streamed_s[i] > _BOUND * alone_s[i]),
        )
    )  # fmt: skip
    near = [name for name, level in base.memory.items() if level.kind == "sram"]
    if near and base.memory[near[-1]].bandwidth is not None:
        level, size = near[-1], base.memory[near[-1]].capacity.value
        inside = rows(lambda i: compulsory_bytes(calls[i].call.graph) <= size)
        found.append(
            Parameter(f"{level}: rate", "B/s", _with_rate(level),
                      lambda d: _rate(d.memory[level]), every, 0.4, 2.5, inside)
        )  # fmt: skip
    launch_s = base.launch_latency.value
    short = rows(lambda i: calls[i].measured_s < _SHORT * launch_s)
    found.append(
        Parameter("launch latency", "s", _with_launch, lambda d: d.launch_latency.value, every,
                  0.4, 4.0, short)
    )  # fmt: skip
    with_power = rows(lambda i: calls[i].power_w is not None)
    powers = (
        ("idle power", "W", _with_idle, lambda d: d.idle_power.value, _most_idle(base)),
        ("energy of arithmetic", "J/FLOP", _with_arithmetic, _arithmetic, 6.0),
        ("energy of bytes", "J/B", _with_bytes, _bytes, 6.0),
    )
    found += [
        Parameter(name, unit, applied, value, with_power, 0.15, most,
                  is_power=True)
        for name, unit, applied, value, most in powers
    ]  # fmt: skip
    yield from (o for o in found if len(o.rows if o.telling is None else o.telling) >= LEAST_ROWS)


def _streamed_s(graph: Graph, device: Device) -> float:
    """Time of what a call must read and write, if it comes from the farthest memory; else 0."""
    moved, far = compulsory_bytes(graph), device.memory[device.far_memory]
    kept = sum(level.capacity.value for level in device.memory.values() if level.kind == "sram")
    assert far.bandwidth is not None
    return moved / (far.bandwidth.value * far.achievable.value) if moved > kept else 0.0


def _of_share(base: Device, class_: ShareClass, rows: Whole) -> Parameter:
    own = shares_of(base, class_)
    most = 4.0 if class_.op == "conv2d" else 1.0
    top = max(row.fraction.value for row in own)
    return Parameter(
        f"share of {class_}", "",
        lambda device, factor: _with_class(device, class_, factor),
        lambda device: shares_of(device, class_)[0].fraction.value,
        rows, 0.1, max(1.0, most / top),
    )  # fmt: skip


def _of_ramp(base: Device, class_: ShareClass, rows: Whole) -> Parameter:
    """Return what short rows of keys lose: a factor on it, or one more than it, from none."""
    is_there = _tiles(base, class_) > 0
    return Parameter(
        f"ends of rows of {class_}", "tiles",
        lambda device, factor: _with_tiles(device, class_, factor),
        lambda device: _tiles(device, class_),
        rows, *((0.2, 5.0) if is_there else (1.0, 9.0)),
    )  # fmt: skip


def _tiles(device: Device, class_: ShareClass) -> float:
    ramp = shares_of(device, class_)[0].ramp
    return 0.0 if ramp is None else ramp.tiles.value


def _with_tiles(device: Device, class_: ShareClass, factor: float) -> Device:
    if factor == 1.0:
        return device
    made = []
    for row in shares_of(device, class_):
        ramp = row.ramp
        if ramp is not None:
            more = _scaled(ramp.tiles, ramp.tiles.value * factor)
            ramp = ramp.model_copy(update={"tiles": more})
        elif factor > 1.0:  # a row without one among others that have one has none to shorten
            tiles = {"value": factor - 1, "source": "tables", "basis": "measured"}
            ramp = Ramp.model_validate({"fraction": row.fraction, "tiles": tiles})
        made.append(row.model_copy(update={"ramp": ramp}))
    others = [row for row in device.achievable if not class_.has(row)]
    return device.model_copy(update={"achievable": (*made, *others)})


def shares_of(device: Device, class_: ShareClass) -> list[Achievable]:
    """Return the rows of a class; the row that stands for it if it has none of its own."""
    own = [row for row in device.achievable if class_.has(row)]
    if own:
        return own
    general = (
        row
        for op in dict.fromkeys((class_.op, "gemm"))
        for row in device.achievable
        if (row.engine, row.format, row.op, row.stored) == (class_.engine, class_.format, op, None)
        and row.pass_ in (None, class_.pass_)
        and row.filter in (None, class_.filter)
        and row.at_least is None
    )
    row = next(general, None)
    own_row = {
        "engine": class_.engine, "format": class_.format, "op": class_.op,
        "pass": class_.pass_, "filter": class_.filter,
        "fraction": {"value": 1.0 if row is None else row.fraction.value, "source": "tables",
                     "basis": "measured"},
    }  # fmt: skip
    return [Achievable.model_validate(own_row)]


def _with_class(device: Device, class_: ShareClass, factor: float) -> Device:
    scaled = [_scaled_row(row, factor) for row in shares_of(device, class_)]
    others = [row for row in device.achievable if not class_.has(row)]
    return device.model_copy(update={"achievable": (*scaled, *others)})


def _scaled_row(row: Achievable, factor: float) -> Achievable:
    ramp = row.ramp
    if ramp is not None:
        share = min(1.0, ramp.fraction.value * factor)
        ramp = ramp.model_copy(update={"fraction": _scaled(ramp.fraction, share)})
    fraction = _scaled(row.fraction, row.fraction.value * factor)
    return row.model_copy(update={"fraction": fraction, "ramp": ramp})


def _scaled(old: Sourced[float], value: float) -> Sourced[float]:
    return old.model_copy(update={"value": value, "basis": "measured"})


def _with_launch(device: Device, factor: float) -> Device:
    old = device.launch_latency
    return device.model_copy(update={"launch_latency": _scaled(old, old.value * factor)})


def _with_idle(device: Device, factor: float) -> Device:
    old = device.idle_power
    return device.model_copy(update={"idle_power": _scaled(old, old.value * factor)})


def _most_idle(device: Device) -> float:
    limit = device.board_limit
    most = 2.0 if limit is None else min(2.0, 0.8 * limit.value / max(device.idle_power.value, 1.0))
    return max(1.0, most)


def _with_level(device: Device, name: str, level: MemoryLevel) -> Device:
    return device.model_copy(update={"memory": {**device.memory, name: level}})


def _with_share(name: str) -> Callable[[Device, float], Device]:
    def applied(device: Device, factor: float) -> Device:
        level = device.memory[name]
        share = min(1.0, level.achievable.value * factor)
        new = level.model_copy(update={"achievable": _scaled(level.achievable, share)})
        return _with_level(device, name, new)

    return applied


def _rate(level: MemoryLevel) -> float:
    assert level.bandwidth is not None
    return level.bandwidth.value


def _with_rate(name: str) -> Callable[[Device, float], Device]:
    def applied(device: Device, factor: float) -> Device:
        level = device.memory[name]
        assert level.bandwidth is not None
        new = _scaled(level.bandwidth, level.bandwidth.value * factor)
        return _with_level(device, name, level.model_copy(update={"bandwidth": new}))

    return applied


def arithmetic_j(device: Device) -> dict[tuple[str, str], float]:
    """Joules per FLOP by engine and format."""
    return {
        (name, format_): device.prices.price_j(entry, "J/FLOP")
        for name, engine in device.engines.items()
        for format_, entry in engine.energy.items()
    }


def bytes_j(device: Device) -> dict[str, float]:
    """Joules per byte by memory level."""
    return {
        name: device.prices.price_j(level.energy, "J/B") for name, level in device.memory.items()
    }


def _arithmetic(device: Device) -> float:
    return next(iter(arithmetic_j(device).values()))


def _bytes(device: Device) -> float:
    return bytes_j(device)[device.far_memory]


def _with_arithmetic(device: Device, factor: float) -> Device:
    joules = arithmetic_j(device)
    engines = {
        name: engine.model_copy(
            update={"energy": {f: f"{joules[name, f] * factor!r} J/FLOP" for f in engine.energy}}
        )
        for name, engine in device.engines.items()
    }
    return device.model_copy(update={"engines": engines})


def _with_bytes(device: Device, factor: float) -> Device:
    joules = bytes_j(device)
    memory = {
        name: level.model_copy(update={"energy": f"{joules[name] * factor!r} J/B"})
        for name, level in device.memory.items()
    }
    return device.model_copy(update={"memory": memory})


@dataclass(frozen=True)
class Residuals:
    """Errors of predictions of one suite and format, as shares; groups weigh the same."""

    n: int
    median: float
    mean: float
    bias: float

    @classmethod
    def of(cls, groups: Sequence[Hashable], predictions: Floats, wanted: Floats) -> Residuals:
        """Compare predictions of some groups with what was measured."""
        errors, weights = predictions / wanted - 1, weights_of(groups)
        known = np.isfinite(errors)
        errors, weights = errors[known], weights[known] / weights[known].sum()
        middle = weighted_quantile(np.abs(errors), weights, 0.5)
        return cls(len(errors), middle, float(weights @ np.abs(errors)), float(weights @ errors))


def residuals(
    calls: Sequence[TableCall], device: Device, *, power: bool = False
) -> dict[str, Residuals]:
    """Return the errors on a device by suite and format, and of all."""
    ours = [call for call in calls if not power or call.power_w is not None]
    if not ours:
        return {}
    predictions, wanted = predicted(ours, device, power=power), measured_of(ours, power=power)
    names = np.array([f"{call.suite} {call.call.format}" for call in ours])
    found = {}
    for name in ("", *sorted(set(names.tolist()))):
        mine = np.isfinite(predictions) & ((names == name) if name else True)
        if mine.any():
            which = np.flatnonzero(mine)
            groups = _groups([ours[i] for i in which])
            found[name or "all"] = Residuals.of(groups, predictions[which], wanted[which])
    return found
