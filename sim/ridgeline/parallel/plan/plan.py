"""A Plan: how a training step is distributed over devices."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    PrivateAttr,
    ValidationError,
    model_validator,
)

from ridgeline import views
from ridgeline.config import Strict
from ridgeline.errors import ConfigError, RidgelineError, nearest, said, short
from ridgeline.parallel.checkpointing.mode_text import RecomputeMode
from ridgeline.parallel.checkpointing.offload_modules import parse_offload_modules
from ridgeline.parallel.plan.layers import LayerRule, parse_rules, settled
from ridgeline.parallel.plan.moved_fields import split_moved
from ridgeline.parallel.plan.replicas import (
    SCHEDULES_WITH_REPLICAS,
    counts_of,
    written_counts,
)
from ridgeline.parallel.schedule import SCHEDULES, named
from ridgeline.parallel.sharding.halo import grid_of, written_grid
from ridgeline.parallel.sharding.tensor_2d import Grid, Mode, with_tensor_grid
from ridgeline.workload.optimizers import STATE_FORMATS

DIMENSIONS = ("tensor", "context", "data", "pipeline")
"""Dimensions of the plan that devices are numbered by, the innermost first, by default."""

SWITCH = {"on": 0, "true": 0, "off": 1, "false": 1}
"""Words for `sequence`; 0 is the degree of `tensor`."""


def _degree(raw: object) -> object:
    """Read on and off, which stand for the degree of `tensor` and 1."""
    return SWITCH.get(str(raw).lower(), raw) if isinstance(raw, bool | str) else raw


def _recomputed(raw: object) -> object:
    """Check a mode of recomputation, or names of modules, which are put in order."""
    return str(RecomputeMode.parse(raw, RECOMPUTE_MODES)) if isinstance(raw, str) else raw


def _offloaded(policy: str) -> str:
    return policy if policy in ("none", "all", "conv") else parse_offload_modules(policy)


def _state_format(name: str | None) -> str | None:
    if name is not None and name not in STATE_FORMATS:
        near = nearest(name, STATE_FORMATS)
        raise ValueError(f"allowed: {', '.join(STATE_FORMATS)}; found {short(name)}{near}")
    return name


def _rules(raw: object) -> object:
    """Check the grammar of rules for layers; their degrees wait for those of the plan."""
    return raw if isinstance(raw, str) and not raw else _written(parse_rules(raw))


def _written(rules: tuple[LayerRule, ...]) -> str:
    def degrees(rule: LayerRule) -> str:
        both = (("data", rule.data), ("tensor", rule.tensor))
        return ",".join(f"{name}={count}" for name, count in both if count is not None)

    return ";".join(f"{rule.pattern}:{degrees(rule)}" for rule in rules)


RECOMPUTE_MODES = (
    "none", "full", "selective", "alternate", "products", "projections", "sqrt", "optimal",
)  # fmt: skip
"""Modes of recomputation of a plan (`parallel.checkpointing.recompute`)."""
MOST_SAMPLES = 2**31
"""Of a step: what counts of them stay exact in 64 bits after they are multiplied."""


class Plan(Strict):
    """Parallel strategy of one training step: degrees, batch, precision, schedule, recomputation.

    ``global_batch`` samples are shared evenly by the data-parallel ranks; each works through its
    share in micro-batches, whose gradients it accumulates. What the program does besides is a
    `software.Stack`, whose defaults fill fields that a plan leaves open (`plan.resolved`).
    """

    global_batch: int = Field(ge=1, le=MOST_SAMPLES)
    """Samples of one weight update, over all devices."""
    data: int = Field(default=1, ge=1, le=10**6)
    """Replicas of the model, which share the batch."""
    tensor: int = Field(default=1, ge=1, le=10**6)
    """Devices that share every op and its weights (Megatron-LM); ``4x2``: in a grid of 4 rows and 2
    columns (`parallel.sharding.tensor_2d`), of which `tensor_rows` is then 4."""
    tensor_rows: int = Field(default=1, ge=1, le=10**6)
    """Rows of the grid of tensor-parallel devices; 1: they share ops in one dimension."""
    tensor_mode: Mode = "gather"
    """What moves in a grid: weights to the samples of each row, all at once (``gather``, GSPMD) or
    panel by panel (``summa``, Optimus), or activations to weights that stay (``stationary``)."""
    sequence: Annotated[int, BeforeValidator(_degree)] = Field(default=1, ge=0, le=10**6)
    """Devices that share the positions of a sequence between the ops that `tensor` divides: off (1)
    or on, which is the degree of `tensor`."""
    context: int = Field(default=1, ge=1, le=10**6)
    """Devices that share the positions of every sequence, with all weights on each."""
    cp_comm_type: Literal["all-gather", "ring"] = "all-gather"
    """How attention gets the keys and values of other devices' positions: gathered before it, or
    block by block while it computes with another (ring attention,
    `parallel.sharding.ring_attention`)."""
    spatial: Annotated[str, BeforeValidator(written_grid)] = "1"
    """Devices that share the rows of images, or ``2x4`` their rows and columns, with all weights
    on each (`parallel.sharding.spatial`)."""
    pipeline: int = Field(default=1, ge=1, le=10**6)
    """Stages that the layers are cut into."""
    replicas: Annotated[str, BeforeValidator(written_counts)] = ""
    """Replicas of every stage, where stages differ: ``9-5-1-1``; `data` and `pipeline` follow."""
    virtual_stages: int = Field(default=1, ge=1, le=10**4)
    """Parts of the model on each stage, of an interleaved schedule."""
    expert: int = Field(default=1, ge=1, le=10**6)
    """Of the data-parallel ranks, so many share the experts of a mixture."""
    expert_tensor_parallel: int = Field(default=0, ge=0, le=10**6)
    """Devices that share the features of each expert (Megatron-Core): 1, so that those of `tensor`
    compute experts' rows of positions of their own, or `tensor`; ranks that share experts are then
    neighbours among tensor x context x data. 0: as `tensor`, and these ranks are among `data`."""
    micro_batch: int | None = Field(default=None, ge=1, le=MOST_SAMPLES)
    """Samples that one rank processes at a time; None: 1 in a pipeline, else all of its share."""
    precision: str | None = None
    """fp32, tf32, fp16-mixed, bf16-mixed, fp16-autocast, bf16-autocast, fp8-mixed, fp8-dynamic,
    fp8-block-mixed, mxfp8-mixed, mxfp4-mixed, nvfp4-mixed, int8-mixed, bf16-true, fp16-true,
    flex16+5, fp64, fp16, int16, int8 (all in that one format), or X-as-Y (stored as X, multiplied
    as Y); None: the model's, or the widest that the device has where it has neither that nor
    fp32."""
    optimizer: str | None = None
    """None: the model's own."""
    optimizer_state: Annotated[str | None, AfterValidator(_state_format)] = None
    """Format that the optimizer's state is kept in: fp32, bf16, fp16, fp8-e4m3, fp8-e5m2, or
    int8-block (blocks of 256 numbers with a scale); None: as the optimizer has it."""
    optimizer_offload: float = Field(default=0.0, ge=0, le=1)
    """Share of the parameters whose updates the host does: their master weights and the optimizer's
    state lie in its memory (`parallel.checkpointing.host_updates`)."""
    forward_only: bool = False
    """Whether the step is a forward pass alone: inference on the global batch, without the loss."""
    schedule: Annotated[str, BeforeValidator(named)] = "1f1b"
    """In which order the stages of a pipeline work; pipedream and continuous never flush, so that a
    step is one update's share of a stream, and weights are as old as their micro-batches."""
    stage_balance: Literal["even", "layers", "ends"] = "even"
    """Where a pipeline is cut: wherever stages come closest to equal times; between layers, equally
    many on each stage, with what comes before and after them on the first and the last; or so that
    this counts as one layer at either end."""
    zero_stage: int = Field(default=0, ge=0, le=3)
    """What the data-parallel ranks share (ZeRO): 1 optimizer state, 2 gradients, too, 3 weights,
    too."""
    hybrid_shard_size: int = Field(default=0, ge=0, le=10**6)
    """Of zero_stage=2 or 3, so many neighbours of `data` share; those of equal place beyond have
    the same, and sum the gradients of their parts (hybrid sharding; MaxText across slices). 0: all.
    """
    recompute: Annotated[str, BeforeValidator(_recomputed)] = "none"
    """What the backward pass computes again: every block, the scores of attention, every other
    product of each block, all but products and attention, all but products of weights (JAX),
    stretches of about the square root of the blocks, or what is least for as much memory
    (revolve); modules of every layer, joined by + (`parallel.checkpointing.modules`); every N-th
    block (``full:N``), the first N of each stage (``block:N``), stretches of N (``uniform:N``);
    or what costs least where blocks keep a share of the activations, or some bytes of them
    (``budget:0.4``, ``budget:8 GB``)."""
    offload: Annotated[str, AfterValidator(_offloaded)] = "none"
    """Which activations wait in the host's memory for the backward pass: all that it reads, those
    that convolutions read (vDNN), or what modules of every layer save, joined by +
    (`parallel.checkpointing.offload_modules`)."""
    layers: Annotated[str, BeforeValidator(_rules)] = ""
    """Layers that the data x tensor devices divide otherwise than the rest, as
    ``PATTERN:tensor=N;...`` (`parallel.plan.layers`): N devices share the features of these
    layers, the samples are divided between such groups. The first pattern that matches counts."""
    order: str = "-".join(DIMENSIONS)
    """Which dimension numbers neighbouring devices: the innermost first."""

    _moved: Mapping[str, Any] = PrivateAttr(default_factory=dict)

    def __init__(self, **fields: Any) -> None:
        fields, moved = split_moved(fields)
        try:
            super().__init__(**fields)
        except ValidationError as error:
            raise _explained(error) from error
        self._moved = moved

    @property
    def moved(self) -> Mapping[str, Any]:
        """Fields given by names that have left `Plan`, by their new path (`plan.moved_fields`)."""
        return self._moved

    @model_validator(mode="before")
    @classmethod
    def _in_a_grid(cls, fields: Any) -> Any:
        return with_tensor_grid(fields) if isinstance(fields, dict) else fields

    @model_validator(mode="after")
    def _check(self) -> Plan:
        _check(self)
        return self

    def widest(self) -> Plan:
        """Return this plan with `tensor` as wide as its widest layer, which holds the others.

        A rank of that plan is one of a group of neighbours that share a larger micro-batch; layers
        with a smaller degree divide it between them. Rules then cover all layers.
        """
        if not self.layers:
            return self
        rules = parse_rules(f"{self.layers};*:tensor={self.tensor}")
        tensor = max(rule.tensor or 1 for rule in rules)
        data = self.data * self.tensor // tensor
        return self.model_copy(
            update={
                "data": data,
                "tensor": tensor,
                "sequence": 1 if self.sequence == 1 else tensor,
                "micro_batch": self.micro_batch_size * self.data // data,
                "layers": _written(rules),
            }
        )

    @property
    def devices(self) -> int:
        """Number of devices that the plan uses."""
        if self.replicas:
            return sum(counts_of(self.replicas)) * self.tensor * self.context
        return self.data * self.sharing * self.pipeline

    @property
    def grid(self) -> tuple[int, int]:
        """Devices along the rows, and along the columns, of images."""
        return grid_of(self.spatial)

    @property
    def tensor_grid(self) -> Grid | None:
        """Rows and columns of tensor-parallel devices; None: one dimension shares ops."""
        columns = self.tensor // self.tensor_rows
        one = 1 in {self.tensor_rows, columns}
        return None if one else Grid(self.tensor_rows, columns, self.tensor_mode)

    @property
    def sharing(self) -> int:
        """Devices that work on the same samples on each stage."""
        return self.tensor * self.context * math.prod(self.grid)

    @property
    def rank_batch(self) -> int:
        """Samples of one data-parallel rank in one step."""
        return self.global_batch // self.data

    @property
    def micro_batch_size(self) -> int:
        """Samples that one rank processes at a time."""
        return self.micro_batch or (1 if self.pipeline > 1 else self.rank_batch)

    @property
    def micro_batches(self) -> int:
        """How many micro-batches a rank accumulates before the update."""
        return self.rank_batch // self.micro_batch_size

    def _repr_html_(self) -> str:
        return views.html("plan", self)

    def __str__(self) -> str:
        shown = self.model_dump(exclude_defaults=True)
        return ",".join(f"{name}={value}" for name, value in shown.items())


def _explained(error: ValidationError) -> ConfigError:
    """Say the first mistake in the words of a user."""
    unknown_first = sorted(error.errors(), key=lambda one: one["type"] != "extra_forbidden")
    problem, *further = unknown_first  # a mistyped name often causes a missing one
    name = ".".join(["plan", *(str(part) for part in problem["loc"])])
    if problem["loc"][1:] == ("bool",):  # or one of some words, which is the next mistake
        words = ["true", "false", *further[0]["ctx"]["expected"].split("'")[1::2]]
        near = nearest(str(problem["input"]), words)
        allowed = f"allowed: {', '.join(words)}; found {short(problem['input'])}{near}"
        return ConfigError(allowed, field=f"plan.{problem['loc'][0]}")
    if problem["type"] == "value_error":
        return ConfigError(str(problem["ctx"]["error"]), field=name)
    if problem["type"] == "extra_forbidden":
        field = str(problem["loc"][-1])
        near = nearest(field, Plan.model_fields)
        return ConfigError(f"unknown field{near}", field=name)
    if problem["type"] == "missing":
        return ConfigError("this field must be given", field=name)
    return ConfigError(said(problem), field=name)


def _check(plan: Plan) -> None:
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
