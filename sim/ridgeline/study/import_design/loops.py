"""Einsums of other tools as matrix products and convolutions.

An einsum says which dimensions index which tensor. Which tensors a dimension is in tells its part:

=================  ===========  ===============
tensors            of a product of a convolution
=================  ===========  ===============
images, output     m            images, or an axis of the output
weights, output    n            channels of the output
images, weights    k            channels of the input, or an axis of the filter
all three          batch        groups
=================  ===========  ===============

An index of the images that is a sum of two dimensions (``2*p + r``) is a window: the one that the
output has is an axis of the output, the other an axis of the filter.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from ridgeline.study.import_design.documents import LARGEST, DesignDocument
from ridgeline.workload.graph import Conv, Gemm
from ridgeline.yaml_nodes import Location

Term = tuple[str, int]
"""A dimension and what it is multiplied with."""
Index = tuple[Term, ...]
Operand = Literal["a", "b", "c"]

_TERM = re.compile(r"(?:(\d{1,12})\s*\*\s*)?([A-Za-z_]\w*)(?:\s*\*\s*(\d{1,12}))?")
_WEIGHTS = ("w", "f", "k", "b")
"""How names of weights begin: weights, filters, kernels, B."""
_PIXELS = frozenset({"n", "b", "p", "q", "ox", "oy"})


@dataclass(frozen=True)
class Access:
    """A tensor, what each of its axes is indexed with, and the bits of an element if stated."""

    name: str
    axes: tuple[Index, ...]
    output: bool = False
    bits: int | None = None

    @property
    def dims(self) -> frozenset[str]:
        """Dimensions that index it."""
        return frozenset(dim for index in self.axes for dim, _ in index)


@dataclass(frozen=True)
class Einsum:
    """One operation as a tool's file states it; `padding` is by dimension, before and after."""

    name: str
    sizes: Mapping[str, int]
    accesses: tuple[Access, ...]
    source: DesignDocument
    at: Location
    padding: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    kind: str = ""
    """What the file calls such operations."""


@dataclass(frozen=True)
class ImportedLayer:
    """An operation as ridgeline has it.

    Attributes
    ----------
    letters
        Loop here (b, m, n, k or n, g, k, c, p, q, r, s) of every dimension of the file.
    sizes
        Of the file's dimensions.
    operands
        Which of the two inputs and the result a tensor is.
    bits
        Of an element, where the file says it.
    """

    name: str
    loops: Gemm | Conv
    letters: Mapping[str, str]
    sizes: Mapping[str, int]
    operands: Mapping[str, Operand]
    bits: Mapping[Operand, int]
    kind: str = ""

    def arguments(self) -> list[str]:
        """Return verb and arguments of the command that prices it."""
        loops = self.loops
        if isinstance(loops, Gemm):
            more = ["--batch", str(loops.batch)] if loops.batch > 1 else []
            return ["gemm", str(loops.m), str(loops.n), str(loops.k), *more]
        words = ["conv", *map(str, (loops.batch, loops.c_in, loops.h_in, loops.w_in, loops.c_out))]
        words.append(f"{loops.r}x{loops.s}")
        for option, pair, default in (
            ("stride", loops.stride, 1), ("padding", loops.padding, 0),
            ("dilation", loops.dilation, 1),
        ):  # fmt: skip
            if pair != (default, default):
                words += [f"--{option}", f"{pair[0]}x{pair[1]}"]
        return [*words, "--groups", str(loops.groups)] if loops.groups > 1 else words


class NotALayerError(ValueError):
    """An einsum that is neither a matrix product nor a convolution; says why."""


def parse_index(text: str) -> Index:
    """Read ``p``, ``p + r`` or ``2*p + 3*r``.

    Raises
    ------
    NotALayerError
        If it is anything else.
    """
    terms: list[Term] = []
    if len(text) > 200:
        raise NotALayerError("an index of more than 200 letters is not read")
    for part in text.split("+"):
        found = _TERM.fullmatch(part.strip())
        if found is None or (found[1] and found[3]):
            raise NotALayerError(f"the index {text!r} is not a sum of dimensions")
        factor = int(found[1] or found[3] or 1)
        if factor < 1:
            raise NotALayerError(f"the index {text!r} moves in steps of 0")
        terms.append((found[2], factor))
    return tuple(terms)


