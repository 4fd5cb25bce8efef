"""Idioms: several steps that everyone writes, and fused kernels run, as one op.

A pattern is a tree of kinds: ``("multiply", "x", ("sigmoid", "x"))``. A word is a value (the same
word, the same value); "W" must be a weight, "C" must not depend on weights; a kind with "?" in
front may be missing; "|" gives alternatives. Sums and products match in both orders. What a pattern
covers is replaced only if nothing else reads what lies inside.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, NamedTuple

from ridgeline.workload.trace.ir import Capture, TraceStep, Value

Pattern = Any
Found = dict[str, str]


def fused(capture: Capture) -> Capture:
    """Return the trace with its idioms replaced."""
    for rewrite in (_squares, _tiles_as_split, _idioms, _split_products):
        capture = rewrite(capture)
    return capture


_COMMUTATIVE = frozenset({"add", "multiply"})
_CUBE = ("|", ("power", "x"), ("multiply", ("square", "x"), "x"))
_INNER = ("|", ("add", "x", ("scale", _CUBE)),
          ("multiply", "x", ("shift", ("scale", ("square", "x")))))  # fmt: skip
_BELL = ("shift", ("|", ("erf", ("?scale", "x")), ("tanh", ("scale", _INNER))))
_MEAN_SQUARE = ("shift", ("mean", ("square", "x")))


def _over_root(x: Pattern, square: Pattern) -> Pattern:
    """Return x divided by a root, in the ways in which that is written."""
    inverse = ("|", ("rsqrt", square), ("reciprocal", ("sqrt", square)))
    return ("|", ("multiply", x, inverse), ("divide", x, ("sqrt", square)))


_RMS = _over_root("x", _MEAN_SQUARE)
_CENTRED = ("subtract", "x", ("mean", "x"))
_SPREAD = ("shift", ("|", ("mean", ("square", _CENTRED)), ("variance", "x")))
_STANDARD = _over_root(_CENTRED, _SPREAD)
_ROTATED = ("concat", ("negate", ("|", ("slice", "x"), ("split", "x"))),
            ("|", ("slice", "x"), ("split", "x")))  # fmt: skip


class Idiom(NamedTuple):
    """What a pattern becomes: a kind and the words that are its inputs."""

    pattern: Pattern
    kind: str
    inputs: tuple[str, ...]


IDIOMS = (
    Idiom(("?scale", ("multiply", ("?scale", "x"), ("?scale", _BELL))), "gelu", ("x",)),
    Idiom(("multiply", "x", ("sigmoid", ("?scale", "x"))), "silu", ("x",)),
    Idiom(("multiply", "x", ("tanh", ("softplus", "x"))), "mish", ("x",)),
    Idiom(("multiply", ("silu", "x"), "y"), "swiglu", ("x", "y")),
    Idiom(("multiply", ("gelu", "x"), "y"), "geglu", ("x", "y")),
    Idiom(("add", ("multiply", _STANDARD, "W"), "V"), "layer-norm", ("x", "W", "V")),
    Idiom(("multiply", ("|", "W", ("shift", "W")), _RMS), "rms-norm", ("x", "W")),
    Idiom(_STANDARD, "normalize", ("x",)),
    Idiom(_RMS, "normalize", ("x",)),
    Idiom(("add", ("multiply", "x", "C"), ("multiply", _ROTATED, "D")), "rotary", ("x", "C")),
    Idiom(("mean", ("negative-log-likelihood", ("log-softmax", "x"), "t")), "loss", ("x", "t")),
)  # fmt: skip


class _Matcher:
    """Finds patterns in a list of steps."""

    def __init__(self, capture: Capture) -> None:
        self.capture = capture
        self.makers = {name: step for step in capture.steps for name in step.outputs}
        self.readers: dict[str, list[TraceStep]] = {}
        for step in capture.steps:
            for name in step.inputs:
                self.readers.setdefault(name, []).append(step)
        self.trained = trained(capture)

    def find(self, pattern: Pattern, root: TraceStep) -> tuple[Found, list[TraceStep]] | None:
        """Match a pattern against what a step makes; the steps inside and the words' values."""
        for found, covered in self._at(pattern, root.outputs[0], {}, ()):
            inside = {id(step) for step in covered}
            if id(root) in inside and self._closed(covered, inside, root):
                return found, list(covered)
        return None

    def _closed(self, covered: tuple[TraceStep, ...], inside: set[int], root: TraceStep) -> bool:
        """Tell whether nothing outside reads what is made inside, the root's result apart."""
        return all(
            id(reader) in inside
            for step in covered
            if step is not root
            for name in step.outputs
            for reader in self.readers.get(name, ())
        )

    def _at(
        self, pattern: Pattern, name: str, found: Found, covered: tuple[TraceStep, ...]
    ) -> Iterator[tuple[Found, tuple[TraceStep, ...]]]:
        if isinstance(pattern, str):
            if found.get(pattern, name) == name and self._allowed(pattern, name):
                yield {**found, pattern: name}, covered
            return
        kind, *parts = pattern
        if kind == "|":
            for part in parts:
                yield from self._at(part, name, found, covered)
            return
        optional, kind = kind.startswith("?"), kind.lstrip("?")
        step = self.makers.get(name)
        if step is not None and step.kind == kind and len(step.inputs) == len(parts):
            yield from self._all(parts, step.inputs, found, (*covered, step))
            if kind in _COMMUTATIVE:
                yield from self._all(parts, step.inputs[::-1], found, (*covered, step))
        if optional:
            yield from self._at(parts[0], name, found, covered)

    def _all(
        self, parts: Any, names: tuple[str, ...], found: Found, covered: tuple[TraceStep, ...]
    ) -> Iterator[tuple[Found, tuple[TraceStep, ...]]]:
        if not parts:
            yield found, covered
            return
        for so_far, steps in self._at(parts[0], names[0], found, covered):
            yield from self._all(parts[1:], names[1:], so_far, steps)

    def _allowed(self, word: str, name: str) -> bool:
        origin = self.capture.values[name].origin
        if word in {"W", "V"}:
            return origin in {"weight", "frozen"}
        return name not in self.trained if word in {"C", "D"} else origin != "weight"


