"""Extrapolated steps: repeated micro-batches, shared updates, waiting hosts.

Each function takes the result of what was played, and returns that of the whole. Parts of the time
sum to its total; the timeline in `Result.details` stays that of what was played.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from ridgeline.parallel.plan.resolved import ResolvedPlan
from ridgeline.report.result import Result
from ridgeline.workload.graph import Pass

HOST = "host between passes"
_GIVING = ("optimizer", "bubble", "compute", "memory_stall", "exposed_communication")
"""Parts of a step's time that an update that is left out takes with it, in this order."""
_LINEAR = ("time_s", "energy_j", "traffic_bytes", "limits_s", "kept_bytes")


def lengthened(few: Result, fewer: Result, run: ResolvedPlan) -> Result:
    """Return the result of a step with more micro-batches, each as long as the last ones played.

    Parameters
    ----------
    few, fewer
        The step with its first micro-batches, and with still fewer of them.
    run
        The plan of the whole step.
    """
    micro_batches, has = run.micro_batches, few.details.plan.micro_batches
    more = (micro_batches - has) / (has - fewer.details.plan.micro_batches)

    def whole(name: str) -> dict[str, float]:
        a, b = getattr(few, name), getattr(fewer, name)
        grown = {k: v + more * (v - b.get(k, 0.0)) for k, v in a.items()}
        return {k: max(v, 0.0) for k, v in grown.items()}

    step_s = few.step_time_s + more * (few.step_time_s - fewer.step_time_s)
    time_s, energy_j, traffic_bytes, limits_s, kept_bytes = map(whole, _LINEAR)
    grown = few.step_time_s * micro_batches / has / step_s
    return _timed(
        replace(
            few,
            time_s=_summing(time_s, step_s),
            energy_j=energy_j,
            traffic_bytes=traffic_bytes,
            limits_s=limits_s,
            kept_bytes=kept_bytes,
            flops_per_step=few.flops_per_step * micro_batches // has,
            mfu=few.mfu * grown,
            hfu=few.hfu * grown,
            tokens_per_s=None if few.tokens_per_s is None else few.tokens_per_s * grown,
            details=replace(few.details, plan=run, most_micro_batches=has),
        ),
        step_s,
        run.global_batch,
    )


def with_shared_update(result: Result, update_s: float, share: float) -> Result:
    """Return a step that has a share of its update: that of several batches, or none.

    Parameters
    ----------
    update_s
        By what the update prolongs the step.
    """
    saved = (1.0 - share) * update_s
    slower = result.step_time_s / (result.step_time_s - saved)
    parts, rest = dict(result.time_s), saved
    for name in _GIVING:
        most = parts[name] * (1.0 - share) if name == "optimizer" else parts[name]
        taken = min(max(rest, 0.0), most)
        parts[name], rest = parts[name] - taken, rest - taken
    updates = _of_updates(result)
    energy, traffic = dict(result.energy_j), dict(result.traffic_bytes)
    for component, joules in updates[0].items():
        energy[component] -= (1.0 - share) * joules
    for place, size in updates[1].items():
        traffic[place] -= (1.0 - share) * size
    idle = result.details.cluster.device.idle_power.value * result.details.plan.devices
    energy["static"] -= idle * saved
    step_s = result.step_time_s - saved
    return _timed(
        replace(
            result,
            mfu=result.mfu * slower,
            hfu=result.hfu * slower,
            tokens_per_s=None if result.tokens_per_s is None else result.tokens_per_s * slower,
            time_s=_summing(parts, step_s),
            energy_j=_with_total(energy),
            traffic_bytes=traffic,
            limits_s={name: s / slower for name, s in result.limits_s.items()},
        ),
        step_s,
        result.details.plan.global_batch,
    )


def with_wait(result: Result, wait_s: float) -> Result:
    """Return a step in which the device waits for the host besides."""
    step_s = result.step_time_s + wait_s
    slower = result.step_time_s / step_s
    energy = dict(result.energy_j)
    energy["static"] += (
        result.details.cluster.device.idle_power.value * result.details.plan.devices * wait_s
    )
    limits = dict(sorted([*result.limits_s.items(), (HOST, wait_s)], key=lambda item: -item[1]))
    return _timed(
        replace(
            result,
            mfu=result.mfu * slower,
            hfu=result.hfu * slower,
            tokens_per_s=None if result.tokens_per_s is None else result.tokens_per_s * slower,
            time_s={**result.time_s, "input": result.time_s["input"] + wait_s, "total": step_s},
            energy_j=_with_total(energy),
            limits_s=limits,
            bound=next(iter(limits)),
        ),
        step_s,
        result.details.plan.global_batch,
    )


def _timed(result: Result, step_time_s: float, batch: int) -> Result:
    return replace(result, step_time_s=step_time_s, samples_per_s=batch / step_time_s)


def _summing(parts: Mapping[str, float], total: float) -> dict[str, float]:
    """Give parts of a time its total; what rounding leaves is in the largest."""
    found = {name: value for name, value in parts.items() if name != "total"}
    largest = max(found, key=lambda name: found[name])
    found[largest] += total - math.fsum(found.values())
    return {**found, "total": total}


def _with_total(parts: Mapping[str, float]) -> dict[str, float]:
    found = {name: value for name, value in parts.items() if name != "total"}
    return {**found, "total": math.fsum(found.values())}


def _of_updates(result: Result) -> tuple[dict[str, float], dict[str, float]]:
    """Return the joules by component and the bytes by place of a step's updates."""
    program = result.details.timeline.program
    kinds = program.kind_names
    mine = program.kind == (kinds.index(Pass.UPDATE.value) if Pass.UPDATE.value in kinds else -1)
    n_rows = len(program.event_ptr) - 1
    times = np.bincount(program.cost[mine], weights=program.multiplicity[mine], minlength=n_rows)
    units = program.event_count * np.repeat(times, np.diff(program.event_ptr))
    counts = np.bincount(program.event_account, weights=units, minlength=len(program.accounts))
    energy: dict[str, float] = {}
    traffic: dict[str, float] = {}
    for account, count in zip(program.accounts, counts.tolist(), strict=True):
        energy[account.component] = energy.get(account.component, 0.0) + count * account.price_j
        if account.unit == "B" and count:
            traffic[account.place] = traffic.get(account.place, 0.0) + count
    return {name: joules for name, joules in energy.items() if joules}, traffic
