"""Choice of the software stack of a step: by the user, the machine, the network, or nobody.

A machine and a network may name stacks that they are usually run with; the first that can run the
network on the machine counts. Where nobody names one, the step is that of the bound `ideal`, and
says so.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from ridgeline import catalog
from ridgeline.errors import RidgelineError
from ridgeline.hardware.cluster import Cluster
from ridgeline.parallel.plan.plan import Plan
from ridgeline.software.load import load_software
from ridgeline.software.stack import Stack
from ridgeline.workload.model import Model

BOUND = "ideal"
"""The stack of steps for which nobody names another."""
_DIMENSIONS = ("data", "tensor", "context", "pipeline", "expert")


class StackChoice(NamedTuple):
    """A stack, and who chose it: "you", "the machine NAME", "the network NAME", "nobody"."""

    stack: Stack
    chosen_by: str

    @property
    def text(self) -> str:
        """A line that names the stack and who chose it."""
        return choice_text(self.stack.name, self.chosen_by, bound=self.stack.bound)


def choice_text(name: str, chosen_by: str, *, bound: bool) -> str:
    """Name a stack and who chose it; of a bound, say that it is one."""
    if not bound:
        return f"software: {name}, chosen by {chosen_by}"
    chosen = "nobody chose another" if chosen_by == "nobody" else f"chosen by {chosen_by}"
    return f"software: {name}, which is a bound and no program; {chosen}"


def choose_stack(
    software: Stack | str | None,
    model: Model | None = None,
    cluster: Cluster | None = None,
    plan: Plan | None = None,
) -> StackChoice:
    """Return the stack that a step is run with where the user names one, or none.

    Of the usual stacks it is the first that can run all that is given.
    """
    if isinstance(software, Stack):
        return StackChoice(software, "you")
    if software is not None:
        return StackChoice(load_software(software), "you")
    for name, who in _usual(model, cluster):
        stack = load_software(name)
        if not refusals(stack, model, cluster, plan):
            return StackChoice(stack, who)
    return StackChoice(load_software(BOUND), "nobody")


def _usual(model: Model | None, cluster: Cluster | None) -> Iterator[tuple[str, str]]:
    """Yield the stacks that a machine and a network are usually run with, and who says so."""
    if cluster is not None:
        for name in cluster.software:
            yield name, f"the machine {cluster.name}"
        for name in cluster.nodes.software:
            yield name, f"the node {cluster.nodes.name}"
        for name in cluster.device.software:
            yield name, f"the device {cluster.device.name}"
    if model is not None:
        for name in model.network.software:
            yield name, f"the network {model.name}"


def refusals(
    stack: Stack, model: Model | None, cluster: Cluster | None, plan: Plan | None = None
) -> list[str]:
    """Return why a stack cannot run a step; nothing where it can."""
    can = stack.supports
    kind = "" if model is None else model.network.network_kind
    vendor = "" if cluster is None else cluster.device.vendor.lower()
    found = []
    if model is not None and can.networks and kind not in can.networks:
        found.append(f"it runs networks of the kinds {', '.join(can.networks)}, not {kind}")
    if cluster is not None and can.vendors and not vendor.startswith(can.vendors):
        found.append(f"it runs on devices of {', '.join(can.vendors)}, not {vendor or 'others'}")
    if plan is not None:
        found += _refused_plan(stack, plan)
    return found


def _refused_plan(stack: Stack, plan: Plan) -> Iterator[str]:
    can = stack.supports
    used = [name for name in _DIMENSIONS if getattr(plan, name) > 1]
    used += ["spatial"] if plan.spatial != "1" else []
    for name in used if can.plan else ():
        if name not in can.plan:
            yield f"it has no {name} parallelism"
    if can.precisions and plan.precision and plan.precision not in can.precisions:
        yield f"it trains in {', '.join(can.precisions)}, not {plan.precision}"


def able_stacks(
    model: Model, cluster: Cluster, plan: Plan, names: Iterable[str] | None = None
) -> Iterator[Stack]:
    """Yield every shipped stack that can run a step."""
    for name in catalog.names("software") if names is None else names:
        stack = load_software(name)
        if not refusals(stack, model, cluster, plan):
            yield stack


def check_stack(stack: Stack, model: Model | None, cluster: Cluster | None, plan: Plan) -> None:
    """Refuse a stack that cannot run a step.

    Raises
    ------
    RidgelineError
        With the reason.
    """
    if why := refusals(stack, model, cluster, plan):
        raise RidgelineError(f"the software {stack.name} cannot run this step: {'; '.join(why)}")
