"""Figure of completion times: what share of messages has arrived, by transport."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from ridgeline.network.completion_times import Completions
from ridgeline.report.figures.style import GRID, INK, SERIES, head, sheet

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def completion_curves(
    found: Sequence[Completions], name: str, pattern: str, ax: Axes | None = None
) -> Axes:
    """Draw the share of messages that has arrived over the time, in units of what ports allow."""
    ideal_s = found[0].ideal_s

    def draw(axes: Axes) -> str:
        share = np.arange(101) / 100
        handles = [
            axes.step(
                np.array(one.quantiles_s) / ideal_s, share, where="post",
                color=SERIES[k % len(SERIES)], ls="-" if k < len(SERIES) else "--",
                label=one.transport, gid=one.transport, lw=1.4,
            )[0]
            for k, one in enumerate(found)
        ]  # fmt: skip
        axes.axvline(1.0, color=INK, lw=0.8)
        axes.set_ylim(0, 1.02)
        axes.set_xlim(left=0.0)
        axes.set_xlabel("completion time, over that of the devices' ports alone")
        axes.set_ylabel("share of messages")
        axes.grid(color=GRID, lw=0.6)
        head(axes, f"{pattern} on {name}", handles, columns=2)
        most = max(found, key=lambda one: one.draws).draws
        drawn = f" {most} draws of the seed." if most > 1 else ""
        return f"{found[0].messages:,} messages at once.{drawn} Line: ports of devices alone."

    levels = " and ".join(sorted({one.level for one in found}))
    return sheet((3.6, 0.7, 0.9, 0.9), draw, f"simulated, not measured: level of {levels}", ax)
