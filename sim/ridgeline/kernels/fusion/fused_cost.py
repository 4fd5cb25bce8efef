"""Price of a fused group as one op of a step: its time, and the events of each of its layers.

The pieces of a layer count as often as they are computed. What the group loads counts to the layer
that reads it first, what it stores to the one that makes it.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from ridgeline.hardware.device import Device
from ridgeline.hardware.dies import DIE_LINKS
from ridgeline.kernels.cost import NOTHING, OpCost, OperandBytes, peak_rates
from ridgeline.kernels.fusion.groups import FusedPiece, FusionPricer, GroupPlay, stored_bytes
from ridgeline.kernels.fusion.line_buffers import RowSchedule, row_schedule
from ridgeline.kernels.fusion.pipeline_beats import Cores, PipelineBeats
from ridgeline.kernels.fusion.regions import WHOLE, sum_bytes
from ridgeline.kernels.latency_parts import EngineShares, LatencyParts
from ridgeline.workload.fused_op import FusedOp
from ridgeline.workload.graph import Graph, Op


class CountedPiece(NamedTuple):
    """A piece of a layer, and how often it is computed."""

    place: int
    piece: FusedPiece
    times: int


def fused_cost(op: FusedOp, device: Device) -> OpCost:
    """Return what the layers of a fused op cost on a device.

    Raises
    ------
    RidgelineError
        If no level of the device keeps tensors, or no engine does the work.
    """
    assert op.layers is not None
    assert op.how is not None
    how, graph = op.how, op.layers.graph
    pricer = FusionPricer(graph, device, op.results)
    region = pricer.region(0, len(graph.ops))
    assert region is not None
    schedule = row_schedule(region, how.rows, how.halo)
    if how.cores > 1:
        on = Cores(pricer, how.cores)
        beats = PipelineBeats(on, schedule, how.weights, how.core_of)
        play, pricing = beats.play(on.work(0, schedule)), on.core
    else:
        play, pricing = pricer.play(0, schedule, how.weights)[0], pricer
    pieces = [
        CountedPiece(place, piece, graph.batch * int(where.sum()))
        for place, piece, where in pricing.pieces(0, schedule)
    ]
    moved = _moved(pricer, schedule, play, how.weights)
    parts = [
        _part([p for p in pieces if p.place == place], moved[place], pricer, device)
        for place in range(len(graph.ops))
    ]
    return _together(parts, pieces, play, pricing, device, how.cores)


def _moved(
    pricer: FusionPricer, schedule: RowSchedule, play: GroupPlay, weights: str
) -> list[OperandBytes]:
    """Return what each layer loads and stores of the far memory, for all samples."""
    region, graph, batch = schedule.region, pricer.graph, pricer.graph.batch
    sizes = stored_bytes(region)
    moved = [[0.0, 0.0, op.sum_bytes] for op in region.ops]  # first, second, other operands
    for t, (tensor, made) in enumerate(zip(region.tensors, schedule.made, strict=True)):
        rows = batch * float(made.rows.sum())
        if tensor.producer >= 0:
            moved[tensor.producer][2] += rows * sizes[t]
            continue
        first = next(i for i, op in enumerate(region.ops) if t in {r.tensor for r in op.reads})
        at = graph.ops[first].inputs.index(tensor.name)
        moved[first][min(at, 2)] += rows * tensor.row_bytes
    often = 1 if weights == "held" else batch * schedule.steps
    for place, op in enumerate(graph.ops if pricer.takes_weights else ()):
        for at, name in enumerate(op.inputs):
            if graph.tensors[name].role in WHOLE:
                moved[place][min(at, 2)] += often * graph.tensors[name].bytes
    found = [OperandBytes(*each) for each in moved]
    # Dies that read the same rows each load them from their own memory.
    copies = play.moved_bytes / total if (total := sum(each.total for each in found)) else 1.0
    return [OperandBytes(*(copies * size for size in each)) for each in found]


def _part(
    pieces: Sequence[CountedPiece], moved: OperandBytes, pricer: FusionPricer, device: Device
) -> OpCost:
    """Sum the events of a layer: its pieces, its loads and stores, sums that pieces add to."""
    flops, traffic, kept = _zeros(), _zeros(), _zeros()
    by_operand: dict[str, OperandBytes] = {}
    for place, piece, count in pieces:
        cost = piece.cost
        for counts, more in (
            (flops, cost.flops), (traffic, cost.traffic_bytes), (kept, cost.kept_bytes)
        ):  # fmt: skip
            _add(counts, more, count)
        for level in cost.traffic_bytes:
            own = cost.moved.get(level)
            if own is None:
                op = pricer.graph.ops[place]
                own = _by_operand(op, pricer.graph, cost.traffic_bytes[level])
            by_operand[level] = _plus(by_operand.get(level, NOTHING), own, count)
        again = count * sum_bytes(pricer.graph.ops[place], pricer.graph)
        traffic[pricer.level] += again
        by_operand[pricer.level] = _plus(
            by_operand.get(pricer.level, NOTHING), OperandBytes(0.0, 0.0, again)
        )
    for level in (pricer.level, device.far_memory):
        traffic[level] += moved.total
        by_operand[level] = _plus(by_operand.get(level, NOTHING), moved)
    return OpCost(
        0.0,
        flops=dict(flops),
        traffic_bytes={level: size for level, size in traffic.items() if size},
        moved=by_operand,
        kept_bytes=dict(kept),
    )


def _by_operand(op: Op, graph: Graph, size: float) -> OperandBytes:
    """Split bytes that an op streams in the ratio of its operands' sizes."""
    inputs = [float(graph.tensors[name].bytes) for name in op.inputs]
    total = math.fsum((*inputs, *(graph.tensors[name].bytes for name in op.outputs)))
    a, b = (size * part / total for part in (*inputs, 0.0, 0.0)[:2]) if total else (0.0, 0.0)
    return OperandBytes(a, b, size - a - b)


