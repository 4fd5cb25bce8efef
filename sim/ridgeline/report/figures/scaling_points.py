"""Points of a distributed roofline, and the number of devices beside each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from ridgeline.report.figures.line_names import HALO, Floats, in_points
from ridgeline.report.figures.style import SERIES, SMALL, text_pt

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_BESIDE = ((0, 10), (0, -10), (10, 7), (-10, -7), (11, -6), (-11, 6))
"""Where the number of devices may stand, in points from its marker: each curve prefers another."""
_LEAST_GAP = 1.5  # points between a number and what stands beside it
_MARKER = (4.0, 4.0)  # half of a marker's sides


@dataclass(frozen=True)
class Curve:
    """One strategy: values by devices, of equal length.

    Attributes
    ----------
    flop_per_byte, flop_per_s
        Useful FLOPs for each byte that a device sends, and useful FLOP/s of a device.
    binding
        Kind of link that takes longest: the slope that bounds the point.
    envelope
        Useful FLOP/s of a device that each plan's work, or its messages, would allow alone.
    """

    name: str
    devices: Sequence[int]
    samples_per_s: Sequence[float]
    flop_per_byte: Sequence[float]
    flop_per_s: Sequence[float]
    binding: Sequence[str]
    envelope: Sequence[float]

    @property
    def marks(self) -> list[tuple[float, float]]:
        """Where its points stand in the roofline."""
        return list(zip(self.flop_per_byte, self.flop_per_s, strict=True))

    @property
    def is_best(self) -> bool:
        """Whether the others are special cases of this one, which is drawn broad beneath them."""
        return self.name == "hybrid"


@dataclass(frozen=True)
class Roof:
    """Ceilings of one device: peak, what its memory allows, and links by name, B/s each.

    Attributes
    ----------
    latency
        Devices and useful FLOP/s that the fixed times of messages alone would allow, by curve.
    less_arithmetic
        FLOPs that are counted over those that kernels do at least: above 1 with Winograd's.
    """

    peak_flop_per_s: float
    memory_flop_per_s: float
    links: dict[str, float]
    latency: dict[str, tuple[int, float]]
    less_arithmetic: float = 1.0

    @property
    def top_flop_per_s(self) -> float:
        """What no device of the study can be above."""
        return self.peak_flop_per_s * self.less_arithmetic

    def fixed(self, curve: Curve) -> tuple[float, float] | None:
        """Return the place of what the fixed times of a curve's largest run would allow."""
        if curve.name not in self.latency or not curve.devices:
            return None
        devices, ceiling = self.latency[curve.name]
        return curve.flop_per_byte[list(curve.devices).index(devices)], ceiling


def write_numbers(ax: Axes, curves: Sequence[Curve], roof: Roof) -> None:
    """Write the devices beside the points, those at the ends of curves first, where there is room.

    The best curve has no number where it goes through the point of another strategy.
    """
    taken = _Taken(ax, curves, roof)
    named: set[tuple[float, float]] = set()
    points = [
        (at in {0, len(curve.devices) - 1}, -k, at)
        for k, curve in enumerate(curves)
        for at in range(len(curve.devices))
    ]
    for _, minus, at in sorted(points, reverse=True):
        k, curve = -minus, curves[-minus]
        mark, text = curve.marks[at], f"{curve.devices[at]:,}"
        if mark in named or (beside := taken.beside(mark, text, k)) is None:
            continue
        named.add(mark)
        ax.annotate(
            text, mark, xytext=beside, textcoords="offset points", ha="center", va="center",
            fontsize=SMALL, color=SERIES[k % len(SERIES)], zorder=6, path_effects=HALO,
        )  # fmt: skip


class _Taken:
    """Boxes of a figure that are taken, by their middles and half their sides, in points."""

    def __init__(self, ax: Axes, curves: Sequence[Curve], roof: Roof) -> None:
        self.ax = ax
        self.middles: list[Floats] = []
        self.halves: list[Floats] = []
        for curve in curves:
            caps = list(zip(curve.flop_per_byte, curve.envelope, strict=True))
            for low, high in zip(in_points(ax, curve.marks), in_points(ax, caps), strict=True):
                self._take(low, np.array(_MARKER))
                self._take((low + high) / 2, (high - low) / 2 + (0.0, 1.0))
                self._take(high, np.array((_MARKER[0], 1.0)))
            if (bar := roof.fixed(curve)) is not None:
                self._take(in_points(ax, [bar])[0], np.array((3 * _MARKER[0], 1.0)))

    def _take(self, middle: Floats, half: Floats) -> None:
        self.middles.append(middle)
        self.halves.append(half)

    def beside(self, mark: tuple[float, float], text: str, k: int) -> tuple[float, float] | None:
        """Take the first free place for text beside a mark, as the k-th curve prefers them."""
        (place,) = in_points(self.ax, [mark])
        half = np.array((text_pt(text, SMALL) / 2, SMALL / 2))
        first = k % len(_BESIDE)
        for beside in (*_BESIDE[first:], *_BESIDE[:first]):
            far = beside + np.sign(beside) * (half - half[1]) * (1.0, 0.0)
            between = np.abs(np.array(self.middles) - place - far)
            if not np.any(np.all(between < np.array(self.halves) + half + _LEAST_GAP, axis=1)):
                self._take(place + far, half)
                return float(far[0]), float(far[1])
        return None
