"""What stands on axes: artists by name, words, boxes, units, and how high ops may stand."""

from __future__ import annotations

from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import PolyCollection
from matplotlib.text import Text

from ridgeline.hardware.device import Achievable
from ridgeline.kernels.efficiency_table import TRANSFORMED

PREFIXES = {"": 1.0, "m": 1e-3, "u": 1e-6, "k": 1e3, "M": 1e6}
SIZES = {"GiB": 2.0**30, "MiB": 2.0**20, "KiB": 2.0**10}


def by_gid(ax: Axes, gid: str) -> Any:
    (found,) = [artist for artist in ax.get_children() if artist.get_gid() == gid]
    return found


def texts(ax: Axes) -> list[str]:
    return [text.get_text() for text in ax.findobj(Text)]


def foot(ax: Axes) -> str:
    return " ".join(by_gid(ax, part).get_text().replace("\n", " ") for part in ("caption", "stamp"))


def spans(collection: PolyCollection) -> np.ndarray:
    """Starts and ends of boxes."""
    boxes = [path.vertices[:, 0] for path in collection.get_paths()]
    return np.array([[box.min(), box.max()] for box in boxes])


def gids(ax: Axes) -> set[str]:
    return {gid for artist in ax.get_children() if (gid := artist.get_gid()) is not None}


def unit_of(label: str, unit: str = "s") -> float:
    """SI size of the unit in brackets at the end of an axis label."""
    shown = label.rpartition("(")[2].rstrip(")")
    return SIZES[shown] if unit == "B" else PREFIXES[shown.removesuffix(unit)]


def share_of_counted(row: Achievable) -> float:
    """Return what kernels of a class may reach of the peak, in FLOPs of direct convolution.

    Products of transformed tiles do 36 multiplications where 16 results of 3 x 3 filters need 144.
    """
    return row.fraction.value * (144 / 36 if row.filter == TRANSFORMED else 1)
