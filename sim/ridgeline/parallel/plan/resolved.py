"""A plan as it is run: the strategy, the stack that fills what it leaves open, and noise.

The compiler reads a `ResolvedPlan` alone. `resolved` makes it of four things: fields of the plan
count before the stack's defaults, and these before those of `Plan`. Who decided each field is kept,
since a step is known by its plan as it was run, not as it was asked for.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from pydantic import Field, model_validator

from ridgeline.errors import ConfigError
from ridgeline.hardware.cluster import Cluster
from ridgeline.parallel.plan.plan import Plan
from ridgeline.parallel.schedule import SCHEDULES
from ridgeline.software.stack import Stack
from ridgeline.workload.model import Model

ALTERNATING = ("1f1b", "interleaved")
"""Schedules whose steady slots are forward and backward passes in turn."""
NEUTRAL = Stack(name="neutral", description="defaults of the schema: no cost of a program")
NOISE = ("device_speed_std", "sequence_length_std", "expert_load_factor")
"""Fields of a plan as it is run that a machine and a network say."""
_OWN = frozenset({*NOISE, "stack", "decided", "notes", "ahead"})


class ResolvedPlan(Plan):
    """A plan with everything that the compiler reads besides the graph and the machine."""

    stack: Stack = NEUTRAL
    """The program that runs the step."""
    device_speed_std: float = Field(default=0.0, ge=0.0, le=0.5)
    """Standard deviation of the speed of devices of one kind, over their mean: a step waits for the
    slowest of all that it uses (`parallel.comm.stragglers`)."""
    sequence_length_std: float = Field(default=0.0, ge=0.0, le=1.0)
    """Standard deviation of the work of a micro-batch, over its mean, where samples differ in
    length: replicas wait for the one that has the most (`parallel.comm.stragglers`)."""
    expert_load_factor: float = Field(default=1.0, ge=1.0, le=1024.0, allow_inf_nan=False)
    """Tokens of the fullest expert of a mixture, over the mean of all experts."""
    ahead: int = Field(default=0, ge=0)
    """Of a part of a network: further micro-batches that its stages have under way, since parts
    behind it do not give gradients back before (`study.parts`)."""
    decided: tuple[tuple[str, str], ...] = ()
    """Field and stack of every field of the plan that a stack decided."""
    notes: tuple[str, ...] = ()
    """Settings of the stack that this plan has no use for, or that are not modelled with it."""

    @model_validator(mode="after")
    def _check_stack(self) -> ResolvedPlan:
        _check(self)
        return self

    @property
    def strategy(self) -> dict[str, Any]:
        """The fields of `Plan` as plain values."""
        return self.model_dump(mode="json", exclude=set(_OWN))

    @property
    def chosen(self) -> dict[str, Any]:
        """The fields of `Plan` that are not as its defaults."""
        return self.model_dump(exclude_defaults=True, exclude=set(_OWN))

    @property
    def bucket_bytes(self) -> float:
        """The least size of a bucket of gradients."""
        gradients = self.stack.gradients
        return max(gradients.bucket, gradients.bucket_per_rank * self.data)

    @property
    def pipeline_buffers(self) -> int:
        """Buffers of every stage of a pipeline but the last; 0: one for each micro-batch."""
        return round(self.stack.pipeline.buffers_per_stage * self.pipeline)

    @property
    def overlaps_experts(self) -> bool:
        """Whether passes of two micro-batches go on side by side, each waiting for experts."""
        return self.stack.overlap.moe_a2a and self.expert > 1 and self.schedule in ALTERNATING

    def __str__(self) -> str:
        return ",".join(f"{name}={value}" for name, value in self.chosen.items())


def resolved(
    plan: Plan, stack: Stack = NEUTRAL, cluster: Cluster | None = None, model: Model | None = None
) -> ResolvedPlan:
    """Return a plan as a stack runs it for a model on a cluster.

    Raises
    ------
    ConfigError
        If a setting that was asked for is not modelled together with the plan.
    """
    if isinstance(plan, ResolvedPlan):
        return plan
    stack = stack.with_settings(_below("software", plan.moved)) if plan.moved else stack
    network = None if model is None else model.network
    noise = {
        "device_speed_std": 0.0 if cluster is None or stack.bound else cluster.speed_std,
        "sequence_length_std": 0.0 if network is None else network.sequence_length_std,
        "expert_load_factor": 1.0 if network is None else network.expert_load_factor,
        **_below("cluster", plan.moved),
        **_below("model", plan.moved),
    }
    filled, notes = _filled(plan, stack, cluster, model)
    if stack.overlap.moe_a2a and plan.expert > 1 and plan.schedule not in ALTERNATING:
        notes.append(
            f"{stack.name} overlaps all-to-alls of experts, which schedule={plan.schedule} does not"
            f" do; those that do: {', '.join(ALTERNATING)}"
        )
    if network is not None and network.recorded and _rewrites_networks(stack):
        notes.append(
            "the network is a record of ops: its attention, loss and tables are as recorded, not as"
            f" {stack.name} computes them"
        )
    notes += _split_groups(Plan(**{**_own(plan), **filled}), cluster)
    decided = tuple((name, stack.name) for name in filled)
    return ResolvedPlan(
        **{**_own(plan), **filled}, **noise, stack=stack, decided=decided, notes=tuple(notes)
    )


def _split_groups(plan: Plan, cluster: Cluster | None) -> Iterator[str]:
    """Tell of ranks that exchange tokens of experts in part over the slower network.

    Ranks are numbered device by device: where a node does not hold whole groups, some are split.
    """
    beside = plan.expert_tensor_parallel or plan.tensor
    group = plan.expert * beside * (1 if plan.expert_tensor_parallel else plan.context)
    held = 0 if cluster is None else cluster.nodes.count
    if plan.expert > 1 and group < held < plan.devices and held % group:
        yield (
            f"nodes of {held} devices hold no whole number of groups of {group} ranks that"
            f" exchange tokens of experts: some cross nodes, which none would on"
            f" {held // group} x {group} = {held - held % group} devices of each"
        )


def _rewrites_networks(stack: Stack) -> bool:
    """Tell whether a stack says how a network's own layers are computed (`programmed`)."""
    kernels = stack.kernels
    return (kernels.attention, kernels.cross_entropy, kernels.embedding_tables) != (None,) * 3