def trained(capture: Capture) -> set[str]:
    """Names of all values that depend on weights."""
    names = {v.name for v in capture.values.values() if v.origin == "weight"}
    for step in capture.steps:
        if not names.isdisjoint(step.inputs):
            names.update(step.outputs)
    return names


def _idioms(capture: Capture) -> Capture:
    for idiom in IDIOMS:
        kinds = _root_kinds(idiom.pattern)
        if kinds.isdisjoint(step.kind for step in capture.steps):
            continue
        capture = _replaced(capture, kinds, idiom)
    return _attention(capture)


def _root_kinds(pattern: Pattern) -> set[str]:
    if pattern[0] == "|":
        return {kind for part in pattern[1:] for kind in _root_kinds(part)}
    if pattern[0].startswith("?"):
        return {pattern[0][1:]} | _root_kinds(pattern[1])
    return {pattern[0]}


def _replaced(capture: Capture, kinds: set[str], idiom: Idiom) -> Capture:
    matcher = _Matcher(capture)
    gone: set[int] = set()
    new: dict[int, TraceStep] = {}
    for step in reversed(capture.steps):
        if step.kind not in kinds or id(step) in gone or not _REQUIRES.get(idiom.kind, bool)(step):
            continue
        match = matcher.find(idiom.pattern, step)
        if match is None or any(id(s) in gone for s in match[1]):
            continue
        found, covered = match
        inputs = tuple(found[word] for word in idiom.inputs)
        sizes = [capture.values[name].elements for name in inputs]
        if idiom.kind in {"swiglu", "geglu"} and len(set(sizes)) > 1:
            continue
        gone.update(map(id, covered))
        new[id(step)] = _fused_step(capture, idiom.kind, inputs, step)
    steps = tuple(new.get(id(s), s) for s in capture.steps if id(s) not in gone or id(s) in new)
    return replace(capture, steps=steps)


