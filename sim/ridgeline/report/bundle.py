"""Everything of a result in one folder: figures, trace and numbers."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

from ridgeline.report.figures.result import draw, save
from ridgeline.report.files import make_folder, replacing
from ridgeline.report.perfetto import write_trace

if TYPE_CHECKING:
    from ridgeline.report.result import Result

FIGURES = ("roofline", "timeline", "energy")
NUMBERS = ("trace.json", "ledger.csv", "result.json")


def write_bundle(result: Result, folder: str | Path) -> list[Path]:
    """Write figures, trace and numbers of a result to a folder, which is made if needed.

    All files are written under temporary names first and renamed when the last one is complete:
    if anything fails, nothing in the folder changes.

    Returns
    -------
    list of Path
        The files: ``roofline.png``, ``timeline.png``, ``energy.png``, ``trace.json``,
        ``ledger.csv`` and ``result.json``.

    Raises
    ------
    ConfigError
        If the folder or a file cannot be written.
    """
    folder = make_folder(folder)
    paths = [folder / name for name in (*(f"{kind}.png" for kind in FIGURES), *NUMBERS)]
    with ExitStack() as files:
        *drawings, trace, ledger, numbers = [files.enter_context(replacing(path)) for path in paths]
        for kind, drawing in zip(FIGURES, drawings, strict=True):
            save(draw(kind, result), drawing)
        write_trace(result, trace)
        result.ledger().write(ledger)
        result.to_json(numbers)
    return paths
