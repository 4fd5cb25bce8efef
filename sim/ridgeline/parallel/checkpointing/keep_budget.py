"""Recomputation within a budget: which activations to keep so that the least work is done again.

A block that is formed again keeps some activations of its inside; ops that make others that the
backward pass reads are done again, from the nearest that are kept. Which to keep is a choice of
fewest seconds for so many bytes. `block_choices` finds all of one block that no other beats in
both, by dynamic programming over its ops from the last to the first: the state is what repeated ops
read and the backward pass does not, which are few, so that it is exact for any block, of which a
chain is the simplest. `least_work` then chooses for each block one, as a knapsack of many classes:
fronts of blocks are added up by pairs, and equal blocks share theirs.

PyTorch's `activation_memory_budget` solves the same knapsack over the ops of a compiled graph
(torch/_functorch/partitioners.py, choose_saved_values_set); ILPs for whole graphs are Checkmate's
(Jain et al., MLSys 2020, arXiv:1910.02653).
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Sequence
from itertools import combinations
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from ridgeline.errors import RidgelineError
from ridgeline.parallel.checkpointing.blocks import Block, forward_blocks
from ridgeline.parallel.checkpointing.ops import first_reads, insides, recompute_blocks
from ridgeline.units import show
from ridgeline.workload.graph import Gemm, Graph, Role

_MOST_CHOICES = 1024
"""Of a front: of more, one stands for all within a 1,024th of its bytes, that with the most."""


_KEPT_ROLES = frozenset({Role.ACTIVATION, Role.INPUT})


class KeptChoice(NamedTuple):
    """What a block keeps, and what it then costs.

    Attributes
    ----------
    size_bytes
        Of what is kept, of the block's inside and of what only repeated ops read besides.
    work
        Of the ops that are done again, in the unit of the given work.
    kept
        Names of the activations of its inside that are kept.
    """

    size_bytes: int
    work: float
    kept: frozenset[str]


def keep_within(graph: Graph, budget_bytes: float, work: Sequence[float] | None = None) -> Graph:
    """Return the graph that keeps at most so many bytes of activations, for the least work.

    Parameters
    ----------
    budget_bytes
        Of `Graph.activation_bytes`.
    work
        Of every op of the graph, in any unit; None: FLOPs, of matrices and of vectors.

    Raises
    ------
    RidgelineError
        If the blocks cannot keep as little.
    """
    if graph.activation_bytes <= budget_bytes:
        return graph
    if work is None:
        work = [float(op.matrix_flops + op.vector_flops) for op in graph.ops]
    blocks = forward_blocks(graph)
    choices, anyway = block_choices(graph, blocks, work)
    rest = graph.activation_bytes - sum(graph.sizes[name] for name in anyway)
    chosen = least_work(choices, budget_bytes - rest)
    if chosen is None:
        least = rest + sum(min(one.size_bytes for one in each) for each in choices)
        raise RidgelineError(
            f"{graph.name}: blocks that are formed again keep at least {show(float(least), 'B', 4)}"
            f" of {show(float(graph.activation_bytes), 'B', 4)} of activations, more than the"
            f" budget of {show(float(budget_bytes), 'B', 4)}"
        )
    kept = frozenset[str]().union(*(one.kept for one in chosen))
    return recompute_blocks(graph, blocks, kept=kept)


class _Step(NamedTuple):
    """An op of a block, as the search sees it; activations are numbered within the block.

    Attributes
    ----------
    outputs
        Activations of the inside that it makes, each with its share of the op's work.
    inputs
        Those that it reads, of the inside and not read by the backward pass.
    beside
        Other activations that it reads and the backward pass does not: kept if it is repeated.
    """

    work: float
    outputs: tuple[tuple[int, float], ...]
    inputs: frozenset[int]
    beside: frozenset[int]


class _Steps(NamedTuple):
    """A block without names: equal for blocks that are copies of each other.

    Attributes
    ----------
    sizes
        Bytes of each activation, by its number.
    read
        Numbers of those of the inside that the backward pass reads.
    """

    steps: tuple[_Step, ...]
    sizes: tuple[int, ...]
    read: frozenset[int]


class _Kept(NamedTuple):
    """Bytes and work of a choice, and the numbers of what it keeps."""

    size_bytes: int
    work: float
    kept: tuple[int, ...]


def block_choices(
    graph: Graph, blocks: Sequence[Block], work: Sequence[float]
) -> tuple[list[tuple[KeptChoice, ...]], frozenset[str]]:
    """Return every choice of what a block keeps that no other beats, from few bytes to many.

    Returns
    -------
    tuple
        The choices of each block, and all that blocks keep where nothing is formed again.
    """
    read, known = first_reads(graph), dict[_Steps, list[_Kept]]()
    choices, anyway = [], set[str]()
    for ops, inside in zip(blocks, insides(graph, blocks), strict=True):
        steps, names = _steps_of(graph, ops, inside, read, work)
        if steps not in known:
            known[steps] = _choices(steps)
        choices.append(
            tuple(
                KeptChoice(one.size_bytes, one.work, frozenset(names[n] for n in one.kept))
                for one in known[steps]
            )
        )
        anyway |= inside & read.keys()
    return choices, frozenset(anyway)


def _steps_of(
    graph: Graph, ops: Block, inside: frozenset[str], read: Container[str], work: Sequence[float]
) -> tuple[_Steps, list[str]]:
    """Return a block without the names of its activations, which are numbered, and these."""
    number: dict[str, int] = {}
    steps = []
    for i in ops:
        op = graph.ops[i]
        found = [n for n in op.inputs if graph.tensors[n].role in _KEPT_ROLES and n not in read]
        outputs = [name for name in op.outputs if name in inside]
        for name in (*found, *outputs):
            number.setdefault(name, len(number))
        shares = zip((number[n] for n in outputs), _shares(graph, i, outputs), strict=True)
        within = frozenset(number[n] for n in found if n in inside)
        steps.append(
            _Step(work[i], tuple(shares), within, frozenset(number[n] for n in found) - within)
        )
    names = list(number)
    of_read = frozenset(number[n] for n in names if n in inside and n in read)
    return _Steps(tuple(steps), tuple(graph.sizes[n] for n in names), of_read), names


def _shares(graph: Graph, i: int, outputs: Sequence[str]) -> list[float]:
    """Share of an op's work that makes each output: of a product with several, its columns."""
    op = graph.ops[i]
    widths = [graph.tensors[name].shape[-1] for name in op.outputs if graph.tensors[name].shape]
    if isinstance(op.loops, Gemm) and sum(widths) == op.loops.n and len(op.outputs) > 1:
        return [graph.tensors[name].shape[-1] / op.loops.n for name in outputs]
    return [1.0 for _ in outputs]


