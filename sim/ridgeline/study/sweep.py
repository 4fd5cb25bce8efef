"""A sweep: every point of a study simulated once, one row each, in a file that survives a kill."""

from __future__ import annotations

import csv
import hashlib
import io
import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, TextIO

from ridgeline import catalog
from ridgeline.bounded_files import recording
from ridgeline.config import Document, Source
from ridgeline.errors import ConfigError
from ridgeline.parallel.plan.stack_choice import able_stacks
from ridgeline.report.files import check_writable, replacing
from ridgeline.software.load import load_software
from ridgeline.study.collective_point import AnyPoint, CollectivePoint, shared_network
from ridgeline.study.csv_file import read_csv
from ridgeline.study.parallel_run import Row, run_jobs
from ridgeline.study.parquet_file import MAX_FRAME_CELLS, read_parquet
from ridgeline.study.point import shared_model
from ridgeline.study.point_files import NO_FILES, PointFiles
from ridgeline.study.store import RowStore
from ridgeline.study.study_check import check_columns, check_values
from ridgeline.study.study_file import MAX_POINTS, PointJudge, Study, load_study
from ridgeline.version import __version__

__all__ = [
    "Sweep", "check_output", "load_rows", "load_study", "prepare", "rows_to_csv", "run_sweep",
    "write_rows", "writer_for",
]  # fmt: skip


