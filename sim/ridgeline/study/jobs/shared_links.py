"""Shared links: which links several jobs use at the same time, for how long, and how full."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import combinations

import numpy as np

from ridgeline.engine.merged_programs import Merged
from ridgeline.engine.program import Flags, Floats, Ints, Program
from ridgeline.engine.stochastic import row_times_s
from ridgeline.engine.timeline import Timeline


@dataclass(frozen=True)
class SharedLink:
    """A link on which tasks of several jobs were at work at the same time.

    Attributes
    ----------
    name
        Of the link.
    bytes_by_job
        What each job, and each background traffic, put on it.
    shared_s
        How long at least two of them were at work on it together.
    offered
        What they would put on it in that time if each went as fast as alone, over what it carries:
        above 1 they slow each other. The bytes of a task are spread evenly over its time.
    together_s
        How long each pair was at work together, as ``"a + b"``.
    """

    name: str
    bytes_by_job: dict[str, float]
    shared_s: float
    offered: float
    together_s: dict[str, float]

    @property
    def wanted_s(self) -> float:
        """Seconds of the whole link that they wanted while they shared it."""
        return self.shared_s * self.offered


def link_bytes(program: Program, links: Flags) -> tuple[Ints, Ints, Floats]:
    """Return cost rows, links and bytes of a whole task of the row on the link."""
    phase = np.repeat(np.arange(len(program.repeat)), np.diff(program.work_ptr))
    row = np.repeat(np.arange(len(program.phase_ptr) - 1), np.diff(program.phase_ptr))[phase]
    mine = links[program.work_resource] & (program.work_amount > 0)
    size = program.work_amount[mine] * program.repeat[phase[mine]]
    n = len(program.capacity)
    key, which = np.unique(row[mine] * n + program.work_resource[mine], return_inverse=True)
    total = np.bincount(which, size, len(key)).astype(np.float64)
    return key // n, key % n, total


def bytes_on_links(program: Program, links: Flags, ended: Flags) -> Floats:
    """Return [R] bytes that the tasks that ended put on each resource that is a link."""
    row, link, size = link_bytes(program, links)
    count = np.bincount(program.cost[ended], minlength=len(program.phase_ptr) - 1)
    return np.bincount(link, size * count[row], len(program.capacity)).astype(np.float64)


def shared_links(
    merged: Merged, timeline: Timeline, names: list[str], links: Flags, until_s: float
) -> list[SharedLink]:
    """Find the links that several jobs were at work on together, the most wanted first.

    Parameters
    ----------
    timeline
        Of the merged program.
    names
        Of its parts.
    links
        [R] whether a resource is a link.
    until_s
        What comes later is not counted.
    """
    program = merged.program
    row, link, size = link_bytes(program, links)
    alone_s = row_times_s(program)[row]
    rate = np.divide(size, alone_s, out=np.zeros_like(size), where=alone_s > 0)
    part_of_task = np.repeat(np.arange(len(names)), np.diff(merged.first_task))
    order = np.argsort(program.cost, kind="stable")
    first = np.searchsorted(program.cost[order], np.arange(len(program.phase_ptr)))
    count = np.diff(first)[row]
    use = np.repeat(np.arange(len(row)), count)  # of each task of the row
    place = np.arange(len(use)) - np.repeat(np.cumsum(count) - count, count)
    task = order[first[row[use]] + place]
    parts = np.zeros((len(program.capacity), len(names)), np.bool_)
    parts[link[use], part_of_task[task]] = True
    several = parts.sum(axis=1) > 1
    kept = several[link[use]] & (timeline.start_s[task] < until_s)
    use, task = use[kept], task[kept]
    by_link = np.argsort(link[use], kind="stable")
    use, task = use[by_link], task[by_link]
    borders = np.flatnonzero(np.diff(link[use])) + 1
    found = []
    for uses, tasks in zip(np.split(use, borders), np.split(task, borders), strict=True):
        if len(uses):
            number = int(link[uses[0]])
            found.append(
                _one(
                    program.resource_names[number], float(program.capacity[number]), names,
                    part=part_of_task[tasks], start_s=timeline.start_s[tasks],
                    end_s=timeline.end_s[tasks], size=size[uses], rate=rate[uses],
                    until_s=until_s,
                )
            )  # fmt: skip
    found = [one for one in found if one.shared_s > 0]
    return sorted(found, key=lambda one: (-one.wanted_s, one.name))


def _one(
    name: str,
    capacity: float,
    names: list[str],
    *,
    part: Ints,
    start_s: Floats,
    end_s: Floats,
    size: Floats,
    rate: Floats,
    until_s: float,
) -> SharedLink:
    last_s = np.minimum(end_s, until_s)
    moments, at = np.unique(np.concatenate((start_s, last_s)), return_inverse=True)
    n = len(start_s)
    steps = np.zeros((len(names), len(moments)))
    np.add.at(steps, (part, at[:n]), 1)
    np.add.at(steps, (part, at[n:]), -1)
    flow = np.zeros(len(moments))
    np.add.at(flow, at[:n], rate)
    np.add.at(flow, at[n:], -rate)
    active = np.cumsum(steps, axis=1)[:, :-1] > 0.5
    span = np.diff(moments)
    shared = active.sum(axis=0) > 1
    shared_s = float(span[shared].sum())
    wanted = float((np.cumsum(flow)[:-1] * span)[shared].sum())
    together = {
        f"{names[a]} + {names[b]}": float(span[active[a] & active[b]].sum())
        for a, b in combinations(np.unique(part).tolist(), 2)
    }
    length = end_s - start_s
    done = np.divide(last_s - start_s, length, out=np.ones_like(length), where=length > 0)
    carried = size * done
    return SharedLink(
        name,
        {names[p]: float(carried[part == p].sum()) for p in np.unique(part).tolist()},
        shared_s,
        wanted / (capacity * shared_s) if shared_s else 0.0,
        {pair: time_s for pair, time_s in together.items() if time_s > 0},
    )
