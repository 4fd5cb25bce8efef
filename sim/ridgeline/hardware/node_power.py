"""Node power: the parts of a node that are not devices, its fans, and its power supplies."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from pydantic import Field, model_validator

from ridgeline import units
from ridgeline.config import FieldError, Strict
from ridgeline.hardware.sourced import Sourced


class PowerPart(Strict):
    """Equal parts of a node besides its devices: processors, memory, switches, adapters, drives."""

    name: str
    """For people, and the key of its power in results."""
    count: int = Field(default=1, ge=1, le=4096)
    """How many there are in the node."""
    idle: Sourced[units.Watts]
    """Of one, switched on, while no job runs."""
    load: Sourced[units.Watts]
    """Of one while the node trains: at the design power of the devices, where it follows them."""
    follows: Literal["job", "devices"] = "job"
    """"job": draws ``load`` as long as a job runs; "devices": rises from ``idle`` to ``load`` with
    the power of the devices."""

    def power_w(self, working: bool, device_load: float) -> float:
        """Power of all of them, by the load of the devices from 0 (idle) to 1 (design power)."""
        load = float(working) if self.follows == "job" else device_load
        return self.count * (self.idle.value + load * (self.load.value - self.idle.value))


class Fans(Strict):
    """Fans whose speed follows the heat of the node; power is as the cube of the speed."""

    count: int = Field(default=1, ge=1, le=1024)
    """How many there are in the node."""
    power: Sourced[units.Watts]
    """Of one at full speed."""
    least_speed: Sourced[float]
    """Share of the full speed that they never fall below."""

    @model_validator(mode="after")
    def _share(self) -> Fans:
        if not 0 <= self.least_speed.value <= 1:
            raise FieldError("must be a share from 0 to 1 of the full speed", "least_speed")
        return self

    def power_w(self, heat: float) -> float:
        """Power of all fans, by the node's heat over the most that it can give off.

        Air carries heat away as its flow, and a fan draws the cube of its flow (fan affinity laws,
        ASHRAE Handbook, HVAC Systems and Equipment, chapter "Fans").
        """
        return self.count * self.power.value * max(self.least_speed.value, min(heat, 1.0)) ** 3


class EfficiencyPoint(Strict):
    """Efficiency of a power supply at one load."""

    load: float = Field(gt=0, le=1)
    """Output over rated output."""
    efficiency: Sourced[float]
    """Output over input."""


class PowerSupplies(Strict):
    """Power supplies that share the node's power evenly."""

    count: int = Field(default=1, ge=1, le=1024)
    """How many there are, spare ones included: they share the load."""
    rated: Sourced[units.Watts]
    """Most output of one."""
    curve: tuple[EfficiencyPoint, ...] = Field(strict=False, min_length=1)
    """Efficiency by load, rising loads; straight lines between."""

    @model_validator(mode="after")
    def _consistent(self) -> PowerSupplies:
        loads = [point.load for point in self.curve]
        if loads != sorted(set(loads)):
            raise FieldError(f"the loads must rise; found {loads}", "curve")
        for number, point in enumerate(self.curve):
            if not 0 < point.efficiency.value <= 1:
                raise FieldError("must be more than 0 and at most 1", "curve", number, "efficiency")
        return self

    def input_w(self, output_w: float) -> float:
        """Power from the wall for so much output."""
        load = output_w / (self.count * self.rated.value)
        before = self.curve[0]
        if load <= before.load:
            return output_w / before.efficiency.value
        for after in self.curve[1:]:
            if load <= after.load:
                share = (load - before.load) / (after.load - before.load)
                rise = after.efficiency.value - before.efficiency.value
                return output_w / (before.efficiency.value + share * rise)
            before = after
        return output_w / before.efficiency.value


class NodeParts(Strict):
    """Power of a node besides its devices."""

    parts: tuple[PowerPart, ...] = Field(strict=False, min_length=1)
    """Processors, memory, switches, adapters, drives, boards."""
    fans: Fans | None = None
    """None: cooled by a liquid that is pumped outside of the node."""
    supplies: PowerSupplies | None = None
    """None: fed with what its parts draw."""

    @model_validator(mode="after")
    def _different(self) -> NodeParts:
        names = [part.name for part in self.parts]
        if len(set(names)) != len(names):
            raise FieldError(f"two parts have the same name: {', '.join(names)}", "parts")
        return self

    def parts_w(
        self, devices_w: float, idle_w: float, full_w: float, *, working: bool = True
    ) -> Mapping[str, float]:
        """Power behind the supplies by part, fans included, in watts.

        Parameters
        ----------
        devices_w, idle_w, full_w
            Power of all devices: now, when idle, and at their design power.
        """
        load = min(max((devices_w - idle_w) / (full_w - idle_w), 0.0), 1.0)
        found = {part.name: part.power_w(working, load) for part in self.parts}
        if self.fans is not None:
            most_w = full_w + sum(part.power_w(True, 1.0) for part in self.parts)
            found["fans"] = self.fans.power_w((devices_w + sum(found.values())) / most_w)
        return found

    def wall_w(self, supplied_w: float) -> float:
        """Power from the wall where so much is used behind the supplies."""
        return supplied_w if self.supplies is None else self.supplies.input_w(supplied_w)

    @property
    def most_w(self) -> float:
        """Power of all parts and fans at full load, behind the supplies."""
        fans = 0.0 if self.fans is None else self.fans.count * self.fans.power.value
        return sum(part.power_w(True, 1.0) for part in self.parts) + fans
