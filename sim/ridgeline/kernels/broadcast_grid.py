"""Cores whose processing elements share row and column buses, and how such cores train a network.

A core is a square of `side` x `side` processing elements (PEs). A, in pieces of mc x kc, stays in
the PEs; each cycle one column of A and one row of B are broadcast along the rows and columns, and
every PE adds a product to its element of C: a rank-1 update (Pedram, Gerstlauer, van de Geijn, "A
High-Performance, Low-Power Linear Algebra Core", ASAP 2011). `core_gemm_cycles` is the law that the
authors' simulator LAP_SIM 0.1 follows without a difference.

Several cores sit on a one-way ring (CATERPILLAR: Li and Pedram, ASAP 2017, arXiv:1706.00517); each
core passes `side` words a cycle to the next. `sample_cost` is what one training sample takes on
them, layer by layer in the ways of that paper. See ``docs/caterpillar.md`` for the derivation.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

from ridgeline.errors import RidgelineError, nearest


def core_gemm_cycles(mc: int, kc: int, n: int, side: int, fma_latency: int) -> int:
    """Cycles of C[mc, n] += A[mc, kc] B[kc, n] on one core, A brought in first.

    mc kc n / side**2 + kc**2 / side + kc + FMA + 2 side + 3 (LAP_SIM 0.1). Sizes that are no
    multiple of the side take the cycles of the next multiple, as their PEs idle.
    """
    _at_least_one(mc=mc, kc=kc, n=n, side=side, fma_latency=fma_latency)
    mc, kc, n = (math.ceil(size / side) * side for size in (mc, kc, n))
    return mc * kc * n // side**2 + kc**2 // side + kc + fma_latency + 2 * side + 3


def full_rate_words_per_cycle(mc: int, kc: int, side: int) -> float:
    """Words a cycle that a core must be fed with so that it never waits: side**2 (2/kc + 1/mc).

    While a panel of B, kc x side, is used (mc kc / side cycles), the next one comes in, and mc x
    side elements of C come in and go out.
    """
    _at_least_one(mc=mc, kc=kc, side=side)
    return side**2 * (2 / kc + 1 / mc)


def reduction_cycles(side: int, *, neighbour_links: bool = True) -> int:
    """Cycles to add up one word of each PE of a column.

    side - 1 over the bus; log2(side) - 1 with links between neighbours, as a tree whose first
    level is hidden (CATERPILLAR, section 4). A row of `side` results takes as long: the columns
    work side by side.
    """
    _at_least_one(side=side)
    return max(0, math.ceil(math.log2(side)) - 1) if neighbour_links else side - 1


def gemv_cycles(m: int, n: int, side: int, *, neighbour_links: bool = True) -> int:
    """Cycles of y[m] = A[m, n] x[n] on one core that holds A: products, then `m` sums."""
    _at_least_one(m=m, n=n, side=side)
    rows = math.ceil(m / side)
    return rows * math.ceil(n / side) + rows * reduction_cycles(
        side, neighbour_links=neighbour_links
    )


def ring_cycles(words: float, cores: int, side: int) -> float:
    """Cycles of an all-gather of `words` on the ring of cores; of a reduce-scatter as many.

    (words - words / cores) / side: every core's part passes all others, `side` words a cycle.
    """
    _at_least_one(cores=cores, side=side)
    return words * (1 - 1 / cores) / side


Backward = Literal["backpropagation", "continuous", "direct-feedback"]


@dataclass(frozen=True, slots=True)
class Method:
    """A way to train.

    Attributes
    ----------
    name
        As in the paper.
    backward
        backpropagation: layer after layer, forward and back. continuous: layers on their own
        cores, pipelined, weights updated as they are read. direct-feedback: the error of the last
        layer goes through a fixed random matrix to every layer.
    batch
        Samples between two updates.
    matrix
        Whether the samples of a batch go as one matrix product; otherwise one by one as
        matrix-vector products.
    """

    name: str
    backward: Backward
    batch: int = 1
    matrix: bool = False

    @property
    def weight_accesses(self) -> int:
        """Times that each weight is read or written for one batch.

        Backpropagation reads it forward, reads it back and writes it. Continuous propagation
        updates the weight while it is read back, and direct feedback does not read it back.
        """
        return 3 if self.backward == "backpropagation" else 2


METHODS = {
    method.name: method
    for method in (
        Method("SGD", "backpropagation"),
        *(Method(f"BGD{b}", "backpropagation", b) for b in (2, 4, 8)),
        *(Method(f"BGD{b}", "backpropagation", b, matrix=True) for b in (50, 100)),
        Method("CP", "continuous"),
        *(Method(f"CP{b}", "continuous", b) for b in (2, 4, 8)),
        *(Method(f"DFA{b}", "direct-feedback", b) for b in (2, 4, 8)),
        *(Method(f"DFA{b}", "direct-feedback", b, matrix=True) for b in (50, 100)),
    )
}


def method(name: str) -> Method:
    """Find a method by the paper's name: SGD, BGD8, CP, DFA50.

    Raises
    ------
    RidgelineError
        If there is no such method.
    """
    if name not in METHODS:
        raise RidgelineError(
            f"there is no training method {name!r}{nearest(name, METHODS)} "
            f"(there are: {', '.join(METHODS)})"
        )
    return METHODS[name]


@dataclass(frozen=True, slots=True)
class Ring:
    """Cores on a ring.

    Attributes
    ----------
    local_bytes
        Memory of one PE.
    spill_words_per_cycle
        Words a cycle between one core and the memory behind its PEs' own; inf: never waited for.
    """

    cores: int
    side: int
    local_bytes: float
    spill_words_per_cycle: float = math.inf
    word_bytes: float = 2

    @property
    def elements(self) -> int:
        """PEs of all cores."""
        return self.cores * self.side**2


@dataclass(frozen=True, slots=True)
class SampleCost:
    """What one training sample takes. Cycles, and events per multiply-accumulate.

    Attributes
    ----------
    macs
        Multiply-accumulates.
    compute_cycles
        With all PEs busy.
    spill_cycles
        Weights to and from the memory behind the PEs' own, under the arithmetic.
    gather_cycles, reduction_cycles
        The ring and the sums within columns, beside the arithmetic.
    local_per_mac, spilled_per_mac
        Word accesses of PE memories and of the memory behind them.
    """

    macs: int
    compute_cycles: float
    spill_cycles: float
    gather_cycles: float
    reduction_cycles: float
    local_per_mac: float
    spilled_per_mac: float

    @property
    def cycles(self) -> float:
        """Of the whole sample."""
        slower = max(self.compute_cycles, self.spill_cycles)
        return slower + self.gather_cycles + self.reduction_cycles

    @property
    def utilisation(self) -> float:
        """Share of the PEs' multiply-accumulate slots that are used."""
        return self.compute_cycles / self.cycles


