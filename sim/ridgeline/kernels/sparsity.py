"""What zeros in the operands of a contraction save on an engine: time, energy, traffic.

The blocking of the dense contraction stays. Of its work an engine issues the share

    issued = min(1, left / efficiency)

where `left` is the share of pieces, each as large as the engine's granule, in which anything is not
zero: 1 - (1 - density)**pieces for zeros at random, `pieces` being the elements or blocks in a
granule. N:M zeros that fit the engine's own ratio leave that ratio. Zeros of both operands are
independent: their shares multiply. An engine that saves energy but no cycles works on `left` of the
products and spends the time of all. Where it saves traffic, the operand passes every memory level
compressed, with its index. So nothing ever grows with fewer non-zeros, and with density 1
everything is as dense. (Registers pass what is issued.)

On systolic arrays the cycles of N:M weights are counted: those of the shorter sum, with the weights
in the cells.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from ridgeline.hardware.device import Engine
from ridgeline.hardware.sparsity_support import Skip
from ridgeline.kernels.cost import OperandBytes
from ridgeline.kernels.systolic.device import arrays_of
from ridgeline.kernels.systolic.partition import best_partition
from ridgeline.workload.formats import find
from ridgeline.workload.graph import Gemm, Graph, Op, Pass
from ridgeline.workload.sparsity import Sparsity, n_of_m


@dataclass(frozen=True, slots=True)
class Effect:
    """What the zeros of one contraction save, as shares of the dense work and bytes.

    Attributes
    ----------
    useful
        Products of which no factor is zero.
    issued
        What takes time on the engine.
    worked
        What takes energy.
    a_stored, b_stored
        Bytes of the operands, index included.
    notes
        Zeros that nothing was saved by, and why.
    """

    useful: float = 1.0
    issued: float = 1.0
    worked: float = 1.0
    a_stored: float = 1.0
    b_stored: float = 1.0
    notes: tuple[str, ...] = ()

    def moved(self, dense: OperandBytes) -> OperandBytes:
        """Bytes of operands where they pass a memory level compressed."""
        if self.a_stored == self.b_stored == 1.0:
            return dense
        return dense._replace(a=dense.a * self.a_stored, b=dense.b * self.b_stored)


DENSE = Effect()


def effect_of(op: Op, graph: Graph, engine: Engine, gemm: Gemm) -> Effect:
    """Return what the zeros of an op's two operands save on an engine."""
    found = DENSE
    # Of every operand: its size along the sum, and its other size.
    for name, other, side in zip(op.inputs[:2], (gemm.m, gemm.n), "ab", strict=True):
        sparsity = graph.tensors[name].sparsity
        if sparsity is not None and sparsity.density < 1:
            bits = find(graph.tensors[name].format).bits
            found = _with(found, sparsity, side, other, bits, op, engine, gemm)
    return found


def _with(
    before: Effect,
    sparsity: Sparsity,
    side: str,
    other: int,
    bits: int,
    op: Op,
    engine: Engine,
    gemm: Gemm,
) -> Effect:
    k = gemm.k
    useful = before.useful * sparsity.nonzeros(k, other) / (k * other)
    skip, why = _skip_of(sparsity, engine, op)
    if skip is None:
        note = f"{sparsity} zeros of {op.inputs['ab'.index(side)]} are computed: {why}"
        return replace(before, useful=useful, notes=(*before.notes, note))
    left = _left(sparsity, skip, k, other)
    issued = worked = 1.0
    if "cycles" in skip.saves:
        worked = left
        issued = min(1.0, left / skip.efficiency.value)
        if sparsity.kind == "n:m" and engine.array is not None:
            issued = _on_arrays(skip, engine, gemm)
    elif "energy" in skip.saves:
        worked = left
    stored = 1.0
    if "traffic" in skip.saves:
        kept = n_of_m(*skip.kept_of) if sparsity.kind == "n:m" else sparsity
        stored = kept.stored(k, other, bits).total / (k * other * bits)
    return replace(
        before,
        useful=useful,
        issued=before.issued * issued,
        worked=before.worked * worked,
        a_stored=stored if side == "a" else before.a_stored,
        b_stored=stored if side == "b" else before.b_stored,
    )


def _skip_of(sparsity: Sparsity, engine: Engine, op: Op) -> tuple[Skip | None, str]:
    """Find what the engine can do with these zeros, or say why it can do nothing."""
    able = [skip for skip in engine.skips if skip.zeros == sparsity.kind]
    if not able:
        return None, f"the engine makes no use of {sparsity.kind} zeros"
    if sparsity.kind != "n:m":
        return able[0], ""
    if op.priced_as is not Pass.FORWARD:
        return None, "they are not grouped along the sum of this pass"
    fitting = [skip for skip in able if _fits(sparsity.group, skip.kept_of)]
    if not fitting:
        made_for = ", ".join(str(skip.ratio) for skip in able)
        return None, f"they do not fit the {made_for} that the engine is made for"
    return min(fitting, key=lambda skip: skip.kept_of[0] / skip.kept_of[1]), ""


def _fits(group: tuple[int, int], made_for: tuple[int, int]) -> bool:
    """Tell whether N of every M leave no more than the engine takes of each of its own groups.

    A group of the engine reaches into groups of the pattern, at one of the offsets that there are,
    and each of these has at most N non-zeros in the part that it shares.
    """
    (kept, of), (most, width) = group, made_for
    for offset in range(0, of, math.gcd(of, width)):
        head = min(width, of - offset)
        whole, tail = divmod(width - head, of)
        if min(kept, head) + whole * kept + min(kept, tail) > most:
            return False
    return True


def _left(sparsity: Sparsity, skip: Skip, k: int, other: int) -> float:
    """Share of pieces that cannot be left out."""
    if sparsity.kind == "n:m":
        return n_of_m(*skip.kept_of).compressed(k) / k
    down, across = min(skip.granule[0], k), min(skip.granule[1], other)
    pieces = -(-down // sparsity.block[0]) * -(-across // sparsity.block[1])
    return float(1.0 - (1.0 - sparsity.density) ** pieces)


def _on_arrays(skip: Skip, engine: Engine, gemm: Gemm) -> float:
    """Cycles with the shorter sum over cycles of the dense product, counted on the arrays."""
    assert engine.array is not None
    arrays = arrays_of(engine.array, engine.accumulate)
    stationary = tuple(how for how in arrays.schedules if how.dataflow == "ws")
    if not stationary:
        return 1.0
    k = n_of_m(*skip.kept_of).compressed(gemm.k)
    dense = best_partition(gemm.m, gemm.n, gemm.k, gemm.batch, arrays)
    short = best_partition(gemm.m, gemm.n, k, gemm.batch, arrays._replace(schedules=stationary))
    return min(1.0, short.cycles / dense.cycles)
