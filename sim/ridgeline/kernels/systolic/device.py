"""The arrays that a device's file describes."""

from __future__ import annotations

import math

from ridgeline.hardware.array import SystolicArray
from ridgeline.hardware.device import Engine
from ridgeline.kernels.systolic.closed_form import FoldSchedule
from ridgeline.kernels.systolic.partition import ArrayChain, Arrays
from ridgeline.workload.formats import bytes_of


def by_dataflow(engine: Engine) -> bool:
    """Tell whether the registers of an engine are those of arrays, and no instruction is stated."""
    return engine.array is not None and "instruction" not in engine.model_fields_set


def arrays_of(array: SystolicArray, accumulate: str) -> Arrays:
    """Return what `best_partition` needs to know of an engine's arrays.

    Parameters
    ----------
    accumulate
        Number format of the partial sums that travel between arrays.
    """
    schedules = tuple(
        FoldSchedule(
            dataflow,
            array.fold,
            array.edge,
            array.hop_row.value,
            array.hop_column.value,
            array.mac_latency.value,
        )
        for dataflow in array.dataflows
    )
    network = None
    if array.network is not None:
        clock_hz = array.clock.value
        bytes_per_cycle = array.network.bandwidth.value / clock_hz
        network = ArrayChain(
            math.ceil(array.network.latency.value * clock_hz),
            bytes_per_cycle / bytes_of(accumulate),
        )
    return Arrays(
        array.rows.value, array.columns.value, array.count.value, schedules, network,
        array.multicast.value,
    )  # fmt: skip
