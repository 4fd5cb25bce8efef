"""Cost terms that all ops on a device share, and the cost of streaming ops."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache
from typing import NamedTuple

from ridgeline.errors import RidgelineError
from ridgeline.hardware.device import Device, Work
from ridgeline.hardware.host_processor import HOST, HOST_LINK, HOST_MEMORY
from ridgeline.kernels.cache_residency import keeping, passing, stayed
from ridgeline.kernels.cost import OpCost, OperandBytes, peak_rates
from ridgeline.kernels.latency_parts import LatencyParts
from ridgeline.kernels.measured_kernels import kernel_of
from ridgeline.kernels.op_signature import OpSignature
from ridgeline.kernels.power_capped_clock import PowerLimit
from ridgeline.workload.formats import bytes_of
from ridgeline.workload.graph import EPILOGUE, Op, Pass
from ridgeline.workload.ops.shape import HOST_INPUT

# Frameworks do elementwise arithmetic in fp32 registers whatever the storage format is (PyTorch's
# "opmath" type of half and bfloat16 tensors is float). A machine without it uses its widest format.
VECTOR_FORMAT = "fp32"
_MOST_STREAMED = 8192


class Common:
    """What the prices of all ops on a device have in common."""

    def __init__(self, device: Device) -> None:
        self.device, self.launch_s = device, device.launch_latency.value
        self.rates = peak_rates(device)
        self.power = PowerLimit(device, self.rates)
        self.achievable = {
            name: level.achievable.value
            for name, level in device.memory.items()
            if level.bandwidth is not None
        }
        self._vectors = _vector_engines(device)
        fastest = self._vectors[0].key if self._vectors else ""
        self._on_host = f"{HOST}.{_widest(device.host.rates)}" if device.host is not None else ""
        # Without measured kernels the price of streaming is the same at any bandwidth.
        levels = tuple(device.memory), tuple(self.achievable.items())
        rounds = self._processors
        self._known = (
            {}
            if device.kernels or device.host is not None or any(v.ops for v in self._vectors)
            else _streamed(self.launch_s, *levels, fastest, rounds)
        )

    @property
    def _processors(self) -> int:
        """Processors that thread blocks are shared by; 0 where there are no such."""
        if not any(engine.kind == "vector" for engine in self.device.engines.values()):
            return 0
        return next(iter(self.device.memory.values())).instances.value

    def streaming(self, kind: OpSignature) -> OpCost:
        """Price what moves so many bytes through all of the memory."""
        if kind.found is not None:  # caches of this size
            return self._streaming(kind)
        known = self._known.get(kind.key)
        if known is None:
            if len(self._known) > _MOST_STREAMED:
                self._known.clear()
            known = self._known[kind.key] = self._streaming(kind)
        return known

    def _streaming(self, kind: OpSignature) -> OpCost:
        op, device = kind.op, self.device
        traffic, kept = dict.fromkeys(device.memory, kind.streamed_bytes), {}
        moved: dict[str, OperandBytes] = {}
        if kind.found is not None and op is not None and kind.graph is not None:
            levels = keeping(device)
            passed = passing(op, kind.graph, kind.found, len(levels))
            for name, each in zip((*levels, device.far_memory), passed, strict=True):
                moved[name] = each
                traffic[name] = each.total
            kept = stayed(passed, levels)
        if op is not None and op.kind == HOST_INPUT.name:
            return self._from_host(
                kind, OpCost(0.0, traffic_bytes=traffic, moved=moved, kept_bytes=kept)
            )
        row = None if op is None else kernel_of(op, device)
        latency_s = kind.kernels * (self.launch_s if row is None else row.latency.value)
        cost = OpCost(latency_s, traffic_bytes=traffic, moved=moved, kept_bytes=kept)
        if op is not None and op.vector_flops and self._vector_for(op) is None and self._on_host:
            return self._in_host(kind, op)
        if op is not None and (op.vector_flops or row is not None):
            self.add_vector(cost, op)
        if row is not None:  # measured: no longer what its FLOPs would take
            for key in cost.engine_work:
                rate = row.throughput
                busy_s = 0.0 if rate is None else kind.streamed_bytes / rate.value
                cost.engine_work[key] = busy_s * self.rates[key]
        cost = self.with_levels(cost)
        blocks = 0 if op is None else op.blocks
        return self._on_some(cost, blocks, kind.launched) if blocks or kind.launched else cost

    def _on_some(self, cost: OpCost, blocks: int, launched: int) -> OpCost:
        """Slow an op down whose blocks leave processors without work, each with its share.

        Where they are fewer than the processors, and where the last round of a launch does not have
        one for each.
        """
        processors = self._processors
        if not processors:
            return cost
        slower = max(1.0, processors / blocks) if blocks else 1.0
        if launched:
            slower *= math.ceil(launched / processors) * processors / launched
        return replace(
            cost,
            engine_work={name: work * slower for name, work in cost.engine_work.items()},
            level_work={name: work * slower for name, work in cost.level_work.items()},
        )

    def with_levels(self, cost: OpCost) -> OpCost:
        """Turn the traffic into work at every level that has a bandwidth."""
        for name, share in self.achievable.items():
            cost.level_work[name] = cost.traffic_bytes[name] / share
        return cost

    def add_vector(self, cost: OpCost, op: Op) -> None:
        """Add an op's arithmetic outside of contractions, on the fastest engine that does it."""
        unit = self._vector_for(op)
        if unit is None:
            raise no_engine(self.device, "vector", VECTOR_FORMAT, op)
        key = unit.key
        work = op.vector_flops if unit.slower == 1.0 else op.vector_flops * unit.slower
        cost.engine_work[key] = cost.engine_work.get(key, 0.0) + work
        cost.flops[key] = cost.flops.get(key, 0.0) + op.vector_flops

    def does_vector(self, op: Op) -> bool:
        """Tell whether an engine of the device itself does an op's vector work."""
        return self._vector_for(op) is not None

    def add_in_host(self, cost: OpCost, op: Op, moved_bytes: float) -> OpCost:
        """Add a contraction's vector work in the host: so many bytes go there and come back.

        Raises
        ------
        RidgelineError
            If the device has no host.
        """
        host = self.device.host
        if host is None:
            raise no_engine(self.device, "vector", VECTOR_FORMAT, op)
        there = self._of_host(op, moved_bytes)
        spans = there.spans(self.rates)
        far = self.device.far_memory
        traffic = {**cost.traffic_bytes, **{n: there.traffic_bytes[n] for n in _OUTSIDE}}
        traffic[far] += moved_bytes
        # What goes to the host waits for the product and is waited for: its time is the op's own.
        parts = cost.latency_parts or LatencyParts(cost.latency_s)
        return replace(
            cost,
            latency_s=cost.latency_s + spans.time_s,
            latency_parts=parts.plus(LatencyParts(exchange_s=spans.time_s)),
            flops={**cost.flops, **there.flops},
            traffic_bytes=traffic,
        )

    def _of_host(self, op: Op, moved_bytes: float) -> OpCost:
        """Price an op's vector work in the host, with the bytes of its operands and results."""
        assert self.device.host is not None
        work = {self._on_host: float(op.vector_flops)} if op.vector_flops else {}
        outside = dict.fromkeys(_OUTSIDE, moved_bytes)
        return OpCost(
            2 * self.device.host.link.latency.value, dict(work), dict(outside), work, outside
        )

    def _from_host(self, kind: OpSignature, cost: OpCost) -> OpCost:
        """Price a mini-batch on its way into the device, which the host sends by itself."""
        brought = dict.fromkeys((HOST_MEMORY, HOST_LINK), kind.streamed_bytes)
        cost = self.with_levels(cost)
        return replace(
            cost,
            level_work={**cost.level_work, **brought},
            traffic_bytes={**cost.traffic_bytes, **brought},
        )

    def _in_host(self, kind: OpSignature, op: Op) -> OpCost:
        """Price an op that the host does: its tensors pass the farthest memory and the link."""
        moved, far = kind.streamed_bytes, self.device.far_memory
        cost = self._of_host(op, moved)
        share = self.achievable[far]
        return replace(
            cost,
            latency_s=kind.kernels * (self.launch_s + cost.latency_s),
            latency_parts=LatencyParts(
                kind.kernels * self.launch_s, exchange_s=kind.kernels * cost.latency_s
            ),
            level_work={far: moved / share, **cost.level_work},
            traffic_bytes={
                **dict.fromkeys(self.device.memory, 0.0),
                far: moved,
                **cost.traffic_bytes,
            },
        )

    def _vector_for(self, op: Op) -> _VectorUnit | None:
        """Find the fastest engine that does an op's vector work."""
        # Behind a product: its own bias, and what such a unit does with results on their way out.
        behind = op.loops is not None and (EPILOGUE in dict(op.attrs) or not op.attrs)
        for unit in self._vectors:
            if not unit.ops:
                return unit
            if op.pass_ is Pass.FORWARD and (
                op.kind in unit.ops or (behind and "bias" in unit.ops)
            ):
                return unit
        return None


