"""Search methods on functions whose best places are known."""

from __future__ import annotations

import builtins
import math
from collections.abc import Callable
from statistics import median
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ridgeline.errors import ConfigError
from ridgeline.study.search.method import SEARCH_METHODS, Evaluated, SearchMethod
from ridgeline.study.search.methods.lazy_gp import LazyGpSearch
from ridgeline.study.search.methods.plain import ExhaustiveSearch, RandomSearch
from ridgeline.study.search.space import Design, SearchSpace
from ridgeline.study.study_file import Study, ValueSpan

BOX = {"plan.x": {"from": -5.0, "to": 10.0}, "plan.y": {"from": 0.0, "to": 15.0}}
LISTED = {
    "plan.x": [1, 2, 4, 8],
    "plan.s": ["a", "b", "c"],
    "plan.i": {"from": 1, "to": 6},
}


def space_of(vary: dict[str, Any], **more: Any) -> SearchSpace:
    study = {"kind": "study", "name": "s", "vary": vary, "search": {"objectives": {"f": "min"}}}
    return SearchSpace(Study.model_validate({**study, **more}))


def branin(values: dict[str, Any]) -> float:
    """Branin-Hoo; its least value is 0.397887."""
    x, y = values["plan.x"], values["plan.y"]
    bent = y - 5.1 / (4 * math.pi**2) * x**2 + 5 / math.pi * x - 6
    return float(bent**2 + 10 * (1 - 1 / (8 * math.pi)) * math.cos(x) + 10)


def searched(
    method: SearchMethod, function: Callable[[dict[str, Any]], Any], count: int, parallel: int = 1
) -> list[Design]:
    for _ in range(0, count, parallel):
        designs = method.ask(parallel)
        if not designs:
            break
        found = [function(method.space.values(design)) for design in designs]
        method.tell(
            designs,
            [f if isinstance(f, Evaluated) else Evaluated((f,), feasible=True) for f in found],
        )
    return list(method.asked)


def least(designs: list[Design], space: SearchSpace) -> float:
    return min(branin(space.values(design)) for design in designs)


@pytest.mark.parametrize("parallel", [1, 5])
def test_the_lazy_process_finds_the_valley_that_random_search_misses(parallel: int) -> None:
    space = space_of(BOX)
    found: dict[type[SearchMethod], list[float]] = {}
    for kind in (LazyGpSearch, RandomSearch):
        found[kind] = [
            least(searched(kind(space, 1, seed), branin, 30, parallel), space) - 0.397887
            for seed in range(3 if parallel == 1 else 2)
        ]
    assert median(found[LazyGpSearch]) < 0.03
    assert median(found[LazyGpSearch]) < 0.1 * median(found[RandomSearch])


def test_conditions_are_learned() -> None:
    space = space_of(BOX)

    def bounded(values: dict[str, Any]) -> Evaluated:
        return Evaluated((branin(values),), feasible=values["plan.x"] < 0.0)

    lazy = LazyGpSearch(space, 1, 0)
    designs = searched(lazy, bounded, 30)
    good = [d for d in designs if space.values(d)["plan.x"] < 0.0]
    assert len(good) > 15  # a third of the box is feasible
    assert least(good, space) < 0.5  # the one of three valleys that lies there


def test_an_objective_may_fall_below_zero() -> None:
    """Where logarithms were chosen before, a value below 0 is the best, and not the worst."""
    lazy = LazyGpSearch(space_of(BOX), 1, 0)
    designs = lazy.ask(3)
    lazy.tell(designs, [Evaluated((value,), feasible=True) for value in (100.0, 10.0, 1.0)])
    lazy._logged[:] = True
    assert lazy._scaled(designs)[:, 0].tolist() == [1.0, 0.5, 0.0]
    (fourth,) = lazy.ask(1)
    lazy.tell([fourth], [Evaluated((-1.0,), feasible=True)])
    assert lazy._scaled([*designs, fourth])[:, 0].argmin() == 3


def test_failures_are_avoided_and_all_failing_is_survived() -> None:
    space = space_of(BOX)

    def partly(values: dict[str, Any]) -> Evaluated:
        if values["plan.y"] > 7.5:
            return Evaluated(None, feasible=False)
        return Evaluated((branin(values),), feasible=True)

    designs = searched(LazyGpSearch(space, 1, 1), partly, 24)
    assert sum(space.values(d)["plan.y"] > 7.5 for d in designs) < 10
    nothing = searched(LazyGpSearch(space, 1, 1), lambda _: Evaluated(None, feasible=False), 12)
    assert len(nothing) == 12
    hopeless = searched(LazyGpSearch(space, 1, 1), lambda v: Evaluated((branin(v),), False), 12)
    assert len(hopeless) == 12


