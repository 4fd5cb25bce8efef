"""Elastic job: what fewer replicas train while nodes are missing."""

from __future__ import annotations

from dataclasses import replace

from ridgeline.errors import ConfigError
from ridgeline.report.result import Result
from ridgeline.study.point import Point
from ridgeline.training.run_file import Elastic

_MOST_SIZES = 32
"""Smaller jobs that are simulated."""


def smaller_jobs(point: Point, step: Result, elastic: Elastic) -> dict[int, float]:
    """Return the time of smaller jobs for as many samples as a step of the whole one, over it.

    Every replica keeps its share of the batch, so a step of a smaller job has fewer samples, and
    there are more of them. A replica that lost one of its nodes stops; its others are used anew.

    Returns
    -------
    dict[int, float]
        Missing nodes -> time over that of the whole job, while enough replicas are left.

    Raises
    ------
    ConfigError
        If the least number of replicas leaves no smaller job, or too many.
    """
    plan, held = step.details.plan, step.details.cluster.nodes.count
    of_replica = plan.devices // plan.data
    if elastic.least >= plan.data:
        raise ConfigError(
            f"the job has {plan.data:,} replicas: a smaller one has fewer",
            field="recovery.elastic.least",
        )
    sizes: dict[int, int] = {}
    nodes = len(step.details.cluster.nodes_of(plan.devices))
    for missing in range(1, nodes):
        left = (plan.devices - missing * held) // of_replica
        if left < elastic.least:
            break
        sizes[missing] = left
    if not sizes:
        raise ConfigError(
            f"a job without one of its nodes has {max(0, (plan.devices - held) // of_replica)} "
            "replicas: less than that is the least",
            field="recovery.elastic.least",
        )
    if len(set(sizes.values())) > _MOST_SIZES:
        raise ConfigError(
            f"{len(set(sizes.values()))} sizes of the job would be simulated, and {_MOST_SIZES} "
            "are the most: a larger least number",
            field="recovery.elastic.least",
        )
    share = plan.global_batch // plan.data
    slower: dict[int, float] = {}
    for left in set(sizes.values()):
        fields = {**point.plan, "data": left, "global_batch": share * left}
        small = replace(point, plan=fields).simulate()
        slower[left] = small.step_time_s / step.step_time_s * plan.data / left
    return {missing: slower[left] for missing, left in sizes.items()}
