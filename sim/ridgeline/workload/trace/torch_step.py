"""Steps written as a function: several networks, several optimizers, several backward passes.

A GAN's step takes the gradient of two losses for two optimizers; distillation, preference and
policy optimisation run networks that are not trained. Such a step is a Python function, which runs
once on fake tensors like a module does. Its networks are found among the variables that it reads;
`backward`, `Optimizer.step` and `zero_grad` are replaced meanwhile: each leaves a mark on the tape.
"""

from __future__ import annotations

import functools
import inspect
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import Any
from unittest import mock

import torch

from ridgeline.errors import RidgelineError
from ridgeline.workload.trace.ir import Capture, TraceStep
from ridgeline.workload.trace.torch_capture import Listener
from ridgeline.workload.trace.torch_lines import code_line

BACKWARD, STEP_END = "backward", "step-end"
"""Marks of a backward pass, and of the end of the step, as kinds of steps."""
_DEEPEST = 4

_RULES: Mapping[str, str] = {
    "Adam": "adam", "AdamW": "adamw", "NAdam": "adam", "RAdam": "adam", "SGD": "sgd",
    "RMSprop": "rmsprop", "Adagrad": "adagrad", "Adafactor": "adafactor", "Lion": "lion",
    "Muon": "muon", "AdamW8bit": "adamw-8bit", "PagedAdamW8bit": "adamw-8bit", "Adam8bit":
    "adamw-8bit", "LAMB": "lamb", "Lamb": "lamb", "FusedLAMB": "lamb", "FusedAdam": "adamw",
    "DeepSpeedCPUAdam": "adamw",
}  # fmt: skip
"""Update rules by the names of optimizer classes."""


class StepFunction(torch.nn.Module):  # type: ignore[misc]
    """A step as a module of the networks that it reads; its parameters have their names in it."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function
        self.forward = function
        found = _networks(function)
        inner = {id(part) for one in found.values() for part in list(one.modules())[1:]}
        for name, value in found.items():
            if id(value) not in inner:
                self.add_module(name.replace(".", "_"), value)
        held = {id(parameter) for parameter in self.parameters()}
        for name, value in _values(function).items():
            if isinstance(value, torch.nn.Parameter) and id(value) not in held:
                self.register_parameter(name.replace(".", "_"), value)
        self.optimizers = [
            value
            for value in _values(function).values()
            if isinstance(value, torch.optim.Optimizer)
        ]
        if not any(True for _ in self.parameters()):
            raise RidgelineError(
                f"the step function {_title(function)} reads no torch.nn.Module: let it read the"
                " networks as variables around it, or be a method of an object that has them"
            )


def _title(function: Callable[..., Any]) -> str:
    return str(getattr(function, "__name__", type(function).__name__))


def title_of(module: Any) -> tuple[str, str]:
    """Name of a traced module or step function, and where it comes from."""
    if isinstance(module, StepFunction):
        name = _title(module.function)
        of = getattr(module.function, "__module__", "")
        return name, f"traced from the step function {of}.{name}"
    of = type(module)
    return of.__name__, f"traced from the PyTorch module {of.__module__}.{of.__qualname__}"


def _networks(function: Callable[..., Any]) -> dict[str, Any]:
    values = _values(function)
    found: dict[str, Any] = {}
    for name, value in values.items():
        if isinstance(value, torch.nn.Module) and not any(value is one for one in found.values()):
            found[name] = value
    return found


def _values(function: Callable[..., Any]) -> dict[str, Any]:
    """Values that a function reads of the variables around it, with those inside them, by name."""
    found: dict[str, Any] = {}
    seen: set[int] = set()

    def take(name: str, value: Any, depth: int) -> None:
        if depth > _DEEPEST or id(value) in seen:
            return
        seen.add(id(value))
        if isinstance(value, torch.nn.Module | torch.nn.Parameter | torch.optim.Optimizer):
            found.setdefault(name, value)
        elif isinstance(value, Mapping):
            for key, one in value.items():
                take(f"{name}.{key}", one, depth + 1)
        elif isinstance(value, list | tuple):
            for i, one in enumerate(value):
                take(f"{name}.{i}", one, depth + 1)
        elif isinstance(value, functools.partial):
            take(name, value.func, depth)
            take(name, [*value.args, *value.keywords.values()], depth)
        elif inspect.ismethod(value):
            take(name, value.__self__, depth)
            take(name, value.__func__, depth)
        elif inspect.isfunction(value):
            variables = inspect.getclosurevars(value)
            for of in (variables.nonlocals, variables.globals):
                for key, one in of.items():
                    take(key, one, depth + 1)
        elif _is_plain(value):
            take(name, vars(type(value)).get("__call__"), depth + 1)
            for key, one in vars(value).items():
                take(key if depth == 0 else f"{name}.{key}", one, depth + 1)

    take("", function, 0)
    return found


def _is_plain(value: Any) -> bool:
    """Whether a value is an object of the user's with attributes."""
    ours = type(value).__module__.partition(".")[0]
    return (
        hasattr(value, "__dict__")
        and not inspect.ismodule(value)
        and not inspect.isclass(value)
        and not inspect.isbuiltin(value)
        and ours not in {"builtins", "torch", "typing", "functools", "collections", "logging"}
    )


