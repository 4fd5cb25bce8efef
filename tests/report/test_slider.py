"""A slider shows one of its pictures, and the one that it is moved to."""

import base64
import re

import pytest
from matplotlib.figure import Figure

from ridgeline import RidgelineError, Slider


def drawn(height):
    figure = Figure(figsize=(1, 1))
    figure.subplots().bar([0], [height])
    return figure


def test_every_value_has_its_picture_and_one_is_shown():
    figures = {2: drawn(1), "4 <b>": drawn(2)}
    slider = Slider("batch", figures)
    html = slider._repr_html_()
    assert re.findall(r'<img alt="([^"]*)"', html) == ["2", "4 &lt;b&gt;"]
    assert len(re.findall(r" hidden>", html)) == 1
    assert 'max="1" value="0"' in html
    pictures = [base64.b64decode(data) for data in re.findall(r"base64,([^\"]*)", html)]
    assert all(picture.startswith(b"\x89PNG") for picture in pictures)
    assert pictures[0] != pictures[1]
    assert html == Slider("batch", figures)._repr_html_()
    assert repr(slider) == "<Slider over batch: 2, 4 <b>>"


def test_axes_are_taken_with_their_figure_and_nothing_is_refused():
    axes = drawn(1).axes[0]
    assert Slider("x", {1: axes}).pictures == Slider("x", {1: axes.figure}).pictures
    with pytest.raises(RidgelineError, match="no picture"):
        Slider("x", {})
