"""Samplers of Optuna by ask and tell: TPE, NSGA-II and NSGA-III."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from typing import Any

from ridgeline.errors import ConfigError
from ridgeline.study.search.method import SEARCH_METHODS, Evaluated, SearchMethod
from ridgeline.study.search.space import Design, SearchSpace

_MOST_REPEATS = 20
_INFEASIBLE = "infeasible"


class OptunaSearch(SearchMethod):
    """Designs that a sampler of Optuna suggests.

    A design that it suggests again costs nothing: the sampler is told once more what is known.
    After `_MOST_REPEATS` of them a random design takes the place.

    Raises
    ------
    ConfigError
        If Optuna is missing.
    """

    def __init__(self, space: SearchSpace, objectives: int, seed: int) -> None:
        super().__init__(space, objectives, seed)
        try:
            import optuna  # type: ignore[import-not-found,unused-ignore]
        except ImportError as error:
            raise ConfigError(
                "this method needs Optuna: pip install 'ridgeline[search]', or take lazy-gp",
                field="method",
            ) from error
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of arguments that Optuna calls experimental
            self._study: Any = optuna.create_study(
                directions=["minimize"] * objectives, sampler=self._sampler(optuna, seed)
            )
        self._distributions = {
            str(i): self._distribution(optuna, i) for i in range(len(space.axes))
        }
        self._open: dict[Design, Any] = {}
        self._optuna = optuna

    def _sampler(self, optuna: Any, seed: int) -> Any:
        raise NotImplementedError

    def _distribution(self, optuna: Any, i: int) -> Any:
        axis = self.space.axes[i]
        if axis.span is not None:
            return optuna.distributions.FloatDistribution(0.0, 1.0)
        if axis.ordered:
            return optuna.distributions.IntDistribution(0, len(axis.values) - 1)
        return optuna.distributions.CategoricalDistribution(range(len(axis.values)))

    def _suggestions(self, count: int) -> Iterator[Design]:
        for _ in range(count):
            if (design := self._next()) is None:
                return
            yield design

    def _next(self) -> Design | None:
        design: Design | None
        for _ in range(_MOST_REPEATS):
            trial = self._study.ask(self._distributions)
            design = self._design(trial.params)
            if design in self.outcomes:
                self._finish(trial, self.outcomes[design])
            elif design in self._open or not self.space.allows(design):
                self._finish(trial, Evaluated(None, feasible=False))
            else:
                self._open[design] = trial
                return design
        design = self.unseen()
        if design is not None:
            self._study.enqueue_trial(self._parameters(design))
            self._open[design] = self._study.ask(self._distributions)
        return design

    def _design(self, parameters: dict[str, Any]) -> Design:
        found = [parameters[str(i)] for i in range(len(self.space.axes))]
        return self.space.snapped(
            [
                place if axis.span is not None else (place + 0.5) / len(axis.values)
                for axis, place in zip(self.space.axes, found, strict=True)
            ]
        )

    def _parameters(self, design: Design) -> dict[str, Any]:
        return {
            str(i): place if axis.span is not None else int(place * len(axis.values))
            for i, (axis, place) in enumerate(zip(self.space.axes, design, strict=True))
        }

    def tell(self, designs: Sequence[Design], outcomes: Sequence[Evaluated]) -> None:
        """Take in what was found, and tell the sampler."""
        super().tell(designs, outcomes)
        for design, outcome in zip(designs, outcomes, strict=True):
            self._finish(self._open.pop(design), outcome)

    def _finish(self, trial: Any, outcome: Evaluated) -> None:
        trial.set_user_attr(_INFEASIBLE, 0.0 if outcome.feasible else 1.0)
        if outcome.objectives is None:
            self._study.tell(trial, state=self._optuna.trial.TrialState.FAIL)
        else:
            self._study.tell(trial, list(outcome.objectives))


def _violations(trial: Any) -> list[float]:
    return [trial.user_attrs[_INFEASIBLE]]


@SEARCH_METHODS.register("tpe")
class TpeSearch(OptunaSearch):
    """Tree-structured Parzen estimator (J. Bergstra et al., NIPS 2011), several fields together."""

    def _sampler(self, optuna: Any, seed: int) -> Any:
        return optuna.samplers.TPESampler(
            seed=seed, multivariate=True, constraints_func=_violations
        )


@SEARCH_METHODS.register("nsga2")
class Nsga2Search(OptunaSearch):
    """NSGA-II (K. Deb et al., IEEE Trans. Evolutionary Computation 6(2), 2002)."""

    def _sampler(self, optuna: Any, seed: int) -> Any:
        return optuna.samplers.NSGAIISampler(
            seed=seed, population_size=_POPULATION, constraints_func=_violations
        )


@SEARCH_METHODS.register("nsga3")
class Nsga3Search(OptunaSearch):
    """NSGA-III (K. Deb, H. Jain, IEEE Trans. Evolutionary Computation 18(4), 2014)."""

    def _sampler(self, optuna: Any, seed: int) -> Any:
        return optuna.samplers.NSGAIIISampler(
            seed=seed, population_size=_POPULATION, constraints_func=_violations
        )


_POPULATION = 20  # of searches of tens to hundreds of evaluations
