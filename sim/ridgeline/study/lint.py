"""``lint``: which of the known ways to mislead a result, a comparison, a study or a figure uses."""

from __future__ import annotations

import csv
import itertools
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import resources
from pathlib import Path
from typing import Any

from ridgeline.bounded_files import MAX_RESULT_BYTES, read_json, read_text
from ridgeline.config import parse_yaml
from ridgeline.errors import ConfigError
from ridgeline.report.honesty.documents import from_document, from_rows
from ridgeline.report.honesty.evidence import Evidence, PublishedRun, facts_of, number
from ridgeline.report.honesty.pictures import SUFFIXES as FIGURES
from ridgeline.report.honesty.pictures import figure_evidence, of_record
from ridgeline.report.honesty.rules import Finding, findings_of, known_codes
from ridgeline.report.result import Result
from ridgeline.study.csv_file import parse_csv
from ridgeline.study.study_file import Study, load_study
from ridgeline.study.sweep import plain_rows

_MOST_POINTS = 4096  # of a study that are looked at
_DEGREES = ("data", "tensor", "pipeline", "context")
_SEPARATORS = (",", ";", "\t", "|")


@dataclass(frozen=True)
class LintReport:
    """What `lint` found in one file or object.

    Attributes
    ----------
    name
        Of the file.
    kind
        What it was read as.
    findings
        In the order of the codes.
    unread
        Why it cannot be judged; empty: it was.
    """

    name: str
    kind: str
    findings: tuple[Finding, ...]
    unread: str = ""

    @property
    def codes(self) -> tuple[str, ...]:
        """Codes of the rules that are broken."""
        return tuple(finding.code for finding in self.findings)

    @property
    def refused(self) -> bool:
        """Whether a statement may not be made as it is, and nobody has overridden that."""
        return any(f.severity == "refuse" and not f.overridden for f in self.findings)

    @property
    def stamp(self) -> str:
        """Sentence that a figure with known findings carries; empty: there are none."""
        known = [f"{f.code} ({f.title.lower()})" for f in self.findings if f.overridden]
        return f"overridden: {', '.join(known)}" if known else ""

    def to_dict(self) -> dict[str, Any]:
        """Return everything as plain values."""
        return {
            "file": self.name,
            "kind": self.kind,
            "refused": self.refused,
            "unread": self.unread,
            "findings": [finding.to_dict() for finding in self.findings],
        }

    def __str__(self) -> str:
        if self.unread:
            return f"{self.name}: cannot be judged: {self.unread}"
        if not self.findings:
            return f"{self.name}: {self.kind}, nothing found"
        lines = [
            f"{self.name}: {f.code} {'overridden' if f.overridden else f.severity}: {f.title}:"
            f" {f.found}; say instead: {f.say}"
            for f in self.findings
        ]
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        from html import escape

        return f"<pre>{escape(str(self))}</pre>"


def lint(thing: Any, *, override: Sequence[str] | str = ()) -> LintReport:
    """Check one file or object against the rules of honesty (docs/honesty.md).

    Parameters
    ----------
    thing
        A path: a result, comparison, scaling study or any description (.json, .yaml), a study
        (.yaml), a table of anyone's (.csv, .tsv, .parquet), a figure (.svg, .png). Or a `Result`, a
        mapping, a list of rows, a data frame, or axes of matplotlib.
    override
        Codes of findings that are known; they no longer refuse.

    Raises
    ------
    ConfigError
        If a file cannot be read, or a code is unknown.
    """
    codes = [override] if isinstance(override, str) else list(override)
    known_codes(codes)
    evidence = evidence_of(thing)
    evidence = replace(evidence, published=tuple(_contradictions(evidence)))
    return LintReport(evidence.name, evidence.kind, findings_of(evidence, codes), evidence.unread)


