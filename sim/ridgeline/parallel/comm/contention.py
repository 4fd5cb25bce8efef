"""Contention of communication with kernels: processors and memory bandwidth that it takes.

Whatever is sent is read from the far memory of a device and written to that of another, so it takes
as much of their bandwidth as the ledger counts, on every device and by every program. Ops beside it
have what is left; what asks for more than there is shares it evenly (`engine.contention`). Both
sides of a message are counted where it is sent: a stage gets about as much as it sends.

NCCL (`overlap.contention` of a software stack) runs one thread block for each channel, which holds
one multiprocessor while the collective goes on, and what it copies and adds up passes the device's
memory more often. Ops that are bound by arithmetic go on with the multiprocessors that are left
(S. Rashidi et al. measure both in "Enabling Compute-Communication Overlap in Distributed Deep
Learning Training Platforms", ISCA 2021, Section III).

A channel carries 10 GB/s: NCCL plans with 20 GB/s a NVLink (`SM70_NVLINK_BW` and `SM80_NVLINK_BW`
in src/graph/topo.h) and doubles the channels that it finds (`ncclTopoDupChannels` in
src/graph/search.cc). So it reports 12 on V100s with 120 GB/s, and 24 on A100s with 240 GB/s and on
H100s. Where links or payloads give less, fewer are at work. Kernels that exchange rows of experts
count as NCCL's: DeepEP takes 20 multiprocessors (Z. Yan et al., arXiv:2603.07685, Section 4.2.3),
HybridEP 32 in Megatron-Bridge's recipes (`moe_hybridep_num_sms`); another micro-batch may run
beside them (`Plan.overlap_expert`). Messages between stages and copies to the host take no
multiprocessors.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ridgeline.engine.contention import Demand, contended
from ridgeline.engine.program import Floats, Ints, Program
from ridgeline.engine.timeline import Timeline
from ridgeline.hardware.device import Device
from ridgeline.kernels.cost import peak_rates
from ridgeline.parallel.lower import COLLECTIVE, Lowered

_CHANNEL_BYTES_PER_S = 10e9
_CHANNELS = 2, 24  # at least: a ring each way; at most: those of A100s and H100s
# Times that a ring passes its bytes on the wire through the memory of a device. It reads its own
# part and what came, which was written there before; of what is gathered, only the latter two. Of
# an exchange what is sent is read, and what comes written.
_PASSES = {"all-reduce": 2.5, "reduce-scatter": 3.0, "all-gather": 2.0, "all-to-all": 2.0}


def with_contention(
    timeline: Timeline, lowered: Lowered, device: Device, *, channels: bool
) -> Timeline:
    """Slow what runs at the same time on a device where that asks for more than it has.

    Parameters
    ----------
    channels
        Whether collectives are kernels that hold multiprocessors (`overlap.contention`).
    """
    demand = demand_of(timeline, lowered, device, channels=channels)
    return timeline if demand is None else contended(timeline, demand)


def demand_of(
    timeline: Timeline, lowered: Lowered, device: Device, *, channels: bool
) -> Demand | None:
    """Return what tasks ask of what a device has once; None where nothing is sent."""
    program = timeline.program
    names = program.kind_names
    if COLLECTIVE not in names:
        return None
    collective = np.flatnonzero(program.kind == names.index(COLLECTIVE))
    if not len(collective):
        return None
    rates = peak_rates(device)
    n_rows, rate = len(program.event_ptr) - 1, rates[device.far_memory]
    devices = [device, *(kind.device for kind in lowered.kinds)]
    needs_s = _memory_s(program, devices)[program.cost]
    # what is sent is priced on the first kind of device, and waits for the slowest
    slowest = min(peak_rates(one)[one.far_memory] for one in devices)
    needs_s[collective] *= rate / slowest
    of_arithmetic, of_memory = np.zeros(n_rows, np.bool_), np.zeros(n_rows, np.bool_)
    for row, cost in lowered.cost_of_row.items():
        own = lowered.device_of_row(row, device)
        spans = cost.spans(rates if own is device else peak_rates(own))
        longest = max(spans.memory_s.values(), default=0.0)
        of_arithmetic[row] = spans.compute_s >= longest
        of_memory[row] = not of_arithmetic[row]
    taken, bound = np.zeros(program.n_tasks), np.zeros(program.n_tasks, np.bool_)
    multiprocessors = _multiprocessors(device) if channels else 0
    time_s = timeline.durations_s
    if multiprocessors:
        wire, passes = _traffic(timeline, collective, lowered)
        here_s = time_s[collective]
        speed = np.divide(wire, here_s, out=np.zeros(len(wire)), where=here_s > 0)
        held = np.clip(speed / _CHANNEL_BYTES_PER_S, *_CHANNELS) * (speed > 0)
        taken[collective] = held / multiprocessors
        bound = of_arithmetic[program.cost]
        bound[collective] = False
        needs_s[collective] = np.maximum(needs_s[collective], passes * wire / slowest)
    used = np.divide(needs_s, time_s, out=np.zeros_like(time_s), where=time_s > 0)
    if multiprocessors:  # a kernel that memory bounds has it for as long as it runs
        alone = of_memory[program.cost]
        alone[collective] = False
        used[alone] = 1.0
    return Demand(taken, bound, np.minimum(used, 1.0))


def _memory_s(program: Program, devices: Sequence[Device]) -> Floats:
    """Return [C] what each cost row needs of its device's far memory alone, in seconds."""
    names = {f"device/{device.far_memory}" for device in devices}
    far = np.array([name in names for name in program.resource_names], np.bool_)
    phase = np.repeat(np.arange(len(program.repeat)), np.diff(program.work_ptr))
    row = np.repeat(np.arange(len(program.phase_ptr) - 1), np.diff(program.phase_ptr))
    mine = far[program.work_resource]
    each_s = program.work_amount[mine] / program.capacity[program.work_resource[mine]]
    times = program.repeat[phase[mine]]
    n_rows = len(program.phase_ptr) - 1
    return np.bincount(row[phase[mine]], each_s * times, n_rows).astype(np.float64)


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