def layer_of(einsum: Einsum) -> ImportedLayer:
    """Return the product or convolution that an einsum is.

    Raises
    ------
    NotALayerError
        If it is neither.
    """
    a, b, c = _parts(einsum)
    windows = _windows(a, b, c)
    classes = _classes(einsum, a, b, c)
    rows, taps = {p for p, *_ in windows}, {r for _, r, *_ in windows if r is not None}
    kinds: dict[str, list[str]] = {"m": [], "n": [], "k": [], "b": []}
    for dim, kind in classes.items():
        if dim not in rows | taps:
            kinds[kind].append(dim)
    pixels = [dim for dim in kinds["m"] if einsum.sizes[dim] > 1]
    plain = not windows
    if plain and not (
        2 <= len(pixels) <= 3
        and len(kinds["n"]) <= 1 and len(kinds["k"]) <= 1
        and all(dim.lower() in _PIXELS for dim in pixels)
    ):  # fmt: skip
        letters = {dim: kind for kind, dims in kinds.items() for dim in dims}
        sizes = dict.fromkeys("bmnk", 1) | _products(letters, einsum.sizes)
        loops: Gemm | Conv = Gemm(sizes["m"], sizes["n"], sizes["k"], sizes["b"])
    else:
        loops, letters = _conv(einsum, kinds, windows)
    if max(loops.macs, 1) > LARGEST**2:
        raise NotALayerError("it has more than 2**80 multiply-accumulates")
    operands: dict[str, Operand] = {a.name: "a", b.name: "b", c.name: "c"}
    bits = {operands[one.name]: one.bits for one in (a, b, c) if one.bits is not None}
    return ImportedLayer(
        einsum.name, loops, letters, dict(einsum.sizes), operands, bits, einsum.kind
    )


def _parts(einsum: Einsum) -> tuple[Access, Access, Access]:
    """Tell images, weights and output apart."""
    results = [access for access in einsum.accesses if access.output]
    inputs = [access for access in einsum.accesses if not access.output]
    if len(results) != 1 or len(inputs) != 2:
        raise NotALayerError(
            f"{len(inputs)} inputs and {len(results)} outputs; a product has two inputs and one "
            "output"
        )
    if len({access.name for access in einsum.accesses}) < 3:
        raise NotALayerError("a tensor is read twice, or read and written")
    windowed = [access for access in inputs if any(len(index) > 1 for index in access.axes)]
    if len(windowed) > 1:
        raise NotALayerError("both inputs are indexed with sums of dimensions")
    if any(len(index) > 1 for index in results[0].axes):
        raise NotALayerError("the output is indexed with a sum of dimensions")
    first, second = inputs
    # Without windows by the names of tensors, else the first.
    likely = second if first.name.lower().startswith(_WEIGHTS) else first
    a = windowed[0] if windowed else likely
    b = second if a is first else first
    for access in (a, b, results[0]):
        named = [dim for index in access.axes for dim, _ in index]
        if len(named) != len(set(named)):
            raise NotALayerError(f"{access.name} is indexed with a dimension twice")
    return a, b, results[0]


def _windows(a: Access, b: Access, c: Access) -> list[tuple[str, str | None, int, int]]:
    """List axis of the output, axis of the filter, stride and dilation of every window."""
    found: list[tuple[str, str | None, int, int]] = []
    for access in (b, c):
        for index in access.axes:
            if any(factor != 1 for _, factor in index):
                raise NotALayerError(f"{access.name} is indexed in steps")
    for index in a.axes:
        if len(index) == 1 and index[0][1] == 1:
            continue
        out = [term for term in index if term[0] in c.dims and term[0] not in b.dims]
        taps = [term for term in index if term[0] in b.dims and term[0] not in c.dims]
        if len(out) != 1 or len(taps) > 1 or len(index) != 1 + len(taps):
            shown = " + ".join(f"{factor}*{dim}" for dim, factor in index)
            raise NotALayerError(f"the index {shown} is not one of the output and one of a filter")
        (p, stride), tap = out[0], taps[0] if taps else None
        found.append((p, tap[0] if tap else None, stride, tap[1] if tap else 1))
    if len(found) > 2:
        raise NotALayerError("its windows slide along more than two axes")
    return found