def _below(root: str, moved: Mapping[str, Any]) -> dict[str, Any]:
    head = f"{root}."
    return {path.removeprefix(head): v for path, v in moved.items() if path.startswith(head)}


def _filled(
    plan: Plan, stack: Stack, cluster: Cluster | None, model: Model | None
) -> tuple[dict[str, Any], list[str]]:
    """Return the fields of a plan that a stack decides, and what of its defaults does not apply."""
    notes: list[str] = []
    filled: dict[str, Any] = {}
    for name, value in stack.plan:
        if value is None or name in plan.model_fields_set:
            continue
        found = _DEFAULTS[name](plan, value, cluster, model).items()
        filled |= {
            field: of_plan
            for field, of_plan in found
            if field not in plan.model_fields_set and of_plan != getattr(plan, field)
        }
    try:
        Plan(**{**_own(plan), **filled})
    except ConfigError:
        return _without_contradictions(plan, filled, notes, stack), notes
    return filled, notes


def _own(plan: Plan) -> dict[str, Any]:
    """Return all fields of a plan, those that it has settled itself as they are now."""
    return {name: getattr(plan, name) for name in Plan.model_fields}


def _without_contradictions(
    plan: Plan, filled: Mapping[str, Any], notes: list[str], stack: Stack
) -> dict[str, Any]:
    """Leave out, and note, every default that a plan's own fields do not go with."""
    own = _own(plan)
    kept: dict[str, Any] = {}
    for name, value in filled.items():
        try:
            Plan(**{**own, **kept, name: value})
        except ConfigError as error:
            notes.append(f"{stack.name} would have {name}={value}: {error.message}")
        else:
            kept[name] = value
    return kept


def _sequence(plan: Plan, value: Any, *_: object) -> dict[str, Any]:
    return {"sequence": plan.tensor} if value and plan.tensor_grid is None else {}


def _same(name: str) -> Any:
    return lambda plan, value, *_: {name: value}


def _zero_stage(plan: Plan, value: Any, *_: object) -> dict[str, Any]:
    return {} if plan.layers or plan.replicas else {"zero_stage": value}


