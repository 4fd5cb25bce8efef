"""The description of a device, from what was measured: the schema of ``hwconfigs/devices``."""

from __future__ import annotations

import datetime
import re
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ridgeline import units
from ridgeline.errors import ConfigError
from ridgeline.hardware.device import Device
from ridgeline.hardware.load import load_device
from ridgeline.report import files
from ridgeline.study.calibrate.classes import Measured
from ridgeline.study.calibrate.fit import ParameterFit
from ridgeline.study.calibrate.machine import Cache, MeasuredProcessor

ENGINE = "cores"
SOURCE = "calibration"
_DIGITS = 4
_ALL = "Of the cores in use"
_OWN = "The share of the last cache in which additions were faster than in memory"
_ASSUMED_IDLE_W = 5.0  # of a core's share of a server: 100 to 200 W idle, 32 to 64 cores
_ENERGY = {
    "cpu": ("horowitz-45nm", "registers", "dram.ddr3"),
    "cuda": ("gpu-7nm", "registers", "dram.hbm2"),
}


@dataclass
class Findings:
    """What a calibration has measured so far.

    Attributes
    ----------
    levels
        Name, capacity and measured bandwidth of every memory level, from near to far.
    rates
        Best rate of products in each format.
    groups
        Measurements by class.
    begin_s
        What a step takes once: the walk back through the graph, and the optimizer.
    among_others
        How much longer the fixed time of an op is between other ops than when it is repeated.
    """

    device: str
    versions: str
    processor: MeasuredProcessor
    threads: int
    registers: tuple[float, int]
    levels: tuple[tuple[str, float, float], ...]
    rates: dict[str, float]
    date: datetime.date
    groups: dict[str, Measured] = field(default_factory=dict)
    begin_s: float = 0.0
    among_others: float = 1.0
    idle_w: float | None = None
    busy_w: float | None = None
    notes: list[str] = field(default_factory=list)


def _value(value: float, unit: str, note: str = "", basis: str = "measured") -> dict[str, Any]:
    made = {"value": units.show(value, unit, _DIGITS), "source": SOURCE, "basis": basis}
    return {**made, "note": note} if note else made


def describe(name: str, found: Findings) -> dict[str, Any]:
    """Return the fields of a device file."""
    fits = {key: group.fit() for key, group in found.groups.items()}
    described = {
        "kind": "device",
        "name": name,
        "description": f"{found.processor.model}, {found.threads} core(s), {found.versions}",
        "year": found.date.year,
        "sources": {
            SOURCE: (
                f"measured by ridgeline calibrate on {found.processor.model} with"
                f" {found.threads} of {found.processor.cores} core(s), {found.date.isoformat()},"
                f" {found.versions}; times are medians of undisturbed repetitions"
            ),
            **({"remarks": "; ".join(found.notes)} if found.notes else {}),
        },
        **_power(found),
        "energy_table": _ENERGY[found.device][0],
        "engines": {ENGINE: _engine(found)},
        "memory": _memory(found),
        "launch_latency": _launch(found, fits),
    }
    rows = [_row(key, found, fits[key]) for key in found.groups if key.split()[0] in _CONTRACTIONS]
    kernels = [
        _kernel(key, found, fits[key])
        for key in found.groups
        if key.split()[0] not in _CONTRACTIONS
    ]
    if found.begin_s:
        note = "The walk back through the graph begins, and the optimizer: once a step"
        begin_s = found.begin_s * found.among_others
        kernels.append({"op": "fill", "latency": _value(begin_s, "s", note)})
    return {**described, "achievable": rows, "kernels": kernels}


_CONTRACTIONS = frozenset({"gemm", "conv2d", "recurrence"})


def _power(found: Findings) -> dict[str, Any]:
    if found.idle_w is None:
        watts = _ASSUMED_IDLE_W * found.threads
        note = "No power counter is readable here; a guess of 5 W for every core in use"
        return {"idle_power": _value(watts, "W", note, "assumed")}
    idle = _value(found.idle_w, "W", "Counter of the operating system, nothing running")
    if found.busy_w is None:
        return {"idle_power": idle}
    return {"idle_power": idle, "tdp": _value(found.busy_w, "W", "Mean while multiplying matrices")}


def _engine(found: Findings) -> dict[str, Any]:
    return {
        "kind": "cores",
        "runs": ["matrix", "vector"],
        "rates": {
            format_: _value(rate, "FLOP/s", "The fastest product that was measured")
            for format_, rate in found.rates.items()
        },
        "energy": {format_: f"flop.{format_}" for format_ in found.rates},
    }


def _memory(found: Findings) -> dict[str, Any]:
    _, registers, far = _ENERGY[found.device]
    size, instances = found.registers
    levels: dict[str, Any] = {
        "registers": {
            "kind": "registers",
            "capacity": _capacity(size),
            "instances": {"value": instances, "source": SOURCE, "basis": "derived"},
            "energy": registers,
        }
    }
    for i, (name, capacity, bandwidth) in enumerate(found.levels):
        last = i == len(found.levels) - 1
        levels[name] = {
            "kind": "dram" if last else "sram",
            "capacity": _capacity(capacity, _OWN if i == len(found.levels) - 2 else _ALL),
            "bandwidth": _value(
                bandwidth, "B/s", "Bytes read and written by additions of two arrays of this level"
            ),
            "energy": far if last else "sram.l1" if i == 0 else "sram.l2",
            **({} if last else {"keeps": True}),
        }
    return levels