class _Recorder:
    """Puts the marks of one run of a step function on the tape."""

    def __init__(self, module: StepFunction, listener: Listener, names: Mapping[int, str]) -> None:
        self.module, self.listener, self.tape = module, listener, listener.tape
        self.names = names
        self.passes: list[dict[str, Any]] = []
        self.ends: list[str] = []
        self.gone: set[str] = set()

    def backward(self, loss: Any, *_: Any, **__: Any) -> None:
        """Mark the backward pass of a scalar."""
        losses = list(loss) if isinstance(loss, list | tuple) else [loss]
        for one in losses:
            if not isinstance(one, torch.Tensor) or one.numel() != 1:
                raise RidgelineError(
                    f"backward at {code_line()} is of a tensor that is no scalar: add it up first"
                )
            made = self.tape.value((), "real")
            attrs: dict[str, Any] = {
                "updates": (),
                "frozen": tuple(sorted(self.listener.without_gradient)),
                "forgets": tuple(sorted(self.gone)),
            }
            self.gone.clear()
            source = f"backward at {code_line()}"
            step = TraceStep(BACKWARD, "", (self.tape.name(one),), (made,), attrs, source)
            self.tape.steps.append(step)
            self.passes.append(attrs)
            self.ends.append(made)

    def step(self, optimizer: Any, *_: Any, **__: Any) -> None:
        """Mark the updates of an optimizer."""
        if not self.passes:
            raise RidgelineError(
                f"the optimizer steps at {code_line()} before any backward pass of the step"
            )
        rule = _rule(optimizer, self.listener)
        updates = (rule, self._of(optimizer))
        self.passes[-1]["updates"] = (*self.passes[-1]["updates"], updates)
        optimizer._opt_called = True  # what schedulers of the learning rate ask

    def forget(self, owner: Any, *_: Any, **__: Any) -> None:
        """Mark that gradients are dropped, of an optimizer or a module."""
        if isinstance(owner, torch.optim.Optimizer):
            self.gone.update(self._of(owner))
        else:
            self.gone.update(filter(None, (self.names.get(id(p)) for p in owner.parameters())))

    def _of(self, optimizer: Any) -> tuple[str, ...]:
        weights = [p for group in optimizer.param_groups for p in group["params"]]
        missing = sum(id(p) not in self.names for p in weights)
        if missing:
            raise RidgelineError(
                f"the optimizer at {code_line()} updates {missing} parameters of no network that"
                " the step function reads: let it read that network as a variable around it"
            )
        return tuple(dict.fromkeys(self.names[id(p)] for p in weights))

    def end(self) -> str:
        """Mark the end of the step; return the name of the mark.

        Raises
        ------
        RidgelineError
            If there was no backward pass, or no optimizer stepped.
        """
        title = _title(self.module.function)
        if not self.passes:
            raise RidgelineError(
                f"the step function {title} calls no backward(): a function is traced as a whole"
                " step, with loss.backward() and optimizer.step(); a network alone as a module"
            )
        if not any(attrs["updates"] for attrs in self.passes):
            raise RidgelineError(f"the step function {title} calls no optimizer.step()")
        times = Counter(
            name for attrs in self.passes for _, names in attrs["updates"] for name in names
        )
        if twice := sum(count > 1 for count in times.values()):
            self.listener.known.notes[
                f"{twice} weights are updated more than once a step; under data parallelism only"
                " the gradients of their last update are sent"
            ] = None
        end = self.tape.value((), "real")
        self.tape.step(STEP_END, "", self.ends, (end,), "the end of the step")
        return end


