"""Evidence from tables and mappings: results, comparisons, descriptions of figures, by anyone."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ridgeline.report.honesty.evidence import (
    Evidence,
    Kind,
    Row,
    Statement,
    facts_of,
    is_stated,
    statement,
)
from ridgeline.report.honesty.vocabulary import is_measurement, meaning

_LISTS = frozenset({
    "y_limits", "seeds", "seed", "dataset", "input_size", "canonical_input", "validated_max",
    "claim", "spread", "n_datasets",
})  # fmt: skip
"""Concepts whose list is one value, and no column."""
_VALUE = frozenset({"value", "result", "number", "val", "amount", "score"})
_SHARED = 0.3  # of the keys of two blocks: they are sides of one comparison
_DEPTH = 12


def from_rows(rows: Sequence[Mapping[str, Any]], name: str, kind: Kind = "table") -> Evidence:
    """Return the evidence of a table's rows, which may lie on their side or be one value a row."""
    rows = _upright(rows)
    simulated = any("manifest_hash" in row for row in rows)
    made = []
    for row in rows:
        if simulated and "devices" in row:  # which their degrees multiply to
            kept = {k: v for k, v in row.items() if not k.startswith("plan.") or _is_batch(k)}
            made.append(facts_of(_long(kept)))
            continue
        made.append(facts_of(_long(row)))
    return Evidence(name, kind, rows=tuple(made), simulated=simulated)


def _is_batch(name: str) -> bool:
    return meaning(name).concept in {"global_batch", "local_batch", "microbatch", "precision"}


def _long(row: Mapping[str, Any]) -> dict[str, Any]:
    """Give the value of a long table the name that its metric has."""
    named = _measure_and_value(row)
    if named is None:
        return dict(row)
    measure, value = named
    kept = {k: v for k, v in row.items() if k != value}
    return {**kept, row[measure]: row[value]}


def _measure_and_value(row: Mapping[str, Any]) -> tuple[str, str] | None:
    """Return the columns of a long table that name a metric and hold its value."""
    measure = next((k for k in row if meaning(k).concept == "target_metric" and row[k]), None)
    value = next((k for k in row if k.strip().lower() in _VALUE), None)
    if measure is None or value is None or not isinstance(row[measure], str):
        return None
    return measure, value


def _upright(rows: Sequence[Mapping[str, Any]]) -> Sequence[Mapping[str, Any]]:
    """Turn a table whose first column has the names, and whose columns are the systems."""
    if not rows or len(rows[0]) < 2:
        return rows
    if _measure_and_value(rows[0]) is not None:
        return rows
    first, *others = rows[0]
    names = [row.get(first) for row in rows]
    if not all(isinstance(name, str) and name for name in names) or len(set(names)) < len(names):
        return rows
    known = sum(bool(meaning(str(name)).concept) for name in names)
    across = sum(bool(meaning(other).concept) for other in others)
    if known < 2 or known <= across or known < len(names) / 2:
        return rows
    return [
        {"system": other, **{str(row[first]): row.get(other) for row in rows}} for other in others
    ]


def from_document(data: Any, name: str) -> Evidence:
    """Return the evidence of what a JSON or YAML file holds.

    Lists of mappings, lists of equal length, and mappings beside each other with the same keys are
    rows; all else are facts of the whole. What ridgeline made is known by its manifests.
    """
    if isinstance(data, list):
        if data and all(isinstance(row, Mapping) for row in data):
            simulated = any(_is_result(row) or "manifest_hash" in row for row in data)
            return Evidence(name, "table", (), _rows_of(data), simulated)
        return Evidence(name, "document", unread="a list without rows")
    if not isinstance(data, Mapping):
        return Evidence(name, "document", unread="neither a mapping nor rows")
    facts: list[Statement] = []
    rows: list[Row] = []
    _walk(data, "", facts, rows, 0)
    kind: Kind = "result" if _is_result(data) else "comparison" if len(rows) > 1 else "document"
    return Evidence(name, kind, tuple(facts), tuple(rows), _has_manifest(data, 0))


def _rows_of(rows: Sequence[Mapping[str, Any]]) -> tuple[Row, ...]:
    upright = _upright([dict(_flat(row)) for row in rows])
    return tuple(facts_of(_long(row)) for row in upright)


def _walk(
    data: Mapping[str, Any], path: str, facts: list[Statement], rows: list[Row], depth: int
) -> None:
    """Sort the parts of a mapping into facts and rows."""
    if depth > _DEPTH:
        return
    if _is_result(data):
        facts += result_facts(data)
        data = {k: v for k, v in data.items() if k not in _OF_RESULTS}
    columns = _columns(data)
    if columns:
        length = len(next(iter(columns.values())))
        rows += [facts_of({k: v[i] for k, v in columns.items()}) for i in range(length)]
    sides = _sides(data)
    for key, value in data.items():
        name = f"{path}.{key}" if path else str(key)
        if key in columns:
            continue
        if key in sides:
            rows.append((statement("system", str(key)), *_row(value)))
        elif isinstance(value, Mapping):
            _walk(value, name, facts, rows, depth + 1)
        elif _is_rows(value):
            own = [row for row in value if _is_result(row)]
            if own:
                rows += [_row(row) for row in value]
            else:
                rows += _rows_of(value)
        else:
            facts.append(statement(name, value))