@dataclass(frozen=True)
class Sweep:
    """A study, and all files that its points are made of."""

    study: Study
    files: PointFiles = NO_FILES

    @cached_property
    def size(self) -> int:
        """Number of points."""
        return self.study.size

    @cached_property
    def _digest(self) -> str:
        return self.files.digest()

    def keyed(self) -> Iterator[tuple[str, Row, AnyPoint]]:
        """Yield every point with its key and its varied values; equal points have equal keys."""
        for values, point in self.study.points():
            yield self.key_of(point), values, point

    def key_of(self, point: AnyPoint) -> str:
        """Return the name of a point: of its fields, all files that it is made of, the version."""
        content = [__version__, self._digest, *point.content()]
        text = json.dumps(content, sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()[:24]

    def run(
        self,
        store: RowStore,
        processes: int = 1,
        cluster_address: str | None = None,
        progress: Callable[[int], None] = lambda count: None,
    ) -> None:
        """Simulate every point that the store has no row of; `progress` is told how many are done.

        Raises
        ------
        RidgelineError
            If the working file cannot be written, or workers die again and again.
        """
        given: set[str] = set()

        def missing() -> Iterator[tuple[str, AnyPoint]]:
            """Yield points as they are asked for: a million of them would be gigabytes."""
            for key, _, point in self.keyed():
                if key in given or key in store:
                    progress(1)
                else:
                    given.add(key)
                    yield key, point

        for key, row in run_jobs(missing(), processes, cluster_address, self.files):
            store.append(key, row)
            progress(1)

    def rows(self, store: RowStore) -> Iterator[Row]:
        """Yield the row of every point, in the order of the study: varied values, then results."""
        judge = PointJudge.of(self.study)
        for key, values, _ in self.keyed():
            yield judge.judged({**values, **store[key], **values})


@dataclass(frozen=True)
class SweptRows:
    """All rows of a sweep, read from its working file each time that they are iterated over."""

    sweep: Sweep
    store: RowStore

    def __iter__(self) -> Iterator[Row]:
        return self.sweep.rows(self.store)

    def __len__(self) -> int:
        return self.sweep.size


def prepare(path: Source, software: str = "", *, searched: bool = False) -> Sweep:
    """Read a study file and check every value in it against the files that it is to go into.

    Parameters
    ----------
    software
        A stack in place of the study's own, or "all": every one that can run its steps.
    searched
        For a search, whose points are chosen: it checks formulas with one of them itself.

    Raises
    ------
    ConfigError
        With file, line, column and field of the first mistake.
    """
    for shared in (shared_model, shared_network):
        shared.cache_clear()  # every file that a key depends on is to be read now
    with recording() as files:
        study = load_study(path)
        study_text = path.file if isinstance(path, Document) else str(path)
        check_verb(study, study_text, searched=searched)
        check_values(path, study)
        study = under(study, software) if software else study
    if not searched and (study.columns or study.require):
        check_columns(path, study)
    files.pop(study_text, None)  # a point's key holds all that the study says of it
    return Sweep(study, PointFiles.of(files))


def check_verb(study: Study, file: str, *, searched: bool) -> None:
    """Raise ConfigError for a search of a study without one, or a sweep of one without a grid."""
    if searched and study.search is None:
        raise ConfigError(
            "there is no search block: give it objectives (docs/search.md), or run ridgeline sweep",
            file=file,
            field="search",
        )
    if not searched and study.search and (study.is_endless or study.grid_size > MAX_POINTS):
        raise ConfigError("its points are without end or too many: run ridgeline search", file=file)


def under(study: Study, software: str) -> Study:
    """Return a study under a stack, or under all stacks that can run its first step.

    Raises
    ------
    ConfigError
        If the study itself varies the software, or is of collectives.
    """
    if isinstance(study.base, CollectivePoint):
        raise ConfigError("this study is of collectives: no program runs them", field="--software")
    if any(path == "software" for path in study.fields):
        raise ConfigError("the study varies the software itself", field="--software")
    if software != "all":
        name = str(Path(software).resolve()) if catalog.is_path(software) else software
        load_software(name)
        return study.model_copy(update={"software": name})
    _, first = next(study.points())  # `check_values` has seen that there is one
    step = [first.load(root) for root in ("model", "cluster", "plan")]
    names = [stack.name for stack in able_stacks(*step)]
    return study.model_copy(update={"vary": {"software": names, **study.vary}})


def run_sweep(study: Study, progress: Callable[[], None] = lambda: None) -> list[Row]:
    """Simulate every point of a study in order, in this process, without a working file.

    Returns
    -------
    list of dict
        A row a point: the varied values, the numbers of the result, and `error`: empty, or why this
        point could not be simulated.
    """
    sweep = Sweep(study)
    judge = PointJudge.of(study)
    known: dict[str, Row] = {}
    rows: list[Row] = []
    for key, values, point in sweep.keyed():
        if key not in known:
            known[key] = dict(run_jobs([(key, point)]))[key]
        rows.append(judge.judged({**values, **known[key], **values}))
        progress()
    return rows


def write_rows(rows: Iterable[Row], path: str | Path) -> None:
    """Write rows to a ``.csv`` or ``.parquet`` file, whole or not at all.

    Parameters
    ----------
    rows
        CSV goes through them twice, and holds none of `SweptRows`; Parquet holds all.

    Raises
    ------
    ConfigError
        If the file has another ending, cannot be written, or polars is missing for Parquet.
    """
    path = Path(path)
    writer = writer_for(path)
    with replacing(path) as temporary:
        writer(list(rows) if iter(rows) is rows else rows, temporary)


def check_output(path: str | Path | None) -> None:
    """Raise ConfigError if rows cannot be written to a file; None: nothing is to be."""
    if path is not None:
        writer_for(Path(path))
        check_writable(path)


def writer_for(path: Path) -> Callable[[Iterable[Row], Path], None]:
    """Return the function that writes files of this ending, or raise ConfigError."""
    writers = {".csv": _write_csv, ".parquet": _write_parquet}
    if path.suffix not in writers:
        raise ConfigError(f"the file must end in {' or '.join(writers)}", file=str(path))
    if path.suffix == ".parquet":
        try:
            import polars  # noqa: F401
        except ImportError as error:
            raise ConfigError(
                "writing Parquet needs polars: pip install 'ridgeline[study]', or write .csv",
                file=str(path),
            ) from error
    return writers[path.suffix]


def rows_to_csv(rows: list[Row]) -> str:
    """Return rows as CSV text, with all columns that any row has."""
    text = io.StringIO()
    _write_csv_to(text, rows)
    return text.getvalue()


def load_rows(path: str | Path) -> Any:
    """Open the rows of a sweep: a polars DataFrame, or a list of dicts where polars is missing.

    Raises
    ------
    ConfigError
        If the file cannot be read, or is neither CSV nor Parquet.
    """
    try:
        import polars
    except ImportError:
        return plain_rows(path)
    if Path(path).suffix == ".parquet":
        return read_parquet(path, MAX_FRAME_CELLS)
    try:
        return polars.DataFrame(plain_rows(path), strict=False, infer_schema_length=None)
    except polars.exceptions.PolarsError as error:
        raise ConfigError(f"cannot be read: {error}", file=str(path)) from error


def plain_rows(path: str | Path) -> list[Row]:
    """Open the rows of a sweep as a list of dicts with numbers where there are numbers."""
    path = Path(path)
    if path.suffix == ".parquet":
        return _some(read_parquet(path).to_dicts(), path)
    if path.suffix != ".csv":
        raise ConfigError("the file must end in .csv or .parquet", file=str(path))
    rows = read_csv(path, limit=2**29)
    return _some([{name: _read(name, cell) for name, cell in row.items()} for _, row in rows], path)


def _some(rows: list[Row], path: Path) -> list[Row]:
    if not rows:
        raise ConfigError("there are no rows", file=str(path))
    return rows


def _read(name: str | None, cell: Any) -> Any:
    if name == "error":
        return cell or ""
    if cell in {"", None}:
        return None
    if cell in {"True", "False"}:
        return cell == "True"
    for kind in (int, float):
        try:
            return kind(cell)
        except (TypeError, ValueError):
            continue
    return cell


def _columns(rows: Iterable[Row]) -> list[str]:
    """Return all columns that any row has; the error comes last."""
    names: dict[str, None] = {}
    for row in rows:
        names |= dict.fromkeys(row)
    has_error = "error" in names
    names.pop("error", None)
    return [*names, "error"] if has_error else list(names)


def _write_csv_to(stream: TextIO, rows: Iterable[Row]) -> None:
    writer = csv.DictWriter(stream, _columns(rows), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)


def _write_csv(rows: Iterable[Row], path: Path) -> None:
    with path.open("w", encoding="utf-8", errors="surrogateescape") as stream:
        _write_csv_to(stream, rows)


def _write_parquet(rows: Iterable[Row], path: Path) -> None:
    import polars

    rows = list(rows)
    table = {name: [row.get(name) for row in rows] for name in _columns(rows)}
    with path.open("wb") as stream:  # polars takes no path that is not UTF-8
        polars.DataFrame(table, strict=False).write_parquet(stream)