def _rule(optimizer: Any, listener: Listener) -> str:
    """Name of the update rule of an optimizer; what is not known of it is noted."""
    name = type(optimizer).__name__
    rule, notes = _RULES.get(name), listener.known.notes
    group = optimizer.param_groups[0]
    if rule is None:
        notes[f"the optimizer {name} at {code_line()} is not known: it counts as adamw"] = None
        return "adamw"
    if rule == "sgd" and group.get("momentum"):
        return "sgd-momentum"
    if group.get("amsgrad") or group.get("centered"):
        notes[f"the further state of {name} (amsgrad, centered) at {code_line()} is not held"] = (
            None
        )
    return rule


@contextmanager
def recorded_step(
    module: Any, listener: Listener, names: Mapping[int, str]
) -> Iterator[_Recorder | None]:
    """Record what a step function does besides forward passes; nothing of a plain module.

    Parameters
    ----------
    names
        Names of parameters, by the identity of the tensors that stand for them.
    """
    if not isinstance(module, StepFunction):
        yield None
        return
    recorder = _Recorder(module, listener, names)

    def method(act: Callable[..., Any]) -> Callable[..., Any]:
        """Return a plain function, which becomes a method of the class that it is put into."""

        def called(self: Any, *args: Any, **kwargs: Any) -> None:
            act(self, *args, **kwargs)

        return called

    optimizers: list[type[Any]] = [torch.optim.Optimizer]
    for one in optimizers:
        optimizers += one.__subclasses__()
    with ExitStack() as patched:

        def put(owner: Any, name: str, value: Any) -> None:
            patched.enter_context(mock.patch.object(owner, name, value))

        put(torch.Tensor, "backward", method(recorder.backward))
        put(torch.autograd, "backward", recorder.backward)
        for cls in dict.fromkeys(optimizers):
            if "step" in vars(cls):
                put(cls, "step", method(recorder.step))
        put(torch.optim.Optimizer, "zero_grad", method(recorder.forget))
        put(torch.nn.Module, "zero_grad", method(recorder.forget))
        for optimizer in module.optimizers:  # schedulers wrap its own step
            if "step" in vars(optimizer):
                marked: Any = functools.partial(recorder.step, optimizer)
                marked._wrapped_by_lr_sched = True  # what they look for in it
                put(optimizer, "step", marked)
        scaler = torch.amp.GradScaler  # the scale of the loss is the precision's
        put(scaler, "scale", lambda self, outputs: outputs)
        put(scaler, "unscale_", lambda self, optimizer: None)
        put(scaler, "step", lambda self, optimizer, *_, **__: optimizer.step())
        put(scaler, "update", lambda self, *_, **__: None)
        yield recorder


def with_frozen(capture: Capture) -> Capture:
    """Return the trace of a step function with its weights that nothing trains told apart.

    A weight is trained if an optimizer updates it; one that only takes gradients is held as if.
    """
    marks = [step for step in capture.steps if step.kind == BACKWARD]
    updated = {name for mark in marks for _, names in mark.attrs["updates"] for name in names}
    needed = {name for mark in marks for name in mark.inputs}
    for step in reversed(capture.steps):
        if step.kind not in {"stop", BACKWARD, STEP_END} and not needed.isdisjoint(step.outputs):
            needed.update(step.inputs)
    never = set.intersection(*(set(mark.attrs["frozen"]) for mark in marks))
    values = dict(capture.values)
    for name, value in capture.values.items():
        if value.origin in {"weight", "frozen"}:
            trains = name in updated or (name in needed and name not in never)
            values[name] = replace(value, origin="weight" if trains else "frozen")
    return replace(capture, values=values)
