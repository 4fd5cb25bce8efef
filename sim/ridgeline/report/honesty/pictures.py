"""Evidence from figures: their embedded record, or what is readable of an SVG that others made."""

from __future__ import annotations

import json
import re
import struct
import warnings
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from ridgeline.bounded_files import MAX_RESULT_BYTES, opened, read_text
from ridgeline.errors import ConfigError
from ridgeline.report.figures.embedded import RECORD, VERSION
from ridgeline.report.honesty.documents import result_facts
from ridgeline.report.honesty.evidence import Evidence, Row, facts_of, number

SUFFIXES = (".svg", ".png")
_SVG, _DC = "{http://www.w3.org/2000/svg}", "{http://purl.org/dc/elements/1.1/}"
MAX_PIXELS = 2**26
_PNG = b"\x89PNG\r\n\x1a\n"
_LEAST_TICKS = 3
_CONTENT = {"title", "series", "written", "patches"}
"""Of the record of axes: what they show, which is no statement of how it is shown."""


def read_record(path: str | Path) -> Mapping[str, Any] | None:
    """Return the record that ridgeline embedded in a figure, None where there is none.

    Raises
    ------
    ConfigError
        If the file is no SVG or PNG, or cannot be read, or a later ridgeline wrote its record.
    """
    record = _record(_descriptions(path))
    if record is not None and record[RECORD] not in range(1, VERSION + 1):
        raise ConfigError(
            f"form {record[RECORD]!r:.40} of the record is not known (known: 1 to {VERSION}): a"
            " later ridgeline wrote it, which can read it",
            file=str(path),
            field=RECORD,
        )
    return record


def figure_evidence(path: str | Path) -> Evidence:
    """Return what a figure states: by its record, by its text, or nothing where it is pixels alone.

    Raises
    ------
    ConfigError
        If the file is no SVG or PNG, or cannot be read.
    """
    name = str(path)
    described = _descriptions(path)
    record = _record(described)
    if Path(path).suffix.lower() == ".svg":
        drawn = _drawing(_tree(path))
        if record is not None:
            visible = drawn.texts or tuple(record.get("texts", ()))
            return of_record(record, name, visible)
        if not drawn.texts and not described:
            return Evidence(name, "figure", unread="its text is drawn as outlines")
        texts = (*drawn.texts, *described)
        return Evidence(name, "figure", facts_of(drawn.facts()), texts=texts)
    if record is not None:
        return of_record(record, name, tuple(record.get("texts", ())))
    if described:
        return Evidence(name, "figure", texts=tuple(described))
    return Evidence(
        name, "figure", unread="it has no record of what it shows, and pixels are not read"
    )


def of_record(record: Mapping[str, Any], name: str, visible: Sequence[str]) -> Evidence:
    """Return the evidence of a figure that ridgeline drew; `visible` is what stands in it now."""
    facts: list[Row] = []
    axes = record.get("axes")
    if isinstance(axes, list) and axes and isinstance(axes[0], Mapping):
        facts.append(facts_of({k: v for k, v in axes[0].items() if k not in _CONTENT}))
    result = record.get("result")
    if isinstance(result, Mapping) and isinstance(result.get("manifest"), Mapping):
        facts.append(result_facts(result))
    stated = record.get("states")
    if isinstance(stated, Mapping):
        facts.append(facts_of(dict(stated)))
    together = tuple(one for row in facts for one in row)
    return Evidence(name, "figure", together, simulated=bool(record.get("simulated")),
                    texts=tuple(str(text) for text in visible))  # fmt: skip


def _record(described: Sequence[str]) -> Mapping[str, Any] | None:
    for text in described:
        if RECORD not in text:
            continue
        try:
            read = json.loads(text)
        except ValueError:
            continue
        if isinstance(read, dict) and RECORD in read:
            return read
    return None


