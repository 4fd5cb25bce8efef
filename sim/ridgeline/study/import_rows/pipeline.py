"""Bubbles of pipelines, and the profiled times of their stages.

The times of a stage are in the row's own columns ``forward_ms``, ``backward_ms`` (gradients of
activations), ``weight_ms`` and ``message_ms``; where it has none, in the table of kernels beside
the file (``gemm_kernels.csv``, kind ``pipeline_stage``) or in the one that ships, by network and
number of micro-batches.
"""

from __future__ import annotations

import re
from functools import lru_cache
from pathlib import Path

from ridgeline.parallel.schedule import zero_bubble_2p
from ridgeline.study.validate.rows import SHIPPED, MeasuredRow, read_rows

READS = ("model", "schedule", "partitions", "micro_batches", "quantity", "value", "source")
_NAMES = {
    "1F1B": "1f1b",
    "1F1B-I": "interleaved",
    "GPipe": "gpipe",
    "ZB-H1": "zero-bubble",
    "ZB-1p": "zero-bubble",  # in the memory of 1F1B its search finds nothing better than H1
    "ZB-H2": "zero-bubble-h2",
    "ZB-2p": zero_bubble_2p.NAME,
    "ZB-V": "zero-bubble-v",
}
_TIMES = ("forward_ms", "backward_ms", "weight_ms", "message_ms")
_PASSES = dict(zip(("fwd", "bwd_input", "bwd_weight", "p2p"), _TIMES, strict=True))
_SIZES = ("heads", "seq", "hidden")
_TABLES = (Path("gemm_kernels.csv"), SHIPPED / "stages.csv")

Columns = dict[str, str]


def normal(row: MeasuredRow) -> Columns:
    """Return the schedule of a row and the times of its stages."""
    if row.text("quantity") != "bubble_rate":
        return {"skip": f"{row.text('quantity')} needs more than the times of the stages"}
    stages, micro_batches = row.whole("partitions"), row.whole("micro_batches")
    measured, name = row.number("value"), _NAMES.get(row.text("schedule"))
    if not stages or not micro_batches or measured is None:
        return {"skip": "stages, micro-batches or the rate are not given"}
    if name is None:
        return {"skip": f"no schedule is called {row.text('schedule')}"}
    times = _stage(row, (row.text("model"), stages, micro_batches))
    if times is None:
        return {"skip": "the times of a stage are not known"}
    made = {"schedule": name, "stages": str(stages), "measured": repr(measured)}
    return {**made, **times}


def _stage(row: MeasuredRow, key: tuple[str, int, int]) -> Columns | None:
    """Return the times of a stage, from the row or from a table."""
    if all(row.text(name) for name in _TIMES):
        sizes = [row.number(name) if name in row.values else None for name in _SIZES]
        return {**{name: row.text(name) for name in _TIMES}, **_share(*sizes)}
    paths = (Path(row.file).parent / table for table in _TABLES)
    found = (_profiles(path).get(key) for path in paths if path.exists())
    return next(filter(None, found), None)


def _share(heads: float | None, positions: float | None, hidden: float | None) -> Columns:
    """Return what gradients of weights need of a transformer's activations, if it is known."""
    if heads is None or positions is None or not hidden:
        return {}
    return {"weight_share": repr(zero_bubble_2p.weight_share(heads, positions, hidden))}


@lru_cache(maxsize=8)
def _profiles(path: Path) -> dict[tuple[str, int, int], Columns]:
    """Read the profiles of a table of kernels, by network, stages and micro-batches."""
    found: dict[tuple[str, int, int], Columns] = {}
    for row in read_rows(path):
        note, time_ms = row.text("note"), row.number("time_ms")
        stages, micro_batches, *sizes = (_number(name, note) for name in "pmash")
        name = _PASSES.get(row.text("pass_"))
        profiled = row.values.get("kind") == "pipeline_stage"
        if not profiled or not stages or not micro_batches or time_ms is None or name is None:
            continue
        layers = re.search(r"(\d+) layers", note)
        stage = found.setdefault((row.text("app"), stages, micro_batches), {})
        # Embedding and classifier stand for a layer each (the paper's balance).
        depth = (int(layers[1]) + 2) // stages if layers else 0
        stage |= {name: repr(time_ms), "layers": str(depth), **_share(*sizes)}
    return {key: stage for key, stage in found.items() if stage.keys() >= {*_TIMES}}


def _number(name: str, note: str) -> int | None:
    found = re.search(rf"\b{name}=(\d+)", note)
    return int(found[1]) if found else None
