"""Switches off each setting of the software stacks, one at a time, over the measured steps.

    python benchmarks/ablate_software.py [--rows N] [--processes N] [--suites SUITE ...]

predicts rows of the suites twice for every setting that their stack has away from the schema's
default: as they are, and with that setting at the default. It prints a table for
``docs/ablation.md``: what the setting does to the median error of each suite, and in how many
devices and sources it helps. Of every group of rows at most ``--rows`` are predicted, drawn with a
fixed seed; each group weighs the same, as in ``ridgeline validate``.

Nothing is estimated anew without a device or source: a setting earns its place where it lowers the
error of most of those that it touches, and where a source describes it.
"""

from __future__ import annotations

import argparse
import math
import random
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from multiprocessing import Pool
from typing import NamedTuple

import numpy as np

from ridgeline import catalog
from ridgeline.errors import RidgelineError
from ridgeline.software.described import setting_rows, value_of
from ridgeline.software.load import load_software
from ridgeline.software.stack import Stack, setting_paths
from ridgeline.study.relative import EFFICIENCY
from ridgeline.study.validate import find_suite, shipped
from ridgeline.study.validate.normalised_rows import NormalRow
from ridgeline.study.validate.outcome import Outcome
from ridgeline.study.validate.rows import MeasuredRow, read_rows
from ridgeline.study.validate.statistics import weighted_quantile
from ridgeline.study.written_fields import assignments, written

SUITES = ("llm", "single-device", "multi-device", "memory", "mlperf")
LEAST_POINTS = 0.2
"""A setting that moves no suite's median by as much, and that no source describes, goes."""
TOGETHER = {
    "kernels.attention": ("kernels.attention_since", "kernels.attention_fallback"),
    "kernels.attention_since": ("kernels.attention_fallback",),
}
"""Settings that mean nothing without another, which go with it."""
NOT_ABLATED = ("plan.", "reporting.")
"""Defaults of a plan, which rows state themselves, and conventions of what is measured."""


class Drawn(NamedTuple):
    """A row of a suite."""

    suite: str
    row: MeasuredRow


@dataclass(frozen=True)
class Effect:
    """Absolute errors of a row as it is, and with settings at their defaults."""

    suite: str
    group: str
    device: str
    source: str
    error: float
    without: dict[str, float]


def drawn_rows(suite: str, most: int) -> Iterator[Drawn]:
    """Yield at most so many rows of each group that a suite can predict."""
    groups: dict[str, list[MeasuredRow]] = defaultdict(list)
    for row in read_rows(shipped(suite)):
        of_several = row.text("quantity") == EFFICIENCY
        if suite in {"single-device", "multi-device"} and of_several != (suite == "multi-device"):
            continue
        if row.text("software") and not row.text("skip"):
            groups[row.text("group") or row.text("source_model") + row.text("source")].append(row)
    for name, rows in sorted(groups.items()):
        for row in random.Random(name).sample(rows, min(most, len(rows))):
            yield Drawn(suite, row)


@cache
def defaults() -> dict[str, object]:
    """Return the schema's default of every setting that is ablated."""
    neutral = Stack(name="default")
    return {p: value_of(neutral, p) for p in setting_paths() if not p.startswith(NOT_ABLATED)}


def effect_of(drawn: Drawn) -> Effect | None:
    """Predict a row as it is, and with each setting at its default."""
    suite, row = drawn
    error = _error(suite, row)
    if error is None:
        return None
    said = dict(assignments(row.text("overrides")))
    stack = load_software(row.text("software")).with_settings(said)
    without = {}
    for path, default in defaults().items():
        if value_of(stack, path) == default or path == "kernels.attention_fallback":
            continue
        off = {path: default, **{other: defaults()[other] for other in TOGETHER.get(path, ())}}
        changed = {**row.values, "overrides": written({**said, **off})}
        found = _error(suite, MeasuredRow(row.file, row.line, changed))
        if found is not None:
            without[path] = found
    source = row.text("source").split("@")[0].split()[0]
    return Effect(suite, row.text("group"), NormalRow.of(row).device, source, error, without)


