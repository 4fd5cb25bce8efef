"""Searches that are steered, stopped, or of several machines, against replaying everything."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import strategies as st

from ridgeline.errors import ConfigError, RidgelineError
from ridgeline.hardware.load import load_cluster
from ridgeline.study.planner import search as any_search
from ridgeline.study.planner.frontier import Frontier, SearchLimits
from ridgeline.study.planner.machines import Job, MachineChoice, choose_machine, device_counts
from ridgeline.study.planner.objectives import OBJECTIVES, Objective, Prices, parse_prices
from ridgeline.study.planner.result import SearchProgress, SearchResult, SimulatedPlan
from ridgeline.study.planner.searcher import Searcher
from ridgeline.study.planner.steering import COLUMNS, fixed_fields, fixed_texts
from ridgeline.workload.files import load_model
from stacked import plain_search as search
from stacked import plain_searcher as searcher
from thoroughly import sample_of

GPT2 = load_model("gpt2", {"layers": 4})
CASES = (("mlp", "dgx1-v100", 4, 2), ("mlp", "selene-a100", 2, 4))
PRICES = Prices({"v100": 2.0, "a100": 3.0}, usd_per_kwh=0.1)
V100 = Prices({"v100": 2.0})


@functools.cache
def everything(case: int) -> tuple[Searcher, tuple[SimulatedPlan, ...]]:
    """Return a search and all of its plans that the engine can play."""
    one, found = searcher(*CASES[case]), []
    for i in range(len(one.space)):
        try:
            found.append(one.replay(one.space.plan(i)))
        except RidgelineError:
            continue
    return one, tuple(found)


FIXES = st.sampled_from(
    [
        {"tensor": 2}, {"tensor": "1..2"}, {"pipeline": "..2"}, {"data": "2.."},
        {"micro_batch": "1,2"}, {"schedule": "gpipe,1f1b"}, {"zero_stage": "1..3"},
        {"pipeline": 2, "micro_batch": 1}, {"recompute": "full"},
        {"virtual_stages": 1, "tensor": 1},
    ]
)  # fmt: skip


@sample_of(3, 8, st.integers(0, len(CASES) - 1), FIXES)
def test_the_best_plan_with_fixed_fields_is_the_optimum_of_those(
    case: int, fix: dict[str, object]
) -> None:
    one, plans = everything(case)
    fields = fixed_fields(fix)
    kept = np.logical_and.reduce([f.keeps(COLUMNS[f.name](one.space)) for f in fields])
    said = {str(one.space.plan(int(i))) for i in np.flatnonzero(kept)}
    able = [r for r in plans if str(r.plan) in said and r.fits]
    if not able:
        return
    found = search(*CASES[case], fix=fix)
    assert found.proven
    assert found.best.objective == min(r.objective for r in able)
    assert str(found.best.plan) in said


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["tensr=2"], "did you mean 'tensor'"),
        (["tensor"], "expected field=values"),
        (["tensor=2", "tensor=4"], "given twice"),
        (["tensor=two"], "expected a number"),
        (["pipeline=8..2"], "is empty"),
        (["schedule=gpip"], "did you mean 'gpipe'"),
        (["schedule=1..2"], "has no range"),
        (["order=data-tensor"], "is not searched"),
        (["stage_balance=even"], "software.plan.stage_balance"),
        (["global_batch=8"], "--batch"),
        (["tensor=3"], "tensor can be 1, 2, 4, divisors of the devices"),
        (["tensor=4,pipeline=2"], "pipeline=2 with tensor=4; pipeline can be 1"),
        (["recompute=moe_ac"], "did you mean 'moe_act'"),
    ],
)
def test_a_fix_that_nothing_can_have_says_why(words: list[str], text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        searcher("mlp", "dgx1-v100", 4, 8, fix=fixed_fields(fixed_texts(words)))


def test_a_mode_that_few_layers_do_not_tell_of_is_refused() -> None:
    for mode in ("sqrt", "full:2", "budget:0.5"):
        with pytest.raises(ConfigError, match="depends on all layers"):
            searcher("gpt2", "selene-a100", 2, 8, fix=fixed_fields({"recompute": mode}))


def test_fixes_are_read_from_one_word_or_several() -> None:
    both = fixed_texts(["tensor=1,2,pipeline=2..", "schedule=1f1b"])
    assert both == {"tensor": "1,2", "pipeline": "2..", "schedule": "1f1b"}
    assert [str(f) for f in fixed_fields(both)] == ["tensor=1,2", "pipeline=2..", "schedule=1f1b"]
    assert str(fixed_fields({"sequence": "on"})[0]) == "sequence=2.."


def test_what_is_fixed_is_searched_though_it_is_not_by_default() -> None:
    one = searcher("gpt2", "selene-a100", 8, 8, fix=fixed_fields({"context": 2}))
    assert set(one.space.context.tolist()) == {2}
    modules = searcher("gpt2", "selene-a100", 2, 8, fix=fixed_fields({"recompute": "mlp,none"}))
    assert {modules.space.plan(i).recompute for i in range(len(modules.space))} == {"mlp", "none"}


@sample_of(2, 4, st.data())
def test_bounds_hold_for_modules_and_offload(data: st.DataObject) -> None:
    fix = data.draw(st.sampled_from([{"recompute": "mlp+core_attn"}, {"offload": "all"}]))
    one = searcher(GPT2, "selene-a100", 2, 4, fix=fixed_fields(fix))
    i = data.draw(st.integers(0, len(one.space) - 1))
    group = one.groups.group(one.key(i))
    assert group is not None
    try:
        played = one.replay(one.space.plan(i))
    except RidgelineError:
        return
    bound = one.tightened(group, i)
    assert bound.time_s <= played.step_time_s
    assert bound.memory_bytes <= played.memory_bytes
    assert played.plan.offload == fix.get("offload", "none")


def test_a_margin_of_memory_stays_free() -> None:
    plain = searcher(GPT2, "selene-a100", 2, 8)
    need = min(plain.replay(plain.space.plan(i)).memory_bytes for i in range(0, 40, 9))
    margin = 1 - 1.05 * need / plain.runs.capacity_bytes
    found = search(GPT2, "selene-a100", 2, 8, memory_margin=margin, limit=2)
    most = plain.runs.capacity_bytes * (1 - margin)
    assert all(r.memory_bytes <= most for r in found.replays)
    assert found.n_dropped > search(GPT2, "selene-a100", 2, 8, limit=2).n_dropped
    with pytest.raises(ConfigError, match="from 0 to 1"):
        searcher("mlp", "dgx1-v100", 2, 8, memory_margin=1.0)


@sample_of(3, 8, st.integers(0, len(CASES) - 1), st.integers(0, 60))
def test_wherever_a_search_is_stopped_its_gap_covers_the_optimum(case: int, moment: int) -> None:
    """And no bound that it tells on the way is above the optimum of all plans."""
    _, plans = everything(case)
    optimum = min(r.objective for r in plans if r.fits)
    told: list[SearchProgress] = []

    def stop(now: SearchProgress) -> None:
        told.append(now)
        if len(told) > moment and now.best is not None:
            raise KeyboardInterrupt

    found = search(*CASES[case], progress=stop)
    assert all(now.open_bound <= optimum * (1 + 1e-12) or now.gap == 0.0 for now in told)
    assert found.stopped in {"", "interrupted"}
    assert found.best.objective * (1 - found.gap) <= optimum * (1 + 1e-12) <= 2 * math.inf
    assert found.best.objective >= optimum
    assert found.proven or found.stopped


def test_a_search_ends_in_time_and_within_its_gap() -> None:
    late = any_search("mlp", "dgx1-v100", 8, 64, time_limit_s=0.0)
    assert late.stopped == "time limit"
    with pytest.raises(RidgelineError, match="ended by time limit before a plan was found"):
        _ = late.best
    whole, near = search("mlp", "dgx1-v100", 4, 16), search("mlp", "dgx1-v100", 4, 16, gap=0.3)
    assert near.gap <= 0.3
    assert near.best.objective * (1 - near.gap) <= whole.best.objective
    with pytest.raises(KeyboardInterrupt):
        search("mlp", "dgx1-v100", 4, 16, progress=_interrupt)


def _interrupt(told: SearchProgress) -> None:
    raise KeyboardInterrupt


def test_a_good_plan_first_changes_no_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = search(GPT2, "selene-a100", 4, 8, processes=1)
    monkeypatch.setattr("ridgeline.study.planner.frontier.MANY", 1)
    tells: list[SearchProgress] = []
    first = search(GPT2, "selene-a100", 4, 8, processes=1, progress=tells.append)
    assert first.best.plan == plain.best.plan
    assert first.proven
    assert first.open_bound == plain.open_bound
    before = [told for told in tells if told.families == 0]
    assert before[-1].best is not None
    assert before[-1].best.objective <= 2 * plain.best.objective


PEAKS: tuple[tuple[str, str, int, int], ...] = (
    ("gpt2", "selene-a100", 8, 16), ("resnet18", "dgx1-v100", 4, 16),
    ("t5-small", "superpod-h100", 8, 16), ("mixtral-8x7b", "superpod-h100", 16, 16),
)  # fmt: skip


@sample_of(3, 10, st.sampled_from(PEAKS), st.data())
def test_no_family_takes_less_than_its_arithmetic(
    case: tuple[str, str, int, int], data: st.DataObject
) -> None:
    one = _priced(case)
    key = one.groups.family(one.key(data.draw(st.integers(0, len(one.space) - 1))))
    least = one.groups.least(key)
    if least is not None:
        peak = one.groups.least_at_peak(key)
        assert 0 < peak[:3].sum() <= least[:3].sum()


@functools.cache
def _priced(case: tuple[str, str, int, int]) -> Searcher:
    return searcher(*case)


def test_objectives_are_sums_of_time_and_energy() -> None:
    for name in OBJECTIVES:
        one = searcher("mlp", "dgx1-v100", 2, 8, objective=name, prices=PRICES)
        r = one.replay(one.space.plan(0))
        rent = 2 * 2.0 / 3600
        expected = {
            "time": r.step_time_s,
            "energy": r.energy_j,
            "tokens-per-joule": r.energy_j / 8,
            "cost-per-token": (r.step_time_s * rent + r.energy_j / 3.6e6 * 0.1) / 8,
        }.get(name, r.objective)
        assert r.objective == pytest.approx(expected, rel=1e-12)
    with pytest.raises(ConfigError, match="did you mean 'time'"):
        searcher("mlp", "dgx1-v100", 2, 8, objective="tim")
    found = search(*CASES[0], objective="tokens-per-joule")
    assert found.best.plan == search(*CASES[0], objective="energy").best.plan


def test_alternatives_are_of_other_shapes_and_say_on_what_they_lose() -> None:
    found = search(GPT2, "selene-a100", 4, 8, limit=2, alternatives=2)
    others = found.alternatives()
    assert len({r.shape for r in (found.best, *others)}) == len(others) + 1 >= 3
    for other in others:
        assert sum(other.spent_s.values()) == pytest.approx(other.step_time_s, rel=1e-6)
        assert "%" in other.loses_by(found.best)
    twice = SimulatedPlan(**{**vars(found.best), "spent_s": {
        **found.best.spent_s, "bubble": found.best.spent_s["bubble"] + found.best.step_time_s / 2,
    }})  # fmt: skip
    assert twice.loses_by(found.best) == "+50.0% bubble"
    assert found.best.loses_by(found.best).startswith("as much of everything")


def _days(r: SearchResult, steps: int) -> float:
    return steps * r.best.step_time_s / 86400


def test_the_cheapest_machine_is_that_of_all_searches() -> None:
    job = Job(16, 16 * 10**6)
    machines = ("dgx1-v100", "dgx-a100")
    choice = choose_machine("mlp", machines, job, prices=PRICES, devices=(2, 4, 16),
                            limits=SearchLimits())  # fmt: skip
    assert choice.steps == 10**6
    costs = {}
    for name, rent in zip(machines, (2.0, 3.0), strict=True):
        for n in (2, 4):
            r = any_search("mlp", name, n, 16)
            usd = 10**6 * (r.best.step_time_s * n * rent / 3600 + r.best.energy_j / 3.6e6 * 0.1)
            costs[name, n] = usd, _days(r, 10**6)
    best = min(costs, key=lambda key: costs[key][0])
    assert (choice.best.cluster, choice.best.devices) == best
    assert choice.best.usd == pytest.approx(costs[best][0], rel=1e-12)
    fastest = min(costs, key=lambda key: costs[key][1])
    soon = Job(16, 16 * 10**6, deadline_s=costs[fastest][1] * 86400 * 1.0001)
    chosen = choose_machine("mlp", machines, soon, prices=PRICES, devices=(2, 4),
                            limits=SearchLimits()).best  # fmt: skip
    assert (chosen.cluster, chosen.devices) == fastest


def test_machines_are_ordered_by_what_the_job_wants_least_of() -> None:
    """And plans sought by it, unless the plan of least energy is too late."""
    machines, devices = ("dgx1-v100", "dgx-a100"), (2, 4)

    def chosen(objective: Objective, deadline_s: float | None = None) -> MachineChoice:
        job = Job(16, 16 * 10**6, deadline_s, objective=objective)
        return choose_machine("mlp", machines, job, prices=PRICES, devices=devices,
                              limits=SearchLimits())  # fmt: skip

    by: dict[Objective, MachineChoice] = {
        one: chosen(one) for one in ("time", "cost", "energy", "tokens-per-joule")
    }
    least = {"time": "seconds", "cost": "usd", "energy": "joules", "tokens-per-joule": "joules"}
    for objective, column in least.items():
        values = [getattr(offer, column) for offer in by[objective].offers]
        assert values == sorted(values), objective
        others = [getattr(choice.best, column) for choice in by.values()]
        assert values[0] == pytest.approx(min(others), rel=1e-12)
    assert by["energy"].offers == by["tokens-per-joule"].offers
    soon = chosen("energy", by["time"].best.seconds * 1.0001).best
    assert soon.seconds == pytest.approx(by["time"].best.seconds, rel=1e-9)
    assert by["energy"].best.to_dict()["energy_j"] == by["energy"].best.joules


@pytest.mark.parametrize(
    ("job", "text"),
    [
        (Job(16, 1e9, deadline_s=1.0), "no machine ends within|arithmetic alone takes"),
        (Job(16, 1e9, budget_usd=0.01), "costs \\$0 or less|arithmetic alone costs"),
        (Job(16, 1e9, deadline_s=600.0), "the fastest, .* days"),
    ],
)
def test_where_no_machine_will_do_it_is_said_what_comes_nearest(job: Job, text: str) -> None:
    with pytest.raises(RidgelineError, match=text):
        _ = choose_machine("mlp", ["dgx1-v100"], job, prices=V100, devices=[2]).best


def test_mistakes_of_machines_are_said() -> None:
    job, choose = Job(16, 1e6), choose_machine
    mistakes: tuple[tuple[Callable[[], object], str], ...] = (
        (lambda: choose("mlp", ["dgx1-v100"], job), "no price of an hour of v100"),
        (lambda: choose("mlp", ["dgx-a100"], job, prices=Prices({"h100": 2.0})), "no device of"),
        (lambda: choose("mlp", ["dgx-a100"], Job(16, 0.0)), "more than 0 tokens"),
        (lambda: parse_prices(("h100",)), "expected device=dollars"),
        (lambda: parse_prices(("h100=-1",)), "expected device=dollars"),
    )
    for mistake, text in mistakes:
        with pytest.raises(ConfigError, match=text):
            mistake()
    assert device_counts(load_cluster("dgx-a100")) == [8]
    assert device_counts(load_cluster("superpod-h100"))[:3] == [8, 16, 32]


def test_gathers_and_sums_that_block_are_in_the_bounds() -> None:
    """Megatron-Core overlaps nothing of gradients unless told to: each bucket holds all ops up."""
    one = _blocking()
    s = one.space
    some = np.flatnonzero((s.sharding >= 2) & (s.data > 1) & (s.pipeline * s.micro_batches <= 16))
    ratios = []
    for i in some[:: max(1, len(some) // 8)].tolist():
        group = one.groups.group(one.key(i))
        assert group is not None
        bound, played = one.tightened(group, i), one.replay(s.plan(i))
        assert bound.time_s <= played.step_time_s, s.plan(i)
        ratios.append(bound.time_s / played.step_time_s)
    assert np.median(ratios) > 0.9


@functools.cache
def _blocking() -> Searcher:
    from ridgeline.study.planner.searcher import searcher as of_stack

    return of_stack("gpt2", "superpod-h100", 16, 32, software="megatron-core")


def test_a_frontier_knows_its_families() -> None:
    one = searcher("mlp", "dgx1-v100", 4, 16)
    frontier = Frontier(one, SearchLimits(), lambda told: None, 1)
    frontier.fill()
    keys = [one.groups.family(one.key(i)) for i in range(len(one.space))]
    assert set(frontier.opener.families) <= set(keys)
    assert len(frontier.queue) == len(frontier.opener.families) == frontier.n_families
