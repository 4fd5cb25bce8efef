"""``verify``: repeat what a result, a figure or a report says of itself, and compare."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from ridgeline.bounded_files import MAX_RESULT_BYTES, content_hash, read_json, read_text
from ridgeline.errors import ConfigError, RidgelineError
from ridgeline.report.figures.embedded import axes_record
from ridgeline.report.honesty.pictures import SUFFIXES as FIGURES
from ridgeline.report.honesty.pictures import read_record
from ridgeline.report.result import Result
from ridgeline.study.compare import Comparison, compare
from ridgeline.study.point import Point
from ridgeline.study.repeat import repeat
from ridgeline.study.study_file import load_study
from ridgeline.study.sweep import plain_rows, run_sweep

Verdict = Literal["equal", "differs", "cannot be repeated"]
_DEPTH = 40
_TINY = 1e-300
_UNTOLD = frozenset({"schema", "uncertainty", "launch", "ops", "packets", "advice", "plans"})
"""Parts of a result's JSON that are not of its step, or are compared by themselves."""


@dataclass(frozen=True, slots=True)
class Difference:
    """A value that is not what it was."""

    place: str
    saved: Any
    found: Any

    @property
    def share(self) -> float:
        """Relative difference; infinite where the two are no numbers."""
        if _is_number(self.saved) and _is_number(self.found):
            scale = max(abs(self.saved), abs(self.found), _TINY)
            return float(abs(self.saved - self.found) / scale)
        return math.inf

    def __str__(self) -> str:
        by = "" if math.isinf(self.share) else f" ({self.share:.2g} of it)"
        return f"{self.place}: was {_short(self.saved)}, is {_short(self.found)}{by}"


@dataclass(frozen=True)
class Verification:
    """What `verify` found.

    Attributes
    ----------
    what
        What was repeated.
    reason
        Why it cannot be repeated.
    compared
        How many values were compared.
    differences
        The largest first.
    """

    file: str
    what: str
    verdict: Verdict
    compared: int = 0
    differences: tuple[Difference, ...] = ()
    reason: str = ""
    notes: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """Return everything as plain values."""
        return {
            "file": self.file,
            "what": self.what,
            "verdict": self.verdict,
            "compared": self.compared,
            "reason": self.reason,
            "notes": list(self.notes),
            "largest_difference": None if not self.differences or math.isinf(
                self.differences[0].share
            ) else self.differences[0].share,
            "differences": [
                {"place": d.place, "saved": d.saved, "found": d.found} for d in self.differences
            ],
        }  # fmt: skip

    def __str__(self) -> str:
        lines = [f"{self.file}: {self.what}: {self.verdict}"]
        if self.verdict == "equal":
            lines[0] += f" ({self.compared} values)"
        if self.reason:
            lines[0] += f" because {self.reason}"
        if self.differences:
            lines[0] += f" ({len(self.differences)} of {self.compared} values)"
            lines += [f"  {difference}" for difference in self.differences[:8]]
        return "\n".join([*lines, *(f"  note: {note}" for note in self.notes)])

    def _repr_html_(self) -> str:
        from html import escape

        return f"<pre>{escape(str(self))}</pre>"


class _CannotRepeatError(Exception):
    """There is nothing to repeat it from."""


def verify(
    path: str | Path,
    *,
    study: str | Path | None = None,
    data: str | Path | None = None,
    model: str | Path | None = None,
    cluster: str | Path | None = None,
    software: str | Path | None = None,
    tolerance: float = 1e-9,
) -> Verification:
    """Repeat what a file says of itself, and compare every number.

    Parameters
    ----------
    path
        A result, comparison, scaling study or op (.json); a figure with its record (.svg, .png);
        the rows of a sweep (.csv, .parquet) with their `study`; a report (.html).
    study
        Study file that rows come from.
    data
        Table that a figure of rows is of; by default the file of its name beside the figure.
    model, cluster, software
        Files of those that are not in the catalogue.
    tolerance
        Relative difference up to which numbers are equal.

    Raises
    ------
    ConfigError
        If the file cannot be read, or is nothing that says how it was made.
    """
    name, suffix = str(path), Path(path).suffix.lower()
    if not 0 <= tolerance < 1:
        raise ConfigError(f"is 0 or more and below 1, found {tolerance}", field="--tolerance")
    described = {"model": model, "cluster": cluster, "software": software}
    if suffix in FIGURES:
        record = read_record(path)
        return _finished(
            name, "figure", lambda: _figure(record, Path(path), study, data, described), tolerance
        )
    if suffix in {".csv", ".parquet"}:
        if study is None:
            return Verification(
                name,
                "rows",
                "cannot be repeated",
                reason="rows do not say their study (give --study)",
            )
        return _finished(name, "rows", lambda: _rows(plain_rows(path), study), tolerance)
    if suffix in {".html", ".htm"}:
        page = read_text(path, limit=MAX_RESULT_BYTES)
        return _finished(name, "report", lambda: _report(page, name, study, described), tolerance)
    if suffix != ".json":
        raise ConfigError("allowed are .json, .svg, .png, .csv, .parquet and .html", file=name)
    saved = read_json(path, MAX_RESULT_BYTES)
    what, pairs = _document(saved, name, described)
    return _finished(name, what, pairs, tolerance)