def _error(suite: str, row: MeasuredRow) -> float | None:
    """Return how far a prediction is off: a share, or points of an efficiency."""
    try:
        if suite == "mlperf":  # of whole runs
            made = [o for o in find_suite(suite).predict([row]) if isinstance(o, Outcome)]
            error = made[0].error if made else math.nan
        else:
            step = NormalRow.of(row)
            predicted = step.predict()
            points = step.quantity in {EFFICIENCY, "fits"}
            error = predicted - step.measured if points else predicted / step.measured - 1
    except RidgelineError:
        return None
    return abs(error) if math.isfinite(error) else None


def median(effects: Sequence[Effect], setting: str | None = None) -> float:
    """Return the median error, each group the same; of a suite without a setting, if named."""
    sizes: dict[str, int] = defaultdict(int)
    for one in effects:
        sizes[one.group] += 1
    weight = np.array([1.0 / sizes[one.group] for one in effects])
    error = np.array([one.without.get(setting or "", one.error) for one in effects])
    return weighted_quantile(error, weight / weight.sum(), 0.5)


def helped(effects: Iterable[Effect], setting: str, of: str) -> str:
    """Return "better/worse": devices, or sources, whose mean error a setting lowers and raises."""
    changes: dict[str, list[float]] = defaultdict(list)
    for one in effects:
        if setting in one.without:
            changes[getattr(one, of)].append(one.without[setting] - one.error)
    means = [float(np.mean(found)) for found in changes.values()]
    return f"{sum(m > 1e-4 for m in means)}/{sum(m < -1e-4 for m in means)}"


@cache
def described() -> dict[str, int]:
    """Return how many shipped stacks say each setting with a source that is no assumption."""
    counts: dict[str, int] = defaultdict(int)
    for name in catalog.names("software"):
        for row in setting_rows(load_software(name)):
            if row.source and row.basis != "assumed" and row.stack == name:
                counts[row.path] += 1
    return dict(counts)


def table(effects: Sequence[Effect], suites: Sequence[str]) -> Iterator[str]:
    """Yield the lines of the table, the settings that matter most first."""
    of = {suite: [one for one in effects if one.suite == suite] for suite in suites}
    of = {suite: found for suite, found in of.items() if found}
    base = {suite: median(found) for suite, found in of.items()}
    lines = []
    for setting in defaults():
        touched = sum(setting in one.without for one in effects)
        moves = {suite: 100 * (median(found, setting) - base[suite]) for suite, found in of.items()}
        most = max(map(abs, moves.values()), default=0.0)
        cells = [
            f"`{setting}`", str(touched), *(f"{moves[suite]:+.2f}" for suite in of),
            helped(effects, setting, "device"), helped(effects, setting, "source"),
            str(described().get(setting, 0)),
        ]  # fmt: skip
        goes = most < LEAST_POINTS and not described().get(setting)
        lines.append((not touched, -most, f"| {' | '.join(cells)} |{' goes' if goes else ''}"))
    stands = ", ".join(f"{suite} {100 * base[suite]:.1f} %" for suite in of)
    yield f"Medians as they are: {stands} ({len(effects)} rows)."
    yield ""
    yield f"| setting | rows | {' | '.join(of)} | devices | sources | stacks |"
    yield f"|---|---|{'---|' * len(of)}---|---|---|"
    yield from (line for *_, line in sorted(lines))


def main() -> None:
    """Predict, and print the table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--rows", type=int, default=2, help="rows of a group")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--suites", nargs="+", default=SUITES, choices=SUITES)
    asked = parser.parse_args()
    rows = [one for suite in asked.suites for one in drawn_rows(suite, asked.rows)]
    effects = []
    with Pool(asked.processes, maxtasksperchild=40) as pool:
        for count, effect in enumerate(pool.imap_unordered(effect_of, rows), start=1):
            effects += [] if effect is None else [effect]
            if count % 20 == 0:
                print(f"{count} of {len(rows)} rows", file=sys.stderr, flush=True)
    effects.sort(key=lambda one: (one.suite, one.group, one.device, one.error))
    print("\n".join(table(effects, asked.suites)))


if __name__ == "__main__":
    main()
