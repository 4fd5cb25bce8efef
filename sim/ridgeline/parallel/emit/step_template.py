"""Step template: a step emitted with open cost rows, once for machines of any speed.

Tasks, their order and what waits for what follow from graph, plan and network. How long anything
takes follows from the device, so the points of a study that vary only its speeds share a draft and
fill its open cost rows (`op_pricer`).
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from threading import Lock

from ridgeline.engine.program import Program
from ridgeline.kernels.op_signature import OpSignature
from ridgeline.network.schedule import CollectiveSchedule
from ridgeline.network.topology import Topology
from ridgeline.parallel.comm.comm_cost import Talk
from ridgeline.parallel.partition.pipeline_partition import PipelinePartition
from ridgeline.parallel.plan.resolved import ResolvedPlan
from ridgeline.workload.graph import Graph

_MOST = 8
_LARGEST = 50_000  # tasks of a draft that is kept


@dataclass(frozen=True)
class StepTemplate:
    """A program with open cost rows, and what `lower.Lowered` says of it.

    Attributes
    ----------
    program
        With a row of no work for all that is priced.
    rows
        Number of the row of each kind of op.
    staying
        See `lower.Lowered.staying_bytes`.
    """

    program: Program
    rows: dict[tuple[OpSignature, ...], int]
    dimension_of_row: dict[int, str]
    talks: dict[tuple[int, str], Talk]
    classes: tuple[tuple[int, ...], ...]
    schedules: tuple[CollectiveSchedule, ...]
    fastest_s: dict[int, float]
    staying: dict[str, float]


@dataclass(frozen=True, eq=False)
class Subject:
    """What a draft is of; graph, partition and topology are equal only to themselves.

    Attributes
    ----------
    launch_s
        Time of this machine's host to launch an op.
    kept
        What it takes from the device: its resources and accounts, but for their numbers.
    """

    graph: Graph
    cut: PipelinePartition
    topology: Topology
    plan: ResolvedPlan
    launch_s: float
    fold: bool
    kept: tuple[object, ...]

    def __hash__(self) -> int:
        return hash((id(self.graph), id(self.cut), id(self.topology), self.plan))

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, Subject)
            and self.graph is other.graph
            and self.cut is other.cut
            and self.topology is other.topology
            and (self.plan, self.launch_s, self.fold, self.kept)
            == (other.plan, other.launch_s, other.fold, other.kept)
        )


_drafts: OrderedDict[Subject, StepTemplate] = OrderedDict()
_lock = Lock()  # workers of a cluster simulate in several threads


def draft_of(subject: Subject, write: Callable[[], StepTemplate]) -> StepTemplate:
    """Return the draft of a subject, which is written if it is none of the last few."""
    with _lock:
        if (draft := _drafts.get(subject)) is not None:
            _drafts.move_to_end(subject)
            return draft
    draft = write()
    if draft.program.n_tasks <= _LARGEST:
        with _lock:
            _drafts[subject] = draft
            if len(_drafts) > _MOST:
                _drafts.popitem(last=False)
    return draft