def _capacity(size_bytes: float, note: str = _ALL) -> dict[str, Any]:
    return {
        "value": f"{round(size_bytes)} B",
        "source": "the operating system's description of the processor",
        "basis": "derived",
        "note": note,
    }


def _launch(found: Findings, fits: Mapping[str, ParameterFit]) -> dict[str, Any]:
    fixed = sorted(
        float(fits[key].seconds[group.columns.index("latency")])
        for key, group in found.groups.items()
        if "latency" in group.columns
    )
    if not fixed:
        return _value(0.0, "s", "Not measured yet", "assumed")
    return _value(
        fixed[len(fixed) // 2] * found.among_others,
        "s",
        f"The middle of {len(fixed)} kinds of op and passes; {found.among_others:.2f} times what"
        " they take when each is repeated, as are the latencies of single ops",
    )


def _said(group: Measured, made: ParameterFit, column: str) -> str:
    """Say how well a class is explained, and how well a parameter of it is known."""
    low, middle, high = made.spread
    factor = float(made.factor[group.columns.index(column)])
    known = f"; 90 % range: a factor of {factor:.2f}" if factor < 10 else ""
    return (
        f"{len(group.times_s)} measured; the middle 80 % of them are predicted {low:+.0%} to"
        f" {high:+.0%} (median {middle:+.0%}){known}"
    )


def _rate(group: Measured, made: ParameterFit, column: str) -> dict[str, Any] | None:
    seconds = float(made.seconds[group.columns.index(column)])
    factor = float(made.factor[group.columns.index(column)])
    if seconds == 0:
        return None
    return _value(1 / seconds, "B/s", f"90 % range: a factor of {factor:.2f}")


def _row(key: str, found: Findings, made: ParameterFit) -> dict[str, Any]:
    """Write a row of `Device.achievable`; keys are "gemm fp32 forward", "recurrence forward"."""
    group = found.groups[key]
    kind, *rest = key.split()
    format_ = rest.pop(0) if rest[0] in found.rates else next(iter(found.rates))
    per_flop = float(made.seconds[0]) or 1 / (10 * found.rates[format_])
    fraction = 1 / (per_flop * found.rates[format_])
    row: dict[str, Any] = {"engine": ENGINE, "format": format_, "op": kind}
    if format_ == next(iter(found.rates)):
        row["pass"] = rest[0]
    if kind == "conv2d":
        row["filter"] = rest[1]
    latency = float(made.seconds[group.columns.index("latency")])
    row["latency"] = _value(latency * (found.among_others if kind == "gemm" else 1.0), "s")
    if "each" in group.columns:
        each = float(made.seconds[group.columns.index("each")])
        row["step_latency" if kind == "recurrence" else "each"] = _value(each, "s")
    repack = {
        operand: rate
        for operand in "abc"
        if operand in group.columns and (rate := _rate(group, made, operand)) is not None
    }
    if repack:
        row["repack"] = repack
    row["fraction"] = {
        "value": round(fraction, _DIGITS),
        "source": SOURCE,
        "basis": "measured",
        "note": _said(group, made, "flops"),
    }
    return row


def _kernel(key: str, found: Findings, made: ParameterFit) -> dict[str, Any]:
    """Write a row of `Device.kernels`; keys are "relu forward", "optimizer adam"."""
    group = found.groups[key]
    kind, second = key.split()
    row: dict[str, Any] = {"op": kind}
    row |= {"pass": "update", "rule": second} if kind == "optimizer" else {"pass": second}
    latency = float(made.seconds[group.columns.index("latency")])
    if kind != "optimizer":  # which does the same for tensor after tensor
        latency *= found.among_others
    row["latency"] = _value(latency, "s", _said(group, made, "latency"))
    rate = _rate(group, made, "bytes")
    if rate is not None:
        row["throughput"] = rate
    return row


def levels_of(caches: tuple[Cache, ...], threads: int) -> list[tuple[str, float]]:
    """Name and capacity of the caches that so many threads on as many cores have."""
    return [(f"l{c.level}", float(c.size_bytes * max(1, -(-threads // c.cores)))) for c in caches]


def slug(text: str) -> str:
    """Return a name as the catalogue has them: lower case with hyphens."""
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-") or "machine"


def write(path: Path, fields: Mapping[str, Any], heading: str) -> None:
    """Write a YAML file whole or not at all.

    Raises
    ------
    ConfigError
        If it cannot be written.
    """
    files.write_text(path, as_yaml(fields, heading))


def check_writable(path: Path) -> None:
    """Refuse a file that could not be written in the end.

    Raises
    ------
    ConfigError
        If its folder is not there, or takes no file, or the name is none of a device file.
    """
    files.check_writable(path)
    if path.suffix not in {".yaml", ".yml"}:
        raise ConfigError("a device file ends in .yaml", file=str(path))


def as_yaml(fields: Mapping[str, Any], heading: str) -> str:
    """Return fields as the text of a YAML file."""
    import io

    from ruamel.yaml import YAML

    yaml = YAML(typ="safe", pure=True)
    yaml.default_flow_style = False
    yaml.sort_base_mapping_type_on_output = False  # type: ignore[assignment]
    yaml.width = 100
    stream = io.StringIO()
    yaml.dump(dict(fields), stream)
    return f"# {heading}\n{stream.getvalue()}"


def loaded(name: str, found: Findings) -> Device:
    """Return the device as far as it is known, by the way that every device file goes."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"{name}.yaml"
        write(path, describe(name, found), "provisional")
        return load_device(str(path))
