"""Builders: by which families write forward graphs, and gradient rules write backward passes.

Names: an op "conv1" of layer "conv1" writes the tensor "conv1.y", reads the weight "conv1.weight";
its gradient ops are "conv1.input-gradient" and "conv1.weight-gradient", the gradient of a tensor
t is "t.grad". Shapes are PyTorch's: images [batch, channels, height, width]. There are no views:
flattening and transposing move no data, so that an op reads a tensor in the shape that it needs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ridgeline.errors import RidgelineError
from ridgeline.workload import numerics as precisions
from ridgeline.workload.adapters import Adapters
from ridgeline.workload.generation_step import CachedLayer, GenerationStep
from ridgeline.workload.graph import (
    CheckpointRegion,
    Conv,
    Gemm,
    Graph,
    Op,
    Pass,
    Passes,
    Role,
    Tensor,
    free_name,
)
from ridgeline.workload.kinds import Cost, OpKind, op_kind
from ridgeline.workload.layer_patterns import is_below
from ridgeline.workload.numerics import MASTER, Numerics
from ridgeline.workload.sharding_rules import elementwise_sharding

OVERWRITABLE = frozenset({Role.ACTIVATION, Role.ACTIVATION_GRADIENT, Role.WEIGHT_GRADIENT})
"""Roles of the tensors that an op may overwrite: what the step itself made."""

Attrs = Sequence[tuple[str, int | float | str]]

TRAINED_BEFORE = ("trained-before", 1)
"""Attribute of an op that takes what another part of a network makes: weights are trained there."""

_OF_WEIGHTS = frozenset({Role.WEIGHT, Role.WEIGHT_COPY})


class GraphBuilder:
    """Collects the tensors and ops of one graph.

    Parameters
    ----------
    name
        Name of the graph.
    batch
        Samples in the mini-batch.
    numerics
        The precision.
    sample
        What one element of the batch is: "images", "sequences".
    tokens_per_sample
        Tokens in it; 0 where that has no meaning.
    adapters
        What alone is trained, where that is not the whole network.
    separate_loss
        Which steps of a cross entropy are kernels of their own (`ops.cross_entropy`).
    frozen_layers
        Patterns of layers whose weights are not trained (`layer_patterns`).

    Attributes
    ----------
    generation
        The step of generation that the graph is of; None: of training.
    cached
        What layers of a step of generation keep of every sequence, in the order of the layers.
    """

    def __init__(
        self,
        name: str,
        batch: int,
        numerics: Numerics,
        sample: str = "samples",
        tokens_per_sample: int = 0,
        adapters: Adapters | None = None,
        separate_loss: bool | str = False,
        frozen_layers: Sequence[str] = (),
    ) -> None:
        self.name, self.batch, self.numerics = name, batch, numerics
        self.sample, self.tokens_per_sample = sample, tokens_per_sample
        self.adapters, self.separate_loss = adapters, separate_loss
        self.frozen_layers = tuple(frozen_layers)
        self.frozen: frozenset[str] = frozenset()
        self.checkpoints: dict[int, list[str]] = {}
        """Regions that are formed again, by numbers; below 0: all of them."""
        self.generation: GenerationStep | None = None
        self.cached: list[CachedLayer] = []
        self.tensors: dict[str, Tensor] = {}
        self.ops: list[Op] = []
        self._op_names: set[str] = set()
        self._casts: dict[tuple[str, str], str] = {}

    def take_checkpoints(self, graph: Graph) -> None:
        """Take over the regions of a graph that are formed again."""
        self.checkpoints = {
            -number if region.whole else number: list(region.ops)
            for number, region in enumerate(graph.checkpoints, 1)
        }

    def tensor(self, name: str, shape: tuple[int, ...], format_: str, role: Role) -> str:
        """Declare a tensor and return its name; two tensors of one name are an error."""
        if name in self.tensors:
            raise RidgelineError(f"{self.name}: two tensors are called {name!r}; rename a layer")
        self.tensors[name] = Tensor(name, shape, self.numerics.of(format_), role)
        return name

    def input(self, name: str, shape: tuple[int, ...], format_: str | None = None) -> str:
        """Declare a part of the mini-batch; what is to be computed with is delivered in 4 bytes."""
        return self.tensor(name, shape, format_ or self.numerics.delivered, Role.INPUT)

    def weight(self, name: str, shape: tuple[int, ...], *, adapts: bool = False) -> str:
        """Declare a parameter: trained, or frozen by its layer or since only others adapt."""
        by_layer = bool(self.frozen_layers) and is_below(name, self.frozen_layers)
        if not by_layer and (self.adapters is None or adapts):
            return self.tensor(name, shape, self.numerics.master, Role.WEIGHT)
        self.frozen |= {name}
        return self.tensor(name, shape, self.numerics.compute, Role.WEIGHT)

    def freeze(self, *layers: str) -> None:
        """Leave the weights of layers whose names begin so as earlier training made them."""
        self.frozen |= {
            tensor.name
            for tensor in self.tensors.values()
            if tensor.role is Role.WEIGHT and tensor.name.startswith(layers)
        }

    def buffer(self, name: str, shape: tuple[int, ...]) -> str:
        """Declare a running statistic."""
        return self.tensor(name, shape, MASTER, Role.BUFFER)

    def activation(self, name: str, shape: tuple[int, ...], format_: str) -> str:
        """Declare an output of a forward op."""
        return self.tensor(name, shape, format_, Role.ACTIVATION)

    def shape(self, tensor: str) -> tuple[int, ...]:
        """Return the shape of a tensor."""
        return self.tensors[tensor].shape

    def elements(self, tensor: str) -> int:
        """Return the number of elements of a tensor."""
        return self.tensors[tensor].elements

    def format(self, tensor: str) -> str:
        """Return the number format of a tensor."""
        return self.tensors[tensor].format

    def emit(
        self,
        kind: OpKind,
        layer: str,
        inputs: Sequence[str],
        outputs: Sequence[str],
        *,
        name: str = "",
        pass_: Pass = Pass.FORWARD,
        loops: Gemm | Conv | None = None,
        flops: int = 0,
        passes: Passes = (),
        output_passes: Passes = (),
        in_place: bool = False,
        attrs: Attrs = (),
        recomputed_flops: int = 0,
    ) -> Op:
        """Append an op.

        Parameters
        ----------
        name
            Default: the layer's name.
        flops
            `Op.vector_flops`.
        passes
            `Op.input_passes`; default: every input once.
        output_passes, recomputed_flops
            As in `Op`.
        in_place
            The first output may overwrite the first input; `settle` decides whether it does.
        """
        name = name or layer
        if name in self._op_names:
            raise RidgelineError(f"{self.name}: two ops are called {name!r}; rename a layer")
        self._op_names.add(name)
        op = Op(
            name,
            kind.name,
            pass_,
            layer,
            tuple(inputs),
            tuple(outputs),
            loops,
            flops,
            passes or (1,) * len(inputs),
            in_place,
            tuple(attrs),
            output_passes,
            recomputed_flops,
        )
        self.ops.append(op)
        return op

    def cast(self, tensor: str, format_: str, layer: str) -> str:
        """Return the tensor in another format, by a cast op the first time that it is needed."""
        source, format_ = self.tensors[tensor], self.numerics.of(format_)
        if precisions.same_in_memory(source.format, format_):
            return tensor
        if (tensor, format_) not in self._casts:
            held = source.role in {Role.WEIGHT, Role.WEIGHT_COPY, Role.BUFFER}
            role = Role.WEIGHT_COPY if held else Role.ACTIVATION
            copy = self.tensor(f"{tensor}.{format_}", source.shape, format_, role)
            name, flops = f"{tensor}.to-{format_}", CAST.forward.of(source.elements)
            self.emit(CAST, layer, (tensor,), (copy,), name=name, flops=flops)
            self._casts[tensor, format_] = copy
        return self._casts[tensor, format_]

    def widened(self, tensor: str, layer: str) -> str:
        """Return what softmax and norms read: the tensor, in fp32 where the precision widens."""
        return self.cast(tensor, MASTER, layer) if self.numerics.widens else tensor

    def quantise(self, tensor: str, layer: str) -> str:
        """Return the tensor in the narrow format of matrix products, with a scale of its own."""
        assert self.numerics.narrow is not None
        role = self.tensors[tensor].role
        return self._quantised(
            tensor,
            layer,
            self.numerics.narrow.forward,
            Role.WEIGHT_COPY if role in {Role.WEIGHT, Role.BUFFER} else Role.ACTIVATION,
            Pass.FORWARD,
        )

    def _quantised(self, tensor: str, layer: str, format_: str, role: Role, pass_: Pass) -> str:
        assert self.numerics.narrow is not None
        if (tensor, format_) not in self._casts:
            copy = self.tensor(f"{tensor}.{format_}", self.shape(tensor), format_, role)
            self.emit(
                QUANTISE,
                layer,
                (tensor,),
                (copy,),
                name=f"{tensor}.to-{format_}",
                pass_=pass_,
                flops=QUANTISE.forward.of(self.elements(tensor)),
                passes=(self.numerics.narrow.reads,),
                output_passes=(2,),  # as it is, and transposed
            )
            self._casts[tensor, format_] = copy
        return self._casts[tensor, format_]

    def graph(self, loss: str, *, partial: bool = False, notes: Sequence[str] = ()) -> Graph:
        """Return the finished graph; `partial` and `notes` as in `Graph`."""
        ops = settle(self.ops, self.tensors)
        return Graph(
            self.name,
            self.batch,
            self.numerics.name,
            dict(self.tensors),
            ops,
            loss,
            self.sample,
            self.tokens_per_sample,
            tuple(notes),
            partial,
            self.frozen,
            tuple(
                CheckpointRegion(tuple(names), number < 0)
                for number, names in sorted(self.checkpoints.items(), key=lambda one: abs(one[0]))
            ),
        )


class GradientBuilder(GraphBuilder):
    """Continues a forward graph with the ops of its backward pass.

    Gradient rules use `gradient`, `wants`, `derive` and `give`.
    """

    def __init__(self, forward: Graph) -> None:
        numerics = precisions.find(forward.precision)
        super().__init__(
            forward.name, forward.batch, numerics, forward.sample, forward.tokens_per_sample
        )
        self.tensors.update(forward.tensors)
        self.ops += forward.ops
        self._op_names.update(op.name for op in forward.ops)
        self._gradients: dict[str, str] = {}
        self.frozen = forward.frozen
        self.take_checkpoints(forward)
        weights = {t.name for t in forward.tensors.values() if t.role is Role.WEIGHT}
        self._wanted = weights - forward.frozen
        for op in forward.ops:
            if TRAINED_BEFORE in op.attrs or not self._wanted.isdisjoint(op.inputs):
                self._wanted.update(op.outputs)

    def wants(self, tensor: str) -> bool:
        """Tell whether a forward tensor depends on weights, so that its gradient is needed."""
        return tensor in self._wanted

    def has_gradient(self, tensor: str) -> bool:
        """Tell whether a gradient has arrived at a forward tensor."""
        return tensor in self._gradients

    def gradient(self, tensor: str) -> str:
        """Name of the sum of the gradients that have arrived at a forward tensor."""
        return self._gradients[tensor]

    def gradient_tensor(self, tensor: str, shape: tuple[int, ...] | None = None) -> str:
        """Declare a tensor for a gradient of `tensor`, of its format, and of its shape if None.

        The gradient of a narrow tensor is not narrow: products give it in the compute format.
        """
        of, narrow = self.tensors[tensor], self.numerics.narrow
        is_narrow = narrow is not None and of.format == narrow.forward
        format_ = self.numerics.compute if is_narrow else of.format
        role = Role.WEIGHT_GRADIENT if of.role in _OF_WEIGHTS else Role.ACTIVATION_GRADIENT
        shape = of.shape if shape is None else shape
        return self.tensor(free_name(f"{tensor}.grad", self.tensors), shape, format_, role)

    def quantise_gradient(self, gradient: str, layer: str) -> str:
        """Return a gradient in the narrow format that matrix products take gradients in."""
        assert self.numerics.narrow is not None
        return self._quantised(
            gradient,
            layer,
            self.numerics.narrow.gradient,
            Role.ACTIVATION_GRADIENT,
            Pass.INPUT_GRADIENT,
        )

    def give(self, tensor: str, gradient: str, layer: str) -> None:
        """Let a gradient arrive at a forward tensor; a second one is added to the first."""
        if tensor not in self._gradients:
            self._gradients[tensor] = gradient
            return
        if self.elements(gradient) != self.elements(self._gradients[tensor]):
            raise RidgelineError(f"{layer}: {tensor!r} has sparse gradients, but is used twice")
        total = self.gradient_tensor(tensor)
        self.emit(
            ADD,
            layer,
            (self._gradients[tensor], gradient),
            (total,),
            name=f"{total}.sum",
            pass_=self._pass(tensor),
            flops=ADD.gradient.of(self.elements(total)),
            in_place=True,
        )
        self._gradients[tensor] = total

    def derive(
        self,
        kind: OpKind,
        op: Op,
        tensors: Sequence[str],
        inputs: Sequence[str],
        *,
        loops: Gemm | Conv | None = None,
        flops: int = 0,
        passes: Passes = (),
        output_passes: Passes = (),
        attrs: Attrs = (),
        recomputed_flops: int = 0,
        shape: tuple[int, ...] | None = None,
    ) -> None:
        """Emit one op that forms the gradients of inputs of a forward op, and give them.

        It belongs to the weight gradient if all of `tensors` are weights. `shape` is that of a
        sparse gradient, which holds only the rows of a table that were looked up.
        """
        passed = {self._pass(tensor) for tensor in tensors}
        pass_ = Pass.INPUT_GRADIENT if Pass.INPUT_GRADIENT in passed else Pass.WEIGHT_GRADIENT
        gradients = tuple(self.gradient_tensor(tensor, shape) for tensor in tensors)
        self.emit(
            kind,
            op.layer,
            inputs,
            gradients,
            name=free_name(f"{op.name}.{pass_}", self._op_names),
            pass_=pass_,
            loops=loops,
            flops=flops,
            passes=passes,
            output_passes=output_passes,
            attrs=attrs or op.attrs,
            recomputed_flops=recomputed_flops,
        )
        for tensor, gradient in zip(tensors, gradients, strict=True):
            self.give(tensor, gradient, op.layer)

    def _pass(self, tensor: str) -> Pass:
        of_weight = self.tensors[tensor].role in _OF_WEIGHTS
        return Pass.WEIGHT_GRADIENT if of_weight else Pass.INPUT_GRADIENT


def settle(ops: Sequence[Op], tensors: dict[str, Tensor]) -> tuple[Op, ...]:
    """Keep `in_place` only where it destroys nothing.

    The overwritten tensor must have been made in this step, have the bytes of the output, and be
    read by no later op: neither by another forward consumer nor by a gradient.
    """
    last_read = {name: i for i, op in enumerate(ops) for name in op.inputs}

    def destroys(i: int, op: Op) -> bool:
        old, new = tensors[op.inputs[0]], tensors[op.outputs[0]]
        return last_read[old.name] > i or old.role not in OVERWRITABLE or old.bytes != new.bytes

    return tuple(
        replace(op, in_place=False) if op.in_place and destroys(i, op) else op
        for i, op in enumerate(ops)
    )


def _passed_on(g: GradientBuilder, op: Op) -> None:
    """Give the inputs the output's gradient, by a cast to those of another format."""
    dy = g.gradient(op.outputs[0])
    for x in filter(g.wants, op.inputs):
        if precisions.same_in_memory(g.format(dy), g.format(x)):
            g.give(x, dy, op.layer)  # also of a quantised tensor, whose gradient is not narrow
        else:
            g.derive(CAST, op, (x,), (dy,), flops=CAST.gradient.of(g.elements(x)))


# The kinds that the builders themselves emit.
CAST = op_kind(
    "cast",
    forward=Cost(1, "element", "a conversion"),
    gradient=Cost(1, "element", "a conversion back"),
    sharding=elementwise_sharding,
)(_passed_on)
QUANTISE = op_kind(
    "quantise",
    forward=Cost(4, "element", "a magnitude and its maximum, a multiplication, a conversion"),
    gradient=Cost(1, "element", "a conversion back, where the formats differ"),
    sharding=elementwise_sharding,
)(_passed_on)
ADD = op_kind(
    "add",
    forward=Cost(1, "element", "an addition"),
    gradient=Cost(1, "element", "an addition where several gradients meet, else nothing"),
    sharding=elementwise_sharding,
)(_passed_on)
