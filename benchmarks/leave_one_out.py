"""Leave each device out of a fit across devices: what is predicted of machines not measured.

    python benchmarks/leave_one_out.py [--write] SUITE [TABLE ...]

Tables are of measured calls, plain or gzipped; by default the sample that ships. What calls take
besides their kernels (`study.validate.call_starts`) is fitted by variant (the number format, or the
part of a layer), by framework, and by kernel where that is better than by framework: a fixed time
alone (``start``), one with a ratio to the time of the kernels (``slowdown``), or the least time of
the host (``host``); for norms and softmax of eager PyTorch, launches of the host. Each form
is fitted to the rows of all other devices, each of which weighs as much as another, and the rows of
the device are predicted with it. The form that is best on devices left out is kept, fitted to all,
where it is better than nothing by a tenth; so is one for other frameworks, with each framework left
out instead. Lines are of a kernel on devices of one library (`Engine.library`), too, where
frameworks choose kernels by generation, and of one version, where several call a kernel; of one
device alone, if they halve the error. ``--write``
puts these lines into the table that ships.

A fit minimises the mean of |prediction / measurement - 1|, or of the absolute logarithm of that
ratio where this is better on devices left out.
"""

from __future__ import annotations

import argparse
import csv
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ridgeline.study.validate import (
    attention,
    cast,
    gemm,
    linear_attention,
    measured,
    moe,
    norm,
    softmax,
)
from ridgeline.study.validate.call_starts import (
    FILE,
    HOST_SLOWDOWN,
    NO_START,
    CallStart,
    call_start,
)
from ridgeline.study.validate.measured import PricedRow
from ridgeline.study.validate.rows import SHIPPED, read_rows

Floats = NDArray[np.float64]
_MODULES = {
    "attention": attention,
    "cast": cast,
    "gemm": gemm,
    "linear-attention": linear_attention,
    "moe": moe,
    "norm": norm,
    "softmax": softmax,
}
_BY_HOST = {"norm", "softmax"}
_STARTS = np.array([
    0, .5, 1, 1.5, 2, 2.5, 3, 3.5, 4, 5, 6, 7, 8, 9, 10, 12, 14, 16, 18, 20, 23, 26, 30, 35, 40, 45,
    50, 60, 70, 80, 100, 120, 140, 160, 180, 200,
]) * 1e-6  # fmt: skip
_SLOWDOWNS = np.array([
    .5, .6, .7, .8, .9, 1, 1.1, 1.2, 1.3, 1.4, 1.5, 1.7, 1.9, 2.2, 2.5, 2.8, 3.2, 3.6, 4, 5, 6, 8,
])  # fmt: skip
_HOSTS = np.arange(10, 420, 10) * 1e-6
_LAUNCHES = np.arange(0.0, 4.0, 0.05)
_BETTER = 0.9
_FAR_BETTER = 0.5  # of a line that no device could be left out of
_LEAST_ROWS = 30
FIELDS = ("suite", "variant", "framework", "kernel", "start_us", "slowdown", "host_us", "launches",
          "fitted_to", "error_before", "error_left_out")  # fmt: skip


@dataclass(frozen=True)
class Rows:
    """Rows of one variant and framework: measured times, and what they are predicted from."""

    devices: NDArray[np.str_]
    measured_s: Floats
    kernels_s: Floats
    host_s: Floats
    host_slowdown: Floats

    @classmethod
    def of(cls, rows: Sequence[PricedRow]) -> Rows:
        return cls(
            np.array([row.device for row in rows]),
            np.array([row.row.number("time_us") * 1e-6 for row in rows]),
            np.array([row.kernels_s for row in rows]),
            np.array([measured.host_launch_s(row.row) for row in rows]),
            np.array([HOST_SLOWDOWN.get(row.device, 1.0) for row in rows]),
        )

    def but(self, device: str, *, only: bool = False) -> Rows:
        kept = (self.devices == device) == only
        return Rows(*(values[kept] for values in vars(self).values()))

    def at(self, which: NDArray[np.intp]) -> Rows:
        return Rows(*(values[which] for values in vars(self).values()))

    def errors(self, start: CallStart) -> Floats:
        predicted_s = np.maximum(
            self.host_slowdown * start.host_s, start.slowdown * self.kernels_s + start.device_s
        )
        return (predicted_s + start.launches * self.host_s) / self.measured_s - 1

    @property
    def weights(self) -> Floats:
        names, which = np.unique(self.devices, return_inverse=True)
        return 1.0 / np.bincount(which, minlength=len(names))[which]