def _classes(einsum: Einsum, a: Access, b: Access, c: Access) -> dict[str, str]:
    """Tell of every dimension whether it is one of batch, m, n or k."""
    found: dict[str, str] = {}
    named = {(1, 1, 1): "b", (1, 0, 1): "m", (0, 1, 1): "n", (1, 1, 0): "k"}
    for dim in a.dims | b.dims | c.dims:
        if dim not in einsum.sizes:
            raise NotALayerError(f"the dimension {dim} has no size")
    for dim, size in einsum.sizes.items():
        inside = (int(dim in a.dims), int(dim in b.dims), int(dim in c.dims))
        if inside in named:
            found[dim] = named[inside]
        elif size > 1 and any(inside):
            only = next(access.name for access in (a, b, c) if dim in access.dims)
            raise NotALayerError(f"the dimension {dim} is in {only} alone")
        elif size > 1:
            raise NotALayerError(f"the dimension {dim} is in no tensor")
    return found


def _products(letters: Mapping[str, str], sizes: Mapping[str, int]) -> dict[str, int]:
    found: dict[str, int] = {}
    for dim, letter in letters.items():
        found[letter] = found.get(letter, 1) * sizes[dim]
    return found


def _conv(
    einsum: Einsum, kinds: Mapping[str, list[str]],
    windows: list[tuple[str, str | None, int, int]],
) -> tuple[Conv, dict[str, str]]:  # fmt: skip
    letters = {dim: letter for kind, letter in (("n", "k"), ("k", "c"), ("b", "g"))
               for dim in kinds[kind]}  # fmt: skip
    images, windows = list(kinds["m"]), list(windows)
    while len(windows) < 2 and len(images) > 1:
        windows.append((images.pop(), None, 1, 1))
        if len(windows) == 2 and not any(tap for _, tap, *_ in windows):
            windows.reverse()  # popped from the end: rows come before columns
    letters |= dict.fromkeys(images, "n")
    padding, stride, dilation, extents = [], [1, 1], [1, 1], [1, 1]
    for axis, (p, tap, step, spread) in enumerate(windows):
        letters[p] = "pq"[axis]
        size, taps = einsum.sizes[p], 1
        if tap is not None:
            letters[tap], taps = "rs"[axis], einsum.sizes[tap]
        before, after = einsum.padding.get(p, (0, 0))
        pad = min(before, after)
        stride[axis], dilation[axis] = step, spread
        padding.append(pad)
        extents[axis] = (size - 1) * step + (taps - 1) * spread + 1 - 2 * pad
        if extents[axis] < 1:
            raise NotALayerError(f"the padding of {p} is wider than what its windows touch")
        if before != after:
            einsum.source.remark(
                "changed",
                f"padding of {before} before and {after} after {p} is {pad} on both sides and "
                f"{before + after - 2 * pad} rows of the images",
                einsum.at,
            )
    padding += [0] * (2 - len(padding))
    sizes = dict.fromkeys("ngkcpqrs", 1) | _products(letters, einsum.sizes)
    if max(*sizes.values(), *extents, *stride, *dilation) > LARGEST:
        raise NotALayerError("a size is more than 2**40")
    groups = sizes["g"]
    loops = Conv(
        sizes["n"], groups * sizes["c"], extents[0], extents[1], groups * sizes["k"],
        sizes["r"], sizes["s"], (stride[0], stride[1]), (padding[0], padding[1]),
        (dilation[0], dilation[1]), groups,
    )  # fmt: skip
    assert math.prod(sizes.values()) == loops.macs
    return loops, letters