_Pair = tuple[str, Any, Any]
"""Place, what was saved, and what is found now: plain values."""


def _finished(name: str, what: str, pairs: Any, tolerance: float) -> Verification:
    """Compare all pairs, or say why there are none."""
    try:
        found = list(pairs())
    except _CannotRepeatError as error:
        return Verification(name, what, "cannot be repeated", reason=str(error))
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        reason = f"what it says of itself is not whole: {_short(str(error).splitlines()[0])}"
        return Verification(name, what, "cannot be repeated", reason=reason)
    except ConfigError as error:
        reason = error.message if error.file == name else str(error)
        return Verification(name, what, "cannot be repeated", reason=reason)
    except RidgelineError as error:
        reason = str(error).removeprefix(f"{name}: ")
        return Verification(name, what, "cannot be repeated", reason=reason)
    compared = 0
    differences: list[Difference] = []
    notes: list[str] = []
    for place, saved, now in found:
        for one in _differing(place, saved, now):
            compared += 1
            if one.place.endswith("manifest.ridgeline") or one.place == "ridgeline":
                if one.saved != one.found:
                    notes.append(f"made by ridgeline {one.saved}, repeated by {one.found}")
                continue
            if one.place.rpartition(".")[2] in {"hash", "manifest_hash"} and notes:
                continue  # of the version, too
            if one.saved != one.found and not one.share <= tolerance:
                differences.append(one)
    differences.sort(key=lambda d: -d.share if math.isfinite(d.share) else -math.inf)
    verdict: Verdict = "differs" if differences else "equal"
    return Verification(name, what, verdict, compared, tuple(differences), notes=tuple(notes))


def _differing(place: str, saved: Any, found: Any, depth: int = 0) -> Iterator[Difference]:
    """Yield every value of what was saved, with what stands in its place now."""
    if depth < _DEPTH and isinstance(saved, Mapping) and isinstance(found, Mapping):
        for key, value in saved.items():
            yield from _differing(_under(place, key), value, found.get(key), depth + 1)
    elif depth < _DEPTH and isinstance(saved, list) and isinstance(found, list):
        if len(saved) != len(found):
            yield Difference(f"{place} (number of)", len(saved), len(found))
        for i, (a, b) in enumerate(zip(saved, found, strict=False)):
            yield from _differing(f"{place}[{i}]", a, b, depth + 1)
    else:
        yield Difference(place, saved, found)


def _under(place: str, key: object) -> str:
    return f"{place}.{key}" if place else str(key)


def _plain(value: Any) -> Any:
    return json.loads(json.dumps(value))


def _document(saved: Any, name: str, described: Mapping[str, Any]) -> tuple[str, Any]:
    """Return what a JSON file is, and the function that repeats it."""
    if isinstance(saved, Mapping):
        if isinstance(saved.get("manifest"), Mapping):
            return "result", lambda: _result(saved, name, described)
        if saved.get("kind") == "comparison":
            return "comparison", lambda: _comparison(saved, name)
        if isinstance(saved.get("points"), list) and "scaling" in saved:
            return "scaling study", lambda: _scaling(saved)
        if isinstance(saved.get("request"), Mapping):
            return "op", lambda: _op(saved)
    raise ConfigError(
        "it does not say how it was made: allowed are results, comparisons, scaling studies and"
        " ops, as --json prints them",
        file=name,
    )


