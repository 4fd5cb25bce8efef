"""Calibration of a collective model by measurements of the same collective on one machine.

What a ring of NCCL takes with the protocol Simple has four parts, each with a constant of the
machine:

    T = start + slices · slice_s + scale · wire_s + copied_bytes / copy rate

A rank sends `RingParts.slices` slices one after the other, and each waits for the flags of the one
before it. All groups of a machine share the constants, so that those of 2, 4 and 8 devices tell
what is paid for a round and what once. The link is faster while the ring's buffers stay in the
devices' cache than when they are written back to memory: two scales, where the measurements reach
both sides.

Other ways (LL, LL128, trees) have a start and a scale of the modelled time each.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from ridgeline.errors import RidgelineError
from ridgeline.network.nccl import RingParts
from ridgeline.network.topology import Floats

LEAST_ROWS = 3
"""Sizes of one way that two numbers are fitted to, at least."""
_SIMPLE = "ring-simple"


class Timing(NamedTuple):
    """One collective: the way it goes, what the model says, the parts of its ring."""

    way: str
    """`CollectiveResult.algorithm`."""
    model_s: float
    parts: RingParts


class RingFit(NamedTuple):
    """Constants of rings with the protocol Simple on one machine.

    Attributes
    ----------
    start_s
        What is paid once.
    slice_s
        What is paid for every slice besides its bytes.
    scale
        Time on the link in multiples of the modelled one, buffers in memory.
    scale_in_cache
        The same while the buffers are in cache.
    copy_s_per_byte
        Of the part that is copied last.
    cache_bytes
        Up to where buffers are in cache.
    """

    start_s: float
    slice_s: float
    scale: float
    scale_in_cache: float
    copy_s_per_byte: float
    cache_bytes: float

    def time_s(self, parts: RingParts) -> float:
        """Return the time of a ring of these parts."""
        inside = parts.buffered_bytes <= self.cache_bytes
        scale = self.scale_in_cache if inside else self.scale
        fixed_s = self.start_s + parts.slices * self.slice_s
        return fixed_s + scale * parts.wire_s + parts.copied_bytes * self.copy_s_per_byte


@dataclass(frozen=True, slots=True)
class Correction:
    """What a machine takes besides the model.

    Attributes
    ----------
    ring
        Constants of its rings; None leaves them as modelled.
    by_way
        (start_s, scale) as of `fit_linear` for other ways; one without is taken as modelled.
    """

    ring: RingFit | None
    by_way: Mapping[str, tuple[float, float]]

    def time_s(self, timing: Timing) -> float:
        """Return the corrected time, 0 at least."""
        if timing.way == _SIMPLE and self.ring is not None:
            return max(self.ring.time_s(timing.parts), 0.0)
        start_s, scale = self.by_way.get(timing.way, (0.0, 1.0))
        return max(start_s + scale * timing.model_s, 0.0)


def fit_machine(timings: Sequence[Timing], measured_s: Floats, cache_bytes: float) -> Correction:
    """Fit the constants of one machine to some of its collectives, of any group sizes.

    Parameters
    ----------
    timings, measured_s
        [N] of both. Ways of fewer than `LEAST_ROWS` rows are left as modelled, and so are the rings
        without six rows whose slices are all full.
    cache_bytes
        Of the devices' last cache, one partition: what all processors reach without crossing.

    Raises
    ------
    RidgelineError
        If there are not as many times as collectives, or a time is not above 0.
    """
    measured = np.asarray(measured_s, float)
    if len(timings) != len(measured):
        raise RidgelineError(
            f"a calibration needs a time for each collective; found {len(measured)} for "
            f"{len(timings)}"
        )
    model = np.array([timing.model_s for timing in timings])
    by_way: dict[str, tuple[float, float]] = {}
    for way in dict.fromkeys(timing.way for timing in timings):
        own = np.array([timing.way == way for timing in timings])
        if way != _SIMPLE and own.sum() >= LEAST_ROWS:
            by_way[way] = fit_linear(model[own], measured[own])
    rows = [i for i, one in enumerate(timings) if one.way == _SIMPLE and one.parts.full_slices]
    parts = [timings[i].parts for i in rows]
    return Correction(_fit_rings(parts, measured[rows], cache_bytes), by_way)


def _fit_rings(
    parts: Sequence[RingParts], measured_s: Floats, cache_bytes: float
) -> RingFit | None:
    """Fit all constants; with one scale if only one row is on a side of the cache's size."""
    inside = np.array([one.buffered_bytes <= cache_bytes for one in parts], bool)
    split = min(inside.sum(), (~inside).sum()) > 1
    wire = np.array([one.wire_s for one in parts])
    columns = [
        np.ones(len(parts)),
        np.array([one.slices for one in parts], float),
        np.array([one.copied_bytes for one in parts]),
        *((wire * ~inside, wire * inside) if split else (wire,)),
    ]
    if len(parts) <= len(columns):
        return None
    terms = np.stack(columns, axis=1)
    if np.linalg.matrix_rank(terms / np.abs(terms).max(axis=0)) < terms.shape[1]:
        return None  # one group size alone does not tell a round from a start
    start_s, slice_s, copy_s, *scales = _least_absolute(terms, measured_s)
    return RingFit(start_s, slice_s, scales[0], scales[-1], copy_s, cache_bytes)


def fit_linear(model_s: Floats, measured_s: Floats) -> tuple[float, float]:
    """Return (start_s, scale) with the least mean of ``|(start + scale * model) / measured - 1|``.

    `start_s` is what starting a collective takes more than the model says (less, if negative),
    ``1 / scale`` the share of the modelled bandwidth that is reached.

    Parameters
    ----------
    model_s, measured_s
        [N] seconds; at least two different model times.

    Raises
    ------
    RidgelineError
        If there are too few points, or a time is not above 0.
    """
    model, measured = np.asarray(model_s, float), np.asarray(measured_s, float)
    if model.shape != measured.shape or len(np.unique(model)) < 2:
        raise RidgelineError(
            f"a calibration needs two different sizes at least; found {len(model)} and "
            f"{len(measured)} times"
        )
    if not (model > 0).all():
        raise RidgelineError("a calibration needs times above 0")
    start_s, scale = _least_absolute(np.stack((np.ones(len(model)), model), axis=1), measured)
    return start_s, scale


def _least_absolute(terms: Floats, measured: Floats) -> list[float]:
    """Return the factors with the least mean of absolute relative errors.

    Absolute errors, so that a single odd measurement does not bend the fit; by least squares that
    are weighted anew (Schlossmacher, JASA 68, 1973). Terms are brought to one scale first.
    """
    if not (measured > 0).all():
        raise RidgelineError("a calibration needs times above 0")
    unit = np.abs(terms).max(axis=0)
    weighted = terms / unit / measured[:, None]
    weight = np.ones(len(measured))
    for _ in range(200):
        factors = np.linalg.lstsq(weighted * weight[:, None], weight, rcond=None)[0]
        weight = 1.0 / np.sqrt(np.maximum(np.abs(weighted @ factors - 1.0), 1e-6))
    return [float(factor) for factor in factors / unit]
