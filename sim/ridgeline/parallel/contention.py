"""What collectives take of the devices whose ops run beside them.

NCCL runs one thread block for each channel, which holds one streaming multiprocessor while the
collective goes on, and its copies and sums pass the device's memory. Ops that are bound by
arithmetic go on with the multiprocessors that are left, ops that are bound by memory with what is
left of its bandwidth (C. Rashidi et al. measure the two in "Enabling Compute-Communication Overlap
in Distributed Deep Learning Training Platforms", ISCA 2021, Section III).

A channel carries about 10 GB/s: NCCL plans with 20 GB/s a NVLink (``SM70_NVLINK_BW``,
``SM80_NVLINK_BW``) and doubles the channels that it finds (``ncclTopoCompute``), so that a DGX-1
with 120 GB/s has 12 and a DGX A100 with 240 GB/s has 24. Below that, fewer are at work.
"""

from __future__ import annotations

import numpy as np

from ridgeline.engine.contention import contended
from ridgeline.engine.timeline import Timeline
from ridgeline.hardware.device import Device
from ridgeline.kernels.cost import peak_rates
from ridgeline.parallel.lower import COLLECTIVE, Lowered
from ridgeline.parallel.plan import Plan

_CHANNEL_BYTES_PER_S = 10e9
_CHANNELS = 2, 24  # at least and at most: a ring each way; what H100s and A100s have
_ARITHMETIC, _MEMORY = range(2)
# Times that a ring passes its bytes on the wire through the memory of a device. It reads its own
# part and what came, which was written there before; of what is gathered, only the latter two.
_PASSES = {"all-reduce": 2.5, "reduce-scatter": 3.0, "all-gather": 2.0}


def with_contention(timeline: Timeline, lowered: Lowered, plan: Plan, device: Device) -> Timeline:
    """Slow the ops that run beside collectives; on a device without multiprocessors, none."""
    multiprocessors = _multiprocessors(device)
    program = timeline.program
    if not multiprocessors or not lowered.talks:
        return timeline
    rates = peak_rates(device)
    n_rows = len(program.event_ptr) - 1
    bound_of_row = np.full(n_rows, -1)
    for row, cost in lowered.cost_of_row.items():
        spans = cost.spans(rates)
        longest = max(spans.memory_s.values(), default=0.0)
        bound_of_row[row] = _ARITHMETIC if spans.compute_s >= longest else _MEMORY
    bandwidth = rates[device.far_memory]
    collective = np.flatnonzero(program.kind == program.kind_names.index(COLLECTIVE))
    taken = np.zeros((program.n_tasks, 2))
    degrees = {"tensor": plan.tensor, "context": plan.context, "expert": plan.expert}
    labels = program.label_names
    for task in collective.tolist():
        row = int(program.cost[task])
        talk = lowered.talks.get((row, labels[program.label[task]]))
        time_s = timeline.end_s[task] - timeline.start_s[task]
        if talk is None or talk.op not in _PASSES or not time_s:
            continue
        n = degrees.get(lowered.dimension_of_row.get(row, ""), plan.data)
        wire = talk.size_bytes * (n - 1) / n * (2 if talk.op == "all-reduce" else 1) / time_s
        channels = min(max(wire / _CHANNEL_BYTES_PER_S, _CHANNELS[0]), _CHANNELS[1])
        taken[task] = channels / multiprocessors, _PASSES[talk.op] * wire / bandwidth
    bound = bound_of_row[program.cost]
    bound[collective] = -1
    return contended(timeline, np.minimum(taken, 0.9), bound)


def _multiprocessors(device: Device) -> int:
    """Number of multiprocessors, each with its register file; 0 where other engines send."""
    if any(engine.kind == "systolic" for engine in device.engines.values()):
        return 0
    files = [level.instances.value for level in device.memory.values() if level.kind == "registers"]
    return max(files, default=0)
