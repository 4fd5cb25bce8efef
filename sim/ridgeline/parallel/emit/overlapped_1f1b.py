"""Overlapped 1F1B: two micro-batches side by side, so that expert exchange runs beside compute.

An all-to-all between experts leaves its micro-batch nothing to compute: what follows reads what it
brings. The forward pass of one micro-batch and the backward pass of another need nothing of each
other, so each can go on while the other waits (DeepSeek-V3, arXiv:2412.19437, Section 3.2.1;
Megatron-Core, `--overlap-moe-expert-parallel-comm`, `core/pipeline_parallel/combined_1f1b.py`).

Where a schedule alternates, a backward block and the forward block behind it are such a pair: this
forward pass is of a later micro-batch on all stages (Megatron-Core puts one more forward pass
before the first backward pass, which gives the same pairs). Both begin when all of the pair before
has ended. A device still does one op at a time: of two that are ready, that of the block which is
less far, so that the layers of both go by together.
"""

from __future__ import annotations

import numpy as np

from ridgeline.engine.blocks import Block
from ridgeline.engine.program import Ints
from ridgeline.parallel.emit.microbatch_instances import BACKWARD, FORWARD, Copies

_PACES = 1024
"""Parts of a block whose tasks have different priorities."""


def in_pace(block: Block) -> None:
    """Let the tasks of a block give way to those of another that is less far."""
    for place, (*task, _, multiplicity) in enumerate(block.tasks):
        block.tasks[place] = (*task, _PACES * place // len(block), multiplicity)


def side_by_side(copies: Copies, last: Ints) -> None:
    """Let both blocks of a pair wait for both of the pair before, or for the one block before.

    Parameters
    ----------
    last
        [N, R] The last compute task of every rank up to the end of each copy.
    """
    n_ranks = last.shape[1]
    second = np.zeros(len(copies.order), bool)
    second[1:] = (copies.phase[1:] == FORWARD) & (copies.phase[:-1] == BACKWARD)
    begin = np.arange(len(second)) - second  # of the pair, or of the block alone
    rows = np.flatnonzero(begin > 0)
    copies.ports[rows, :n_ranks] = last[begin[rows] - 1]
    rows = rows[second[begin[rows] - 1] & np.isin(copies.phase[rows], (FORWARD, BACKWARD))]
    for row in rows.tolist():
        wait = copies.pieces[int(copies.order[row])].waits
        copies.ports[row, wait : wait + n_ranks] = last[begin[row] - 2]


def more_waits(phase: int, n_ranks: int) -> int:
    """Return how many further ports a block needs for its pair."""
    return n_ranks if phase in {FORWARD, BACKWARD} else 0