def _choices(block: _Steps) -> list[_Kept]:
    """Go over the ops of a block from the last, which may be needed by none, to the first."""
    fronts: dict[frozenset[int], list[_Kept]] = {frozenset(): [_Kept(0, 0.0, ())]}
    for op in reversed(block.steps):
        following: dict[frozenset[int], list[_Kept]] = {}
        for wanted, front in fronts.items():
            made = {n: share for n, share in op.outputs if n in block.read or n in wanted}
            rest = wanted.difference(n for n, _ in op.outputs)
            for kept in _subsets(tuple(made)):
                again = [share for n, share in made.items() if n not in kept]
                size, state, cost = sum(block.sizes[n] for n in kept), rest, 0.0
                if again:
                    state = rest | op.inputs | op.beside
                    size += sum(block.sizes[n] for n in op.beside - rest)
                    cost = op.work * min(sum(again), 1.0)
                following.setdefault(state, []).extend(
                    _Kept(one.size_bytes + size, one.work + cost, (*one.kept, *kept))
                    for one in front
                )
        fronts = {state: _undominated(front) for state, front in following.items()}
    return _undominated([one for front in fronts.values() for one in front])


def _subsets(numbers: Sequence[int]) -> Iterable[tuple[int, ...]]:
    return (few for count in range(len(numbers) + 1) for few in combinations(numbers, count))


