"""What every network file says, and the bounds that keep a file from asking for the absurd."""

from __future__ import annotations

import abc
import inspect
from collections.abc import Callable
from typing import Annotated, ClassVar, Literal, TypeVar, get_origin

from pydantic import BeforeValidator, Field, field_validator
from pydantic.fields import FieldInfo

from ridgeline.config import Aliases, Strict
from ridgeline.errors import ConfigError, RidgelineError
from ridgeline.registry import Registry
from ridgeline.workload import sparsity
from ridgeline.workload.adapters import Adapters
from ridgeline.workload.builder import GraphBuilder
from ridgeline.workload.graph import Graph
from ridgeline.workload.ops.window import Pair

MAX_LAYERS = 10_000

Channels = Annotated[int, Field(ge=1, le=2**20)]
"""Channels, features or classes."""
Extent = Annotated[int, Field(ge=1, le=2**16)]
"""Height or width of an image."""

_MAX_WINDOW = 1024


def _pair_from(least: int) -> BeforeValidator:
    def check(value: object) -> object:
        numbers = value if isinstance(value, list | tuple) else (value, value)
        if len(numbers) == 2 and all(type(n) is int and least <= n <= _MAX_WINDOW for n in numbers):
            return value if isinstance(value, int) else tuple(numbers)
        raise ValueError(
            f"expected a whole number from {least} to {_MAX_WINDOW} or [height, width],"
            f" found {value!r}"
        )

    return BeforeValidator(check)


Kernel = Annotated[Pair, _pair_from(1)]
"""Size, stride or dilation of a window: one number or [height, width]."""
Padding = Annotated[Pair, _pair_from(0)]


Probability = Annotated[float, Field(ge=0, lt=1)]


class PublishedCount(Strict):
    """A published number of things."""

    value: Annotated[int, Field(gt=0)]
    to: Annotated[int, Field(gt=0)] = 1
    """What it was rounded to: 1 for an exact number, 100_000_000 for "70.6B"."""
    source: str
    """Where it was published, and what was done to it."""

    def fits(self, number: int) -> bool:
        """Tell whether a number rounds to the published one."""
        return 2 * abs(number - self.value) <= self.to - self.to % 2


class Amount(Strict):
    """A published number that may be rounded."""

    value: Annotated[float, Field(gt=0)]
    source: str
    """Where it was published, and what was done to it."""


class Published(Strict):
    """What others publish about the network; tests hold ours against it."""

    parameters: PublishedCount | None = None
    """Trained parameters."""
    forward_flops: Amount | None = None
    """Matrix and convolution FLOPs of the forward pass of one sample; 1 MAC = 2 FLOP."""


