"""Look for products that a device with one better value of its data sheet does slower.

    python benchmarks/check_better_devices.py [PRODUCTS] [SEED]

So many random products on each of `BOARDS`, priced on the device and on one with one value that is
better by a random factor of `FACTORS`: rates, bandwidth of the farthest memory or of the others,
capacities on chip, design power, launch latency. Printed are, for each value, how many products are
slower, and the worst (decision 0133).
"""

from __future__ import annotations

import sys

import numpy as np

from ridgeline.hardware.device import Device
from ridgeline.hardware.load import load_device
from ridgeline.hardware.sourced import Sourced
from ridgeline.kernels.kernel_price import price_kernels
from ridgeline.workload.graph import Graph
from ridgeline.workload.kernel_graphs import linear_graph, product_formats

BOARDS = ("l4", "l40s", "t4", "p4", "v100-pcie-32gb", "a100-sxm4-80gb", "h100-sxm5-80gb",
          "h200-sxm", "b200", "mi300x", "mi100", "p100-pcie", "rtx-4090", "a10g")  # fmt: skip
VALUES = ("rates", "memory", "near levels", "capacities", "power", "launch")
FACTORS = (1.07, 1.3, 2.0, 3.0)
ROUNDING = 1e-9
_FORMATS = ("fp32", "tf32", "bf16", "fp16")


def better(device: Device, what: str, factor: float) -> Device:
    """Return the device with one better value."""
    if what == "rates":
        engines = {
            name: engine.model_copy(
                update={"rates": {f: _times(rate, factor) for f, rate in engine.rates.items()}}
            )
            for name, engine in device.engines.items()
        }
        return device.model_copy(update={"engines": engines})
    if what == "launch":
        return device.model_copy(
            update={"launch_latency": _times(device.launch_latency, 1 / factor)}
        )
    if what == "power":
        assert device.tdp is not None
        return device.model_copy(update={"tdp": _times(device.tdp, factor)})
    memory = dict(device.memory)
    for name, level in device.memory.items():
        if (name == device.far_memory) != (what == "memory"):
            continue
        if what == "capacities":
            update = {"capacity": _times(level.capacity, factor)}
        else:
            if level.bandwidth is None:
                continue
            update = {"bandwidth": _times(level.bandwidth, factor)}
        memory[name] = level.model_copy(update=update)
    return device.model_copy(update={"memory": memory})


def _times(value: Sourced[float], factor: float) -> Sourced[float]:
    return value.model_copy(update={"value": value.value * factor})


def products(device: Device, count: int, rng: np.random.Generator) -> list[Graph]:
    """Return random products in the formats that the device multiplies."""
    formats = [f for f in _FORMATS if any(f in engine.rates for engine in device.engines.values())]
    return [
        linear_graph(m, n, k, product_formats(formats[int(rng.integers(len(formats)))]))
        for m, n, k in (2 ** rng.uniform(4.0, 13.5, (count, 3))).astype(int).tolist()
    ]


def main() -> None:
    """Print how many products are slower, by value."""
    count, seed = (int(word) for word in (*sys.argv[1:], "150", "1")[:2])
    rng = np.random.default_rng(seed)
    slower: dict[str, list[tuple[float, str, str]]] = {what: [] for what in VALUES}
    for name in BOARDS:
        device = load_device(name)
        graphs = products(device, count, rng)
        before = price_kernels(graphs, device)
        for what in VALUES:
            factor = float(rng.choice(FACTORS))
            after = price_kernels(graphs, better(device, what, factor))
            slower[what] += [
                (new.time_s / old.time_s - 1, name, f"{graph.name}, {factor:g} times")
                for graph, old, new in zip(graphs, before, after, strict=True)
                if new.time_s > old.time_s * (1 + ROUNDING)
            ]
    for what, found in slower.items():
        worst = f", by {max(found)[0]:.1%} on {max(found)[1]}: {max(found)[2]}" if found else ""
        print(f"{what:12} {len(found)} of {count * len(BOARDS)} slower{worst}")


if __name__ == "__main__":
    main()