_OUTSIDE = (HOST_LINK, HOST_MEMORY)


class _VectorUnit(NamedTuple):
    """An engine that does vector work.

    Attributes
    ----------
    key
        Engine and format.
    slower
        Its rate of products over that of vector work.
    ops
        Kinds that it does in the forward pass; empty: all, in any.
    """

    key: str
    slower: float
    ops: frozenset[str]


def _vector_engines(device: Device) -> list[_VectorUnit]:
    """Return the engines of vector work, the fastest first: in fp32, or in the widest format."""
    able = {name: engine for name, engine in device.engines.items() if "vector" in engine.runs}
    with_own = {name for name, engine in able.items() if VECTOR_FORMAT in engine.rates}
    found: list[tuple[float, _VectorUnit]] = []
    for name, engine in able.items():
        if with_own and name not in with_own and not engine.ops:
            continue
        format_ = VECTOR_FORMAT if name in with_own else _widest(engine.rates)
        peak = engine.rates[format_].value
        rate = engine.vector_rates.get(format_, engine.rates[format_]).value
        unit = _VectorUnit(f"{name}.{format_}", peak / rate, frozenset(engine.ops))
        found.append((rate, unit))
    return [unit for _, unit in sorted(found, key=lambda pair: -pair[0])]


def _widest(rates: Mapping[str, object]) -> str:
    """Return fp32 if it is there, else the format with the most bytes."""
    return VECTOR_FORMAT if VECTOR_FORMAT in rates else max(rates, key=bytes_of)


