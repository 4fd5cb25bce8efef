"""One op on one device: time, traffic per memory level, energy events."""

from ridgeline.kernels.cost import OpCost
from ridgeline.kernels.pricing import price

__all__ = ["OpCost", "price"]
