"""Tables of measured kernels: suites read them as they are, so that nothing is translated."""

from __future__ import annotations

from ridgeline.study.validate import measured
from ridgeline.study.validate.rows import MeasuredRow
from ridgeline.study.validate.suites import find_suite

IMPORTS = False
READS = measured.COLUMNS
MORE = {
    suite: tuple(name for name in find_suite(suite).COLUMNS if name not in READS)
    for suite in (
        "attention", "moe", "elementwise", "norm", "softmax", "linear-attention", "cast",
        "expert-all-to-all", "kernel-power", "model-latency",
    )
}  # fmt: skip


def normal(_: MeasuredRow) -> dict[str, str]:
    """Return nothing: the row is read as it stands."""
    return {}