def _row(data: Mapping[str, Any]) -> Row:
    if not _is_result(data):
        return facts_of(dict(_flat(data)))
    more = {k: v for k, v in data.items() if k not in _OF_RESULTS}
    return (*result_facts(data), *facts_of(dict(_flat(more))))


def _is_rows(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(v, Mapping) for v in value)


def _columns(data: Mapping[str, Any]) -> dict[str, list[Any]]:
    """Return lists of equal length that are columns of one table."""
    lists = {
        k: v
        for k, v in data.items()
        if isinstance(v, list)
        and len(v) > 1
        and not any(isinstance(x, Mapping | list) for x in v)
        and meaning(k).concept not in _LISTS
    }
    by_length: dict[int, dict[str, list[Any]]] = {}
    for k, v in lists.items():
        by_length.setdefault(len(v), {})[k] = v
    return max(by_length.values(), key=len, default={}) if any(
        len(found) > 1 for found in by_length.values()
    ) else {}  # fmt: skip


def _sides(data: Mapping[str, Any]) -> set[str]:
    """Return the keys of blocks that hold the same quantities, of one system each."""
    blocks = {
        k: set(dict(_flat(v)))
        for k, v in data.items()
        if isinstance(v, Mapping) and v and not is_measurement(k) and not _is_axis(k)
    }
    found: set[str] = set()
    for k, keys in blocks.items():
        for other, others in blocks.items():
            if k != other and len(keys & others) > _SHARED * min(len(keys), len(others)):
                found |= {k, other}
    return found


def _is_axis(key: str) -> bool:
    return str(key).lower().strip("_") in {
        "x", "y", "z", "xaxis", "yaxis", "x_axis", "y_axis", "left", "right", "color", "colour",
        "size", "axes", "x-axis", "y-axis", "manifest", "plot", "figure", "horizontal", "vertical",
    }  # fmt: skip


def _flat(data: Mapping[str, Any], path: str = "", depth: int = 0) -> Iterator[tuple[str, Any]]:
    """Yield the values of a mapping by dotted path."""
    for key, value in data.items():
        name = f"{path}.{key}" if path else str(key)
        if isinstance(value, Mapping) and depth < _DEPTH:
            yield from _flat(value, name, depth + 1)
        else:
            yield name, value


_OF_RESULTS = frozenset({
    "step_time_s", "samples_per_s", "tokens_per_s", "flops_per_step", "mfu", "hfu", "time_s",
    "energy_j", "memory_bytes", "traffic_bytes", "kept_bytes", "bound", "limits_s", "fits",
    "node_power_w", "critical_path_s", "uncertainty", "manifest", "launch", "ops",
})  # fmt: skip


def _is_result(data: Any) -> bool:
    """Tell whether this is a result of ridgeline with its manifest."""
    return (
        isinstance(data, Mapping)
        and isinstance(data.get("manifest"), Mapping)
        and "ridgeline" in data["manifest"]
    )


def _has_manifest(data: Any, depth: int) -> bool:
    """Tell whether ridgeline made this, or something in it."""
    if isinstance(data, list):
        return any(_has_manifest(part, depth + 1) for part in data[:4])
    if not isinstance(data, Mapping) or depth > _DEPTH:
        return False
    if "ridgeline" in data and is_stated(data["ridgeline"]):
        return True
    return any(
        _has_manifest(part, depth + 1) for part in data.values() if isinstance(part, Mapping | list)
    )


def result_facts(data: Mapping[str, Any]) -> Row:
    """Return what the rules ask of a result: its numbers, and what its manifest says of them."""
    manifest = data["manifest"]

    def of(block: str, key: str) -> Any:
        inner = manifest.get(block)
        return inner.get(key) if isinstance(inner, Mapping) else None

    energy = data.get("energy_j")
    values = {
        "network": of("model", "name"),
        "cluster": of("cluster", "name"),
        "year": of("device", "year"),
        "process_node_nm": of("device", "process_node_nm"),
        "tdp_w": of("device", "tdp_w"),
        "price_usd": of("device", "price_usd"),
        "area_mm2": of("device", "area_mm2"),
        "devices": of("plan", "devices"),
        "global_batch": of("plan", "global_batch"),
        "precision": of("plan", "precision"),
        "step_time_s": data.get("step_time_s"),
        "samples_per_s": data.get("samples_per_s"),
        "energy_j": energy.get("total") if isinstance(energy, Mapping) else None,
        "uncertainty": data.get("uncertainty"),
        "op_definition": manifest.get("flop_definition"),
        "scope": "training step" if str(manifest.get("scope", "")).startswith("one training step")
        else manifest.get("scope"),
        "io_modelled": manifest.get("io_modelled"),
        "accuracy_modelled": "accuracy modelled" if manifest.get("accuracy_modelled")
        else "accuracy unmodelled",
    }  # fmt: skip
    return facts_of({k: v for k, v in values.items() if v is not None})
