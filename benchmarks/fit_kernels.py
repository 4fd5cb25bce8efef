"""Fit the constants of library kernels across devices, and say what they are worth without them.

    python benchmarks/fit_kernels.py [--write] [--rounds N] TABLE_OF_CONSTANTS MEASURED ...
    python benchmarks/fit_kernels.py --write experts moe_fused.csv

Constants (`kernels.library`) are fitted to calls of one kernel of one framework on the devices of
one generation, each device of which weighs as much as another; to those of each version where that
predicts shapes that are left out better by a twentieth; and to all kernels of a framework, of a
generation, and of all, for those that nobody measured. Each line starts from the wider one, and is
held near it: of few calls little is learnt. What is minimised is the mean of the absolute logarithm
of prediction over measurement, by differential evolution (Storn and Price, 1997) inside the ranges
of the constants; those with few values are tried one by one.

Printed is the mean of |prediction / measurement - 1| of each line: in the fit; with each fifth of
the shapes left out; with each device left out, predicted by what is left of the whole table.
"""

from __future__ import annotations

import argparse
import csv
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ridgeline.errors import RidgelineError
from ridgeline.kernels.library.kernel_model import (
    FOLDER,
    NOTES,
    START,
    Floats,
    KernelKey,
    KernelModel,
    LibraryCall,
    as_arrays,
    line_of,
    lines_of,
)
from ridgeline.study.validate import (
    attention,
    cast,
    conv,
    linear_attention,
    measured,
    moe,
    norm,
    softmax,
)
from ridgeline.study.validate.measured import MeasuredCall
from ridgeline.study.validate.rows import MeasuredRow, read_rows

_CALLERS: dict[str, Callable[[MeasuredRow], MeasuredCall | None]] = {
    "attention": attention.call,
    "cast": cast.call,
    "convolution": conv.call,
    "causal-convolution": linear_attention.call,
    "experts": moe.call,
    "linear": linear_attention.call,
    "norm": norm.call,
    "softmax": softmax.call,
}
"""By the beginning of a table's name."""
_LEAST_ROWS = 30
_FEW_ROWS = 6
_BETTER = 0.95
_FOLDS = 5
_POPULATION = 28
_LEAST_GAIN = 0.004
_PULL = 1.0
"""What it costs to move a constant through its whole range away from the wider line: as much as one
call that is off by a factor of e."""

Line = dict[str, float]


@dataclass(frozen=True)
class Calls:
    """Calls of one table of constants: which line each wants, its work, and what was measured.

    Attributes
    ----------
    places
        File and line of the row of each.
    """

    model: KernelModel
    places: NDArray[np.object_]
    keys: NDArray[np.object_]
    devices: NDArray[np.str_]
    shapes: NDArray[np.int64]
    measured_s: Floats
    host_s: Floats
    work: dict[str, Floats]

    def __len__(self) -> int:
        return len(self.measured_s)

    def where(self, kept: NDArray[np.bool_]) -> Calls:
        """Return some of the calls."""
        return Calls(
            self.model, self.places[kept], self.keys[kept], self.devices[kept], self.shapes[kept],
            self.measured_s[kept], self.host_s[kept],
            {name: values[kept] for name, values in self.work.items()},
        )  # fmt: skip

    @property
    def weights(self) -> Floats:
        """Equal for each device."""
        names, which = np.unique(self.devices, return_inverse=True)
        return 1.0 / np.bincount(which, minlength=len(names))[which] / len(names)

    def errors(self, line: Mapping[str, float]) -> Floats:
        """Prediction over measurement, less 1."""
        return (self.model.predict(self.work, line) + self.host_s) / self.measured_s - 1


def read_calls(name: str, tables: Sequence[Path]) -> Calls:
    """Return the measured calls whose constants are in the table `name`."""
    caller = next(call for prefix, call in _CALLERS.items() if name.startswith(prefix))
    keys, devices, shapes, times, hosts, works = [], [], [], [], [], []
    places = []
    model: KernelModel | None = None
    for path in tables:
        for row in read_rows(path):
            try:
                row.check()
                call = caller(row)
                library: LibraryCall | None = None if call is None else call.library
                if call is None or library is None or library.table != name:
                    continue
                device = measured.device_named(row.text("device_key"))
                key = library.key(device)
                if key is None:
                    continue
                works.append(library.on(device))
            except RidgelineError:
                continue
            model = library.model
            places.append((row.file, row.line))
            keys.append(key)
            devices.append(row.text("device_key"))
            shapes.append(zlib.crc32(repr(sorted(library.work.items())).encode()) % _FOLDS)
            times.append(measured.positive(row, "time_us") * 1e-6)
            hosts.append(call.start.launches * measured.host_launch_s(row))
    if model is None:
        raise SystemExit(f"no call of the table {name!r} in {', '.join(map(str, tables))}")
    return Calls(
        model, _boxed(places), _boxed(keys), np.array(devices), np.array(shapes), np.array(times),
        np.array(hosts), as_arrays(works),
    )  # fmt: skip


