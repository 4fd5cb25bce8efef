"""Tiles through buffers, event by event on SimPy: every load, tile and store is a process."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import Any

import simpy


def makespan(
    load: Sequence[float],
    compute: Sequence[float],
    store: Sequence[float],
    input_buffers: int,
    output_buffers: int,
    shared_port: bool,
) -> float:
    """Return when the last store has ended."""
    env = simpy.Environment()
    into = simpy.Resource(env)
    out = into if shared_port else simpy.Resource(env)
    loaded, done, stored = ([env.event() for _ in load] for _ in range(3))

    def transfer(
        port: simpy.Resource, seconds: float, after: simpy.Event | None, then: simpy.Event
    ) -> Generator[Any]:
        if after is not None:
            yield after
        with port.request() as turn:
            yield turn
            yield env.timeout(seconds)
        then.succeed()

    def engine() -> Generator[Any]:
        for i, seconds in enumerate(compute):
            yield loaded[i]
            if i >= output_buffers:
                yield stored[i - output_buffers]
            yield env.timeout(seconds)
            done[i].succeed()

    env.process(engine())
    for i in range(len(load)):
        free = done[i - input_buffers] if i >= input_buffers else None
        env.process(transfer(into, load[i], free, loaded[i]))
    for i in range(len(load)):
        env.process(transfer(out, store[i], done[i], stored[i]))
    env.run()
    return float(env.now)