def _zeros() -> defaultdict[str, float]:
    return defaultdict(float)


def _add(counts: dict[str, float], more: Mapping[str, float], times: float = 1.0) -> None:
    """Add amounts so many times to a `_zeros`."""
    for name, amount in more.items():
        counts[name] += times * amount


def _plus(one: OperandBytes, more: OperandBytes, times: float = 1.0) -> OperandBytes:
    return OperandBytes(*(a + times * b for a, b in zip(one, more, strict=True)))


def _together(
    parts: Sequence[OpCost], pieces: Sequence[CountedPiece], play: GroupPlay,
    pricing: FusionPricer, device: Device, cores: int,
) -> OpCost:  # fmt: skip
    """Return the price of all layers: a time that is told apart, and the sums of all events."""
    rates = peak_rates(device)
    level_work, saved = _zeros(), _zeros()
    flops, traffic, kept = _zeros(), _zeros(), _zeros()
    for part in parts:
        for counts, more in (
            (flops, part.flops), (traffic, part.traffic_bytes), (kept, part.kept_bytes)
        ):  # fmt: skip
            _add(counts, more)
    far, near = device.far_memory, pricing.level
    traffic[near] += 2 * play.copied_bytes
    if play.link_bytes:
        traffic[DIE_LINKS] += play.link_bytes
    time = LatencyParts(launch_s=play.launch_s, fill_s=play.fill_s, drain_s=play.drain_s)
    time = time._replace(barrier_s=play.barrier_s, exchange_s=play.exchange_s)
    stalls = _zeros()
    stalls[far] = play.stall_s
    engine_s = _zeros()
    passed_bytes = play.moved_bytes + 2 * play.copied_bytes
    for place, piece, count in pieces:
        cost, often = piece.cost, count / cores
        _add(level_work, cost.level_work, count)
        _add(saved, cost.saved_j, count)
        spans = cost.spans(pricing.rates)
        own = cost.latency_parts or LatencyParts(cost.latency_s)
        time = time.plus(
            own._replace(launch_s=own.launch_s - pricing.launched_s(cost)).times(often)
        )
        level, slowest_s = max(
            spans.memory_s.items(), key=lambda one: one[1], default=(near, 0.0)
        )  # fmt: skip
        _add(stalls, {level: max(0.0, slowest_s - spans.compute_s) - own.streamed_s}, often)
        again = sum_bytes(pricing.graph.ops[place], pricing.graph)
        passed_bytes += count * again
        _add(stalls, {near: again / pricing.near_rate}, often)
        if cost.engine_work:
            _add(engine_s, {next(iter(cost.engine_work)): spans.compute_s}, often)
    _add(stalls, {near: play.passed_s})
    for level, size in ((near, passed_bytes), (far, play.moved_bytes)):
        if level in rates:
            level_work[level] += size / device.memory[level].achievable.value
    for level, time_s in time.stall_s:
        stalls[level] += time_s
    compute_s = math.fsum(engine_s.values())
    main = max(engine_s, key=lambda name: engine_s[name], default="")
    longest_s = max(
        (size / rates[level] for level, size in level_work.items() if level in rates), default=0.0
    )
    time = time._replace(
        stall_s=tuple((level, time_s) for level, time_s in stalls.items() if time_s),
        streamed_s=max(0.0, longest_s - compute_s),
    )
    latency_s = max(0.0, play.time_s - max(compute_s, longest_s))
    busy_s = play.launch_s + time.barrier_s + time.exchange_s + time.copy_s
    return OpCost(
        latency_s,
        {main: compute_s * rates[main]} if main else {},
        dict(level_work),
        dict(flops),
        dict(traffic),
        waiting_s=min(latency_s, max(0.0, latency_s - busy_s)),
        calibrated=all(piece.cost.calibrated for _, piece, _ in pieces),
        issued=_of_flops(pieces, [piece.cost.issued for _, piece, _ in pieces]),
        useful=_of_flops(pieces, [piece.cost.useful for _, piece, _ in pieces]),
        notes=tuple(dict.fromkeys(note for _, piece, _ in pieces for note in piece.cost.notes)),
        latency_parts=time,
        engine_shares=lambda: _shares(pieces, pricing, compute_s * cores),
        kept_bytes=dict(kept),
        saved_j=dict(saved),
        parts=tuple(parts),
    )


