"""How a step on several devices stands to one on a single device.

Written as ``--relative-to-one`` has it: the plan of the one, what is replaced besides, the machine
where it is another, and what was measured of it:
``global_batch=64;software.gradients.update_interval=4;machine=v100-sxm2-16gb;measured=345.2``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ridgeline.parallel.plan.text import plan_fields
from ridgeline.report.result import Result
from ridgeline.study.point import Point, check_path
from ridgeline.study.written_fields import assignments

EFFICIENCY = "scaling_efficiency"
"""Throughput over that of one device times their number."""
_MEASURED, _MACHINE = "measured", "machine"
_ROOTS = ("model", "cluster", "software")


@dataclass(frozen=True)
class One:
    """A step on one device that others are relative to.

    Attributes
    ----------
    plan
        Fields of its plan.
    fields
        Further fields by dotted path.
    machine
        Name of the machine with the one device; "": the machine of the several.
    measured
        Its samples a second as they were measured, which what hosts prepare is divided by; None:
        as they are predicted.
    """

    plan: str
    fields: Mapping[str, Any] = field(default_factory=dict)
    machine: str = ""
    measured: float | None = None

    @classmethod
    def parse(cls, text: str) -> One:
        """Read the words of a command line.

        Raises
        ------
        ConfigError
            If a part is neither a plan nor ``path=value``.
        """
        plan, *rest = (part.strip() for part in text.split(";"))
        plan_fields(plan)
        fields = dict(assignments(";".join(rest)))
        machine, measured = fields.pop(_MACHINE, ""), fields.pop(_MEASURED, None)
        for path in fields:
            check_path(path, _ROOTS)
        return cls(plan, fields, machine, None if measured is None else float(measured))

    def point(self, several: Point) -> Point:
        """Return the step on one device, beside that on several."""
        return Point(
            several.model,
            self.machine or several.cluster,
            plan_fields(self.plan),
            {
                **(several.overrides if not self.machine else _without_cluster(several)),
                **self.fields,
            },
            several.software,
        )

    def efficiency(self, result: Result, alone: Result) -> float:
        """Return the share of linear scaling that a step has.

        What hosts prepare is a rate by itself, above which no more can be trained with.
        """
        plan, feed = result.details.plan, result.details.feed
        alone_per_s = plan.devices * alone.samples_per_s / alone.details.plan.devices
        if feed is None:
            return result.samples_per_s / alone_per_s
        prepared_s = max(feed.storage_s, feed.decoding_s)
        return min(
            plan.global_batch / feed.trained_s / alone_per_s,
            plan.global_batch
            / prepared_s
            / (plan.devices * (self.measured or alone.samples_per_s)),
        )


def _without_cluster(point: Point) -> dict[str, Any]:
    return {path: v for path, v in point.overrides.items() if not path.startswith("cluster.")}
