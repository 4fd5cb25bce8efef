"""Recomputation: activations that the backward pass does again rather than keep.

`with_recompute` turns a training graph into one that keeps less: ops of `Pass.RECOMPUTE` form
tensors of the forward pass again, just before the first op of the backward pass that reads one of
them, and that op and all later ones read the new copies. How much memory is saved follows by
liveness (`ridgeline.workload.peak`), what it costs by pricing the ops. Only what is needed is done
again: the last ops of a block, whose outputs are kept for the next one, are not.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, get_args

from ridgeline.errors import RidgelineError
from ridgeline.parallel.checkpointing.blocks import (
    attention_cores,
    counted_blocks,
    every_other,
    forward_blocks,
    fused_results,
    product_results,
)
from ridgeline.parallel.checkpointing.keep_budget import keep_within
from ridgeline.parallel.checkpointing.mode_text import RecomputeMode
from ridgeline.parallel.checkpointing.modules import recompute_modules
from ridgeline.parallel.checkpointing.ops import recompute_blocks
from ridgeline.workload.graph import Graph

Mode = Literal[
    "none",
    "full",
    "selective",
    "alternate",
    "products",
    "projections",
    "sqrt",
    "optimal",
    "budget",
]
MODES: tuple[Mode, ...] = get_args(Mode)


def with_recompute(
    graph: Graph,
    mode: str,
    *,
    budget_bytes: float | None = None,
    slots: int | None = None,
    time_s: Sequence[float] | None = None,
    runs: int = 1,
) -> Graph:
    """Return the training graph with less kept for the backward pass.

    ============  ==================================================================================
    mode          what is done again
    ============  ==================================================================================
    none          nothing
    full          every block, of which only what others read is kept (see `forward_blocks`)
    selective     the scores and probabilities of attention (see `attention_cores`)
    alternate     every block, of which also attention and every other result of a product of
                  weights are kept, beginning with the first: torchtitan's selective recomputation
                  by ops; of a product with several results those that are read are formed again
    products      every block, of which also attention and all products of weights are kept: JAX's
                  checkpoint_dots_with_no_batch_dims with what attention makes ("minimal_flash" of
                  MaxText's policies)
    projections   every block, of which also all products of weights are kept, and attention is
                  formed again: JAX's checkpoint_dots_with_no_batch_dims ("minimal" of MaxText's)
    sqrt          all but the last of about √n stretches of the chain of ops: Chen et al., Training
                  deep nets with sublinear memory cost, 2016, arXiv:1604.06174
    optimal       the least work with at most so many checkpoints, some ops several times: revolve
    budget        the least work with which the step fits into some bytes
    moe_act+...   modules of every layer, joined by + (see `modules`)
    full:3        every third block: torchtitan's selective_ac_option
    uniform:3     stretches of three blocks, of which only what others read is kept: Megatron-LM's
                  recompute_method=uniform with recompute_num_layers
    block:3       the first three blocks of each of `runs` parts: Megatron-LM's method "block"
    budget:0.4    the least work with which blocks keep that share of the activations, or so many
                  bytes (``budget:8 GB``): PyTorch's activation_memory_budget (see `keep_budget`)
    ============  ==================================================================================

    Parameters
    ----------
    graph
        A training graph, of the zoo or traced, that recomputes nothing yet.
    budget_bytes
        Of "budget": most bytes that the step may hold, weights and all (`ridgeline.workload.peak`).
    slots
        Of "optimal": most checkpoints; None: as many as "sqrt" keeps.
    time_s
        Of "optimal" and budgets: what each op of the graph takes; None: its FLOPs are counted.
    runs
        Of "block": parts of the network, each with equally many blocks (stages of a pipeline).

    Raises
    ------
    DoesNotFit
        If no recomputation fits into the budget.
    RidgelineError
        If the mode is unknown, an argument is missing or not its own, or the graph recomputes
        already.
    """
    if mode not in MODES:
        try:
            said = RecomputeMode.parse(mode, MODES)
        except ValueError as error:
            raise RidgelineError(f"recompute: {error}") from error
        return _of_text(graph, said, time_s, runs)
    for name, value, of in (("budget_bytes", budget_bytes, "budget"), ("slots", slots, "optimal")):
        if value is not None and mode != of:
            raise RidgelineError(f"recompute: {name} belongs to mode {of!r}, not {mode!r}")
    if mode == "none":
        return graph
    if mode in {"full", "selective", "alternate", "products", "projections"}:
        return _by_blocks(graph, mode)
    from ridgeline.parallel.checkpointing import chain

    if mode == "sqrt":
        return recompute_blocks(graph, chain.sqrt_stretches(graph)[:-1])
    if mode == "optimal":
        return chain.with_slots(graph, slots, time_s)
    if budget_bytes is None:
        raise RidgelineError("recompute: mode 'budget' needs budget_bytes")
    return chain.within_budget(graph, budget_bytes, time_s)


def _of_text(graph: Graph, mode: RecomputeMode, time_s: Sequence[float] | None, runs: int) -> Graph:
    """Recompute by modules, some of the blocks, or a share of what they keep."""
    if mode.modules:
        return recompute_modules(graph, mode.modules)
    if mode.count:
        return recompute_blocks(graph, counted_blocks(graph, mode.name, mode.count, runs))
    size = mode.share * graph.activation_bytes if mode.share else mode.size_bytes
    return keep_within(graph, size, time_s)


def _by_blocks(graph: Graph, mode: str) -> Graph:
    """Let blocks of a network be done again, less the results of theirs that a mode keeps."""
    if mode in {"full", "selective"}:
        blocks = forward_blocks(graph) if mode == "full" else attention_cores(graph)
        changed = recompute_blocks(graph, blocks)
        # Inputs of blocks that are wider than what the blocks keep: nothing is won by it.
        return graph if changed.activation_bytes > graph.activation_bytes else changed
    blocks = forward_blocks(graph)
    kept = (every_other if mode == "alternate" else product_results)(graph, blocks)
    if mode != "projections":
        kept |= fused_results(graph)
    return recompute_blocks(graph, blocks, kept=kept)
