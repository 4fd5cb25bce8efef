"""Shard a graph along all dimensions of a plan: positions, experts, features, samples."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import lru_cache

from ridgeline.parallel.plan.layers import LayerDegrees, levels, parse_rules
from ridgeline.parallel.plan.mixtures import routed_layers
from ridgeline.parallel.sharding.axis_choice import BySamples
from ridgeline.parallel.sharding.experts import with_experts
from ridgeline.parallel.sharding.ring_attention import with_rings
from ridgeline.parallel.sharding.shard import shard
from ridgeline.parallel.sharding.spatial import Shared, most, with_shared_images
from ridgeline.parallel.sharding.tensor_2d import Grid, with_grid
from ridgeline.workload.graph import Graph, Role, Same


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardingSpec:
    """What of a plan says how ops are divided: degrees, rules for layers.

    Attributes
    ----------
    flops_per_byte
        What a device computes while its tensor-parallel group moves one byte.
    message_bytes
        What such a group could move in the fixed time of a gather.
    layers
        Rules that cover all layers, of the widest plan (`Plan.widest`); empty: all are alike.
    ring
        Keys and values go round the devices of "context" (`ring`); else they are gathered.
    grid
        Devices that share the rows, and the columns, of images (`spatial`).
    shared_statistics
        They add up the statistics of batch norms.
    imbalance
        Rows of the fullest expert over the mean of all.
    mixture
        With rules for layers, devices that share the features of each expert (`mixture_degree`).
    two
        Tensor-parallel devices in rows and columns; None: in one dimension.
    once
        Tokens are sent once to each node that has one of their experts (`MoeSettings.dispatch`).
    folded
        The devices of "tensor" share the positions of mixtures (`Plan.expert_tensor_parallel`).
    """

    expert: int = 1
    context: int = 1
    tensor: int = 1
    sequence: bool = False
    flops_per_byte: float = 1.0
    message_bytes: float = 0.0
    layers: str = ""
    ring: bool = False
    grid: tuple[int, int] = (1, 1)
    shared_statistics: bool = False
    imbalance: float = 1.0
    mixture: int = 1
    two: Grid | None = None
    once: bool = False
    folded: bool = False


@dataclass(frozen=True, slots=True)
class ShardedGraph:
    """What one device does.

    Attributes
    ----------
    graph
        Its ops and its parts of all tensors, with the collectives as ops.
    divided
        Names of the tensors of which every tensor-parallel device has a part.
    whole
        Kinds of the ops that every device does whole, and how many (`shard.Sharded`).
    apart
        Of a layer-wise plan, the weights that are alike on the devices of a level of "tensor" and
        all beyond, which divide samples: weight and number of the first such level.
    own_rows
        Weights whose gradients are of a device's own rows of images, or of the samples of its row
        of a grid, and the dimension of the mesh along which they are summed with those of the
        replicas.
    """

    graph: Graph
    divided: frozenset[str]
    whole: dict[str, int]
    apart: dict[str, int]
    own_rows: dict[str, str] = field(default_factory=dict)


def divide(graph: Graph, division: ShardingSpec) -> ShardedGraph:
    """Divide a training graph.

    Raises
    ------
    ConfigError
        If the graph can not be divided so.
    """
    shared = with_shared_images(graph, *division.grid, shared_statistics=division.shared_statistics)
    graph = shard(shared.graph, division.context, dimension="context").graph
    if division.ring:
        graph = with_rings(graph, division.context)
    # experts compute the rows of a device's own positions
    graph = _shared_experts(Same(graph), division.expert, division.imbalance, once=division.once)
    if division.layers:
        return _by_layers(graph, division, shared)
    routed = frozenset(routed_layers(graph)) if division.folded else frozenset()
    found = (
        with_grid(graph, division.two)
        if division.two is not None
        else shard(
            graph,
            division.tensor,
            sequence=division.sequence,
            flops_per_byte=division.flops_per_byte,
            message_bytes=division.message_bytes,
            by_samples=BySamples(routed.__contains__, None, positions=True) if routed else None,
        )
    )
    whole = most(shared.whole, found.whole)
    own_rows = shared.apart | dict.fromkeys(found.apart, "data.grid")
    apart = dict.fromkeys(found.apart if routed else (), 0)
    return ShardedGraph(found.graph, found.divided, whole, apart, own_rows)


@lru_cache(maxsize=64)
def _shared_experts(same: Same, ranks: int, imbalance: float, *, once: bool) -> Graph:
    """Return `with_experts` of a graph, which divisions by other dimensions begin with, too."""
    return with_experts(same.graph, ranks, imbalance, once=once)


def _by_layers(graph: Graph, division: ShardingSpec, shared: Shared) -> ShardedGraph:
    """Divide level by level, the outermost first, so that inner ones know who sums gradients."""
    degrees = LayerDegrees(parse_rules(division.layers), division.tensor)
    degrees.check((op.layer for op in graph.ops), graph.name)
    sizes = levels(division.layers, division.tensor, division.mixture * division.expert)
    divided: frozenset[str] = frozenset()
    whole: dict[str, int] = shared.whole
    apart: dict[str, int] = {}
    beyond: frozenset[str] | None = None
    within = division.tensor
    for level in reversed(range(len(sizes))):
        within //= sizes[level]

        def by_samples(layer: str, within: int = within) -> bool:
            return degrees.of(layer) <= within

        found = shard(
            graph,
            sizes[level],
            dimension=f"tensor.{level}",
            sequence=division.sequence,
            flops_per_byte=division.flops_per_byte,
            message_bytes=division.message_bytes,
            by_samples=BySamples(by_samples, beyond),
        )
        graph, beyond = found.graph, found.apart
        divided |= found.divided
        whole = most(whole, found.whole)
        apart |= dict.fromkeys(found.apart, level)
    return ShardedGraph(graph, divided, whole, apart, shared.apart)


def roots(graph: Graph) -> dict[str, str]:
    """Return the weight that each copy in another format is of."""
    roots: dict[str, str] = {}
    for op in graph.ops:
        if op.outputs and graph.tensors[op.outputs[0]].role is Role.WEIGHT_COPY:
            roots[op.outputs[0]] = roots.get(op.inputs[0], op.inputs[0])
    return roots
