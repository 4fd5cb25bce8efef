"""What a mapping has to know of a device: where tensors live, and the buffers before that."""

from __future__ import annotations

import itertools
import math
import weakref
from collections.abc import Iterator
from typing import Literal, NamedTuple

from ridgeline.errors import RidgelineError
from ridgeline.hardware.device import Device, MemoryLevel
from ridgeline.kernels.mapping.machine import Buffer, MappingMachine, Split
from ridgeline.kernels.mapping.mapping import FAR
from ridgeline.kernels.systolic.device import arrays_of
from ridgeline.workload.formats import bytes_of

_machines: dict[tuple[int, str, str, str], tuple[weakref.ref[Device], MappingMachine | None]] = {}


def machine_of(device: Device, engine: str, format_: str, accumulate: str) -> MappingMachine | None:
    """Return the machine that an engine's contractions are mapped on.

    None if nothing has to be mapped: there are no buffers between the engine and the memory that
    tensors live in.
    """
    key = (id(device), engine, format_, accumulate)
    held = _machines.get(key)
    if held is None or held[0]() is not device:
        forget = weakref.ref(device, lambda _: _machines.pop(key, None))
        held = _machines[key] = (forget, _machine(device, engine, format_, accumulate))
    return held[1]


Named = tuple[str, MemoryLevel]
OPERANDS: tuple[Literal["a", "b", "c"], ...] = ("a", "b", "c")
SHARES = (0.5, 0.125)
"""Of a level's port, for what passes it on the far side, where nearer buffers read on the other.

One of them is right for a level that is about as fast as the one behind, one for a faster one.
"""


def _machine(device: Device, engine: str, format_: str, accumulate: str) -> MappingMachine | None:
    levels = [named for named in device.memory.items() if named[1].kind != "registers"]
    if len(levels) < 2:
        return None
    far, *nearer = reversed(levels)
    stages = _stages(device, nearer)
    described = device.engines[engine]
    array, width = described.array, float(bytes_of(format_))

    def using(
        chosen: tuple[list[Named], ...], shares: tuple[float, ...], past: str
    ) -> MappingMachine:
        buffers, behind = [], _Behind(_byte_s(far[1]), [far])
        for depth, stage in enumerate(chosen):
            share = shares[depth] if depth < len(shares) else 1.0
            buffer, behind = _buffer(device, stage, behind, share, past)
            buffers.append(buffer)
        first, *others = buffers
        return MappingMachine(
            arrays=None if array is None else arrays_of(array, accumulate),
            cycle_s=0.0
            if array is None
            else array.flops_per_cycle / described.rates[format_].value,
            mac_s=0.0,
            near_byte_s=first.own_byte_s,
            capacities=first.capacities,
            double=first.double,
            shared_port=first.shared_port,
            byte_s=first.byte_s,
            latency_s=first.latency_s,
            far_byte_j=device.prices.price_j(far[1].energy, "J/B"),
            near_byte_j=first.byte_j,
            idle_w=device.idle_power.value,
            widths=(width, width, width, float(bytes_of(accumulate))),
            far=far[0],
            near=first.name,
            nearer=tuple(others),
            split=first.split,
        )

    main, *variants = (
        using(chosen, shares, "")
        for chosen in _subsets(stages)
        for shares in itertools.product(*(_shares(stage) for stage in chosen[:-1]))
    )
    past = [
        using((stage,), (), "".join(those))
        for stage in stages
        for count in range(1, len(_held(stage)))
        for those in itertools.combinations(_held(stage), count)
    ]
    return main._replace(variants=tuple(variants), bypasses=tuple(past))


def _stages(device: Device, levels: list[Named]) -> list[list[Named]]:
    """Put levels that hold different operands side by side, from far to near.

    Raises
    ------
    RidgelineError
        If one of several stages does not hold all operands.
    """
    stages: list[list[Named]] = []
    for name, level in levels:
        if stages and not set(level.holds) & set(_held(stages[-1])):
            stages[-1].append((name, level))
        else:
            stages.append([(name, level)])
    for stage in stages if len(stages) > 1 else ():
        missing = [operand for operand in OPERANDS if operand not in _held(stage)]
        if missing:
            names = " and ".join(name for name, _ in stage)
            raise RidgelineError(
                f"{device.name}: memory {names} holds no {' and '.join(missing)}; where buffers lie"
                " behind each other, each of these steps must hold a, b and c (list those that lie"
                " side by side one after the other)"
            )
    return stages