def candidates(suite: str, rows: Rows) -> dict[str, list[CallStart]]:
    """Return the forms that are tried, by name."""
    if suite in _BY_HOST or rows.host_s.any():
        return {"launches": [CallStart(launches=float(n)) for n in _LAUNCHES]}
    return {
        "start": [CallStart(float(s)) for s in _STARTS],
        "start and slowdown": [CallStart(float(s), float(f)) for f in _SLOWDOWNS for s in _STARTS],
        "host": [CallStart(host_s=float(s)) for s in _HOSTS],
    }


_LOSSES: dict[str, Callable[[Floats], Floats]] = {
    "ratio": np.abs,
    "logarithm": lambda errors: np.abs(np.log1p(errors)),
}


def best(rows: Rows, tried: Sequence[CallStart], loss: str) -> CallStart:
    """Return what fits rows best."""
    weights, size = rows.weights, _LOSSES[loss]
    found = [float(weights @ size(rows.errors(start))) for start in tried]
    return tried[int(np.argmin(found))]


def left_out(rows: Rows, tried: Sequence[CallStart], loss: str) -> Floats | None:
    """Return the errors of all rows, each predicted without its device; None of one device."""
    names = sorted(set(rows.devices.tolist()))
    if len(names) < 2:
        return None
    parts = [rows.but(name, only=True).errors(best(rows.but(name), tried, loss)) for name in names]
    return np.concatenate(parts)


@dataclass(frozen=True)
class Choice:
    """The form that is best on devices left out, fitted to all of them.

    Attributes
    ----------
    errors
        Of each row, predicted without its device; of one device alone, fitted to it.
    """

    start: CallStart
    errors: Floats
    is_left_out: bool

    @property
    def mean(self) -> float:
        return float(np.abs(self.errors).mean())


def choose(suite: str, rows: Rows) -> Choice:
    """Choose a form for the rows of one variant and framework, or kernel."""
    found = []
    for starts in candidates(suite, rows).values():
        for loss in _LOSSES:
            start = best(rows, starts, loss)
            errors = left_out(rows, starts, loss)
            if errors is None:
                return Choice(start, rows.errors(start), is_left_out=False)  # of fewest parameters
            found.append(Choice(start, errors, is_left_out=True))
    return min(found, key=lambda choice: choice.mean)


Key = tuple[str, str, str, str]


def grouped(suite: str, tables: Sequence[Path]) -> dict[Key, list[PricedRow]]:
    """Return the rows of tables by suite, variant, framework and kernel as in the shipped table."""
    found: dict[Key, list[PricedRow]] = {}
    for path in tables:
        for row in measured.priced(read_rows(path), _MODULES[suite].call):
            if isinstance(row, PricedRow):
                found.setdefault(_key(suite, row), []).append(row)
    return dict(sorted(found.items()))


def _key(suite: str, row: PricedRow) -> Key:
    framework, kernel = row.row.text("framework"), row.row.text("kernel")
    if suite == "attention":
        return row.call.kind.removesuffix(" window"), row.call.format, framework, kernel
    if suite == "gemm" and row.host_s:
        return suite, f"{row.call.format} {row.call.kind}", framework, ""
    if suite == "linear-attention":
        return suite, row.call.kind, framework, kernel
    return suite, row.call.format, framework, kernel