def _result(saved: Mapping[str, Any], name: str, described: Mapping[str, Any]) -> Iterator[_Pair]:
    manifest = saved["manifest"]
    if "plan" not in manifest:
        raise _CannotRepeatError("its manifest is of no step with a plan (an execution, say)")
    ranks = manifest.get("ranks", {})
    fold = ranks.get("simulated") != ranks.get("real")
    again = repeat(saved, **described, file=name, fold=fold)
    kept = {k: v for k, v in saved.items() if k not in _UNTOLD}
    found = _plain({**again._stated(), "manifest": again.manifest})
    for key, value in kept.items():
        if key not in found and key in {"node_power_w", "critical_path_s"}:
            found |= _plain(again.to_dict())
        if key in found:
            yield key, value, found[key]
    if saved.get("uncertainty") is not None:
        yield "uncertainty", saved["uncertainty"], _plain(again.uncertainty)


def _again(saved: Mapping[str, Any], name: str) -> Comparison:
    """Repeat every side of a comparison."""
    sides: list[Result] = []
    for side in saved.get("sides", ()):
        if "manifest" not in side:
            raise _CannotRepeatError(
                f"side {side.get('side')} is a row of a table without a manifest"
            )
        sides.append(repeat(side, file=name))
    return compare(*sides, claim="" if saved.get("title", "").startswith("Steps compared")
                   else saved.get("title", ""))  # fmt: skip


def _comparison(saved: Mapping[str, Any], name: str) -> Iterator[_Pair]:
    found = _plain(_again(saved, name).to_dict())
    for key in ("scaling", "accuracy_statement", "sides"):
        yield key, saved.get(key), found[key]
    kept = [{k: v for k, v in r.items() if k != "at_equal_accuracy"} for r in saved["ratios"]]
    yield "ratios", kept, found["ratios"]


def _scaling(saved: Mapping[str, Any]) -> Iterator[_Pair]:
    """Simulate every point of a scaling study by the plan that it says."""
    from ridgeline.parallel.plan.text import plan_fields

    for i, point in enumerate(saved["points"]):
        if "step_time_s" not in point:
            continue
        one = Point(
            saved["model"], saved["cluster"], plan_fields(point["plan"]), {}, saved["software"]
        )
        again = one.simulate()
        found = {
            "step_time_s": again.step_time_s,
            "samples_per_s": again.samples_per_s,
            "energy_per_sample_j": again.energy_j["total"] / point["batch"],
        }
        for key, value in found.items():
            yield f"points[{i}].{key}", point[key], value


def _op(saved: Mapping[str, Any]) -> Iterator[_Pair]:
    from ridgeline.kernels.single_op import repeat as repeat_op

    found = _plain(repeat_op(saved["request"]).to_dict())
    for key, value in saved.items():
        yield key, value, found.get(key)


def _rows(rows: Sequence[Mapping[str, Any]], study: str | Path) -> Iterator[_Pair]:
    """Simulate every point of a study again, and compare the rows in their order."""
    found = run_sweep(load_study(study))
    yield "rows", len(rows), len(found)
    for i, (row, now) in enumerate(zip(rows, found, strict=False), 1):
        for name, value in row.items():
            if value is not None or now.get(name) not in {None, ""}:
                yield f"row {i}, {name}", value, now.get(name)


def _figure(
    record: Mapping[str, Any] | None,
    path: Path,
    study: str | Path | None,
    data: str | Path | None,
    described: Mapping[str, Any],
) -> Iterator[_Pair]:
    """Draw a figure again from what its record says, and compare the numbers that are drawn."""
    if record is None:
        raise _CannotRepeatError("it has no record of how it was made")
    made_from = record.get("repeat")
    if not isinstance(made_from, Mapping) or made_from.get("of") not in _DRAWN:
        raise _CannotRepeatError("its record does not say from what it was drawn")
    yield from _DRAWN[made_from["of"]](record, path, study, data, described)


def _drawn_again(record: Mapping[str, Any], ax: Any) -> Iterator[_Pair]:
    found = [_plain(axes_record(one)) for one in ax.get_figure(root=True).axes if one.get_visible()]
    yield "axes", record["axes"], found