def _boxed(values: Sequence[object]) -> NDArray[np.object_]:
    """Return values as an array of as many; tuples stay whole."""
    boxed = np.empty(len(values), object)
    boxed[:] = values
    return boxed


class Fitter:
    """Differential evolution of the constants of a model, near those of a wider line."""

    def __init__(self, calls: Calls, wider: Line | None, seed: int = 0) -> None:
        self.calls, self.model, self.weights = calls, calls.model, calls.weights
        self.constants = (*START, *self.model.constants)
        self.low = np.array([one.low for one in self.constants])
        self.high = np.array([one.high for one in self.constants])
        self.begin = np.array([
            one.start if wider is None else wider[one.name] for one in self.constants
        ])  # fmt: skip
        self.pull = (_PULL if wider else 0.0) / len(calls)
        self.choices = {
            one.name: one.values[0] if wider is None else wider[one.name]
            for one in self.model.choices
        }
        self.enough = max(_LEAST_GAIN, _PULL / 4 / len(calls))
        self.random = np.random.default_rng(seed)

    def losses(self, people: Floats, work: Mapping[str, Floats]) -> Floats:
        """Mean |log(prediction / measurement)| of each row of constants, and how far they went."""
        x = {one.name: people[:, i, None] for i, one in enumerate(self.constants)}
        ratio = (self.model.call_s(work, x) + self.calls.host_s) / self.calls.measured_s
        far = np.abs(people - self.begin) / (self.high - self.low)
        return np.abs(np.log(ratio)) @ self.weights + self.pull * far.sum(axis=1)

    def evolve(
        self, choices: Mapping[str, float], begin: Floats, rounds: int
    ) -> tuple[Floats, float]:
        """Return the best constants from `begin` on, and their loss."""
        work = self.model.counted(self.calls.work, choices)
        span = self.high - self.low
        people = self.low + span * self.random.random((_POPULATION, len(begin)))
        near = begin + 0.1 * span * self.random.normal(size=(_POPULATION // 2, len(begin)))
        people[1 : 1 + len(near)] = np.clip(near, self.low, self.high)
        people[0] = begin
        losses = self.losses(people, work)
        for _ in range(rounds):
            best = people[np.argmin(losses)]
            one, two, three = (people[self.random.permutation(_POPULATION)] for _ in range(3))
            toward = people + 0.6 * (best - people) + 0.6 * (one - two)
            free_step = three + 0.7 * (one - two)
            tried = np.where(self.random.random((_POPULATION, 1)) < 0.5, toward, free_step)
            tried = np.where(self.random.random(people.shape) < 0.8, tried, people)
            outside = (tried < self.low) | (tried > self.high)
            tried = np.where(outside, (people + np.clip(tried, self.low, self.high)) / 2, tried)
            new = self.losses(tried, work)
            better = new < losses
            people[better], losses[better] = tried[better], new[better]
        at = int(np.argmin(losses))
        return people[at], float(losses[at])

    def search(self, rounds: int) -> Line:
        """Return the best line: choices one by one, constants for each."""
        choices = self.choices
        best, loss = self.evolve(choices, self.begin, 2 * rounds)
        for _ in range(2):
            before = loss
            for choice in self.model.choices:
                for value in choice.values:
                    if value == choices[choice.name]:
                        continue
                    tried = {**choices, choice.name: value}
                    found, its = self.evolve(tried, best, rounds)
                    if its < loss - self.enough:
                        choices, best, loss = tried, found, its
            if loss > before - self.enough:
                break
        found, its = self.evolve(choices, best, 4 * rounds)
        return self._line(found if its < loss else best, choices)

    def refit(self, line: Line, rounds: int) -> Line:
        """Return a line with the choices of another one, its constants fitted anew."""
        choices = {one.name: line[one.name] for one in self.model.choices}
        begin = np.array([line[one.name] for one in self.constants])
        found, _ = self.evolve(choices, begin, 2 * rounds)
        return self._line(found, choices)

    def _line(self, constants: Floats, choices: Mapping[str, float]) -> Line:
        named = {
            one.name: float(f"{value:.4g}")
            for one, value in zip(self.constants, constants, strict=True)
        }
        return {**named, **choices}


def fit_table(
    calls: Calls, rounds: int, known: Mapping[KernelKey, Line] | None = None
) -> dict[KernelKey, Line]:
    """Fit all lines, the widest first.

    Parameters
    ----------
    known
        Lines whose choices are taken over, no others being fitted.
    """
    found: dict[KernelKey, Line] = {}
    members: dict[KernelKey, list[int]] = {}
    for at, key in enumerate(calls.keys):
        for one in lines_of(key):
            members.setdefault(one, []).append(at)
    for key in sorted(members, key=lambda key: (_depth(key), key)):
        mine = np.zeros(len(calls), bool)
        mine[members[key]] = True
        own, wider = calls.where(mine), line_of(found, key)
        if known is not None:
            if key in known:
                found[key] = Fitter(own, wider).refit(known[key], rounds)
            continue
        if len(own) < _FEW_ROWS and wider is not None:
            continue
        same = len(own) == len(members[key._replace(version="")])
        if key.version and (len(own) < _LEAST_ROWS or same):
            continue
        line = Fitter(own, wider).search(rounds)
        if key.version and wider is not None:
            before = np.abs(own.errors(wider)).mean()
            if _by_shape(own, wider, line, rounds) > _BETTER * before:
                continue
        found[key] = line
    return found


def _depth(key: KernelKey) -> int:
    """How narrow a line is."""
    return 3 * bool(key.kernel) + 2 * bool(key.framework) + sum(bool(field) for field in key)


def _by_shape(calls: Calls, wider: Line, line: Line, rounds: int) -> float:
    """Mean error of calls whose shapes are left out of a fit of the constants."""
    errors = np.full(len(calls), np.nan)
    for fold in range(_FOLDS):
        out = calls.shapes == fold
        if out.any() and not out.all():
            fitted = Fitter(calls.where(~out), wider).refit(line, rounds)
            errors[out] = calls.where(out).errors(fitted)
    return float(np.nanmean(np.abs(errors)))


def predicted_by(calls: Calls, lines: Mapping[KernelKey, Line]) -> Floats:
    """Return the errors of calls by the lines that they find; not a number without one."""
    errors = np.full(len(calls), np.nan)
    found: dict[int, tuple[Line, list[int]]] = {}
    for at, key in enumerate(calls.keys):
        line = line_of(lines, key)
        if line is not None:
            found.setdefault(id(line), (line, []))[1].append(at)
    for line, at in found.values():
        mine = np.zeros(len(calls), bool)
        mine[at] = True
        errors[mine] = calls.where(mine).errors(line)
    return errors


def without(
    calls: Calls, lines: Mapping[KernelKey, Line], names: NDArray[np.str_], rounds: int
) -> Floats:
    """Return the errors of all calls, those of each name predicted by fits without it."""
    errors = np.full(len(calls), np.nan)
    for name in sorted(set(names.tolist())):
        out = names == name
        fitted = fit_table(calls.where(~out), rounds, lines)
        errors[out] = predicted_by(calls.where(out), fitted)
    return errors


def main() -> None:
    """Fit a table, print the errors of its lines, and write it where that is asked for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("name", help="table of constants: attention-prefill, experts, ...")
    parser.add_argument("tables", nargs="+", type=Path)
    parser.add_argument("--write", action="store_true", help="write the table that ships")
    parser.add_argument("--rounds", type=int, default=40)
    asked = parser.parse_args()
    calls = read_calls(asked.name, asked.tables)
    lines = fit_table(calls, asked.rounds)
    fitted = predicted_by(calls, lines)
    _show(f"{asked.name}: all, in the fit", [fitted])
    by_shape = without(calls, lines, calls.shapes.astype(str), asked.rounds)
    by_device = without(calls, lines, calls.devices, asked.rounds)
    if asked.write:
        _write(asked.name, calls, lines, by_device)
    for key in lines:
        mine = np.array([line_of(lines, each) is lines[key] for each in calls.keys])
        if mine.any():
            _show(" ".join(key), [errors[mine] for errors in (fitted, by_shape, by_device)])
    for name in sorted(set(calls.devices.tolist())):
        mine = calls.devices == name
        _show(name, [errors[mine] for errors in (fitted, by_shape, by_device)])
    _show(f"{asked.name}: all", [fitted, by_shape, by_device])


def _show(words: str, errors: Sequence[Floats]) -> None:
    """Print means: in the fit, shapes left out, devices left out."""
    means = "  ".join(
        f"{100 * np.nanmean(np.abs(each)):6.1f}" if np.isfinite(each).any() else "   -  "
        for each in errors
    )
    missing = int(np.isnan(errors[-1]).sum())
    print(f"{words:90} {len(errors[0]):5}  {means}  {missing or ''}", flush=True)


def _write(name: str, calls: Calls, lines: Mapping[KernelKey, Line], left_out: Floats) -> None:
    """Write the table of constants."""
    fields = [*KernelKey._fields, *calls.model.names, *NOTES]
    with (FOLDER / f"{name}.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(fields)
        for key, line in sorted(lines.items()):
            mine = np.array([key in lines_of(each) for each in calls.keys])
            own, out = calls.where(mine), np.abs(left_out[mine])
            out = out[np.isfinite(out)]
            devices = len(set(own.devices.tolist()))
            error = np.abs(own.errors(line)).mean()
            values = [f"{line[one]:g}" for one in calls.model.names]
            writer.writerow(
                [*key, *values, len(own), devices, f"{error:.3f}",
                 f"{out.mean():.3f}" if len(out) else ""]
            )  # fmt: skip


if __name__ == "__main__":
    main()
