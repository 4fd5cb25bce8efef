"""Fit least times of frameworks' products, with each device left out.

    python benchmarks/fit_product_ways.py [--write] TABLE ...

Tables are of measured calls of products in 8 and 4 bits. For each framework and format of
`study.validate.product_ways`, of up to 16, up to 128 and more rows of activations: ``element_ns``
and ``k_ns``, or instead of this the ``share`` of the peak of blocks, of more than 128 rows. They
are fitted to the rows of all devices but one, each of which weighs as much as another, and the rows
of that device are predicted with them. Where one device alone was measured, fifths of the shapes
are left out instead. What is no better there by a twentieth than a table without it is not kept.
Lines of one library are kept where they are better than the general one by a twentieth; ``row_us``,
``weights`` and what is said of them stay.
"""

from __future__ import annotations

import argparse
import csv
import itertools
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ridgeline.study.csv_file import read_csv
from ridgeline.study.validate import gemm, measured
from ridgeline.study.validate.call_starts import HOST_SLOWDOWN
from ridgeline.study.validate.measured import KernelTimeBounds, PricedRow
from ridgeline.study.validate.product_ways import FILE, ProductWay, product_way
from ridgeline.study.validate.rows import MAX_BYTES, SHIPPED, read_rows

Floats = NDArray[np.float64]
FIELDS = ("framework", "format", "library", "rows", "row_us", "element_ns", "k_ns", "share",
          "weights", "fitted_to", "error_before", "error_left_out", "source")  # fmt: skip
_K_NS = (0.0, 0.7, 0.8, 0.9, 1.0, 1.15, 1.3, 1.5, 1.7, 2.0, 2.3, 2.6, 3.0, 3.5, 4.0, 6.0, 8.5)
_SHARES = (0.0, 0.25, 0.3, 0.35, 0.4, 0.45, 0.5, 0.55, 0.6, 0.65, 0.7, 0.75, 0.8, 0.9, 1.0)
_ELEMENTS_NS = (0.0, 0.05, 0.1, 0.15, 0.2, 0.3, 0.4, 0.6, 0.8, 1.0, 1.3, 1.6, 2.0, 2.3, 2.6, 3.0)
_ROWS = (1, 17, 129)  # from the last on blocks are of BLOCK x BLOCK
_BETTER = 0.95
_PARTS = 5
_FEWEST = 12
_NARROW = ("fp8", "int", "nvfp4")


@dataclass(frozen=True)
class Part:
    """Rows of one framework, format and range of rows of the activations.

    Attributes
    ----------
    errors
        [ways, rows]: absolute relative errors with each way that is tried.
    parts
        What is left out together: devices, or fifths of the shapes of one.
    """

    ways: list[ProductWay]
    errors: Floats
    devices: NDArray[np.str_]
    parts: NDArray[np.str_]

    def best(self, but: str = "") -> int:
        devices = self.devices
        counts = {name: float(np.sum(devices == name)) for name in np.unique(devices)}
        weights = np.array([1.0 / counts[name] for name in devices]) * (self.parts != but)
        return int(np.argmin(self.errors @ weights))

    @property
    def left_out(self) -> float:
        """Mean error, each part predicted with what the others tell."""
        found = [self.errors[self.best(name)][self.parts == name] for name in np.unique(self.parts)]
        return float(np.concatenate(found).mean())

    def of(self, index: int) -> float:
        return float(self.errors[index].mean())


def _parts(devices: NDArray[np.str_], shapes: NDArray[np.str_]) -> NDArray[np.str_]:
    if len(np.unique(devices)) > 1:
        return devices
    fifths = [str(zlib.crc32(str(shape).encode()) % _PARTS) for shape in shapes]
    return np.array(fifths)


def tried(known: ProductWay, rows: int) -> list[ProductWay]:
    """Return the ways that are tried; the first has nothing that is fitted."""
    bare = replace_way(known, 0.0, 0.0, 0.0)
    pairs = [(k_ns, 0.0) for k_ns in _K_NS]
    if rows == _ROWS[-1]:
        pairs += [(0.0, share) for share in _SHARES if share]
    return [replace_way(bare, *pair, ns) for pair, ns in itertools.product(pairs, _ELEMENTS_NS)]


def replace_way(way: ProductWay, k_ns: float, share: float, element_ns: float) -> ProductWay:
    return way._replace(k_s=k_ns * 1e-9, share=share, element_s=element_ns * 1e-9)


@dataclass(frozen=True)
class Rows:
    """Rows as arrays: what their times are made of with any way, in s.

    Attributes
    ----------
    price_s, bytes_s
        Of their ops, and of the bytes of the kernel that quantises.
    rows, numbers
        Rows that each processor quantises, and numbers that one block after the other does.
    sums, block_s
        Elements of sums that blocks add up, round by round, and the time of all rounds at peak.
    """

    price_s: Floats
    bytes_s: Floats
    rows: Floats
    numbers: Floats
    sums: Floats
    block_s: Floats
    start_s: Floats
    slowdown: Floats
    host_s: Floats
    measured_s: Floats

    @classmethod
    def of(cls, made: Sequence[PricedRow]) -> Rows:
        return cls(*np.array([_terms(one) for one in made]).T)

    def errors(self, way: ProductWay) -> Floats:
        """Absolute relative errors, as `PricedRow.time_s` has it of one."""
        row_s = self.rows * way.row_s + self.numbers * way.element_s
        more_s = np.maximum(0.0, row_s - self.bytes_s) if way.row_s or way.element_s else 0.0
        sums_s = self.sums * way.k_s
        if way.share:
            sums_s = np.maximum(sums_s, self.block_s / way.share)
        kernels_s = np.maximum(self.price_s, sums_s) + more_s
        time_s = np.maximum(self.host_s, self.slowdown * kernels_s + self.start_s)
        return np.asarray(np.abs(time_s / self.measured_s - 1.0))


