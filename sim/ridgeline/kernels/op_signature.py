"""Op signature: which ops cost the same on every device."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import NamedTuple

from ridgeline.hardware.device import Device
from ridgeline.kernels.cache_residency import Found, unheld_of
from ridgeline.kernels.cost import NOTHING, OperandBytes
from ridgeline.kernels.traffic import (
    Operands,
    as_gemm,
    cache_bytes,
    held_accumulators,
    streamed_bytes,
)
from ridgeline.workload.formats import find
from ridgeline.workload.fused_op import FUSED_LAYERS, FusedOp
from ridgeline.workload.graph import PIECES, WITHIN, Gemm, Graph, Op, Tensor, is_generated

Key = tuple[object, ...]


class OpSignature:
    """What the cost of an op depends on; equal for ops that cost the same on any device.

    Attributes
    ----------
    op, graph
        The first of them that was met, and a graph that has its operands; None of what is no op but
        moves so many bytes.
    streamed_bytes
        What is moved when every tensor is streamed; of an op without a contraction, this and its
        arithmetic are all that counts.
    gemm
        The matrix product that a contraction amounts to, else None.
    a_bytes, b_bytes, rest_bytes
        Of a contraction: footprints of the first two inputs, and of everything else.
    flops
        FLOPs of a contraction at its mathematical shape.
    format
        Whose kernels do a contraction (`Format.kernels`).
    found
        In which of the caches that keep tensors it finds its operands (`cache_residency`); None:
        in none.
    kernels
        How many one after the other do it.
    launched
        Thread blocks of each of many launches (`Op.launched`).
    """

    __slots__ = (
        "a_bytes", "b_bytes", "flops", "format", "found", "gemm", "graph", "hash", "kernels", "key",
        "launched", "op", "rest_bytes", "streamed_bytes",
    )  # fmt: skip

    def __init__(
        self,
        key: Key,
        streamed: int | float,
        op: Op | None,
        graph: Graph | None,
        found: Found | None = None,
        kernels: int = 1,
        launched: int = 0,
    ) -> None:
        self.kernels, self.launched = kernels, launched
        self.key, self.hash = key, hash(key)
        self.op, self.graph, self.streamed_bytes = op, graph, float(streamed)
        self.found = found
        self.gemm: Gemm | None = None
        self.a_bytes = self.b_bytes = self.rest_bytes = self.flops = 0
        self.format = ""
        if op is not None and graph is not None and op.loops is not None:
            a, b = (graph.tensors[name] for name in op.inputs[:2])
            self.gemm, self.format = as_gemm(op.loops, op.priced_as), find(a.format).kernels
            self.a_bytes, self.b_bytes, self.flops = a.bytes, b.bytes, op.matrix_flops
            if PIECES in dict(op.attrs):  # some of the rows
                self.a_bytes = int(a.bytes * op.input_passes[0])
            if op.input_passes and op.input_passes[1] < 1 and is_generated(op):  # some experts
                self.b_bytes = int(b.bytes * op.input_passes[1])
            self.rest_bytes = int(streamed) - self.a_bytes - self.b_bytes

    def operands(
        self, held: int, cache: float, kept: OperandBytes = NOTHING, *, grouped: bool = False
    ) -> Operands:
        """Return a contraction's operands; see `traffic.Operands`."""
        assert self.gemm is not None
        sizes = self.a_bytes, self.b_bytes, self.rest_bytes
        return Operands(self.gemm, *sizes, held, cache, unheld_of(self.found), kept, grouped)

    def __hash__(self) -> int:
        return self.hash

    def __eq__(self, other: object) -> bool:
        return self is other or (isinstance(other, OpSignature) and other.key == self.key)


def moving(size_bytes: float, kernels: int = 1, launched: int = 0) -> OpSignature:
    """Return what only moves so many bytes through all of the memory, by so many kernels.

    Or in launches of so many thread blocks.
    """
    key = size_bytes, kernels, launched
    return OpSignature(key, size_bytes, None, None, kernels=kernels, launched=launched)