def _held(stage: list[Named]) -> list[str]:
    return [operand for _, level in stage for operand in level.holds]


def _subsets(stages: list[list[Named]]) -> Iterator[tuple[list[Named], ...]]:
    """List the stages that may be used together: all of them first, then all but some."""
    for count in range(len(stages), 0, -1):
        yield from itertools.combinations(stages, count)


def _shares(stage: list[Named]) -> tuple[float, ...]:
    """Shares of a stage's ports to set aside for the far side; no port, no share."""
    return SHARES if any(level.bandwidth is not None for _, level in stage) else (1.0,)


class _Behind(NamedTuple):
    """What lies behind a stage: seconds per byte that are left for it, and the levels."""

    byte_s: float
    levels: list[Named]


def _buffer(
    device: Device, stage: list[Named], behind: _Behind, share: float, past: str
) -> tuple[Buffer, _Behind]:
    """Describe a stage of buffers, and what is left of its ports for the next one.

    Parameters
    ----------
    share
        Of its ports, for transfers from and to the level behind; 1: the arrays read beside them.
    past
        Operands that pass it by.
    """
    name, level = stage[0]
    keeper: dict[str, Named] = {
        operand: named for named in stage for operand in named[1].holds if operand not in past
    }
    own_s = max(_byte_s(keeper[operand][1]) for operand in OPERANDS if operand in keeper)
    source = behind.levels[0][1]
    latency_s = max(_latency_s(level) for _, level in behind.levels)
    byte_s = max(behind.byte_s, own_s / share)
    left = _Behind(own_s / (1 - share) if share < 1 else own_s, stage)
    price = {operand: device.prices.price_j(x.energy, "J/B") for operand, (_, x) in keeper.items()}
    a, b, c = (_room(keeper[x][1], x) if x in keeper else math.inf for x in OPERANDS)
    buffer = Buffer(
        name, (a, b, c, level.capacity.value), all(x.buffers == "double" for _, x in stage),
        source.ports == "shared", byte_s, latency_s, max(price.values()),
        0.0 if share < 1 else own_s,
    )  # fmt: skip
    if len(stage) == 1 and len(keeper) == len(OPERANDS):
        return buffer, left
    port = {id(x): i for i, (_, x) in enumerate(stage)}
    own = [_byte_s(x) if share == 1 else 0.0 for _, x in stage]
    room = [x.capacity.value for _, x in stage]
    behind_name = behind.levels[0][0]
    split = Split(
        of=tuple(port[id(keeper[x][1])] if x in keeper else FAR for x in OPERANDS),  # type: ignore[arg-type]
        byte_s=(*(own + [0.0] * FAR)[:FAR], behind.byte_s),  # type: ignore[arg-type]
        capacities=tuple((room + [math.inf] * FAR)[:FAR]),  # type: ignore[arg-type]
        byte_j=tuple(price.get(x, 0.0) for x in OPERANDS),  # type: ignore[arg-type]
        names=tuple(keeper[x][0] if x in keeper else behind_name for x in OPERANDS),  # type: ignore[arg-type]
    )
    return buffer._replace(split=split), left


def _latency_s(level: MemoryLevel) -> float:
    return 0.0 if level.latency is None else level.latency.value


def _byte_s(level: MemoryLevel) -> float:
    """Seconds per byte at a level's bandwidth; 0 where it states none."""
    if level.bandwidth is None:
        return 0.0
    return 1.0 / (level.bandwidth.value * level.achievable.value)


def _room(level: MemoryLevel, operand: Literal["a", "b", "c"]) -> float:
    own = level.partitions.get(operand)
    return math.inf if own is None else float(own.value)