def _terms(made: PricedRow) -> tuple[float, ...]:
    graph, device, start = made.call.graph, made.machine, made.call.start
    known, k = made.call.least, int(made.row.values["k"])
    long_s = 1e3  # of a row, so that bytes are less
    first, second = (
        KernelTimeBounds(known.rows, times * long_s).more_of_rows_s(graph, device)
        for times in (1, 2)
    )
    rows = (second - first) / long_s
    bytes_s = rows * long_s - first
    numbers = (
        KernelTimeBounds(known.rows, number_s=k * long_s).more_of_rows_s(graph, device) + bytes_s
    )
    sums = KernelTimeBounds(sum_s=float(k), blocks=known.blocks).sums_s(graph, device)
    block = replace(known, sum_s=0.0, share=1.0).sums_s(graph, device)
    return (
        made.price.time_s, bytes_s, rows, numbers / long_s, sums, block, start.device_s,
        start.slowdown, start.host_s * HOST_SLOWDOWN.get(made.device, 1.0),
        float(made.row.values["time_us"]) * 1e-6,
    )  # fmt: skip


def part_of(made: Sequence[PricedRow], known: ProductWay, rows: int) -> Part:
    """Price rows with every way."""
    quantises = len(made[0].call.graph.ops) > 1
    ways = [way for way in tried(known, rows) if quantises or not way.element_s]
    terms = Rows.of(made)
    errors = np.array([terms.errors(way) for way in ways])
    devices = np.array([one.device for one in made])
    shapes = np.array([one.call.words for one in made])
    return Part(ways, errors, devices, _parts(devices, shapes))


def lines_of(framework: str, format_: str, made: Sequence[PricedRow]) -> Iterator[dict[str, str]]:
    """Return the lines of a framework and format."""
    libraries = np.array([measured.library_of(one.machine) for one in made])
    of_row = np.array([one.call.least.rows for one in made])
    notes = _notes()
    for rows, end in itertools.pairwise((*_ROWS, 2**62)):
        inside = (of_row >= rows) & (of_row < end)
        if inside.sum() < _FEWEST:
            continue
        ours = [one for one, yes in zip(made, inside, strict=True) if yes]
        found: dict[str, tuple[Part, int]] = {}
        for library in ("", *sorted(set(libraries))):
            mine = np.array([library in ("", name) for name in libraries[inside]])
            if mine.sum() < _FEWEST:
                continue
            some = [one for one, yes in zip(ours, mine, strict=True) if yes]
            part = part_of(some, product_way(framework, format_, library, rows), rows)
            before, left_out = part.of(0), part.left_out
            best = part.best() if left_out < _BETTER * before else 0
            general = found.get("")
            if library and general is not None:
                told = general[0].errors[general[1]][mine].mean()
                if left_out >= _BETTER * told:
                    continue
            found[library] = (part, best)
            way = part.ways[best]
            yield {
                "framework": framework, "format": format_, "library": library, "rows": str(rows),
                "row_us": f"{way.row_s * 1e6:g}", "element_ns": f"{way.element_s * 1e9:g}",
                "k_ns": f"{way.k_s * 1e9:g}", "share": f"{way.share:g}",
                "weights": str(way.weights),
                "fitted_to": f"{len(some)} rows of {len(np.unique(part.devices))} devices",
                "error_before": f"{before:.3f}",
                "error_left_out": f"{left_out:.3f}" if best else "",
                "source": notes.get((framework, format_), ""),
            }  # fmt: skip


def _notes() -> dict[tuple[str, str], str]:
    """Return what the table that ships says of the values that are not fitted."""
    return {
        (row["framework"], row["format"]): row["source"]
        for _, row in read_csv(SHIPPED / FILE, MAX_BYTES)
        if not row["library"] and row["rows"] == "1"
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true")
    parser.add_argument("tables", nargs="+", type=Path)
    arguments = parser.parse_args()
    groups: dict[tuple[str, str], list[PricedRow]] = {}
    for table in arguments.tables:
        for made in measured.priced(read_rows(table), gemm.call):
            if isinstance(made, PricedRow) and made.call.format.startswith(_NARROW):
                groups.setdefault((made.row.text("framework"), made.call.format), []).append(made)
    lines = []
    for (framework, format_), rows in sorted(groups.items()):
        for line in lines_of(framework, format_, rows):
            print(" ".join(f"{value or '-':>10}" for value in line.values()), flush=True)
            lines.append(line)
    if arguments.write:
        with (SHIPPED / FILE).open("w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, FIELDS, lineterminator="\n")
            writer.writeheader()
            writer.writerows(lines)


if __name__ == "__main__":
    main()
