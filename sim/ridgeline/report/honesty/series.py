"""Scaling series in evidence: devices that grow, and what the batch does meanwhile."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import Literal

from ridgeline.report.honesty.evidence import Evidence

_GROUPS = ("system", "hardware", "option", "precision", "dataset")
_SAME = 0.02

Mode = Literal["weak", "strong", "other", "unknown"]


@dataclass(frozen=True)
class ScalingSeries:
    """Rows of growing numbers of devices.

    Attributes
    ----------
    devices
        Smallest and largest number.
    mode
        What the batch does: "strong" (it stays), "weak" (it grows with the devices), "other" (it
        changes otherwise), "unknown" (no batch is stated).
    batches
        Batch over all devices at the smallest and the largest number, where known.
    label
        Mode that the file states; empty: none.
    """

    devices: tuple[float, float]
    mode: Mode
    batches: tuple[float, float] | None
    label: str


def scaling_series(evidence: Evidence) -> ScalingSeries | None:
    """Return the scaling series of a file, None where the number of devices does not vary."""
    groups: dict[tuple[str, ...], list[tuple[float, float | None, float | None]]] = defaultdict(
        list
    )
    columns = [evidence.column(name) for name in _GROUPS]
    global_batch = evidence.column_numbers("global_batch")
    local_batch = evidence.column_numbers("local_batch")
    for i, n in enumerate(evidence.column_numbers("devices")):
        if n is not None and n > 0:
            key = tuple(str(column[i]) for column in columns if isinstance(column[i], str))
            groups[key].append((n, global_batch[i], local_batch[i]))
    grown = [points for points in groups.values() if len({n for n, _, _ in points}) > 1]
    if not grown and len({n for points in groups.values() for n, _, _ in points}) > 1:
        named = [key for key in groups if key]
        if len(named) < len(groups) or len(groups) == len(evidence.rows) > 2:
            grown = [[point for points in groups.values() for point in points]]
    if not grown:
        return None
    everything = [point for points in grown for point in points]
    counts = [n for n, _, _ in everything]
    modes = [_mode(points) for points in grown]
    mode = next((m for m, _ in modes if m in {"weak", "other"}), modes[0][0])
    batches = next((b for m, b in modes if m == mode), None)
    return ScalingSeries((min(counts), max(counts)), mode, batches, _label(evidence))


def _mode(
    points: list[tuple[float, float | None, float | None]],
) -> tuple[Mode, tuple[float, float] | None]:
    known = sorted((n, b) for n, b, _ in points if b)
    if len({n for n, _ in known}) < 2:
        locals_ = {b for _, _, b in points if b}
        if not locals_:
            return "unknown", None
        if len(locals_) == 1:
            b = locals_.pop()
            ns = [n for n, _, _ in points]
            return "weak", (min(ns) * b, max(ns) * b)
        totals = sorted((n, n * b) for n, _, b in points if b)
        known = totals
    first, last = known[0], known[-1]
    batches = first[1], last[1]
    by_batch: dict[float, set[float]] = defaultdict(set)
    for n, b in known:
        by_batch[b].add(n)
    if all(len(ns) > 1 for ns in by_batch.values()):  # a line of equal batches at every batch
        return "strong", batches
    ratios = [b / n for n, b in known]
    if max(ratios) <= (1 + _SAME) * min(ratios):
        return "weak", batches
    return "other", batches


def _label(evidence: Evidence) -> str:
    """Return the scaling mode that a file states: in a field, or in words."""
    stated = " ".join(str(one.value).lower() for one in evidence.stated("scaling"))
    text = f"{stated}\n{evidence.text}"
    found = [mode for mode in ("weak", "strong") if mode in text]
    if "weak" in found and ("scal" in text or stated):
        return "weak" if "strong" not in found else "both"
    if "strong" in found and ("scal" in text or stated):
        return "strong"
    if any(word in evidence.names for word in ("weak scaling", "weak speedup", "weak efficiency")):
        return "weak"
    if any(word in evidence.names for word in ("strong scaling", "strong speedup")):
        return "strong"
    return ""
