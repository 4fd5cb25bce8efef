"""Further cases of a property, which `make test` leaves out and `make test-thorough` runs."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis.strategies import SearchStrategy


def further(*cases: Any) -> list[Any]:
    """Mark cases of `pytest.mark.parametrize` as thorough; a tuple is the arguments of one."""
    return [
        pytest.param(*(case if isinstance(case, tuple) else (case,)), marks=pytest.mark.thorough)
        for case in cases
    ]


def one_in(number: int, cases: Iterable[Any]) -> list[Any]:
    """Let `make test` run the first of every few cases, and make the others further ones."""
    found: list[Any] = []
    for place, case in enumerate(cases):
        marked = type(case) is type(pytest.param())
        found += [case] if marked or place % number == 0 else further(case)
    return found


def sample_of(
    few: int, many: int, /, *strategies: SearchStrategy[Any], **named: SearchStrategy[Any]
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Stand for `hypothesis.given`: `make test` draws few cases, `make test-thorough` many.

    `make explore` draws many as well. Other arguments of the test are fixtures and parameters.
    """
    if settings.get_current_profile_name() == "explore":
        few = many

    def decorate(test: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(test)
        def run(examples: int, **others: Any) -> None:
            drawing = given(*strategies, **named)(test)
            settings(max_examples=examples, deadline=None)(drawing)(**others)

        of_pytest = inspect.signature(given(*strategies, **named)(test))
        count = inspect.Parameter("examples", inspect.Parameter.KEYWORD_ONLY)
        others = [of.replace(kind=count.kind) for of in of_pytest.parameters.values()]
        del run.__wrapped__
        run.__signature__ = of_pytest.replace(parameters=[count, *others])  # type: ignore[attr-defined]
        return pytest.mark.parametrize("examples", [few, *further(many)])(run)

    return decorate
