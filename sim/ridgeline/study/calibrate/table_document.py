"""Device and node files from fits to tables: what was changed, each value with its rows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from ridgeline import catalog, units
from ridgeline.hardware.device import Achievable
from ridgeline.hardware.sourced import Sourced
from ridgeline.study.calibrate import table_fit
from ridgeline.study.calibrate.table_fit import Fitted, ShareClass, TableFit
from ridgeline.study.calibrate.table_links import LinkFit
from ridgeline.study.validate.rows import MeasuredRow

_DIGITS = 4
_ABOUT = "fitted by ridgeline calibrate --from; a third of the rows was held out"


class Sources:
    """Names of the tables that values were fitted to, and how many rows of each."""

    def __init__(self, rows: Iterable[MeasuredRow]) -> None:
        """Name every file, in the order of the rows."""
        files = dict.fromkeys(row.file for row in rows)
        self._name = {file: f"table-{i}" for i, file in enumerate(files, start=1)}
        self._counts = Counter[str]()

    def value(self, value: object, rows: Sequence[MeasuredRow], note: str) -> dict[str, Any]:
        """Return a value with the tables that it rests on."""
        of = Counter(row.file for row in rows)
        named = ", ".join(self._name[file] for file in of)
        words = ", ".join(f"{n} rows of {Path(file).name}" for file, n in of.items())
        for file, n in of.items():
            self._counts[file] = max(self._counts[file], n)
        return {"value": value, "source": named, "basis": "measured", "note": f"{words}; {note}"}

    @property
    def fields(self) -> dict[str, str]:
        """Return the ``sources`` of the file."""
        return {self._name[file]: f"{file}: {_ABOUT}" for file in self._counts}


def describe_device(name: str, base: str, fit: TableFit) -> dict[str, Any]:
    """Return the fields of a device file that starts from its base."""
    sources = Sources(call.row for call in fit.calls)
    changed = {one.parameter.name: one for one in fit.found if one.is_changed}
    made: dict[str, Any] = {}
    rows = _achievable(fit, sources)
    if rows:
        made["achievable"] = rows
    if one := changed.get("launch latency"):
        made["launch_latency"] = _value(fit, one, sources, "s")
    memory: dict[str, dict[str, Any]] = {}
    for level in fit.device.memory:
        if one := changed.get(f"{level}: share of the bandwidth"):
            memory.setdefault(level, {})["achievable"] = _value(fit, one, sources, "")
        if one := changed.get(f"{level}: rate"):
            memory.setdefault(level, {})["bandwidth"] = _value(fit, one, sources, "B/s")
    if one := changed.get("idle power"):
        made["idle_power"] = _value(fit, one, sources, "W")
    remarks = []
    if one := changed.get("energy of arithmetic"):
        engines: dict[str, dict[str, Any]] = {}
        for (engine, format_), joules in table_fit.arithmetic_j(fit.device).items():
            energy = engines.setdefault(engine, {"energy": {}})["energy"]
            energy[format_] = units.show(joules, "J/FLOP", _DIGITS)
        made["engines"] = engines
        remarks.append(_energy(one))
    if one := changed.get("energy of bytes"):
        for level, joules in table_fit.bytes_j(fit.device).items():
            memory.setdefault(level, {})["energy"] = units.show(joules, "J/B", _DIGITS)
        remarks.append(_energy(one))
    if memory:
        made["memory"] = memory
    return {
        "kind": "device",
        "name": name,
        "base": _reference(base, "devices"),
        "description": f"{fit.base.description or fit.base.name}, calibrated from tables",
        "sources": {**sources.fields, **({"energies": "; ".join(remarks)} if remarks else {})},
        **made,
    }


def _energy(one: Fitted) -> str:
    return (
        f"{one.parameter.name}: {one.value / one.base:.3g} times the base's, fitted to the power of"
        f" {len(one.rows)} rows (mean error {one.before:.0%} -> {one.after:.0%})"
    )


def _reference(name: str, kind: str) -> str:
    """Return how a file names its base: a path counts from the file that says it."""
    return str(Path(name).resolve()) if catalog.is_path(name) else catalog.resolve(name, kind)


def _value(fit: TableFit, one: Fitted, sources: Sources, unit: str) -> dict[str, Any]:
    value = units.show(one.value, unit, _DIGITS) if unit else round(one.value, _DIGITS)
    return sources.value(value, [fit.calls[i].row for i in one.rows], _errors(one))


def _errors(one: Fitted) -> str:
    return f"mean error of these {one.before:.1%} -> {one.after:.1%}"


def _achievable(fit: TableFit, sources: Sources) -> list[dict[str, Any]]:
    """Write the rows of the device that are not its base's; the specific come first."""
    base = set(map(repr, fit.base.achievable))
    found = []
    for row in fit.device.achievable:
        if repr(row) in base:
            continue
        places = [i for i, c in enumerate(fit.classes) if c is not None and _same(c, row)]
        rows = [fit.calls[i].row for i in places if not fit.calls[i].is_held_out]
        if rows:
            found.append(_written(row, rows, sources, _note_of(fit, row)))
    return found


def _same(class_: ShareClass, row: Achievable) -> bool:
    """Tell whether calls of a class were fitted with a row, or with others of its op and pass."""
    return (
        (class_.engine, class_.op) == (row.engine, row.op)
        and (row.pass_ is None or class_.pass_ in (None, row.pass_))
        and (class_.format == row.format or row.stored is not None)
    )


def _note_of(fit: TableFit, row: Achievable) -> str:
    named = f"share of {row.op} {row.format}"
    one = next((f for f in fit.found if f.parameter.name.startswith(named)), None)
    return "shares by class" if one is None else _errors(one)


def _written(
    row: Achievable, rows: Sequence[MeasuredRow], sources: Sources, note: str
) -> dict[str, Any]:
    made: dict[str, Any] = {"engine": row.engine, "format": row.format, "op": row.op}
    plain = {"stored": row.stored, "pass": row.pass_, "filter": row.filter}
    made |= {name: value for name, value in plain.items() if value is not None}
    if row.block is not None:
        made["block"] = row.block.model_dump()
    if row.ramp is not None:
        made["ramp"] = {
            "fraction": sources.value(round(row.ramp.fraction.value, _DIGITS), rows, note),
            "tiles": sources.value(round(row.ramp.tiles.value, _DIGITS), rows, note),
        }
    for name, unit in (("at_least", "FLOP"), ("step_latency", "s"), ("latency", "s")):
        stated: Sourced[float] | None = getattr(row, name)
        if stated is not None:
            made[name] = sources.value(units.show(stated.value, unit, _DIGITS), rows, note)
    made["fraction"] = sources.value(round(row.fraction.value, _DIGITS), rows, note)
    return made


def describe_node(name: str, fit: LinkFit, device: str | None) -> dict[str, Any]:
    """Return the fields of a node file that starts from its base."""
    known = [call.row for call in fit.calls if not call.is_held_out]
    sources = Sources(known)
    before, after = (errors["fitted"]["all"].mean for errors in (fit.before, fit.after))
    errors = f"mean error {before:.1%} -> {after:.1%}"
    made: dict[str, Any] = {}
    for one, factor in fit.factors.items():
        if factor != 1.0:
            within = made
            for key in one.path[:-1]:
                within = within.setdefault(key, {})
            within[one.path[-1]] = sources.value(one.text(factor), known, errors)
    return {
        "kind": "node",
        "name": name,
        "base": _reference(fit.node, "nodes"),
        **({"device": device} if device else {}),
        "description": f"{fit.node}, links calibrated from tables",
        "sources": sources.fields,
        **made,
    }
