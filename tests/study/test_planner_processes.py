"""What makes searches quick changes no answer: a second process, and prices made before."""

from __future__ import annotations

import signal
from dataclasses import replace

import numpy as np
import pytest

from ridgeline.errors import RidgelineError
from ridgeline.simulation import simulate
from ridgeline.study.planner import worker
from ridgeline.study.planner.frontier import Frontier, SearchLimits, found_by
from ridgeline.study.planner.result import SearchResult
from ridgeline.study.planner.worker import ALL, SearchWorker, can_fork
from ridgeline.study.recalled import without_step
from ridgeline.study.scaling import scaling
from stacked import plain_search as search
from stacked import plain_searcher as searcher
from thoroughly import further

CASES = (
    ("mlp", "dgx1-v100", 4, 16, None),
    *further((("mlp", "dgx1-v100", 8, 64, 3),), (("lenet5", "dgx1-v100", 4, 16, 2),)),
)


@pytest.fixture(autouse=True)
def forks() -> None:
    if not can_fork():
        pytest.skip("no process can be forked here")


def said(found: SearchResult) -> SearchResult:
    """Leave out of an answer what the clock says."""
    return replace(found, seconds=0.0, screen_plans_per_s=0.0)


@pytest.mark.parametrize("case", CASES)
def test_two_processes_say_what_one_says(case: tuple[str, str, int, int, int | None]) -> None:
    model, cluster, devices, batch, limit = case
    one, two = (
        search(model, cluster, devices, batch, limit=limit, processes=processes)
        for processes in (1, 2)
    )
    assert said(two) == said(one)


def test_a_helper_that_dies_is_not_missed(monkeypatch: pytest.MonkeyPatch) -> None:
    alone = search("mlp", "dgx1-v100", 4, 16, limit=2, processes=1)
    begin, asked = SearchWorker.begin, []

    def dies(self: SearchWorker, task: str, *given: object) -> None:
        asked.append(task)
        if len(asked) == 4:
            self._process.kill()
            self._process.join()
            assert self._process.exitcode == -signal.SIGKILL
        begin(self, task, *given)

    monkeypatch.setattr(SearchWorker, "begin", dies)
    assert said(search("mlp", "dgx1-v100", 4, 16, limit=2, processes=2)) == said(alone)
    assert len(asked) >= 4


def test_entries_are_opened_to_the_same_by_whoever_and_whenever() -> None:
    """Also before they are asked for."""
    asked, ahead = (
        Frontier(searcher("mlp", "dgx1-v100", 4, 16), SearchLimits(), lambda told: None, 1)
        for _ in range(2)
    )
    asked.fill()
    ahead.fill()
    ahead.opener.own = lambda key: key.tensor == 1
    ahead.opener.begin(ahead.queue)
    while ahead.opener.go_on():
        pass
    open_, n_ahead = sorted(asked.queue), 0
    assert open_ == sorted(ahead.queue)
    while open_:
        entry = open_.pop()
        if entry.known == ALL:
            continue
        n_ahead += entry in ahead.opener._done
        found = asked.opener.opened(entry)
        assert ahead.opener.opened(entry) == found
        open_ += found.entries
    assert n_ahead > 10
    assert not ahead.opener.taken()


def test_groups_are_priced_to_the_same_alone_and_together() -> None:
    one, other = (searcher("gpt2", "selene-a100", 4, 8) for _ in range(2))
    keys = list(dict.fromkeys(one.groups.family(one.key(i)) for i in range(len(one.space))))
    for key, found in zip(keys, one.groups.leasts(keys), strict=True):
        np.testing.assert_array_equal(found, other.groups.least(key))


def test_what_a_helper_cannot_do_is_said_as_without_it() -> None:
    """The V100 has no bf16: whichever process meets it first."""
    texts = []
    for processes in (1, 2):
        with pytest.raises(RidgelineError) as error:
            search("gpt2-xl", "dgx1-v100", 8, 64, processes=processes, limit=1)
        texts.append(str(error.value))
    assert texts[0] == texts[1]


def test_a_second_process_is_started_where_there_is_much_to_price(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    one = searcher("mlp", "dgx1-v100", 8, 64)
    few, many = (Frontier(one, SearchLimits(1), lambda told: None, None) for _ in range(2))
    few.found(0.0)
    monkeypatch.setattr("ridgeline.study.planner.frontier.MANY", 1)
    many.found(0.0)
    assert few.helper is None
    assert many.helper is not None
    assert worker.MANY > 1


@pytest.mark.parametrize("others", [(4,), *further(((4, 16),))])
def test_prices_of_other_numbers_of_devices_change_nothing(others: tuple[int, ...]) -> None:
    first = searcher("mlp", "selene-a100", 8, 16)
    found_by(first, SearchLimits(1))
    for devices in others:
        alone = searcher("mlp", "selene-a100", devices, 16)
        shared = first.on(devices)
        assert shared.groups.made is first.groups.made
        assert said(found_by(shared, SearchLimits(1))) == said(found_by(alone, SearchLimits(1)))
        for i in range(0, len(alone.space), 23):
            mine, its = (one.groups.group(one.key(i)) for one in (alone, shared))
            assert (mine is None) == (its is None)
            if mine is not None and its is not None:
                for name in ("work", "held", "balanced", "around", "waited"):
                    np.testing.assert_array_equal(getattr(mine, name), getattr(its, name))


def test_a_study_keeps_numbers_and_makes_steps_again() -> None:
    study = scaling("mlp", "dgx1-v100", [1, 2], strategies=["data"], batch=16, limit=1)
    point = study.points[1]
    assert point.result is not None
    details = point.result.details
    assert "timeline" not in vars(details)
    again = simulate(details.model, details.cluster, details.plan)
    assert without_step(again) == point.result == again
    assert point.result.uncertainty == again.uncertainty
    assert details.timeline.makespan_s == point.result.step_time_s
    assert "timeline" in vars(details)
    with pytest.raises(AttributeError):
        details.nothing  # type: ignore[attr-defined]  # noqa: B018