def _descriptions(path: str | Path) -> list[str]:
    """Return the texts in a figure's metadata."""
    suffix = Path(path).suffix.lower()
    if suffix not in SUFFIXES:
        raise ConfigError(
            f"figures are read from {' and '.join(SUFFIXES)}, found {suffix!r}", file=str(path)
        )
    if suffix == ".png":
        return _png_texts(path)
    tree = _tree(path)
    tags = (f"{_DC}description", f"{_DC}title", f"{_SVG}desc", f"{_SVG}title")
    texts = ("".join(found.itertext()).strip() for tag in tags for found in tree.iter(tag))
    return [text for text in texts if text]


def _png_texts(path: str | Path) -> list[str]:
    with opened_png(path) as image:
        return [str(v) for k, v in image.info.items() if isinstance(v, str) and k != "Software"]


@contextmanager
def opened_png(path: str | Path) -> Iterator[Any]:
    """Open a PNG file of at most `MAX_PIXELS` as an image of Pillow, read to its end.

    Raises
    ------
    ConfigError
        If it cannot be read, is no whole PNG file, or is larger.
    """
    from PIL import Image

    file = str(path)
    with opened(path) as stream:
        if stream.read(8) != _PNG:
            raise ConfigError("this is not a PNG file", file=file)
        stream.seek(0)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # of Pillow, about less than `MAX_PIXELS`
                image = Image.open(stream, formats=["PNG"])
                if image.width * image.height > MAX_PIXELS:
                    raise ConfigError(
                        f"{image.width} x {image.height} pixels; allowed: {MAX_PIXELS}", file=file
                    )
                image.load()
        except (OSError, ValueError, SyntaxError, struct.error, zlib.error) as error:
            raise ConfigError(f"this is not a whole PNG file: {error}", file=file) from error
        except Image.DecompressionBombError as error:
            raise ConfigError(f"more than {MAX_PIXELS} pixels", file=file) from error
        with image:
            yield image


def _tree(path: str | Path) -> ElementTree.Element:
    text = read_text(path, limit=MAX_RESULT_BYTES)
    if "<!ENTITY" in text:
        raise ConfigError("XML entities are not read", file=str(path))
    builder = ElementTree.TreeBuilder(insert_comments=True)
    try:
        root = ElementTree.fromstring(text, ElementTree.XMLParser(target=builder))
    except ElementTree.ParseError as error:
        line, column = error.position
        raise ConfigError(
            f"not SVG: {str(error).split(':')[0]}", file=str(path), line=line, column=column + 1
        ) from error
    if root.tag not in {f"{_SVG}svg", "svg"}:
        raise ConfigError(f"not SVG: the root is {root.tag!r}", file=str(path), line=1)
    return root


@dataclass
class _Axis:
    """Labels of the ticks of an axis with their places, and its name."""

    ticks: list[tuple[float, float]] = field(default_factory=list)
    powers: bool = False
    label: str = ""

    @property
    def scale(self) -> str:
        """Return "log" or "linear", or "" where too few ticks tell."""
        if self.powers:
            return "log"
        ticks = sorted(set(self.ticks), key=lambda tick: tick[1])
        if len(ticks) < _LEAST_TICKS or ticks[0][1] <= 0:
            return "linear" if len(ticks) > 1 else ""
        places = [place for place, _ in ticks]
        span = places[-1] - places[0]
        if not span:
            return ""
        import math

        values = [value for _, value in ticks]
        logs = [math.log(value) for value in values]
        linear, log = (
            max(
                abs((p - places[0]) / span - (v - of[0]) / ((of[-1] - of[0]) or 1.0))
                for p, v in zip(places, of, strict=True)
            )
            for of in (values, logs)
        )
        return "log" if log < linear else "linear"

    def at(self, place: float) -> float | None:
        """Return the value at a place, along a linear axis."""
        ticks = sorted(set(self.ticks))
        if len(ticks) < 2 or ticks[0][0] == ticks[-1][0]:
            return None
        (p, a), (q, b) = ticks[0], ticks[-1]
        return a + (place - p) / (q - p) * (b - a)