def _words(errors: Floats) -> str:
    size = np.abs(errors)
    return f"{100 * np.median(size):6.1f} {100 * size.mean():6.1f} {100 * np.median(errors):+6.1f}"


def lines(suite: str, tables: Sequence[Path]) -> Iterator[dict[str, str]]:
    """Print the errors of each group, and return the lines of the table that help."""
    every: dict[str, list[Floats]] = {"nothing": [], "devices left out": [], "as shipped": []}
    print(f"{'':72}  rows  median %, mean %, bias %")

    def show(key: Sequence[str], words: str, errors: Floats) -> None:
        print(f"{' '.join(key):54} {words:>17} {len(errors):5}  {_words(errors)}")

    kernels = grouped(suite, tables)
    general: dict[tuple[str, str], CallStart] = {}
    for line in _of_all_frameworks(kernels, show):
        general[line["suite"], line["variant"]] = _start_of(line)
        yield line
    of_framework: dict[Key, dict[str, list[PricedRow]]] = {}
    for key, rows in kernels.items():
        of_framework.setdefault((*key[:3], ""), {})[key[3]] = rows
    for key, by_kernel in of_framework.items():
        every_row = [row for found in by_kernel.values() for row in found]
        rows = Rows.of(every_row)
        names = np.repeat(list(by_kernel), [len(found) for found in by_kernel.values()])
        versions = np.array([row.row.text("version") for row in every_row])
        # `left_out` returns rows device by device
        order = np.argsort(rows.devices, kind="stable")
        rows, names, versions = rows.at(order), names[order], versions[order]
        bare, choice = rows.errors(NO_START), choose(suite, rows)
        known = bare
        if len(bare) >= _LEAST_ROWS and choice.mean < _BETTER * np.abs(bare).mean():
            known = choice.errors
            yield _line(key, rows, choice, bare)
        elif (
            key[:2] in general
            and np.abs(bare).mean() < np.abs(rows.errors(general[key[:2]])).mean()
        ):
            yield _line(
                key, rows, Choice(NO_START, bare, is_left_out=True), bare
            )  # nothing is added
        libraries = np.array([_library(str(device)) for device in rows.devices])
        for line, mine, may_be_alone in _narrower(key, names, libraries, versions):
            own = rows.at(np.flatnonzero(mine))
            if len(own.devices) < _LEAST_ROWS:
                continue
            of_line, before = choose(suite, own), float(np.abs(known[mine]).mean())
            enough = of_line.is_left_out or (may_be_alone and of_line.mean < _FAR_BETTER * before)
            if enough and of_line.mean < _BETTER * before:
                yield _line(line, own, of_line, known[mine])
                known = known.copy()
                known[mine] = of_line.errors
                show(line, "devices left out", of_line.errors)
        shipped = _as_shipped(key, rows, names, libraries, versions)
        for (words, made), errors in zip(every.items(), (bare, known, shipped), strict=True):
            made.append(errors)
            show(key, words, errors)
    for words, made in every.items():
        show((suite, "all"), words, np.concatenate(made))


def _library(device: str) -> str:
    return measured.library_of(measured.device_named(device))


def _narrower(
    key: Key,
    names: NDArray[np.str_],
    libraries: NDArray[np.str_],
    versions: NDArray[np.str_],
) -> Iterator[tuple[Key, NDArray[np.bool_], bool]]:
    """Yield lines of fewer rows, the narrowest last: their rows, and whether one device is enough.

    Of each kernel, of its devices of one library, and of one version where several call it.
    """
    kernels = sorted({str(name) for name in names})
    if len(kernels) > 1:
        for name in kernels:
            if name:
                yield (*key[:3], name), names == name, False
    for name, library in sorted({(str(n), str(b)) for n, b in zip(names, libraries, strict=True)}):
        if name and library:
            mine = (names == name) & (libraries == library)
            yield (*key[:3], f"{name}@{library}"), mine, True
    for name in kernels:
        called_by = sorted({str(version) for version in versions[names == name]} - {""})
        for version in called_by if len(called_by) > 1 else ():
            mine = (names == name) & (versions == version)
            yield (*key[:2], f"{key[2]} {version}", name), mine, True


