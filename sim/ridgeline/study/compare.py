"""``compare``: steps side by side, by every normalisation, with what may be said of them."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ridgeline.errors import ConfigError, RidgelineError, nearest
from ridgeline.report.honesty.rules import Finding
from ridgeline.report.result import Result
from ridgeline.report.uncertainty.paired import RatioRange, ratio_range
from ridgeline.study.lint import LintReport, lint
from ridgeline.study.point import Point
from ridgeline.study.repeat import repeat
from ridgeline.study.study_file import load_study
from ridgeline.study.sweep import plain_rows
from ridgeline.version import __version__

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MOST_SIDES = 26
UNMODELLED = "accuracy unmodelled"
NORMALISATIONS: Mapping[str, str] = {
    "samples_per_s": "samples/s",
    "samples_per_s_per_device": "samples/s per device",
    "samples_per_j": "samples/s per watt",
    "samples_per_s_per_mm2": "samples/s per mm2",
    "samples_per_s_per_usd": "samples/s per dollar",
}
"""What sides are compared by, and how it is written. Power is that of devices and their links."""
_OPTIONS = {
    "--plan": "plan",
    "--batch": "global_batch",
    "--precision": "precision",
    "--software": "software",
    "--set": "set",
}


@dataclass(frozen=True)
class Side:
    """One side of a comparison.

    Attributes
    ----------
    label
        A letter.
    name
        What it is, in words.
    numbers
        Time, throughput and energy of a step, devices, and all of `NORMALISATIONS`; None where the
        description of the machine does not say.
    result
        None of a row of a table, which has numbers alone.
    facts
        What the rules of honesty ask for besides.
    """

    label: str
    name: str
    numbers: Mapping[str, float | None]
    result: Result | None
    facts: Mapping[str, Any]

    def to_dict(self) -> dict[str, Any]:
        """Return everything as plain values."""
        found = {"side": self.label, "name": self.name, **self.facts, **self.numbers}
        return found if self.result is None else {**found, "manifest": dict(self.result.manifest)}


@dataclass(frozen=True)
class Ratio:
    """A side over the baseline.

    Attributes
    ----------
    values
        Ratio of each of `NORMALISATIONS`; None where one of the two is not known.
    range
        5 and 95 % of it, or why there are none.
    scaling
        "strong", "weak" or "other" where the numbers of devices differ; else "none".
    accuracy
        What may be said of accuracy.
    software
        What may be said where the software differs, or where a side is a bound; else empty.
    at_equal_accuracy
        Ratio of the times to one accuracy, where the epochs to it are given.
    """

    side: str
    baseline: str
    values: Mapping[str, float | None]
    range: RatioRange | str
    scaling: str
    accuracy: str
    software: str
    at_equal_accuracy: float | None

    def to_dict(self) -> dict[str, Any]:
        """Return everything as plain values."""
        found = self.range if isinstance(self.range, str) else self.range.to_dict()
        return {
            "side": self.side,
            "baseline": self.baseline,
            "ratios": dict(self.values),
            "range": found,
            "scaling": self.scaling,
            "accuracy": self.accuracy,
            "software": self.software,
            "at_equal_accuracy": self.at_equal_accuracy,
        }


@dataclass(frozen=True)
class Comparison:
    """Sides of a comparison, the first of which is the baseline.

    Attributes
    ----------
    ratios
        Of every other side over the baseline.
    claim
        Words that go with it, which are checked too.
    """

    sides: tuple[Side, ...]
    ratios: tuple[Ratio, ...]
    claim: str = ""

    @cached_property
    def report(self) -> LintReport:
        """What the rules of honesty find in it."""
        return lint(self.document())

    @property
    def findings(self) -> tuple[Finding, ...]:
        """Rules that the comparison breaks."""
        return self.report.findings

    def document(self) -> dict[str, Any]:
        """Return what the comparison states, as plain values."""
        scaling = " and ".join(dict.fromkeys(r.scaling for r in self.ratios if r.scaling != "none"))
        return {
            "kind": "comparison",
            "ridgeline": __version__,
            "title": self.claim or "Steps compared, simulated, not measured",
            "scaling": scaling or "no scaling: as many devices on each side",
            "accuracy_statement": "; ".join(dict.fromkeys(r.accuracy for r in self.ratios)),
            "software_statement": "; ".join(
                dict.fromkeys(r.software for r in self.ratios if r.software)
            ),
            "normalisations": dict(NORMALISATIONS),
            "sides": [side.to_dict() for side in self.sides],
        }

    def to_dict(self) -> dict[str, Any]:
        """Return everything as plain values, with the findings."""
        return {
            **self.document(),
            "ratios": [ratio.to_dict() for ratio in self.ratios],
            "findings": [finding.to_dict() for finding in self.findings],
        }

    def to_json(self, path: str | Path | None = None) -> str:
        """Return the comparison as JSON text, and write it to `path` if one is given."""
        text = json.dumps(self.to_dict(), indent=2) + "\n"
        if path is not None:
            from ridgeline.report.files import write_text

            write_text(path, text)
        return text

    def plot(
        self, ax: Axes | None = None, *, override: Sequence[str] = (), theme: str | None = None
    ) -> Axes:
        """Draw the ratios by every normalisation, with their ranges.

        Raises
        ------
        RidgelineError
            If the rules of honesty refuse the comparison, and `override` does not name the rule.
        """
        from ridgeline.report.figures.comparison import comparison_figure
        from ridgeline.report.figures.themes import theme as themed

        checked = lint(self.document(), override=override)
        if checked.refused:
            refused = [f for f in checked.findings if f.severity == "refuse" and not f.overridden]
            raise RidgelineError(
                f"no figure of this comparison: {refused[0].code} ({refused[0].title}):"
                f" {refused[0].found}; --override {refused[0].code} draws it with a stamp"
            )
        with themed(theme):
            return comparison_figure(self.to_dict(), checked.stamp, ax)

    def __str__(self) -> str:
        lines = [f"{side.label}: {side.name}" for side in self.sides]
        for ratio in self.ratios:
            value = ratio.values["samples_per_s"]
            if value is not None:
                lines.append(f"{ratio.side} / {ratio.baseline}: {value:.4g} x samples/s")
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        from html import escape

        return f"<pre>{escape(str(self))}</pre>"


def compare(
    *sides: Result | Point | str | Path,
    claim: str = "",
    epochs: Sequence[float] = (),
    study: str | Path | None = None,
) -> Comparison:
    """Compare steps, the first of which is the baseline.

    Parameters
    ----------
    sides
        Each a `Result`; the JSON of one (``ridgeline run --json``), which is simulated again; a row
        of a sweep, ``rows.csv:3`` counted from 1; a point of a study, ``study.yaml:3``; or the
        words that follow ``ridgeline run``: "resnet50 dgx1-v100 --plan data=8 --batch 2048".
    claim
        Words that go with the comparison; they are checked with it.
    epochs
        Epochs that each side needs to the same accuracy, where they are known.
    study
        Study file that rows of a table come from: they are then simulated again.

    Raises
    ------
    ConfigError
        If there are fewer than two sides, or one cannot be read.
    """
    if not 2 <= len(sides) <= MOST_SIDES:
        raise ConfigError(f"2 to {MOST_SIDES} sides are compared, found {len(sides)}")
    if epochs and (len(epochs) != len(sides) or min(epochs) <= 0):
        raise ConfigError(
            f"give one number above 0 for each of {len(sides)} sides, found {list(epochs)}",
            field="--epochs",
        )
    found = [_side(chr(ord("A") + i), one, study) for i, one in enumerate(sides)]
    ratios = [
        _ratio(side, found[0], (epochs[i], epochs[0]) if epochs else None)
        for i, side in enumerate(found)
        if i
    ]
    return Comparison(tuple(found), tuple(ratios), claim)


def _side(label: str, one: Result | Point | str | Path, study: str | Path | None) -> Side:
    if isinstance(one, Result):
        return _of_result(label, one)
    if isinstance(one, Point):
        return _of_result(label, one.simulate())
    text = str(one)
    numbered = re.fullmatch(r"(.+\.(?:csv|parquet|ya?ml)):(\d+)", text)
    if numbered is not None:
        file, row = numbered[1], int(numbered[2])
        if file.endswith((".csv", ".parquet")):
            return _of_row(label, file, row, study)
        return _of_result(label, _of_study(file, row).simulate())
    if text.endswith((".csv", ".parquet", ".yaml", ".yml")) and " " not in text:
        raise ConfigError(f"say which row: {text}:1", file=text)
    if text.endswith(".json"):
        from ridgeline.bounded_files import MAX_RESULT_BYTES, read_json

        saved = read_json(text, MAX_RESULT_BYTES)
        if not isinstance(saved, dict):
            raise ConfigError("this is not the JSON of one result", file=text)
        return _of_result(label, repeat(saved, file=text))
    return _of_result(label, point_of(text).simulate())


def point_of(text: str) -> Point:
    """Read the words of ``ridgeline run``: a network, a machine, and options.

    Raises
    ------
    ConfigError
        If a word is missing or unknown.
    """
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise ConfigError(f"{text!r} cannot be read: {error}") from error
    named: list[str] = []
    given: dict[str, str] = {}
    overrides: dict[str, Any] = {}
    rest = iter(words)
    for word in rest:
        if not word.startswith("--"):
            named.append(word)
            continue
        option, equals, value = word.partition("=")
        if option not in _OPTIONS:
            raise ConfigError(
                f"{text!r}: unknown option {option!r}{nearest(option, _OPTIONS)} (allowed: "
                f"{', '.join(_OPTIONS)})"
            )
        value = value if equals else next(rest, "")
        if not value:
            raise ConfigError(f"{text!r}: {option} needs a value")
        if option == "--set":
            from ridgeline.study.written_fields import assignments

            overrides |= dict(assignments(value))
        else:
            given[_OPTIONS[option]] = value
    if len(named) != 2:
        raise ConfigError(
            f"{text!r}: expected a network and a machine, as in 'resnet50 dgx1-v100 --plan data=8 "
            "--batch 2048'; or a file: result.json, rows.csv:3, study.yaml:3"
        )
    more: dict[str, Any] = {"precision": given.get("precision")}
    if "global_batch" in given:
        if not given["global_batch"].replace("_", "").isdigit():
            raise ConfigError(
                f"{text!r}: --batch is a whole number, found {given['global_batch']!r}"
            )
        more["global_batch"] = int(given["global_batch"])
    return Point.parse(
        named[0], named[1], given.get("plan", ""), more, overrides, given.get("software", "")
    )


def _of_study(file: str, row: int) -> Point:
    points = load_study(file).points()
    for i, (_, point) in enumerate(points, 1):
        if i == row:
            if not isinstance(point, Point):
                raise ConfigError("a study of collectives has no steps to compare", file=file)
            return point
    raise ConfigError(f"there is no point {row}", file=file)


def _of_row(label: str, file: str, row: int, study: str | Path | None) -> Side:
    """Return a row of a sweep: simulated again from its study, or its numbers alone."""
    rows = plain_rows(file)
    if not 1 <= row <= len(rows):
        raise ConfigError(f"there is no row {row}: it has {len(rows)}", file=file)
    found = rows[row - 1]
    if study is not None:
        for values, point in load_study(study).points():
            if isinstance(point, Point) and all(found.get(k) == v for k, v in values.items()):
                return _of_result(label, point.simulate())
        raise ConfigError(f"no point of it has the values of row {row} of {file}", file=str(study))
    if found.get("error"):
        raise ConfigError(f"row {row} has no result: {found['error']}", file=file)
    missing = [
        k for k in ("step_time_s", "samples_per_s", "energy_j.total", "devices") if not found.get(k)
    ]
    if missing:
        raise ConfigError(
            f"row {row} has no column {missing[0]}, as rows of a sweep have", file=file
        )
    numbers = _normalised(
        float(found["step_time_s"]), float(found["samples_per_s"]), float(found["energy_j.total"]),
        int(found["devices"]), found.get("area_mm2"), found.get("price_usd"),
    )  # fmt: skip
    varied = dict(list(found.items())[: list(found).index("step_time_s")])
    words = ", ".join(f"{k.rpartition('.')[2]} {v}" for k, v in varied.items())
    facts = {"row": f"{file}:{row}", **varied, "accuracy_note": UNMODELLED}
    return Side(label, f"{file}, row {row}: {words}", numbers, None, facts)


def _of_result(label: str, result: Result) -> Side:
    device = result.manifest["device"]
    plan = result.details.plan
    numbers = _normalised(
        result.step_time_s, result.samples_per_s, result.energy_j["total"], plan.devices,
        device["area_mm2"], device["price_usd"],
    )  # fmt: skip
    stack = plan.stack
    name = (
        f"{result.manifest['model']['name']} on {plan.devices} x {device['name']}"
        f" ({result.manifest['cluster']['name']}), batch {plan.global_batch}, {plan.precision},"
        f" software {stack.name}{' (a bound)' if stack.bound else ''}"
    )
    facts = {"fits": result.fits, "accuracy_note": UNMODELLED, "bound": result.bound}
    return Side(label, name, numbers, result, facts)


def _normalised(
    step_s: float, per_s: float, joules: float, devices: int, area_mm2: float | None,
    price_usd: float | None,
) -> dict[str, float | None]:  # fmt: skip
    def over(whole: float | None) -> float | None:
        return None if not whole else per_s / (devices * whole)

    return {
        "step_time_s": step_s,
        "energy_j": joules,
        "devices": devices,
        "samples_per_s": per_s,
        "samples_per_s_per_device": per_s / devices,
        "samples_per_j": per_s * step_s / joules if joules else None,
        "samples_per_s_per_mm2": over(area_mm2),
        "samples_per_s_per_usd": over(price_usd),
    }


def _ratio(side: Side, baseline: Side, epochs: tuple[float, float] | None) -> Ratio:
    values = {}
    for name in NORMALISATIONS:
        ours, theirs = side.numbers[name], baseline.numbers[name]
        values[name] = None if ours is None or not theirs else ours / theirs
    range_: RatioRange | str = "no range: a row of a table has numbers alone (give its --study)"
    if side.result is not None and baseline.result is not None:
        range_ = ratio_range(side.result, baseline.result)
    faster = values["samples_per_s"]
    equal = None
    if epochs is not None and faster is not None:
        equal = faster * epochs[1] / epochs[0]
    return Ratio(
        side.label, baseline.label, values, range_, _scaling(side, baseline),
        _accuracy(side, baseline, epochs), _software(side, baseline), equal,
    )  # fmt: skip


def _batch(side: Side) -> float | None:
    if side.result is not None:
        return float(side.result.details.plan.global_batch)
    return next((float(v) for k, v in side.facts.items() if k.endswith("global_batch")), None)


def _scaling(side: Side, baseline: Side) -> str:
    """Return "strong", "weak" or "other" by what the batch does where the devices differ."""
    ours, theirs = side.numbers["devices"], baseline.numbers["devices"]
    assert ours is not None
    assert theirs is not None
    if ours == theirs:
        return "none"
    batches = _batch(side), _batch(baseline)
    if batches[0] is None or batches[1] is None:
        return "unknown (no batch is stated)"
    if batches[0] == batches[1]:
        return "strong (the batch stays)"
    if abs(batches[0] / batches[1] * theirs / ours - 1) < 1e-9:
        return "weak (the batch a device stays)"
    return "weak and more (batch and devices change by different factors)"


def _accuracy(side: Side, baseline: Side, epochs: tuple[float, float] | None) -> str:
    """Say what may be said of accuracy, which a step alone does not tell."""
    if epochs is not None:
        return f"epochs to one accuracy as given: {epochs[0]:g} and {epochs[1]:g}"
    if side.result is None or baseline.result is None:
        return UNMODELLED
    ours, theirs = side.result.details, baseline.result.details
    differing = [
        name
        for name, a, b in (
            ("network", side.result.manifest["model"], baseline.result.manifest["model"]),
            ("batch", ours.plan.global_batch, theirs.plan.global_batch),
            ("number format", ours.plan.precision, theirs.plan.precision),
            ("optimizer", ours.plan.optimizer, theirs.plan.optimizer),
        )
        if (_training(a) != _training(b))
    ]
    if differing:
        return f"{UNMODELLED}; it may differ: {', '.join(differing)} differ"
    return f"{UNMODELLED}; network, batch, format and optimizer are equal, so that both train alike"


def _software(side: Side, baseline: Side) -> str:
    """Say where a ratio is none of two predictions, or of two programs."""
    if side.result is None or baseline.result is None:
        return ""
    ours, theirs = side.result.details.plan.stack, baseline.result.details.plan.stack
    if ours.bound and theirs.bound:
        names = " and ".join(dict.fromkeys((ours.name, theirs.name)))
        return (
            f"both sides are bounds (software {names}), which no program reaches: the ratio is no"
            " prediction"
        )
    if ours.bound or theirs.bound:
        told = [(side.label, ours.name), (baseline.label, theirs.name)]
        (bound, ideal), (other, program) = told if ours.bound else reversed(told)
        return (
            f"{bound} is a bound (software {ideal}), {other} a prediction (software {program}): the"
            " ratio is no prediction; give both the same --software"
        )
    if ours.name != theirs.name:
        return (
            f"the software differs ({baseline.label}: {theirs.name}, {side.label}: {ours.name}):"
            " the ratio is of programs, too, not of machines alone"
        )
    return ""


def _training(value: Any) -> Any:
    """Return what of a manifest's network decides what is learned."""
    if isinstance(value, Mapping):
        return value["name"], value["parameters"], json.dumps(value["overrides"], sort_keys=True)
    return value
