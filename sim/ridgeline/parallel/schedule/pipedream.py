"""PipeDream: 1F1B that never flushes; each micro-batch sees one version of a stage's weights."""

from __future__ import annotations

from ridgeline.parallel.schedule import one_f_one_b
from ridgeline.parallel.schedule.slots import PipelineSchedule

SCHEDULE = PipelineSchedule(
    name="pipedream",
    source="Narayanan et al., PipeDream, SOSP 2019, sections 3.2 and 3.3 (weight stashing)",
    order=one_f_one_b.order,
    bubble_s=one_f_one_b.bubble_s,
    in_flight=one_f_one_b.in_flight,
    weight_versions=one_f_one_b.in_flight,
    flushes=False,
)
