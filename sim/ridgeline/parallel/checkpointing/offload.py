"""Offload: activations that wait in the host's memory for the backward pass.

`with_offload` adds copies to a training graph: an op of kind "offload" reads a tensor and writes a
copy of it on the host, which takes no device memory; an op of kind "prefetch" brings it back for
the backward pass. The policies and their synchronisation are those of vDNN (Rhu et al., MICRO 2016,
arXiv:1602.08124, section III): a tensor goes out while the layer runs that reads it last in the
forward pass, and is fetched while the layer runs backward that comes before the one that reads it;
the next layer waits for both. So what is allocated when is the same however fast the link is, and
memory follows by liveness.

In the graph a copy stands just before the layer that it runs beside; `with_recompute` comes first
where both are used.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace

import numpy as np

from ridgeline.errors import RidgelineError
from ridgeline.network.routing import routes
from ridgeline.network.topology import Topology
from ridgeline.parallel.checkpointing.modules import JOINED
from ridgeline.parallel.checkpointing.offload_modules import parse_offload_modules, read_back
from ridgeline.parallel.plan.mesh import Ranks
from ridgeline.workload.graph import Conv, Graph, Op, Pass, Role

POLICIES = ("none", "all", "conv")
"""Policies besides modules (`offload_modules`)."""
Layer = tuple[str, bool]
COPIES = frozenset({"offload", "prefetch"})
"""Kinds of the ops that run on the link to the host."""

_WHOLE_NUMBERS = frozenset({"int8", "int32", "int64"})


@dataclass(frozen=True, slots=True)
class OffloadLink:
    """The way between a device and its host: payload of one direction, latency of one copy."""

    bytes_per_s: float
    latency_s: float

    def copy_s(self, size_bytes: float) -> float:
        """Time of one copy."""
        return self.latency_s + size_bytes / self.bytes_per_s


def way_to_host(topology: Topology, rank: int, *, out: bool) -> Ranks:
    """Return the links of the shortest way from a device to a host of its node, or back.

    Raises
    ------
    RidgelineError
        If there is no host, or nothing links the device to one.
    """
    device = int(topology.devices[rank])
    own = np.flatnonzero(topology.node_of == topology.node_of[device]).tolist()
    hosts = [vertex for vertex in own if topology.vertex_kinds[vertex] == "host"]
    ways: list[Ranks] = []
    for host in hosts:
        ends = (device, host) if out else (host, device)
        with suppress(RidgelineError):
            found = routes(topology, np.array(ends[:1]), np.array(ends[1:]))
            ways.append(found.links.astype(np.int64))
    if not ways:
        raise RidgelineError(
            f"{topology.name}: nothing links {topology.vertex_names[device]} to a host, so nothing "
            "can be offloaded; describe the host (components) and its links"
        )
    return min(ways, key=len)


def host_link(topology: Topology, rank: int = 0) -> OffloadLink:
    """Return the shortest way between a device, alone on it, and a host.

    Raises
    ------
    RidgelineError
        If there is none.
    """
    links = way_to_host(topology, rank, out=True)
    return OffloadLink(
        float(topology.bandwidth_bytes_per_s[links].min()), float(topology.latency_s[links].sum())
    )


def offloadable(graph: Graph, policy: str) -> tuple[str, ...]:
    """Name the tensors that a policy offloads, in the order in which the forward pass lets go.

    "all": the mini-batch and the activations that the backward pass reads, except for masks and
    indices (whole numbers) and what it reads at once; "conv": those of them that a convolution
    reads, or any contraction in a network without convolutions; names of modules joined by +: those
    that their backward ops read of what their forward ops read or made (`offload_modules`).

    Raises
    ------
    RidgelineError
        If the policy is unknown.
    """
    if policy == "none":
        return ()
    steps = _steps(graph)
    gaps = _gaps(graph)
    names = [
        name
        for name, (last, first) in gaps.items()
        if graph.tensors[name].format not in _WHOLE_NUMBERS and steps[first] - steps[last] > 2
    ]
    if policy == "conv":
        names = [name for name in names if name in _convolved(graph)]
    elif policy != "all":
        saved = frozenset[str]().union(*_saved_in(graph, policy).values())
        names = [name for name in names if name in saved]
    return tuple(sorted(names, key=lambda name: gaps[name]))


def check_offload(graph: Graph, policy: str) -> None:
    """Refuse modules that a whole network has none of: nothing would leave.

    Raises
    ------
    RidgelineError
        If the policy is unknown, or names only modules in which the network saves nothing.
    """
    if policy not in POLICIES and not any(map(bool, _saved_in(graph, policy).values())):
        raise RidgelineError(
            f"offload: {graph.name} saves nothing in {' or '.join(policy.split(JOINED))}"
        )


def _saved_in(graph: Graph, policy: str) -> dict[str, frozenset[str]]:
    """Name what each module of a policy saves."""
    try:
        modules = parse_offload_modules(policy).split(JOINED)
    except ValueError as error:
        raise RidgelineError(f"offload: {error}") from error
    return {module: read_back(graph, module) for module in modules}


def _convolved(graph: Graph) -> set[str]:
    """Name the tensors that convolutions read in the forward pass, or contractions without any."""
    busy = [op for op in graph.ops if op.pass_ is Pass.FORWARD and op.loops is not None]
    convolutions = [op for op in busy if isinstance(op.loops, Conv)]
    return {op.inputs[0] for op in convolutions or busy}


def with_offload(
    graph: Graph, policy: str = "all", *, tensors: Sequence[str] | None = None
) -> Graph:
    """Return the training graph with copies to the host and back.

    Parameters
    ----------
    graph
        A training graph; it may recompute.
    policy
        Which tensors (see `offloadable`).
    tensors
        Names of just those to offload, whatever the policy.

    Raises
    ------
    RidgelineError
        If the policy is unknown, or a tensor cannot be offloaded.
    """
    names = offloadable(graph, policy) if tensors is None else tensors
    if not names:
        return graph
    steps, gaps = _steps(graph), _gaps(graph)
    begin: dict[int, int] = {}
    for i in reversed(range(len(graph.ops))):
        begin[steps[i]] = i
    made = {name: i for i, op in reversed(list(enumerate(graph.ops))) for name in op.outputs}
    every = dict(graph.tensors)
    before: dict[int, list[Op]] = defaultdict(list)
    back: dict[str, tuple[int, str]] = {}
    for name in names:
        if name not in gaps or steps[gaps[name][1]] - steps[gaps[name][0]] <= 2:
            raise RidgelineError(f"{graph.name}: {name!r} does not wait for the backward pass")
        last, first = gaps[name]
        out, fetch = begin[steps[last]], begin[steps[first] - 1]
        away, home = f"{name}.on-host", f"{name}.back"
        every[away] = replace(graph.tensors[name], name=away, role=Role.HOST)
        every[home] = replace(graph.tensors[name], name=home, role=Role.ACTIVATION)
        layers = graph.ops[last].layer, graph.ops[fetch].layer
        before[max(out, made.get(name, -1) + 1)].append(
            Op(f"{name}.offload", "offload", Pass.FORWARD, layers[0], (name,), (away,))
        )
        before[fetch].append(
            Op(f"{name}.prefetch", "prefetch", Pass.RECOMPUTE, layers[1], (away,), (home,))
        )
        back[name] = (fetch, home)
    ops: list[Op] = []
    for i, op in enumerate(graph.ops):
        ops += before[i]
        inputs = tuple(back[n][1] if n in back and i >= back[n][0] else n for n in op.inputs)
        ops.append(op if inputs == op.inputs else replace(op, inputs=inputs))
    return replace(graph, tensors=every, ops=tuple(ops))


def layer_of(op: Op) -> Layer:
    """Layer and direction of an op: stretches of equal ones are what vDNN synchronises."""
    return op.layer, op.pass_ is Pass.FORWARD


@dataclass
class Copying:
    """Copies while the ops of a block are written, each by its places on all ranks.

    Attributes
    ----------
    beside
        Those beside the present layer.
    pending
        Those beside earlier layers, which the next op waits for.
    late
        Updates on the host, which only what follows the block waits for.
    """

    beside: list[tuple[int, ...]] = field(default_factory=list)
    pending: list[tuple[int, ...]] = field(default_factory=list)
    late: list[tuple[int, ...]] = field(default_factory=list)
    layer: Layer | None = None

    def come_to(self, op: Op) -> None:
        """Go on to an op: where its layer begins, that before it has ended."""
        here = layer_of(op)
        if here != self.layer:
            self.end()
            self.layer = here

    def end(self) -> list[tuple[int, ...]]:
        """End the present layer; return what the next op waits for."""
        self.pending, self.beside = self.pending + self.beside, []
        return self.pending


def _steps(graph: Graph) -> list[int]:
    """Count the stretches of ops of one layer and direction."""
    numbers: list[int] = []
    number, now = -1, ("", False)
    for op in graph.ops:
        here = layer_of(op)
        number += here != now
        now = here
        numbers.append(number)
    return numbers


def _gaps(graph: Graph) -> dict[str, tuple[int, int]]:
    """For every activation that the backward pass reads, the ops between which it waits.

    The last op of the forward pass that reads or makes it, and the first one after.
    """
    gaps: dict[str, list[int]] = {}
    last: dict[str, int] = {}
    for i, op in enumerate(graph.ops):
        if op.pass_ is Pass.FORWARD:
            for name in (*op.inputs, *op.outputs):
                if graph.tensors[name].role in {Role.INPUT, Role.ACTIVATION}:
                    last[name] = i
        else:
            for name in op.inputs:
                if name in last:
                    gaps.setdefault(name, [last[name], i])
    return {name: (a, b) for name, (a, b) in gaps.items()}


def copied_bytes(graph: Graph) -> int:
    """Bytes that a step copies to the host; as many come back."""
    return sum(graph.tensors[op.inputs[0]].bytes for op in graph.ops if op.kind == "offload")


@dataclass(frozen=True, slots=True)
class OffloadOverlap:
    """What a step with copies takes.

    Attributes
    ----------
    step_s
        All of it.
    compute_s, copy_s
        Ops one after the other, and copies one after the other.
    """

    step_s: float
    compute_s: float
    copy_s: float

    @property
    def stall_s(self) -> float:
        """Time in which the device waits for copies."""
        return self.step_s - self.compute_s


def overlapped(graph: Graph, time_s: Mapping[str, float], link: OffloadLink) -> OffloadOverlap:
    """Return the time of a step whose copies run beside the layers that they stand before.

    A layer begins when the copies beside the one before it have ended; copies go one after the
    other, out and back on one engine, and begin with their layer.

    Parameters
    ----------
    time_s
        Of every op that is no copy, by name.
    """
    clock = link_free = compute_s = copy_s = 0.0
    now: Layer | None = None
    waiting: list[float] = []  # ends of the copies beside the present layer
    for op in graph.ops:
        here = layer_of(op)
        if op.kind in COPIES:
            if now is not None and here != now:
                clock, waiting, now = max([clock, *waiting]), [], None
            size = graph.tensors[op.inputs[0]].bytes
            link_free = max(clock, link_free) + link.copy_s(size)
            copy_s += link.copy_s(size)
            waiting.append(link_free)
            continue
        if now is not None and here != now:
            clock, waiting = max([clock, *waiting]), []
        now = here
        clock += time_s[op.name]
        compute_s += time_s[op.name]
    return OffloadOverlap(max([clock, *waiting]), compute_s, copy_s)
