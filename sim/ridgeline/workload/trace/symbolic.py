"""One trace for every batch size, from traces at a few.

Every whole number of a trace (a size, a window, a count) is taken to be affine in the batch:
fixed + slope batch. Two traces determine the numbers, a third one tests them. Where a number is
not affine, or the steps themselves differ, only the traced batch is accepted, and the first step
that differs is named.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any, NamedTuple

from ridgeline.errors import RidgelineError
from ridgeline.workload.trace.ir import Capture, TraceStep, Value


class SymbolicAffine(NamedTuple):
    """fixed + slope batch."""

    fixed: Fraction
    slope: Fraction

    def at(self, batch: int) -> int | None:
        """Value for a batch; None where it is not a whole number that is not negative."""
        value = self.fixed + self.slope * batch
        return int(value) if value.denominator == 1 and value >= 0 else None


class BatchDependenceError(Exception):
    """A step does not depend on the batch in a way that could be derived."""


@dataclass(frozen=True)
class Symbolic:
    """A trace whose sizes may depend on the batch.

    Attributes
    ----------
    pattern
        The trace at one batch size, with `SymbolicAffine` in place of numbers that change.
    fixed_because
        Why only the traced batch can be priced; empty: every batch can.
    multiple
        The batch must be a multiple of it, so that all sizes are whole.
    """

    pattern: Capture
    fixed_because: str = ""
    multiple: int = 1

    @property
    def notes(self) -> tuple[str, ...]:
        """What was assumed while tracing."""
        only = f"only batch {self.pattern.batch}: {self.fixed_because}"
        return (*self.pattern.notes, *([only] if self.fixed_because else []))

    @property
    def smallest_batch(self) -> int:
        """The smallest mini-batch that the trace can be evaluated for."""
        return self.pattern.batch if self.fixed_because else self.multiple

    @property
    def fingerprint(self) -> str:
        """Hash of the trace; that of equal networks is equal whatever batch they were traced at."""
        batch = self.pattern.batch if self.fixed_because else 0
        values = sorted(map(repr, self.pattern.values.values()))
        regions = tuple(step.region for step in self.pattern.steps)
        said = (batch, values, self.pattern.steps, self.pattern.loss)
        text = repr((*said, regions) if any(regions) else said)
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    def at(self, batch: int) -> Capture:
        """Return the trace for a batch size.

        Raises
        ------
        RidgelineError
            If the trace does not hold for it.
        """
        if self.fixed_because:
            if batch != self.pattern.batch:
                raise RidgelineError(
                    f"the network was traced at batch {self.pattern.batch} and can only be priced"
                    f" there ({batch} was asked for): {self.fixed_because}"
                )
            return self.pattern
        values = {n: replace(v, shape=_at(v.shape, batch)) for n, v in self.pattern.values.items()}
        steps = tuple(
            replace(s, attrs={k: _at(a, batch) for k, a in s.attrs.items()})
            for s in self.pattern.steps
        )
        return replace(self.pattern, values=values, steps=steps, batch=batch)


def merge(captures: Sequence[Capture]) -> Symbolic:
    """Make one symbolic trace of traces at three different batch sizes, or of one."""
    first, *others = captures
    if len(others) < 2:
        return Symbolic(first, "it could not be traced at others")
    try:
        return _merged(captures)
    except BatchDependenceError as difference:
        return Symbolic(first, str(difference))


def _merged(captures: Sequence[Capture]) -> Symbolic:
    batches = [capture.batch for capture in captures]
    first = captures[0]
    for versions in zip(*(capture.steps for capture in captures), strict=False):
        step = versions[0]
        if len({(v.kind, v.inputs, v.outputs, v.layer, v.region) for v in versions}) > 1:
            raise BatchDependenceError(f"{_where(step)} is not the same step at batches {batches}")
    if len({len(capture.steps) for capture in captures}) > 1:
        counts = [len(capture.steps) for capture in captures]
        raise BatchDependenceError(f"it has {counts} steps at batches {batches}")
    makers = {name: step for step in first.steps for name in step.outputs}
    values: dict[str, Value] = {}
    for name, value in first.values.items():
        shapes = [capture.values[name].shape for capture in captures]
        where = _where(makers[name]) if name in makers else f"the {value.origin} {name!r}"
        values[name] = replace(value, shape=_affine(shapes, batches, where))
    steps = tuple(
        _step(versions, batches) for versions in zip(*(c.steps for c in captures), strict=True)
    )
    pattern = replace(first, values=values, steps=steps)
    return Symbolic(pattern, multiple=_multiple(pattern))


def _step(versions: Sequence[TraceStep], batches: Sequence[int]) -> TraceStep:
    step = versions[0]
    where = _where(step)
    attrs = {k: _affine([v.attrs[k] for v in versions], batches, where) for k in step.attrs}
    return replace(step, attrs=attrs)


def _affine(versions: Sequence[Any], batches: Sequence[int], where: str) -> Any:
    first = versions[0]
    if isinstance(first, tuple):
        if len({len(v) for v in versions}) > 1:
            raise BatchDependenceError(f"{where} has other axes at batches {batches}")
        return tuple(_affine(parts, batches, where) for parts in zip(*versions, strict=True))
    if all(v == first for v in versions):
        return first
    if not all(isinstance(v, int) for v in versions):
        raise BatchDependenceError(f"{where} has {versions} at batches {batches}")
    slope = Fraction(versions[1] - first, batches[1] - batches[0])
    line = SymbolicAffine(first - slope * batches[0], slope)
    if any(line.at(b) != v for b, v in zip(batches, versions, strict=True)):
        raise BatchDependenceError(f"{where} has sizes {versions} at batches {batches}: not linear")
    return line


def _at(value: Any, batch: int) -> Any:
    if isinstance(value, SymbolicAffine):
        number = value.at(batch)
        if number is None:
            raise RidgelineError(
                f"a traced size of {value.fixed} + {value.slope} x batch does not exist at batch"
                f" {batch}"
            )
        return number
    return tuple(_at(v, batch) for v in value) if isinstance(value, tuple) else value


def _multiple(pattern: Capture) -> int:
    """Least batch step at which all sizes are whole."""

    def lines(value: Any) -> list[SymbolicAffine]:
        if isinstance(value, SymbolicAffine):
            return [value]
        return [x for v in value for x in lines(v)] if isinstance(value, tuple) else []

    found = [line for value in pattern.values.values() for line in lines(value.shape)]
    return math.lcm(1, *(line.slope.denominator for line in found))


def _where(step: TraceStep) -> str:
    place = f" in {step.layer!r}" if step.layer else ""
    return f"the op {step.source or step.kind}{place}"
