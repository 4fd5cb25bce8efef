"""The training graph of a PyTorch module: what ``rl.trace`` does."""

from __future__ import annotations

import dataclasses
import inspect
import logging
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from types import SimpleNamespace
from typing import Any, Literal

import torch
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensor,
    FakeTensorMode,
)
from torch.nn import functional
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils._pytree import tree_flatten, tree_unflatten

from ridgeline.errors import RidgelineError
from ridgeline.workload import optimizers
from ridgeline.workload.model import Model
from ridgeline.workload.trace.ir import Capture, Origin, resolved
from ridgeline.workload.trace.network import Attention, TraceWarning, traced_model
from ridgeline.workload.trace.symbolic import merge
from ridgeline.workload.trace.torch_capture import Listener, TorchTape, kind_of
from ridgeline.workload.trace.torch_checkpoint import with_regions
from ridgeline.workload.trace.torch_gradients import without_gradients
from ridgeline.workload.trace.torch_known import EVEN, masked
from ridgeline.workload.trace.torch_layers import LAYERS
from ridgeline.workload.trace.torch_ops import SIMPLE, unknown
from ridgeline.workload.trace.torch_step import (
    StepFunction,
    recorded_step,
    title_of,
    with_frozen,
)

HANDLERS = {**SIMPLE, **LAYERS}
Loss = Literal["cross-entropy", "mse", "bce", "smooth-l1"]
_CRITERIA: dict[str, Callable[..., Any]] = {
    "mse": functional.mse_loss,
    "bce": functional.binary_cross_entropy_with_logits,
    "smooth-l1": functional.smooth_l1_loss,
}
_EXPERTS = 64
"""What batches are multiplied with so that experts get whole numbers of rows."""
BatchDim = int | Sequence[int | None]


def built(module: Any) -> Any:
    """Return a module; build that of a Hugging Face configuration on the meta device."""
    if isinstance(module, torch.nn.Module):
        return module
    if not hasattr(module, "model_type"):
        if callable(module) and not isinstance(module, type):
            return StepFunction(module)
        raise RidgelineError(
            "expected a torch.nn.Module, a step function or a configuration of transformers, found"
            f" {type(module).__name__}"
        )
    import transformers

    named = (module.architectures or [None])[0]
    with torch.device("meta"):
        if named is not None and hasattr(transformers, named):
            return getattr(transformers, named)(module)
        try:
            return transformers.AutoModelForCausalLM.from_config(module)
        except ValueError:
            return transformers.AutoModel.from_config(module)


class AsksForGradientsError(Exception):
    """The forward pass asks autograd for gradients, which was not at work."""


