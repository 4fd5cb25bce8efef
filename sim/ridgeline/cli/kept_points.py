"""Points of a sweep or a search while they are simulated: kept ones, progress, interruption."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING

from ridgeline.report.progress import Advance, progress_bar
from ridgeline.verbosity import is_quiet

if TYPE_CHECKING:
    from ridgeline.study.store import RowStore


def add_points(
    store: RowStore,
    name: str,
    most: int,
    run: Callable[[Advance], object],
    *,
    kept: bool,
) -> bool:
    """Simulate the points that a store lacks, and return whether that came to its end.

    Parameters
    ----------
    name, most
        Of the study, and how many points there are at most, for the line of progress.
    run
        Simulates, and tells its argument how many points are done.
    kept
        Whether the store is a file, which another call goes on with after an interruption.
    """
    if len(store) and not is_quiet():
        print(f"ridgeline: {len(store)} points are in {store.path} already", file=sys.stderr)
    try:
        with progress_bar(name, most) as advance:
            run(advance)
    except KeyboardInterrupt:
        where = f"; {len(store)} points are kept in {store.path}" if kept else ""
        print(f"ridgeline: interrupted{where}", file=sys.stderr)
        return False
    return True