@dataclass
class _Drawing:
    """What is read of an SVG."""

    x: _Axis = field(default_factory=_Axis)
    y: _Axis = field(default_factory=_Axis)
    ends: tuple[float, float] | None = None
    bars: bool = False
    bands: bool = False
    panels: int = 0
    linear_panel: bool = False
    texts: tuple[str, ...] = ()

    def facts(self) -> dict[str, Any]:
        """Return what the rules ask of a figure."""
        found: dict[str, Any] = {
            "x_label": self.x.label or None, "y_label": self.y.label or None,
            "x_scale": self.x.scale or None, "y_scale": self.y.scale or None,
        }  # fmt: skip
        if self.y.scale == "linear":
            values = [value for _, value in self.y.ticks]
            low, high = min(values, default=None), max(values, default=None)
            if self.ends is not None:
                ends = [v for end in self.ends if (v := self.y.at(end)) is not None]
                low, high = (min(ends), max(ends)) if ends else (low, high)
            if low is not None and high is not None:
                close = 1e-3 * (high - low)
                found["y_limits"] = [0.0 if abs(low) <= close else low, high]
        if self.bars:
            found["plot_kind"] = "bar"
        if self.bands:
            found["error_bars"] = True
        if self.y.scale == "log":
            found["linear_inset"] = self.linear_panel
        return {k: v for k, v in found.items() if v is not None}


def _drawing(root: ElementTree.Element) -> _Drawing:
    """Read axes and text of an SVG: of matplotlib by its groups, of others by where text stands."""
    axes = [g for g in root.iter(f"{_SVG}g") if re.fullmatch(r"axes_\d+", g.get("id", ""))]
    if axes:
        return _of_matplotlib(root, axes)
    return _of_texts(root)


def _said(element: ElementTree.Element) -> list[str]:
    """Return the texts in an element: letters, or matplotlib's comments beside outlines."""
    found = []
    for part in element.iter():
        if callable(part.tag):
            text = (part.text or "").strip()
        elif part.tag == f"{_SVG}text":
            text = "".join(part.itertext()).strip()
        else:
            continue
        if text:
            found.append(_plain(text))
    return found


def _plain(text: str) -> str:
    """Write a formula of a tick as text: 10^{2} is 1e2."""
    text = re.sub(r"\\math(?:default|regular|rm)\{(.*)\}", r"\1", text.strip("$ "))
    text = text.replace("−", "-").replace("\u2212", "-")
    return re.sub(r"^(?:(\d+(?:\.\d+)?)\s*\\times\s*)?10\^\{?(-?\d+)\}?$", _power, text)


def _power(found: re.Match[str]) -> str:
    return f"{found[1] or 1}e{found[2]}"


def _of_matplotlib(root: ElementTree.Element, axes: list[ElementTree.Element]) -> _Drawing:
    made = _Drawing(panels=len(axes))
    for i, panel in enumerate(axes):
        x, y = (_axis(panel, which, which == "matplotlib.axis_") for which in ("x", "y"))
        inner = [g for g in panel.iter(f"{_SVG}g") if g.get("id", "").startswith("axes_")]
        if i == 0:
            made.x, made.y, made.ends = x, y, _ends(panel)
            ids = [g.get("id", "") for g in panel.iter(f"{_SVG}g") if g not in inner]
            patches = sum(name.startswith("patch_") for name in ids)
            made.bars = patches > 1 + 4 + 1
            made.bands = any("Collection" in name for name in ids)
        elif y.scale == "linear":
            made.linear_panel = True
    made.texts = tuple(_said(root))
    return made