def _undominated(front: list[_Kept]) -> list[_Kept]:
    """Leave what nothing beats in bytes and in work; thin out what is too many."""
    best: list[_Kept] = []
    for one in sorted(front, key=lambda one: (one.size_bytes, one.work)):
        if not best or one.work < best[-1].work:
            best.append(one)
    if len(best) <= _MOST_CHOICES:
        return best
    cell = max(one.size_bytes for one in best) / _MOST_CHOICES
    thin = {int(one.size_bytes // cell): one for one in best}  # of each cell the last: least work
    return list({0: best[0], **thin}.values())


class _Front(NamedTuple):
    """Choices for several blocks together, from few bytes to many: bytes, work, and of which two.

    Attributes
    ----------
    left, right
        [N] place in the front of either part; empty of a single block.
    parts
        The two fronts that it is the sum of; none of a single block.
    """

    size_bytes: npt.NDArray[np.float64]
    work: npt.NDArray[np.float64]
    left: npt.NDArray[np.int64]
    right: npt.NDArray[np.int64]
    parts: tuple[_Front, ...] = ()

    def places(self, at: int) -> list[int]:
        """Return the choice of each block, in order."""
        if not self.parts:
            return [at]
        first, second = self.parts
        return first.places(int(self.left[at])) + second.places(int(self.right[at]))


def least_work(
    choices: Sequence[Sequence[KeptChoice]], budget_bytes: float
) -> list[KeptChoice] | None:
    """Choose one of each class so that all fit into so many bytes, for the least work.

    None: nothing fits. Exact as long as no front has more than 1,024 choices; else each sum of two
    fronts is at most 1/1,024 of its bytes from that, on the side that fits.
    """
    if not choices:
        return [] if budget_bytes >= 0 else None
    singles: dict[tuple[tuple[int, float], ...], _Front] = {}
    fronts = []
    for each in choices:
        key = tuple((one.size_bytes, one.work) for one in each)
        if key not in singles:
            empty = np.zeros(0, np.int64)
            sizes, work = (np.array(column, np.float64) for column in zip(*key, strict=True))
            singles[key] = _Front(sizes, work, empty, empty)
        fronts.append(singles[key])
    sums: dict[tuple[int, int], _Front] = {}
    while len(fronts) > 1:
        pairs = list(zip(fronts[::2], fronts[1::2], strict=False))
        odd = fronts[len(pairs) * 2 :]
        fronts = []
        for pair in pairs:
            known = (id(pair[0]), id(pair[1]))
            if known not in sums:
                sums[known] = _sum(*pair, budget_bytes)
            fronts.append(sums[known])
        fronts += odd
    (whole,) = fronts
    fits = np.flatnonzero(whole.size_bytes <= budget_bytes)
    if not len(fits):
        return None
    at = int(fits[np.argmin(whole.work[fits])])
    return [each[place] for each, place in zip(choices, whole.places(at), strict=True)]


def _sum(a: _Front, b: _Front, budget_bytes: float) -> _Front:
    """Return all sums of a choice of either that nothing beats and that may fit."""
    sizes = np.add.outer(a.size_bytes, b.size_bytes).ravel()
    work = np.add.outer(a.work, b.work).ravel()
    order = np.lexsort((work, sizes))
    order = order[sizes[order] <= max(budget_bytes, float(sizes.min()))]
    before = np.minimum.accumulate(np.append(np.inf, work[order]))[:-1]
    order = order[work[order] < before]
    if len(order) > _MOST_CHOICES:
        cells = np.floor(sizes[order] / (sizes[order][-1] / _MOST_CHOICES)).astype(np.int64)
        last = np.append(np.flatnonzero(np.diff(cells)), len(order) - 1)
        order = order[np.unique(np.append(0, last))]
    left, right = np.divmod(order, len(b.size_bytes))
    return _Front(sizes[order], work[order], left, right, (a, b))
