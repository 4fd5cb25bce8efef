"""Correlation of the residuals of one convolution at two batches on one device.

    ridgeline validate conv --json --rows > conv.json
    python benchmarks/estimate_ratio_correlation.py conv.json

It says how much of the scatter of kernels cancels in the ratio of two steps that differ in their
batch (`ridgeline.report.uncertainty.paired.BATCH_CORRELATION`).
"""

from __future__ import annotations

import itertools
import json
import math
import re
import statistics
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any


def pairs_of(rows: list[dict[str, Any]]) -> list[tuple[float, float]]:
    """Return log residuals of one convolution at two batches, less the median of their class."""
    known = [row for row in rows if not row["skipped"] and row["predicted"]]
    residual = {id(row): math.log(row["measured"] / row["predicted"]) for row in known}
    of_class = defaultdict(list)
    for row in known:
        of_class[row["group"]].append(residual[id(row)])
    typical = {group: statistics.median(values) for group, values in of_class.items()}
    by_shape: dict[tuple[str, str], dict[int, list[float]]] = defaultdict(lambda: defaultdict(list))
    for row in known:
        command = re.match(r"ridgeline conv (\d+) (.*) --quantity", row["command"])
        if command:
            shape = row["source"].split(" ")[0], command[2]
            by_shape[shape][int(command[1])].append(residual[id(row)] - typical[row["group"]])
    return [
        (statistics.mean(of[a]), statistics.mean(of[b]))
        for of in by_shape.values()
        for a, b in itertools.combinations(sorted(of), 2)
    ]


def main() -> None:
    """Print the correlation, and the scatter of one residual and of the difference of two."""
    rows = json.loads(Path(sys.argv[1]).read_text("utf-8"))["rows"]
    pairs = pairs_of(rows)
    squares = [sum(pair[k] ** 2 for pair in pairs) for k in (0, 1)]
    correlation = sum(a * b for a, b in pairs) / math.sqrt(squares[0] * squares[1])
    one = math.sqrt(sum(squares) / 2 / len(pairs))
    difference = math.sqrt(sum((a - b) ** 2 for a, b in pairs) / len(pairs))
    print(f"{len(pairs)} pairs: correlation {correlation:.3f}")
    print(f"scatter of one {one:.3f}, of the difference of two {difference:.3f}")


if __name__ == "__main__":
    main()
