"""Estimate a deep network from a shallower one with the same repeated layers.

Where FLOPs, bytes and numbers of ops and units grow by the same amount with each further layer up
to the whole, what a layer in the middle costs is repeated. Layers at the ends may be unlike the
others: the first ones by what they are (dense ones before mixtures of experts), the last one by
where its results have to be. So there are as many layers as it takes for two neighbours to be
alike. A network of one layer can have more units than one of two: what all layers read, as the
condition of a diffusion transformer, is then read by one alone.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from ridgeline.errors import RidgelineError
from ridgeline.parallel.partition.chain import Unit, layer_starts, units
from ridgeline.parallel.partition.pipeline_partition import Cut
from ridgeline.workload.autodiff import gradient_parts
from ridgeline.workload.graph import Graph, Op
from ridgeline.workload.model import Model

Floats = npt.NDArray[np.float64]
_MOST_UNLIKE = 6  # first layers that may be unlike the others
_FURTHER = 3  # layers more that are tried where no two are alike
_SAVED = 3  # layers that have to be left out for it to be worth it


@dataclass(frozen=True)
class RepresentativeGraph:
    """A graph that tells of a model.

    Attributes
    ----------
    parts
        Its units.
    at, per_layer, more
        From which unit on a layer of so many units is to be repeated, how often.
    """

    graph: Graph
    parts: tuple[Unit, ...]
    at: int = 0
    per_layer: int = 0
    more: int = 0

    def starts(self, cut: Cut) -> Floats:
        """Return [units] 1 for every unit that a layer begins with (`chain.layer_starts`)."""
        found = np.zeros(len(self.parts))
        found[layer_starts(self.graph, self.parts, ends=cut == "ends")] = 1.0
        return found

    def tells_cuts(self, cut: Cut) -> bool:
        """Whether layers begin where they do in the whole: one in each that is repeated.

        Even cuts also depend on what repeated layers share, which more of them have more of.
        """
        if not self.more:
            return True
        if cut == "even":
            return not self._share_weights()
        begins = self.starts(cut)
        layer, before = (
            begins[a : a + self.per_layer] for a in (self.at, self.at - self.per_layer)
        )
        return bool(layer.sum() == 1.0 and (layer == before).all())

    def _share_weights(self) -> bool:
        """Whether the layer that is repeated shares a weight with the one before it."""
        unit = {i: number for number, part in enumerate(self.parts) for i in part.ops}
        maker = {name: i for i, op in enumerate(self.graph.ops) for name in op.outputs}
        first, middle, last = (self.at + k * self.per_layer for k in (-1, 0, 1))
        for parts in gradient_parts(self.graph).values():
            made = {unit[maker[name]] for name in parts if name in maker}
            if made & set(range(first, middle)) and made & set(range(middle, last)):
                return True
        return False

    def whole(self, per_unit: Floats) -> Floats:
        """Return [U, ...] of the model, of what is known of the units here."""
        if not self.more:
            return per_unit
        layer = per_unit[self.at : self.at + self.per_layer]
        return np.concatenate((per_unit[: self.at], *[layer] * self.more, per_unit[self.at :]))


@dataclass(frozen=True)
class ReducedModel:
    """A model and those like it with fewer layers, the smallest first; none if they are unlike.

    Attributes
    ----------
    per_layer
        Units of a layer that is like most.
    first
        Where the first one begins.
    """

    model: Model
    fewer: tuple[Model, ...]
    per_layer: int = 0
    first: int = 0

    @property
    def smallest(self) -> Model:
        """The model with the fewest layers that is divided as the whole is."""
        return self.fewer[0] if self.fewer else self.model

    def told(self, made: Callable[[Model], Graph], first: int = 0) -> RepresentativeGraph:
        """Make a graph of few layers, two of which are alike; if there is none, of all layers.

        Parameters
        ----------
        first
            Which of `fewer` is tried first; those behind it are next, those before it last.
        """
        for model in (*self.fewer[first:], *self.fewer[:first]):
            graph = made(model)
            parts = units(graph)
            at = self._repeated(graph, parts)
            if at:
                more = _layers(self.model) - _layers(model)
                return RepresentativeGraph(graph, parts, at, self.per_layer, more)
        graph = made(self.model)
        return RepresentativeGraph(graph, units(graph))

    def place_of(self, told: RepresentativeGraph) -> int:
        """Return which of `fewer` a graph is of; 0: of none of them."""
        layers = _layers(self.model) - told.more if told.more else 0
        return next((k for k, model in enumerate(self.fewer) if _layers(model) == layers), 0)

    def _repeated(self, graph: Graph, parts: tuple[Unit, ...]) -> int:
        """Return the first unit of a layer that is like the one before; 0: none is."""
        layer = self.per_layer
        for at in range(self.first + layer, len(parts) - layer + 1):
            both = zip(parts[at - layer : at], parts[at : at + layer], strict=True)
            if all(_alike(graph, a, graph, b) for a, b in both):
                return at
        return 0


def few_layers(model: Model, precision: str) -> ReducedModel:
    """Find the models with fewer layers that tell of this one."""
    layers = getattr(model.network, "layers", None)
    if not isinstance(layers, int):
        return ReducedModel(model, ())
    try:
        whole = _counted(model, precision)
        for n in range(1, min(_MOST_UNLIKE + 1, layers - _SAVED)):
            one, two = (_counted(_with(model, k), precision) for k in (n, n + 1))
            grown = zip(whole, one, two, strict=True)
            evenly = all(all_ == o + (layers - n) * (t - o) for all_, o, t in grown)
            if evenly and one[-1] < two[-1]:
                most = min(n + 1 + _FURTHER, layers - _SAVED + 1)
                fewer = tuple(_with(model, k) for k in range(n + 2, most + 1))
                graphs = [_with(model, k).training(1, precision) for k in (n, n + 1)]
                less, more = map(units, graphs)
                both = enumerate(zip(less, more, strict=False))
                unlike = (i for i, (a, b) in both if not _alike(graphs[0], a, graphs[1], b))
                return ReducedModel(model, fewer, len(more) - len(less), next(unlike, len(less)))
    except RidgelineError:
        pass
    return ReducedModel(model, ())


@lru_cache(maxsize=16)
def n_units(model: Model, precision: str, cut: Cut) -> int:
    """Return into how many parts a pipeline can cut a model."""
    graph = model.training(1, precision)
    found = units(graph)
    return len(found if cut == "even" else layer_starts(graph, found, ends=cut == "ends"))


def _with(model: Model, layers: int) -> Model:
    return Model(model.name, model.network.model_copy(update={"layers": layers}))


def _layers(model: Model) -> int:
    return int(getattr(model.network, "layers"))  # noqa: B009


def _alike(graph: Graph, unit: Unit, other_graph: Graph, other: Unit) -> bool:
    """Whether two units have the same ops on tensors of the same sizes."""
    if len(unit.ops) != len(other.ops):
        return False
    for i, j in zip(unit.ops, other.ops, strict=True):
        one, two = graph.ops[i], other_graph.ops[j]
        if (one.kind, one.loops, one.attrs) != (two.kind, two.loops, two.attrs):
            return False
        if _sizes(graph, one) != _sizes(other_graph, two):
            return False
    return True


def _sizes(graph: Graph, op: Op) -> list[tuple[tuple[int, ...], str]]:
    tensors = (graph.tensors[name] for name in (*op.inputs, *op.outputs))
    return [(tensor.shape, tensor.format) for tensor in tensors]


def _counted(model: Model, precision: str) -> tuple[int, int, int, int]:
    """FLOPs, bytes, number of ops and of units of a model: what equal layers add equally to."""
    graph = model.training(1, precision)
    size = sum(t.bytes for t in graph.tensors.values())
    return graph.flops(), size, len(graph.ops), len(units(graph))
