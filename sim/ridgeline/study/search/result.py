"""What a search found: its rows, the front of all of them, and how soon each method got there."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING, Any

from ridgeline.study.ranking import pareto
from ridgeline.study.search.method import RANDOM
from ridgeline.study.study_file import Row

if TYPE_CHECKING:
    from matplotlib.axes import Axes


@dataclass(frozen=True)
class MethodSummary:
    """The searches of one method.

    Attributes
    ----------
    hypervolume
        Share of the box that is dominated at the end: one number a seed.
    feasible, failed
        Points of all seeds that meet every condition, and that could not be simulated.
    evaluations_to_random
        Evaluations after which the median of the seeds is as good as that of random at its end;
        None if it never is, or random did not run.
    """

    method: str
    evaluations: int
    hypervolume: tuple[float, ...]
    feasible: int
    failed: int
    evaluations_to_random: int | None

    def to_dict(self) -> dict[str, Any]:
        """Return plain values."""
        return {
            **vars(self),
            "hypervolume": {
                "median": median(self.hypervolume),
                "least": min(self.hypervolume),
                "most": max(self.hypervolume),
                "seeds": list(self.hypervolume),
            },
        }


@dataclass(frozen=True)
class DesignSearchResult:
    """All rows of a search, and what they say.

    Attributes
    ----------
    objectives
        Column -> "min" or "max".
    fields
        The varied fields.
    rows
        One an evaluation: ``method``, ``seed``, ``evaluation``, the fields, the numbers of the
        result, and ``hypervolume``: the share of the box that its search dominates by then.
    front
        The feasible rows that no other row beats, each design once.
    methods
        A summary a method.
    ideal, reference
        Corners of the box of hypervolume by objective; empty where nothing is feasible.
    designs
        Size of the space before conditions; None: without end.
    """

    study: str
    objectives: dict[str, str]
    fields: list[str]
    rows: list[Row]
    front: list[Row]
    methods: list[MethodSummary]
    ideal: dict[str, float]
    reference: dict[str, float]
    designs: int | None

    def __repr__(self) -> str:
        return (
            f"<DesignSearchResult of {self.study}: {len(self.rows):,} evaluations,"
            f" {len(self.front)} on the front>"
        )

    def to_dict(self) -> dict[str, Any]:
        """Return all but the rows that are not on the front, as plain values."""
        return {
            "study": self.study,
            "objectives": self.objectives,
            "designs": self.designs,
            "evaluations": len(self.rows),
            "hypervolume_box": {"ideal": self.ideal, "reference": self.reference},
            "methods": [one.to_dict() for one in self.methods],
            "front": self.front,
        }

    def plot(self, kind: str = "hypervolume", ax: Axes | None = None) -> Axes:
        """Draw "hypervolume" against evaluations, or the "pareto" front of two objectives.

        Raises
        ------
        RidgelineError
            If there is no such figure, nothing is feasible, or a front has not two objectives.
        """
        from ridgeline.errors import RidgelineError, nearest
        from ridgeline.report.figures.search import hypervolume_curves
        from ridgeline.report.figures.study import pareto_front
        from ridgeline.study.columns import resolve
        from ridgeline.study.ranking import candidates

        if not self.front:
            raise RidgelineError("no point is feasible: there is nothing to draw")
        if kind == "hypervolume":
            return hypervolume_curves(self.rows, ax=ax)
        if kind != "pareto":
            raise RidgelineError(
                f"a search has no figure {kind!r}{nearest(kind, FIGURES)}"
                f" (there are: {', '.join(FIGURES)})"
            )
        if len(self.objectives) < 2:
            raise RidgelineError("a front needs two objectives; draw hypervolume")
        x, y = (resolve(name, self.front[0]) for name in list(self.objectives)[:2])
        return pareto_front(candidates(self.rows), self.front, x, y, ax=ax)


FIGURES = ("hypervolume", "pareto")


def front_of(rows: Sequence[Row], objectives: dict[str, str], fields: Sequence[str]) -> list[Row]:
    """Return the feasible rows that no other row beats, each design once."""
    seen: dict[tuple[Any, ...], Row] = {}
    for row in rows:
        seen.setdefault(tuple(row[name] for name in fields), row)
    sides = {side: [n for n, s in objectives.items() if s == side] for side in ("min", "max")}
    once = [row for row in seen.values() if not row["error"]]
    return pareto(once, sides["min"], sides["max"])


def summaries(rows: Sequence[Row]) -> list[MethodSummary]:
    """Return a summary of every method, in the order of the rows."""
    curves: dict[str, dict[int, list[float]]] = {}
    for row in rows:
        curve = curves.setdefault(row["method"], {}).setdefault(row["seed"], [])
        curve.append(row["hypervolume"])
    medians = {method: _medians(list(seeds.values())) for method, seeds in curves.items()}
    goal = medians.get(RANDOM, [None])[-1]
    found = []
    for method, seeds in curves.items():
        of = [row for row in rows if row["method"] == method]
        reached = None
        if goal is not None and method != RANDOM:
            reached = next((i for i, v in enumerate(medians[method], 1) if v >= goal), None)
        found.append(
            MethodSummary(
                method,
                max(map(len, seeds.values())),
                tuple(curve[-1] for curve in seeds.values()),
                sum(not row["error"] and row.get("feasible") is not False for row in of),
                sum(bool(row["error"]) for row in of),
                reached,
            )
        )
    return found


def _medians(curves: Sequence[Sequence[float]]) -> list[float]:
    """Return the median of curves after each evaluation, as far as all of them go."""
    return [median(values) for values in zip(*curves, strict=False)]
