"""The network that a step runs on, with what the step puts on its links."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ridgeline.engine.program import Floats, Program
from ridgeline.errors import RidgelineError
from ridgeline.network.cluster_topology import from_cluster
from ridgeline.network.load import LinkLoad

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from ridgeline.report.result import Result


def loads(program: Program) -> Floats:
    """Return the units that all tasks together put on every resource: [R]."""
    plays = np.bincount(program.cost, minlength=len(program.phase_ptr) - 1).astype(np.float64)
    of_phase = np.repeat(plays, np.diff(program.phase_ptr)) * program.repeat
    of_work = np.repeat(of_phase, np.diff(program.work_ptr)) * program.work_amount
    found = np.zeros(len(program.capacity))
    np.add.at(found, program.work_resource, of_work)
    return found


def topology(result: Result, ax: Axes | None = None) -> Axes:
    """Draw the devices in use and their links, coloured by how busy the step keeps them.

    Raises
    ------
    RidgelineError
        If the step was simulated with links that stand for several, or there is only one device.
    """
    from ridgeline.report.figures.network import network
    from ridgeline.report.figures.style import stamp_text

    plan, program = result.details.plan, result.details.lowered.program
    if plan.devices == 1:
        raise RidgelineError("one device alone has no links to draw")
    drawn = from_cluster(result.details.cluster, plan.devices)
    numbers = {drawn.link_name(link): link for link in range(drawn.n_links)}
    share = np.zeros(drawn.n_links)
    busy = loads(program) / program.capacity / result.step_time_s
    for name, used in zip(program.resource_names, busy.tolist(), strict=True):
        if name in numbers:
            share[numbers[name]] += used
        elif "->" in name and used > 0:
            raise RidgelineError(
                f"link {name!r} of this step stands for several: simulate with fold=False to see "
                "what each of them carries"
            )
    title = f"a step of {result.manifest['model']['name']}"
    return network(drawn, LinkLoad(title, result.step_time_s, share), ax, stamp_text(result))