def _figure_of_result(
    record: Mapping[str, Any], path: Path, study: object, data: object, described: Mapping[str, Any]
) -> Iterator[_Pair]:
    del study, data
    saved = record["result"]
    yield from _result(saved, str(path), described)
    again = repeat(saved, **described, file=str(path))
    yield from _drawn_again(record, again.plot(record["repeat"]["kind"]))


def _figure_of_comparison(
    record: Mapping[str, Any], path: Path, study: object, data: object, described: object
) -> Iterator[_Pair]:
    del study, data, described
    from ridgeline.report.figures.comparison import comparison_figure

    saved = record["comparison"]
    yield from _comparison(saved, str(path))
    again = {**_again(saved, str(path)).to_dict(), "ridgeline": record["ridgeline"]}
    yield from _drawn_again(record, comparison_figure(again, saved["stamp"]))


def _figure_of_scaling(
    record: Mapping[str, Any], path: Path, study: object, data: object, described: object
) -> Iterator[_Pair]:
    del study, data, described
    from ridgeline.study.scaling_figures import draw

    saved = record["scaling"]
    yield from _scaling(saved)
    yield from _drawn_again(record, draw(record["repeat"]["kind"], saved, file=str(path)))


def _figure_of_rows(
    record: Mapping[str, Any], path: Path, study: str | Path | None, data: str | Path | None,
    described: object,
) -> Iterator[_Pair]:  # fmt: skip
    del described
    from ridgeline.study.row_plots import draw_rows

    table = record["table"]
    name = Path(str(table["file"])).name
    places = [Path(data)] if data is not None else [path.with_name(name), Path(name)]
    file = next((place for place in places if place.is_file()), None)
    if file is None:
        raise _CannotRepeatError(f"its table {name} is not here (give --data)")
    hashed = content_hash(file)
    yield f"content of {name} (sha256)", table["sha256"], hashed
    asked = record["repeat"]
    options = {name: value for name, value in asked.items() if name not in {"of", "kind"}}
    yield from _drawn_again(record, draw_rows(asked["kind"], file, **options))
    if study is not None:
        yield from _rows(plain_rows(file), study)


_DRAWN = {
    "result": _figure_of_result,
    "comparison": _figure_of_comparison,
    "scaling": _figure_of_scaling,
    "rows": _figure_of_rows,
}


def _report(
    text: str, name: str, study: str | Path | None, described: Mapping[str, Any]
) -> Iterator[_Pair]:
    """Repeat the results whose JSON stands in a report, and its rows with their study."""
    blocks = re.findall(
        r"<script[^>]*type=[\"']?application/json[\"']?[^>]*>(.*?)</script>", text, flags=re.DOTALL
    )
    count = 0
    seen: set[str] = set()
    for i, block in enumerate(blocks, 1):
        try:
            data = json.loads(block)
        except ValueError:
            continue
        if isinstance(data, Mapping) and data.get("kind") == "rows" and "digest" in data:
            raise _CannotRepeatError(f"it is of rows: verify {data.get('file')} with its --study")
        rows = data.get("rows") if isinstance(data, Mapping) else None
        if isinstance(rows, list) and rows and all(isinstance(row, Mapping) for row in rows):
            if study is None:
                raise _CannotRepeatError("its rows do not say their study (give --study)")
            count += 1
            yield from _rows(rows, study)
        for place, saved in _results_in(data, f"data {i}"):
            key = str(saved["manifest"].get("hash"))
            if key in seen:
                continue
            seen.add(key)
            count += 1
            for where, a, b in _result(saved, name, described):
                yield f"{place}.{where}", a, b
    if not count:
        raise _CannotRepeatError("there is no result with a manifest in it")


def _results_in(data: Any, place: str, depth: int = 0) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield every result in plain values, with its place."""
    if depth > _DEPTH:
        return
    if isinstance(data, Mapping):
        manifest = data.get("manifest")
        if isinstance(manifest, Mapping) and {"model", "cluster", "plan"} <= manifest.keys():
            yield place, data
            return
        for key, value in data.items():
            yield from _results_in(value, f"{place}.{key}", depth + 1)
    elif isinstance(data, list):
        for i, value in enumerate(data):
            yield from _results_in(value, f"{place}[{i}]", depth + 1)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _short(value: Any) -> str:
    text = f"{value:.9g}" if isinstance(value, float) else repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
