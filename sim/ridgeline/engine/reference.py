"""The reference executor: the rules at the head of ``program.py`` in plain Python on SimPy.

It shares nothing with the compiled executor but the Program and the Timeline, and prefers
obviousness to speed: every stream is looked at in every round, and all flows are divided anew at
every moment.
"""

from __future__ import annotations

import math
from collections.abc import Generator
from dataclasses import dataclass
from typing import Any

import numpy as np
import simpy

from ridgeline.engine.program import MOMENT, Program
from ridgeline.engine.timeline import Timeline
from ridgeline.engine.validate import check_program

SETTLE = 2  # SimPy priority: after all ordinary events (1) of the same moment

Steps = Generator[simpy.Event, None, None]


def run_reference(program: Program) -> Timeline:
    """Play a program slowly.

    Raises
    ------
    RidgelineError
        If the program is malformed, or if tasks wait for each other in a circle.
    """
    check_program(program)
    play = _Play(program)
    play.wake()
    play.env.run()
    return Timeline(program, play.start_s, play.end_s)


@dataclass(eq=False)
class _Flow:
    """Fluid work in progress."""

    shares: dict[int, float]  # shared resource: units of it per unit of size
    left: float  # units of size
    cap: float  # most units of size a second
    weight: float
    done: simpy.Event
    rate: float = 0.0
    end_s: float = math.inf


