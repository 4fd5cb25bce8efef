"""Price one op on one device: time = latency + max(arithmetic, traffic at each memory level).

This is the roofline with measured efficiencies, applied per op (Williams, Waterman, Patterson,
"Roofline", CACM 52(4), 2009), with the tile reuse of `traffic`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

from ridgeline.hardware.device import Device
from ridgeline.kernels import depthwise, dies, im2col, row_blocked_gemm, winograd
from ridgeline.kernels.cache_residency import Found, keeping, passing, stayed, unheld_of
from ridgeline.kernels.contraction_time import ENGINE_MODELS, ContractionProblem, EngineTime
from ridgeline.kernels.cost import EXCHANGE, NOTHING, OpCost, OperandBytes
from ridgeline.kernels.cpu_cores import latency_of
from ridgeline.kernels.dtype_emulation import Kernels, done_by, kernels_for
from ridgeline.kernels.efficiency_table import (
    achievable_shares,
    engines_with_kernels,
    is_calibrated,
    keys_of,
)
from ridgeline.kernels.explicit_mapping import MAPPED_MODELS, mappable
from ridgeline.kernels.generation_calls import with_library_call
from ridgeline.kernels.mapping.mapping_file import MappingFile
from ridgeline.kernels.op_cost_terms import Common
from ridgeline.kernels.op_signature import OpSignature, described
from ridgeline.kernels.power_capped_clock import PowerLimit
from ridgeline.kernels.processors import OneKernel, in_waves, kernels_of
from ridgeline.kernels.sparsity import effect_of
from ridgeline.kernels.traffic import (
    FAST,
    WAVES,
    Operands,
    SearchOptions,
    accumulator_of,
    cache_bytes,
    held_accumulators,
    near_levels,
)
from ridgeline.workload.formats import bytes_of
from ridgeline.workload.graph import Graph, Op


def price(
    op: Op,
    graph: Graph,
    device: Device,
    given: MappingFile | None = None,
    search: SearchOptions = FAST,
    found: Found | None = None,
) -> OpCost:
    """Return what an op of a graph costs on a device.

    Parameters
    ----------
    given
        A mapping file, for a contraction: what it settles of the layout.
    search
        How a mapping is searched for, where the device has buffers that need one.
    found
        In which of the caches that keep tensors the op finds its operands (`cache_residency`);
        None: each comes from the farthest memory.

    Raises
    ------
    RidgelineError
        If no engine of the device does this work in this number format.
    """
    return price_all((described(op, graph, found),), device, given, search)[0]


def price_all(
    kinds: Sequence[OpSignature],
    device: Device,
    given: MappingFile | None = None,
    search: SearchOptions = FAST,
) -> list[OpCost]:
    """Return what ops cost on a device; as `price`, but all contractions are looked at together."""
    if device.dies is not None and device.dies.count.value > 1:
        return _on_dies(kinds, device, given, search)
    common = Common(device)
    costs: dict[OpSignature, OpCost] = {}
    able: dict[str, Kernels] = {}
    contractions: dict[str, list[OpSignature]] = {}
    converted = device.converted
    for kind in kinds:
        if kind.gemm is None:
            costs[kind] = common.power.limited(common.streaming(kind))
            continue
        assert kind.op is not None
        kernels = done_by(device, converted, kind.format, kind.op)
        if kernels not in able:
            able[kernels] = kernels_for(device, kernels, kind.op)
        contractions.setdefault(kernels, []).append(kind)
    for kernels, alike in contractions.items():
        machine, names, format_ = able[kernels]
        if given is not None:
            names = mappable(machine, names, given)
        free = _on_engines(alike, machine, names, format_, given, search, device)
        for kind, able_to in zip(alike, free, strict=True):
            more = () if given is not None else _by_winograd(kind, machine, names, format_)
            assert kind.op is not None
            if given is None:
                done = _within_limit(kind, able_to, machine, format_, common)
            else:
                done = [(name, common.power.limited(cost)) for name, cost in able_to.items()]
            limited = ((name, common.power.limited(cost)) for name, cost in more)
            costs[kind] = _fastest([*done, *limited], common.rates, machine, format_)
            if given is None and im2col.applies(kind.op):
                costs[kind] = _image_by_image(kind, common, machine, names, format_)
            elif row_blocked_gemm.applies(kind.op):
                costs[kind] = _piece_by_piece(kind, common, machine, names, format_)
            elif given is None and depthwise.applies(kind.op):
                costs[kind] = _by_channel(kind, common, costs[kind])
    return [with_library_call(kind, costs[kind], device, common.rates) for kind in kinds]


def _on_dies(
    kinds: Sequence[OpSignature], device: Device, given: MappingFile | None, search: SearchOptions
) -> list[OpCost]:
    """Price ops on a package of several dies; parts of all contractions are looked at together."""
    package = dies.Package(device)
    if given is not None:
        dies.refuse_mapping(package.dies)
    products = [kind for kind in kinds if kind.gemm is not None]
    cut = list(dies.parts_of(list(dict.fromkeys(products)), package))
    parts = list(dict.fromkeys(part for _, _, each in cut for part in each))
    price_of = dict(zip(parts, price_all(parts, package.die, None, search), strict=True))
    found = {
        kind: package.best(kind, cuts, [price_of[part] for part in each])
        for kind, cuts, each in cut
    }
    others = list(dict.fromkeys(kind for kind in kinds if kind.gemm is None))
    for kind, cost in zip(others, price_all(others, package.together), strict=True):
        found[kind] = package.streamed(cost)
    power = PowerLimit(device, package.rates)
    return [power.limited(found[kind]) for kind in kinds]


def _by_channel(kind: OpSignature, common: Common, tiled: OpCost) -> OpCost:
    """Return the price of a depthwise convolution: of its own kernel, where there is one."""
    name = depthwise.engine_for(common.device)
    if name is None:
        return tiled
    assert kind.op is not None
    assert kind.graph is not None
    key = f"{name}.{depthwise.FORMAT}"
    op, streamed = kind.op, common.streaming(kind)  # which others may share
    flops, loads = op.matrix_flops, depthwise.nearer_bytes(op, kind.graph, common.device)
    cost = common.with_levels(
        replace(
            streamed,
            engine_work={
                **streamed.engine_work,
                key: streamed.engine_work.get(key, 0.0) + flops * depthwise.integers(op),
            },
            flops={**streamed.flops, key: streamed.flops.get(key, 0.0) + flops},
            traffic_bytes={
                level: max(size, loads.get(level, 0.0))
                for level, size in streamed.traffic_bytes.items()
            },
            level_work={},
        )
    )
    return common.power.limited(cost)


def _image_by_image(
    kind: OpSignature, common: Common, machine: Device, names: Sequence[str], format_: str
) -> OpCost:
    """Return the price of a convolution whose library unfolds one image after the other."""
    assert kind.op is not None
    assert kind.graph is not None
    work = im2col.unfolded(kind.op, kind.graph)
    product = (described(work.product, work.graph),)
    able = [(name, _on_engine(product, machine, name, format_, None, FAST)[0]) for name in names]
    fastest = _fastest(able, common.rates, machine, format_)
    cost = im2col.together(work, fastest, common.device)
    return common.power.limited(cost)


def _piece_by_piece(
    kind: OpSignature, common: Common, machine: Device, names: Sequence[str], format_: str
) -> OpCost:
    """Return the price of pieces of a product, one after the other."""
    assert kind.op is not None
    assert kind.graph is not None
    one = (described(row_blocked_gemm.one_of(kind.op), kind.graph, kind.found),)
    able = [(name, _on_engine(one, machine, name, format_, None, FAST)[0]) for name in names]
    cost = _fastest(able, common.rates, machine, format_).times(kind.op.kernels)
    return common.power.limited(cost)


def _fastest(
    costs: Sequence[tuple[str, OpCost]], rates: Mapping[str, float], device: Device, format_: str
) -> OpCost:
    """Choose the fastest price of those on some engines, measured efficiencies first."""
    if len(costs) == 1:
        return costs[0][1]
    _, best = min(
        costs,
        key=lambda one: (
            not _is_measured(one[1], device, one[0], format_), one[1].spans(rates).time_s
        ),
    )  # fmt: skip
    return best


def _is_measured(cost: OpCost, device: Device, engine: str, format_: str) -> bool:
    """Tell whether a price rests on a measured share; cycles of arrays are counted, not measured.

    A measured price is preferred to what another engine does at its peak. A counted one is a bound
    as that is, and the faster of two bounds is the bound.
    """
    return cost.calibrated and is_calibrated(device, engine, format_)


def _on_engines(
    kinds: Sequence[OpSignature],
    machine: Device,
    names: Sequence[str],
    format_: str,
    given: MappingFile | None,
    search: SearchOptions,
    device: Device,
) -> list[dict[str, OpCost]]:
    """Price contractions at full clock on each engine that has kernels for them.

    An engine of which no share was measured is not asked about what another one does at a measured
    share, which is preferred whatever it takes.
    """
    found: list[dict[str, OpCost]] = [{} for _ in kinds]
    for name in sorted(names, key=lambda name: not is_calibrated(machine, name, format_)):
        known = is_calibrated(machine, name, format_)
        asked = [
            at
            for at, (kind, costs) in enumerate(zip(kinds, found, strict=True))
            if kind.op is not None
            and name in engines_with_kernels(kind.op, names, device)
            and (
                known
                or not any(_is_measured(cost, machine, by, format_) for by, cost in costs.items())
            )
        ]
        if asked:
            costs = _on_engine([kinds[at] for at in asked], machine, name, format_, given, search)
            for at, cost in zip(asked, costs, strict=True):
                found[at][name] = cost
    return found


def _within_limit(
    kind: OpSignature, free: Mapping[str, OpCost], device: Device, format_: str, common: Common
) -> list[tuple[str, OpCost]]:
    """Return each engine with what an op costs on it, at the clock that the power limit leaves.

    A kernel that is slower at full clock, and moves less, may be faster then. Without this, an op
    on a device with more bandwidth could be slower: its fastest kernel would be one that draws
    more. All are looked at that at full clock take less than the best one takes within the limit,
    of the same engine or of one that is preferred to it.

    Parameters
    ----------
    free
        Engine -> what the op costs there at full clock, by the kernel that is fastest then.
    """
    power, rates = common.power, common.rates
    found = {name: power.limited(cost) for name, cost in free.items()}
    times = {name: cost.spans(rates).time_s for name, cost in found.items()}
    for name in sorted(found, key=times.__getitem__):
        cost = free[name]
        if device.engines[name].kind not in WAVES or times[name] <= cost.spans(rates).time_s:
            continue
        assert kind.op is not None
        (job,) = _jobs([kind], device, name, format_)
        smaller = min(1.0, cost.issued, *cost.stored) * unmasked(kind.op)  # by zeros and masks
        beside_s = min(
            (
                times[other]
                for other, cost in found.items()
                if other != name
                and (
                    _is_measured(cost, device, other, format_)
                    or not is_calibrated(device, name, format_)
                )
            ),
            default=math.inf,
        )
        for least_s, one in kernels_of(job, device, name, format_):
            if smaller * least_s >= times[name] or smaller * least_s > beside_s:
                break
            (tried,) = _on_engine([kind], device, name, format_, None, FAST, one)
            tried = power.limited(tried)
            time_s = tried.spans(rates).time_s
            if time_s < times[name]:
                times[name], found[name] = time_s, tried
    return list(found.items())


def _jobs(
    kinds: Sequence[OpSignature], device: Device, name: str, format_: str
) -> list[ContractionProblem]:
    engine = device.engines[name]
    held = held_accumulators(device, accumulator_of(engine, format_))
    cache, levels = cache_bytes(device), len(keeping(device))
    grouped = engine.kind in WAVES and not device.achievable
    return [
        ContractionProblem(
            kind.op,
            kind.operands(held, cache, _kept(kind, levels), grouped=grouped),
        )
        for kind in kinds
        if kind.op is not None
    ]


def _on_engine(
    kinds: Sequence[OpSignature],
    device: Device,
    name: str,
    format_: str,
    given: MappingFile | None,
    search: SearchOptions,
    only: OneKernel | None = None,
) -> list[OpCost]:
    """Price contractions on one engine; of processors, by one kernel where that is given."""
    engine, jobs = device.engines[name], _jobs(kinds, device, name, format_)
    if only is not None:
        dense = in_waves(jobs, device, name, format_, search, only)
    elif given is None:
        dense = ENGINE_MODELS[engine.kind](jobs, device, name, format_, search)
    else:
        mapped = MAPPED_MODELS[engine.kind]
        dense = [mapped(*job, device, name, format_, given) for job in jobs]
    priced = _Assembly(device, name, format_)
    launches = priced.launches([job.op for job in jobs])
    return [
        priced.cost(kind, job.operands, busy, launch_s)
        for kind, job, busy, launch_s in zip(kinds, jobs, dense, launches, strict=True)
    ]


def _kept(kind: OpSignature, levels: int) -> OperandBytes:
    """Bytes of a contraction that levels before the farthest memory have kept from other ops."""
    if kind.found is None or kind.op is None or kind.graph is None:
        return NOTHING
    passed = passing(kind.op, kind.graph, kind.found, levels)
    return passed[0].less(passed[-1])


class _Assembly:
    """Puts prices on one engine together of how long it is busy."""

    def __init__(self, device: Device, name: str, format_: str) -> None:
        self.common, self.key = Common(device), f"{name}.{format_}"
        self.engine, self.far, self.name = device.engines[name], device.far_memory, name
        self.format, self.kept = format_, keeping(device)
        self.near = tuple(near_levels(device))
        self.alike = all(row.latency is None for row in device.achievable)  # to be launched
        self.registers = tuple(
            name for name, level in device.memory.items() if level.kind == "registers"
        )
        shape, size = self.engine.instruction, bytes_of(format_)
        self.macs = shape.m * shape.n * shape.k
        self.instruction = OperandBytes(
            a=shape.m * shape.k * size,
            b=shape.n * shape.k * size,
            rest=0.0,
            partial=2 * shape.m * shape.n * bytes_of(accumulator_of(self.engine, format_)),
        )

    def cost(
        self, kind: OpSignature, operands: Operands, dense: EngineTime, launch_s: float
    ) -> OpCost:
        """Return the price of a contraction, less what its zeros save."""
        op, graph = kind.op, kind.graph
        assert op is not None
        assert graph is not None
        zeros = effect_of(op, graph, self.engine, operands.gemm)
        done, flops = unmasked(op), kind.flops
        peak_flops = dense.peak_flops * done * zeros.issued
        near = dense.near if done == 1.0 else OperandBytes(*(done * part for part in dense.near))
        moved = dict.fromkeys(self.near, zeros.moved(near))  # of computed tiles alone
        for level, by_operand in dense.nearer.items():
            moved[level] = zeros.moved(by_operand)
        waiting_s = dense.waiting_s
        if dense.far is None:
            far = operands.far
        else:
            far = _beyond(dense.far, operands.kept, op, graph, kind.found, len(self.kept))
            waiting_s = _waits(dense, far)
        kept_bytes: dict[str, float] = {}
        if kind.found is not None:
            passed = passing(op, graph, kind.found, len(self.kept))
            self._keep(moved, passed)
            kept_bytes = stayed(passed, self.kept)
        moved[self.far] = zeros.moved(far)
        registers = self._in_registers(flops * zeros.issued * done, operands, dense)
        for level in self.registers:
            moved[level] = registers
        launch_s = launch_s if dense.start_s is None else dense.start_s
        parts = dense.latency_parts
        if waiting_s < dense.waiting_s:  # with what is kept, all of the waiting shrinks alike
            parts = parts.times(waiting_s / dense.waiting_s)
        cost = OpCost(
            latency_s=launch_s + dense.latency_s - (dense.waiting_s - waiting_s),
            engine_work={self.key: peak_flops},
            flops={self.key: flops * zeros.worked * done},
            traffic_bytes={level: by_operand.total for level, by_operand in moved.items()},
            moved=moved,
            useful=zeros.useful,
            issued=zeros.issued,
            stored=(zeros.a_stored, zeros.b_stored),
            notes=zeros.notes,
            waiting_s=waiting_s,
            overlap=dense.overlap,
            calibrated=dense.calibrated,
            mapping=dense.mapping,
            mapped=dense.mapped,
            latency_parts=parts.launched(launch_s),
            engine_shares=dense.engine_shares,
            tile=dense.tile,
            kept_bytes=kept_bytes,
        )
        if dense.exchanged_bytes:
            cost.traffic_bytes[EXCHANGE] = dense.exchanged_bytes
        if op.vector_flops:  # a fused epilogue: bias, scaling
            if not self.common.does_vector(op):
                written = 2.0 * sum(graph.tensors[name].bytes for name in op.outputs)
                cost = self.common.with_levels(cost)
                return self.common.with_levels(self.common.add_in_host(cost, op, written))
            self.common.add_vector(cost, op)
        cost = self.common.with_levels(cost)
        return cost if dense.copying_s is None else _waiting(cost, dense.copying_s, self.common)

    def _keep(self, moved: dict[str, OperandBytes], passed: Sequence[OperandBytes]) -> None:
        """Let levels pass what nearer ones have not kept of an op's operands.

        Caches of a processor pass each operand once, whatever its library copies besides.
        """
        if self.engine.kind == "cores":
            moved |= dict(zip(self.kept, passed, strict=False))
            return
        nearer = 0
        for level in self.near:
            if nearer:
                moved[level] = moved[level].less(passed[0].less(passed[nearer]))
            nearer += level in self.kept

    def launches(self, ops: Sequence[Op]) -> list[float]:
        """Return the seconds in which each op is launched."""
        if self.alike:
            return [self.common.launch_s] * len(ops)
        device = self.common.device
        rows = achievable_shares(ops, device, self.name, self.format)
        return [latency_of(row, device) for row in rows]

    def _in_registers(self, flops: float, operands: Operands, dense: EngineTime) -> OperandBytes:
        """Bytes of registers that instructions, or arrays, read and write for so many FLOPs."""
        if dense.registers is not None:
            gemm = operands.gemm
            done = flops / (2.0 * gemm.batch * gemm.m * gemm.n * gemm.k)
            return OperandBytes(*(done * size for size in dense.registers))
        count, each = flops / (2 * self.macs), self.instruction
        return OperandBytes(count * each.a, count * each.b, 0.0, count * each.partial)


def _beyond(
    far: OperandBytes, kept: OperandBytes, op: Op, graph: Graph, found: Found | None, levels: int
) -> OperandBytes:
    """Bytes that pass the farthest memory of those that an engine's own model counts.

    The model brings tiles of an operand as often as they fit; what lies in a buffer is brought from
    there every time, and sums that are not finished are put there. What processing elements hold is
    counted by the model of their engine.
    """
    if unheld_of(found) is not None or found is None:
        return far
    at = dict(zip((*op.inputs, *op.outputs), found, strict=True))
    a, b = (far[i] if at[name] >= levels else 0.0 for i, name in enumerate(op.inputs[:2]))
    partial = far.partial if at[op.outputs[0]] >= levels else 0.0
    return OperandBytes(a, b, max(far.rest - kept.rest, 0.0), partial)


def _waits(dense: EngineTime, far: OperandBytes) -> float:
    """Return how long an engine waits for buffers where less than all passes the farthest memory.

    Stalls behind that memory shrink as its bytes do, those between nearer levels stay.
    """
    before = 0.0 if dense.far is None else dense.far.total
    if not dense.waiting_s or far.total >= before:
        return dense.waiting_s
    nearer_s = 0.0 if dense.mapped is None else dense.mapped[0].nearer_stall_s
    nearer_s = min(nearer_s, dense.waiting_s)
    return nearer_s + (dense.waiting_s - nearer_s) * (far.total / before)


def _waiting(cost: OpCost, copying_s: float, common: Common) -> OpCost:
    """Let arithmetic wait for operands that memory brings more slowly than they are copied.

    Panels are copied, then multiplied: the op takes its arithmetic and the longer of copying and
    memory, where memory alone would be hidden behind both.
    """
    spans = cost.spans(common.rates)
    memory_s = max(spans.memory_s.values(), default=0.0)
    waiting_s = max(0.0, min(memory_s, spans.compute_s) - copying_s)
    parts = cost.latency_parts
    if waiting_s > 0.0 and parts is not None:
        longest = max(spans.memory_s, key=spans.memory_s.__getitem__)
        parts = parts.with_stall(longest, waiting_s)
    return replace(
        cost, latency_s=cost.latency_s + waiting_s, waiting_s=waiting_s, latency_parts=parts
    )


def _by_winograd(
    kind: OpSignature, device: Device, able: Sequence[str], format_: str
) -> list[tuple[str, OpCost]]:
    """Price a convolution with those kernels of Winograd's that the engines have."""
    op, graph = kind.op, kind.graph
    assert op is not None
    assert graph is not None
    found = []
    for name in able:
        kernels = device.engines[name].winograd
        if kernels is not None and format_ in kernels.formats and winograd.applies(op):
            found += [
                (name, _winograd(op, graph, device, name, kind, outputs, format_))
                for outputs in kernels.outputs
            ]
    return found


