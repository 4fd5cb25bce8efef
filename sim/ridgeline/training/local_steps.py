"""Local steps: replicas train alone and exchange weights from time to time (local SGD, DiLoCo).

Each of N replicas takes H steps with its share of the batch and sends nothing to the others; then
all exchange the differences of their weights, and an outer optimizer applies the mean. So traffic
is a share 1/H of synchronous training's (S. Stich, "Local SGD converges fast and communicates
little", ICLR 2019; A. Douillard et al., "DiLoCo", arXiv:2311.08105: H = 500, an outer Nesterov
momentum).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from ridgeline.errors import ConfigError
from ridgeline.report.result import Result
from ridgeline.study.point import Point
from ridgeline.training.run_file import LocalSteps
from ridgeline.workload.graph import Role

_FP32_BYTES = 4.0
_OUTER_PASSES = 6.0
"""Of an outer step with Nesterov momentum: the mean difference and the momentum are read, the
momentum is written; both and the weight are read again and the weight is written."""


@dataclass(frozen=True)
class LocalRound:
    """A round of local steps.

    Attributes
    ----------
    step_s
        Of a local step of one replica.
    exchange_s
        All-reduce of the differences, and the outer optimizer.
    sent_bytes
        What each replica sends in a round.
    """

    steps: int
    step_s: float
    exchange_s: float
    sent_bytes: float

    @property
    def mean_step_s(self) -> float:
        """Time of a round over its steps."""
        return self.step_s + self.exchange_s / self.steps


def local_round(point: Point, step: Result, local: LocalSteps) -> LocalRound:
    """Return what a round takes on a machine.

    The exchange is an all-reduce of fp32 differences over a ring of all replicas: at
    `LocalSteps.bandwidth` if they are in different places, else what synchronous training adds to a
    step where nothing is sent beside the backward pass.

    Raises
    ------
    ConfigError
        If there is one replica only.
    """
    plan = step.details.plan
    if plan.data < 2:
        raise ConfigError("local steps need several replicas", field="local_steps")
    numbers = sum(
        tensor.elements
        for tensor in step.details.graph.tensors.values()
        if tensor.role is Role.WEIGHT
    )
    replicas = plan.data
    part_bytes = numbers * _FP32_BYTES / (plan.devices // replicas)
    alone = replace(
        point,
        plan={**point.plan, "data": 1, "global_batch": plan.global_batch // replicas},
    ).simulate()
    sent_bytes = 2.0 * (replicas - 1) / replicas * numbers * _FP32_BYTES
    if local.bandwidth is not None:
        exchange_s = sent_bytes / local.bandwidth + 2.0 * (replicas - 1) * local.latency
    else:
        apart = {**point.overrides, "software.overlap.gradients": False}
        synchronous = replace(point, overrides=apart).simulate()
        exchange_s = max(0.0, synchronous.step_time_s - alone.step_time_s)
    far = step.details.cluster.device.memory[step.details.cluster.device.far_memory]
    assert far.bandwidth is not None  # the farthest level has one
    outer_s = _OUTER_PASSES * part_bytes / (far.bandwidth.value * far.achievable.value)
    return LocalRound(local.every, alone.step_time_s, exchange_s + outer_s, sent_bytes)
