"""A program that is written with open rows and filled is the one that is written with all of it."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from ridgeline.engine.builder import ProgramBuilder, WorkPhase
from ridgeline.engine.executor import run
from ridgeline.engine.late_pricing import Filling, filled
from ridgeline.engine.program import Account, Program

N_RESOURCES, N_ACCOUNTS = 3, 2
AMOUNTS = st.floats(0.0, 1e9, allow_subnormal=False)
WORKS = st.dictionaries(st.integers(0, N_RESOURCES - 1), AMOUNTS)
EVENTS = st.dictionaries(st.integers(0, N_ACCOUNTS - 1), AMOUNTS)
ROWS = st.lists(st.tuples(st.booleans(), AMOUNTS, WORKS, EVENTS), min_size=1, max_size=6)
CAPACITIES = st.lists(st.floats(1.0, 1e9), min_size=N_RESOURCES, max_size=N_RESOURCES)
PRICES = st.lists(st.floats(0.0, 1.0), min_size=N_ACCOUNTS, max_size=N_ACCOUNTS)


def written(
    rows: list[tuple[bool, float, dict[int, float], dict[int, float]]],
    tasks: list[int],
    capacities: list[float],
    prices: list[float],
    *,
    open_rows: bool,
) -> tuple[Program, list[int]]:
    """A chain of tasks; rows that are told so are left open, if any may be."""
    builder, numbers, opened = ProgramBuilder(), [], []
    for n, capacity in enumerate(capacities):
        builder.add_resource(f"r{n}", capacity)
    for n, price in enumerate(prices):
        builder.add_account("compute", f"a{n}", "B", price)
    for n, (is_open, latency_s, works, events) in enumerate(rows):
        if is_open and open_rows:
            opened.append(n)
            numbers.append(builder.add_open_cost())
        else:
            # Equal rows are one; a hair apart they are not, as open rows never are.
            numbers.append(builder.add_cost([WorkPhase(latency_s + n * 1e-3, works)], events))
    stream = builder.add_stream("s", builder.add_rank())
    for task in tasks:
        builder.add_task("compute", "op", stream=stream, cost=numbers[task % len(rows)])
    return builder.build(), [numbers[n] for n in opened]


@settings(max_examples=60)
@given(ROWS, st.lists(st.integers(0, 5), max_size=12), CAPACITIES, PRICES, CAPACITIES, PRICES)
def test_filled_is_written_at_once(
    rows: list[tuple[bool, float, dict[int, float], dict[int, float]]],
    tasks: list[int],
    capacities: list[float],
    prices: list[float],
    other_capacities: list[float],
    other_prices: list[float],
) -> None:
    at_once, _ = written(rows, tasks, capacities, prices, open_rows=False)
    draft, opened = written(rows, tasks, other_capacities, other_prices, open_rows=True)
    filling = Filling(opened)
    for n, (is_open, latency_s, works, events) in enumerate(rows):
        if not is_open:
            continue
        filling.latency_s.append(latency_s + n * 1e-3)
        filling.work_resource += sorted(works)
        filling.work_amount += [works[resource] for resource in sorted(works)]
        filling.work_ptr.append(len(filling.work_resource))
        filling.event_account += sorted(events)
        filling.event_count += [events[account] for account in sorted(events)]
        filling.event_ptr.append(len(filling.event_account))
    accounts = [Account("compute", f"a{n}", "B", price) for n, price in enumerate(prices)]
    before = {name: array.copy() for name, array in draft.arrays().items()}
    program = filled(draft, filling, capacities, accounts)
    assert program.accounts == at_once.accounts
    for name, array in at_once.arrays().items():
        assert np.array_equal(getattr(program, name), array), name
        assert getattr(program, name).dtype == array.dtype
        assert np.array_equal(getattr(draft, name), before[name])  # drafts are shared
    found, expected = run(program), run(at_once)
    assert np.array_equal(found.end_s, expected.end_s)
    assert found.ledger() == expected.ledger()
