"""A Graph as plain values and back, with every value checked on the way in."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, fields
from fractions import Fraction
from typing import Any, NoReturn

from ridgeline.errors import ConfigError, RidgelineError, nearest
from ridgeline.workload.formats import AS, find
from ridgeline.workload.graph import (
    FORMAT_BYTES,
    CheckpointRegion,
    Conv,
    Gemm,
    Graph,
    Op,
    Pass,
    Role,
    Tensor,
)
from ridgeline.workload.trace.affine import AffineNumber, parse

MAX_OPS = 2_000_000
MAX_NUMBER = 2**62
_SOURCES = frozenset({Role.INPUT, Role.WEIGHT, Role.BUFFER, Role.STATE})
_LOOPS = {"gemm": Gemm, "conv": Conv}
_OP_DEFAULTS: dict[str, Any] = {f.name: f.default for f in fields(Op) if f.default is not MISSING}
_SECTION = ("precision", "pass", "batch", "sample", "tokens_per_sample", "loss", "notes", "partial",
            "frozen", "checkpoints", "tensors", "ops")  # fmt: skip
_OP = ("name", "kind", "pass", "layer", "inputs", "outputs", "gemm", "conv", *_OP_DEFAULTS)


def graph_document(graph: Graph) -> dict[str, Any]:
    """Return a graph as plain values; what has its default value is left out.

    Raises
    ------
    RidgelineError
        If it is a forward graph with several backward passes, which this file cannot say.
    """
    if graph.backwards and all(op.pass_ is Pass.FORWARD for op in graph.ops):
        raise RidgelineError(
            f"{graph.name}: a file has no word for the {len(graph.backwards)} backward passes of a"
            " step; write its training graph"
        )
    return {
        "sample": graph.sample,
        "tokens_per_sample": graph.tokens_per_sample,
        "loss": graph.loss,
        "notes": list(graph.notes),
        "partial": graph.partial,
        "frozen": sorted(graph.frozen),
        **({"checkpoints": regions} if (regions := _regions(graph)) else {}),
        "tensors": {
            t.name: [t.role.value, t.format, list(t.shape)] for t in graph.tensors.values()
        },
        "ops": [_op_document(op) for op in graph.ops],
    }


def _regions(graph: Graph) -> list[dict[str, Any]]:
    return [{"ops": list(region.ops), "whole": region.whole} for region in graph.checkpoints]


def _op_document(op: Op) -> dict[str, Any]:
    values: dict[str, Any] = {
        "name": op.name,
        "kind": op.kind,
        "pass": op.pass_.value,
        "layer": op.layer,
        "inputs": list(op.inputs),
        "outputs": list(op.outputs),
    }
    if op.loops is not None:
        key = "gemm" if isinstance(op.loops, Gemm) else "conv"
        values[key] = {
            f.name: list(v) if isinstance(v := getattr(op.loops, f.name), tuple) else v
            for f in fields(op.loops)
            if f.default is MISSING or getattr(op.loops, f.name) != f.default
        }
    for name, default in _OP_DEFAULTS.items():
        value = getattr(op, name)
        if name == "loops" or value == default:
            continue
        if name == "attrs":
            value = {key: {"is": of} for key, of in value}
        values[name] = list(value) if isinstance(value, tuple) else value
    return values


class _Checker:
    """Raises errors that name the file and the field."""

    def __init__(self, file: str) -> None:
        self.file = file

    def fail(self, place: str, message: str) -> NoReturn:
        raise ConfigError(message, file=self.file, field=place)

    def typed(self, value: Any, kind: type, what: str, place: str) -> Any:
        if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
            self.fail(place, f"expected {what}, found {value!r:.60}")
        return value

    def known(self, value: Any, allowed: Any, place: str) -> None:
        if not isinstance(value, str) or value not in allowed:
            near = nearest(value, allowed) if isinstance(value, str) else ""
            self.fail(place, f"found {value!r:.60}{near} (known: {', '.join(allowed)})")

    def fields(self, raw: Mapping[str, Any], allowed: tuple[str, ...], place: str) -> None:
        for key in raw:
            if key not in allowed:
                self.fail(
                    f"{place}.{key}",
                    f"unknown field{nearest(key, allowed)} (allowed: {', '.join(allowed)})",
                )

    def number(self, value: Any, place: str) -> int | Fraction | AffineNumber:
        """Read a whole number, "1/3" or "2*batch+1"."""
        if isinstance(value, int) and not isinstance(value, bool):
            if abs(value) > MAX_NUMBER:
                self.fail(place, f"{value} is beyond {MAX_NUMBER}")
            return value
        found = parse(value) if isinstance(value, str) else None
        if found is None:
            self.fail(place, f'expected a whole number, "1/3" or "2*batch+1", found {value!r:.60}')
        return found

    def numbers(self, value: Any, place: str) -> list[int | Fraction | AffineNumber]:
        self.typed(value, list, "a list of numbers", place)
        return [self.number(one, f"{place}.{i}") for i, one in enumerate(value)]

    def names(self, value: Any, tensors: Mapping[str, Any], place: str) -> list[str]:
        self.typed(value, list, "a list of tensor names", place)
        for i, name in enumerate(value):
            if not isinstance(name, str) or name not in tensors:
                self.fail(f"{place}.{i}", f"no tensor is called {name!r:.60}")
        return list(value)


def read_section(raw: Mapping[str, Any], file: str, place: str) -> dict[str, Any]:
    """Check one graph of a file and return it with its numbers read.

    Raises
    ------
    ConfigError
        With file and field.
    """
    check = _Checker(file)
    check.fields(raw, _SECTION, place)
    for key, kind, what in (
        ("sample", str, "text"),
        ("tokens_per_sample", int, "a whole number"),
        ("loss", str, "the name of a tensor"),
        ("tensors", dict, "an object of tensors"),
        ("ops", list, "a list of ops"),
    ):
        check.typed(raw.get(key), kind, what, f"{place}.{key}")
    notes = check.typed(raw.get("notes", []), list, "a list of texts", f"{place}.notes")
    if len(raw["ops"]) > MAX_OPS or len(raw["tensors"]) > 4 * MAX_OPS:
        check.fail(place, f"more than {MAX_OPS} ops")
    tensors = {
        name: _read_tensor(check, value, f"{place}.tensors.{name}")
        for name, value in raw["tensors"].items()
    }
    if raw["loss"] not in tensors:
        check.fail(f"{place}.loss", f"no tensor is called {raw['loss']!r:.60}")
    ops = [_read_op(check, op, tensors, f"{place}.ops.{i}") for i, op in enumerate(raw["ops"])]
    _check_order(check, tensors, ops, place)
    return {
        "sample": raw["sample"],
        "tokens_per_sample": raw["tokens_per_sample"],
        "loss": raw["loss"],
        "notes": [str(note) for note in notes],
        "partial": check.typed(
            raw.get("partial", False), bool, "true or false", f"{place}.partial"
        ),
        "frozen": check.names(raw.get("frozen", []), tensors, f"{place}.frozen"),
        "checkpoints": _read_regions(check, raw.get("checkpoints", []), ops, place),
        "tensors": tensors,
        "ops": ops,
    }


def _read_regions(
    check: _Checker, raw: Any, ops: Sequence[Mapping[str, Any]], place: str
) -> list[dict[str, Any]]:
    regions = check.typed(raw, list, "a list", f"{place}.checkpoints")
    known = {op["name"]: 0 for op in ops}
    found = []
    for number, region in enumerate(regions):
        here = f"{place}.checkpoints.{number}"
        fields = check.typed(region, dict, "a region with ops and whole", here)
        whole = check.typed(fields.get("whole", False), bool, "true or false", f"{here}.whole")
        found.append(
            {"ops": check.names(fields.get("ops", []), known, f"{here}.ops"), "whole": whole}
        )
    return found


def _read_tensor(check: _Checker, raw: Any, place: str) -> list[Any]:
    if not isinstance(raw, list) or len(raw) != 3:
        check.fail(place, f"expected [role, format, shape], found {raw!r:.60}")
    role, format_, shape = raw
    check.known(role, [one.value for one in Role], place)
    if not isinstance(format_, str) or AS not in format_:
        check.known(format_, FORMAT_BYTES, place)
    try:
        find(format_)
    except RidgelineError as error:
        check.fail(place, str(error))
    return [role, format_, check.numbers(shape, place)]


def _read_op(check: _Checker, raw: Any, tensors: Mapping[str, Any], place: str) -> dict[str, Any]:
    check.typed(raw, dict, "an object", place)
    check.fields(raw, _OP, place)
    for key in ("name", "kind", "layer"):
        check.typed(raw.get(key), str, "text", f"{place}.{key}")
    check.known(raw.get("pass"), [one.value for one in Pass], f"{place}.pass")
    op = {
        **raw,
        "inputs": check.names(raw.get("inputs"), tensors, f"{place}.inputs"),
        "outputs": check.names(raw.get("outputs"), tensors, f"{place}.outputs"),
    }
    for key, loops in _LOOPS.items():
        if key in raw:
            op[key] = _read_loops(check, raw[key], loops, f"{place}.{key}")
    for key in ("vector_flops", "recomputed_flops"):
        if key in raw:
            op[key] = check.number(raw[key], f"{place}.{key}")
    for key, of in (("input_passes", "inputs"), ("output_passes", "outputs")):
        if key in raw:
            op[key] = check.numbers(raw[key], f"{place}.{key}")
            if len(op[key]) not in {0, len(op[of])}:
                check.fail(f"{place}.{key}", f"expected {len(op[of])} numbers, as many as {of}")
    if "in_place" in raw:
        check.typed(raw["in_place"], bool, "true or false", f"{place}.in_place")
    attrs = check.typed(raw.get("attrs", {}), dict, "an object", f"{place}.attrs")
    op["attrs"] = {
        key: {"is": _read_attribute(check, value, f"{place}.attrs.{key}")}
        for key, value in attrs.items()
    }
    return op


def _read_loops(check: _Checker, raw: Any, loops: type, place: str) -> dict[str, Any]:
    check.typed(raw, dict, "an object", place)
    known = {f.name: f for f in fields(loops)}
    check.fields(raw, tuple(known), place)
    for name, of in known.items():
        if name not in raw and of.default is MISSING:
            check.fail(place, f"the field {name!r} is missing")
    values: dict[str, Any] = {}
    for name, value in raw.items():
        if isinstance(known[name].default, tuple):
            values[name] = check.numbers(value, f"{place}.{name}")
            if len(values[name]) != 2:
                check.fail(f"{place}.{name}", "expected [height, width]")
        else:
            values[name] = check.number(value, f"{place}.{name}")
    return values


def _read_attribute(check: _Checker, raw: Any, place: str) -> Any:
    if isinstance(raw, dict) and len(raw) == 1:
        if "number" in raw:
            return check.number(raw["number"], place)
        value = raw.get("is")
        if isinstance(value, str):
            return value
        if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value):
            return value
    check.fail(
        place, f'expected {{"is": number or text}} or {{"number": "2*batch"}}, found {raw!r:.60}'
    )


def _check_order(
    check: _Checker, tensors: Mapping[str, Any], ops: list[dict[str, Any]], place: str
) -> None:
    """Check that every op reads only what was there from the beginning or was written before."""
    there = {name for name, (role, _, _) in tensors.items() if role in _SOURCES}
    seen: set[str] = set()
    for i, op in enumerate(ops):
        if op["name"] in seen:
            check.fail(f"{place}.ops.{i}.name", f"two ops are called {op['name']!r:.60}")
        seen.add(op["name"])
        for name in op["inputs"]:
            if name not in there:
                check.fail(
                    f"{place}.ops.{i}.inputs",
                    f"{name!r} is read before any op has written it (ops that wait for each other"
                    " in a circle, or in a wrong order)",
                )
        there.update(op["outputs"])


def sizes(document: Any) -> list[AffineNumber]:
    """Return all sizes of tensors that depend on the batch."""
    shapes = (shape for _, _, shape in document["tensors"].values())
    return [n for shape in shapes for n in shape if isinstance(n, AffineNumber)]


def graph_of(
    document: Mapping[str, Any], name: str, batch: int, precision: str, place: str
) -> Graph:
    """Return the graph of plain values that are for one batch.

    Raises
    ------
    RidgelineError
        If a number that must be whole or positive is not, at this batch.
    """

    def whole(value: Any, what: str, least: int = 0) -> int:
        if not isinstance(value, int) or not least <= value <= MAX_NUMBER:
            raise RidgelineError(
                f"{place}: {what} is {value} at a batch of {batch}; it must be a whole number"
                f" from {least}"
            )
        return value

    tensors = {}
    for key, (role, format_, shape) in document["tensors"].items():
        dims = tuple(whole(n, f"the shape of {key!r}") for n in shape)
        whole(math.prod(dims), f"the size of {key!r}")
        tensors[key] = Tensor(key, dims, format_, Role(role))
    ops = tuple(_op_of(raw, whole) for raw in document["ops"])
    return Graph(
        name,
        batch,
        precision,
        tensors,
        ops,
        document["loss"],
        document["sample"],
        document["tokens_per_sample"],
        tuple(document["notes"]),
        document["partial"],
        frozenset(document["frozen"]),
        tuple(
            CheckpointRegion(tuple(one["ops"]), one["whole"])
            for one in document.get("checkpoints", ())
        ),
    )


def _op_of(raw: Mapping[str, Any], whole: Callable[..., int]) -> Op:
    name = raw["name"]
    loops: Gemm | Conv | None = None
    for key, kind in _LOOPS.items():
        if key in raw:
            loops = kind(
                **{
                    field: tuple(whole(n, f"{field} of {name!r}") for n in value)
                    if isinstance(value, list)
                    else whole(value, f"{field} of {name!r}", 1)
                    for field, value in raw[key].items()
                }
            )
    return Op(
        name,
        raw["kind"],
        Pass(raw["pass"]),
        raw["layer"],
        tuple(raw["inputs"]),
        tuple(raw["outputs"]),
        loops,
        whole(raw.get("vector_flops", 0), f"vector_flops of {name!r}"),
        tuple(raw.get("input_passes", ())),
        raw.get("in_place", False),
        tuple((key, value["is"]) for key, value in raw["attrs"].items()),
        tuple(raw.get("output_passes", ())),
        whole(raw.get("recomputed_flops", 0), f"recomputed_flops of {name!r}"),
    )
