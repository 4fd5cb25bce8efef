"""Sobol indices: what share of a quantity's variance each input explains, alone and with others.

I. M. Sobol', "Global sensitivity indices for nonlinear mathematical models and their Monte Carlo
estimates", Mathematics and Computers in Simulation 55, 2001. Where every combination of a grid is
known, the indices are sums over it, without error. Else they are estimated from N (D + 2) values:
first order by A. Saltelli et al., Computer Physics Communications 181, 2010, Table 2 (b), total by
M. J. W. Jansen, Computer Physics Communications 117, 1999.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from ridgeline.engine.executor import run
from ridgeline.engine.program import Floats
from ridgeline.errors import RidgelineError
from ridgeline.report.sensitivity import LATENCIES, resource_groups, sensitivity

if TYPE_CHECKING:
    from ridgeline.report.result import Result

_RESAMPLES = 200
_MOST_INPUTS = 8


@dataclass(frozen=True)
class SobolIndices:
    """Indices of some inputs, the one with the largest total first.

    Attributes
    ----------
    first, total
        [D] Share of the variance that an input explains alone, and with all its interactions.
    first_error, total_error
        [D] Standard errors of a bootstrap; 0 where the whole grid is known.
    values
        How many values of the quantity they rest on.
    """

    inputs: tuple[str, ...]
    first: Floats
    total: Floats
    first_error: Floats
    total_error: Floats
    values: int

    def sorted(self) -> SobolIndices:
        """Return the same, the largest total first."""
        order = np.lexsort((np.array(self.inputs), -self.total))
        return SobolIndices(
            tuple(self.inputs[i] for i in order.tolist()),
            self.first[order],
            self.total[order],
            self.first_error[order],
            self.total_error[order],
            self.values,
        )


def estimate(
    function: Callable[[Floats], Floats], inputs: Sequence[str], samples: int = 64, seed: int = 0
) -> SobolIndices:
    """Estimate the indices of a function of independent inputs, each uniform in [0, 1).

    Parameters
    ----------
    function
        Of [n, D] inputs; returns [n] values.
    samples
        N; the function is asked for N (D + 2) values.

    Raises
    ------
    RidgelineError
        If there are fewer than two samples, no input, or the values do not vary.
    """
    wide = len(inputs)
    if samples < 2 or not wide:
        raise RidgelineError(
            f"Sobol indices need two samples and an input, found {samples} and {wide}"
        )
    points = np.random.default_rng(seed).random((2, samples, wide))
    mixed = [points[0].copy() for _ in range(wide)]
    for i, block in enumerate(mixed):
        block[:, i] = points[1, :, i]
    found = np.asarray(function(np.concatenate((*points, *mixed))), np.float64)
    a, b, *ab = np.split(found, wide + 2)
    crossed = np.array(ab)
    if not np.ptp(np.concatenate((a, b))) > 0:
        raise RidgelineError("the quantity does not vary: it has no Sobol indices")
    first, total = _shares(a, b, crossed)
    again = np.random.default_rng(seed + 1).integers(0, samples, (_RESAMPLES, samples))
    with np.errstate(invalid="ignore", divide="ignore"):
        spread = np.array([_shares(a[pick], b[pick], crossed[:, pick]) for pick in again])
    errors = np.nanstd(spread, axis=0)
    return SobolIndices(tuple(inputs), first, total, errors[0], errors[1], len(found)).sorted()


def _shares(a: Floats, b: Floats, crossed: Floats) -> tuple[Floats, Floats]:
    variance = np.var(np.concatenate((a, b)))
    middle = np.mean(np.concatenate((a, b)))  # less noise in products
    first = np.mean((b - middle) * (crossed - a), axis=1) / variance
    total = np.mean((a - crossed) ** 2, axis=1) / (2 * variance)
    return first, total


def of_grid(rows: Sequence[Mapping[str, Any]], fields: Sequence[str], y: str) -> SobolIndices:
    """Return the indices of fields whose every combination is a row, each value equally likely.

    Raises
    ------
    RidgelineError
        If a combination is missing or there twice, fewer than one field varies, or the quantity
        does not vary.
    """
    levels = [list(dict.fromkeys(row[name] for row in rows)) for name in fields]
    varied = [i for i, of in enumerate(levels) if len(of) > 1]
    fields, levels = [fields[i] for i in varied], [levels[i] for i in varied]
    shape = [len(of) for of in levels]
    if not fields:
        raise RidgelineError("no field varies: there is nothing to share the variance of")
    values = np.full(shape, np.nan)
    for row in rows:
        place = tuple(of.index(row[name]) for of, name in zip(levels, fields, strict=True))
        if not math.isnan(values[place]):
            raise RidgelineError(
                f"two rows have the same {', '.join(fields)}: name all fields that vary (--by)"
            )
        values[place] = float(row[y])
    there = int(np.isfinite(values).sum())
    if there < values.size:
        raise RidgelineError(
            f"Sobol indices of rows need every combination of {', '.join(fields)}: {there} of "
            f"{values.size} are there"
        )
    variance = values.var()
    if not variance > 0:
        raise RidgelineError(f"{y} does not vary: it has no Sobol indices")
    axes = range(len(fields))
    first = [values.mean(axis=tuple(j for j in axes if j != i)).var() / variance for i in axes]
    total = [values.var(axis=i).mean() / variance for i in axes]
    none = np.zeros(len(fields))
    return SobolIndices(
        tuple(fields), np.array(first), np.array(total), none, none, values.size
    ).sorted()


def of_resources(result: Result, factor: float = 2.0, samples: int = 64) -> SobolIndices:
    """Return the indices of a step's time over its resources, each between 1 / factor and factor.

    Factors are independent and uniform in their logarithm. The program is replayed, as for
    `sensitivity`; at most eight resources that do anything by themselves are asked.
    """
    matter = [one.resource for one in sensitivity(result, factor) if one.less_s > one.more_s]
    inputs = matter[:_MOST_INPUTS]
    program = result.details.lowered.program
    groups = resource_groups(program)

    def times_s(points: Floats) -> Floats:
        factors = factor ** (2 * points - 1)
        found = np.empty(len(points))
        for n, of in enumerate(factors.tolist()):
            scales = dict(zip(inputs, of, strict=True))
            latency = scales.pop(LATENCIES, 1.0)
            names = {name: f for group, f in scales.items() for name in groups[group]}
            changed = replace(program.scaled(names), latency_s=program.latency_s / latency)
            found[n] = run(changed).makespan_s
        return found

    return estimate(times_s, inputs, samples)