class Example:
    """The example inputs, at any batch size."""

    def __init__(
        self,
        module: Any,
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        batch_dim: BatchDim,
        mask_share: float = 0.5,
    ) -> None:
        self.module, self.mask_share = module, mask_share
        self.differentiates = False
        """Whether the forward pass asks for gradients itself (`torch.autograd.grad`)."""
        self.leaves, self.form = tree_flatten((tuple(args), dict(kwargs)))
        tensors = [i for i, leaf in enumerate(self.leaves) if isinstance(leaf, torch.Tensor)]
        if not tensors:
            raise RidgelineError("no example input is a tensor")
        dims = [batch_dim] * len(tensors) if isinstance(batch_dim, int) else list(batch_dim)
        if len(dims) != len(tensors):
            raise RidgelineError(f"batch_dim has {len(dims)} entries for {len(tensors)} tensors")
        self.axes = dict(zip(tensors, dims, strict=True))
        self.batch = next(
            (self.leaves[i].shape[d] for i, d in self.axes.items() if self._has(i, d)), 1
        )
        if not self.batch:
            raise RidgelineError("the example inputs have no sample: their batch is 0")
        self.names = self._names(args, kwargs)

    def _has(self, leaf: int, axis: int | None) -> bool:
        return axis is not None and -self.leaves[leaf].ndim <= axis < self.leaves[leaf].ndim

    def _names(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[str]:
        """Name of every leaf: that of its parameter in forward, numbered where it has parts."""
        parameters = list(inspect.signature(self.module.forward).parameters)
        names: list[str] = []
        for i, (key, value) in enumerate([*enumerate(args), *kwargs.items()]):
            named = parameters[i] if isinstance(key, int) and i < len(parameters) else str(key)
            count = len(tree_flatten(value)[0])
            names += [named] if count == 1 else [f"{named}.{j}" for j in range(count)]
        return names

    def model(
        self,
        loss: Any,
        name: str | None,
        *,
        optimizer: str,
        attention: Attention | None,
        strict: bool,
    ) -> Model:
        """Trace and make a model; parameters as in `torch_entry.trace`."""
        optimizers.find(optimizer)
        title, citation = title_of(self.module)
        name = name or title
        captures = self.captures(loss, name)
        for note in captures[0].notes:
            warnings.warn(f"{name}: {note}", TraceWarning, stacklevel=4)
        return traced_model(
            captures, name, citation,
            optimizer=optimizer, strict=strict, attention=attention,
        )  # fmt: skip

    def captures(self, loss: Any, name: str) -> list[Capture]:
        """Trace at three batch sizes, or at the example's where that is not possible."""
        found = self._captures(loss, name, 1)
        supposed = {EVEN, masked(self.mask_share)}
        if not supposed.isdisjoint(found[0].notes) and not _of_any_batch(found):
            with suppress(RidgelineError):  # as many rows for each of the experts
                larger = self._captures(loss, name, _EXPERTS)
                return larger if _of_any_batch(larger) else found
        return found

    def _captures(self, loss: Any, name: str, factor: int) -> list[Capture]:
        if self.batch == 1:  # axes of one element have rules of their own
            try:
                return [self.capture(loss, name, batch * factor) for batch in (2, 3, 4)]
            except RidgelineError:
                return [self.capture(loss, name, 1)]
        captures = [self.capture(loss, name, self.batch * factor)]
        try:
            captures += [self.capture(loss, name, self.batch * factor * i) for i in (2, 3)]
        except RidgelineError:
            return captures[:1]
        return captures

    def capture(self, loss: Any, name: str, batch: int) -> Capture:
        """Record one forward pass with loss; with autograd at work if the pass asks for gradients.

        Autograd takes operators apart before they can be recorded, so that it works only then.
        """
        if not self.differentiates:
            try:
                return self._capture(loss, name, batch)
            except AsksForGradientsError:
                self.differentiates = True
        return self._capture(loss, name, batch)

    def _capture(self, loss: Any, name: str, batch: int) -> Capture:
        tape, fake = TorchTape(), FakeTensorMode(allow_non_fake_inputs=True)
        listener = Listener(tape, fake, HANDLERS, unknown, self.mask_share)
        mode = torch.enable_grad() if self.differentiates else torch.inference_mode()
        if self.differentiates:
            tape.places = {}
        with _training(self.module), _as_written(), _quiet(), fake, mode:
            state = _fake_state(self.module, tape, listener, self.differentiates)
            args, kwargs = self._fake_inputs(tape, batch)
            try:
                with (
                    without_gradients(listener),
                    with_regions(listener),
                    listener,
                    listener.inside(self.module),
                    recorded_step(self.module, listener, listener.parameters) as recorder,
                ):
                    output = torch.func.functional_call(self.module, state, args, kwargs)
                    if recorder is None:
                        listener.path.append("loss")
                        result = tape.name(_loss_of(output, loss, tape))
                    else:
                        result = recorder.end()
            except (DataDependentOutputException, DynamicOutputShapeException) as error:
                raise RidgelineError(_data_dependent(name, listener, error)) from error
            except RidgelineError:
                raise
            except Exception as error:
                if "does not require grad" in str(error) and not self.differentiates:
                    raise AsksForGradientsError from error
                where = f" in {listener.where!r}" if listener.where else ""
                raise RidgelineError(
                    f"{name} fails{where} on example inputs of batch {batch}:"
                    f" {type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
                ) from error
        notes = tuple(listener.known.notes)
        capture = Capture(dict(tape.values), tuple(tape.steps), result, batch, notes)
        return capture if recorder is None else with_frozen(capture)

    def _fake_inputs(self, tape: TorchTape, batch: int) -> Any:
        leaves = list(self.leaves)
        for i, axis in self.axes.items():
            shape = list(leaves[i].shape)
            if axis is not None and self._has(i, axis) and shape[axis] == self.batch:
                shape[axis] = batch
            leaves[i] = torch.empty(shape, dtype=leaves[i].dtype)
            tape.declare(leaves[i], "input", self.names[i])
        return tree_unflatten(leaves, self.form)


def _of_any_batch(captures: Sequence[Capture]) -> bool:
    return not merge([resolved(capture) for capture in captures]).fixed_because


@contextmanager
def _training(module: Any) -> Iterator[None]:
    """Train mode for a module that is in evaluation mode as a whole; parts stay as they are."""
    modes = {part: part.training for part in module.modules()}
    if not module.training:
        module.train()
    try:
        yield
    finally:
        for part, mode in modes.items():
            part.training = mode


@contextmanager
def _as_written() -> Iterator[None]:
    """Keep modules from moving themselves to a type or device, and from compiling what they run.

    The formats of a step are those of its precision.
    """
    flex: Any = sys.modules.get("torch.nn.attention.flex_attention")  # if anything uses it
    flex = flex or SimpleNamespace(_FLEX_ATTENTION_DISABLE_COMPILE_DEBUG=False)
    before = torch.nn.Module._apply, flex._FLEX_ATTENTION_DISABLE_COMPILE_DEBUG
    torch.nn.Module._apply = lambda self, *_, **__: self
    FakeTensor.__format__ = _format  # as text, too, a number is a number
    flex._FLEX_ATTENTION_DISABLE_COMPILE_DEBUG = True
    try:
        yield
    finally:
        torch.nn.Module._apply, flex._FLEX_ATTENTION_DISABLE_COMPILE_DEBUG = before
        del FakeTensor.__format__


def _format(tensor: Any, how: str) -> str:
    return format(tensor.item(), how) if tensor.ndim == 0 else object.__format__(tensor, how)


@contextmanager
def _quiet() -> Iterator[None]:
    """Keep PyTorch from printing what is raised as an error all the same."""
    logger = logging.getLogger("torch._subclasses.fake_tensor")
    before = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        logger.setLevel(before)


def _fake_state(
    module: Any, tape: TorchTape, listener: Listener, differentiates: bool
) -> dict[str, Any]:
    """Fake parameters and buffers; shared ones are shared, and have their first name."""
    state: dict[str, Any] = {}
    made: dict[int, Any] = {}
    for source, trains in ((module.named_parameters, True), (module.named_buffers, False)):
        for name, tensor in source(remove_duplicate=False):
            if id(tensor) not in made:
                made[id(tensor)] = torch.empty(tensor.shape, dtype=tensor.dtype)
                if not trains and not tensor.is_meta:
                    with _disable_current_modes():
                        listener.known.learn(made[id(tensor)], tensor.detach().clone())
                if differentiates and trains:
                    made[id(tensor)].requires_grad_(tensor.requires_grad)
                held: Origin = "frozen" if trains else "buffer"
                tape.declare(
                    made[id(tensor)], "weight" if trains and tensor.requires_grad else held, name
                )
                if trains:
                    listener.stand_in(tensor, made[id(tensor)], name)
            state[name] = made[id(tensor)]
    return state


def _loss_of(output: Any, loss: Any, tape: TorchTape) -> Any:
    """Return the scalar that is minimised."""
    if callable(loss):
        return _criterion(output, loss, tape)
    if loss is not None and loss not in {"cross-entropy", *_CRITERIA}:
        known = ", ".join(["cross-entropy", *_CRITERIA])
        raise RidgelineError(f"unknown loss {loss!r} (known: {known}, or a function)")
    if loss is None:
        given = output.get("loss") if isinstance(output, Mapping) else output
        given = getattr(output, "loss", None) if dataclasses.is_dataclass(output) else given
        if isinstance(given, torch.Tensor) and given.numel() == 1 and given.ndim == 0:
            return given
    outputs = _outputs(output)
    total = None
    for i, x in enumerate(outputs):
        labels = "labels" if i == 0 else f"labels{i}"
        one = _one_loss(x, loss, tape, labels)
        total = one if total is None else total + one
    return total


def _criterion(output: Any, loss: Callable[..., Any], tape: TorchTape) -> Any:
    """Call a function of the output, or a criterion of output and target."""
    called = loss.forward if isinstance(loss, torch.nn.Module) else loss
    required = [
        p
        for p in inspect.signature(called).parameters.values()
        if p.default is p.empty and p.kind in {p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD}
    ]  # fmt: skip
    if len(required) < 2:
        scalar = loss(output)
    else:
        (x, *_) = _outputs(output)
        classes = (torch.nn.CrossEntropyLoss, torch.nn.NLLLoss)
        indices = isinstance(loss, classes) or loss in {
            functional.cross_entropy,
            functional.nll_loss,
        }
        scalar = loss(x, _target(x, tape, "target", 1 if indices else None))
    if not isinstance(scalar, torch.Tensor) or scalar.numel() != 1:
        raise RidgelineError("the loss function does not return a scalar tensor")
    return scalar


def _outputs(output: Any) -> list[Any]:
    """Tensors of real numbers that a network returns; its logits where fields are named so."""
    if dataclasses.is_dataclass(output):
        output = {f.name: getattr(output, f.name) for f in dataclasses.fields(output)}
    if isinstance(output, Mapping):
        output = {
            k: v
            for k, v in output.items()
            if k not in {"hidden_states", "attentions", "past_key_values"}
        }
        output = {k: v for k, v in output.items() if "logits" in k} or output
    leaves = [x for x in tree_flatten(output)[0] if isinstance(x, torch.Tensor)]
    if isinstance(output, Mapping) and not leaves:
        leaves = [
            x
            for value in output.values()
            for x in tree_flatten(value)[0]
            if isinstance(x, torch.Tensor)
        ]
    found = [x for x in leaves if kind_of(x) == "real"]
    if not found:
        raise RidgelineError("forward returns no tensor of real numbers; give a loss function")
    return found


def _one_loss(x: Any, loss: str | None, tape: TorchTape, labels: str) -> Any:
    alone = x.ndim < 2 or (x.shape[-1] == 1 and x.ndim < 4)
    if loss is None:
        loss = "bce" if alone else "cross-entropy"
    if loss != "cross-entropy":
        return _CRITERIA[loss](x, _target(x, tape, labels, None))
    axis = 1 if x.ndim > 3 else x.ndim - 1
    target = _target(x, tape, labels, axis)
    if axis == 1:
        return functional.cross_entropy(x, target)
    return functional.cross_entropy(x.reshape(-1, x.shape[-1]), target.reshape(-1))


def _target(x: Any, tape: TorchTape, name: str, axis: int | None) -> Any:
    """Declare what an output is compared with: classes along an axis, or numbers like it."""
    shape = [size for i, size in enumerate(x.shape) if i != axis]
    target = torch.empty(shape, dtype=x.dtype if axis is None else torch.int64)
    tape.declare(target, "input", name)
    return target


def _data_dependent(name: str, listener: Listener, error: Exception) -> str:
    where = listener.where or name
    return (
        f"{name}: in {where!r} the values of a tensor decide what is computed next"
        f" ({str(error).splitlines()[0]}); a trace has shapes but no values: replace it by an"
        " operation whose result has a fixed shape"
    )
