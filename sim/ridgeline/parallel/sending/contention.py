"""What collectives take of the devices whose ops run beside them.

NCCL runs one thread block for each channel, which holds one multiprocessor while the collective
goes on, and what it copies and adds up passes the device's memory. Ops that are bound by arithmetic
go on with the multiprocessors that are left, ops that are bound by memory with what is left of its
bandwidth (S. Rashidi et al. measure both in "Enabling Compute-Communication Overlap in Distributed
Deep Learning Training Platforms", ISCA 2021, Section III).

A channel carries 10 GB/s: NCCL plans with 20 GB/s a NVLink (`SM70_NVLINK_BW` and `SM80_NVLINK_BW`
in src/graph/topo.h) and doubles the channels that it finds (`ncclTopoDupChannels` in
src/graph/search.cc). So it reports 12 on V100s with 120 GB/s, and 24 on A100s with 240 GB/s and on
H100s. Where links or payloads give less, fewer are at work. Kernels that exchange rows of experts
count as NCCL's: DeepEP takes 20 multiprocessors (Z. Yan et al., arXiv:2603.07685, Section 4.2.3),
HybridEP 32 in Megatron-Bridge's recipes (`moe_hybridep_num_sms`); another micro-batch may run
beside them (`Plan.overlap_expert`). Messages between stages and copies to the host slow nothing.
"""

from __future__ import annotations

import numpy as np

from ridgeline.engine.contention import contended
from ridgeline.engine.program import Floats, Ints
from ridgeline.engine.timeline import Timeline
from ridgeline.hardware.device import Device
from ridgeline.kernels.cost import peak_rates
from ridgeline.parallel.lower import COLLECTIVE, Lowered

_CHANNEL_BYTES_PER_S = 10e9
_CHANNELS = 2, 24  # at least: a ring each way; at most: those of A100s and H100s
_MOST = 0.9  # of what bounds an op: something is always left
_ARITHMETIC, _MEMORY = range(2)
# Times that a ring passes its bytes on the wire through the memory of a device. It reads its own
# part and what came, which was written there before; of what is gathered, only the latter two. Of
# an exchange what is sent is read, and what comes written.
_PASSES = {"all-reduce": 2.5, "reduce-scatter": 3.0, "all-gather": 2.0, "all-to-all": 2.0}


def with_contention(timeline: Timeline, lowered: Lowered, device: Device) -> Timeline:
    """Slow the ops that run beside collectives; on a device without multiprocessors, none."""
    multiprocessors = _multiprocessors(device)
    program = timeline.program
    if not multiprocessors or not lowered.talks:
        return timeline
    rates = peak_rates(device)
    n_rows = len(program.event_ptr) - 1
    bound_of_row = np.full(n_rows, -1)
    for row, cost in lowered.cost_of_row.items():
        own = lowered.device_of_row(row, device)
        spans = cost.spans(rates if own is device else peak_rates(own))
        longest = max(spans.memory_s.values(), default=0.0)
        bound_of_row[row] = _ARITHMETIC if spans.compute_s >= longest else _MEMORY
    collective = np.flatnonzero(program.kind == program.kind_names.index(COLLECTIVE))
    wire, passes = _traffic(timeline, collective, lowered)
    time_s = timeline.durations_s[collective]
    speed = np.divide(wire, time_s, out=np.zeros(len(wire)), where=time_s > 0)
    channels = np.clip(speed / _CHANNEL_BYTES_PER_S, *_CHANNELS) * (speed > 0)
    taken = np.zeros((program.n_tasks, 2))
    taken[collective, _ARITHMETIC] = channels / multiprocessors
    taken[collective, _MEMORY] = passes * speed / rates[device.far_memory]
    bound = bound_of_row[program.cost]
    bound[collective] = -1
    return contended(timeline, np.minimum(taken, _MOST), bound)


def _traffic(timeline: Timeline, collective: Ints, lowered: Lowered) -> tuple[Floats, Floats]:
    """Return what each task's devices send, in bytes, and how often that passes their memory."""
    program = timeline.program
    n_labels = len(program.label_names)
    keys = program.cost[collective].astype(np.int64) * n_labels + program.label[collective]
    distinct, which = np.unique(keys, return_inverse=True)
    known = np.zeros((len(distinct), 2))
    for i, (row, label) in enumerate(divmod(key, n_labels) for key in distinct.tolist()):
        talk = lowered.talks.get((row, program.label_names[label]))
        if talk is not None and talk.op in _PASSES:
            twice = 2 if talk.op == "all-reduce" else 1
            sent = twice * talk.size_bytes * (talk.ranks - 1) / talk.ranks
            known[i] = sent, _PASSES[talk.op]
    found = known[which]
    return found[:, 0], found[:, 1]


def _multiprocessors(device: Device) -> int:
    """Return the number of multiprocessors; 0 where the engines that compute send nothing."""
    if any(engine.kind == "systolic" for engine in device.engines.values()):
        return 0
    files = [level.instances.value for level in device.memory.values() if level.kind == "registers"]
    return max(files, default=0)
