"""Range of the ratio of two steps: what is uncertain of both alike cancels.

Both are replayed under the same draws. A parameter is one for both where it is the same thing: the
memory of one device, the kernels that were measured on one device, the links of one cluster, the
launches of one program, the prices of one energy table; those of different machines are drawn
apart. Kernels of equal shape on one device have the same scatter, and convolutions that differ in
their batch alone nearly the same (`BATCH_CORRELATION`). The error of the model beyond its
parameters is one for both where the step is of the same kind, under the same family of software, on
the same device; otherwise the errors are independent, which is the wider of the two.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from ridgeline.engine.program import Floats
from ridgeline.report.uncertainty import SEED, ParameterDraws, sample, samples_of
from ridgeline.report.uncertainty.distributions import ModelError, model_error
from ridgeline.report.uncertainty.ground import ground_of, of_step

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ridgeline.report.result import Result

BATCH_CORRELATION = 0.91
"""Correlation of the residuals of one convolution at two batches, on one device.

Of 1,079 pairs of DeepBench rows; ``benchmarks/estimate_ratio_correlation.py`` finds it again.
"""
_MODEL_DRAWS = 512
_ENDS = (0.05, 0.95)


class SharedDraws(ParameterDraws):
    """Draws that depend on the name of a parameter and on whose it is, not on when they are asked.

    Parameters
    ----------
    step
        Number of the step: what belongs to nobody by name is drawn for each step apart.
    """

    def __init__(self, seed: int, n: int, step: int) -> None:
        super().__init__(np.random.Generator(np.random.PCG64([seed, 2, step])), n)
        self._seed = seed

    def whole(self, name: str, sd: float, whose: str) -> Floats:
        """Return the factor of a parameter: the same on all sides that have the same one."""
        return np.exp(sd * self._named(f"{name} of {whose}"))

    def own(self, sd: float, whose: str, like: str = "") -> Floats:
        """Return the factor of a cost row: the same for equal kernels, alike at another batch."""
        if not whose:
            return super().own(sd, whose)
        if not like:
            return np.exp(sd * self._named(whose))
        common = BATCH_CORRELATION
        mixed = np.sqrt(common) * self._named(like) + np.sqrt(1 - common) * self._named(whose)
        return np.asarray(np.exp(sd * mixed))

    def _named(self, name: str) -> Floats:
        if name not in self._drawn:
            key = zlib.crc32(name.encode())
            generator = np.random.Generator(np.random.PCG64([self._seed, 3, key]))
            self._drawn[name] = generator.standard_normal(self.n)
        return self._drawn[name]


@dataclass(frozen=True)
class RatioRange:
    """5 and 95 % of the ratio of two steps.

    Attributes
    ----------
    throughput, energy_efficiency
        Ends of the ratio of samples a second, and of samples a joule.
    independent
        Ends of the ratio of samples a second if nothing of the two were shared.
    model_error
        "shared" or "independent": how the error beyond the parameters was drawn.
    shared
        What both have in common, in words.
    """

    throughput: tuple[float, float]
    energy_efficiency: tuple[float, float]
    independent: tuple[float, float]
    model_error: str
    shared: str

    def to_dict(self) -> dict[str, object]:
        """Return everything as plain values."""
        ends = {
            name: dict(zip(("p05", "p95"), getattr(self, name), strict=True))
            for name in ("throughput", "energy_efficiency", "independent")
        }
        return {**ends, "model_error": self.model_error, "shared": self.shared}


def ratio_range(result: Result, baseline: Result, seed: int = SEED) -> RatioRange | str:
    """Return the range of a step's throughput and energy over those of a baseline.

    Returns
    -------
    RatioRange or str
        Or why no range is stated: one of the two has none (`ground.ground_of`).
    """
    sides = (result, baseline)
    grounds = [ground_of(side.details) for side in sides]
    for side, ground in zip(sides, grounds, strict=True):
        if ground.step is None:
            return f"no range: {side.manifest['model']['name']}: {ground.text}"
    errors = [ground.step.error for ground in grounds if ground.step is not None]
    cells = [(of_step(side.details), side.details.cluster.device.name) for side in sides]
    is_shared = cells[0] == cells[1]
    together = _draws(sides, errors, seed, shared=True, model_shared=is_shared)
    apart = _draws(sides, errors, seed, shared=False, model_shared=False)
    return RatioRange(
        _ends(together[1][0] / together[0][0], result.samples_per_s, baseline.samples_per_s),
        _ends(together[1][1] / together[0][1], _per_j(result), _per_j(baseline)),
        _ends(apart[1][0] / apart[0][0], result.samples_per_s, baseline.samples_per_s),
        "shared" if is_shared else "independent",
        _common(result, baseline),
    )


def _per_j(result: Result) -> float:
    """Return samples a joule."""
    joules = result.energy_j["total"]
    return result.samples_per_s * result.step_time_s / joules if joules else float("nan")


def _draws(
    sides: Sequence[Result], errors: Sequence[ModelError], seed: int, *, shared: bool,
    model_shared: bool,
) -> list[tuple[Floats, Floats]]:  # fmt: skip
    """Return time and energy of each side over what is predicted, [draws] each."""
    n = min(samples_of(side) for side in sides)
    power = model_error("energy")
    found = []
    for k, (side, error) in enumerate(zip(sides, errors, strict=True)):
        own_seed = seed if shared else seed + 1 + k
        step = int(side.manifest["hash"], 16)
        drawn = sample(side, draws=SharedDraws(own_seed, n, step))
        stream = [seed, 4] if model_shared else [own_seed, 4, step]
        generator = np.random.Generator(np.random.PCG64(stream))
        shares = (np.arange(_MODEL_DRAWS) + 0.5) / _MODEL_DRAWS
        slower = np.exp(error.draws(generator.permutation(shares)))
        hungrier = slower
        if power is not None:
            hungrier = slower * np.exp(power.draws(generator.permutation(shares)))
        times = _MODEL_DRAWS // n
        time = np.tile(drawn.step_time_s / side.step_time_s, times) * slower
        joules = side.energy_j["total"] or 1.0
        found.append((time, np.tile(drawn.energy_j / joules, times) * hungrier))
    return found


def _ends(factors: Floats, ours: float, theirs: float) -> tuple[float, float]:
    """Return the ends of a ratio; a slower side by some factor has a smaller ratio by it."""
    low, high = (float(end) for end in np.quantile(factors, _ENDS))
    return ours / theirs * low, ours / theirs * high


def _common(result: Result, baseline: Result) -> str:
    """Say which sources of error two steps have in common."""
    ours, theirs = result.details, baseline.details
    same = {
        f"device {ours.cluster.device.name}": ours.cluster.device.name
        == theirs.cluster.device.name,
        f"links of {ours.cluster.name}": ours.cluster.name == theirs.cluster.name,
        f"software {ours.plan.stack.name}": ours.plan.stack.name == theirs.plan.stack.name,
        f"energy table {ours.cluster.device.prices.name}": ours.cluster.device.prices.name
        == theirs.cluster.device.prices.name,
    }
    return ", ".join(name for name, is_same in same.items() if is_same) or "nothing"
