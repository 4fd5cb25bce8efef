"""How far a study is, beside the answer: a bar on a terminal, a bar in a notebook, else nothing."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from html import escape
from typing import Any

from ridgeline.verbosity import is_quiet

_EVERY_S = 0.2
Advance = Callable[[int], None]


@contextmanager
def study_progress(name: str, total: int) -> Iterator[Advance]:
    """Give a function that is told how many more points are done.

    The bar goes when the block ends. Nothing is shown if standard error is no terminal and this is
    no notebook, or where nothing is to be said (`verbosity`).
    """
    handle = None if is_quiet() else _notebook_handle()
    if handle is not None:
        with _in_notebook(handle, name, total) as advance:
            yield advance
    else:
        with _on_terminal(name, total) as advance:
            yield advance


@contextmanager
def _on_terminal(name: str, total: int) -> Iterator[Advance]:
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        ProgressColumn,
        Task,
        TextColumn,
        TimeRemainingColumn,
    )
    from rich.text import Text

    class Rate(ProgressColumn):
        def render(self, task: Task) -> Text:
            speed = task.finished_speed or task.speed
            return Text("" if speed is None else f"{speed:,.1f}/s")

    columns = (
        TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn(), Rate(),
        TimeRemainingColumn(),
    )  # fmt: skip
    screen = Console(file=sys.stderr, force_jupyter=False)
    with Progress(*columns, console=screen, transient=True, disable=is_quiet()) as bar:
        task = bar.add_task(name, total=total)
        yield lambda count: bar.advance(task, count)


def _notebook_handle() -> Any:
    """Return a display of the notebook that this runs in, or None."""
    if "IPython" not in sys.modules:  # nobody runs a notebook without it
        return None
    from IPython import get_ipython  # type: ignore[import-not-found,unused-ignore]

    shell = get_ipython()
    if shell is None or getattr(shell, "kernel", None) is None:
        return None
    from IPython.display import HTML, display  # type: ignore[import-not-found,unused-ignore]

    return display(HTML(""), display_id=True)


@contextmanager
def _in_notebook(handle: Any, name: str, total: int) -> Iterator[Advance]:
    from IPython.display import HTML

    began = time.monotonic()
    done, shown = 0, 0.0

    def advance(count: int) -> None:
        nonlocal done, shown
        done += count
        now = time.monotonic()
        if now - shown >= _EVERY_S or done >= total:
            shown = now
            handle.update(HTML(bar_html(name, done, total, now - began)))

    try:
        yield advance
    finally:
        handle.update(HTML(""))


def bar_html(name: str, done: int, total: int, elapsed_s: float) -> str:
    """Return a bar with what is done, how fast, and how long the rest takes at that rate."""
    said = f"{escape(name)}: {done:,} of {total:,} points"
    if done and elapsed_s > 0:
        left_s = elapsed_s / done * (total - done)
        said += f", {done / elapsed_s:,.1f} a second, {left_s:,.0f} s left"
    return f'<progress value="{done}" max="{total}"></progress> <span>{said}</span>'