def spilled_share(widths: Sequence[int], ring: Ring) -> float:
    """Share of a network's weights that finds no room in the PEs' memories.

    Every core holds all activations, as the ring gathers them on each; weights have the rest.
    """
    weights = sum(m * n for m, n in _layers(widths)) * ring.word_bytes
    return unheld_share(weights, sum(widths) * ring.word_bytes, 0.0, ring)


def sample_cost(widths: Sequence[int], how: Method, ring: Ring) -> SampleCost:
    """Cost of one training sample of a network of fully connected layers.

    Parameters
    ----------
    widths
        Width of the input, of every hidden layer, of the output.
    how, ring
        Training method and machine.

    Raises
    ------
    RidgelineError
        If there are not at least two widths, all positive.
    """
    layers = _layers(widths)
    weights = sum(m * n for m, n in layers)
    words = sum(m + n for m, n in layers)  # gathered: outputs forward, errors backward
    if how.backward == "direct-feedback":
        macs = 2 * weights + sum(n * widths[-1] for _, n in layers[:-1])
    else:
        macs = 3 * weights
    # Samples one by one sum up in columns, and fetch what spilled for each of them; a matrix
    # product keeps sums in the PEs, and fetches once a batch. Pipelined layers need neither ring
    # nor sums of their own: both hide under the next layer's arithmetic.
    pipelined = how.backward == "continuous"
    gather = 0.0 if pipelined else ring_cycles(words, ring.cores, ring.side)
    sums = 0.0 if pipelined or how.matrix else words / ring.side * reduction_cycles(ring.side)
    spilled = spilled_share(widths, ring)
    spilled_words = how.weight_accesses * spilled * weights / (how.batch if how.matrix else 1)
    per_mac = how.weight_accesses * weights / (how.batch * macs)
    return SampleCost(
        macs=macs,
        compute_cycles=macs / ring.elements,
        spill_cycles=spilled_words / (ring.spill_words_per_cycle * ring.cores),
        gather_cycles=gather,
        reduction_cycles=sums,
        local_per_mac=1 + (1 - spilled) * per_mac,
        spilled_per_mac=spilled * per_mac,
    )


