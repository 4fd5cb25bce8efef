"""Look for products that a device with one better value of its data sheet does slower.

    python benchmarks/check_better_devices.py [PRODUCTS] [SEED] [OWN]

So many random products on each of `BOARDS` and on OWN random devices that nobody has measured
(`own_gpu`), priced on the device and on one with one value that is better by a random factor of
`FACTORS`: rates, bandwidth of the farthest memory or of the others, capacities on chip, registers
alone, more processors like those that there are, design power, latencies. Printed are, for each
value, how many products are slower, and the worst (decisions 0133 and 0190).
"""

from __future__ import annotations

import math
import sys

import numpy as np

from ridgeline import catalog
from ridgeline.hardware.device import Device
from ridgeline.hardware.load import load_device
from ridgeline.hardware.sourced import Sourced
from ridgeline.kernels.kernel_price import price_kernels
from ridgeline.kernels.traffic import is_private
from ridgeline.workload.graph import Graph
from ridgeline.workload.kernel_graphs import linear_graph, product_formats

BOARDS = ("l4", "l40s", "t4", "p4", "v100-pcie-32gb", "a100-sxm4-80gb", "h100-sxm5-80gb",
          "h200-sxm", "b200", "mi300x", "mi100", "p100-pcie", "rtx-4090", "a10g")  # fmt: skip
VALUES = ("rates", "memory", "near levels", "capacities", "registers", "processors", "power",
          "launch", "latency")  # fmt: skip
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
    if what == "processors":
        return _with_processors(device, factor)
    memory = dict(device.memory)
    for name, level in device.memory.items():
        if what == "registers" and level.kind != "registers":
            continue
        if (name == device.far_memory) != (what in {"memory", "latency"}):
            continue
        if what in {"capacities", "registers"}:
            update = {"capacity": _times(level.capacity, factor)}
        elif what == "latency":
            if level.latency is None:
                continue
            update = {"latency": _times(level.latency, 1 / factor)}
        else:
            if level.bandwidth is None:
                continue
            update = {"bandwidth": _times(level.bandwidth, factor)}
        memory[name] = level.model_copy(update=update)
    return device.model_copy(update={"memory": memory})


def _with_processors(device: Device, factor: float) -> Device:
    """Return the device with more processors, each with registers and memory as before."""
    before = next(iter(device.memory.values())).instances.value
    after = math.ceil(before * factor)
    memory = dict(device.memory)
    for name, level in device.memory.items():
        if level.kind != "registers" and not is_private(level, device):
            continue
        many = level.instances
        memory[name] = level.model_copy(
            update={
                "instances": many.model_copy(update={"value": many.value // before * after}),
                "capacity": _times(level.capacity, after / before),
                "bandwidth": level.bandwidth and _times(level.bandwidth, after / before),
            }
        )
    return better(device.model_copy(update={"memory": memory}), "rates", after / before)


def own_gpu(rng: np.random.Generator) -> Device:
    """Return a device with tensor cores and caches that nobody has measured, drawn at random."""

    def about(value: float) -> float:
        return float(value * 4 ** rng.uniform(-1.0, 1.0))

    processors = int(2 ** rng.uniform(0.0, 8.0))
    tensor, vector = (about(rate) * processors / 128 for rate in (400e12, 30e12))
    registers, shared = (int(about(1 << 18)) * processors for _ in range(2))
    bandwidth, limit = about(2.4e12), about(500)
    return load_device(
        str(catalog.root() / "hwconfigs" / "templates" / "device-gpu.yaml"),
        {
            "engines.tensor-cores.rates.fp16": f"{tensor} FLOP/s",
            "engines.tensor-cores.rates.bf16": f"{tensor} FLOP/s",
            "engines.vector-lanes.rates.fp32": f"{vector} FLOP/s",
            "memory.registers.capacity": f"{registers} B",
            "memory.registers.instances": processors,
            "memory.l1.capacity": f"{shared} B",
            "memory.l1.instances": processors,
            "memory.l1.bandwidth": f"{about(190e9) * processors} B/s",
            "memory.l2.capacity": f"{int(2 ** rng.uniform(17.0, 28.0))} B",
            "memory.l2.bandwidth": f"{about(3.0) * bandwidth} B/s",
            "memory.hbm.bandwidth": f"{bandwidth} B/s",
            "memory.hbm.latency": f"{about(500e-9)} s",
            "launch_latency": f"{about(3e-6)} s",
            "tdp": f"{max(limit, 70)} W",
            "voltage_floor": float(rng.uniform(0.5, 1.0)),
        },
    )


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
    words = (*sys.argv[1:], *("150", "1", "50")[len(sys.argv) - 1 :])
    count, seed, own = (int(word) for word in words)
    rng = np.random.default_rng(seed)
    slower: dict[str, list[tuple[float, str, str]]] = {what: [] for what in VALUES}
    devices = {name: load_device(name) for name in BOARDS}
    devices |= {f"own {i}": own_gpu(rng) for i in range(own)}
    for name, device in devices.items():
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
        print(f"{what:12} {len(found)} of {count * len(devices)} slower{worst}", flush=True)


if __name__ == "__main__":
    main()
