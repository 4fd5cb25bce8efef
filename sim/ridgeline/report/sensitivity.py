"""Sensitivity: how a step's time changes with more and with less of each resource.

The lowered program is replayed with other capacities or latencies; nothing is lowered again, so
that tilings, algorithms, the plan and what contention adds stay what they were.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from ridgeline.engine.executor import run
from ridgeline.engine.program import Program
from ridgeline.errors import RidgelineError

if TYPE_CHECKING:
    from ridgeline.report.result import Result

LATENCIES = "launches and messages"
"""The fixed times of ops and of rounds of collectives, all together."""
_DEVICE = "device/"
_LINK = re.compile(r".*\((?P<kind>[^()]*)\)")


@dataclass(frozen=True, slots=True)
class Sensitivity:
    """The time of a step if there is more or less of one resource.

    Attributes
    ----------
    resource
        An engine, a memory level, a class of links, or `LATENCIES`.
    more_s, less_s
        Step time with `factor` times as much (or latencies so much shorter), and with so much less.
    """

    resource: str
    more_s: float
    less_s: float


def sensitivity(result: Result, factor: float = 2.0) -> tuple[Sensitivity, ...]:
    """Return what each resource does to a step's time, the one that matters most first.

    Parameters
    ----------
    factor
        Above 1.

    Raises
    ------
    RidgelineError
        If the factor is not above 1.
    """
    if not factor > 1:
        raise RidgelineError(f"sensitivity: the factor must be above 1, found {factor!r}")
    program = result.details.lowered.program
    played_s = result.details.timeline.makespan_s
    if result.details.lowered.talks:
        played_s = run(program).makespan_s
    beyond_s = result.step_time_s - played_s  # waiting for the data set, contention

    def play(changed: Program) -> float:
        return run(changed).makespan_s + beyond_s

    found = [
        Sensitivity(
            group,
            play(program.scaled(dict.fromkeys(names, factor))),
            play(program.scaled(dict.fromkeys(names, 1 / factor))),
        )
        for group, names in resource_groups(program).items()
    ]
    found.append(
        Sensitivity(
            LATENCIES,
            play(replace(program, latency_s=program.latency_s / factor)),
            play(replace(program, latency_s=program.latency_s * factor)),
        )
    )
    return tuple(sorted(found, key=lambda s: (s.more_s - s.less_s, s.resource)))


def resource_groups(program: Program) -> dict[str, list[str]]:
    """Return the resources of a program by engine, memory level or link class."""
    groups: dict[str, list[str]] = {}
    for number in sorted(set(program.work_resource.tolist())):
        name = program.resource_names[number]
        link = _LINK.fullmatch(name)
        group = f"{link['kind']} links" if link else name.partition(".")[0].removeprefix(_DEVICE)
        groups.setdefault(group, []).append(name)
    return groups