@dataclass(frozen=True, slots=True)
class RingGemm:
    """A matrix product whose largest operand lies in the memories of all PEs, and stays there.

    Attributes
    ----------
    resident
        The operand that stays: "a", "b", or the result "c", to which products are added.
    compute_cycles
        Of the PEs.
    gather_cycles, reduction_cycles
        The ring and the sums within columns, beside the arithmetic.
    resident_words, moving_words
        Elements of the operand that stays and of the others.
    local_words
        Words that the multiply-accumulates take from the PEs' memories besides the resident
        operand: one each.
    """

    resident: Literal["a", "b", "c"]
    compute_cycles: float
    gather_cycles: float
    reduction_cycles: float
    resident_words: int
    moving_words: int
    local_words: int

    @property
    def cycles(self) -> float:
        """Of the arithmetic, the ring and the sums; not of what waits for other memory."""
        return self.compute_cycles + self.gather_cycles + self.reduction_cycles


def ring_gemm(m: int, n: int, k: int, ring: Ring, *, gathered: bool = False) -> RingGemm:
    """Count C[m, n] = A[m, k] B[k, n] on cores on a ring, one operand resident in their PEs.

    The laws of Li and Pedram for one product (section 4):

    - The larger of A and B is resident; the rows or columns of the other are samples. The result of
      each is gathered on all cores (`ring_cycles`), which need it next. Fewer samples than a core
      has columns go one by one: every PE sums up in its column and the column's sums are added
      (`reduction_cycles`). As many or more are a matrix product, whose sums stay in the PEs.
    - C is resident if the vectors have been `gathered` already, as those of a weight gradient were
      when the forward and the backward pass made them: outer products are added to it in place.

    The arithmetic is m n k over the PEs: as in the paper, sizes are not rounded up to the cores'.
    """
    _at_least_one(m=m, n=n, k=k, cores=ring.cores, side=ring.side)
    macs = m * n * k
    busy = macs / ring.elements
    if gathered:
        return RingGemm("c", busy, 0.0, 0.0, m * n, (m + n) * k, macs)
    resident: Literal["a", "b"] = "b" if n >= m else "a"
    samples, out = (m, n) if resident == "b" else (n, m)
    return RingGemm(
        resident,
        busy,
        ring_cycles(samples * out, ring.cores, ring.side),
        samples * out / ring.side * reduction_cycles(ring.side) if samples < ring.side else 0.0,
        out * k,
        samples * (out + k),
        macs,
    )


def unheld_share(
    resident_bytes: float, sample_bytes: float, other_bytes: float, ring: Ring
) -> float:
    """Share of what is resident that finds no room in the PEs' memories.

    Parameters
    ----------
    resident_bytes
        Weights, or one operand of a product.
    sample_bytes
        Vectors of one sample, which the ring gathers on every core.
    other_bytes
        Of all other samples, each on one core.
    """
    if resident_bytes <= 0:
        return 0.0
    held = sample_bytes * ring.cores + other_bytes
    room = max(0.0, ring.elements * ring.local_bytes - held)
    return max(0.0, 1.0 - room / resident_bytes)