def _axis(panel: ElementTree.Element, which: str, _: bool = False) -> _Axis:
    """Read the axis whose ticks are called ``xtick_1`` or ``ytick_1``."""
    made = _Axis()
    group = next(
        (g for g in panel.iter(f"{_SVG}g")
         if g.get("id", "").startswith("matplotlib.axis_")
         and any(t.get("id", "").startswith(f"{which}tick_") for t in g)),
        None,
    )  # fmt: skip
    if group is None:
        return made
    for part in group:
        texts = _said(part)
        if not part.get("id", "").startswith(f"{which}tick_"):
            made.label = made.label or " ".join(texts)
            continue
        mark = next((u for u in part.iter(f"{_SVG}use") if u.get(which) is not None), None)
        value = number(texts[0]) if texts else None
        if mark is not None and value is not None:
            made.ticks.append((float(mark.get(which, "0")), value))
            made.powers = made.powers or "e" in texts[0]
    return made


def _ends(panel: ElementTree.Element) -> tuple[float, float] | None:
    """Return where the frame of axes begins and ends, from its background."""
    for patch in panel:
        if patch.get("id", "").startswith("patch_"):
            path = next(patch.iter(f"{_SVG}path"), None)
            numbers = [
                float(x)
                for x in re.findall(r"-?\d+(?:\.\d+)?", "" if path is None else path.get("d", ""))
            ]
            ups = numbers[1::2]
            return (max(ups), min(ups)) if ups else None
    return None


def _of_texts(root: ElementTree.Element) -> _Drawing:
    """Read the SVG of any program: columns and lines of numbers are the ticks of axes."""
    made = _Drawing(panels=1)
    placed = list(_placed(root, 0.0, 0.0))
    made.texts = tuple(text for text, _, _, _ in placed)
    values = [(number(_plain(text)), text, x, y) for text, x, y, _ in placed]
    ticks = [
        (v, t, x, y)
        for v, t, x, y in values
        if v is not None and re.match(r"^[\d.,+e^-]+\s?[%kM]?$", _plain(t))
    ]
    column = _largest_group(ticks, 2)
    line = _largest_group([tick for tick in ticks if tick not in column], 3)
    made.y.ticks = [(y, v) for v, _, _, y in column]
    made.x.ticks = [(x, v) for v, _, x, _ in line]
    turned = [text for text, _, _, is_turned in placed if is_turned]
    made.y.label = turned[0] if turned else ""
    if line:
        below = [
            (y, text) for text, _, y, is_turned in placed
            if not is_turned and y > max(t[3] for t in line) and number(text) is None
        ]  # fmt: skip
        made.x.label = min(below)[1] if below else ""
    return made


def _largest_group(
    ticks: list[tuple[float, str, float, float]], place: int
) -> list[tuple[float, str, float, float]]:
    """Return the most ticks that stand at the same place across (2) or up (3)."""
    groups: dict[int, list[tuple[float, str, float, float]]] = {}
    for tick in ticks:
        groups.setdefault(round(float(tick[place]) / 3), []).append(tick)
    best = max(groups.values(), key=len, default=[])
    return best if len(best) >= _LEAST_TICKS else []


def _placed(
    element: ElementTree.Element, dx: float, dy: float
) -> Iterator[tuple[str, float, float, bool]]:
    """Yield every text with its place, and whether it is turned."""
    for part in element:
        if callable(part.tag):
            continue
        transform = part.get("transform", "")
        moved = re.search(r"translate\(\s*(-?[\d.]+)[\s,]*(-?[\d.]+)?", transform)
        x = dx + (float(moved[1]) if moved else 0.0)
        y = dy + (float(moved[2] or 0.0) if moved else 0.0)
        if part.tag in {f"{_SVG}text", "text"}:
            text = " ".join("".join(part.itertext()).split())
            if text:
                yield (
                    text, x + _length(part.get("x")), y + _length(part.get("y")),
                    bool(re.search(r"rotate\(\s*-?(?:90|270)", transform)),
                )  # fmt: skip
        else:
            yield from _placed(part, x, y)


def _length(text: str | None) -> float:
    found = re.match(r"-?[\d.]+", text or "")
    try:
        return float(found[0]) if found else 0.0
    except ValueError:
        return 0.0