class _Looked(NamedTuple):
    """An op that was looked at, with its operands, which other graphs may have in other shapes."""

    op: Op
    operands: tuple[Tensor, ...]
    kind: OpSignature


_MOST = 1 << 16
_looked: dict[tuple[int, Found | None], _Looked] = {}
"""The last ops that were looked at, by identity."""
_different: dict[Key, OpSignature] = {}
"""What is different of them, by what they are priced by."""


def op_signatures(
    ops: Iterable[Op], graph: Graph, found: Iterable[Found | None]
) -> list[OpSignature]:
    """Return the ops that each of some ops of a graph is priced with.

    Graphs that are made of others share most of their ops, which are looked at once.
    """
    every, tensor_of = [], graph.tensors.__getitem__
    for op, at in zip(ops, found, strict=True):
        operands = (*map(tensor_of, op.inputs), *map(tensor_of, op.outputs))
        known = _looked.get((id(op), at))
        if known is None or known.op is not op or known.operands != operands:
            known = _looked[id(op), at] = _Looked(op, operands, _kind_of(op, operands, graph, at))
        every.append(known.kind)
    return every


def _kind_of(
    op: Op, operands: tuple[Tensor, ...], graph: Graph, found: Found | None
) -> OpSignature:
    """Look at an op, unless it is priced by what another was, which is then returned."""
    if len(_looked) >= _MOST:
        _looked.clear()
        _different.clear()
    key, moved = _priced_by(op, graph, found)
    kind = _different.get(key)
    if kind is None:
        alone = replace(graph, tensors={tensor.name: tensor for tensor in operands}, ops=(op,))
        kind = OpSignature(key, moved, op, alone, found, op.kernels, op.launched)
        _different[key] = kind
    return kind


def described(op: Op, graph: Graph, found: Found | None = None) -> OpSignature:
    """Look at an op; nothing is remembered."""
    key, moved = _priced_by(op, graph, found)
    return OpSignature(key, moved, op, graph, found, op.kernels, op.launched)


def _priced_by(op: Op, graph: Graph, found: Found | None) -> tuple[Key, int]:
    """Return all that the price of an op depends on, and the bytes that it streams."""
    moved = streamed_bytes(op, graph)
    if isinstance(op, FusedOp):
        return _layers_priced_by(op), moved
    if op.loops is None and found is None:
        # Kernels are measured by kind, pass and rule.
        rule = None
        if op.attrs:
            attrs = dict(op.attrs)
            rule = WITHIN if WITHIN in attrs else attrs.get("rule")
        blocks = op.blocks, op.launched
        return (float(moved), op.vector_flops, op.kind, op.pass_, rule, op.kernels, blocks), moved
    tensors = graph.tensors
    looked = (
        found,
        op.kind,
        op.pass_,
        op.loops,
        op.vector_flops,
        op.input_passes,
        op.output_passes,
        op.attrs,
        tuple(_look(tensors[n]) for n in op.inputs),
        tuple(_look(tensors[n]) for n in op.outputs),
    )
    return looked, moved


def _layers_priced_by(op: FusedOp) -> Key:
    """Return all that the price of fused layers depends on."""
    assert op.layers is not None
    graph, number = op.layers.graph, dict[str, int]()
    layers = []
    for one in op.parts:
        names = (*one.inputs, *one.outputs)
        operands = tuple(number.setdefault(name, len(number)) for name in names)
        layers.append((_priced_by(one, graph, ())[0], operands, one.kernels))
    roles = tuple(graph.tensors[name].role for name in number)
    results = tuple(at for name, at in number.items() if name in op.results)
    return FUSED_LAYERS, op.how, graph.batch, tuple(layers), roles, results


def operands_of(op: Op, graph: Graph, device: Device, accumulate: str) -> Operands:
    """Look at a contraction as a matrix product on a device."""
    return described(op, graph).operands(held_accumulators(device, accumulate), cache_bytes(device))


def _look(tensor: Tensor) -> tuple[object, ...]:
    """Return what a price may depend on."""
    return tensor.shape, tensor.format, tensor.sparsity