def evidence_of(thing: Any) -> Evidence:  # noqa: PLR0911 - a kind of thing each
    """Return what a file or object states; see `lint`."""
    if isinstance(thing, str | Path):
        return _of_file(Path(thing))
    if isinstance(thing, Evidence):
        return thing
    if isinstance(thing, Result):
        return from_document(thing.to_dict(), repr(thing))
    if isinstance(thing, Study):
        return _of_study(thing, thing.name)
    if isinstance(thing, Mapping):
        return from_document(thing, "mapping")
    if isinstance(thing, list):
        return from_document(thing, "rows")
    for method, arguments in (("to_dicts", ()), ("to_dict", ("records",)), ("to_dict", ())):
        make = getattr(thing, method, None)  # of polars, of pandas, of ridgeline
        if make is None:
            continue
        try:
            return from_document(make(*arguments), type(thing).__name__)
        except TypeError:
            continue
    figure = getattr(thing, "get_figure", None)
    if figure is not None:
        from ridgeline.report.figures.embedded import record_of

        drawn = record_of(figure(root=True))
        return of_record(drawn, "figure", drawn["texts"])
    raise ConfigError(f"expected a file, a result, rows or axes, found {type(thing).__name__}")


def _of_file(path: Path) -> Evidence:
    name, suffix = str(path), path.suffix.lower()
    if suffix in FIGURES:
        return figure_evidence(path)
    if suffix in {".csv", ".tsv", ".txt"}:
        return _of_table(path)
    if suffix == ".parquet":
        return from_rows(plain_rows(path), name)
    if suffix == ".json":
        return from_document(read_json(path, MAX_RESULT_BYTES), name)
    if suffix in {".yaml", ".yml"}:
        return _of_yaml(path)
    raise ConfigError(
        "cannot be judged: allowed are .json, .yaml, .csv, .tsv, .parquet, .svg and .png", file=name
    )


def _of_table(path: Path) -> Evidence:
    """Read anyone's table: with lines of comment before it, and any usual separator."""
    name = str(path)
    lines = read_text(path, limit=MAX_RESULT_BYTES).splitlines()
    said: list[str] = []
    while lines and (not lines[0].strip() or _is_comment(lines)):
        said.append(lines.pop(0).lstrip("# ").strip())
    while lines and lines[-1].startswith("#"):
        said.append(lines.pop().lstrip("# ").strip())
    if not lines:
        raise ConfigError("there is no table in it", file=name)
    separator = max(_SEPARATORS, key=lines[0].count)
    rows = [row for _, row in parse_csv("\n".join(lines) + "\n", name, separator)]
    evidence = from_rows([{k.strip(): _cell(v) for k, v in row.items()} for row in rows], name)
    facts, texts = [], []
    for line in said:
        key, colon, value = line.partition(":")
        if colon and re.fullmatch(r"[\w /-]{1,40}", key):
            facts.append((key.strip(), value.strip()))
        if line:
            texts.append(line)
    return replace(evidence, facts=facts_of(dict(facts)), texts=tuple(texts))


def _is_comment(lines: Sequence[str]) -> bool:
    """Tell a line of comment from a header whose first column is called "# of GPUs"."""
    if not lines[0].startswith("#"):
        return False
    following = lines[1] if len(lines) > 1 else ""
    separator = max(_SEPARATORS, key=lines[0].count)
    is_header = (
        lines[0].count(separator) == following.count(separator) > 0
        and not following.startswith("#")
        and any(number(cell) is not None for cell in following.split(separator))
    )
    return not is_header


def _cell(text: str) -> Any:
    text = text.strip()
    if text.lower() in {"true", "false"}:
        return text.lower() == "true"
    return text


def _of_yaml(path: Path) -> Evidence:
    name = str(path)
    document = parse_yaml(read_text(path, limit=MAX_RESULT_BYTES), name)
    data = document.data
    kind = data.get("kind") if isinstance(data, Mapping) else None
    if kind == "study":
        return _of_study(load_study(path), name)
    from ridgeline.input_files import INPUT_KINDS, load

    if kind in INPUT_KINDS:
        load(name)  # a mistake in it is said
        return Evidence(name, "document", notes=(f"a file of kind {kind} makes no statement",))
    return from_document(data, name)


