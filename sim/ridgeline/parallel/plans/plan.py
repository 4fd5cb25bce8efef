"""A Plan: how a training step is distributed over devices."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, PrivateAttr, ValidationError, model_validator

from ridgeline import views
from ridgeline.config import Strict
from ridgeline.errors import ConfigError, nearest, said, short
from ridgeline.parallel.division.grid import Grid, Mode, with_tensor_grid
from ridgeline.parallel.division.reach import grid_of, written_grid
from ridgeline.parallel.plans.checks import DIMENSIONS, check
from ridgeline.parallel.plans.layers import LayerRule, parse_rules
from ridgeline.parallel.plans.moved_fields import split_moved
from ridgeline.parallel.plans.replicas import counts_of, written_counts
from ridgeline.parallel.recomputing.modules import JOINED, MODULES, parse_modules
from ridgeline.parallel.stages.schedules import named

SWITCH = {"on": 0, "true": 0, "off": 1, "false": 1}
"""Words for `sequence`; 0 is the degree of `tensor`."""


def _degree(raw: object) -> object:
    """Read on and off, which stand for the degree of `tensor` and 1."""
    return SWITCH.get(str(raw).lower(), raw) if isinstance(raw, bool | str) else raw


def _recomputed(raw: object) -> object:
    """Check a mode of recomputation, or names of modules, which are put in order."""
    if not isinstance(raw, str) or raw in RECOMPUTE_MODES:
        return raw
    try:
        return JOINED.join(parse_modules(raw))
    except ValueError:
        near = nearest(raw, (*RECOMPUTE_MODES, *MODULES))
        raise ValueError(
            f"allowed: {', '.join(RECOMPUTE_MODES)}; or modules joined by {JOINED}:"
            f" {', '.join(MODULES)}; found {short(raw)}{near}"
        ) from None


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
"""Modes of recomputation of a plan (`parallel.recomputing.recompute`)."""
MOST_SAMPLES = 2**31
"""Of a step: what counts of them stay exact in 64 bits after they are multiplied."""


class Plan(Strict):
    """Parallel strategy of one training step: degrees, batch, precision, schedule, recomputation.

    ``global_batch`` samples are shared evenly by the data-parallel ranks; each works through its
    share in micro-batches, whose gradients it accumulates. What the program does besides is a
    `software.Stack`, whose defaults fill fields that a plan leaves open (`plans.resolved`).
    """

    global_batch: int = Field(ge=1, le=MOST_SAMPLES)
    """Samples of one weight update, over all devices."""
    data: int = Field(default=1, ge=1, le=10**6)
    """Replicas of the model, which share the batch."""
    tensor: int = Field(default=1, ge=1, le=10**6)
    """Devices that share every op and its weights (Megatron-LM); ``4x2``: in a grid of 4 rows and 2
    columns (`parallel.division.grid`), of which `tensor_rows` is then 4."""
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
    block by block while it computes with another (ring attention, `parallel.division.ring`)."""
    spatial: Annotated[str, BeforeValidator(written_grid)] = "1"
    """Devices that share the rows of images, or ``2x4`` their rows and columns, with all weights
    on each (`parallel.division.spatial`)."""
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
    forward_only: bool = False
    """Whether the step is a forward pass alone: inference on the global batch, without the loss."""
    schedule: Annotated[
        Literal[
            "1f1b",
            "gpipe",
            "interleaved",
            "zero-bubble",
            "zero-bubble-h2",
            "zero-bubble-v",
            "pipedream",
            "continuous",
        ],
        BeforeValidator(named),
    ] = "1f1b"
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
    (revolve); or modules of every layer, joined by + (`parallel.recomputing.modules`)."""
    offload: Literal["none", "all", "conv"] = "none"
    """Which activations wait in the host's memory for the backward pass: all that it reads, or
    those that convolutions read (vDNN)."""
    layers: Annotated[str, BeforeValidator(_rules)] = ""
    """Layers that the data x tensor devices divide otherwise than the rest, as
    ``PATTERN:tensor=N;...`` (`parallel.plans.layers`): N devices share the features of these
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
        """Fields given by names that have left `Plan`, by their new path (`plans.moved_fields`)."""
        return self._moved

    @model_validator(mode="before")
    @classmethod
    def _in_a_grid(cls, fields: Any) -> Any:
        return with_tensor_grid(fields) if isinstance(fields, dict) else fields

    @model_validator(mode="after")
    def _check(self) -> Plan:
        check(self)
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
    problem, *further = error.errors()
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
