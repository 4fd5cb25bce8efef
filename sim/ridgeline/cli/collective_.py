"""``ridgeline collective``: time one collective on the links of a machine."""

from __future__ import annotations

from dataclasses import asdict
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import Parameter

from ridgeline.cli.assignments import assignments
from ridgeline.cli.names import DeviceIfAny, Machine
from ridgeline.cli.number_options import Whole
from ridgeline.cli.output import console, print_json, print_quantity
from ridgeline.cli.searched import with_device
from ridgeline.cli.software import Software, one_stack

if TYPE_CHECKING:
    from ridgeline.hardware.cluster import Cluster
    from ridgeline.network.collectives import CollectiveResult
    from ridgeline.network.topology import Topology
    from ridgeline.software.stack import Stack


def collective_(
    operation: str,
    size: str,
    where: Machine,
    *,
    ranks: Whole | None = None,
    ranks_per_node: Whole | None = None,
    algorithm: str = "auto",
    library: str = "nccl",
    launch: Literal["queued", "stream", "eager"] = "queued",
    number_format: str | None = None,
    cost: str | None = None,
    compression: str | None = None,
    compat: Literal["astrasim", "astrasim-aware"] | None = None,
    system: str | None = None,
    bandwidth: str | None = None,
    latency: str | None = None,
    device: DeviceIfAny = None,
    network: Literal["flows", "packets"] = "flows",
    transport: str | None = None,
    software: Software = None,
    set_: Annotated[tuple[str, ...], Parameter(name="--set", consume_multiple=False)] = (),
    output: str | None = None,
    quantity: str | None = None,
    json: Annotated[bool, Parameter(negative="")] = False,
) -> None:
    """Time one collective that has the links of a machine to itself.

    Parameters
    ----------
    operation
        all-reduce, reduce-scatter, all-gather, all-to-all, broadcast, ...; a wrong name lists them.
    size
        Size with its unit, counted as nccl-tests counts it: 100MB, 4 MiB.
    where
        A cluster or node by name or file, or inline: "Ring(16, 50 GB/s, 500 ns)".
    ranks
        Number of devices that take part; by default all.
    ranks_per_node
        Number of ranks on each node; by default nodes are filled one after the other.
    algorithm
        auto, the name of an algorithm (a wrong name lists them), or a file of your own: MSCCL's
        XML, MSCCL++'s JSON, a custom collective of ASTRA-sim (.et), or rounds of messages in YAML.
        A file is verified before it is timed. A tuner table of NCCL (.conf) chooses by size.
    library
        Library that runs it: nccl, or the all-reduce of a serving framework: vllm, sglang, trtllm.
    launch
        How kernels are launched. queued: the host runs ahead of the device, or replays a graph;
        stream: as nccl-tests without graphs; eager: call by call from PyTorch.
    number_format
        Number format of the values. It matters in switches, which do not add int8.
    cost
        Price messages by LogGP ("loggp overhead=1us gap=500ns semantics=one-sided rendezvous=64kB")
        or BSP ("bsp g=0.1ns l=5us w=0s") instead of the links they share.
    compression
        Part of the buffer that is sent: "density=0.001 value=32 place=16 fill_in=independent"
        (bits; fill_in is independent, worst or none), or "value=8" for narrower values.
    compat
        Repeat another simulator. astrasim: the time that ASTRA-sim 2 reports for a product of
        rings and switches; astrasim-aware: with its congestion-aware backend, in one dimension.
    system
        With --compat: a system file of ASTRA-sim (JSON).
    bandwidth
        Bandwidth of links for an inline topology that states none, such as "Ring(8)_Switch(16)":
        one value, or one for each dimension, innermost first: "200GB/s,25GB/s".
    latency
        Latency of links for an inline topology that states none: one value, or one for each
        dimension, innermost first: "500ns".
    device
        Device whose shipped node gives the bandwidth of links that state none.
    network
        flows: messages share links fairly; packets: every message is cut into packets, and each
        packet is simulated (docs/transport.md).
    transport
        With --network packets: plain, pfc, dcqcn, infiniband, infiniband-adaptive, spray or
        adaptive, and its fields: "dcqcn queue_pairs=4 kmin=20kB seed=1".
    software
        Software stack, by name or file: the size is of gradients, which it sums in its buckets,
        one after the other. Its other settings are of steps.
    set_
        Replace one field of the machine: cluster.node.device=v100-sxm3-32gb.
    output
        Also write the messages of the algorithm: FILE.goal for LogGOPSim, FILE.et for ASTRA-sim
        (one file a rank), FILE.xml for MSCCL. FILE.conf is a tuner table of NCCL: the fastest
        algorithm and protocol for each size up to this one.
    quantity
        Print one number alone: time_s, busbw_bytes_per_s or another field of the JSON.
    json
        Print the answer as JSON.
    """
    from ridgeline.network.collectives import collective
    from ridgeline.network.inline import with_links
    from ridgeline.units import parse

    model = None
    if cost is not None:
        from ridgeline.network.loggp_bsp_costs import cost_of

        model = cost_of(cost)
    packed = None
    if compression is not None:
        from ridgeline.network.sparse import compression_of

        packed = compression_of(compression)
    settings = None
    if system is not None:
        from ridgeline.network.astrasim_files import read_system

        settings = read_system(system)
    place = with_device(with_links(where, bandwidth, latency), device)
    priced = partial(
        collective,
        operation,
        where=_network(place, assignments(set_)),
        ranks=ranks,
        ranks_per_node=ranks_per_node,
        algorithm=algorithm,
        library=library,
        launch=launch,
        number_format=number_format,
        cost=model,
        compression=packed,
        compat=compat,
        system=settings,
        network=network,
        transport=transport,
    )
    if output is not None:
        drawn = _network(place, assignments(set_))
        _write(operation, size, drawn, output, ranks, ranks_per_node, algorithm)
    stack, count = None, 1
    if name := one_stack(software):
        from ridgeline.software.load import load_software
        from ridgeline.study.buckets import in_buckets

        stack = load_software(name)
        answer, count = in_buckets(stack, operation, parse(size, "B"), priced)
    else:
        answer = priced(parse(size, "B"))
    if quantity is not None:
        print_quantity(answer, quantity, json=json)
        return
    if json:
        of_stack = {} if stack is None else {"software": stack.name, "buckets": count}
        print_json({**asdict(answer), **of_stack})
        return
    _print(answer, stack, count)


