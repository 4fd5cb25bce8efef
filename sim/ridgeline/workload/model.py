"""A Model: the description of a network, of which graphs are made for a batch and a precision."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from pathlib import Path
from types import MappingProxyType
from typing import Any

from ridgeline import catalog, config, views
from ridgeline.errors import RidgelineError, nearest, short
from ridgeline.workload import numerics as precisions
from ridgeline.workload import optimizers, sparsity
from ridgeline.workload.autodiff import training_graph
from ridgeline.workload.builder import TRAINED_BEFORE, GraphBuilder
from ridgeline.workload.dataset import load_dataset
from ridgeline.workload.families import FAMILIES, Network
from ridgeline.workload.families.base import Published
from ridgeline.workload.graph import Graph, Role
from ridgeline.workload.layer_patterns import check_patterns
from ridgeline.workload.numerics import Numerics
from ridgeline.workload.optimizers import Optimizer
from ridgeline.workload.without_loss import without_loss
from ridgeline.workload.zeros import with_zeros

MAX_BATCH = 2**24
_CACHED_GRAPHS = 32


@dataclass(frozen=True)
class Model:
    """A network that can be trained.

    Attributes
    ----------
    name
        Its name in the catalogue, or that of its file.
    network
        The description that was read.
    overrides
        Fields that were replaced on the way, by dotted path.
    """

    name: str
    network: Network
    overrides: Mapping[str, Any] = field(default_factory=dict, compare=False)

    @property
    def title(self) -> str:
        """The network's name for people."""
        return self.network.title

    @property
    def citation(self) -> str:
        """Where the network is described, and which variant this is."""
        return self.network.citation

    @property
    def published(self) -> Published:
        """Published numbers of parameters and FLOPs, with source."""
        return self.network.published

    @property
    def default_optimizer(self) -> Optimizer:
        """The optimizer that the network is usually trained with."""
        return optimizers.find(self.network.optimizer)

    @property
    def description(self) -> Mapping[str, Any]:
        """All fields as plain values: what a manifest must record to repeat the network."""
        return self.network.model_dump(mode="json", exclude={"aliases"})

    @cached_property
    def input_bytes_per_sample(self) -> int:
        """Bytes of one sample with its label, as delivered to the device, in every precision."""
        least = self.network.smallest_batch
        tensors = self.forward(least, precisions.MASTER).tensors.values()
        return sum(t.bytes for t in tensors if t.role is Role.INPUT) // least

    def __repr__(self) -> str:
        changed = f" with {len(self.overrides)} changes" if self.overrides else ""
        return f"<Model {self.name}: {self.title}{changed}>"

    def _repr_html_(self) -> str:
        return views.html("model", self)

    def forward(self, batch: int, precision: str = "fp32") -> Graph:
        """Return the forward pass of a mini-batch, in training mode.

        Raises
        ------
        RidgelineError
            If the batch is not a positive number or the precision is unknown.
        """
        batch = operator.index(batch)  # also from numpy, whose integers would overflow
        if not 1 <= batch <= MAX_BATCH:
            raise RidgelineError(f"a batch of {batch} samples; allowed: 1 to {MAX_BATCH}")
        graph = self.network.graph(self.builder(batch, precisions.find(precision)))
        weights = [t.name for t in graph.tensors.values() if t.role is Role.WEIGHT]
        if self.network.adapters is not None and graph.frozen.issuperset(weights):
            raise RidgelineError(f"{self.name}: no linear layer fits the patterns of its adapters")
        check_patterns(self.name, "frozen_layers", self.network.frozen_layers, weights)
        return graph

    def builder(self, batch: int, numerics: Numerics) -> GraphBuilder:
        """Return an empty builder of the network's graphs."""
        return GraphBuilder(
            self.name,
            batch,
            numerics,
            self.network.sample,
            self.network.tokens_per_sample,
            self.network.adapters,
            self.network.separate_loss,
            self.network.frozen_layers,
        )

    def inference(self, batch: int, precision: str = "fp32") -> Graph:
        """Return the forward pass without the loss; equal calls return one object."""
        return _inference(self, batch, precision)

    def training(
        self, batch: int, precision: str = "fp32", optimizer: Optimizer | None = None
    ) -> Graph:
        """Return the graph of a training step on a mini-batch; equal calls return one object."""
        return _training(self, batch, precision, optimizer or self.default_optimizer)


@lru_cache(maxsize=_CACHED_GRAPHS)
def _inference(model: Model, batch: int, precision: str) -> Graph:
    return without_loss(model.forward(batch, precision))


@lru_cache(maxsize=_CACHED_GRAPHS)
def _training(model: Model, batch: int, precision: str, optimizer: Optimizer) -> Graph:
    forward = model.forward(batch, precision)
    names = (t.name for t in forward.tensors.values() if t.role is Role.WEIGHT)
    ends = any(TRAINED_BEFORE in op.attrs for op in forward.ops)
    if forward.frozen.issuperset(names) and not ends:
        raise RidgelineError(f"{model.name}: all of its weights are frozen, so nothing is trained")
    graph = model.network.written(training_graph(forward, optimizer))
    weights = sparsity.parse(model.network.weight_sparsity)
    return with_zeros(graph, weights, model.network.relu_density)


def _check_dataset(name: str) -> None:
    if name and name not in catalog.names("datasets"):
        load_dataset(name)


_NAMES: Mapping[str, Callable[[str], object]] = MappingProxyType(
    {"optimizer": optimizers.find, "precision": precisions.find, "dataset": _check_dataset}
)
"""Fields that name something, and what complains of a wrong name."""


def read_model(name_or_path: str | Path, overrides: Mapping[str, Any] | None = None) -> Model:
    """Read a network by its name in ``models/``, or from a YAML file of ``kind: model``.

    `overrides` maps dotted paths of fields to new values.

    Raises
    ------
    ConfigError
        If there is no such network, or the file does not describe one; with file, line and field.
    """
    path = catalog.find("models", catalog.name_of(name_or_path, "model"))
    document = config.overridden(config.read_yaml(path), overrides or {})
    config.check_kind(document, "model")
    name = document.data["name"]
    if not isinstance(name, str):
        raise document.error(f"a name is text, found {short(name)}", ("name",))
    fields = {key: value for key, value in document.data.items() if key not in {"kind", "name"}}
    document = replace(document, data=fields)
    family = fields.get("family")
    schema = FAMILIES.find(family) if isinstance(family, str) else None
    if schema is None:
        known = ", ".join(sorted(FAMILIES))
        near = nearest(family, FAMILIES) if isinstance(family, str) else ""
        raise document.error(
            f"the field 'family' must name a network family (known: {known}){near}", ("family",)
        )
    network = config.validate(document, schema)
    model = Model(name, network, dict(overrides or {}))
    for key, check in _NAMES.items():
        try:
            check(getattr(network, key))
        except RidgelineError as error:
            raise document.error(str(error), (key,)) from error
    try:
        model.forward(1)
    except RidgelineError as error:
        raise document.error(str(error)) from error
    return model
