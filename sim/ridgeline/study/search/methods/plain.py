"""Search without memory: random designs, and all designs."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import ClassVar

from ridgeline.study.search.method import EXHAUSTIVE, RANDOM, SEARCH_METHODS, SearchMethod
from ridgeline.study.search.space import Design, SearchSpace


@SEARCH_METHODS.register(RANDOM)
class RandomSearch(SearchMethod):
    """Designs drawn evenly, none twice: what every other method has to beat."""

    def _suggestions(self, count: int) -> Iterator[Design]:
        for _ in range(count):
            if (design := self.unseen()) is None:
                return
            yield design


@SEARCH_METHODS.register(EXHAUSTIVE)
class ExhaustiveSearch(SearchMethod):
    """Every design once, in the order of a sweep."""

    has_choice: ClassVar[bool] = False

    def __init__(self, space: SearchSpace, objectives: int, seed: int) -> None:
        super().__init__(space, objectives, seed)
        self._all = space.designs()

    def _suggestions(self, count: int) -> Iterator[Design]:
        yield from islice(self._all, count)