def _of_flops(pieces: Iterable[CountedPiece], shares: Sequence[float]) -> float:
    """Return the mean of shares of contractions, by their FLOPs."""
    flops = [
        count * math.fsum(piece.cost.flops.values()) * bool(piece.cost.moved)
        for _, piece, count in pieces
    ]
    done = math.fsum(flops)
    return math.fsum(a * b for a, b in zip(flops, shares, strict=True)) / done if done else 1.0


def _shares(
    pieces: Iterable[CountedPiece], pricing: FusionPricer, engine_s: float
) -> EngineShares:  # fmt: skip
    """Return the mean shares of the pieces, by the time that they keep their engine."""
    if not engine_s:
        return EngineShares()
    fill = drain = copy = exchange = 0.0
    stall = _zeros()
    for _, piece, count in pieces:
        cost = piece.cost
        own = cost.engine_shares() if callable(cost.engine_shares) else cost.engine_shares
        share = count * cost.spans(pricing.rates).compute_s / engine_s
        fill, drain = fill + share * own.fill, drain + share * own.drain
        copy, exchange = copy + share * own.copy, exchange + share * own.exchange
        _add(stall, {own.stall[0]: own.stall[1]}, share)
    level = max(stall, key=lambda name: stall[name])
    return EngineShares(fill, drain, copy, exchange, (level, stall[level]))