def _hybrid(plan: Plan, value: Any, cluster: Cluster | None, _: object) -> dict[str, Any]:
    """Share what is sharded within a slice of a machine, or a node, where there are several."""
    if cluster is None or plan.zero_stage < 2:
        return {}
    return {"hybrid_shard_size": devices_of_slice(cluster, plan.devices) // plan.sharing}


def devices_of_slice(cluster: Cluster, devices: int) -> int:
    """Return the devices of one of several slices of a machine, or nodes; 0 where there is one."""
    fabric, each = cluster.fabric, cluster.nodes.count
    if fabric is not None and fabric.slices_of(devices // each) > 1:
        return fabric.of_slice * each
    return each if 1 < each < devices else 0


def _expert_tensor(plan: Plan, value: Any, *_: object) -> dict[str, Any]:
    return {"expert_tensor_parallel": value} if plan.expert > 1 else {}


def _ring(plan: Plan, value: Any, *_: object) -> dict[str, Any]:
    return {"cp_comm_type": value} if plan.context > 1 else {}


def _schedule(plan: Plan, value: Any, _: object, model: Model | None) -> dict[str, Any]:
    """Take the schedule; an interleaved one in as many virtual stages as the layers allow."""
    if plan.pipeline == 1:
        return {}
    if not SCHEDULES[value].interleaves or plan.virtual_stages > 1:
        return {"schedule": value}
    layers = getattr(model and model.network, "layers", None)
    if not isinstance(layers, int):
        return {}
    # Embedding and classifier count as layers.
    return {"schedule": value, "virtual_stages": max((layers + 2) // plan.pipeline, 2)}


def _stage_balance(plan: Plan, value: Any, *_: object) -> dict[str, Any]:
    return {"stage_balance": value} if plan.pipeline > 1 else {}


_DEFAULTS: Mapping[str, Any] = {
    "sequence": _sequence,
    "zero_stage": _zero_stage,
    "hybrid_shard_size": _hybrid,
    "expert_tensor_parallel": _expert_tensor,
    "cp_comm_type": _ring,
    "recompute": _same("recompute"),
    "schedule": _schedule,
    "stage_balance": _stage_balance,
    "precision": _same("precision"),
}
"""How a default of a stack becomes fields of a plan, by its name in `PlanDefaults`."""


def pipeline_defaults(plan: ResolvedPlan, model: Model) -> dict[str, Any]:
    """Return what its stack decides of a plan that has got a pipeline only now."""
    found: dict[str, Any] = {}
    for name in ("schedule", "stage_balance"):
        value = getattr(plan.stack.plan, name)
        if value is not None and getattr(plan, name) == Plan.model_fields[name].default:
            found |= _DEFAULTS[name](plan, value, None, model)
    return found


def _check(plan: ResolvedPlan) -> None:
    """Refuse settings of a stack that are not modelled together with a plan."""
    if plan.stack.moe.dispatch != "per-expert" and plan.expert_load_factor > 1:
        raise ConfigError(
            f"an expert_load_factor of {plan.expert_load_factor:g} is of rows for each expert: it"
            " needs per-expert",
            field="software.moe.dispatch",
        )
    reduce_dtype = plan.stack.gradients.reduce_dtype
    if reduce_dtype and plan.zero_stage:
        raise ConfigError(
            f"{reduce_dtype} is for gradients that are reduced whole: it needs zero_stage=0, not"
            f" {plan.zero_stage}",
            field="software.gradients.reduce_dtype",
        )
    if plan.pipeline_buffers:
        _check_buffers(plan)
    if plan.stack.kernels.fused_layers is not None:
        _check_fused_layers(plan)


def _check_fused_layers(plan: ResolvedPlan) -> None:
    found = [f"{name}={n}" for name in _DIVIDING if (n := getattr(plan, name)) > 1]
    others = {"spatial": "1", "offload": "none", "layers": "", "replicas": ""}
    found += [
        f"{name}={value}"
        for name, usual in others.items()
        if (value := getattr(plan, name)) != usual
    ]
    found += [f"zero_stage={plan.zero_stage}"] if plan.zero_stage > 1 else []
    if found:
        raise ConfigError(
            "layers are fused where each device does the whole network with all of its weights,"
            f" found {', '.join(found)}; allowed: data, micro_batch, zero_stage up to 1",
            field="software.kernels.fused_layers",
        )


_DIVIDING = ("pipeline", "tensor", "context", "expert")


def _check_buffers(plan: ResolvedPlan) -> None:
    field = "software.pipeline.buffers_per_stage"
    if plan.virtual_stages > 1 or plan.replicas:
        raise ConfigError("not modelled together with virtual_stages or replicas", field=field)
    count = SCHEDULES[plan.schedule].in_flight
    most = count(0, plan.pipeline, plan.micro_batches, 1)
    if plan.pipeline > 1 and plan.pipeline_buffers < most:
        raise ConfigError(
            f"{plan.pipeline_buffers} buffers: the first stage has {most} micro-batches under way;"
            " allowed: 0, or at least as many",
            field=field,
        )
