"""What the fields of a plan must be to each other."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from ridgeline.errors import RidgelineError
from ridgeline.parallel.plans.layers import parse_rules, settled
from ridgeline.parallel.plans.replicas import SCHEDULES_WITH_REPLICAS, counts_of
from ridgeline.parallel.stages.schedules import SCHEDULES

if TYPE_CHECKING:
    from ridgeline.parallel.plans.plan import Plan

DIMENSIONS = ("tensor", "context", "data", "pipeline")
"""Dimensions of the plan that devices are numbered by, the innermost first, by default."""


def check(plan: Plan) -> None:
    """Settle the fields that follow from others; a ValueError says which contradict each other."""
    if plan.replicas:
        _check_replicas(plan)
    _check_batch(plan)
    if plan.layers:
        _check_layers(plan)
    elif not plan.expert_tensor_parallel and plan.data % plan.expert:
        raise ValueError(
            f"expert={plan.expert} must divide data={plan.data}, whose ranks share the experts"
        )
    if plan.hybrid_shard_size:
        _check_hybrid_sharding(plan)
    if plan.sequence == 0:
        _settle(plan, sequence=plan.tensor)
    if plan.sequence not in {1, plan.tensor}:
        raise ValueError(
            f"sequence={plan.sequence} must be 1 (off) or the degree of tensor, {plan.tensor}"
        )
    if plan.expert_tensor_parallel:
        _check_folded(plan)
    _check_order(plan)
    if plan.spatial != "1":
        _check_without(plan, ("context", "replicas"), f"spatial={plan.spatial}")
    _check_grid(plan)
    _check_schedule(plan)


def _settle(plan: Plan, **fields: object) -> None:
    for name, value in fields.items():
        object.__setattr__(plan, name, value)  # plans are frozen from here on


def _check_batch(plan: Plan) -> None:
    if plan.global_batch % plan.data:
        near = _nearest_multiples(plan.global_batch, plan.data)
        raise ValueError(
            f"global_batch {plan.global_batch} cannot be shared evenly by data={plan.data}"
            f" ranks; the nearest that can: {near}"
        )
    if plan.rank_batch % plan.micro_batch_size:
        raise ValueError(
            f"micro_batch {plan.micro_batch} does not divide the {plan.rank_batch} samples of a"
            " rank (global_batch / data)"
        )


def _nearest_multiples(value: int, of: int) -> str:
    below = value - value % of
    return f"{below} or {below + of}" if below else str(of)


def _check_replicas(plan: Plan) -> None:
    counts = counts_of(plan.replicas)
    if plan.data != 1 or plan.pipeline not in {1, len(counts)}:
        raise ValueError(
            f"replicas={plan.replicas} says how many devices share the samples of each of"
            f" {len(counts)} stages; found data={plan.data}, pipeline={plan.pipeline}, which"
            " are better left out"
        )
    _settle(plan, pipeline=len(counts))
    if len(set(counts)) == 1:  # a plan like any other
        _settle(plan, data=counts[0], replicas="")
        return
    if plan.schedule not in SCHEDULES_WITH_REPLICAS:
        raise ValueError(
            f"schedule={plan.schedule} is not known for stages with different numbers of"
            f" replicas; allowed: {', '.join(SCHEDULES_WITH_REPLICAS)}"
        )
    unlike = f"stages that have different numbers of replicas ({plan.replicas})"
    _check_without(plan, ("expert", "zero_stage", "layers"), unlike)
    if not plan.order.endswith("-pipeline"):
        raise ValueError(
            f"order {plan.order!r}: stages with different numbers of replicas are numbered one"
            " after the other; allowed: an order that ends in pipeline"
        )
    round_ = math.lcm(*counts) * plan.micro_batch_size
    if plan.global_batch % round_:
        raise ValueError(
            f"global_batch {plan.global_batch} does not give every replica of {plan.replicas}"
            f" equally many micro-batches of {plan.micro_batch_size}; the nearest that does:"
            f" {_nearest_multiples(plan.global_batch, round_)}"
        )


def _check_layers(plan: Plan) -> None:
    if plan.data * plan.tensor % plan.expert:
        raise ValueError(
            f"expert={plan.expert} must divide the {plan.data * plan.tensor} devices of"
            f" data={plan.data} x tensor={plan.tensor}, which share the experts"
        )
    _settle(plan, layers=settled(parse_rules(plan.layers), plan.data, plan.tensor))


def _check_hybrid_sharding(plan: Plan) -> None:
    ranks = plan.hybrid_shard_size
    if plan.data % ranks:
        raise ValueError(f"hybrid_shard_size={ranks} must divide data={plan.data}")
    if ranks == plan.data:
        _settle(plan, hybrid_shard_size=0)
        return
    if plan.zero_stage < 2:
        raise ValueError(
            f"hybrid_shard_size={ranks} needs zero_stage=2 or 3, found {plan.zero_stage}"
        )
    others = ("expert", "expert_tensor_parallel", "layers", "replicas", "spatial")
    _check_without(plan, others, f"hybrid_shard_size={ranks}")


def _check_folded(plan: Plan) -> None:
    """Check which devices share the features of experts, and which the experts."""
    features = plan.expert_tensor_parallel
    _check_without(plan, ("layers", "replicas", "spatial"), f"expert_tensor_parallel={features}")
    if features not in {1, plan.tensor}:
        raise ValueError(
            f"expert_tensor_parallel={features} must be 1 or the degree of tensor, {plan.tensor}"
        )
    if features < plan.tensor and plan.sequence == 1:
        raise ValueError(
            f"expert_tensor_parallel={features} lets the devices of tensor={plan.tensor} share"
            " positions in a mixture: it needs sequence=on"
        )
    span, within = features * plan.expert, 1
    for size in (plan.tensor, plan.context, plan.data):
        if span % within == 0 and within * size % span == 0:
            return
        within *= size
    raise ValueError(
        f"expert={plan.expert} x expert_tensor_parallel={features} must be {span} neighbours among"
        f" tensor={plan.tensor} x context={plan.context} x data={plan.data}: a divisor of the"
        " first, or of further ones times all before"
    )


def _check_order(plan: Plan) -> None:
    parts = sorted(plan.order.split("-"))
    if parts not in (sorted(DIMENSIONS), sorted((*DIMENSIONS, "spatial"))):
        raise ValueError(
            f"order {plan.order!r} must name each of {', '.join(DIMENSIONS)} once, joined by -;"
            " spatial may stand among them (else after the first)"
        )


def _check_grid(plan: Plan) -> None:
    if plan.tensor % plan.tensor_rows:
        raise ValueError(
            f"tensor_rows={plan.tensor_rows} must divide tensor={plan.tensor}, the devices of"
            " the grid"
        )
    if plan.tensor_grid is None:
        _settle(plan, tensor_rows=1)
        return
    others = ("sequence", "expert", "spatial", "layers", "replicas")
    _check_without(plan, others, f"a grid of tensor-parallel devices ({plan.tensor_grid})")


def _check_without(plan: Plan, names: tuple[str, ...], what: str) -> None:
    for name in names:
        if getattr(plan, name) != type(plan).model_fields[name].default:
            raise ValueError(f"{name}={getattr(plan, name)} is not modelled together with {what}")


def _check_schedule(plan: Plan) -> None:
    how = SCHEDULES[plan.schedule]
    if how.turns and plan.virtual_stages == 1:
        _settle(plan, virtual_stages=2)
    if how.interleaves and (plan.pipeline < 2 or plan.virtual_stages < 2):
        raise ValueError(
            f"schedule={plan.schedule} needs pipeline of at least 2 and virtual_stages of at least"
            f" 2, found pipeline={plan.pipeline}, virtual_stages={plan.virtual_stages}"
        )
    if plan.virtual_stages > 1 and not how.interleaves:
        raise ValueError(
            f"virtual_stages={plan.virtual_stages} needs schedule=interleaved, found"
            f" {plan.schedule}"
        )
    try:
        how.check(plan.pipeline, plan.micro_batches, plan.virtual_stages)
    except RidgelineError as error:
        raise ValueError(str(error)) from error
