"""Fit the constants of libraries of matrix products across devices; leave each device out in turn.

    python benchmarks/fit_product_library.py [--rows 60] [--apart] TABLE ...
    python benchmarks/fit_product_library.py gemm_fp32.csv gemm_llm.csv

Tables are of measured calls (`study.validate.measured`). Fitted are the rows in fp32, for libraries
of the constants ``simt``, and those in bf16, for ``tensor`` (`kernels/product_libraries.yaml`).
Calls are priced as everywhere; what they take besides is one more constant, launches of the host by
op, where the clock contains the host.

Constants and the share of each library are moved one by one by a factor, while that lowers the mean
of |log(prediction / measurement)|, then all again by smaller ones. Each device weighs as much as
another. Up to ``--rows`` rows of each device and op are fitted to: in the order of framework and
size, at even distances. Printed errors are of all rows, mean |prediction / measurement - 1|:

- shipped: as `ridgeline validate gemm` has it;
- refitted: constants and shares fitted to all devices, each with its own rows in `achievable`;
- left out: constants, shares and launches fitted to the others. The device has no measured or
  derived row of products. Its library's share is what other devices of the library were fitted to,
  and sustained is the mean of their rows; where it is alone, share, sustained, slices of k and
  `reread_share` are the medians of the other libraries. What it still has: the tiles that kernels'
  names of its generation tell, its data sheet, measured bandwidths, its host's launch time, and the
  constants that are not fitted here.

``--apart`` begins at the constants of the other kind of engine and shares of 0.9, which saw none of
the rows, so that the shipped values lend nothing to a fit. Nothing is written.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, median
from unittest.mock import patch

import numpy as np
from numpy.typing import NDArray

from ridgeline.hardware.device import Device
from ridgeline.kernels import processors
from ridgeline.kernels.efficiency_table import MEASURED
from ridgeline.kernels.product_library import KernelConstants, ProductLibrary, product_library
from ridgeline.study.validate import gemm, measured
from ridgeline.study.validate.measured import MeasuredCall, PricedRow
from ridgeline.study.validate.rows import MeasuredRow, read_rows

Floats = NDArray[np.float64]
Point = dict[str, float]
KINDS = {"simt": "fp32", "tensor": "bf16"}
"""Constants, and the format that they were fitted to."""
FITTED = (
    "panel_loss", "panel_exponent", "full_tiles", "fill_exponent", "round_cycles", "start_cycles",
    "split_cycles", "overlap",
)  # fmt: skip
MOST = {"panel_exponent": 1.0, "share": 1.0}
LEAST = {"overlap": 1.0}
STEPS = (1.5, 1.25, 1.12, 1.06)
FIRST_SHARE = 0.9
_ENOUGH = 1e-5


@dataclass(frozen=True)
class Measured:
    """Products of one device in one format, with what was measured.

    Attributes
    ----------
    shipped_s
        Predictions with what ships.
    fitted
        Places of the rows that are fitted to.
    """

    device: Device
    engine: str
    library: str
    format: str
    calls: Sequence[tuple[MeasuredRow, MeasuredCall]]
    kinds: NDArray[np.str_]
    measured_s: Floats
    host_s: Floats
    shipped_s: Floats
    fitted: NDArray[np.intp]

    def own_share(self) -> float | None:
        """Return the share that the device's own row of products states; None without one."""
        for row in self.device.achievable:
            of_products = (row.engine, row.format, row.op) == (self.engine, self.format, "gemm")
            if of_products and row.stored is None and row.fraction.basis in MEASURED:
                return row.fraction.value
        return None

    def without_rows(self) -> Device:
        """Return the device without measured or derived rows of products."""
        kept = [
            row
            for row in self.device.achievable
            if row.op != "gemm" or row.fraction.basis not in MEASURED
        ]
        return self.device.model_copy(update={"achievable": kept})


def read(tables: Sequence[Path], kind: str, most: int) -> dict[str, Measured]:
    """Return the rows of all devices that have a library of these constants."""
    found: dict[str, list[PricedRow]] = {}
    for path in tables:
        ours = [row for row in read_rows(path) if row.text("format") == KINDS[kind]]
        for row in measured.priced(ours, gemm.call):
            if isinstance(row, PricedRow):
                found.setdefault(row.device, []).append(row)
    devices = {}
    for name, rows in sorted(found.items()):
        engine = _engine(rows[0].machine, kind)
        if engine is not None:
            devices[name] = _measured(rows, engine, KINDS[kind], most)
    return devices