_REQUIRES: dict[str, Callable[[TraceStep], bool]] = {}


def _fused_step(capture: Capture, kind: str, inputs: tuple[str, ...], root: TraceStep) -> TraceStep:
    attrs: dict[str, Any] = {}
    if kind in {"rms-norm", "layer-norm", "normalize"}:
        x = capture.values[inputs[0]]
        features = capture.values[inputs[1]].elements if len(inputs) > 1 else x.shape[-1]
        attrs["rows"] = x.elements // features
    elif kind == "loss":
        attrs.update({"which": "cross-entropy", "axis": 1})
    return TraceStep(kind, root.layer, inputs, root.outputs[:1], attrs, root.source, root.region)


def _squares(capture: Capture) -> Capture:
    """Write a product of a tensor with itself as its square."""

    def square(step: TraceStep) -> TraceStep:
        if step.kind == "multiply" and len(step.inputs) == 2 and len(set(step.inputs)) == 1:
            return replace(step, kind="square", inputs=step.inputs[:1])
        return step

    return replace(capture, steps=tuple(map(square, capture.steps)))


def _tiles_as_split(capture: Capture) -> Capture:
    """Slices that together are all of a tensor are one split."""
    readers: dict[str, list[TraceStep]] = {}
    for step in capture.steps:
        for name in step.inputs:
            readers.setdefault(name, []).append(step)
    first: dict[int, TraceStep] = {}
    gone: set[int] = set()
    for name, steps in readers.items():
        if len(steps) < 2 or any(s.kind != "slice" for s in steps):
            continue
        parts = sorted(steps, key=lambda s: int(s.attrs["start"]))
        ends = [int(s.attrs["start"]) + int(s.attrs["length"]) for s in parts]
        starts = [int(s.attrs["start"]) for s in parts]
        whole = sum(capture.values[s.outputs[0]].elements for s in parts)
        same_axis = len({s.attrs["axis"] for s in parts}) == 1
        if same_axis and starts == [0, *ends[:-1]] and whole == capture.values[name].elements:
            outputs = tuple(s.outputs[0] for s in parts)
            first[id(steps[0])] = replace(steps[0], kind="split", outputs=outputs,
                                          attrs={"axis": parts[0].attrs["axis"]})  # fmt: skip
            gone.update(id(s) for s in steps[1:])
    kept = tuple(first.get(id(s), s) for s in capture.steps if id(s) not in gone)
    return replace(capture, steps=kept)


def _attention(capture: Capture) -> Capture:
    """Fold scale and mask into a softmax, and mark the products around it."""
    matcher = _Matcher(capture)
    new: dict[int, TraceStep | None] = {}
    for step in capture.steps:
        if step.kind != "softmax":
            continue
        scale, folded, x = 1.0, [], step.inputs[0]
        while (inner := _foldable(matcher, x)) is not None:
            made_by, x = inner
            scale *= float(made_by.attrs.get("number", 1.0)) if made_by.kind == "scale" else 1.0
            folded.append(made_by)
        new.update({id(s): None for s in folded})
        new[id(step)] = replace(step, inputs=(x,), attrs={**step.attrs, "scale": scale})
        _mark(matcher, matcher.makers.get(x), "scores", x, new)
        _mark(matcher, _context(matcher, step.outputs[0]), "context", x, new)
    steps = (new.get(id(s), s) for s in capture.steps)
    return replace(capture, steps=tuple(s for s in steps if s is not None))


def _foldable(matcher: _Matcher, name: str) -> tuple[TraceStep, str] | None:
    """Return the step that scales or masks scores, and the scores, if only the softmax reads it."""
    step = matcher.makers.get(name)
    if step is None or len(matcher.readers.get(name, ())) > 1:
        return None
    scores = [x for x in step.inputs if x in matcher.trained]
    if step.kind not in {
        "scale",
        "add",
        "select",
        "shift",
        "subtract",
        "extremum",
        "clamp",
        "divide",
    }:
        return None
    if (
        len(scores) != 1
        or matcher.capture.values[scores[0]].elements < matcher.capture.values[name].elements
    ):
        return None
    return step, scores[0]


