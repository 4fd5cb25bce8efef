"""Small drawings as inline SVG for notebooks: boxes, lines and words, without scripts or links.

Words and lines outside of boxes take the colour of the text around them, and boxes are opaque, so
that they can be read in light and dark notebooks.
"""

from __future__ import annotations

from html import escape

from ridgeline.report.figures.style import INK

FONT_PX = 11
_CHARACTER_PX = 0.56 * FONT_PX  # mean width of a character of a sans-serif font


def drawing(width: float, height: float, title: str, *parts: str) -> str:
    """Return an SVG of a size in pixels; `title` is what it says to those who cannot see it."""
    return (
        f'<svg width="{width:.0f}" height="{height:.0f}" viewBox="0 0 {width:.0f} {height:.0f}" '
        f'role="img" aria-label="{escape(title)}" font-size="{FONT_PX}" fill="currentColor" '
        f'style="max-width:100%;height:auto">{"".join(parts)}</svg>'
    )


def block(x: float, y: float, width: float, height: float, colour: str, *lines: str) -> str:
    """Return a tinted box with lines of text in its middle; text that is too long is cut."""
    most = max(1, int((width - 6) / _CHARACTER_PX))
    shown = [line if len(line) <= most else f"{line[: most - 1]}…" for line in lines]
    first = y + height / 2 - (len(lines) - 1) * 7.5 + 4
    words = (text(x + width / 2, first + 15 * i, line) for i, line in enumerate(shown))
    return (
        f'<g><title>{escape(" ".join(lines))}</title><rect x="{x:.1f}" y="{y:.1f}" '
        f'width="{width:.1f}" height="{height:.1f}" rx="3" fill="{_pale(colour)}" '
        f'stroke="{colour}"></rect><g fill="{INK}">{"".join(words)}</g></g>'
    )


def text(x: float, y: float, words: str, anchor: str = "middle") -> str:
    """Return a line of text, escaped."""
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(words)}</text>'


def line(x0: float, y0: float, x1: float, y1: float, title: str = "", width: float = 1.2) -> str:
    """Return a line; `title` is shown when a pointer rests on it."""
    said = f"<title>{escape(title)}</title>" if title else ""
    return (
        f'<line x1="{x0:.1f}" y1="{y0:.1f}" x2="{x1:.1f}" y2="{y1:.1f}" stroke="currentColor" '
        f'stroke-opacity="0.6" stroke-width="{width:.1f}">{said}</line>'
    )


def _pale(colour: str) -> str:
    """Return a quarter of a colour, written #rrggbb, on white."""
    parts = (int(colour[i : i + 2], 16) for i in (1, 3, 5))
    return "#" + "".join(f"{255 - (255 - part) // 4:02x}" for part in parts)
