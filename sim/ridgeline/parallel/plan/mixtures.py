"""Mixtures of experts in a layer-wise plan: which devices share experts.

Ranks that share experts are neighbours, as groups that share features are. Where T devices share
the features of each expert, the next e such groups hold the experts once, whatever other layers do
with these devices: attention in groups of T' > T, for example, as in Megatron-Core's MoE parallel
folding (D. Liu et al., 2025, arXiv:2504.14960), whose expert tensor parallelism divides positions
instead of samples where T < T' (`Plan.expert_tensor_parallel`).
"""

from __future__ import annotations

from itertools import pairwise

from ridgeline.errors import ConfigError
from ridgeline.parallel.plan.layers import LayerDegrees, parse_rules
from ridgeline.parallel.plan.plan import Plan
from ridgeline.parallel.plan.samples import ROUTED
from ridgeline.workload.graph import Graph, Op, Pass


def mixture_degree(graph: Graph, plan: Plan) -> int:
    """Return how many devices share the features of each expert, where ranks share experts.

    Parameters
    ----------
    plan
        As wide as its widest layer (`Plan.widest`).

    Raises
    ------
    ConfigError
        If the layers of a mixture are divided differently, the ranks that share experts do not fit
        in with the degrees of other layers, or have too few samples.
    """
    if plan.expert_tensor_parallel:
        if not routed_layers(graph):
            raise ConfigError(
                f"expert_tensor_parallel={plan.expert_tensor_parallel} is of experts, and"
                f" {graph.name} has none that rows of tokens are dispatched to; allowed: 0",
                field="plan.expert_tensor_parallel",
            )
        return plan.expert_tensor_parallel
    if not plan.layers or plan.expert == 1:
        return plan.tensor
    degrees = LayerDegrees(parse_rules(plan.layers), plan.tensor)
    found = {degrees.of(layer): layer for layer in routed_layers(graph)}
    if len(found) > 1:
        (few, one), *_, (many, other) = sorted(found.items())
        raise ConfigError(
            f"expert={plan.expert}: experts are divided alike from where tokens are dispatched to"
            f" where they are combined; found tensor={few} for {one!r} and tensor={many} for"
            f" {other!r}",
            field="plan.layers",
        )
    features = min(found, default=plan.tensor)
    _check_span(plan, features)
    groups = plan.tensor // features
    if plan.micro_batch_size % groups:
        raise ConfigError(
            f"expert={plan.expert}: {groups} groups that hold experts divide the"
            f" {plan.micro_batch_size} samples of {plan.tensor} devices; allowed: micro-batches for"
            f" which these are a multiple of {groups}",
            field="plan.micro_batch",
        )
    return features


def _check_span(plan: Plan, features: int) -> None:
    """Raise ConfigError where devices that hold the experts once are part of a group."""
    span, devices = features * plan.expert, plan.data * plan.tensor
    degrees = {rule.tensor or 1 for rule in parse_rules(plan.layers)}

    def fits(span: int) -> bool:
        ordered = sorted({*degrees, span, devices})
        return not any(many % few for few, many in pairwise(ordered))

    if not fits(span):
        able = [n for n in range(1, devices // features + 1) if fits(features * n)]
        raise ConfigError(
            f"expert={plan.expert} takes {span} neighbouring devices, tensor={features} for the"
            f" features of each expert; this has to fit in with tensor="
            f"{', '.join(map(str, sorted(degrees)))} of the layers and all {devices} devices, since"
            f" groups lie in groups; allowed: {', '.join(map(str, able))}",
            field="plan.expert",
        )


def routed_layers(graph: Graph) -> list[str]:
    """Return the layers of mixtures from where tokens are dispatched to where they are combined."""
    return [op.layer for op in graph.ops if op.pass_ is Pass.FORWARD and _is_routed(op, graph)]


def _is_routed(op: Op, graph: Graph) -> bool:
    """Whether an op works on rows of experts with weights, or copies tokens there and back."""
    if op.kind in ROUTED:
        return True
    return op.kind == "gemm" and len(graph.tensors[op.inputs[1]].shape) == 3
