"""A Calculon system as a device, a node and a cluster.

What the file does not say, energies and idle power, is taken from a machine of the catalogue.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, Literal

from ridgeline.errors import ConfigError
from ridgeline.hardware.cluster import Cluster
from ridgeline.study.calculon.schema import (
    CalculonMemory,
    CalculonNetwork,
    CalculonProcessor,
    CalculonRate,
    CalculonSystem,
    DataType,
)

Fields = dict[str, Any]
FORMATS: dict[DataType, str] = {
    "float8": "fp8",
    "float16": "fp16",
    "bfloat16": "bf16",
    "float32": "fp32",
}


def device_fields(system: CalculonSystem, name: str, file: str, like: Cluster) -> Fields:
    """Return the description of one processor.

    Raises
    ------
    ConfigError
        If the machine that energies are taken from has none of a number format.
    """
    near = like.device
    far = near.memory[near.far_memory]
    return {
        "kind": "device",
        "name": name,
        "description": f"processor of the Calculon system {name}",
        "year": near.year,
        "sources": {"calculon": f"Calculon system file {file}", "like": f"as of {near.name}"},
        "idle_power": {
            "value": f"{near.idle_power.value!r} W",
            "source": "like",
            "basis": "extrapolated",
        },
        "energy_table": near.energy_table,
        "engines": {
            "matrix": _engine(system.matrix, "matrix", "tensor-core", like),
            "vector": _engine(system.vector, "vector", "vector", like),
        },
        "memory": {
            "mem1": {
                "kind": "dram",
                "capacity": _stated(f"{system.mem1.size_gib!r} GiB"),
                "bandwidth": _stated(f"{system.mem1.GBps!r} GB/s"),
                "achievable": _stated(
                    system.mem1.MB_efficiency[0][1], "of the largest accesses, for all"
                ),
                "energy": far.energy,
            }
        },
        "launch_latency": _stated("0 s", "none is counted"),
        "achievable": list(_shares(system.matrix)),
    }


def node_fields(
    system: CalculonSystem, name: str, file: str, like: Cluster, *, offloads: bool = False
) -> Fields:
    """Return the description of the first tier: processors on a switch.

    Where activations are offloaded each processor has a link to the host of the bandwidth of
    ``mem2``. It has two hops, so that no message between processors takes it.
    """
    tier = system.networks[0]
    fabric = _fabric_tier(system)
    count = tier.size
    types = {} if count == 1 else {"tier0": _link(tier, _node_energy(like), 2)}
    if fabric is not None:
        types["adapter"] = _link(fabric, _node_energy(like), 0)
    adapters = [f"nic{i}" for i in range(count)] if fabric is not None else []
    components = [{"name": "tier0-switch", "kind": "switch"}] if count > 1 else []
    links = [
        {"between": [f"device{i}", "tier0-switch"], "type": "tier0"}
        for i in range(count)
        if count > 1
    ]
    if offloads:
        types["mem2"] = _host_link(system.mem2, _node_energy(like))
        ports = [f"mem2-{i}" for i in range(count)]
        components += [{"name": "host", "kind": "host"}]
        components += [{"name": port, "kind": "switch"} for port in ports]
        for i, port in enumerate(ports):
            links += [{"between": [end, port], "type": "mem2"} for end in (f"device{i}", "host")]
    return {
        "kind": "node",
        "name": name,
        "description": f"first tier of the Calculon system {name}",
        "device": "device.yaml",
        "count": count,
        "energy_table": like.nodes.energy_table,
        "sources": {"calculon": f"Calculon system file {file}"},
        "host": {"memory": _stated(f"{system.mem2.size_gib!r} GiB", "mem2, of a processor")},
        "link_types": types,
        "components": components + [{"name": nic, "kind": "nic"} for nic in adapters],
        "links": links
        + [{"between": [f"device{i}", nic], "type": "adapter"} for i, nic in enumerate(adapters)],
    }


def cluster_fields(system: CalculonSystem, name: str, file: str, like: Cluster) -> Fields | None:
    """Return the description of the second tier, one ideal switch; None if there is none."""
    fabric = _fabric_tier(system)
    if fabric is None:
        return None
    assert like.fabric is not None
    return {
        "kind": "cluster",
        "name": name,
        "description": f"Calculon system {name}",
        "node": "node.yaml",
        "max_nodes": math.ceil(fabric.size / system.networks[0].size),
        "energy_table": like.energy_table,
        "sources": {"calculon": f"Calculon system file {file}"},
        "link_types": {"tier1": _link(fabric, like.link_types[like.fabric.link].energy, 2)},
        "fabric": {"kind": "switch", "link": "tier1", "source": "calculon"},
    }


def machine_remarks(system: CalculonSystem) -> Iterator[str]:
    """Say what of the file has no counterpart, field by field."""
    for name in ("mem1", "mem2"):
        memory = getattr(system, name)
        if memory.unlimited:
            yield f"{name}.GiB: {memory.GiB:g} is read as no limit; here it is 1 EiB"
    if len(system.mem1.MB_efficiency) > 1:
        yield (
            f"mem1.MB_efficiency: {system.mem1.MB_efficiency[0][1]:g}, that of the largest"
            " accesses, is taken for all"
        )
    yield (
        "mem2: its size is that of the host's memory; its bandwidth, at the share of the largest"
        " accesses, that of the link to it where activations are offloaded"
    )
    yield "vector.gflops_efficiency: not used; ops without a product are bound by mem1 or the peak"
    if system.processing_mode == "no_overlap":
        yield (
            "processing_mode: no_overlap adds arithmetic and memory time of an op; here an op takes"
            " the longer of the two"
        )
    yield (
        "networks: ops, processor_usage, must_be_filled: not used; collectives are schedules on the"
        " links, and their bytes follow"
    )
    yield "networks: latency: there of a whole operation, here of every message of it"


def check_like(system: CalculonSystem, like: Cluster) -> None:
    """Raise ConfigError if a machine has no links whose energies the tiers could take over."""
    if _fabric_tier(system) is not None and like.fabric is None:
        raise ConfigError(
            f"{like.name} has no fabric whose energy the second tier could take over; name a"
            " cluster",
            field="--like",
        )
    if system.networks[0].size > 1 and not like.nodes.link_types:
        raise ConfigError(
            f"{like.name} has no links whose energy the first tier could take over; name a"
            " cluster of several nodes",
            field="--like",
        )


def _fabric_tier(system: CalculonSystem) -> CalculonNetwork | None:
    """Return the second tier, if it joins more processors than the first."""
    if len(system.networks) == 1 or system.networks[1].size <= system.networks[0].size:
        return None
    return system.networks[1]


def _node_energy(like: Cluster) -> str:
    """Energy of the links that the devices of a machine are joined by."""
    ends = (link.type for link in like.nodes.links for two in link.ends if "device0" in two)
    return like.nodes.link_types[next(ends)].energy


def _link(tier: CalculonNetwork, energy: str, hops: int) -> Fields:
    """Describe a link of which a message crosses so many, with the latency of a message."""
    latency = tier.latency / hops if hops else 0.0
    return {
        "bandwidth": _stated(f"{tier.bandwidth!r} GB/s"),
        "achievable": _stated(tier.efficiency),
        "latency": _stated(f"{latency!r} s", "a message crosses two links" if hops else ""),
        "energy": energy,
    }


def _host_link(memory: CalculonMemory, energy: str) -> Fields:
    return {
        "bandwidth": _stated(f"{memory.GBps!r} GB/s"),
        "achievable": _stated(memory.MB_efficiency[0][1], "of the largest accesses, for all"),
        "latency": _stated("0 s", "none is counted"),
        "energy": energy,
    }


def _engine(
    processor: CalculonProcessor, work: Literal["matrix", "vector"], kind: str, like: Cluster
) -> Fields:
    rates = {
        format_: _stated(f"{rate.tflops!r} TFLOP/s")
        for format_, rate in _by_format(processor).items()
    }
    if work == "vector":  # sums, norms and the update are in fp32; there all is in one format
        fastest = max(rate.tflops for rate in processor.rates().values())
        note = "as in the run's own format"
        for format_ in ("fp32", "fp16", "bf16"):
            rates.setdefault(format_, _stated(f"{fastest!r} TFLOP/s", note))
    return {
        "kind": kind,
        "runs": [work],
        "rates": rates,
        "energy": {format_: _energy(like, work, format_) for format_ in rates},
    }


def _energy(like: Cluster, work: Literal["matrix", "vector"], format_: str) -> str:
    engines = [engine for engine in like.device.engines.values() if work in engine.runs]
    found = [engine.energy[format_] for engine in engines if format_ in engine.energy]
    if not found and work == "vector":  # an op without a product: any engine's arithmetic
        found = [e.energy[format_] for e in like.device.engines.values() if format_ in e.energy]
    if not found:
        raise ConfigError(
            f"{like.device.name} has no energy of {format_} for the {work} engine; name a machine"
            " that does",
            field="--like",
        )
    return found[0]


def _shares(processor: CalculonProcessor) -> Iterator[Fields]:
    for format_, rate in _by_format(processor).items():
        for size, share in rate.gflops_efficiency:
            row = {
                "engine": "matrix",
                "format": format_,
                "op": "gemm",
                "fraction": _stated(share),
            }
            yield {**row, "at_least": _stated(f"{size!r} GFLOP")} if size else row


def _by_format(processor: CalculonProcessor) -> dict[str, CalculonRate]:
    """Return the rates by our names; of the two 16-bit formats one stands for the other."""
    rates = {FORMATS[name]: rate for name, rate in processor.rates().items()}
    for one, other in (("fp16", "bf16"), ("bf16", "fp16")):
        if one in rates:
            rates.setdefault(other, rates[one])
    return rates


def _stated(value: str | float, note: str = "") -> Fields:
    stated = {"value": value, "source": "calculon", "basis": "assumed"}
    return {**stated, "note": note} if note else stated