def _as_shipped(
    key: Key,
    rows: Rows,
    names: NDArray[np.str_],
    libraries: NDArray[np.str_],
    versions: NDArray[np.str_],
) -> Floats:
    """Return the errors of the rows of a framework with the table that ships."""
    found = []
    for name, library, version in {
        tuple(map(str, each)) for each in zip(names, libraries, versions, strict=True)
    }:
        mine = (names == name) & (libraries == library) & (versions == version)
        start = call_start(*key[:3], name, library, version)
        found.append(rows.at(np.flatnonzero(mine)).errors(start))
    return np.concatenate(found)


def _of_all_frameworks(
    kernels: Mapping[Key, Sequence[PricedRow]], show: Callable[[Sequence[str], str, Floats], None]
) -> Iterator[dict[str, str]]:
    """Return the lines of frameworks that are not in the table: each framework is left out."""
    of_variant: dict[Key, list[PricedRow]] = {}
    for key, rows in kernels.items():
        of_variant.setdefault((key[0], key[1], "", ""), []).extend(rows)
    for key, found in of_variant.items():
        frameworks = np.array([row.row.text("framework") for row in found])
        rows = replace(Rows.of(found), devices=frameworks)
        choice, bare = choose(key[0], rows), rows.errors(NO_START)
        if choice.is_left_out and choice.mean < _BETTER * np.abs(bare).mean():
            show(key, "frameworks left out", choice.errors)
            yield _line(key, rows, choice, bare, "frameworks")


def _start_of(line: Mapping[str, str]) -> CallStart:
    names = ("start_us", "slowdown", "launches", "host_us")
    start_us, slowdown, launches, host_us = (float(line[name]) for name in names)
    return CallStart(start_us * 1e-6, slowdown, launches, host_us * 1e-6)


def _line(
    key: Key, rows: Rows, choice: Choice, before: Floats, what: str = "devices"
) -> dict[str, str]:
    start = choice.start
    return {
        "suite": key[0], "variant": key[1], "framework": key[2], "kernel": key[3],
        "start_us": f"{1e6 * start.device_s:g}", "slowdown": f"{start.slowdown:g}",
        "host_us": f"{1e6 * start.host_s:g}", "launches": f"{start.launches:g}",
        "fitted_to": f"{len(rows.devices)} rows of {len(set(rows.devices.tolist()))} {what}",
        "error_before": f"{np.abs(before).mean():.2f}",
        "error_left_out": f"{choice.mean:.2f}" if choice.is_left_out else "",
    }  # fmt: skip


def main() -> None:
    """Print the errors of each device, left out of the fit, and of all in the fit."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("suite", choices=sorted(_MODULES))
    parser.add_argument("tables", nargs="*", type=Path)
    parser.add_argument("--write", action="store_true", help="put the lines into the table")
    asked = parser.parse_args()
    suite = _MODULES[asked.suite]
    samples = [suite.SHIPPED, *getattr(suite, "SAMPLES", ())]
    tables = asked.tables or [SHIPPED / name for name in samples if name.startswith("measured")]
    found = list(lines(asked.suite, tables))
    if asked.write:
        _write(asked.suite, found)


def _write(suite: str, found: Sequence[dict[str, str]]) -> None:
    """Replace the lines of a suite in the table that ships."""
    path = SHIPPED / FILE
    own = {"prefill", "encoder", "decode"} if suite == "attention" else {suite}
    with path.open(newline="", encoding="utf-8") as file:
        kept = [row for row in csv.DictReader(file) if row["suite"] not in own]
    every = sorted([*kept, *found], key=lambda row: tuple(row[name] for name in FIELDS[:4]))
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, FIELDS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(every)


if __name__ == "__main__":
    main()
