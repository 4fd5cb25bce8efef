"""Stamps a figure's file with the rules that its author has overridden."""

from __future__ import annotations

import io
import re
from html import escape
from pathlib import Path

from ridgeline.bounded_files import MAX_RESULT_BYTES, read_text
from ridgeline.errors import ConfigError
from ridgeline.report.files import replacing, write_text
from ridgeline.report.honesty.pictures import SUFFIXES, opened_png

_SIZE_PT, _BAND_PT = 9.0, 16.0
_INK = "#b00020"


def stamp_figure(path: str | Path, out: str | Path, stamp: str) -> None:
    """Write a copy of a figure with a line of text below it; its record stays.

    Raises
    ------
    ConfigError
        If a file cannot be read or written, or is neither SVG nor PNG.
    """
    suffixes = {Path(path).suffix.lower(), Path(out).suffix.lower()}
    if len(suffixes) > 1 or not suffixes <= set(SUFFIXES):
        raise ConfigError(f"both files must be {' or both '.join(SUFFIXES)}", file=str(out))
    if suffixes == {".svg"}:
        write_text(out, _stamped_svg(read_text(path, limit=MAX_RESULT_BYTES), stamp, str(path)))
        return
    raw = _stamped_png(path, stamp)
    with replacing(out) as temporary:
        temporary.write_bytes(raw)


def _stamped_svg(text: str, stamp: str, file: str) -> str:
    """Add a band below an SVG; its size and its view grow by it."""
    root = re.search(r"<svg\b[^>]*>", text)
    if root is None:
        raise ConfigError("not SVG: there is no element svg", file=file)
    head = root[0]
    view = re.search(r'viewBox="([^"]+)"', head)
    height = re.search(r'\bheight="([\d.]+)([a-z%]*)"', head)
    if view is not None:
        x, y, width, high = (float(part) for part in re.split(r"[\s,]+", view[1].strip()))
    else:
        sized = re.search(r'\bwidth="([\d.]+)', head)
        if sized is None or height is None:
            raise ConfigError("not SVG: it has no size", file=file)
        x, y, width, high = 0.0, 0.0, float(sized[1]), float(height[1])
    band = _BAND_PT
    new = head
    if view is not None:
        new = new.replace(view[0], f'viewBox="{x:g} {y:g} {width:g} {high + band:g}"')
    if height is not None and height[2] != "%":
        grown = float(height[1]) * (high + band) / high
        new = new.replace(height[0], f'height="{grown:g}{height[2]}"')
    line = (
        f'<g id="override"><rect x="{x:g}" y="{y + high:g}" width="{width:g}" height="{band:g}"'
        f' fill="#ffffff"/><text x="{x + 6:g}" y="{y + high + 11:g}" font-size="{_SIZE_PT:g}"'
        f' font-family="DejaVu Sans, sans-serif" fill="{_INK}">{escape(stamp)}</text></g>'
    )
    end = text.rfind("</svg>")
    return text[: root.start()] + new + text[root.end() : end] + line + "\n" + text[end:]


def _stamped_png(path: str | Path, stamp: str) -> bytes:
    """Add a band below a PNG, and keep its texts."""
    from matplotlib import font_manager
    from PIL import Image, ImageDraw, ImageFont, PngImagePlugin

    with opened_png(path) as image:
        info: dict[str, str] = {
            k: v for k, v in image.info.items() if isinstance(k, str) and isinstance(v, str)
        }
        picture = image.convert("RGB")
        dpi = image.info.get("dpi")
    scale = (dpi[0] if dpi else 100.0) / 72.0
    font = ImageFont.truetype(font_manager.findfont("DejaVu Sans"), round(_SIZE_PT * scale))
    probe = ImageDraw.Draw(picture)
    lines, words = [""], stamp.split()
    for word in words:
        longer = f"{lines[-1]} {word}".strip()
        if lines[-1] and probe.textlength(longer, font=font) > picture.width - 12 * scale:
            lines.append(word)
        else:
            lines[-1] = longer
    band = round(_BAND_PT * scale)
    made = Image.new("RGB", (picture.width, picture.height + band * len(lines)), "#ffffff")
    made.paste(picture, (0, 0))
    draw = ImageDraw.Draw(made)
    for i, line in enumerate(lines):
        at = (6 * scale, picture.height + band * i + 2 * scale)
        draw.text(at, line, font=font, fill=_INK)
    texts = PngImagePlugin.PngInfo()
    for key, value in info.items():
        texts.add_text(key, value)
    stream = io.BytesIO()
    made.save(stream, "PNG", pnginfo=texts, **({"dpi": dpi} if dpi else {}))
    return stream.getvalue()
