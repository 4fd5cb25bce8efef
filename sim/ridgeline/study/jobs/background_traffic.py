"""Background traffic: what others send over the fabric while jobs train, as a program."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ridgeline.engine.builder import ProgramBuilder, WorkPhase
from ridgeline.engine.program import Program
from ridgeline.errors import ConfigError, RidgelineError
from ridgeline.network.routing import routes
from ridgeline.network.topology import Topology
from ridgeline.network.traffic import make_flows
from ridgeline.study.jobs.job_file import Background

MOST_MESSAGES = 500_000
"""Messages that are drawn at most: about half a minute, and a gigabyte."""
MESSAGE = "message"


@dataclass(frozen=True)
class Flow:
    """Traffic between two devices.

    Attributes
    ----------
    source, target
        Ranks of the fabric.
    rate_bytes_per_s
        What is sent on average, or at most of a steady stream.
    """

    source: int
    target: int
    rate_bytes_per_s: float


def flows_of(of: Background, topology: Topology) -> list[Flow]:
    """Return the flows of a pattern or a matrix.

    Raises
    ------
    ConfigError
        If a device does not exist, or the pattern does not fit.
    """
    ends = [*of.devices, *(end for flow in of.flows for end in (flow.source, flow.target))]
    if ends and not 0 <= min(ends) <= max(ends) < topology.n_devices:
        raise ConfigError(
            f"there is no device {max(ends)}: the fabric has 0 to {topology.n_devices - 1}",
            field=f"background.{of.name}",
        )
    if of.flows:
        return [Flow(flow.source, flow.target, flow.rate) for flow in of.flows]
    group = np.array(of.devices or range(topology.n_devices), np.int64)
    if len(set(group.tolist())) < len(group):
        raise ConfigError("a device is named twice", field=f"background.{of.name}.devices")
    try:
        found = make_flows(of.pattern, len(group), 1.0)
    except RidgelineError as error:
        raise ConfigError(str(error), field=f"background.{of.name}.pattern") from error
    assert of.rate is not None  # the file was checked
    sources, targets = group[found.source].tolist(), group[found.target].tolist()
    return [Flow(a, b, of.rate) for a, b in zip(sources, targets, strict=True)]


def traffic_program(
    of: Background, flows: Sequence[Flow], topology: Topology, until_s: float
) -> Program:
    """Return the traffic that begins before some time.

    Each flow draws its messages from the seed and its own number: those that arrive before an
    earlier end are the same for every later one. A steady stream is one task that would go on until
    that time at its full rate, and so never ends before it.

    Raises
    ------
    RidgelineError
        If there are too many messages.
    """
    if of.message is not None:
        expected = sum(flow.rate_bytes_per_s for flow in flows) / of.message * until_s
        if expected > MOST_MESSAGES:
            raise RidgelineError(
                f"background {of.name}: about {expected:,.0f} messages in {until_s:.3g} s; at most "
                f"{MOST_MESSAGES:,} are drawn: larger messages, or a steady stream (no `message`)"
            )
    builder = ProgramBuilder()
    devices = topology.devices.astype(np.int64)
    source = np.array([flow.source for flow in flows], np.int64)
    target = np.array([flow.target for flow in flows], np.int64)
    ways = routes(topology, devices[source], devices[target])
    resources: dict[int, int] = {}
    for number, flow in enumerate(flows):
        builder.add_rank()
        links = ways.links[ways.ptr[number] : ways.ptr[number + 1]]
        for link in links.tolist():
            if link not in resources:
                rate = float(topology.bandwidth_bytes_per_s[link])
                name = topology.link_name(link)
                resources[link] = builder.add_resource(name, rate, shared=True)
        latency_s = float(topology.latency_s[links].sum())
        used = [resources[link] for link in links.tolist()]
        stream = builder.add_stream(f"{flow.source}->{flow.target}", number)
        if of.message is None:
            size = flow.rate_bytes_per_s * until_s
            own = builder.add_resource(f"rate of flow {number}", flow.rate_bytes_per_s)
            row = builder.add_cost([WorkPhase(latency_s, {**dict.fromkeys(used, size), own: size})])
            builder.add_task(MESSAGE, of.name, cost=row, stream=stream)
            continue
        row = builder.add_cost([WorkPhase(latency_s, dict.fromkeys(used, of.message))])
        clock = builder.add_stream(f"arrivals of {flow.source}->{flow.target}", number)
        draw = np.random.default_rng([of.seed, number])
        at_s = 0.0
        before: tuple[int, ...] = ()
        while True:
            gap_s = float(draw.exponential(of.message / flow.rate_bytes_per_s))
            at_s += gap_s
            if at_s >= until_s:
                break
            wait = builder.add_cost([WorkPhase(gap_s)])
            arrived = builder.add_task("arrival", of.name, cost=wait, stream=clock, deps=before)
            before = (arrived,)
            builder.add_task(MESSAGE, of.name, cost=row, stream=stream, deps=before)
    return builder.build()