@pytest.mark.parametrize("name", ["random", "exhaustive", "lazy-gp"])
def test_a_small_space_is_asked_for_whole_and_nothing_twice(name: str) -> None:
    space = space_of(LISTED, where=["x * i <= 24"])
    method = SEARCH_METHODS[name](space, 1, 3)
    designs = searched(method, lambda v: float(v["plan.x"]), 1000, parallel=4)
    assert len(designs) == len(set(designs)) == len(list(space.designs())) < space.size == 72
    assert method.ask(1) == []


@pytest.mark.parametrize("name", ["random", "lazy-gp"])
def test_the_same_seed_asks_for_the_same(name: str) -> None:
    space = space_of({**BOX, "plan.s": ["a", "b", "c"]})
    runs = [
        searched(SEARCH_METHODS[name](space, 1, seed), branin, 16, parallel=2) for seed in (7, 7, 8)
    ]
    assert runs[0] == runs[1] != runs[2]


def test_exhaustive_search_goes_as_a_sweep_does() -> None:
    vary = {**LISTED, "plan.i": [1, 2, 3]}
    study = Study.model_validate(
        {"kind": "study", "name": "s", "vary": vary, "search": {"objectives": {"f": "min"}},
         "zip": [{"plan.a": [1, 2], "plan.b": [3, 4]}]}
    )  # fmt: skip
    space = SearchSpace(study)
    designs = ExhaustiveSearch(space, 1, 0).ask(10_000)
    assert [space.values(design) for design in designs] == list(study.combinations())


@settings(max_examples=150, deadline=None)
@given(
    a=st.integers(1, 2000), b=st.integers(1, 2000), scale=st.sampled_from(["linear", "log"]),
    place=st.floats(0, 1),
)  # fmt: skip
def test_whole_numbers_keep_their_place(a: int, b: int, scale: str, place: float) -> None:
    space = space_of({"plan.n": {"from": a, "to": b, "scale": scale}})
    design = space.snapped([place])
    assert space.snapped(design) == design
    value = space.values(design)["plan.n"]
    assert isinstance(value, int)
    assert min(a, b) <= value <= max(a, b)
    assert space.size == abs(a - b) + 1


def test_spans_without_steps_have_no_end() -> None:
    space = space_of(BOX)
    assert space.size is None
    assert space.listed is None
    with pytest.raises(ConfigError, match="without end"):
        next(space.designs())
    axis = space.axes[0]
    assert isinstance(axis.span, ValueSpan)


def test_unordered_values_are_dimensions_and_ordered_ones_are_not() -> None:
    space = space_of(LISTED)
    assert space.groups.tolist() == [0, 1, 1, 1, 2]
    assert space.coordinates(list(space.designs())).shape == (72, 5)


def test_conditions_that_nothing_meets_are_said() -> None:
    with pytest.raises(ConfigError, match="leave no point"):
        _ = space_of(LISTED, where=["x > 8"]).listed
    with pytest.raises(ConfigError, match="no design passes"):
        RandomSearch(space_of(BOX, where=["x > 10"]), 1, 0).ask(1)


@pytest.mark.parametrize("name", ["tpe", "nsga2", "nsga3"])
def test_without_optuna_its_methods_say_what_to_install(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = builtins.__import__

    def without(module: str, *args: Any, **kwargs: Any) -> Any:
        if module == "optuna":
            raise ImportError(module)
        return real(module, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(ConfigError, match=r"pip install 'ridgeline\[search\]'"):
        SEARCH_METHODS[name](space_of(BOX), 1, 0)


@pytest.mark.parametrize("name", ["tpe", "nsga2", "nsga3"])
def test_samplers_of_optuna_ask_for_nothing_twice(name: str) -> None:
    pytest.importorskip("optuna")
    space = space_of(LISTED, where=["x * i <= 24"])
    runs = [
        searched(
            SEARCH_METHODS[name](space, 2, seed),
            lambda v: Evaluated((v["plan.x"], -float(v["plan.i"])), v["plan.i"] < 6),
            40, parallel=2,
        )
        for seed in (0, 0, 1)
    ]  # fmt: skip
    assert all(len(set(run)) == len(run) == 40 for run in runs)
    assert runs[0] == runs[1] != runs[2]
