"""What if a resource were faster: a simulated step with some of its rates and latencies scaled.

Nothing is lowered again: cost rows hold work, so that a step is re-priced by other capacities and
played in its order. Plan, tilings, algorithms and the clock under a power limit stay as they were.
One scenario is played by the engine; many, in a range, are replayed as longest paths
(`engine.replay`), each row as much faster as it is alone.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np

from ridgeline.bounded_files import MAX_RESULT_BYTES, read_json
from ridgeline.engine.executor import run
from ridgeline.engine.program import Flags, Floats, Program
from ridgeline.engine.replay import replay_s
from ridgeline.engine.stochastic import row_times_s
from ridgeline.errors import ConfigError, RidgelineError, nearest
from ridgeline.parallel.lower import COLLECTIVE
from ridgeline.report.critical_path import critical_path_s
from ridgeline.report.result import Result
from ridgeline.study.repeat import repeat

MOST_POINTS = 1_000_000
_LINK, _DEVICE = re.compile(r".*\(([^()]*)\)"), "device/"
_LATENCIES = {"latency": None, "launch.latency": False, "link.latency": True}
"""Fixed times: of all rows, of ops alone, of collectives and messages alone."""
_FACTOR = re.compile(r"(.+?)(?:\s+|\s*=\s*)([\d.eE+-]+)x?(?:\s*\.\.\s*([\d.eE+-]+)x?)?")


@dataclass(frozen=True)
class LeverScaling:
    """A lever and how far it is pulled: from one factor to another, which may be the same."""

    lever: str
    first: float
    last: float


@dataclass(frozen=True)
class WhatIf:
    """A step before and after some resources were scaled.

    Attributes
    ----------
    scales
        Factor by lever; of a range the last.
    before_s, after_s
        Step times.
    alone_s
        Step time with one lever alone, by lever.
    path_before_s, path_after_s
        Critical paths: seconds by part.
    factors, times_s
        Of a range: its points, as shares of the way from first to last, and step times.
    replays_per_s
        How many replays a second that took; 0 where there is no range.
    """

    scales: Mapping[str, float]
    before_s: float
    after_s: float
    alone_s: Mapping[str, float]
    path_before_s: Mapping[str, float]
    path_after_s: Mapping[str, float]
    factors: tuple[float, ...] = ()
    times_s: tuple[float, ...] = ()
    replays_per_s: float = 0.0

    def to_dict(self) -> dict[str, Any]:
        """Return all of it as plain values."""
        values = {**vars(self), "speedup": self.before_s / self.after_s}
        return {
            name: dict(value) if isinstance(value, Mapping) else value
            for name, value in values.items()
        }


def read_scaling(text: str) -> LeverScaling:
    """Read ``link.nvlink 2x``, ``hbm.bandwidth=1.2x`` or a range ``hbm=0.5x..2x``.

    Raises
    ------
    ConfigError
        If it cannot be read, or a factor is not above 0.
    """
    match = _FACTOR.fullmatch(text.strip())
    try:
        factors = [float(found) for found in (match[2], match[3] or match[2])] if match else []
    except ValueError:
        factors = []
    if match is None or not factors or not all(0 < factor < math.inf for factor in factors):
        raise ConfigError(
            f"expected a lever and a factor above 0, as 'link.nvlink 2x', hbm.bandwidth=1.2x or a "
            f"range hbm=0.5x..2x; found {text!r}",
            field="--scale",
        )
    return LeverScaling(match[1].strip(), *factors)


def whatif(result: Result | str | Path, scale: str | Sequence[str], *, points: int = 100) -> WhatIf:
    """Scale rates and latencies of a simulated step: step time and critical path, before and after.

    Parameters
    ----------
    result
        A step that was simulated, or the file of one: JSON of ``ridgeline run --json``, whose
        model, machine and software are in the catalogue.
    scale
        Resources and factors: "link.nvlink 2x", "hbm.bandwidth=1.2x", "latency=0.5x"; or a range,
        "hbm=0.5x..2x", of which each point is replayed.
    points
        Number of points of a range.

    Raises
    ------
    ConfigError
        If something cannot be read, the step has no such resource, or there are too many points.
    """
    step = saved_step(str(result)) if isinstance(result, str | Path) else result
    texts = (scale,) if isinstance(scale, str) else scale
    return what_if(step, [read_scaling(text) for text in texts], points)


def saved_step(
    file: str, model: str | None = None, cluster: str | None = None, software: str | None = None
) -> Result:
    """Simulate again the step whose JSON is in a file.

    Parameters
    ----------
    model, cluster, software
        Files of those that are not in the catalogue.

    Raises
    ------
    ConfigError
        If the file is not the JSON of one result, or the step is no longer what it was.
    """
    if not file.endswith(".json"):
        raise RidgelineError(
            "whatif needs a result (JSON of ridgeline run --json), or a model and a cluster"
        )
    saved = read_json(file, MAX_RESULT_BYTES)
    if not isinstance(saved, dict):
        raise ConfigError("expected the JSON of one result", file=file)
    return repeat(saved, model=model, cluster=cluster, software=software, file=file)


def what_if(result: Result, scalings: Sequence[LeverScaling], points: int = 100) -> WhatIf:
    """Scale resources of a step; nothing is lowered again.

    Parameters
    ----------
    points
        Of a range, how many steps are replayed.

    Raises
    ------
    ConfigError
        If the step has no such resource, or there are too many points.
    """
    if not 2 <= points <= MOST_POINTS:
        raise ConfigError(f"2 to {MOST_POINTS:,} points, found {points}", field="--points")
    program = result.details.lowered.program
    played = run(program)
    beyond_s = result.step_time_s - played.makespan_s  # data set, contention
    last = {scaling.lever: scaling.last for scaling in scalings}
    after = run(_scaled(program, last))
    alone = {lever: run(_scaled(program, {lever: last[lever]})).makespan_s for lever in last}
    found = WhatIf(
        scales=last,
        before_s=result.step_time_s,
        after_s=after.makespan_s + beyond_s,
        alone_s={lever: time_s + beyond_s for lever, time_s in alone.items()},
        path_before_s=_path(result, program, played),
        path_after_s=_path(result, after.program, after),
    )
    if all(scaling.first == scaling.last for scaling in scalings):
        return found
    shares = np.linspace(0.0, 1.0, points)
    began = perf_counter()
    times = replay_s(played, _ratios(program, scalings, shares)) + beyond_s
    seconds = perf_counter() - began
    return replace(
        found,
        factors=tuple(shares.tolist()),
        times_s=tuple(times.tolist()),
        replays_per_s=points / seconds,
    )


def _path(result: Result, program: Program, timeline: Any) -> dict[str, float]:
    details = result.details
    lowered = replace(details.lowered, program=program)
    again = replace(details, lowered=lowered, timeline=timeline)
    return critical_path_s(replace(result, details=again))


def levers(program: Program) -> dict[str, list[str]]:
    """Return what can be scaled: levers, and the resources that each stands for."""
    found: dict[str, list[str]] = {}
    for number in sorted(set(program.work_resource.tolist())):
        name = program.resource_names[number]
        if link := _LINK.fullmatch(name):
            found.setdefault(f"link.{link[1]}", []).append(name)
            found.setdefault("link", []).append(name)
        elif name.startswith(_DEVICE):
            own = name.removeprefix(_DEVICE)
            found.setdefault(own, []).append(name)
            if "." in own:
                found.setdefault(own.partition(".")[0], []).append(name)
    return found


def _resources(program: Program, lever: str) -> list[str]:
    """Return the resources of a lever: by its name or its beginning; ``.bandwidth`` may follow."""
    known = levers(program)
    name = lever.removesuffix(".bandwidth").removesuffix(".rate")
    exact = known.get(name)
    if exact is not None:
        return exact
    close = {one for key in known if key.startswith(name) and name for one in known[key]}
    if not close:
        names = [*known, *_LATENCIES]
        raise ConfigError(
            f"the step uses no {lever!r}{nearest(lever, names)} (it uses: {', '.join(names)})",
            field="--scale",
        )
    return sorted(close)


def _scaled(program: Program, scales: Mapping[str, float]) -> Program:
    latency_s = program.latency_s
    for lever, factor in scales.items():
        if lever in _LATENCIES:
            hit = _phases_of(program, of_collectives=_LATENCIES[lever])
            latency_s = np.where(hit, latency_s * factor, latency_s)
        else:
            program = program.scaled(dict.fromkeys(_resources(program, lever), factor))
    return replace(program, latency_s=latency_s)


def _phases_of(program: Program, *, of_collectives: bool | None) -> Flags:
    """Return [P] whether phases are of collectives, or of ops; None: of either."""
    if of_collectives is None:
        return np.ones(len(program.latency_s), np.bool_)
    kinds = np.array([name == COLLECTIVE for name in program.kind_names])
    rows = np.zeros(len(program.phase_ptr) - 1, np.bool_)
    rows[program.cost[kinds[program.kind] == of_collectives]] = True
    phases: Flags = np.repeat(rows, np.diff(program.phase_ptr))
    return phases


def _ratios(program: Program, scalings: Sequence[LeverScaling], shares: Floats) -> Floats:
    """Return [C, S] how much longer each cost row takes at each point of a range."""
    alone = row_times_s(program)
    found = np.ones((len(alone), len(shares)))
    for i, share in enumerate(shares.tolist()):
        scales = {
            one.lever: one.first * (one.last / one.first) ** share for one in scalings
        }  # fmt: skip
        times = row_times_s(_scaled(program, scales))
        np.divide(times, alone, out=found[:, i], where=alone > 0)
    return found