class _Play:
    def __init__(self, program: Program) -> None:
        self.program = p = program
        self.env: Any = simpy.Environment()  # its `schedule` wants a NewType for priorities
        self.start_s = np.full(p.n_tasks, math.nan)
        self.end_s = np.full(p.n_tasks, math.nan)
        self.missing = np.diff(p.dep_ptr)
        self.successors: list[list[int]] = [[] for _ in range(p.n_tasks)]
        for task in range(p.n_tasks):
            for dep in p.dep_index[p.dep_ptr[task] : p.dep_ptr[task + 1]]:
                self.successors[dep].append(task)
        n_streams = len(p.stream_rank)
        self.is_free = [True] * n_streams
        self.ready: list[set[tuple[int, int]]] = [set() for _ in range(n_streams)]
        self.fixed_ends: dict[int, float] = {}  # of the tasks in fixed time
        self.flows: dict[int, _Flow] = {}  # of the tasks in fluid work, in order of their beginning
        self.divided_s = 0.0  # when the flows got their rates
        self.timer: simpy.Event | None = None  # the next fluid end
        self.settling: simpy.Event | None = None
        for task in range(p.n_tasks):
            if self.missing[task] == 0:
                self.make_ready(task)

    def streams_of(self, task: int) -> list[int]:
        p = self.program
        group = p.group[task]
        if group < 0:
            return [int(p.stream[task])]
        return [int(s) for s in p.group_stream[p.group_ptr[group] : p.group_ptr[group + 1]]]

    def make_ready(self, task: int) -> None:
        for stream in self.streams_of(task):
            self.ready[stream].add((int(self.program.priority[task]), task))

    # -- one task: rules 2 and 3

    def play(self, task: int) -> Steps:
        p = self.program
        fixed = 0.0
        row = p.cost[task]
        for phase in range(p.phase_ptr[row], p.phase_ptr[row + 1]):
            latency, repeat = float(p.latency_s[phase]), int(p.repeat[phase])
            bound, works = 0.0, {}
            for work in range(p.work_ptr[phase], p.work_ptr[phase + 1]):
                resource, amount = int(p.work_resource[work]), float(p.work_amount[work])
                if not p.shared[resource]:
                    bound = max(bound, amount / float(p.capacity[resource]))
                elif amount > 0:
                    works[resource] = amount
            if not works:
                fixed += repeat * (latency + bound)
                continue
            for _ in range(repeat):
                yield from self.wait(task, fixed + latency)
                yield from self.flow(task, works, bound, float(p.weight[phase]))
                fixed = 0.0
        yield from self.wait(task, fixed)
        self.end(task)

    def wait(self, task: int, seconds: float) -> Steps:
        self.fixed_ends[task] = self.env.now + seconds
        yield self.env.timeout(seconds)
        del self.fixed_ends[task]
        self.wake()

    def flow(self, task: int, works: dict[int, float], bound: float, weight: float) -> Steps:
        size = max(works.values())
        shares = {resource: amount / size for resource, amount in works.items()}
        cap = size / bound if bound > 0 else math.inf
        self.flows[task] = flow = _Flow(shares, size, cap, weight, self.env.event())
        yield flow.done

    def end(self, task: int) -> None:
        self.end_s[task] = self.env.now
        for stream in self.streams_of(task):
            self.is_free[stream] = True
        for after in self.successors[task]:
            self.missing[after] -= 1
            if self.missing[after] == 0:
                self.make_ready(after)

    # -- one moment: rules 1, 4 and 5

    def wake(self) -> None:
        """Settle this moment once everything else that happens at it has happened."""
        if self.settling is None:
            self.settling = self.env.event()
            self.settling.callbacks.append(self.settle)
            self.settling._ok, self.settling._value = True, None
            self.env.schedule(self.settling, priority=SETTLE)

    def settle(self, _: simpy.Event) -> None:
        self.settling = None
        if self.end_flows() or self.start_picks():
            self.wake()  # what they lead to at this moment comes first
        else:
            self.divide()

    def end_flows(self) -> bool:
        limit = self.env.now * (1 + MOMENT)
        ended = [task for task, flow in self.flows.items() if flow.end_s <= limit]
        for task in ended:
            self.flows.pop(task).done.succeed()
        return bool(ended)

    def start_picks(self) -> bool:
        picks = [
            min(ready)[1] if free and ready else None
            for free, ready in zip(self.is_free, self.ready, strict=True)
        ]
        started = {
            task
            for task in picks
            if task is not None and all(picks[s] == task for s in self.streams_of(task))
        }
        for task in sorted(started):
            for stream in self.streams_of(task):
                self.is_free[stream] = False
                self.ready[stream].remove((int(self.program.priority[task]), task))
            self.start_s[task] = self.env.now
            self.env.process(self.play(task))
        return bool(started)

    def divide(self) -> None:
        """Bring all flows up to now, give them new rates, and set the timer for the first end."""
        now = self.env.now
        flows = list(self.flows.values())
        for flow in flows:
            flow.left = max(flow.left - flow.rate * (now - self.divided_s), 0.0)
        self.divided_s, self.timer = now, None
        for flow, rate in zip(flows, self.fair_rates(flows), strict=True):
            flow.rate = rate
            flow.end_s = now + flow.left / rate
        if not flows:
            return
        first = min(flows, key=lambda flow: flow.end_s)
        next_fixed = min(self.fixed_ends.values(), default=math.inf)
        if next_fixed > first.end_s * (1 + MOMENT):
            self.timer = timer = self.env.timeout(first.left / first.rate)
            timer.callbacks.append(self.ring)

    def ring(self, timer: simpy.Event) -> None:
        if timer is self.timer:  # otherwise the flows have been divided anew since it was set
            self.wake()

    def fair_rates(self, flows: list[_Flow]) -> list[float]:
        """Progressive filling, as rule 3 says it."""
        users: dict[int, list[int]] = {}  # the flows on each resource
        for i, flow in enumerate(flows):
            for resource in flow.shares:
                users.setdefault(resource, []).append(i)
        rates: dict[int, float] = {}  # of the frozen flows
        while len(rates) < len(flows):
            # the level x / weight at which each rising flow meets its cap ...
            stops = {
                ("cap", i): flow.cap / flow.weight for i, flow in enumerate(flows) if i not in rates
            }
            # ... and at which each resource with rising flows is full
            for resource, on_it in users.items():
                rising = [i for i in on_it if i not in rates]
                taken = sum(flows[i].shares[resource] * rates[i] for i in on_it if i in rates)
                free = max(float(self.program.capacity[resource]) - taken, 0.0)
                if rising:
                    rise = sum(flows[i].shares[resource] * flows[i].weight for i in rising)
                    stops["full", resource] = free / rise
            (why, which), level = min(stops.items(), key=lambda stop: (stop[1], stop[0]))
            if why == "cap":
                rates[which] = flows[which].cap
            else:
                rates |= {i: level * flows[i].weight for i in users[which] if i not in rates}
        return [rates[i] for i in range(len(flows))]
