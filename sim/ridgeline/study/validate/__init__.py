"""Predictions against measurements: every row becomes a simulation of its own configuration.

A suite is a module with ``COLUMNS``, the columns of its rows (``MEASURED``: of another kind of
table that it reads as it is), and a function ``predict(rows) -> Iterator[Outcome | Skipped]``; the
table below names it. A table with other columns is imported first (`study.import_rows`). A row that
cannot be simulated is skipped with its reason, never dropped. The measurements that ship for a
suite are the file ``SHIPPED`` and any ``SAMPLES`` in ``data/``: normalised by
``benchmarks/import/normalise.py``, or samples of tables of measured kernels
(``benchmarks/sample_measured.py``).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

from ridgeline.errors import ConfigError, RidgelineError
from ridgeline.study.validate.outcome import Outcome, Skipped
from ridgeline.study.validate.rows import MeasuredRow, read_rows
from ridgeline.study.validate.statistics import Summary, summarise
from ridgeline.study.validate.suites import SUITES, find_suite

_LONGEST = ("multi-device", "llm", "single-device", "memory")
"""These begin first, so that no process waits for one that began last."""
_SHARED = ("model", "model_fields", "plan")
"""Columns by which rows are sorted, so that those of one network stand beside each other."""
_PART = 32
"""Rows that a process predicts at a time. Neighbours share networks and plans, which are kept."""

__all__ = [
    "SUITES",
    "Outcome",
    "Skipped",
    "Validation",
    "find_suite",
    "shipped",
    "shipped_files",
    "validate",
    "validate_suites",
]


@dataclass(frozen=True)
class Validation:
    """All rows of one suite and how far they are off."""

    suite: str
    outcomes: tuple[Outcome, ...]
    skipped: tuple[Skipped, ...]

    @property
    def summary(self) -> Summary:
        """Errors of the predictions, weighted by group; those aside only if there are no others."""
        counted = [o for o in self.outcomes if not o.aside] or self.outcomes
        return summarise(counted, len(self.skipped))

    @property
    def by_quantity(self) -> dict[str, Summary]:
        """Errors by what was measured, where a suite predicts several things; else none."""
        rows: dict[str, list[Outcome]] = {}
        for outcome in self.outcomes:
            rows.setdefault(outcome.quantity, []).append(outcome)
        return {name: summarise(rows[name], 0) for name in sorted(rows)} if len(rows) > 1 else {}

    @property
    def by_device(self) -> dict[str, Summary]:
        """Errors by device, where a suite is of single kernels; else none."""
        return self._by(lambda outcome: outcome.device)

    @property
    def by_format(self) -> dict[str, Summary]:
        """Errors by number format, where a suite is of single kernels; else none."""
        return self._by(lambda outcome: outcome.format)

    @property
    def by_kind(self) -> dict[str, Summary]:
        """Errors by kind of work, where a suite is of single kernels; else none."""
        return self._by(lambda outcome: outcome.kind)

    def _by(self, name_of: Callable[[Outcome], str]) -> dict[str, Summary]:
        rows: dict[str, list[Outcome]] = {}
        for outcome in self.outcomes:
            if name := name_of(outcome):
                rows.setdefault(name, []).append(outcome)
        return {name: summarise(rows[name], 0) for name in sorted(rows)}

    @property
    def published(self) -> dict[str, dict[str, float]]:
        """Errors that others state of the same rows, beside those of ridgeline; means over rows."""
        rows: dict[str, list[tuple[float, float]]] = {}
        for outcome in self.outcomes:
            for name, error in outcome.published.items():
                rows.setdefault(name, []).append((error, abs(outcome.error)))
        return {
            name: {
                "n": len(both),
                "mean_abs_error": sum(theirs for theirs, _ in both) / len(both),
                "ridgeline_mean_abs_error": sum(ours for _, ours in both) / len(both),
            }
            for name, both in sorted(rows.items())
        }

    @property
    def above_limit(self) -> tuple[int, int] | None:
        """How many predictions exceed what their rows allow at most, and of how many."""
        limited = [o.predicted > o.limit for o in self.outcomes if o.limit is not None]
        return (sum(limited), len(limited)) if limited else None

    @property
    def verdicts(self) -> tuple[int, int] | None:
        """In how many rows it is right whether a step fits into memory, and of how many."""
        said = [o.verdict for o in self.outcomes if o.verdict is not None]
        return (sum(said), len(said)) if said else None

    @property
    def trivial(self) -> dict[str, Summary]:
        """Errors that the trivial predictors make on the same rows."""
        names = dict.fromkeys(name for o in self.outcomes for name in o.trivial)
        return {name: summarise([o.by(name) for o in self.outcomes], 0) for name in names}

    @property
    def by_table(self) -> dict[str, Summary]:
        """Errors by the file of the rows, where there are several; else none."""
        found = self._by(lambda outcome: Path(outcome.file).name)
        return found if len(found) > 1 else {}

    @property
    def reasons(self) -> dict[str, int]:
        """How many rows were skipped for each reason, the most frequent first."""
        counts: dict[str, int] = {}
        for row in self.skipped:
            counts[row.reason] = counts.get(row.reason, 0) + 1
        return dict(sorted(counts.items(), key=lambda item: (-item[1], item[0])))

    def to_dict(self, *, rows: bool = False) -> dict[str, Any]:
        """Return the summary, and every row on demand, as plain values; errors are fractions."""
        answer: dict[str, Any] = {
            "suite": self.suite,
            "summary": self.summary.to_dict(),
            "by_quantity": {name: one.to_dict() for name, one in self.by_quantity.items()},
            "verdicts": dict(zip(("right", "rows"), self.verdicts or (), strict=False)),
            "trivial": {name: summary.to_dict() for name, summary in self.trivial.items()},
            "by_table": {name: one.to_dict() for name, one in self.by_table.items()},
            "by_device": {name: one.to_dict() for name, one in self.by_device.items()},
            "by_format": {name: one.to_dict() for name, one in self.by_format.items()},
            "by_kind": {name: one.to_dict() for name, one in self.by_kind.items()},
            "published": self.published,
            "above_limit": dict(zip(("above", "rows"), self.above_limit or (), strict=False)),
            "skipped": self.reasons,
        }
        if rows:
            made = [o.to_dict() for o in self.outcomes] + [s.to_dict() for s in self.skipped]
            answer["rows"] = sorted(made, key=lambda row: (row["file"], row["line"]))
        return answer


def validate(
    suite: str,
    data: str | Path | None = None,
    processes: int = 1,
    only: str | None = None,
    software: str = "",
) -> Validation:
    """Predict every measurement of a suite.

    Parameters
    ----------
    data
        A CSV file with the suite's columns; by default the measurements that ship.
    only
        The id of one row, or "line N": no other is predicted.
    processes
        How many share the rows. The answer does not depend on it.
    software
        A stack that every row is predicted under, in place of its own and its settings.

    Raises
    ------
    ConfigError
        If the file cannot be read, lacks a column, or has no number where one must be in every
        row, with file and line.
    RidgelineError
        If there is no such suite, no row of the file belongs to it, or a process was killed.
    """
    paths = shipped_files(suite) if data is None else (Path(data),)
    rows = _read_all(suite, paths)
    if only is not None:
        rows = [row for row in rows if row.id == only]
        if not rows:
            raise RidgelineError(f"{_names(paths)}: no row is called {only!r}")
    rows = [_under(row, software) for row in rows] if software else rows
    (made,) = _predicted({suite: rows}, processes).values()
    return _validation(suite, paths, made)


def validate_suites(names: Sequence[str], processes: int) -> list[Validation]:
    """Predict what ships for several suites, whose rows some processes share; in the order given.

    Raises
    ------
    RidgelineError
        As `validate`.
    """
    made = _predicted({name: _read_all(name, shipped_files(name)) for name in names}, processes)
    return [_validation(name, shipped_files(name), made[name]) for name in names]


def _validation(suite: str, paths: Sequence[Path], made: list[Outcome | Skipped]) -> Validation:
    if not made:
        raise RidgelineError(f"{_names(paths)}: no row belongs to the suite {suite!r}")
    made.sort(key=lambda row: (row.file, row.line))
    outcomes = tuple(row for row in made if isinstance(row, Outcome))
    skipped = tuple(row for row in made if isinstance(row, Skipped))
    if not outcomes and all(row.unreadable for row in skipped):
        raise _unreadable(skipped[0])
    return Validation(suite, outcomes, skipped)


def _unreadable(row: Skipped) -> ConfigError:
    reason = row.reason.removeprefix(f"{row.unreadable}: ")
    return ConfigError(reason, file=row.file, line=row.line, field=row.unreadable)


def _predicted(
    tables: Mapping[str, Sequence[MeasuredRow]], processes: int
) -> dict[str, list[Outcome | Skipped]]:
    """Predict the rows of some suites, a part of a table at a time in each of some processes."""
    parts = [(name, part) for name in sorted(tables, key=_later) for part in _parts(name, tables)]
    processes = min(processes, len(parts))
    if processes <= 1:
        return {name: _predict(name, rows) for name, rows in tables.items()}
    from concurrent.futures.process import BrokenProcessPool

    from ridgeline.study.parallel_run import workers

    made: dict[str, list[Outcome | Skipped]] = {name: [] for name in tables}
    try:
        with workers(processes) as pool:
            running = [(name, pool.submit(_predict, name, part)) for name, part in parts]
            for name, part in running:
                made[name] += part.result()
    except BrokenProcessPool as error:
        raise RidgelineError("a process was killed (out of memory?); try --processes 1") from error
    return made


def _later(name: str) -> int:
    """Place of a suite in the order in which they begin."""
    return _LONGEST.index(name) if name in _LONGEST else len(_LONGEST)


def _parts(name: str, tables: Mapping[str, Sequence[MeasuredRow]]) -> list[Sequence[MeasuredRow]]:
    rows = tables[name]
    return [rows[first : first + _PART] for first in range(0, len(rows), _PART)]


def _predict(suite: str, rows: Sequence[MeasuredRow]) -> list[Outcome | Skipped]:
    return list(find_suite(suite).predict(rows))


def _is_normal(module: Any, rows: Sequence[MeasuredRow]) -> bool:
    """Tell whether rows have columns that a suite reads; others go through the importer."""
    columns = [module.COLUMNS, *filter(None, [getattr(module, "MEASURED", None)])]
    return not rows or any(all(name in rows[0].values for name in some) for some in columns)


def shipped(suite: str) -> Path:
    """Path of the measurements that ship for a suite; of several files the first."""
    return shipped_files(suite)[0]


def shipped_files(suite: str) -> tuple[Path, ...]:
    """Paths of all measurements that ship for a suite.

    Rows whose licence asks that what is made of them has it, too (``share_alike/``), are in a
    checkout and not in the wheel.
    """
    module = find_suite(suite)
    names = (module.SHIPPED, *getattr(module, "SAMPLES", ()))
    paths = (Path(str(resources.files(__name__).joinpath("data", name))) for name in names)
    return tuple(path for path in paths if path.parent.name != "share_alike" or path.is_file())


def _names(paths: Sequence[Path]) -> str:
    return ", ".join(map(str, paths))


def _under(row: MeasuredRow, software: str) -> MeasuredRow:
    """Return a row as another program would have run it.

    Raises
    ------
    RidgelineError
        If no program runs what the row measured.
    """
    if "software" not in row.values:
        raise RidgelineError("no software runs what this suite measures: leave out --software")
    from ridgeline.software.load import load_software

    load_software(software)
    other = {"software": software, "overrides": "", "under": software}
    return MeasuredRow(row.file, row.line, {**row.values, **other})


def _read_all(suite: str, paths: Sequence[Path]) -> list[MeasuredRow]:
    return [row for path in paths for row in _read(suite, path)]


def _read(suite: str, path: Path) -> list[MeasuredRow]:
    """Read a table, whose columns are those of the suite, or of one that its importer reads.

    Rows of one network stand beside each other, for the caches.
    """
    rows = read_rows(path)
    if not _is_normal(find_suite(suite), rows):
        from ridgeline.study.import_rows import import_table

        rows = import_table(suite, path)
    return sorted(rows, key=lambda row: [row.text(name) for name in _SHARED])
