"""Bayesian optimisation on a lazy Gaussian process.

Several objectives are joined by random weights, new ones for every suggestion (J. Knowles,
"ParEGO", IEEE Trans. Evolutionary Computation 10(1), 2006): the factor of the process stays, as it
does not depend on values. Conditions enter as the probability of meeting them. Of parallel
suggestions, each is added to the process with its mean as the value (D. Ginsbourger et al.,
"Kriging is well-suited to parallelize optimization", 2010): its row of the factor stays when the
value becomes known.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

import numpy as np
import numpy.typing as npt

from ridgeline.study.search.gaussian_process import (
    Floats,
    LazyGaussianProcess,
    fitted,
    log_likelihood,
)
from ridgeline.study.search.method import SEARCH_METHODS, SearchMethod
from ridgeline.study.search.space import Design, SearchSpace

_SHARE_OF_SUM = 0.05  # of the weighted sum beside the weighted maximum, as in ParEGO
_CANDIDATES = 400
_BEST, _AROUND = 5, 40  # designs that are refined, and variations of each
_SPREADS = (0.1, 0.03, 0.01, 0.003)  # of the variations, as a share of an axis
_MOST_FITTED = 150  # samples that hyperparameters are fitted to


@SEARCH_METHODS.register("lazy-gp")
class LazyGpSearch(SearchMethod):
    """Expected improvement on a Gaussian process whose factor grows by a row a sample.

    Hyperparameters, and whether an objective is taken as its logarithm, are fitted anew whenever
    the number of samples has doubled.
    """

    def __init__(self, space: SearchSpace, objectives: int, seed: int) -> None:
        super().__init__(space, objectives, seed)
        self._first = 2 * (len(space.axes) + 1)
        self._process = LazyGaussianProcess(np.full(len(space.groups), 0.5))
        self._fitted_at = 0
        self._logged = np.zeros(objectives, np.bool_)

    def _suggestions(self, count: int) -> Iterator[Design]:
        for _ in range(count):
            if len(self.asked) < self._first or not self._has_values():
                design = self.unseen()
            else:
                design = self._best()
            if design is None:
                return
            yield design

    def _has_values(self) -> bool:
        return any(outcome.objectives is not None for outcome in self.outcomes.values())

    def _best(self) -> Design | None:
        """Return the design that promises most; what is asked for but open has its mean."""
        asked = list(self.asked)
        told = [design for design in asked if design in self.outcomes]
        feasible = np.array([float(self.outcomes[design].feasible) for design in told])
        process = self._ready(asked, told)
        scaled = self._scaled(told)
        joined = self._joined(scaled)
        values = np.column_stack([joined, feasible])
        if waiting := asked[len(told) :]:  # those asked for last
            means, _ = process.posterior(self.space.coordinates(waiting), values)
            values = np.concatenate([values, means])
        best = float(joined[feasible > 0].min()) if feasible.any() else None
        all_feasible = bool(feasible.all())

        def promise(designs: list[Design]) -> Floats:
            means, deviations = process.posterior(self.space.coordinates(designs), values)
            chance = np.ones(len(designs))
            if not all_feasible:
                chance = _normal((means[:, 1] - 0.5) / np.maximum(deviations[:, 1], _TINY))
            if best is None:  # nothing feasible yet: look for that
                return np.asarray(chance * deviations[:, 0])
            return np.asarray(chance * expected_improvement(means[:, 0], deviations[:, 0], best))

        return self._sought(promise, [told[i] for i in np.argsort(joined, kind="stable")[:_BEST]])

    def _sought(
        self, promise: Callable[[list[Design]], Floats], centres: list[Design]
    ) -> Design | None:
        """Maximise a promise over random designs, then over variations of the best so far."""
        listed = self.space.listed
        if listed is not None and len(listed) - len(self.asked) <= _CANDIDATES:
            pool = [design for design in listed if design not in self.asked]
            return pool[int(np.argmax(promise(pool)))] if pool else None
        pool = [design for _ in range(_CANDIDATES) if (design := self.unseen()) is not None]
        for spread in _SPREADS:
            near = [self._varied(centre, spread) for centre in centres for _ in range(_AROUND)]
            pool += [d for d in dict.fromkeys(near) if d not in self.asked and self.space.allows(d)]
            order = np.argsort(-promise(pool), kind="stable")[:_BEST]
            pool = centres = [pool[i] for i in order]
        return pool[0]

    def _varied(self, design: Design, spread: float) -> Design:
        """Return a design with a few axes changed: of an order, nearby; others, to any value."""
        place = np.array(design)
        changed = self.rng.random(len(place)) < min(1.0, 2.0 / len(place))
        changed[int(self.rng.integers(len(place)))] = True
        for i in np.flatnonzero(changed).tolist():
            axis = self.space.axes[i]
            if axis.ordered:
                a_value = 0.0 if axis.count is None else 1.0 / axis.count
                place[i] += self.rng.normal() * max(spread, a_value)
            else:
                place[i] = self.rng.random()
        return self.space.snapped(place)

    def _found(self, told: list[Design]) -> Floats:
        """Return objectives, (designs, objectives); not a number where nothing was simulated."""
        nothing = (math.nan,) * self.objectives
        return np.array([self.outcomes[design].objectives or nothing for design in told])

    def _scaled(self, told: list[Design]) -> Floats:
        """Return objectives of the unit range; a design that could not be simulated is worst."""
        found = self._found(told)
        logged = self._logged & (np.nanmin(found, axis=0) > 0)  # a later value may be below 0
        found[:, logged] = np.log(found[:, logged])
        low, high = np.nanmin(found, axis=0), np.nanmax(found, axis=0)
        scaled = (found - low) / np.where(high > low, high - low, 1.0)
        return np.where(np.isnan(scaled), 1.0, scaled)

    def _joined(self, scaled: Floats) -> Floats:
        """Return one value a design: its objectives, joined by new random weights."""
        if self.objectives == 1:
            return np.asarray(scaled[:, 0])
        weighted = scaled * self.rng.dirichlet(np.ones(self.objectives))
        return np.asarray(weighted.max(axis=1) + _SHARE_OF_SUM * weighted.sum(axis=1))

    def _ready(self, asked: list[Design], told: list[Design]) -> LazyGaussianProcess:
        """Return the process with all designs, whose hyperparameters fit what is known."""
        process = self._process
        coordinates = self.space.coordinates(asked)
        for point in coordinates[len(process) :]:
            process.extend(point)
        if len(told) >= 2 * self._fitted_at:
            some = np.unique(
                np.linspace(0, len(told) - 1, min(len(told), _MOST_FITTED)).astype(np.int64)
            )
            found = self._found(told)[some]
            self._logged = better_as_logarithms(coordinates[some], found)
            values = self._scaled(told)[some]
            process.rebuild(*fitted(coordinates[some], values, self.space.groups))
            self._fitted_at = len(told)
        return process


def better_as_logarithms(points: Floats, values: Floats) -> npt.NDArray[np.bool_]:
    """Tell of which outputs, (n, outputs), the logarithms look more like a Gaussian process.

    By the likelihood of the values, so that of logarithms is lessened by their derivative.
    """
    known = ~np.isnan(values).any(axis=1)
    points, values = points[known], values[known]
    scales = np.full(points.shape[1], 0.4)

    def likelihood(column: Floats) -> float:
        return log_likelihood(points, column[:, None], scales, 1e-4)

    return np.array(
        [
            bool((column > 0).all())
            and likelihood(np.log(column)) - np.log(column).sum() > likelihood(column)
            for column in values.T
        ]
    )


def expected_improvement(means: Floats, deviations: Floats, best: float) -> Floats:
    """Return by how much values are expected to be below the best, where they are at all."""
    deviations = np.maximum(deviations, _TINY)
    z = (best - means) / deviations
    density = np.exp(-0.5 * z * z) / math.sqrt(2.0 * math.pi)
    return np.asarray(deviations * (z * _normal(z) + density))


def _normal(z: Floats) -> Floats:
    """Return the normal distribution function."""
    return np.array([0.5 * math.erfc(-each / _SQRT2) for each in z.tolist()])


_SQRT2 = math.sqrt(2.0)
_TINY = 1e-12
