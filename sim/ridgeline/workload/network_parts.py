"""Parts of a network: encoder, projector, decoder, as graphs of their own.

Layers are parts by name. Towers of a decoder are known by theirs (``vision``, ``audio``),
``projector`` is what brings the rows of towers to the decoder's features, and the *rest* is what no
other part has (``decoder``); any pattern of layers is a part, too. What reads a tensor of a later
part belongs there, whatever it is called: the op that puts a tower's rows among the embeddings of
tokens is the decoder's. Parts form a chain or a tree: each reads tensors of parts before it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from ridgeline.errors import ConfigError, nearest
from ridgeline.workload import numerics as precisions
from ridgeline.workload import ops
from ridgeline.workload.builder import GraphBuilder
from ridgeline.workload.graph import Graph, Role, Tensor
from ridgeline.workload.layer_patterns import is_below
from ridgeline.workload.model import Model
from ridgeline.workload.ops.part_boundary import hand_over, take_over

REST = "decoder"
"""The part of all layers that no other part has."""
PROJECTOR = "projector"
_PATTERNS = {PROJECTOR: ("*.projector*", "*.tap[0-9]*")}
"""Layers of a part whose name is not theirs."""


class Boundary(NamedTuple):
    """Tensors that one part makes and another reads.

    Attributes
    ----------
    source, target
        Numbers of the parts.
    """

    source: int
    target: int
    tensors: tuple[Tensor, ...]


class NetworkParts(NamedTuple):
    """Which part each forward op of a network belongs to, and what passes between parts.

    Attributes
    ----------
    names
        In the order in which they compute; the rest is the last.
    owner
        [ops] number of the part of each op.
    trained
        [parts] whether a part, or one that it reads, has weights that are trained.
    """

    names: tuple[str, ...]
    owner: tuple[int, ...]
    boundaries: tuple[Boundary, ...]
    trained: tuple[bool, ...]

    def between(self, source: int, target: int) -> Boundary:
        """Return what passes from one part to another."""
        return next(b for b in self.boundaries if (b.source, b.target) == (source, target))


def divided(graph: Graph, names: Sequence[str]) -> NetworkParts:
    """Divide a forward graph into parts.

    Parameters
    ----------
    names
        Of the parts besides the rest: towers, ``projector``, or patterns of layers.

    Raises
    ------
    ConfigError
        If no layer is of a part, a part reads what the rest makes, or parts share weights.
    """
    matched = [_matching(op.layer, names) for op in graph.ops]
    _check_names(graph, names, matched)
    order = list(dict.fromkeys(m for m in matched if m is not None))
    rank = {name: i for i, name in enumerate(order)}
    last = len(order)
    maker: dict[str, int] = {}
    owner = []
    for op, name in zip(graph.ops, matched, strict=True):
        needs = [maker[t] for t in op.inputs if t in maker]
        own = last if name is None else rank[name]
        # what prepares a weight, or an input, stays with its part; what reads goes with the latest
        owner.append(max([own, *needs]))
        maker.update(dict.fromkeys(op.outputs, owner[-1]))
    for name, i in rank.items():
        if i not in owner:
            raise ConfigError(
                f"{graph.name}: part {name!r} reads what the rest of the network makes; a part"
                " comes before the rest",
                field="parts",
            )
    _check_weights(graph, (*order, REST), owner)
    boundaries: dict[tuple[int, int], dict[str, Tensor]] = {}
    for op, mine in zip(graph.ops, owner, strict=True):
        for t in op.inputs:
            if t in maker and maker[t] != mine:
                boundaries.setdefault((maker[t], mine), {})[t] = graph.tensors[t]
    made = tuple(
        Boundary(source, target, tuple(tensors.values()))
        for (source, target), tensors in sorted(boundaries.items())
    )
    for i, name in enumerate(order):
        if not any(b.source == i for b in made):
            raise ConfigError(
                f"{graph.name}: no other part reads what part {name!r} makes", field="parts"
            )
    return NetworkParts((*order, REST), tuple(owner), made, _trained(graph, owner, made, last + 1))


def part_names(network: object) -> tuple[str, ...]:
    """Return the parts that a network is known to have besides the rest: its towers."""
    towers = getattr(network, "towers", ())
    projector = (PROJECTOR,) if any(tower.projector for tower in towers) else ()
    return (*(tower.name for tower in towers), *projector)


def _matching(layer: str, names: Sequence[str]) -> str | None:
    """Return the part of a layer: one that is named by its own patterns before one by prefix."""
    for name in sorted(names, key=lambda n: n not in _PATTERNS):
        if is_below(layer, _PATTERNS.get(name, (name,))):
            return name
    return None


def _check_names(graph: Graph, names: Sequence[str], matched: Sequence[str | None]) -> None:
    for name in names:
        if name == REST:
            raise ConfigError(
                f"{REST!r} is what no other part has; its plan is the plan itself", field="parts"
            )
        if name not in matched:
            heads = list(dict.fromkeys(op.layer.partition(".")[0] for op in graph.ops))
            near = nearest(name.strip("*."), [*heads, PROJECTOR])
            more = ", ..." if len(heads) > 12 else ""
            raise ConfigError(
                f"{graph.name} has no part {name!r}{near} (its layers begin with"
                f" {', '.join(heads[:12])}{more})",
                field="parts",
            )


def _check_weights(graph: Graph, names: Sequence[str], owner: Sequence[int]) -> None:
    held: dict[str, int] = {}
    for op, mine in zip(graph.ops, owner, strict=True):
        for t in op.inputs:
            if (
                graph.tensors[t].role in {Role.WEIGHT, Role.BUFFER}
                and held.setdefault(t, mine) != mine
            ):
                raise ConfigError(
                    f"{graph.name}: parts {names[held[t]]!r} and {names[mine]!r} share the weight"
                    f" {t!r}; give both in one part",
                    field="parts",
                )


def _trained(
    graph: Graph, owner: Sequence[int], boundaries: Sequence[Boundary], count: int
) -> tuple[bool, ...]:
    found = [False] * count
    for op, mine in zip(graph.ops, owner, strict=True):
        weights = [t for t in op.inputs if graph.tensors[t].role is Role.WEIGHT]
        found[mine] |= any(t not in graph.frozen for t in weights)
    for boundary in boundaries:  # in the order of their sources
        found[boundary.target] |= found[boundary.source]
    return tuple(found)


def part_graph(graph: Graph, parts: NetworkParts, number: int) -> Graph:
    """Return one part of a forward graph, with ends in place of the other parts."""
    mine = [op for op, part in zip(graph.ops, parts.owner, strict=True) if part == number]
    is_last = number == len(parts.names) - 1
    tokens = graph.tokens_per_sample if is_last else 0
    name = f"{graph.name}.{parts.names[number]}"
    numerics = precisions.find(graph.precision)
    b = GraphBuilder(name, graph.batch, numerics, graph.sample, tokens)
    coming = [boundary for boundary in parts.boundaries if boundary.target == number]
    foreign = {tensor.name for boundary in coming for tensor in boundary.tensors}
    used = {t for op in mine for t in (*op.inputs, *op.outputs)} - foreign
    if is_last:  # with what no op reads
        read = {t for op in graph.ops for t in (*op.inputs, *op.outputs)}
        used |= graph.tensors.keys() - read
    b.tensors.update({t: tensor for t, tensor in graph.tensors.items() if t in used})
    for op in mine:
        for boundary in [one for one in coming if not foreign.isdisjoint(op.inputs)]:
            if any(tensor.name in op.inputs for tensor in boundary.tensors):
                coming.remove(boundary)
                layer = taken_from(parts.names[boundary.source])
                take_over(b, layer, boundary.tensors, trained=parts.trained[boundary.source])
        b.ops.append(op)
    b.frozen = graph.frozen & b.tensors.keys()
    ends = [
        hand_over(b, handed_to(parts.names[one.target]), [t.name for t in one.tensors])
        for one in parts.boundaries
        if one.source == number
    ]
    loss = graph.loss if is_last else ends[0]
    for i, end in enumerate(ends[1:]):
        loss = ops.add(b, f"hand-over.sum{i}", loss, end)
    return b.graph(loss, partial=graph.partial, notes=graph.notes)


def taken_from(part: str) -> str:
    """Name of the layer, and of the op, in which tensors of a part arrive."""
    return f"take-over.from-{part}"


def handed_to(part: str) -> str:
    """Name of the layer, and of the op, in which tensors leave for a part."""
    return f"hand-over.to-{part}"


@dataclass(frozen=True)
class PartModel(Model):
    """One part of a network, as a network.

    Attributes
    ----------
    parts
        Names of the parts that the whole network is divided into, besides the rest.
    number
        Which of them, in the order in which they compute.
    """

    parts: tuple[str, ...] = field(default=())
    number: int = 0

    def whole(self, batch: int, precision: str = "fp32") -> Graph:
        """Return the forward pass of the whole network."""
        return super().forward(batch, precision)

    def forward(self, batch: int, precision: str = "fp32") -> Graph:
        """Return the forward pass of the part."""
        whole = self.whole(batch, precision)
        return part_graph(whole, divided(whole, self.parts), self.number)


def part_models(model: Model, names: Sequence[str], frozen: Sequence[str] = ()) -> list[PartModel]:
    """Return the parts of a network as networks, in the order in which they compute.

    Parameters
    ----------
    frozen
        Parts whose weights are not trained, the rest among them.

    Raises
    ------
    ConfigError
        As `divided`.
    """
    found = divided(model.forward(1), names)
    network = model.network
    patterns = list(network.frozen_layers)
    for part in frozen:
        patterns += _weight_layers(model.forward(1), found, found.names.index(part))
    network = network.model_copy(update={"frozen_layers": tuple(dict.fromkeys(patterns))})
    return [
        PartModel(f"{model.name}.{part}", network, model.overrides, tuple(names), number)
        for number, part in enumerate(found.names)
    ]


def _weight_layers(graph: Graph, parts: NetworkParts, number: int) -> list[str]:
    """Return the names of a part's weights: each is a pattern of itself."""
    found: dict[str, None] = {}
    for op, mine in zip(graph.ops, parts.owner, strict=True):
        if mine == number:
            found |= dict.fromkeys(t for t in op.inputs if graph.tensors[t].role is Role.WEIGHT)
    return [name.replace("[", "[[]") for name in found]