@dataclass(frozen=True, slots=True)
class GridGemm:
    """A matrix product on all cores.

    Attributes
    ----------
    cycles
        Of the core that finishes last.
    block
        Rows and columns of the pieces of A that stay in a core.
    b_passes, c_passes
        Times that B comes in, and that C goes out: once for every block of rows, or of the sum.
    fill_cycles, drain_cycles
        Of them, before the first and after the last rank-1 update of every block.
    """

    cycles: int
    block: int
    b_passes: int
    c_passes: int
    fill_cycles: int
    drain_cycles: int


def grid_gemm(m: int, n: int, k: int, ring: Ring, fma_latency: int) -> GridGemm:
    """Divide C[m, n] = A[m, k] B[k, n] among cores by columns or by rows, whichever is faster.

    A core keeps square blocks of A, one in use and one on its way (the Linear Algebra Core's
    double buffer), of the size that is fastest among those of which two fit into its PEs. For a
    small product it may use fewer rows and columns of PEs, whose buses are done sooner.

    Raises
    ------
    RidgelineError
        If the memories are too small for two blocks of side x side.
    """
    _at_least_one(m=m, n=n, k=k, cores=ring.cores, side=ring.side)
    words = int(ring.local_bytes // ring.word_bytes)
    if ring.side**2 * words // 2 < ring.side**2:
        raise RidgelineError(
            f"the memories of {ring.side} x {ring.side} PEs, {ring.local_bytes:g} B each, are too "
            f"small for two blocks of A: these need {2 * ring.word_bytes:g} B in each"
        )
    shares = ((m, math.ceil(n / ring.cores)), (math.ceil(m / ring.cores), n))
    best: tuple[int, int, int, int] | None = None
    for side in range(ring.side, 0, -1):
        least = min(math.ceil(rows * columns * k / side**2) for rows, columns in shares)
        if best is not None and least >= best[0]:
            break
        largest = min(math.isqrt(side**2 * words // 2), math.ceil(max(m, k) / side) * side)
        found = min(
            (_blocked_cycles(rows, columns, k, block, side, fma_latency), -block, rows, side)
            for block in range(side, largest + 1, side)
            for rows, columns in shares
        )
        best = found if best is None else min(best, found)
    assert best is not None
    cycles, inverse, rows, side = best
    block = -inverse
    fill, drain = _block_ends(rows, k, block, side, fma_latency)
    return GridGemm(cycles, block, math.ceil(m / block), math.ceil(k / block), fill, drain)


def _block_ends(rows: int, k: int, block: int, side: int, fma_latency: int) -> tuple[int, int]:
    """Cycles of all blocks of A in which it comes in, and in which the last sums leave.

    Of `core_gemm_cycles`, kc**2 / side + kc come before the rank-1 updates, as they do not depend
    on the columns of B, and FMA + 2 side + 3 after them: the pipeline of the last update and the
    buses.
    """
    fill = drain = 0
    for _, row_blocks in _pieces(rows, block):
        for length, sum_blocks in _pieces(k, block):
            kc = math.ceil(length / side) * side
            fill += row_blocks * sum_blocks * (kc**2 // side + kc)
            drain += row_blocks * sum_blocks * (fma_latency + 2 * side + 3)
    return fill, drain


def _blocked_cycles(
    rows: int, columns: int, k: int, block: int, side: int, fma_latency: int
) -> int:
    """Cycles of one core for all blocks of its A, one after the other."""
    return sum(
        row_blocks * sum_blocks * core_gemm_cycles(mc, kc, columns, side, fma_latency)
        for mc, row_blocks in _pieces(rows, block)
        for kc, sum_blocks in _pieces(k, block)
    )


def _pieces(size: int, block: int) -> list[tuple[int, int]]:
    """Sizes of the blocks that `size` is cut into, with how many there are of each."""
    whole, rest = divmod(size, block)
    return [(part, count) for part, count in ((block, whole), (rest, 1)) if part and count]


def _layers(widths: Sequence[int]) -> list[tuple[int, int]]:
    if len(widths) < 2 or min(widths) < 1:
        raise RidgelineError(
            f"a network needs at least two widths, all at least 1; found {list(widths)}"
        )
    return list(pairwise(widths))


def _at_least_one(**sizes: int) -> None:
    for name, size in sizes.items():
        if size < 1:
            raise RidgelineError(f"{name} must be at least 1, found {size}")