def _print(answer: CollectiveResult, stack: Stack | None, count: int) -> None:
    from ridgeline.report.tables import plain_table
    from ridgeline.units import show

    rows = plain_table({"": "left", " ": "right"}, headings=False)
    rows.add_row("time", show(answer.time_s, "s", 4))
    if stack is not None:
        each = show(answer.size_bytes / count, "B", 4)
        rows.add_row(f"software {stack.name}", f"{count} x {each}, one after the other")
    rows.add_row("algorithm", answer.algorithm)
    if answer.busbw_bytes_per_s is not None and answer.algbw_bytes_per_s is not None:
        rows.add_row("algorithm bandwidth", show(answer.algbw_bytes_per_s, "B/s", 4))
        rows.add_row("bus bandwidth", show(answer.busbw_bytes_per_s, "B/s", 4))
    energy = "not priced (no energy given)"
    if not answer.link_utilisation:
        energy = "0 J (nothing is sent)"
    elif answer.energy_j:
        energy = show(answer.energy_j, "J", 4)
    rows.add_row("energy on the links", energy)
    network = answer.network
    if "transport" in network:
        rows.add_row("network", f"packets: {network['transport']}")
        counts = (f"{network[name]:,} {name.partition('_')[0]}" for name in _COUNTS)
        rows.add_row("", ", ".join(counts))
    console().print(rows)
    if note := network.get("algorithm_note"):
        console().print(note, soft_wrap=True, markup=False)
    if "transport" in network:
        said = f"known of its error: {network['known_error']}"
        console().print(said, soft_wrap=True, markup=False)


_COUNTS = ("packets_played", "marked", "pauses")


def _write(
    operation: str,
    size: str,
    where: str | Cluster | Topology,
    output: str,
    ranks: int | None,
    ranks_per_node: int | None,
    algorithm: str,
) -> None:
    """Write a collective to the files of other programs."""
    from ridgeline.network.collectives import collective_files
    from ridgeline.report.files import replacing
    from ridgeline.units import parse

    written = collective_files(
        operation,
        parse(size, "B"),
        where,
        output,
        ranks=ranks,
        ranks_per_node=ranks_per_node,
        algorithm=algorithm,
    )
    for path, content in written.items():
        with replacing(path) as temporary:
            temporary.write_bytes(content)


def _network(where: str, fields: dict[str, Any]) -> str | Cluster | Topology:
    """Return a network with some fields of it replaced."""
    if not fields:
        return where
    from ridgeline.network.resolve import network_of
    from ridgeline.study.point import check_path

    return network_of(where, {check_path(p, ("cluster",))[1]: v for p, v in fields.items()})
