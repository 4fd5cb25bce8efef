"""Reports as HTML: one file with figures, tables and their data, for a result, rows or a run."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ridgeline.errors import ConfigError, RidgelineError

if TYPE_CHECKING:
    from ridgeline.report.html_page.document import Report

_TAKES = (
    "a result (JSON of ridgeline run --json), the rows of a sweep (.csv, .parquet, or JSON), a run"
    " (YAML of kind run, or JSON of ridgeline train --json)"
)


def report(
    data: Any, path: str | Path | None = None, *, seeds: int = 1, **files: str | Path | None
) -> str:
    """Make a report of a result, of the rows of a study, or of a whole run: one HTML file.

    Parameters
    ----------
    data
        A `Result`, a `TrainingResult`, rows (a list of mappings, a polars or pandas data frame), or
        the path of a file with one of them. A result that was saved is simulated again from its
        manifest, a file of kind run is simulated.
    path
        Where to write the document; it ends in .html.
    seeds
        Of a file of kind run.
    files
        Files of ``model``, ``cluster`` and ``software`` of a saved result, where they are not in
        the catalogue.

    Returns
    -------
    str
        The document. It needs no network.

    Raises
    ------
    RidgelineError
        If the data cannot be reported, or the file cannot be written.
    """
    if path is not None:
        from ridgeline.report.files import check_writable

        if Path(path).suffix.lower() not in {".html", ".htm"}:
            raise ConfigError("a report is written as .html", file=str(path))
        check_writable(path)
    text = _report_of(data, seeds, files).to_html()
    if path is not None:
        from ridgeline.report.files import write_text

        write_text(path, text)
    return text


def _report_of(data: Any, seeds: int, files: Mapping[str, str | Path | None]) -> Report:
    from ridgeline.report.result import Result

    unknown = set(files) - {"model", "cluster", "software"}
    if unknown:
        raise RidgelineError(f"report() takes no {sorted(unknown)[0]!r}")
    if isinstance(data, str | Path):
        return _of_file(str(data), seeds, files)
    if seeds != 1:
        raise RidgelineError("seeds are of a file of kind run")
    if isinstance(data, Result):
        from ridgeline.report.html_page.result_page import result_report

        return result_report(data)
    return _of_values(data, "rows", files)


def _of_file(name: str, seeds: int, files: Mapping[str, str | Path | None]) -> Report:
    suffix = Path(name).suffix.lower()
    if suffix in {".yaml", ".yml"}:
        return _of_run_file(name, seeds)
    if seeds != 1:
        raise ConfigError("seeds are of a file of kind run", file=name, field="--seeds")
    if suffix not in {".csv", ".parquet", ".json"}:
        raise ConfigError(f"a report is of {_TAKES}", file=name)
    from ridgeline.study.row_plots import read

    return _of_values(read(name), name, files)


def _of_run_file(name: str, seeds: int) -> Report:
    from ridgeline.input_files import kind_of
    from ridgeline.training.run_page import run_report
    from ridgeline.training.train import train

    kind = kind_of(name)
    if kind != "run":
        hint = "; simulate it first: ridgeline sweep" if kind == "study" else ""
        raise ConfigError(
            f"is of kind {kind}{hint}; a report is of {_TAKES}", file=name, field="kind"
        )
    many = f" --seeds {seeds}" if seeds != 1 else ""
    return run_report(train(name, seeds=seeds), f"ridgeline train {shlex.quote(name)}{many}")


def _of_values(data: Any, name: str, files: Mapping[str, str | Path | None]) -> Report:
    """Return the report of plain values: a saved result or run, or rows."""
    from ridgeline.report.html_page.rows_page import rows_report
    from ridgeline.study.row_values import flat_rows
    from ridgeline.training.run_page import run_report
    from ridgeline.training.training_result import TrainingResult

    if isinstance(data, TrainingResult):
        return run_report(data)
    if isinstance(data, Mapping) and "manifest" in data:
        from ridgeline.report.html_page.result_page import result_report
        from ridgeline.study.repeat import repeat

        model, cluster, software = (files.get(key) for key in ("model", "cluster", "software"))
        again = repeat(data, model=model, cluster=cluster, software=software, file=name)
        return result_report(again)
    named = next((key for key, file in files.items() if file is not None), None)
    if named is not None:
        raise ConfigError(f"--{named} is of a saved result", file=name)
    if isinstance(data, Mapping) and "outcomes" in data:
        return run_report(data)
    rows: Sequence[Mapping[str, Any]] = flat_rows(data, name, _TAKES)
    return rows_report(rows, name)
