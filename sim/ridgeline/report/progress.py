"""Progress of a long calculation: a bar on a terminal or in a notebook, else some lines."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from html import escape

from ridgeline.verbosity import is_quiet

Advance = Callable[[int], None]
"""Called with the number of parts that are done since the last call."""


@contextmanager
def progress_bar(title: str, total: int) -> Iterator[Advance]:
    """Show how many of `total` parts are done while a block runs.

    A bar is removed afterwards; lines, where standard error is a file or a pipe, stay.
    """
    if is_quiet():
        yield lambda count: None
    elif _in_notebook():
        yield from _notebook_bar(title, total)
    elif sys.stderr.isatty():
        yield from _terminal_bar(title, total)
    else:
        yield from _lines(title, total)


def bar_html(title: str, total: int, done: int) -> str:
    """Return a progress bar as HTML; nothing once all is done."""
    if done >= total:
        return ""
    name = escape(title)
    return (
        f'<progress value="{done}" max="{total}" aria-label="{name}"></progress> '
        f"{name}: {done} of {total}"
    )


def _in_notebook() -> bool:
    """Tell whether a notebook's kernel runs this."""
    ipython = sys.modules.get("IPython")
    shell = None if ipython is None else ipython.get_ipython()
    return type(shell).__name__ == "ZMQInteractiveShell"


def _notebook_bar(title: str, total: int) -> Iterator[Advance]:
    from IPython.display import (  # type: ignore[import-not-found,unused-ignore]
        HTML,
        display,
    )

    done = 0
    shown = display(HTML(bar_html(title, total, done)), display_id=True)

    def advance(count: int) -> None:
        nonlocal done
        done += count
        shown.update(HTML(bar_html(title, total, done)))

    yield advance


_EVERY_S = 30.0  # seconds between two lines


def _lines(title: str, total: int) -> Iterator[Advance]:
    done, said_s = 0, time.monotonic()

    def advance(count: int) -> None:
        nonlocal done, said_s
        done += count
        if done < total and (now_s := time.monotonic()) - said_s >= _EVERY_S:
            said_s = now_s
            print(f"ridgeline: {title}: {done:,} of {total:,}", file=sys.stderr, flush=True)

    yield advance


def _terminal_bar(title: str, total: int) -> Iterator[Advance]:
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
    with Progress(*columns, console=Console(file=sys.stderr), transient=True) as bar:
        task = bar.add_task(title, total=total)
        yield lambda count: bar.advance(task, count)
