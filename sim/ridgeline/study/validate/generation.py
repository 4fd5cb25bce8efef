"""Generation by serving frameworks: throughput of many requests, and latencies at a rate.

A row names the network, the machine, one replica's plan, precision, format of the cache, lengths,
requests and options of the engine (`EngineOptions`, by name). Its quantity is a field of
`GenerationResult.to_dict` by its dotted path.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import lru_cache
from typing import Any

from ridgeline.errors import RidgelineError, nearest
from ridgeline.study.generation.generate import EngineOptions, GenerationResult, generate
from ridgeline.study.generation.generation_plan import generation_plan
from ridgeline.study.validate.outcome import Outcome, Skipped, predict_each
from ridgeline.study.validate.predicted_interval import stated
from ridgeline.study.validate.rows import MeasuredRow
from ridgeline.workload.graph import Role

SHIPPED = "generation.csv"
COLUMNS = (
    "model", "machine", "plan", "precision", "kv_format", "lengths", "requests", "rate", "software",
    "options", "quantity", "measured", "source", "licence",
)  # fmt: skip
_SWITCH = {"true": True, "false": False}


def predict(rows: Iterable[MeasuredRow]) -> Iterator[Outcome | Skipped]:
    """Predict what every run of generation gave."""
    return predict_each(rows, _one)


@lru_cache(maxsize=64)
def _generated(asked: tuple[tuple[str, Any], ...]) -> GenerationResult:
    said = dict(asked)
    return generate(
        said["model"],
        said["machine"],
        generation_plan(said["plan"], said["precision"]),
        lengths=said["lengths"],
        requests=said["requests"],
        rate=said["rate"],
        software=said["software"],
        options=EngineOptions(kv_format=said["kv_format"], **dict(said["options"])),
    )


def _one(row: MeasuredRow) -> Outcome:
    row.check()
    quantity, measured = row.text("quantity"), row.number("measured")
    if measured is None:
        raise RidgelineError("what was measured is not given")
    said: dict[str, Any] = {
        name: row.text(name)
        for name in ("model", "machine", "plan", "precision", "kv_format", "lengths", "software")
    }
    said |= {
        "requests": row.whole("requests") if row.text("requests") else None,
        "rate": row.number("rate"),
        "options": tuple(_options(row.text("options")).items()),
    }
    result = _generated(tuple(said.items()))
    predicted = _value(result.to_dict(), quantity)
    rate = f", {said['rate']:g} requests/s" if said["rate"] else ""
    return Outcome(
        file=row.file,
        line=row.line,
        id=row.id,
        group=f"{row.text('device')} {said['model']} {quantity}",
        sweep=f"{row.text('device')} {said['precision']} {quantity}",
        configuration=f"{said['model']}, {said['plan']}, {said['lengths']} tokens{rate},"
        f" {said['machine']}",
        quantity=quantity,
        predicted=predicted,
        measured=measured,
        source=row.text("source"),
        trivial={"roofline": _roofline(result, quantity)},
        command=row.command("generation"),
        device=row.text("device"),
        format=said["precision"],
        kind=quantity.partition(".")[0],
        **stated("generation", predicted, device=result.engine.prices.cluster.device),
    )


def _options(text: str) -> dict[str, Any]:
    """Read ``name=value;...`` of `EngineOptions`."""
    known = EngineOptions.__dataclass_fields__
    found: dict[str, Any] = {}
    for part in filter(None, text.split(";")):
        name, _, value = part.partition("=")
        if name not in known:
            raise RidgelineError(f"options: there is no {name!r}{nearest(name, known)}")
        if value in _SWITCH:
            found[name] = _SWITCH[value]
        else:
            found[name] = float(value) if "." in value else int(value)
    return found


def _value(found: dict[str, Any], path: str) -> float:
    value: Any = found
    for name in path.split("."):
        if not isinstance(value, dict) or name not in value:
            known = value if isinstance(value, dict) else ()
            raise RidgelineError(f"a result has no {path!r}{nearest(name, known)}")
        value = value[name]
    if not isinstance(value, int | float):
        raise RidgelineError(f"{path} of a result is no number")
    return float(value)


def _roofline(result: GenerationResult, quantity: str) -> float:
    """Return a bound: two FLOPs a parameter and token at the peak, or weights over bandwidth."""
    prices, device = result.engine.prices, result.engine.prices.cluster.device
    far = device.memory[device.far_memory].bandwidth
    assert far is not None
    if quantity == "output_tokens_per_s":
        graph = prices.model.forward(1)
        active = sum(op.matrix_flops for op in graph.ops if _has_weight(op.inputs, graph))
        each = active / graph.tokens_per_sample
        records = [record for run in result.runs for record in run.records]
        tokens = sum(r.request.prompt + r.generated for r in records)
        return prices.peak_flops * sum(r.generated for r in records) / (each * tokens)
    if quantity.startswith("time_to_first"):
        records = result.runs[0].records
        prompt = sum(r.request.prompt for r in records) / len(records)
        graph = prices.model.forward(1)
        return float(graph.flops() / graph.tokens_per_sample * prompt / prices.peak_flops)
    return result.engine.weight_bytes / far.value


def _has_weight(names: tuple[str, ...], graph: Any) -> bool:
    return any(graph.tensors[n].role in (Role.WEIGHT, Role.WEIGHT_COPY) for n in names)