def _context(matcher: _Matcher, name: str) -> TraceStep | None:
    """Return the product that reads probabilities, perhaps after dropout."""
    readers = matcher.readers.get(name, [])
    if len(readers) == 1 and readers[0].kind in {"dropout", "view"}:
        return _context(matcher, readers[0].outputs[0])
    return readers[0] if len(readers) == 1 else None


def _mark(
    matcher: _Matcher,
    step: TraceStep | None,
    part: str,
    scores: str,
    new: dict[int, TraceStep | None],
) -> None:
    if step is None or step.kind != "matmul" or new.get(id(step), step) is None:
        return
    values = matcher.capture.values
    if all(values[x].origin == "made" and x in matcher.trained for x in step.inputs):
        shape = values[scores].shape
        heads = int(shape[-3]) if len(shape) > 3 else 1
        new[id(step)] = replace(step, attrs={**step.attrs, "part": part, "heads": heads})


def _split_products(capture: Capture) -> Capture:
    """Let a product whose result is only taken apart write the parts: fused queries, keys, values.

    A bias between is taken apart, too.
    """
    matcher = _Matcher(capture)
    values = dict(capture.values)
    new: dict[int, tuple[TraceStep, ...]] = {}
    for split in capture.steps:
        if split.kind != "split":
            continue
        maker, between = matcher.makers.get(split.inputs[0]), None
        if maker is not None and maker.kind in {"add", "bias"} and len(maker.inputs) == 2:
            between, maker = maker, matcher.makers.get(maker.inputs[0])
        if maker is None or maker.kind != "matmul" or "part" in maker.attrs:
            continue
        weight = values[maker.inputs[1]]
        lone = all(len(matcher.readers[s.outputs[0]]) == 1 for s in (maker, between) if s)
        if not lone or weight.origin != "weight" or len(maker.outputs) > 1:
            continue
        parts = _parts(values, split, between, matcher)
        if parts is not None:
            new[id(maker)] = (replace(maker, outputs=parts[0]),)
            new[id(split)] = parts[1]
            if between:
                new[id(between)] = ()
    steps = tuple(s for step in capture.steps for s in new.get(id(step), (step,)))
    return replace(capture, values=values, steps=steps)


def _parts(
    values: dict[str, Value], split: TraceStep, bias: TraceStep | None, matcher: _Matcher
) -> tuple[tuple[str, ...], tuple[TraceStep, ...]] | None:
    """Return the outputs of the product, and the biases that are added to each.

    Each part gets the axes of the product's result: rows, and its features.
    """
    made = values[split.inputs[0]]
    rows = math.prod(made.shape[:-1])
    if any(values[part].elements % rows for part in split.outputs):
        return None
    for part in split.outputs:
        of = values[part]
        values[part] = replace(of, shape=(*made.shape[:-1], of.elements // rows))
    if bias is None:
        return split.outputs, ()
    vector = values[bias.inputs[1]]
    sizes = [values[part].elements for part in split.outputs]
    whole = sum(sizes)
    fits = all(vector.elements * size % whole == 0 for size in sizes)
    if vector.origin != "weight" or len(vector.shape) != 1 or not fits:
        return None
    if len(matcher.readers[vector.name]) > 1:
        return None
    del values[vector.name]
    raw, steps = [], []
    for i, (part, size) in enumerate(zip(split.outputs, sizes, strict=True)):
        piece = f"{vector.name}.{i}"
        values[piece] = replace(vector, name=piece, shape=(vector.elements * size // whole,))
        before = f"{part}.before-bias"
        values[before] = replace(values[part], name=before)
        raw.append(before)
        ends = (before, piece), (part,)
        steps.append(TraceStep("bias", bias.layer, *ends, {}, bias.source, bias.region))
    return tuple(raw), tuple(steps)
