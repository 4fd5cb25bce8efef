"""Memory of a step as sources count it: states alone, activations that the backward pass reads."""

from __future__ import annotations

import math

import numpy as np

from ridgeline.parallel.memory.liveness_profile import model_states
from ridgeline.report.result import Result

_STATE_KINDS = ("weights", "gradients", "optimizer")
_BACKWARD = ("recompute", "input-gradient", "weight-gradient")


def states_allocated(result: Result) -> float:
    """Return the most bytes of weights, of gradients and of optimizer state that any rank holds.

    What is allocated for them, whatever else is held at that time.
    """
    return math.fsum(_most(result, kind) for kind in _STATE_KINDS)


def _most(result: Result, kind: str) -> float:
    """Most bytes of one kind that any rank holds, not only at its fullest moment."""
    timeline = result.details.timeline
    column = timeline.program.memory_kinds.index(kind)
    ranks = np.unique(timeline.program.stream_rank)
    return float(max(timeline.memory_profile(int(r))[1][:, column].max() for r in ranks))


def activations_kept(result: Result) -> float:
    """Return the most bytes of activations that any rank holds when its first backward pass begins.

    What Korthikanti et al. count: what waits for the backward pass, without what this makes again.
    """
    timeline = result.details.timeline
    program = timeline.program
    column = program.memory_kinds.index("activations")
    kinds = [program.kind_names.index(kind) for kind in _BACKWARD if kind in program.kind_names]
    backward = np.isin(program.kind, kinds)
    rank_of = program.stream_rank[program.stream]
    most = 0.0
    for rank in np.unique(program.stream_rank).tolist():
        begin = timeline.start_s[backward & (rank_of == rank)].min(initial=np.inf)
        times, held = timeline.memory_profile(rank)
        most = max(most, float(held[max(np.searchsorted(times, begin) - 1, 0), column]))
    return most


def share_of_activations(result: Result) -> float:
    """Return the activations kept over those of the step that computes none again.

    Its tensor-parallel ranks share no positions, either.
    """
    from ridgeline.simulation import simulate

    details = result.details
    plan = details.plan.model_copy(update={"recompute": "none", "sequence": 1})
    whole = simulate(details.model, details.cluster, plan, software=plan.stack)
    return activations_kept(result) / activations_kept(whole)


def states_of_a_parameter(result: Result) -> float:
    """Return the bytes of weights, gradients and optimizer state that a rank holds, a parameter."""
    graph, plan = result.details.graph, result.details.plan
    return math.fsum(model_states(graph, plan.zero_stage, plan.data).values()) / graph.parameters