def _winograd(
    op: Op, graph: Graph, device: Device, name: str, direct: OpSignature, outputs: int, format_: str
) -> OpCost:
    """Price a convolution as transforms and matrix products on one engine."""
    products, transformed = winograd.as_products(op, graph, outputs)
    (cost,) = _on_engine((described(products, transformed),), device, name, format_, None, FAST)
    engine = device.engines[name]
    kernels = engine.winograd
    assert kernels is not None
    held = held_accumulators(device, accumulator_of(engine, format_))
    far = direct.operands(held, cache_bytes(device)).far
    if not kernels.fused:  # what is transformed is written, and read by the products; then theirs
        again, sizes = cost.moved[device.far_memory], transformed.tensors
        far = OperandBytes(
            direct.a_bytes + sizes["inputs"].bytes + again.a,
            direct.b_bytes + sizes["filters"].bytes + again.b,
            direct.rest_bytes + sizes["products"].bytes + again.rest,
            again.partial,
        )
    moved = {**cost.moved, device.far_memory: far}
    cost = replace(
        cost,
        moved=moved,
        traffic_bytes={level: by_operand.total for level, by_operand in moved.items()},
        issued=products.matrix_flops / op.matrix_flops,
        notes=(*cost.notes, f"Winograd F({outputs} x {outputs}, 3 x 3): {kernels.source}"),
    )
    return Common(device).with_levels(cost)


def unmasked(op: Op) -> float:
    """Share of the tiles of scores that fused attention computes; separate ops compute all."""
    if op.kind != "flash-attention":
        return 1.0
    met, columns = keys_of(op)
    return met / columns
