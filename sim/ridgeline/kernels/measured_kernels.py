"""Measured kernels of ops outside contractions (`Device.kernels`)."""

from __future__ import annotations

from ridgeline.errors import RidgelineError, nearest
from ridgeline.hardware.device import Device
from ridgeline.hardware.kernel import MeasuredKernel
from ridgeline.workload import kinds, optimizers
from ridgeline.workload.graph import Op


def kernel_of(op: Op, device: Device) -> MeasuredKernel | None:
    """Find the first measured kernel of a device that fits an op."""
    for row in device.kernels:
        if row.op != op.kind or (row.pass_ is not None and row.pass_ != op.priced_as.value):
            continue
        if row.rule is None or ("rule", row.rule) in op.attrs:
            return row
    return None


def check_kernels(device: Device) -> None:
    """Refuse rows and units of ops that do not exist: they would never be used.

    Raises
    ------
    RidgelineError
        With the device, the row and the nearest name.
    """
    if not device.kernels and not any(unit.ops for unit in device.engines.values()):
        return
    known = {kind.name for kind in kinds.registered()}
    for place, row in enumerate(device.kernels):
        for field, name, names in (
            ("op", row.op, known),
            ("rule", row.rule, optimizers.OPTIMIZERS),
        ):
            if name is not None and name not in names:
                raise RidgelineError(
                    f"{device.name}, kernels.{place}.{field}: there is no {name!r}"
                    f"{nearest(name, names)} (there are: {', '.join(sorted(names))})"
                )
    for engine, unit in device.engines.items():
        for name in unit.ops:
            if name not in known:
                raise RidgelineError(
                    f"{device.name}, engines.{engine}.ops: there is no {name!r}"
                    f"{nearest(name, known)} (there are: {', '.join(sorted(known))})"
                )