def _engine(device: Device, kind: str) -> str | None:
    """Name the engine whose library has these constants and kernels for the format."""
    for name, engine in device.engines.items():
        if engine.library is not None:
            library, _ = product_library(engine.library)
            if library.constants == kind and KINDS[kind] in library.sustained:
                return name
    return None


def _measured(rows: Sequence[PricedRow], engine: str, format_: str, most: int) -> Measured:
    library = rows[0].machine.engines[engine].library
    assert library is not None
    order: dict[str, list[int]] = {}
    for at in sorted(range(len(rows)), key=lambda at: _place(rows[at])):
        order.setdefault(rows[at].call.kind, []).append(at)
    fitted = [
        places[int(at)]
        for places in order.values()
        for at in np.linspace(0, len(places) - 1, min(most, len(places)))
    ]
    return Measured(
        rows[0].machine, engine, library, format_,
        [(row.row, row.call) for row in rows],
        np.array([row.call.kind for row in rows]),
        np.array([measured.positive(row.row, "time_us") * 1e-6 for row in rows]),
        np.array([measured.host_launch_s(row.row) for row in rows]),
        np.array([row.time_s for row in rows]),
        np.array(fitted),
    )  # fmt: skip


def _place(row: PricedRow) -> tuple[str, int, str]:
    """By framework, then by work."""
    flops = sum(op.matrix_flops for op in row.call.graph.ops)
    return row.row.text("framework"), int(flops), row.row.id


class Fit:
    """Constants of one kind of engine, and shares of its libraries, fitted to some devices.

    A point has a constant by its name, ``share NAME`` of each library, ``launches OP`` of each op.
    """

    def __init__(self, kind: str, devices: Mapping[str, Measured]) -> None:
        self.kind, self.devices = kind, devices
        self.libraries = sorted({one.library for one in devices.values()})
        self.constants = product_library(self.libraries[0])[1]
        self.kinds = sorted(
            {str(op) for one in devices.values() for op in one.kinds if one.host_s.any()}
        )
        self.known: dict[tuple[object, ...], Floats] = {}

    def begin(self, *, apart: bool) -> Point:
        """Return the shipped point, or one that none of the rows was fitted to."""
        source = self.constants
        if apart:
            other = next(name for name in KINDS if name != self.kind)
            library = {"simt": "wide-simt", "tensor": "hopper"}[other]
            source = product_library(library)[1]
        point = {name: float(getattr(source, name)) for name in FITTED}
        for name in self.libraries:
            point[f"share {name}"] = FIRST_SHARE if apart else product_library(name)[0].share
        return point | {f"launches {kind}": 1.0 for kind in self.kinds}

    def priced(self, name: str, point: Point) -> Floats:
        """Return seconds of the rows of a device that are fitted to, less launches of the host."""
        one = self.devices[name]
        key = name, *(point[each] for each in FITTED), point[f"share {one.library}"]
        if key not in self.known:
            library = _shared(one, point)
            self.known[key] = self.price(one, one.device, library, point, one.fitted)
        return self.known[key]

    def price(
        self,
        one: Measured,
        device: Device,
        library: ProductLibrary,
        point: Point,
        places: NDArray[np.intp],
    ) -> Floats:
        """Return seconds of some calls by a library and constants that do not ship."""
        constants = self.constants.model_copy(update={name: point[name] for name in FITTED})

        def found(name: str) -> tuple[ProductLibrary, KernelConstants]:
            return (library, constants) if name == one.library else product_library(name)

        with patch.object(processors, "product_library", found):
            rows = measured.priced_on(device, [one.calls[at] for at in places])
            seconds = {row.row.id: row.price.time_s for row in rows if isinstance(row, PricedRow)}
        return np.array([seconds[one.calls[at][0].id] for at in places])

    def launched(self, one: Measured, point: Point, places: NDArray[np.intp]) -> Floats:
        """Return what the clock contains of the host."""
        many = np.array([point.get(f"launches {kind}", 0.0) for kind in one.kinds[places]])
        return many * one.host_s[places]

    def loss(self, names: Sequence[str], point: Point) -> float:
        """Mean |log(prediction / measurement)|, each device as much as another."""
        found = []
        for name in names:
            one = self.devices[name]
            whole_s = self.priced(name, point) + self.launched(one, point, one.fitted)
            found.append(float(np.abs(np.log(whole_s / one.measured_s[one.fitted])).mean()))
        return fmean(found)

    def search(self, names: Sequence[str], point: Point) -> Point:
        """Move one value at a time, by smaller and smaller factors."""
        libraries = {self.devices[name].library for name in names}
        free = [
            name for name in point
            if not name.startswith("share ") or name.removeprefix("share ") in libraries
        ]  # fmt: skip
        best, loss = point, self.loss(names, point)
        for step in STEPS:
            for name in free:
                for factor in (step, 1 / step):
                    start = loss
                    while True:
                        value = best[name] * factor
                        value = min(value, MOST.get(name.partition(" ")[0], np.inf))
                        value = max(value, LEAST.get(name, 0.0))
                        tried = {**best, name: value}
                        its = self.loss(names, tried)
                        if its > loss - _ENOUGH:
                            break
                        best, loss = tried, its
                    if loss < start:
                        break
        return best

    def errors(self, name: str, point: Point, *, left_out: bool = False) -> Floats:
        """Return the errors of all rows of a device, which the point was fitted with or without."""
        one, every = self.devices[name], np.arange(len(self.devices[name].calls))
        device = one.without_rows() if left_out else one.device
        library = self.library_without(name, point) if left_out else _shared(one, point)
        seconds = self.price(one, device, library, point, every)
        return (seconds + self.launched(one, point, every)) / one.measured_s - 1

    def library_without(self, name: str, point: Point) -> ProductLibrary:
        """Return a device's library as it would be known without the device."""
        one = self.devices[name]
        library = product_library(one.library)[0]
        members: dict[str, list[Measured]] = {}
        for other, its in self.devices.items():
            if other != name:
                members.setdefault(its.library, []).append(its)
        if one.library in members:
            sustained = _sustained(members[one.library])
            share = point[f"share {one.library}"]
            return library.model_copy(
                update={"share": share, "sustained": {**library.sustained, one.format: sustained}}
            )
        others = [product_library(each)[0] for each in members]
        slices = int(median(each.k_slice for each in others))
        batched = int(median(each.batched_k_slice or each.k_slice for each in others))
        reread = [each.reread_share for each in others if each.reread_share is not None]
        return library.model_copy(
            update={
                "share": median(point[f"share {each}"] for each in members),
                "sustained": {one.format: median(_sustained(its) for its in members.values())},
                "k_slice": slices,
                "batched_k_slice": batched,
                "reread_share": median(reread) if reread else None,
            }
        )


