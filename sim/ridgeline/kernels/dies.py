"""Ops on a package of several dies: how a product is cut, and what passes the links between dies.

A product C[m, n] += A[m, k] B[k, n] is cut along its batch, m, n and k into equal parts, one for
each die in use (the cuts of tensor parallelism: Shoeybi et al., "Megatron-LM", arXiv:1909.08053,
section 3; of chiplets: Shao et al., "Simba", MICRO 2019, section 4). Each die is priced as a device
of its own. What it fetches of A comes from other dies where n is cut, since one of those has it:
(parts - 1) / parts of its bytes; likewise B where m is cut. Where k is cut, every die has a partial
sum of its block of C, and sends all but its own share of it to those that add it up. With
interleaved memory everything comes from any die, the own one included.

    time = latency + max(time on a die, busiest link's bytes / its bandwidth)

Of all cuts, some dies left idle too, the fastest is taken; then the one of least energy. Other ops
are cut evenly, without messages where operands lie as they are cut.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import NamedTuple

from ridgeline.errors import RidgelineError
from ridgeline.hardware.device import Device
from ridgeline.hardware.dies import DIE_LINKS, Dies
from ridgeline.hardware.equal_parts import one_die
from ridgeline.kernels.cost import NOTHING, OpCost, OperandBytes, op_energy_j, peak_rates
from ridgeline.kernels.latency_parts import LatencyParts
from ridgeline.kernels.op_cost_terms import Common
from ridgeline.kernels.op_signature import OpSignature, described
from ridgeline.workload.formats import bytes_of
from ridgeline.workload.graph import PIECES, Conv, Gemm, Op, Pass, Tensor

_CUT = frozenset({"gemm", "matmul", "conv2d", "attention-scores", "attention-context"})
"""Kinds of ops whose products may be cut along all of their dimensions; others along the batch."""
_PARTIAL = "fp32"


class Cut(NamedTuple):
    """In how many parts the batch, m, n and k of a product are cut."""

    batch: int = 1
    m: int = 1
    n: int = 1
    k: int = 1

    @property
    def parts(self) -> int:
        """Dies in use."""
        return self.batch * self.m * self.n * self.k

    def __str__(self) -> str:
        cut = [f"{name}/{parts}" for name, parts in self._asdict().items() if parts > 1]
        return " x ".join(cut) or "whole"


WHOLE = Cut()


def cuts_of(op: Op, count: int, *, sums: bool = True) -> list[Cut]:
    """Return the cuts of a contraction over at most `count` dies; their parts divide the count.

    Parameters
    ----------
    sums
        Whether dies can add up partial sums, so that k may be cut.
    """
    loops = op.loops
    assert loops is not None
    most = _most(op, loops)
    most = most if sums else most._replace(k=1)
    return [cut for cut in _cuts(count) if all(c <= m for c, m in zip(cut, most, strict=True))]


def _most(op: Op, loops: Gemm | Conv) -> Cut:
    """Return the most parts of each dimension."""
    if op.sequential or PIECES in dict(op.attrs):
        return WHOLE
    if isinstance(loops, Gemm):
        whole = Cut(loops.batch, loops.m, loops.n, loops.k)
        return whole if op.kind in _CUT else Cut(batch=loops.batch)
    if op.kind not in _CUT:
        return WHOLE
    if loops.groups > 1:
        return Cut(batch=loops.groups)
    images, ins, outs = loops.batch, loops.c_in // loops.taps, loops.c_out
    of_pass = {
        Pass.INPUT_GRADIENT: Cut(1, images, ins, outs),
        Pass.WEIGHT_GRADIENT: Cut(1, outs, ins, images),
    }
    return of_pass.get(op.priced_as, Cut(1, images, outs, ins))


@lru_cache(maxsize=64)
def _cuts(count: int) -> tuple[Cut, ...]:
    """Return all cuts whose parts divide so many dies, the most dies first."""
    divisors = [d for d in range(1, count + 1) if count % d == 0]
    found = [
        Cut(b, m, n, used // (b * m * n))
        for used in divisors
        for b in divisors
        if used % b == 0
        for m in divisors
        if used % (b * m) == 0
        for n in divisors
        if used % (b * m * n) == 0
    ]
    return tuple(sorted(found, key=lambda cut: -cut.parts))


def part_of(kind: OpSignature, cut: Cut) -> OpSignature:
    """Return the part of a contraction that one die does, the largest where parts are unequal."""
    op, graph = kind.op, kind.graph
    assert op is not None
    assert graph is not None
    loops = op.loops
    if isinstance(loops, Gemm):
        part: Gemm | Conv = Gemm(
            _over(loops.m, cut.m), _over(loops.n, cut.n), _over(loops.k, cut.k),
            _over(loops.batch, cut.batch),
        )  # fmt: skip
    else:
        assert loops is not None
        part = _convolution(loops, op.priced_as, cut)
    shares = (
        cut.batch * cut.m * cut.k,
        cut.batch * cut.n * cut.k,
        *(cut.batch * cut.m * cut.n for _ in op.inputs[2:]),
    )
    outputs = cut.batch * cut.m * cut.n
    elements = sum(graph.tensors[name].elements for name in op.outputs)
    added = _over(elements * (cut.k - 1), outputs * cut.k)  # its share of the block, k - 1 times
    tensors = {
        name: _share(graph.tensors[name], parts)
        for name, parts in (
            *zip(op.inputs, shares, strict=True),
            *((name, outputs) for name in op.outputs),
        )
    }
    small = replace(op, loops=part, vector_flops=_over(op.vector_flops, outputs) + added)
    return described(small, replace(graph, tensors=tensors, ops=(small,)), kind.found)


def _convolution(loops: Conv, pass_: Pass, cut: Cut) -> Conv:
    if loops.groups > 1:
        return replace(
            loops,
            c_in=_over(loops.groups, cut.batch) * (loops.c_in // loops.groups),
            c_out=_over(loops.groups, cut.batch) * (loops.c_out // loops.groups),
            groups=_over(loops.groups, cut.batch),
        )
    images, outs, ins = {
        Pass.INPUT_GRADIENT: (cut.m, cut.k, cut.n),
        Pass.WEIGHT_GRADIENT: (cut.k, cut.m, cut.n),
    }.get(pass_, (cut.m, cut.n, cut.k))
    channels = _over(loops.c_in // loops.taps, ins) * loops.taps
    return replace(
        loops, batch=_over(loops.batch, images), c_in=channels, c_out=_over(loops.c_out, outs)
    )


def _share(tensor: Tensor, parts: int) -> Tensor:
    """Return an equal part of a tensor: along its first dimensions, so far as they go."""
    shape = []
    for size in tensor.shape:
        along = math.gcd(size, parts)
        parts //= along
        shape.append(size // along)
    if parts > 1:  # unequal parts: the largest, of as many elements
        return tensor.reshaped((max(1, _over(math.prod(shape), parts)),))
    return tensor.reshaped(tuple(shape))


def _over(size: int, parts: int) -> int:
    return -(-size // parts)


class _Priced(NamedTuple):
    """A cut of an op with what it costs on the package."""

    cut: Cut
    cost: OpCost
    time_s: float
    energy_j: float


class Package:
    """The dies of a device, for the prices of ops."""

    def __init__(self, device: Device) -> None:
        assert device.dies is not None
        self.device, self.dies = device, device.dies
        self.count = device.dies.count.value
        self.die = one_die(device)
        self.together = device.model_copy(update={"dies": None, **_UNLIMITED})
        self.rates = peak_rates(device)
        self.link_rate = device.dies.link.bandwidth.value

    def best(self, kind: OpSignature, cuts: Sequence[Cut], parts: Sequence[OpCost]) -> OpCost:
        """Return the price of the fastest cut, of those the one of least energy."""
        found = [self._priced(kind, cut, part) for cut, part in zip(cuts, parts, strict=True)]
        fastest = min(found, key=lambda each: (each.time_s, each.energy_j))
        used = f"{fastest.cut.parts} of {self.count} dies, {fastest.cut}"
        mapping = f"{used}; {fastest.cost.mapping}" if fastest.cost.mapping else used
        return replace(fastest.cost, mapping=mapping)

    def _priced(self, kind: OpSignature, cut: Cut, part: OpCost) -> _Priced:
        cost = self._with_links(self._of_all(part, cut.parts), self._sent(kind, cut, part), cut)
        energy = op_energy_j(cost, self.device)["total"]
        return _Priced(cut, cost, cost.spans(self.rates).time_s, energy)

    def _of_all(self, part: OpCost, used: int) -> OpCost:
        """Return the price of equal parts on so many dies at once.

        Work is what all dies of the package would do in that time; events are those of the used.
        """

        def times(amounts: dict[str, float], number: int) -> dict[str, float]:
            return {name: number * amount for name, amount in amounts.items()}

        return replace(
            part,
            engine_work=times(part.engine_work, self.count),
            level_work=times(part.level_work, self.count),
            flops=times(part.flops, used),
            traffic_bytes=times(part.traffic_bytes, used),
            moved={n: OperandBytes(*(used * size for size in by)) for n, by in part.moved.items()},
            kept_bytes=times(dict(part.kept_bytes), used),
            mapped=None,
        )

    def _sent(self, kind: OpSignature, cut: Cut, part: OpCost) -> float:
        """Bytes that the dies in use fetch from others, or send to them, all together."""
        far = part.moved.get(self.device.far_memory, NOTHING)
        if self.dies.placement == "interleaved":
            return cut.parts * far.total * (self.count - 1) / self.count
        partial = 0.0
        if cut.k > 1 and kind.op is not None and kind.graph is not None:
            elements = sum(kind.graph.tensors[name].elements for name in kind.op.outputs)
            partial = elements * bytes_of(_PARTIAL) / (cut.batch * cut.m * cut.n)
        each = (
            far.a * (cut.n - 1) / cut.n
            + far.b * (cut.m - 1) / cut.m
            + partial * (cut.k - 1) / cut.k
        )
        return cut.parts * each

    def _with_links(self, cost: OpCost, sent_bytes: float, cut: Cut) -> OpCost:
        """Add what passes the links; every two of the dies that exchange send each other alike."""
        if not sent_bytes:
            return cost
        interleaved = self.dies.placement == "interleaved"
        dies = self.count if interleaved else cut.parts
        paths = self.dies.paths(dies)
        # Interleaved, every die in use fetches from all dies.
        pairs = cut.parts * (dies - 1)
        busiest_bytes = sent_bytes / pairs * paths.busiest
        wait_s = paths.most_hops * self.dies.link.latency.value
        parts = cost.latency_parts or LatencyParts(cost.latency_s)
        rate = self.rates[DIE_LINKS]
        return replace(
            cost,
            latency_s=cost.latency_s + wait_s,
            latency_parts=parts._replace(exchange_s=parts.exchange_s + wait_s),
            level_work={**cost.level_work, DIE_LINKS: busiest_bytes / self.link_rate * rate},
            traffic_bytes={**cost.traffic_bytes, DIE_LINKS: sent_bytes * paths.mean_hops},
        )

    def streamed(self, cost: OpCost) -> OpCost:
        """Add what passes the links to the price of an op that all dies share evenly."""
        if self.dies.placement == "cut":
            return cost
        far_bytes = cost.traffic_bytes.get(self.device.far_memory, 0.0)
        everyone = Cut(batch=self.count)
        return self._with_links(cost, far_bytes * (self.count - 1) / self.count, everyone)


_UNLIMITED = {"power_limit": None, "voltage_floor": None}


def refuse_mapping(dies: Dies) -> None:
    """Refuse a mapping file.

    Raises
    ------
    RidgelineError
        Always: a mapping lays one product out on one die.
    """
    raise RidgelineError(
        f"a mapping file lays a product out on one die; this device has {dies.count.value}: give "
        "the part of one die to a device without dies"
    )


def parts_of(
    kinds: Sequence[OpSignature], package: Package
) -> Iterator[tuple[OpSignature, list[Cut], list[OpSignature]]]:
    """Yield contractions with their cuts and the part that each leaves to a die."""
    common = Common(package.die)
    for kind in kinds:
        assert kind.op is not None
        cuts = cuts_of(kind.op, package.count, sums=common.does_vector(kind.op))
        yield kind, cuts, [part_of(kind, cut) for cut in cuts]
