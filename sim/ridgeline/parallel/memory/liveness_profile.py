"""Liveness profile: memory of one device over a step, by kind, without simulating it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from ridgeline import views
from ridgeline.errors import RidgelineError
from ridgeline.kernels.cudnn_fp32_conv import Library, workspace_bytes
from ridgeline.parallel.checkpointing.host_updates import with_host_updates
from ridgeline.parallel.checkpointing.offload import check_offload, copied_bytes, with_offload
from ridgeline.parallel.checkpointing.recompute import Mode, with_recompute
from ridgeline.parallel.emit.grad_accumulation import copied, lasting, with_gradients
from ridgeline.parallel.emit.zero import with_sharding
from ridgeline.parallel.memory.allocator import life_of, lost_bytes
from ridgeline.parallel.memory.static_allocation import StaticMemory, at_once
from ridgeline.parallel.plan.programmed import programmed
from ridgeline.parallel.plan.resolved import resolved
from ridgeline.parallel.plan.stack_choice import choose_stack
from ridgeline.parallel.plan.update_rule import update_rule
from ridgeline.parallel.sharding.spatial import with_shared_images
from ridgeline.software.stack import Stack
from ridgeline.workload.files import load_network
from ridgeline.workload.graph import Graph, Pass, Role
from ridgeline.workload.liveness import MEMORY_KINDS, MemoryPlan, lifetimes, memory_entries
from ridgeline.workload.model import Model

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from ridgeline.hardware.device import Device
    from ridgeline.parallel.plan.plan import Plan

_DISTRIBUTED = ("tensor", "context", "pipeline", "expert")
_LARGEST = 10


@dataclass(frozen=True)
class StepMemory:
    """What a device holds while the ops of a step run, in order.

    Attributes
    ----------
    graph
        The ops, with those of recomputation and offload.
    held_bytes
        [T, 5] bytes of each memory kind while each op runs.
    spaces
        Work space of convolutions, by op.
    """

    graph: Graph
    held_bytes: npt.NDArray[np.int64]
    spaces: Mapping[str, int] = field(default_factory=dict)

    @property
    def kinds(self) -> tuple[str, ...]:
        """Names of the memory kinds, in the order of the columns."""
        return MEMORY_KINDS

    def plot(self, ax: Axes | None = None) -> Axes:
        """Draw the bytes of each kind while each op runs, into `ax` or a figure of its own."""
        return views.view("held_memory")(self, ax)  # type: ignore[no-any-return]

    @cached_property
    def fullest(self) -> int:
        """Index of the op at the fullest moment."""
        return int(np.argmax(self.held_bytes.sum(axis=1)))

    @property
    def peak(self) -> dict[str, int]:
        """Bytes by kind at the fullest moment, and their total."""
        parts = self.held_bytes[self.fullest].tolist()
        return {**dict(zip(MEMORY_KINDS, parts, strict=True)), "total": sum(parts)}

    @cached_property
    def largest(self) -> tuple[tuple[str, int], ...]:
        """The largest tensors at the fullest moment, with their bytes."""
        tensors = self.graph.tensors
        spans = lifetimes(self.graph)
        there = [
            (name, tensors[name].bytes)
            for name, (first, last) in spans.items()
            if first <= self.fullest <= last and tensors[name].role is not Role.HOST
        ]
        return tuple(sorted(there, key=lambda pair: (-pair[1], pair[0]))[:_LARGEST])

    @cached_property
    def at_once(self) -> StaticMemory:
        """What the step would take if everything were allocated before it began (vDNN's baseline).

        Of a step without recomputation and offload.

        Raises
        ------
        RidgelineError
            If the step has one of them.
        """
        if any(op.pass_ is Pass.RECOMPUTE for op in self.graph.ops):
            raise RidgelineError(
                "memory: allocation at once is of a step without recomputation and offload"
            )
        return at_once(self.graph, self.spaces)

    @property
    def recompute_share(self) -> float:
        """Matrix FLOPs that are done again, as a share of those of the step without."""
        again = (op.matrix_flops for op in self.graph.ops if op.pass_ is Pass.RECOMPUTE)
        return sum(again) / self.graph.flops() if self.graph.flops() else 0.0

    def to_dict(self) -> dict[str, Any]:
        """Return everything but the ops as plain values."""
        return {
            "model": self.graph.name,
            "batch": self.graph.batch,
            "precision": self.graph.precision,
            "peak_bytes": self.peak,
            "fullest_op": self.graph.ops[self.fullest].name,
            "kept_activation_bytes": self.graph.activation_bytes,
            "recompute_share": self.recompute_share,
            "offloaded_bytes": copied_bytes(self.graph),
            "largest_tensors": dict(self.largest),
        }

    def __repr__(self) -> str:
        return f"<Memory of {self.graph.name}, batch {self.graph.batch}: {self.peak['total']:,} B>"


def memory(
    model: Model | str,
    plan: Plan,
    *,
    recompute: Mode | None = None,
    offload: str | None = None,
    budget_bytes: float | None = None,
    convolutions: Device | None = None,
    library: Library | None = None,
    software: Stack | str | None = None,
) -> StepMemory:
    """Return what one device holds during a step of a plan.

    Tensors live from the op that makes them to the last one that reads them (see
    `ridgeline.workload.liveness`); gradients that are accumulated over micro-batches are held all
    the time. `simulate` gives the same kinds over time, for every rank of a distributed plan: equal
    at the peak, but that sharded gradients and weights are sent and fetched a bit ahead or behind.

    Parameters
    ----------
    recompute
        None: the plan's own mode; else any of `with_recompute`.
    offload
        Which activations wait in the host's memory (see `with_offload`). None: as the plan says.
    budget_bytes
        Of recompute="budget".
    convolutions, library
        A device on which every fp32 convolution runs with the fastest algorithm of a library:
        its work space is held while it runs (`kernels.cudnn_fp32_conv`). None: there is
        none; of a device without a library, cuDNN 5.

    Raises
    ------
    RidgelineError
        If the plan divides the model over devices, or something in it is unknown.
    """
    model = load_network(model) if isinstance(model, str) else model
    plan = resolved(plan, choose_stack(software, model).stack, None, model)
    wide = plan.widest()
    divided = [f"{name}={getattr(wide, name)}" for name in _DISTRIBUTED if getattr(wide, name) > 1]
    if plan.zero_stage and plan.spatial != "1":
        divided.append(f"spatial={plan.spatial} with zero_stage={plan.zero_stage}")
    if divided:
        raise RidgelineError(
            f"memory: {', '.join(divided)} divides the model over devices; simulate the plan on a "
            "cluster for the memory of its ranks"
        )
    if plan.stack.kernels.fused_layers is not None:
        raise RidgelineError(
            f"memory: {plan.stack.name} fuses layers as is best for a device; run the step there"
        )
    if library is not None and convolutions is None:
        raise RidgelineError(
            f"memory: library {library!r} belongs to convolutions: name the device that they run on"
        )
    year = None if convolutions is None else convolutions.year
    graph = training_graph_of(programmed(model, plan.stack.kernels, year), plan)
    shared = plan.stack.kernels.sync_batch_norm
    graph = with_shared_images(graph, *plan.grid, shared_statistics=shared).graph
    graph = with_recompute(graph, recompute or plan.recompute, budget_bytes=budget_bytes)
    check_offload(graph, offload or plan.offload)
    graph = with_offload(graph, offload or plan.offload)
    graph = with_gradients(graph, plan.stack.gradients.main_grads)
    graph = with_sharding(
        graph, plan.zero_stage, plan.hybrid_shard_size or plan.data, plan.bucket_bytes,
        regather=plan.stack.zero.reshard_after_forward, copies=plan.stack.zero.gather_copies,
    )  # fmt: skip
    graph = with_host_updates(graph, plan.optimizer_offload)
    copies = copied(graph, plan.stack.gradients.main_grads)
    entries = memory_entries(
        graph,
        gradients_persist=plan.micro_batches > 1 or bool(copies.beside),
        **copies._asdict(),
    )
    held = _held_bytes(entries)
    beyond, less = round(plan.stack.memory.runtime), 0
    if plan.stack.memory.allocator == "caching":
        life = life_of(
            entries,
            {0: range(len(graph.ops))},
            lasting=lasting(plan.stack.gradients.main_grads),
            begun=copies.begun(graph),
        )
        lost = lost_bytes([life], *np.zeros((3, 1), np.int64))
        beyond, less = beyond + max(lost, 0), min(lost, 0)
    held[:, MEMORY_KINDS.index("workspace")] += beyond
    held[:, MEMORY_KINDS.index("gradients")] += less
    spaces: Mapping[str, int] = {}
    if convolutions is not None:
        spaces = workspace_bytes(graph, convolutions, library or "cudnn5")
        held[:, MEMORY_KINDS.index("workspace")] += [spaces.get(op.name, 0) for op in graph.ops]
    return StepMemory(graph, held, spaces)


def training_graph_of(model: Model, plan: Plan) -> Graph:
    """Return the training graph of one micro-batch of a plan, all of it on one device."""
    precision = plan.precision or model.network.precision
    return model.training(plan.micro_batch_size, precision, update_rule(plan, model))


def held_bytes(graph: Graph, *, gradients_persist: bool = False) -> npt.NDArray[np.int64]:
    """Return the bytes of each memory kind while each op runs: [ops, kinds]."""
    return _held_bytes(memory_entries(graph, gradients_persist=gradients_persist))


def _held_bytes(plan: MemoryPlan) -> npt.NDArray[np.int64]:
    column = {kind: k for k, kind in enumerate(MEMORY_KINDS)}
    starts = np.zeros((len(plan.entries), len(column)), np.int64)
    ends = np.zeros_like(starts)
    for i, entries in enumerate(plan.entries):
        for entry in entries:
            starts[i, column[entry.kind]] += entry.start_bytes
            ends[i, column[entry.kind]] += entry.end_bytes
    after = np.cumsum(starts + ends, axis=0)
    initial = np.array([plan.initial[kind] for kind in MEMORY_KINDS], np.int64)
    held: npt.NDArray[np.int64] = initial + after - ends
    return held


def model_states(graph: Graph, sharding: int = 0, ranks: int = 1) -> Mapping[str, float]:
    """Return the bytes of weights, gradients and optimizer on one of several data-parallel ranks.

    Counted as ZeRO counts them (Rajbhandari et al., SC 2020, arXiv:1910.02054, section 3.1):
    weights and gradients in the format that the passes compute in, and with the optimizer the
    master copy of the weights that mixed precision needs beside them. Stage 1 divides the
    optimizer's part by the ranks, 2 the gradients, too, 3 the weights, too.

    Raises
    ------
    RidgelineError
        If there is no such stage.
    """
    if sharding not in range(4) or ranks < 1:
        raise RidgelineError(f"zero_stage={sharding} over {ranks} ranks; stages are 0 to 3")
    copied = {
        op.inputs[0]: op.outputs[0]
        for op in graph.ops
        if op.kind == "cast" and graph.tensors[op.outputs[0]].role is Role.WEIGHT_COPY
    }
    weights = [t for t in graph.tensors.values() if t.role is Role.WEIGHT]
    computed = sum(graph.tensors[copied.get(t.name, t.name)].bytes for t in weights)
    states = sum(t.bytes for t in graph.tensors.values() if t.role is Role.STATE)
    masters = sum(t.bytes for t in weights if t.name in copied)
    return {
        "weights": computed / (ranks if sharding >= 3 else 1),
        "gradients": computed / (ranks if sharding >= 2 else 1),
        "optimizer": (states + masters) / (ranks if sharding >= 1 else 1),
    }
