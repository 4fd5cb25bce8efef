"""Panels of a tiled matrix product through a cache that evicts what is oldest, chunk by chunk."""

from __future__ import annotations

from collections import OrderedDict


def misses(
    down: int,
    across: int,
    chunks: int,
    a_chunk: int,
    b_chunk: int,
    cache: int,
    by_rows: bool,
    group: int | None = None,
) -> tuple[int, int]:
    """Bytes of A and of B that miss, for tiles in rows or in columns; chunks cut panels along k.

    Rows go through a group of columns before the next group begins, columns through one of rows.
    """
    held: OrderedDict[tuple[str, int, int], int] = OrderedDict()
    missed = {"a": 0, "b": 0}
    step = group or max(down, across)
    rows = [
        (i, j)
        for first in range(0, across, step)
        for i in range(down)
        for j in range(first, min(first + step, across))
    ]
    columns = [
        (i, j)
        for first in range(0, down, step)
        for j in range(across)
        for i in range(first, min(first + step, down))
    ]
    for i, j in rows if by_rows else columns:
        for k in range(chunks):
            for name, panel, size in (("a", i, a_chunk), ("b", j, b_chunk)):
                key = (name, panel, k)
                if key in held:
                    held.move_to_end(key)
                    continue
                missed[name] += size
                held[key] = size
                while sum(held.values()) > cache:
                    held.popitem(last=False)
    return missed["a"], missed["b"]