class Network(Strict, abc.ABC):
    """The fields that all families share."""

    sample: ClassVar[str] = "samples"
    network_kind: ClassVar[str] = "other"
    """Kind of the family's networks, by which software stacks say what they run: decoder,
    transformer, cnn, rnn, recommender, ... (set by `family`)."""
    recorded: ClassVar[bool] = False
    """Whether its ops are those of a record: no software writes them in another way."""

    family: str
    """The family, which decides the other fields."""
    title: str
    """The network's name for people."""
    aliases: Aliases = ()
    """What people call it besides, where case, hyphens and vendors are not all that differs."""
    citation: str = ""
    """Where the network is described, and which variant this is; every network that ships says so,
    and results of one that does not say that nothing is cited."""
    optimizer: str = "sgd-momentum"
    """The optimizer that it is usually trained with."""
    precision: str = "fp32"
    """The precision that it is usually trained in."""
    weight_sparsity: str = "none"
    """Zeros in the weights of convolutions and matrix products: 2:4, unstructured 0.3, block 32x32
    0.1. What they save is up to the device; memory holds the dense weights."""
    relu_density: Annotated[float, Field(gt=0, le=1, strict=False)] = 1.0
    """Share of a ReLU's outputs that are not zero; 1 leaves zeros in activations aside."""
    adapters: Adapters | None = None
    """What alone is trained, beside frozen weights; by default the whole network is."""
    frozen_layers: Annotated[tuple[str, ...], Field(strict=False)] = ()
    """Patterns of layers whose weights are not trained (``vision``, ``blocks.0``): they are kept in
    the format that they are computed with, without gradient, update and optimizer state, and the
    backward pass ends where nothing before it is trained."""
    separate_loss: bool | Literal["log-softmax"] = False
    """Which steps of a cross entropy are kernels of their own: none, all (Megatron-LM), or
    log-softmax and the loss of its result (PyTorch); see `ops.cross_entropy`."""
    sequence_length_std: Annotated[float, Field(ge=0, le=1, strict=False)] = 0.0
    """Standard deviation of the work of a micro-batch, over its mean, where samples differ in
    length: replicas wait for the one that has the most."""
    expert_load_factor: Annotated[float, Field(ge=1, le=1024, strict=False)] = 1.0
    """Tokens of the fullest expert of a mixture, over the mean of all experts."""
    software: tuple[str, ...] = Field(default=(), strict=False)
    """Software stacks that it is usually trained with; the machine's count first."""
    dataset: str = ""
    """The data set that it is usually trained on, a name in ``models/datasets/``."""
    published: Published = Published()

    @field_validator("weight_sparsity")
    @classmethod
    def _readable(cls, text: str) -> str:
        try:
            found = sparsity.parse(text)
        except ConfigError as error:
            raise ValueError(error.message) from error
        if found is not None and found.kind == "activation":
            raise ValueError("weights have no activation zeros; give relu_density")
        return text

    @property
    def tokens_per_sample(self) -> int:
        """Tokens in a sample; 0 where that has no meaning."""
        return 0

    @abc.abstractmethod
    def build(self, b: GraphBuilder) -> str:
        """Write the forward graph and return the name of the loss tensor."""

    def graph(self, b: GraphBuilder) -> Graph:
        """Write the forward graph and return it."""
        return b.graph(self.build(b))

    def written(self, graph: Graph) -> Graph:
        """Return the graph of a training step as programs write it."""
        return graph

    @property
    def smallest_batch(self) -> int:
        """The smallest mini-batch that the network exists for."""
        return 1


class Image(Strict):
    """The images that a network reads."""

    channels: Channels = 3
    height: Extent
    width: Extent

    def images(self, b: GraphBuilder) -> str:
        """Declare a mini-batch of images."""
        return b.input("images", (b.batch, self.channels, self.height, self.width))

    def inputs(self, b: GraphBuilder) -> tuple[str, str]:
        """Declare a mini-batch of images and their labels."""
        return self.images(b), b.input("labels", (b.batch,), "int64")


FAMILIES: Registry[str, type[Network]] = Registry("network family", "ridgeline.workload.families")
"""All families by name."""
SomeNetwork = TypeVar("SomeNetwork", bound=type[Network])


def _fields(schema: type[Network]) -> dict[str, FieldInfo]:
    return dict(schema.model_fields)


def family(name: str, *, network_kind: str = "other") -> Callable[[SomeNetwork], SomeNetwork]:
    """Return a decorator that registers a schema as a network family.

    Parameters
    ----------
    name
        What ``family:`` of a model file says.
    network_kind
        Kind of its networks, by which software stacks say what they run.

    Raises
    ------
    RidgelineError
        If the name is taken, the class is no `Network` with a method `build`, or a field can be
        changed; by the decorator.
    """

    def put(schema: SomeNetwork) -> SomeNetwork:
        if not (isinstance(schema, type) and issubclass(schema, Network)):
            raise RidgelineError(
                f"network family {name!r} must be a class of Network, found {schema!r}"
            )
        if inspect.isabstract(schema):
            raise RidgelineError(
                f"network family {name!r}: {schema.__name__} has no method build(b)"
            )
        for field, info in _fields(schema).items():
            if get_origin(info.annotation) in {list, dict, set}:
                raise RidgelineError(
                    f"network family {name!r}: the field {field!r} could be changed; write it as"
                    " Annotated[tuple[..., ...], Field(strict=False)], which a list in YAML becomes"
                )
        schema.network_kind = network_kind
        FAMILIES.register(name)(schema)
        return schema

    return put
