"""``ridgeline transport``: messages over a network under a transport, and when they arrive."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import Parameter

from ridgeline.cli.names import Machine
from ridgeline.cli.number_options import Count, Whole
from ridgeline.cli.output import console, print_json

if TYPE_CHECKING:
    from ridgeline.network.completion_times import Completions


def transport_(
    pattern: str,
    size: str,
    where: Machine,
    *,
    ranks: Whole | None = None,
    transport: Annotated[tuple[str, ...], Parameter(consume_multiple=False)] = ("plain",),
    network: Literal["flows", "packets"] = "packets",
    draws: Count = 1,
    plot: str | None = None,
    json: Annotated[bool, Parameter(negative="")] = False,
) -> None:
    """Send messages over a network, all at once, under a transport.

    Parameters
    ----------
    pattern
        stride:4, permutation:SEED, random:SEED, incast:TARGET or all-to-all.
    size
        Size of each message with its unit: 1MB.
    where
        A cluster by name or file, or inline: "FatTree(8, 100 Gb/s, 500 ns)".
    ranks
        Number of devices that take part; by default all.
    transport
        plain, pfc, dcqcn, infiniband, infiniband-adaptive, spray or adaptive, and its fields: "pfc
        routing=ecmp queue_pairs=4 seed=1" (docs/transport.md). Repeat it to compare several.
    network
        packets: every packet is simulated; flows: messages share links fairly, and of the
        transport only its routing counts.
    draws
        Number of simulations, each with the next seed of hashes and marks.
    plot
        File for a figure of the completion times: .png, .svg or .pdf.
    json
        Print the answer as JSON.
    """
    from ridgeline.network.completion_times import completions
    from ridgeline.network.resolve import topology_of
    from ridgeline.network.traffic import make_flows
    from ridgeline.network.transport import transport_of
    from ridgeline.units import parse

    if plot is not None:
        from ridgeline.report.files import check_writable

        check_writable(plot)
    asked = [transport_of(text) for text in transport]
    topology = topology_of(where, ranks)
    flows = make_flows(pattern, ranks or topology.n_devices, parse(size, "B"))
    found = [completions(topology, flows, one, network, draws) for one in asked]
    if plot is not None:
        from ridgeline.report.figures.completions import completion_curves
        from ridgeline.report.figures.result import save

        save(completion_curves(found, topology.name, f"{pattern} {size}"), plot)
    if json:
        answers = [one.to_dict() for one in found]
        said = answers[0] if len(answers) == 1 else {"transports": answers}
        print_json({"name": topology.name, "pattern": pattern, **said})
        return
    for one in found:
        _print(pattern, one)
    if plot is not None:
        console().print(f"wrote {plot}", soft_wrap=True)


def _print(pattern: str, found: Completions) -> None:
    from ridgeline.report.tables import plain_table
    from ridgeline.units import show

    rows = plain_table({"": "left", " ": "right"}, headings=False)
    drawn = f", {found.draws:,} draws" if found.draws > 1 else ""
    rows.add_row(pattern, f"{found.messages:,} messages{drawn}")
    rows.add_row("transport", found.transport)
    for name, time_s in (("p50", found.p50_s), ("p95", found.p95_s), ("p99", found.p99_s)):
        rows.add_row(f"completion, {name}", show(time_s, "s", 4))
    rows.add_row("last", show(found.last_s[0], "s", 4))
    if found.draws > 1:
        rows.add_row("last, 95th percentile", show(found.last_s[1], "s", 4))
    rows.add_row("ports of devices alone", show(found.ideal_s, "s", 4))
    if found.collisions:
        rows.add_row("hashed: mean rate, over alone", f"{found.collisions['mean_share']:.3f}")
        rows.add_row("slowest message", f"{found.collisions['slowest_share']:.3f}")
        rows.add_row("most connections on a link", f"{found.collisions['most_on_a_link']:g}")
    for name in ("packets", "marked", "notices", "pauses"):
        if name in found.counters:
            rows.add_row(name, f"{int(found.counters[name]):,}")
    if found.counters:
        rows.add_row("longest queue", show(found.counters["longest_queue_bytes"], "B", 4))
        rows.add_row("longest pause", show(found.counters["longest_pause_s"], "s", 4))
    console().print(rows)
    console().print(
        f"level: {found.level}; known of its error: {found.known_error}",
        soft_wrap=True, markup=False,
    )  # fmt: skip
