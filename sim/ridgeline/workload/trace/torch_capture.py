"""What PyTorch runs, recorded without running it.

The module runs once on fake tensors, which have shapes and no data, with parameters replaced by
fake ones: nothing is allocated, and a module that was built on the meta device does as well. In
inference mode PyTorch hands composite operators (linear, lstm, attention) to a dispatch mode whole;
those that `torch_ops` does not know are taken apart by PyTorch's own decomposition, until only
known ones or primitives are left. `TorchTape` names the tensors, and follows writes into views.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, NamedTuple

import torch
from torch._decomp import decomposition_table
from torch._ops import HigherOrderOperator
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensor,
    FakeTensorMode,
)
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map_only

from ridgeline.errors import RidgelineError
from ridgeline.workload.trace.ir import Kind, Origin, Recorder
from ridgeline.workload.trace.torch_known import Known
from ridgeline.workload.trace.torch_lines import code_line
from ridgeline.workload.trace.torch_shapes import SHAPES

Handler = Callable[["OperatorCall"], None]

_KINDS: Mapping[torch.dtype, Kind] = {torch.int64: "int64", torch.int32: "int32"}


def kind_of(tensor: Any) -> Kind:
    """Return what a tensor holds: real numbers, indices or truth values."""
    if tensor.dtype.is_floating_point or tensor.dtype.is_complex:
        return "real"
    return _KINDS.get(tensor.dtype, "int8")


def shape_of(tensor: Any) -> tuple[int, ...]:
    """Shape of a tensor; a complex number is two real ones."""
    shape = tuple(int(size) for size in tensor.shape)
    return (*shape, 2) if tensor.dtype.is_complex else shape


class _Write(NamedTuple):
    serial: int
    name: str
    elements: int


class TorchTape(Recorder):
    """A recorder that knows which tensor is which value."""

    def __init__(self) -> None:
        super().__init__()
        self._names: dict[int, tuple[str, int]] = {}  # tensor -> name, number of writes before
        self._held: list[Any] = []  # so that no other tensor gets the same id
        self._writes: dict[int, list[_Write]] = {}
        self._serial = 0
        self.places: dict[Any, Any] | None = None
        """Tensors by where they lie, for autograd, which hands out others of the same data."""

    def declare(self, tensor: Any, origin: Origin, name: str = "") -> str:
        """Give a tensor that the trace starts from a name."""
        return self._bind(tensor, self.value(shape_of(tensor), kind_of(tensor), origin, name))

    def made(self, tensor: Any) -> str:
        """Declare what a step has made."""
        return self.declare(tensor, "made")

    def name(self, tensor: Any, layer: str = "") -> str:
        """Name of a tensor as it is now; one that nobody declared is a constant."""
        if id(tensor) not in self._names and self.places is not None:
            twin = self.places.get(_place(tensor))
            if twin is not None:
                self._bind(tensor, self.name(twin, layer))
        if id(tensor) not in self._names:
            return self.declare(tensor, "constant")
        name, stamp = self._names[id(tensor)]
        for write in self._writes.get(_storage(tensor), ()):
            if write.serial > stamp:
                name = self._after(tensor, name, write, layer)
        self._bind(tensor, name)
        return name

    def written(self, tensor: Any, name: str) -> None:
        """Note that a tensor was overwritten by a value: all views of its storage have changed."""
        self._serial += 1
        elements = self.values[name].elements
        self._writes.setdefault(_storage(tensor), []).append(_Write(self._serial, name, elements))
        self._bind(tensor, name)

    def _after(self, tensor: Any, name: str, write: _Write, layer: str) -> str:
        """Value of a tensor after another view of its storage was written."""
        new = self.value(shape_of(tensor), kind_of(tensor))
        if write.elements == self.values[new].elements:
            self.step("view", layer, (write.name,), (new,))
        else:
            self.step("scatter", layer, (name, write.name), (new,), "write into a view")
        return new

    def _bind(self, tensor: Any, name: str) -> str:
        if id(tensor) not in self._names:
            self._held.append(tensor)
            if self.places is not None:
                self.places[_place(tensor)] = tensor
        self._names[id(tensor)] = (name, self._serial)
        return name


def _place(tensor: Any) -> Any:
    return (_storage(tensor), tensor.storage_offset(), tensor.shape, tensor.stride(), tensor.dtype)


def _storage(tensor: Any) -> int:
    return int(tensor.untyped_storage()._cdata)


class OperatorCall:
    """One operator call as a handler sees it: arguments by name, and what it returned."""

    def __init__(
        self, tape: TorchTape, layer: str, source: str, args: dict[str, Any], out: Any
    ) -> None:
        self.tape, self.layer, self.source = tape, layer, source
        self.args, self.out = args, out
        self.result: str | None = None

    def get(self, name: str, default: Any = None) -> Any:
        """Return an argument, or what it is if it was not given or is None."""
        value = self.args.get(name)
        return default if value is None else value

    def tensor(self, name: str) -> str | None:
        """Name of the value of an argument that is a tensor, else None."""
        value = self.args.get(name)
        return self.tape.name(value, self.layer) if isinstance(value, torch.Tensor) else None

    def tensors(self) -> list[str]:
        """Names of all tensors among the arguments, those in lists included."""
        flat = [t for value in self.args.values() for t in _tensors(value)]
        return [self.tape.name(tensor, self.layer) for tensor in flat]

    def shape(self, name: str) -> tuple[int, ...]:
        """Shape of an argument that is a tensor."""
        return shape_of(self.args[name])

    def emit(self, kind: str, inputs: Sequence[str], /, **attrs: Any) -> str:
        """Append the step that makes the output, and return its name."""
        outputs = [self._output(tensor) for tensor in _tensors(self.out)]
        self.tape.step(kind, self.layer, inputs, outputs, self.source, **attrs)
        return outputs[0] if outputs else ""

    def emit_inner(
        self, kind: str, inputs: Sequence[str], shape: Sequence[int], /, **attrs: Any
    ) -> str:
        """Append a step whose result only this call uses."""
        made = self.tape.value(shape, "real")
        self.tape.step(kind, self.layer, inputs, (made,), self.source, **attrs)
        return made

    def constant(self) -> None:
        """Say that the output depends on nothing."""
        for tensor in _tensors(self.out):
            self.result = self.tape.declare(tensor, "constant")

    def stop(self) -> None:
        """Let no gradient pass what was made."""
        for tensor in _tensors(self.out):
            made = self.tape.values[self.tape.name(tensor, self.layer)]
            if made.origin == "made" and made.kind == "real":
                self.result = self.tape.like(made.name)
                self.tape.step("stop", self.layer, (made.name,), (self.result,), "no_grad")
                self.tape._bind(tensor, self.result)

    def _output(self, tensor: Any) -> str:
        self.result = self.tape.value(shape_of(tensor), kind_of(tensor))
        return self.tape._bind(tensor, self.result)


def _tensors(value: Any) -> list[Any]:
    if isinstance(value, torch.Tensor):
        return [value]
    return [t for item in value for t in _tensors(item)] if isinstance(value, list | tuple) else []


def undecided(what: str) -> RidgelineError:
    """Return the error that code asks for what only the mini-batch decides."""
    return RidgelineError(
        f"at {code_line()} the code asks for {what} that depends on the mini-batch, so the values"
        " of a tensor decide what is computed next; a trace has shapes but no values: replace it by"
        " an operation whose result has a fixed shape (torch.where), or by a constant"
    )


class BatchNumber(float):
    """A number that stands for one that the mini-batch decides: no size can be made of it."""

    def _refuse(self, *_: Any) -> int:
        raise undecided("a whole number")

    __int__ = __index__ = __trunc__ = __floor__ = __ceil__ = __round__ = _refuse


class Listener(TorchDispatchMode):  # type: ignore[misc]
    """Records every operator while it is active.

    Parameters
    ----------
    handlers
        By the operator's name without underscore; `fallback` takes those that nobody knows.
    """

    def __init__(
        self,
        tape: TorchTape,
        fake: FakeTensorMode,
        handlers: Mapping[str, Handler],
        fallback: Handler,
        mask_share: float = 0.5,
    ) -> None:
        super().__init__()
        self.supports_higher_order_operators = True
        self.tape, self.fake = tape, fake
        self.handlers, self.fallback = handlers, fallback
        self.stops = 0
        """Depth of code without gradients: what it makes, no gradient passes."""
        self.path: list[str] = []
        self.where = ""
        """Path of the module that ran last: where something went wrong."""
        self.asks_for_whole = self.supposed = False
        """Whether code asks for a whole number now; whether it got one that stands for another."""
        self._faked: dict[int, tuple[Any, Any]] = {}
        self.parameters: dict[int, str] = {}
        """Names of parameters, by the identity of them and of what stands for them."""
        self.without_gradient: set[str] = set()
        """Parameters that no gradient is formed of now."""
        self.known = Known(mask_share)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = [x for x in tree_leaves((args, kwargs)) if isinstance(x, torch.Tensor)]
        args, kwargs = tree_map_only(torch.Tensor, self.faked, (args, kwargs or {}))
        if isinstance(func, HigherOrderOperator):
            return self._higher(func, args)
        if func.namespace == "prim":
            return func(*args, **kwargs)
        name = func._schema.name.rpartition("::")[2]
        if name == "detach" and self.tape.places is not None and not self.stops:
            name = "alias"  # by autograd, which saves a result
        in_place = name.endswith("_") and not name.endswith("__")
        handler = self.handlers.get(name.rstrip("_") if in_place else name)
        parts = _parts(func, name) if handler is None or name == "masked_select" else None
        if parts is not None:
            with self:
                return parts(*args, **kwargs)
        bound = _bound(func, args, kwargs)
        self.where = layer = self.path[-1] if self.path else ""
        before = self.tape.name(args[0], layer) if in_place and args else ""
        known, real = self.known.run(func, name, args, kwargs)
        if known and not isinstance(real, torch.Tensor | list | tuple):
            return real
        if name == "_local_scalar_dense":
            return self._number(args[0])
        if before and self.tape.values[before].origin in {"weight", "frozen"}:
            self.known.notes[
                f"a parameter is written at {code_line()} (a moving average, a clamp): that is not"
                " part of the step here"
            ] = None
        with self._mode(all(x.is_inference() for x in given)):  # views are what their tensors are
            out = self._faked_result(func, name, args, kwargs, real if known else None)
        self.known.learn(out, real)
        self.known.suppose(name, bound, out)
        call = OperatorCall(self.tape, layer, f"{func.namespace}.{name}", bound, out)
        if before:
            self.tape._bind(args[0], before)
        (handler or self.fallback)(call)
        if self.stops:
            call.stop()
        if in_place and call.result is not None:
            self.tape.written(args[0], call.result)
        return out

    def _higher(self, func: Any, args: Any) -> Any:
        """Record attention whose scores a function changes; others take code as an argument."""
        self.where = layer = self.path[-1] if self.path else ""
        name = func.name()
        handler = self.handlers.get(name)
        if handler is None:
            raise RidgelineError(
                f"{layer or 'the module'}: the operator {name!r}, which takes code as an argument,"
                " cannot be traced; call the code itself"
            )
        with self.fake:
            out = SHAPES[name](*args)
        named = dict(zip(_NAMES[name], args, strict=False))
        named["met"] = self._met(named["block_mask"])
        handler(OperatorCall(self.tape, layer, name, named, out))
        return out

    def _met(self, block_mask: Any) -> float:
        """Return the share of scores that lie in blocks which a mask leaves; 1 if not known."""
        partial, full = block_mask[2], block_mask[4]  # numbers of blocks in each row of blocks
        counts = [self.known.total(each) for each in (partial, full) if each is not None]
        blocks = sum(count for count in counts if count is not None)
        if None in counts:
            self.known.notes[
                f"the mask of flex_attention at {code_line()} depends on the mini-batch: all blocks"
                " of its scores count as computed"
            ] = None
            return 1.0
        rows, columns = (int(size) for size in block_mask[:2])
        height, width = (int(size) for size in block_mask[-3:-1])
        heads = partial.shape[0] * partial.shape[1]
        scores = blocks * min(height, rows) * min(width, columns)
        return min(1.0, scores / max(int(heads) * rows * columns, 1))

    def _number(self, x: Any) -> float:
        """Return a number in place of one that only the mini-batch decides: 1, which is noted.

        Raises
        ------
        RidgelineError
            If it is whole or a truth value, which would decide shapes or what is computed.
        """
        if self.asks_for_whole or not x.dtype.is_floating_point:
            raise undecided("a truth value" if x.dtype == torch.bool else "a whole number")
        self.supposed = True
        self.known.notes[
            f"the number that the code asks for at {code_line()} depends on the mini-batch: it is"
            " taken to be 1"
        ] = None
        return 1.0

    def _faked_result(self, func: Any, name: str, args: Any, kwargs: Any, real: Any) -> Any:
        """Return what an operator gives, without data.

        Where its shape is known by values alone, it is that of its real result.
        """
        args = self.known.with_positions(name, args, self.fake)
        shape = SHAPES.get(f"{name}.{func._overloadname}", SHAPES.get(name))
        with self.fake:
            if shape is not None:
                return shape(*args, **kwargs)
            try:
                return func(*args, **kwargs)
            except (DataDependentOutputException, DynamicOutputShapeException):
                if real is None:
                    raise
            self.known.decided()
            return tree_map_only(torch.Tensor, lambda x: torch.empty(x.shape, dtype=x.dtype), real)

    def _mode(self, inference: bool) -> AbstractContextManager[Any]:
        """Return inference mode as asked for; with autograd at work, no change of modes."""
        return nullcontext() if self.tape.places is not None else torch.inference_mode(inference)

    def stand_in(self, tensor: Any, fake: Any, name: str) -> None:
        """Let a fake tensor stand for a parameter, also where code has kept hold of that."""
        self._faked[id(tensor)] = (tensor, fake)
        self.parameters[id(tensor)] = self.parameters[id(fake)] = name
        if not tensor.requires_grad:
            self.without_gradient.add(name)

    def faked(self, tensor: Any) -> Any:
        """Return a fake tensor in place of one that is real or on the meta device."""
        if isinstance(tensor, FakeTensor):
            return tensor
        if id(tensor) not in self._faked:
            with self.fake, self._mode(tensor.is_inference()):
                fake = torch.empty(tensor.shape, dtype=tensor.dtype)
            if not tensor.is_meta:
                self.known.learn(fake, tensor)
            self._faked[id(tensor)] = (tensor, fake)
        return self._faked[id(tensor)][1]

    @contextmanager
    def inside(self, module: Any) -> Iterator[None]:
        """Follow which submodule runs, so that every step knows its layer."""
        hooks = []
        for name, part in module.named_modules():

            def enter(_: Any, __: Any, name: str = name) -> None:
                self.path.append(name)

            def leave(*_: Any) -> None:
                self.path.pop()

            if isinstance(part, torch.jit.ScriptModule):
                continue  # takes no hooks: its operators count to the module around it
            hooks += [
                part.register_forward_pre_hook(enter),
                part.register_forward_hook(leave, always_call=True),
            ]
        try:
            yield
        finally:
            for hook in hooks:
                hook.remove()


def _parts(func: Any, name: str) -> Callable[..., Any] | None:
    """Return what an operator consists of, if that is to be recorded in its place."""
    if name == "masked_select":
        return _selected
    if func._can_decompose():
        return func.decompose  # type: ignore[no-any-return]
    return decomposition_table.get(func) if "backward" in name else None


def _selected(x: Any, mask: Any) -> Any:
    x, mask = torch.broadcast_tensors(x, mask)
    return x[mask]


_NAMES = {"flex_attention": ("query", "key", "value", "score_mod", "block_mask", "scale")}
"""Arguments of operators that take code, which have no schema."""


def _bound(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Give every argument of an operator its name from the schema."""
    bound = dict(kwargs)
    for i, argument in enumerate(func._schema.arguments):
        if i < len(args):
            bound[argument.name] = args[i]
        elif argument.name not in bound and argument.has_default_value():
            bound[argument.name] = argument.default_value
    return bound
