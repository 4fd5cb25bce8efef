"""Pass manager: runs the graph passes that a software stack asks for, in order, each graph once.

A pass is a function in a file of `parallel.passes` with the decorator `graph_pass`: its place in
the order, and a condition that gives the arguments that a stack on a device asks for, or None where
it does not ask. A pass takes a graph and returns a graph; the manager keeps what each has made of
the last graphs, since points of a study and stages of a search share them.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import Any, NamedTuple, TypeVar

from ridgeline.hardware.device import Device
from ridgeline.registry import Registry, takes
from ridgeline.software.stack import Stack
from ridgeline.workload.graph import Graph, Same

Rewrite = TypeVar("Rewrite", bound=Callable[..., Graph])
Arguments = tuple[Hashable, ...]
_KEPT = 192  # graphs


class PassContext(NamedTuple):
    """What the condition of a pass may read."""

    stack: Stack
    device: Device


@dataclass(frozen=True)
class GraphPass:
    """One rewrite of a graph.

    Attributes
    ----------
    order
        Place among the passes, from small to large.
    when
        Returns the arguments of `rewrite` behind the graph, or None where it is not asked for.
    """

    name: str
    order: int
    when: Callable[[PassContext], Arguments | None]
    rewrite: Callable[..., Graph]


PASSES: Registry[str, GraphPass] = Registry("graph pass", "ridgeline.parallel.passes")
"""All passes by name."""


def graph_pass(
    name: str, order: int, when: Callable[[PassContext], Arguments | None]
) -> Callable[[Rewrite], Rewrite]:
    """Return a decorator that registers a pass; see `GraphPass`.

    Raises
    ------
    RidgelineError
        If the name is taken, or a function takes other parameters; by the decorator.
    """

    def put(rewrite: Rewrite) -> Rewrite:
        takes(when, f"graph pass {name!r}: when", "to")
        PASSES.register(name)(GraphPass(name, order, when, rewrite))
        return rewrite

    return put


def run_passes(graph: Graph, stack: Stack, device: Device) -> Graph:
    """Return the graph of a device as a stack's programs run it."""
    context = PassContext(stack, device)
    for one in _in_order(len(PASSES)):
        arguments = one.when(context)
        if arguments is not None:
            graph = _rewritten(one, Same(graph), arguments)
    return graph


@cache
def _in_order(count: int) -> tuple[GraphPass, ...]:
    """Return all passes; `count` of them, which a plug-in may have raised."""
    return tuple(sorted(PASSES.values(), key=lambda one: one.order))


@lru_cache(maxsize=_KEPT)
def _rewritten(one: GraphPass, same: Same, arguments: tuple[Any, ...]) -> Graph:
    return one.rewrite(same.graph, *arguments)
