"""Continuous propagation: 1F1B that never flushes and updates the one copy of the weights at once.

A micro-batch may meet newer weights in its backward than in its forward pass.
"""

from __future__ import annotations

from ridgeline.parallel.schedule.one_f_one_b import bubble_s, in_flight, one_f_one_b
from ridgeline.parallel.schedule.slots import schedule

CONTINUOUS = schedule(
    "continuous",
    source="Li and Pedram, CATERPILLAR, ASAP 2017, arXiv:1706.00517, section 3 (continuous"
    " propagation, and its sum of L - i + 1 activations)",
    bubble_s=bubble_s,
    in_flight=in_flight,
    flushes=False,
)(one_f_one_b.order)
