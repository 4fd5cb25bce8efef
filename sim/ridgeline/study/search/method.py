"""Search methods: they are asked for designs, and told what was found there."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import ClassVar, NamedTuple

import numpy as np

from ridgeline.registry import Registry
from ridgeline.study.search.space import Design, SearchSpace


class Evaluated(NamedTuple):
    """What was found at a design.

    Attributes
    ----------
    objectives
        A value each, the smallest best; None: the design could not be simulated.
    feasible
        Whether it meets all conditions.
    """

    objectives: tuple[float, ...] | None
    feasible: bool


class SearchMethod(ABC):
    """Chooses designs by those that it has been told of; no design twice.

    Parameters
    ----------
    space
        All designs.
    objectives
        How many there are.
    seed
        The same seed and the same outcomes give the same designs.
    """

    has_choice: ClassVar[bool] = True
    """Whether seeds differ."""

    def __init__(self, space: SearchSpace, objectives: int, seed: int) -> None:
        self.space, self.objectives = space, objectives
        self.rng = np.random.default_rng(seed)
        self.asked: dict[Design, None] = {}
        self.outcomes: dict[Design, Evaluated] = {}

    def ask(self, count: int) -> list[Design]:
        """Return up to `count` designs that were not asked for before; fewer where none is left."""
        found: list[Design] = []
        for design in self._suggestions(count):
            if design not in self.asked:
                self.asked[design] = None
                found.append(design)
        return found

    def tell(self, designs: Sequence[Design], outcomes: Sequence[Evaluated]) -> None:
        """Take in what was found at designs that were asked for."""
        self.outcomes.update(zip(designs, outcomes, strict=True))

    @abstractmethod
    def _suggestions(self, count: int) -> Iterator[Design]:
        """Yield up to `count` designs that were not asked for before."""

    def unseen(self) -> Design | None:
        """Return a random design that was not asked for; None where none is left."""
        listed = self.space.listed
        if listed is None:
            while (design := self.space.drawn(self.rng)) in self.asked:
                pass
            return design
        if len(self.asked) >= len(listed):
            return None
        while (design := listed[int(self.rng.integers(len(listed)))]) in self.asked:
            pass
        return design


SEARCH_METHODS: Registry[str, type[SearchMethod]] = Registry(
    "search method", "ridgeline.study.search.methods", type
)
"""All methods by name."""
RANDOM, EXHAUSTIVE = "random", "exhaustive"