def _shared(one: Measured, point: Point) -> ProductLibrary:
    """Return the library of a device with the share of a point."""
    share = point[f"share {one.library}"]
    return product_library(one.library)[0].model_copy(update={"share": share})


def _sustained(devices: Sequence[Measured]) -> float:
    """Mean of the rows of some devices of one library; the library's share without any."""
    own = [share for one in devices if (share := one.own_share()) is not None]
    if own:
        return fmean(own)
    return product_library(devices[0].library)[0].sustained[devices[0].format]


def fit(kind: str, devices: Mapping[str, Measured], *, apart: bool) -> None:
    """Print the constants that fit all devices, and the errors of each, in the fit and left out."""
    it = Fit(kind, devices)
    begin = it.begin(apart=apart)
    names = list(devices)
    best = it.search(names, begin)
    title = f"{kind}, {KINDS[kind]}: mean |error|, %"
    print(f"{title:34}   rows  shipped  refitted  left out  bias")
    alone: dict[str, Point] = {}
    table = []
    for name in names:
        alone[name] = it.search([other for other in names if other != name], begin)
        one, out = devices[name], it.errors(name, alone[name], left_out=True)
        shipped = one.shipped_s / one.measured_s - 1
        line = [100 * float(np.abs(each).mean()) for each in (shipped, it.errors(name, best), out)]
        table.append(line)
        _show(name, len(out), line, f"{100 * np.median(out):+6.1f}")
    _show("mean over devices", sum(len(one.calls) for one in devices.values()),
          [fmean(column) for column in zip(*table, strict=True)])  # fmt: skip
    print(f"{'':34} begun at  refitted  left out")
    for each in begin:
        values = [alone[name][each] for name in names]
        span = f"{min(values):.4g} to {max(values):.4g}"
        print(f"{each:34} {begin[each]:8.4g}  {best[each]:8.4g}  {span}")


def _show(name: str, rows: int, errors: Sequence[float], bias: str = "") -> None:
    shipped, refitted, out = errors
    print(f"{name:34} {rows:6} {shipped:8.1f} {refitted:9.1f} {out:9.1f} {bias}", flush=True)


def main() -> None:
    """Fit each kind of constants that the tables have rows for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("tables", nargs="+", type=Path)
    parser.add_argument("--rows", type=int, default=60, help="of each device and op, to fit to")
    parser.add_argument("--apart", action="store_true", help="begin away from what ships")
    asked = parser.parse_args()
    for kind in KINDS:
        devices = read(asked.tables, kind, asked.rows)
        if len(devices) > 1:
            fit(kind, devices, apart=asked.apart)


if __name__ == "__main__":
    main()
