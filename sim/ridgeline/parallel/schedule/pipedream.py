"""PipeDream: 1F1B that never flushes; each micro-batch sees one version of a stage's weights."""

from __future__ import annotations

from ridgeline.parallel.schedule.one_f_one_b import bubble_s, in_flight, one_f_one_b
from ridgeline.parallel.schedule.slots import schedule

PIPEDREAM = schedule(
    "pipedream",
    source="Narayanan et al., PipeDream, SOSP 2019, sections 3.2 and 3.3 (weight stashing)",
    bubble_s=bubble_s,
    in_flight=in_flight,
    weight_versions=in_flight,
    flushes=False,
)(one_f_one_b.order)