def _of_study(study: Study, name: str) -> Evidence:
    """Return what a study is going to state: its points, its columns, and its words."""
    fixed = {k: v for k, v in study.fixed.items() if not k.startswith("cluster.")}
    rows = []
    for values, _ in itertools.islice(study.points(), _MOST_POINTS):
        row = {**fixed, **values}
        plain = {k.removeprefix("plan."): v for k, v in row.items()}
        degrees = [plain[d] for d in _DEGREES if isinstance(plain.get(d), int)]
        kept = {k: v for k, v in row.items() if k.removeprefix("plan.") not in _DEGREES}
        if degrees:
            kept["devices"] = math.prod(degrees)
        rows.append(facts_of(kept))
    declared = dict.fromkeys(study.columns)
    facts = {"title": study.name, "description": study.description, "network": study.model,
             "cluster": study.cluster, **declared}  # fmt: skip
    return Evidence(name, "study", facts_of(facts), tuple(rows), simulated=True)


_SAME_TIME = 0.25


def _contradictions(evidence: Evidence) -> list[PublishedRun]:
    """Find rows that name a published run, with another number of devices in its time."""
    found = []
    systems = evidence.column("system")
    devices, times = evidence.column_numbers("devices"), _times_s(evidence)
    for i, system in enumerate(systems):
        if not isinstance(system, str) or devices[i] is None:
            continue
        for run in _published_runs(system):
            n, time_s = float(run["n_accel"]), float(run["time_s"])
            same_time = times[i] is not None and abs(times[i] / time_s - 1) <= _SAME_TIME  # type: ignore[operator]
            if same_time and devices[i] != n:
                others = [r for r in _published_runs(system) if float(r["n_accel"]) == devices[i]]
                if not others:
                    text = (
                        f"{devices[i]:g} devices are stated; published are {n:g} for the same time"
                        f" ({run['source']})"
                    )
                    found.append(PublishedRun(i + 1, system, text))
                    break
    return found


def _times_s(evidence: Evidence) -> list[float | None]:
    """Return the times of rows in seconds, by the unit in the name of the column."""
    found: list[float | None] = []
    for row in evidence.rows:
        one = next(
            (s for s in row if s.meaning.concept in {"time", "time_to_target"} and s.is_stated),
            None,
        )
        value = None if one is None else one.number
        if one is not None and value is not None:
            words = one.meaning.words
            scale = 60.0 if words & {"min", "minutes"} else 3600.0 if words & {"hours"} else (
                86400.0 if words & {"days"} else 1.0
            )  # fmt: skip
            has_unit = isinstance(one.value, str) and re.search(r"[a-z]", one.value.lower())
            value *= 1.0 if has_unit else scale
        found.append(value)
    return found


_ALIASES = {"preferred": "pfn", "chainermn": "pfn", "facebook": "goyal",
            "berkeley": "you"}  # fmt: skip


def _published_runs(system: str) -> list[dict[str, str]]:
    """Return the published training runs that a name speaks of."""
    words = set(re.findall(r"[a-z]{2,}", system.lower()))
    words |= {_ALIASES[word] for word in words if word in _ALIASES}
    found = []
    for row in _imagenet():
        named = set(re.findall(r"[a-z]{3,}", row["ref"].lower())) - _COMMON
        if named & words and row["time_s"] and row["n_accel"]:
            found.append(row)
    return found


_COMMON = frozenset({"baseline", "quoted", "google", "amazon", "corporation", "team",
                     "acceleration",
                     "dawnbench", "the", "you", "and"})  # fmt: skip


def _imagenet() -> list[dict[str, str]]:
    file = resources.files("ridgeline.study.validate").joinpath("data/imagenet.csv")
    return list(csv.DictReader(file.read_text("utf-8").splitlines()))
