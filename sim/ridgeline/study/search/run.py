"""A search: points of a study chosen by methods, and random ones beside, in a file that survives.

All searches of a study go on side by side, a batch of suggestions each, and a batch is told in the
order in which it was suggested: what is chosen does not depend on how many processes simulate it. A
search that was killed chooses the same points again, whose rows are in the working file, and goes
on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from ridgeline.config import Source, read_yaml
from ridgeline.errors import ConfigError, nearest
from ridgeline.study.collective_point import AnyPoint
from ridgeline.study.columns import number, resolve
from ridgeline.study.parallel_run import JobPool
from ridgeline.study.search.hypervolume import Floats, hypervolume, non_dominated
from ridgeline.study.search.method import (
    EXHAUSTIVE,
    RANDOM,
    SEARCH_METHODS,
    Evaluated,
    SearchMethod,
)
from ridgeline.study.search.result import DesignSearchResult, front_of, summaries
from ridgeline.study.search.settings import DEFAULT_EVALUATIONS, MAX_EVALUATIONS, SearchSettings
from ridgeline.study.search.space import Design, SearchSpace
from ridgeline.study.store import RowStore, opened_store
from ridgeline.study.study_check import check_columns
from ridgeline.study.study_document import naming_no_inline_file, study_document
from ridgeline.study.study_file import PointJudge, Row, cell
from ridgeline.study.sweep import Sweep, check_output, prepare, write_rows

_MARGIN = 0.1  # of the range of a front, by which the reference lies behind it


@dataclass
class SearchTrace:
    """One search: a method, a seed, and the keys of its points in the order of their choice."""

    method: str
    seed: int
    chooser: SearchMethod
    evaluations: int
    keys: list[str] = field(default_factory=list)
    values: list[Row] = field(default_factory=list)
    outcomes: list[Evaluated] = field(default_factory=list)
    is_over: bool = False

    def suggested(self, parallel: int) -> list[Design]:
        """Return the next designs; none when there are no more, or enough."""
        count = min(parallel, self.evaluations - len(self.keys))
        designs = self.chooser.ask(count) if count and not self.is_over else []
        self.is_over = not designs
        return designs


class SearchRun:
    """All searches of a study.

    Parameters
    ----------
    sweep
        The study, with its search block, and the hash of its files.
    settings
        In place of those of the study.

    Raises
    ------
    ConfigError
        If a method is unknown, or cannot be had, or the space is too large for one.
    """

    def __init__(self, sweep: Sweep, settings: SearchSettings) -> None:
        self.sweep, self.settings = sweep, settings
        self.study = sweep.study
        self.space = SearchSpace(self.study)
        self._judge = PointJudge.of(self.study)
        self.traces = list(self._traces())

    def _traces(self) -> Iterator[SearchTrace]:
        settings = self.settings
        names = list(dict.fromkeys(settings.method))
        for name in names:
            if name not in SEARCH_METHODS:
                raise ConfigError(
                    f"there is no search method {name!r}{nearest(name, SEARCH_METHODS)}"
                    f" (there are: {', '.join(SEARCH_METHODS)})",
                    field="search.method",
                )
        if names != [EXHAUSTIVE] and RANDOM not in names:
            names.append(RANDOM)
        for name in names:
            evaluations = settings.evaluations or DEFAULT_EVALUATIONS
            if name == EXHAUSTIVE:
                every = self._all()
                evaluations = settings.evaluations or every
            kind = SEARCH_METHODS[name]
            for seed in range(settings.seeds if kind.has_choice else 1):
                at = settings.seed + seed
                chooser = kind(self.space, len(settings.objectives), at)
                yield SearchTrace(name, at, chooser, evaluations)

    def _all(self) -> int:
        self.space.check_finite()
        size = self.space.size or 0
        if size > MAX_EVALUATIONS:
            raise ConfigError(
                f"{size:,} designs are too many to enumerate; at most {MAX_EVALUATIONS:,}",
                field="search.method",
            )
        return size

    @property
    def most(self) -> int:
        """Points of all searches together, at most."""
        return sum(trace.evaluations for trace in self.traces)

    def point(self, design: Design) -> tuple[Row, AnyPoint]:
        """Return the varied values of a design as cells of a row, and its point."""
        values = self.space.values(design)
        return (
            {name: cell(value) for name, value in values.items()},
            self.study.base.with_values(values),
        )

    def run(
        self,
        store: RowStore,
        processes: int = 1,
        cluster_address: str | None = None,
        progress: Callable[[int], None] = lambda count: None,
    ) -> None:
        """Choose and simulate points until every search is over; rows go to the store.

        Raises
        ------
        RidgelineError
            If the working file cannot be written, or workers die again and again.
        """
        with JobPool(processes, cluster_address, self.sweep.files) as pool:
            while batches := [
                (trace, designs)
                for trace in self.traces
                if (designs := trace.suggested(self.settings.parallel))
            ]:
                todo: dict[str, AnyPoint] = {}
                for trace, designs in batches:
                    for design in designs:
                        values, point = self.point(design)
                        key = self.sweep.key_of(point)
                        trace.keys.append(key)
                        trace.values.append(values)
                        if key not in store:
                            todo[key] = point
                for key, row in pool.run(list(todo.items())):
                    store.append(key, row)
                for trace, designs in batches:
                    first = len(trace.keys) - len(designs)
                    found = [
                        self._outcome(self._row(trace, i, store))
                        for i in range(first, len(trace.keys))
                    ]
                    trace.chooser.tell(designs, found)
                    trace.outcomes += found
                    progress(len(designs))

    def _row(self, trace: SearchTrace, i: int, store: RowStore) -> Row:
        """Return a row as a sweep has it."""
        values = trace.values[i]
        return self._judge.judged({**values, **store[trace.keys[i]], **values})

    def _outcome(self, row: Row) -> Evaluated:
        if row["error"]:
            return Evaluated(None, feasible=False)
        found = []
        for name, side in self.settings.objectives.items():
            value = number(row.get(resolve(name, row)))
            if value is None or isinstance(value, str) or not np.isfinite(value):
                return Evaluated(None, feasible=False)
            found.append(float(value) if side == "min" else -float(value))
        return Evaluated(tuple(found), bool(row.get("feasible", True)))

    def rows(self, store: RowStore) -> Iterator[Row]:
        """Yield the rows of all searches: which one, the fields, results, and hypervolume."""
        box = self.box
        for trace in self.traces:
            shares = shares_of(trace.outcomes, box)
            for i, share in enumerate(shares):
                row = self._row(trace, i, store)
                error = row.pop("error")
                place = {"method": trace.method, "seed": trace.seed, "evaluation": i + 1}
                yield {**place, **row, "hypervolume": share, "error": error}

    @cached_property
    def box(self) -> HypervolumeBox:
        """What hypervolume is a share of: the same box for all searches."""
        outcomes = [outcome for trace in self.traces for outcome in trace.outcomes]
        signs = [1.0 if side == "min" else -1.0 for side in self.settings.objectives.values()]
        given = self.settings.reference
        reference = [
            None if name not in given else sign * given[name]
            for name, sign in zip(self.settings.objectives, signs, strict=True)
        ]
        return HypervolumeBox.of(outcomes, reference)


@dataclass(frozen=True)
class HypervolumeBox:
    """The box that hypervolume is a share of, from the best of each objective to a reference.

    Attributes
    ----------
    ideal, reference
        (objectives,), all minimised; None where no point is feasible.
    """

    ideal: Floats | None
    reference: Floats | None

    @classmethod
    def of(cls, outcomes: Sequence[Evaluated], given: Sequence[float | None]) -> HypervolumeBox:
        """Return the box of all that was found.

        Without a given value an objective counts from the worst one of the front, and a tenth of
        the front's range more; where a front is a single value, from the worst that was found.
        """
        found = feasible_values(outcomes)
        if not len(found):
            return cls(None, None)
        front = non_dominated(found)
        ideal, nadir = front.min(axis=0), front.max(axis=0)
        wide = nadir + _MARGIN * (nadir - ideal)
        usual = np.where(nadir > ideal, wide, found.max(axis=0))
        reference = [
            one if stated is None else stated for one, stated in zip(usual, given, strict=True)
        ]
        return cls(ideal, np.array(reference))

    def share(self, values: Floats) -> float:
        """Return the share of the box that values dominate: 0 to 1."""
        if self.ideal is None or self.reference is None:
            return 0.0
        size = self.reference - self.ideal
        if not (size > 0).all():
            # All that was found is equal, or nothing is better than the reference.
            return float(len(values) > 0 and bool((values <= self.reference).all(axis=1).any()))
        return hypervolume((values - self.ideal) / size, np.ones(len(size)))


def feasible_values(outcomes: Sequence[Evaluated]) -> Floats:
    """Return the objectives of what is feasible, (points, objectives)."""
    found = [o.objectives for o in outcomes if o.feasible and o.objectives is not None]
    return np.array(found, np.float64) if found else np.empty((0, 0))


def shares_of(outcomes: Sequence[Evaluated], box: HypervolumeBox) -> list[float]:
    """Return the share of the box that is dominated after each evaluation."""
    shares: list[float] = []
    front: Floats | None = None
    share = 0.0
    for outcome in outcomes:
        if outcome.feasible and outcome.objectives is not None:
            new = np.array([outcome.objectives])
            if front is None or not (front <= new).all(axis=1).any():
                front = non_dominated(new if front is None else np.concatenate([front, new]))
                share = box.share(front)
        shares.append(share)
    return shares


def prepare_search(
    path: Source, software: str = "", options: dict[str, Any] | None = None
) -> SearchRun:
    """Read a study file with a search block, and check everything in it.

    Parameters
    ----------
    options
        Fields of `SearchSettings` in place of those of the file.

    Raises
    ------
    ConfigError
        With file, line, column and field of the first mistake.
    """
    sweep = prepare(path, software, searched=True)
    document = read_yaml(path)
    assert sweep.study.search is not None  # `prepare` has seen to it
    settings = with_options(sweep.study.search, options or {})
    for name in settings.reference:
        if name not in settings.objectives:
            raise document.error(
                f"{name!r} is no objective{nearest(name, settings.objectives)}",
                ("search", "reference", name),
            )
    try:
        run = SearchRun(sweep, settings)
        listed = run.space.listed
        first = run.point(listed[0] if listed else run.space.drawn(np.random.default_rng(0)))
    except ConfigError as error:
        place = tuple((error.field or "search").split("."))
        if place[:2] == ("search", "method") and (options or {}).get("method"):
            raise ConfigError(error.message, field="--method") from error
        raise document.error(error.message, place) from error
    check_columns(path, sweep.study, first)
    return run


def with_options(settings: SearchSettings, options: dict[str, Any]) -> SearchSettings:
    """Return settings with some replaced; those that are None stay."""
    given = {name: value for name, value in options.items() if value is not None}
    return SearchSettings.model_validate({**settings.model_dump(), **given})


def finished(run: SearchRun, store: RowStore, output: str | Path | None) -> DesignSearchResult:
    """Return the result of a search that has run, and write its rows."""
    rows = list(run.rows(store))
    if output is not None:
        write_rows(rows, output)
    store.remove()
    return _summed_up(run, rows)


def _summed_up(run: SearchRun, rows: list[Row]) -> DesignSearchResult:
    objectives: dict[str, str] = dict(run.settings.objectives)
    box = run.box
    signs = [1.0 if side == "min" else -1.0 for side in objectives.values()]

    def named(corner: Any) -> dict[str, float]:
        if corner is None:
            return {}
        values = (sign * value for sign, value in zip(signs, corner.tolist(), strict=True))
        return dict(zip(objectives, values, strict=True))

    fields = run.study.fields
    return DesignSearchResult(
        run.study.name, objectives, fields, rows, front_of(rows, objectives, fields),
        summaries(rows), named(box.ideal), named(box.reference), run.space.size,
    )  # fmt: skip


def search(
    study: str | Path | Mapping[str, Any],
    *,
    output: str | Path | None = None,
    processes: int = 1,
    cluster_address: str | None = None,
    software: str = "",
    **options: Any,
) -> DesignSearchResult:
    """Search the design space of a study file for its objectives: ``ridgeline search``.

    Parameters
    ----------
    study
        A study with a search block: its path, its text, or a mapping with its fields.
    output
        File for the rows, .csv or .parquet. Finished points lie beside it until all are there: a
        search that was killed goes on where it was.
    processes, cluster_address
        Where points are simulated: processes of this machine, or workers of a Dask scheduler.
    software
        A stack in place of the study's own, or "all": each that can run the steps is a choice.
    options
        `SearchSettings` in place of those of the file: ``method``, ``evaluations``, ``seed``,
        ``seeds``, ``parallel``.

    Returns
    -------
    DesignSearchResult

    Raises
    ------
    RidgelineError
        If the study has a mistake; with file, line and field.
    """
    check_output(output)
    with naming_no_inline_file():
        run = prepare_search(study_document(study), software, options)
    with opened_store(output) as store:
        run.run(store, processes, cluster_address)
        return finished(run, store, output)
