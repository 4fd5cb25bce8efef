"""Steps that importers read, as they are run."""

from __future__ import annotations

from typing import NamedTuple

from ridgeline.hardware.cluster import Cluster
from ridgeline.parallel.plan.programmed import programmed
from ridgeline.parallel.plan.resolved import ResolvedPlan, resolved
from ridgeline.software.stack import Stack
from ridgeline.study.import_rows import llm
from ridgeline.study.import_rows.normalised import NormalisedStep
from ridgeline.study.validate.normalised_rows import NormalRow
from ridgeline.study.validate.rows import MeasuredRow
from ridgeline.workload.model import Model


class Read(NamedTuple):
    """What a row says, with what its software fills in."""

    model: Model
    cluster: Cluster
    plan: ResolvedPlan
    stack: Stack
    device: str

    @property
    def sequence(self) -> int:
        """Tokens of a sample."""
        return int(self.model.description["sequence"])


def read(step: NormalisedStep) -> Read:
    """Resolve a step that an importer read."""
    columns = {**step.columns(), "quantity": "step_time_s", "measured": "1"}
    row = NormalRow.of(MeasuredRow("t.csv", 2, columns))
    model, stack = row.point.load("model"), row.point.load("software")
    plan = resolved(row.point.load("plan"), stack, row.cluster, model)
    model = programmed(model, stack.kernels, row.cluster.device.year)
    return Read(model, row.cluster, plan, stack, step.device)


def configuration(row: MeasuredRow) -> Read:
    """Read a row about a language model with the usual columns."""
    return read(llm.step_of(row))
