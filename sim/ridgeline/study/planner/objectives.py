"""Objectives of a search: each is a weighted sum of the time and the energy of a step.

All are least at the best plan. On so many devices and with one batch, `tokens-per-joule` has the
best plan of `energy`, and `cost-per-token` that of `time` unless energy has a price.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Literal, NamedTuple

from pydantic import Field

from ridgeline import config
from ridgeline.config import Strict
from ridgeline.errors import ConfigError, nearest
from ridgeline.hardware.cluster import Cluster
from ridgeline.hardware.device import Device
from ridgeline.hardware.node import Node

Objective = Literal["time", "energy", "cost", "tokens-per-joule", "cost-per-token"]
OBJECTIVES: Mapping[Objective, tuple[str, str]] = {
    "time": ("s", "time of a step"),
    "energy": ("J", "energy of a step, of all devices"),
    "cost": ("$ s", "price of the devices, from the files of the machine, times time"),
    "tokens-per-joule": ("J", "energy of a token (of a sample, where it has none)"),
    "cost-per-token": ("$", "rent of the devices and price of the energy, of a token"),
}
"""Unit, and what is least."""
PRICES = Path(__file__).with_name("device_hour_prices.yaml")
SECONDS_AN_HOUR = 3600.0
JOULES_A_KWH = 3.6e6


class ObjectiveWeights(NamedTuple):
    """What a second, and a joule, of a step count."""

    per_second: float
    per_joule: float


class HourPrice(Strict):
    """Rent of a device."""

    usd_per_hour: float = Field(ge=0)
    source: str


class HourPrices(Strict):
    """Rents of devices, by name."""

    kind: Literal["device-hour prices"]
    name: str
    sources: dict[str, str]
    devices: dict[str, HourPrice]


@dataclass(frozen=True)
class Prices:
    """What devices and energy cost.

    Attributes
    ----------
    own
        Dollars of a device-hour, by names of devices or what they begin with; before those of the
        data file.
    usd_per_kwh
        Price of energy; 0: rent has it.
    """

    own: Mapping[str, float] = field(default_factory=dict)
    usd_per_kwh: float = 0.0

    def usd_per_hour(self, cluster: Cluster, devices: int) -> float:
        """Return the rent of so many devices of a cluster, in dollars an hour.

        Raises
        ------
        ConfigError
            If a device has no price.
        """
        kinds = Counter(device.name for device in cluster.devices_of(devices))
        return math.fsum(self._of(name) * n for name, n in kinds.items())

    def _of(self, name: str) -> float:
        mine = [key for key in self.own if name == key or name.startswith(key)]
        if mine:
            return self.own[max(mine, key=len)]
        known = hour_prices().devices
        if name not in known:
            raise ConfigError(
                f"no price of an hour of {name} is known (known: {', '.join(known)}); give"
                f" --price {name}=DOLLARS",
                field="--price",
            )
        return known[name].usd_per_hour


@lru_cache(maxsize=1)
def hour_prices() -> HourPrices:
    """Return the cited rents of devices."""
    return config.load(PRICES, HourPrices)


def parse_prices(words: tuple[str, ...]) -> dict[str, float]:
    """Read ``["h100=2.5"]`` into dollars of a device-hour.

    Raises
    ------
    ConfigError
        If a word is not ``device=dollars``.
    """
    found: dict[str, float] = {}
    for word in words:
        name, equals, value = (part.strip() for part in word.partition("="))
        try:
            usd = float(value.lstrip("$"))
        except ValueError:
            usd = math.nan
        if not (equals and name and 0.0 <= usd < math.inf):
            raise ConfigError(
                f"expected device=dollars an hour, as h100=2.5, found {word!r}", field="--price"
            )
        found[name] = usd
    return found


def check_prices(own: Mapping[str, float], clusters: tuple[Cluster, ...]) -> None:
    """Refuse a price of a device that no cluster has.

    Raises
    ------
    ConfigError
        With the nearest name.
    """
    names = sorted({device.name for one in clusters for device in one.kinds_of_devices})
    for key in own:
        if not any(name.startswith(key) for name in names):
            raise ConfigError(
                f"{key} is the price of no device of these machines{nearest(key, names)}"
                f" (they have {', '.join(names)})",
                field="--price",
            )


def weights_of(
    objective: Objective, cluster: Cluster, devices: int, tokens: float, prices: Prices
) -> ObjectiveWeights:
    """Return what a second and a joule of a step of so many tokens count.

    Raises
    ------
    ConfigError
        If the objective is unknown, or needs a price that nothing has.
    """
    if objective not in OBJECTIVES:
        raise ConfigError(
            f"unknown objective {objective!r}{nearest(objective, OBJECTIVES)} (known:"
            f" {', '.join(OBJECTIVES)})",
            field="--objective",
        )
    if objective == "energy":
        return ObjectiveWeights(0.0, 1.0)
    if objective == "cost":
        return ObjectiveWeights(price_of(cluster, devices), 0.0)
    if objective == "tokens-per-joule":
        return ObjectiveWeights(0.0, 1.0 / tokens)
    if objective == "cost-per-token":
        rent = prices.usd_per_hour(cluster, devices) / SECONDS_AN_HOUR
        return ObjectiveWeights(rent / tokens, prices.usd_per_kwh / JOULES_A_KWH / tokens)
    return ObjectiveWeights(1.0, 0.0)


def price_of(cluster: Cluster, devices: int) -> float:
    """Return the price of so many devices, or of their share of their nodes, in dollars.

    Raises
    ------
    ConfigError
        If neither file has a price.
    """
    if not cluster.groups:
        kinds = Counter(device.name for device in cluster.devices_of(devices))
        named = {device.name: device for device in cluster.kinds_of_devices}
        return math.fsum(_price(named[name], cluster.nodes) * n for name, n in kinds.items())
    total, left = 0.0, devices
    for node, count in cluster.kinds_of_nodes:
        used = min(left, node.count * count)
        total += _price(node.devices, node) * used if used else 0.0
        left -= used
    return total


def _price(device: Device, node: Node) -> float:
    """Return the price of a device, or of its share of its node."""
    if device.price is not None:
        return device.price.value
    if node.price is not None:
        return node.price.value / node.count
    raise ConfigError(
        f"objective cost needs a price, but neither the device {device.name} nor the node"
        f" {node.name} has one; add the field price with its source, or choose time or energy",
        field="--objective",
    )
