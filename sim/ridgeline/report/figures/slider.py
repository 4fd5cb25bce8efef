"""A slider over pictures that were drawn before: it needs no kernel, and pages keep it."""

from __future__ import annotations

import base64
import io
from collections.abc import Mapping
from html import escape
from typing import TYPE_CHECKING

from ridgeline.errors import RidgelineError
from ridgeline.report.figures.style import saving

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_DPI = 110
_MOVE = (
    "const box = this.closest('div'), shown = box.querySelectorAll('img');"
    "shown.forEach((picture, i) => picture.hidden = i != this.value);"
    "box.querySelector('output').value = shown[this.value].alt"
)


class Slider:
    """Pictures that a slider chooses from.

    Parameters
    ----------
    name
        What is varied, with its unit.
    pictures
        A figure, or axes of one, for each value, in order.

    Raises
    ------
    RidgelineError
        If there is no picture.
    """

    def __init__(self, name: str, pictures: Mapping[object, Axes | Figure]) -> None:
        if not pictures:
            raise RidgelineError(f"the slider {name!r} has no picture")
        self.name = name
        self.pictures = {str(value): _png(drawn) for value, drawn in pictures.items()}

    def __repr__(self) -> str:
        return f"<Slider over {self.name}: {', '.join(self.pictures)}>"

    def _repr_html_(self) -> str:
        first = next(iter(self.pictures))
        images = "".join(
            f'<img alt="{escape(value)}" src="data:image/png;base64,{data}" '
            f'style="max-width:100%"{"" if value == first else " hidden"}>'
            for value, data in self.pictures.items()
        )
        return (
            f"<div><label>{escape(self.name)}: <output>{escape(first)}</output> "
            f'<input type="range" min="0" max="{len(self.pictures) - 1}" value="0" '
            f'style="width:20em;vertical-align:middle" oninput="{_MOVE}"></label><br>{images}</div>'
        )


def _png(drawn: Axes | Figure) -> str:
    figure = drawn.get_figure(root=True)
    assert figure is not None  # axes that were removed from their figure
    stream = io.BytesIO()
    with saving():
        figure.savefig(stream, format="png", dpi=_DPI, metadata={"Software": None})
    return base64.b64encode(stream.getvalue()).decode()
