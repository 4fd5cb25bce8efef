"""Optimal checkpointing against closed forms and against trying everything."""

from functools import cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ridgeline.errors import RidgelineError
from ridgeline.parallel.checkpointing.revolve import (
    ForwardChain,
    advances,
    best_reversal,
    reversible_steps,
)
from thoroughly import sample_of


@cache
def fewest(steps, slots):
    """Griewank and Walther's recurrence, tried at every place."""
    if steps == 1:
        return 0
    if slots == 1:
        return steps * (steps - 1) // 2
    return min(mid + fewest(steps - mid, slots - 1) + fewest(mid, slots) for mid in range(1, steps))


@pytest.mark.parametrize("slots", [1, 2, 3, 5, 8, 12])
def test_closed_form_equals_the_recurrence(slots):
    for steps in range(1, 201):
        assert advances(steps, slots) == fewest(steps, slots)


def test_so_many_steps_are_reversible_as_the_binomial_says():
    """C(s + r, s) is the longest chain of which no step is done more than r times again."""
    for slots in range(1, 13):
        for repeats in range(1, 8):
            longest = reversible_steps(slots, repeats)
            # the next step costs r advances up to the longest chain, and r + 1 beyond it
            assert advances(longest, slots) - advances(longest - 1, slots) == repeats
            assert advances(longest + 1, slots) - advances(longest, slots) == repeats + 1


def equal_steps(n):
    """Steps that cannot be kept, states of one slot, work that counts advances.

    Revolve counts the first state as a slot but not the one being worked on; a chain the other way
    round: as many.
    """
    return ForwardChain([1] * n, [0] * n, [1] * n, [1] * n, [10**6] * n, [0] * n, [0] * n)


@pytest.mark.parametrize("slots", [1, 2, 3, 4, 7, 12])
@pytest.mark.parametrize("steps", [1, 2, 3, 5, 10, 33, 60])
def test_dynamic_programming_of_equal_steps_is_revolve(steps, slots):
    found = best_reversal(equal_steps(steps), slots, levels=slots)
    assert found.work + steps - 1 == advances(steps, slots)  # the first sweep is no repetition


def test_200_steps_are_reversed_as_often_as_the_binomial_says():
    found = best_reversal(equal_steps(200), 4, levels=4)
    assert found.work + 199 == advances(200, 4)


def replayed(chain, actions):
    """Repeated work and most bytes held, by doing what the actions say and no more."""
    n = len(chain.advance)
    states, kept, seen, work, most = {0}, set(), -1, 0.0, 0.0
    stored = [0.0] + [chain.state_bytes[i] for i in range(1, n)]
    for number, (what, step) in enumerate(actions):
        here = sum(stored[i] for i in states) + sum(chain.keep_bytes[i] for i in kept)
        if what == "backward":
            assert step in kept or actions[number - 1] == ("turn", step)
            kept.discard(step)
            states.discard(step)
            continue
        assert step in states
        again = step <= seen
        seen = max(seen, step)
        if what == "turn":
            work += chain.turn[step] * again
            most = max(most, here + chain.turn_bytes[step])
            continue
        most = max(most, here - stored[step + 1] * (step + 1 in states) + chain.step_bytes[step])
        work += (chain.advance if what == "advance" else chain.whole)[step] * again
        if what == "whole":
            kept.add(step)
        if not needs(actions, number, step):
            states.discard(step)
        states.add(step + 1)
        here = sum(stored[i] for i in states) + sum(chain.keep_bytes[i] for i in kept)
        most = max(most, here)
    return work, most


def needs(actions, number, step):
    """Whether state `step` is read again before it is written again."""
    for what, later in actions[number + 1 :]:
        if what == "backward" and later == step:
            return what == "backward" and ("whole", step) == actions[number]
        if what != "backward" and later == step:
            return True
        if what != "backward" and later == step - 1:
            return False
    return False


@st.composite
def chains(draw):
    n = draw(st.integers(1, 6))
    numbers = st.lists(st.integers(0, 6), min_size=n, max_size=n)
    advance, turn, state = (draw(numbers) for _ in range(3))
    keep = [k + 1 for k in draw(numbers)]
    whole = [max(a, t) for a, t in zip(advance, turn, strict=True)]
    extra = draw(numbers)
    more = [k + e for k, e in zip(keep, extra, strict=True)]
    step = [s + e for s, e in zip([*state[1:], 0], draw(numbers), strict=True)]
    return ForwardChain(advance, turn, whole, state, keep, more, step)


def cheapest(chain, memory):
    """The same problem solved plainly: every way to reverse s .. t, on whole bytes."""
    n = len(chain.advance)

    @cache
    def again(s, t, m, fresh):
        if m < 0:
            return float("inf")
        first = s >= fresh
        if s == t:
            return float("inf") if m < chain.turn_bytes[s] else (not first) * chain.turn[s]
        options = (
            [float("inf")]
            if m < max(chain.turn_bytes[s], chain.step_bytes[s])
            else [
                (not first) * chain.whole[s]
                + again(
                    s + 1, t, m - chain.state_bytes[s + 1] - chain.keep_bytes[s], max(fresh, s + 1)
                )
            ]
        )
        for mid in range(s + 1, t + 1):
            done = sum(chain.advance[k] for k in range(s, mid) if k < fresh)
            right = again(mid, t, m - chain.state_bytes[mid], max(fresh, mid))
            way = [chain.step_bytes[k] + (k > s) * chain.state_bytes[k] for k in range(s, mid)]
            if m >= max(way):
                options.append(done + right + again(s, mid - 1, m, n))
        return min(options)

    return again(0, n - 1, memory, 0)


@settings(max_examples=200, deadline=None)
@given(chains(), st.integers(1, 30))
def test_reversal_is_the_cheapest_and_fits(chain, memory):
    found = best_reversal(chain, memory, levels=memory)
    least = cheapest(chain, memory)
    if found is None:
        assert least == float("inf")
        return
    assert found.work == least
    work, most = replayed(chain, found.actions)
    assert work == found.work
    assert most <= memory
    backward = [step for what, step in found.actions if what == "backward"]
    assert backward == sorted(backward, reverse=True)
    assert len(backward) == len(chain.advance)


@sample_of(13, 50, chains())
def test_more_memory_never_costs_more_work(chain):
    work = [
        float("inf") if found is None else found.work
        for found in (best_reversal(chain, m, levels=m) for m in range(1, 40))
    ]
    assert work == sorted(work, reverse=True)
    assert work[-1] < float("inf") or max(chain.turn_bytes) > 5


def test_impossible_reversals_are_refused():
    with pytest.raises(RidgelineError, match="0 slots"):
        advances(3, 0)
