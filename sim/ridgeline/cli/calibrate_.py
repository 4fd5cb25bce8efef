"""``ridgeline calibrate``: describe a device from measurements of this machine, or from tables."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from ridgeline.cli.number_options import Finite, Whole
from ridgeline.cli.output import console, print_json
from ridgeline.errors import RidgelineError
from ridgeline.verbosity import is_quiet

if TYPE_CHECKING:
    from ridgeline.study.calibrate import Calibration
    from ridgeline.study.calibrate.from_tables import Parts, TableCalibration


def calibrate_(
    *,
    from_: Annotated[tuple[str, ...], Parameter(name="--from", consume_multiple=False)] = (),
    base: str | None = None,
    node: str | None = None,
    rows_of: str | None = None,
    tables: str | None = None,
    out: Annotated[str, Parameter(name=("--out", "--output"))] = "this-machine.yaml",
    backend: str = "numpy",
    device: str = "cpu",
    seconds: Finite | None = None,
    threads: Whole | None = None,
    seed: Whole = 0,
    quick: Annotated[bool, Parameter(negative="")] = False,
    json: Annotated[bool, Parameter(negative="")] = False,
) -> None:
    """Measure the machine that this runs on, or read measured tables, and write a device file.

    Without --from, products, convolutions, recurrences, other ops, updates and memory are measured;
    what they take is what ``ridgeline run MODEL FILE`` prices with. With --from, tables of a GPU's
    kernels make a file that starts from --base.

    Parameters
    ----------
    from_
        A table of measured kernels or collectives (CSV, gzipped CSV, Parquet); repeat it for more.
    base
        With --from: the device whose file the new one starts from. With --device cuda: the same;
        by default the shipped device with the name of the board.
    node
        With --from: the node in which the collectives were measured. Its links are written to
        NAME-node.yaml beside the device file.
    rows_of
        With --from: the name of the device in tables that have rows of several devices.
    tables
        With --device cuda: the folder for the measured tables; by default NAME-tables.
    out
        The device file to write.
    backend
        Library that computes: numpy or torch.
    device
        cpu or cuda (with PyTorch).
    seconds
        Time to spend, roughly: by default 30 s, or 3 s with --quick; on a CUDA device 120 s, or 20
        s.
    threads
        Threads that share an op; by default one for each core.
    seed
        Seed of the drawn shapes and numbers.
    quick
        Measure few shapes, each once.
    json
        Print the device as JSON too.
    """
    from ridgeline.study.calibrate import document, this_machine

    path = Path(out)
    if device == "cuda" and not from_:
        if node is not None or rows_of is not None:
            raise RidgelineError("--node and --rows-of belong to --from")
        if threads is not None:
            raise RidgelineError("--threads is of the cpu; a CUDA device has all of its processors")
        document.check_writable(path)
        tables_ = Path(tables or f"{path.stem}-tables")
        length = seconds if seconds is not None else 20.0 if quick else 120.0
        _on_cuda(base, path, tables_, length, seed, json=json)
        return
    if tables is not None:
        raise RidgelineError("--tables belongs to --device cuda")
    if from_:
        if base is None:
            raise RidgelineError(
                "--from needs --base, the device that the calibrated one starts from"
            )
        document.check_writable(path)
        _from_tables(from_, base, node, rows_of, path, json=json)
        return
    if base is not None or node is not None or rows_of is not None:
        raise RidgelineError("--base, --node and --rows-of belong to --from")
    document.check_writable(path)
    made = this_machine.calibrate(
        backend=backend, device=device, seconds=seconds, threads=threads, seed=seed, quick=quick,
        name=path.stem, progress=said,
    )  # fmt: skip
    made.write(path)
    if json:
        print_json(made.fields)
        return
    _print(made)
    console().print(f"wrote {path}", markup=False, soft_wrap=True)


def said(words: str) -> None:
    """Tell what goes on, beside the answer."""
    if not is_quiet():
        print(words, file=sys.stderr, flush=True)


def _on_cuda(
    base: str | None, path: Path, folder: Path, seconds: float, seed: int, *, json: bool
) -> None:
    """Measure the kernels of a CUDA device, and calibrate a device by their tables."""
    from ridgeline.hardware.load import load_device
    from ridgeline.study.calibrate.cuda_tables import base_of, device_name, measure_tables

    if seconds <= 0:
        raise RidgelineError(f"seconds must be more than 0, found {seconds:g}")
    if base is not None:
        load_device(base)  # before anything is measured
    key = base_of(device_name(), base)
    made = measure_tables(key, seconds, seed, said)
    files_ = made.write(folder)
    for note in made.notes:
        said(note)
    for file in files_:
        said(f"wrote {file}")
    readable = tuple(str(file) for file in files_ if file.stem in made.READ)
    _from_tables(readable, key, None, None, path, json=json)


def _from_tables(
    files: tuple[str, ...],
    base: str,
    node: str | None,
    rows_of: str | None,
    path: Path,
    *,
    json: bool,
) -> None:
    from ridgeline.study.calibrate import document
    from ridgeline.study.calibrate.from_tables import calibrate_from

    node_path = path.with_name(f"{path.stem}-node{path.suffix}") if node else None
    made = calibrate_from(
        files,
        base,
        document.slug(path.stem),
        node=node,
        node_name=document.slug(f"{path.stem}-node"),
        device_file=path.name,
        rows_of=rows_of,
        said=said,
    )
    written = made.write(path, node_path)
    if json:
        print_json(made.to_dict())
        return
    _print_tables(made)
    for file in written:
        console().print(f"wrote {file}", markup=False, soft_wrap=True)


def _print_tables(made: TableCalibration) -> None:
    from ridgeline import units
    from ridgeline.report.tables import plain_table

    def show(value: float, unit: str) -> str:
        return units.show(value, unit) if unit and unit != "tiles" else f"{value:.3g}"

    if made.fit is not None:
        table = plain_table(
            {"fitted": "left", "base": "right", "now": "right", "rows": "right",
             "error": "right", "now ": "right"}
        )  # fmt: skip
        for one in made.fit.found:
            unit = one.parameter.unit
            now = show(one.value, unit) if one.is_changed else "as it was"
            table.add_row(
                one.parameter.name, show(one.base, unit), now, str(len(one.rows)),
                f"{one.before:.1%}", f"{one.after:.1%}",
            )  # fmt: skip
        console().print(table, markup=False)
    for what, both in (
        ("time", made.time),
        ("power", made.power),
        ("collectives", None if made.links is None else (made.links.before, made.links.after)),
    ):
        if both is not None:
            _print_residuals(what, *both)
    for table_ in made.tables:
        for why, count in table_.skipped.items():
            console().print(f"{table_.file}: {count} rows left out: {why}", markup=False)
    if made.links is not None:
        for why, count in made.links.skipped.items():
            console().print(f"{count} collectives left out: {why}", markup=False)


def _print_residuals(
    what: str,
    before: Parts | Mapping[str, Mapping[str, object]],
    after: Parts | Mapping[str, Mapping[str, object]],
) -> None:
    from ridgeline.report.tables import plain_table

    columns = {what: "left", "rows": "right", "median": "right", "mean": "right", "bias": "right",
               "median now": "right", "mean now": "right", "bias now": "right"}  # fmt: skip
    table = plain_table(columns)
    for part, names in before.items():
        for name, old in names.items():
            new = after[part][name]
            table.add_row(f"{part}: {name}", *_row(old), *_row(new)[1:])
    console().print(table, markup=False)


def _row(one: object) -> list[str]:
    from ridgeline.study.calibrate.table_fit import Residuals

    assert isinstance(one, Residuals)
    return [str(one.n), f"{one.median:.1%}", f"{one.mean:.1%}", f"{one.bias:+.1%}"]


def _print(made: Calibration) -> None:
    from ridgeline import units
    from ridgeline.report.tables import plain_table

    found = made.found
    table = plain_table({"measured": "left", "": "right"})
    for format_, rate in found.rates.items():
        table.add_row(f"products in {format_}", units.show(rate, "FLOP/s"))
    for name, _, bandwidth in found.levels:
        table.add_row(f"bandwidth of {name}", units.show(bandwidth, "B/s"))
    table.add_row("an op's fixed time", made.fields["launch_latency"]["value"])
    console().print(table, markup=False)
    spread = plain_table(
        {"class": "left", "measured": "right", "10 %": "right", "median": "right", "90 %": "right"}
    )
    for name, group in found.groups.items():
        low, middle, high = group.fit().spread
        spread.add_row(
            name, str(len(group.times_s)), f"{low:+.0%}", f"{middle:+.0%}", f"{high:+.0%}"
        )
    console().print(spread, markup=False)
    console().print("errors are of the fitted times over the measured ones", markup=False)
    for note in found.notes:
        console().print(note, markup=False)
