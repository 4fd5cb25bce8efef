"""Incumbent: a good plan that is found before a large space is searched.

Families of plans are gone through as a user would: tensor parallelism inside a node, experts
shared inside it, small micro-batches; of each family the plan with the least bound that fits. From
the best of them one goes on to neighbours, a degree doubled or halved, as long as bounds fall.
Nothing of it is a proof: the search that follows bounds all others, and need not price these
families again.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np

from ridgeline.errors import RidgelineError
from ridgeline.study.planner.bounds import totals
from ridgeline.study.planner.plan_class import GroupKey
from ridgeline.study.planner.searcher import Searcher
from ridgeline.study.planner.worker import NodeExpander

_SEEDS, _MOST_FAMILIES, _MOST_PLANS, _MOST_BOUNDED = 4, 12, 64, 6
_MOST_FULL = 3  # plans of a seed that are played and do not fit after all


class Candidate(NamedTuple):
    """A plan that is likely to fit.

    Attributes
    ----------
    value
        Bound of its objective, what moves between replicas left out.
    bound_s
        Bound of its step.
    """

    value: float
    number: int
    bound_s: float


class IncumbentSearch:
    """Looks for good plans; families that `opener` prices later share what is priced here."""

    def __init__(self, one: Searcher, opener: NodeExpander) -> None:
        self.one, self.opener = one, opener
        self.members: dict[GroupKey, list[int]] = {}
        for g, key in enumerate(opener.keys):
            self.members.setdefault(one.groups.family(key)._replace(recompute="none"), []).append(g)

    def plans(self, best: Callable[[], float]) -> Iterator[tuple[int, float]]:
        """Yield plans to be played, with their bounds: seeds, then what is better by bounds.

        Parameters
        ----------
        best
            Returns the objective of the best plan that was played so far.
        """
        tried: dict[GroupKey, Candidate | None] = {}
        at: GroupKey | None = None
        for seed in self._seeds():
            for found in itertools.islice(self._fitting(seed), _MOST_FULL):
                tried.setdefault(seed, found)
                if found.value >= best():
                    break
                before = best()
                yield found.number, found.bound_s
                if best() < before:
                    tried[seed], at = found, seed
                    break
            tried.setdefault(seed, None)
        while at is not None and len(tried) < _MOST_FAMILIES:
            here = tried[at]
            assert here is not None
            better = at
            for key in self._neighbours(at):
                if key not in tried and len(tried) < _MOST_FAMILIES:
                    tried[key] = found_ = next(self._fitting(key), None)
                    if found_ is not None and found_.value < here.value:
                        here, better = found_, key
            if better == at:
                return
            at = better
            if here.value < best():
                yield here.number, here.bound_s

    def _seeds(self) -> list[GroupKey]:
        """Return families that are likely to be good, the likeliest first.

        Those whose groups each lie inside a node: where ranks do not fill nodes evenly, groups of
        as many ranks as a node has are spread over two.
        """
        node = self.one.groups.wires.node
        size = int((node == node[0]).sum())

        def spread(key: GroupKey) -> bool:
            groups = node.reshape(-1, key.tensor * key.expert)
            return bool((groups != groups[:, :1]).any())

        def unusual(key: GroupKey) -> tuple[object, ...]:
            far = key.context > 1 or key.grid is not None or key.images != (1, 1)
            split = key.tensor > 1 and not key.sequence
            return far, spread(key), key.micro_batch, split, key.tensor, -key.expert

        tensors: dict[int, GroupKey] = {}
        for key in sorted(self.members, key=unusual):
            if key.tensor <= size:
                tensors.setdefault(key.tensor, key)
        return list(tensors.values())[:_SEEDS]

    def _neighbours(self, key: GroupKey) -> list[GroupKey]:
        """Return families of which one degree is the next one above or below."""
        found = []
        for field in ("micro_batch", "expert", "tensor", "context"):
            mine = getattr(key, field)
            degrees = {getattr(other, field) for other in self.members}
            above = min((n for n in degrees if n > mine), default=None)
            below = max((n for n in degrees if n < mine), default=None)
            near = [key._replace(**{field: n}) for n in (above, below) if n is not None]
            found += [self._able(other) for other in near]
        return [other for other in found if other in self.members]

    def _able(self, key: GroupKey) -> GroupKey:
        """Return a family with sequence parallelism, if there is one."""
        both = (key._replace(sequence=on) for on in (True, False))
        return next((other for other in both if other in self.members), key)

    def _fitting(self, family: GroupKey) -> Iterator[Candidate]:
        """Price a family; of each of its groups of which something fits, yield a plan.

        That of the least bound; then, of another group, as bounds of memory are from below.
        """
        one, opener = self.one, self.opener
        capacity = one.runs.capacity_bytes
        for g in self.members[family]:
            at = np.flatnonzero(opener.which == g)
            held = one.may_fit(opener.keys[g])[None, :]
            if one.screened(at, np.zeros(len(at), np.int64), held)[:, 2].min() > capacity:
                continue
            group = one.groups.group(opener.keys[g])
            if group is None:
                return
            values = opener.values(at, totals(group), None, [group.placed])
            # sharded gradients and weights move in every micro-batch, which these bounds leave out
            order = np.lexsort((at, values, one.space.sharding[at] > 1))
            able: list[Candidate] = []
            for k in order[:_MOST_PLANS].tolist():
                i = int(at[k])
                if values[k] == np.inf or one.memory_bytes(group, i) > capacity:
                    continue
                try:
                    bound = one.tightened(group, i, wired=False)
                except RidgelineError:
                    continue
                time_s, energy_j = np.array([bound.time_s]), np.array([bound.energy_j])
                (value,) = one.bound_values(time_s, energy_j, np.array([i])).tolist()
                able.append(Candidate(float(value), i, bound.time_s))
                if len(able) == _MOST_BOUNDED:
                    break
            if able:
                yield min(able)
