"""How far a result may be off: 5 and 95 % of step time and energy.

Parameters of the machine (achievable shares by class of op, bandwidths, launch and issue times,
links, prices of events, idle power) are drawn from their distributions, and the played program is
replayed with the durations that follow, so nothing is lowered again. On top comes the error of the
model itself, estimated from whole measured steps (`distributions`). Draws are seeded: the same
result has the same interval, to the byte.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from ridgeline.engine.program import Floats
from ridgeline.engine.replay import replay_s
from ridgeline.hardware.device import Device
from ridgeline.kernels import OpCost
from ridgeline.kernels.cost import level_bandwidth
from ridgeline.kernels.efficiency_table import achievable_share
from ridgeline.parallel.emit.host_launches import ISSUE
from ridgeline.report.uncertainty.device_range import range_of
from ridgeline.report.uncertainty.distributions import (
    ClassKey,
    ModelError,
    model_error,
    relation_of,
    scatter,
    spread,
)
from ridgeline.report.uncertainty.ground import ground_of, of_step
from ridgeline.workload.graph import Conv, Op

if TYPE_CHECKING:
    from ridgeline.report.result import Result

SEED = 20250125
SAMPLES, FEW_SAMPLES = 64, 16
_MANY_TASKS = 200_000  # of which fewer samples are replayed
_STRATA = 512  # draws of the model's error, which costs nothing
_STATED = (0.05, 0.95)


def uncertainty(result: Result, seed: int = SEED) -> dict[str, dict[str, float]] | None:
    """Return 5 and 95 % of step time and energy.

    Returns
    -------
    dict or None
        ``{"step_time_s": {"p05", "p95"}, "energy_j": {"p05", "p95"}}``; None where no measured
        steps tell (`ground.ground_of` says why).
    """
    step = ground_of(result.details).step
    if step is None:
        return None
    return _intervals(result, step.error, seed)


def new_device_range(result: Result, seed: int = SEED) -> dict[str, dict[str, float]] | None:
    """Return what `uncertainty` would be if no step on the device had been measured.

    None where it was not measured anyway, or no other device tells.
    """
    details = result.details
    kind = of_step(details)
    error = range_of(kind.range_kind, details.cluster.device, left_out=True)
    if error is None or ground_of(details).step is None:
        return None
    return _intervals(result, error, seed)


def _intervals(result: Result, error: ModelError, seed: int) -> dict[str, dict[str, float]]:
    samples = sample(result, seed)
    power = model_error("energy")
    rng = np.random.Generator(np.random.PCG64([seed, 1]))
    slower = np.exp(_stratified(error, rng))
    hungrier = slower * np.exp(_stratified(power, rng))
    times = _STRATA // len(samples.step_time_s)
    return {
        "step_time_s": _interval(np.tile(samples.step_time_s, times) * slower),
        "energy_j": _interval(np.tile(samples.energy_j, times) * hungrier),
    }


@dataclass(frozen=True)
class Samples:
    """Draws of the parameters alone: [S] seconds and joules of a step."""

    step_time_s: Floats
    energy_j: Floats

    @property
    def spread(self) -> float:
        """Standard deviation of the logarithm of the step time."""
        return float(np.std(np.log(self.step_time_s)))


def samples_of(result: Result) -> int:
    """Return how many draws of a step are replayed: fewer of one with many tasks."""
    return SAMPLES if result.details.timeline.program.n_tasks <= _MANY_TASKS else FEW_SAMPLES


def sample(result: Result, seed: int = SEED, draws: ParameterDraws | None = None) -> Samples:
    """Draw the machine's parameters, and replay the step with each draw.

    Parameters
    ----------
    draws
        Draws that another step shares (`paired`); by default its own.
    """
    details = result.details
    timeline = details.timeline
    if draws is None:
        generator = np.random.Generator(np.random.PCG64([seed, 0]))
        draws = ParameterDraws(generator, samples_of(result))
    n = draws.n
    device = details.cluster.device
    ratios = _ratios(result, draws)
    played_s = timeline.makespan_s
    # Input that is waited for is on top of what was played.
    step_time_s = replay_s(timeline, ratios) + (result.step_time_s - played_s)
    energy = np.zeros(n)
    for component, joules in result.energy_j.items():
        if component == "static":
            idle = spread("idle power", _known(details.cluster.device.idle_power.basis))
            share = step_time_s / result.step_time_s
            energy += joules * share * draws.whole("static", idle, device.name)
        elif component != "total":
            events = spread("energy of events", "own")
            energy += joules * draws.whole(component, events, device.prices.name)
    return Samples(
        _around(result.step_time_s, step_time_s), _around(result.energy_j["total"], energy)
    )


def _around(predicted: float, drawn: Floats) -> Floats:
    """Scale draws so that half of them are above the prediction.

    Shares were fitted to whole sets of kernels. A sum of kernels that scatter one by one is longer
    than the sum of their medians: that is in the share already, and must not count twice.
    """
    with np.errstate(over="ignore", invalid="ignore"):  # `_interval` refuses what is not finite
        return np.asarray(drawn * (predicted / np.median(drawn)))


class ParameterDraws:
    """Factors around 1, the same for the same name in one sample.

    `whole` and `own` are also told whose parameter it is, by which `paired.SharedDraws` knows what
    two steps have in common.
    """

    def __init__(self, rng: np.random.Generator, n: int) -> None:
        self._rng, self.n = rng, n
        self._drawn: dict[str, Floats] = {}

    def whole(self, name: str, sd: float, whose: str) -> Floats:
        """Return the factor of a parameter that much depends on."""
        if name not in self._drawn:
            self._drawn[name] = self._rng.standard_normal(self.n)
        return np.exp(sd * self._drawn[name])

    def own(self, sd: float, whose: str, like: str = "") -> Floats:
        """Return a factor that belongs to one cost row alone; `like`: at any batch."""
        return np.exp(sd * self._rng.standard_normal(self.n))


def _ratios(result: Result, draws: ParameterDraws) -> Floats:
    """Return [C, S] how much longer each cost row takes in each sample than it was played."""
    details = result.details
    lowered, device, program = details.lowered, details.cluster.device, details.timeline.program
    op_of = {id(cost): op for op, cost in zip(lowered.ops, lowered.op_costs, strict=True)}
    ratios = np.ones((len(program.event_ptr) - 1, draws.n))
    issue = program.kind_names.index(ISSUE) if ISSUE in program.kind_names else -1
    issued = set(np.unique(program.cost[program.kind == issue]).tolist())
    for row in range(len(ratios)):
        if row in issued:
            software = details.plan.stack.name
            ratios[row] = draws.whole("issue", spread("issue", "other"), software)
        elif row not in lowered.cost_of_row:
            links = draws.whole("links", spread("links", "own"), details.cluster.name)
            ratios[row] = links * draws.own(spread("collectives", "own"), "")
        else:
            cost = lowered.cost_of_row[row]
            ratios[row] = _op_ratio(cost, op_of.get(id(cost)), device, draws)
    return ratios


def _op_ratio(cost: OpCost, op: Op | None, device: Device, draws: ParameterDraws) -> Floats | float:
    played_s = cost.time_s(device)
    if played_s == 0:
        return 1.0
    arithmetic = np.full(draws.n, cost.compute_s(device))
    if op is not None and op.loops is not None and cost.engine_work:
        arithmetic *= _arithmetic(op, next(iter(cost.engine_work)), device, draws)
    longest = arithmetic
    for level, work in cost.level_work.items():
        bandwidth = level_bandwidth(device, level)
        if bandwidth is not None:
            basis = _known(device.memory[level].achievable.basis)
            factor = draws.whole(f"memory {level}", spread("bandwidth", basis), device.name)
            longest = np.maximum(longest, work / bandwidth * factor)
    launch = spread("launch", _known(device.launch_latency.basis))
    latency_s = cost.latency_s * draws.whole("launch", launch, device.name)
    ratio: Floats = (latency_s + longest) / played_s
    return ratio


def _arithmetic(
    op: Op, engine_format: str, device: Device, draws: ParameterDraws
) -> Floats | float:
    """Return how much longer the arithmetic of a contraction may take."""
    engine, _, format_ = engine_format.rpartition(".")
    row = achievable_share(op, device, engine, format_)
    if row is None:  # counted by cycle, or priced at the peak, whose error nobody measured
        return 1.0
    origin, relation = relation_of(device, row)
    whole = draws.whole(f"share of {row.op}", spread(row.op, relation), origin)
    key = class_key(row.format, row.op, row.pass_, row.filter)
    loops = op.loops
    like = f"{origin} {key} {replace(loops, batch=1)}" if isinstance(loops, Conv) else ""
    return whole * draws.own(scatter(origin, key), f"{origin} {key} {loops}", like)


def class_key(format_: str, op: str, pass_: str | None, filter_: str | None) -> ClassKey:
    """Return the name of a class of kernels in the tables."""
    return format_, op, pass_ or "", filter_ or ""


def _known(basis: str) -> str:
    return "own" if basis in {"measured", "derived", "data-sheet"} else "other"


def _stratified(error: ModelError | None, rng: np.random.Generator) -> Floats:
    """Draw the model's error once from each of equal shares of its distribution."""
    if error is None:
        return np.zeros(_STRATA)
    return error.draws(rng.permutation((np.arange(_STRATA) + 0.5) / _STRATA))


def _interval(values: Floats) -> dict[str, float]:
    low, high = (float(value) for value in np.quantile(values, _STATED))
    return {"p05": low, "p95": high}