@lru_cache(maxsize=8)
def _streamed(
    launch_s: float,
    levels: tuple[str, ...],
    shares: tuple[tuple[str, float], ...],
    vector: str,
    processors: int,
) -> dict[tuple[object, ...], OpCost]:
    """Return what is known of streaming on devices that have these in common."""
    return {}


def no_engine(device: Device, work: Work, format_: str, op: Op) -> RidgelineError:
    """Return the error of work that no engine of a device does in a format."""
    done = {other for engine in device.engines.values() for other in engine.runs}
    if len(done) == 1:
        return RidgelineError(
            f"{device.name} describes engines for {next(iter(done))} work alone, so that no network"
            f" can run on it (op {op.name!r} is {work} work in {format_}): add vector to the field"
            " runs of an engine that does it, or the field host; ridgeline gemm and conv price"
            " products on it"
        )
    formats = {f for e in device.engines.values() if work in e.runs for f in e.rates}
    other = format_ == "bf16" and "fp16" in formats
    instead = "; precision fp16-mixed takes as many bytes" if other else ""
    if not other and "fp32" in formats and format_ not in formats:
        instead = f"; {format_}-as-fp32 is stored as {format_} and multiplied as fp32"
    return RidgelineError(
        f"{device.name} has no engine for {work} work in {format_} (op {op.name!r}); "
        f"it does {work} work in: {', '.join(sorted(formats)) or 'no format'}{instead}"
    )
