"""``ridgeline topology``: what a network amounts to, and its picture."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from ridgeline.cli.names import DeviceIfAny, Machine
from ridgeline.cli.number_options import Whole
from ridgeline.cli.output import console, print_json

if TYPE_CHECKING:
    from ridgeline.network.load import LinkLoad
    from ridgeline.network.topology_metrics import Measures


def topology_(
    where: Machine,
    *,
    devices: Whole | None = None,
    load: str | None = None,
    plot: str | None = None,
    bandwidth: str | None = None,
    latency: str | None = None,
    device: DeviceIfAny = None,
    output: str | None = None,
    json: Annotated[bool, Parameter(negative="")] = False,
) -> None:
    """Count, measure and draw a network.

    Parameters
    ----------
    where
        A cluster or node by name or file, a topology file, or inline: "Torus(4x8, 50 GB/s, 1 us)".
    devices
        Number of devices of a cluster in use; by default all that it can have.
    load
        What the links carry: a collective and a size, "all-reduce 100MB" (a third word names the
        algorithm), or messages all at once, "stride:4 1MB", "permutation:SEED 1MB", "incast 1MB".
    plot
        File of the figure: .png, .svg or .pdf.
    bandwidth
        Bandwidth of links for an inline topology that states none, such as "Ring(8)_Switch(16)":
        one value, or one for each dimension, innermost first: "200GB/s,25GB/s".
    latency
        Latency of links for an inline topology that states none: one value, or one for each
        dimension, innermost first: "500ns".
    device
        Device whose shipped node gives the bandwidth of links that state none.
    output
        File for the network as an InfraGraph document: .json or .yaml.
    json
        Print the answer as JSON.
    """
    from ridgeline.study.topology import topology

    found = topology(
        where, devices=devices, load=load, bandwidth=bandwidth, latency=latency, device=device
    )
    if output is not None:
        found.write(output)
    if plot is not None:
        from ridgeline.report.figures.result import save

        save(found.plot(), plot)
    if json:
        print_json(found.to_dict())
        return
    _print(found.topology.name, found.measures, found.load)
    for note in found.topology.assumed:
        console().print(f"assumed: {note}", soft_wrap=True, markup=False)
    for path in (plot, output):
        if path is not None:
            console().print(f"wrote {path}", soft_wrap=True)


def _print(name: str, measures: Measures, loaded: LinkLoad | None) -> None:
    from ridgeline.report.tables import plain_table
    from ridgeline.units import show

    rows = plain_table({"": "left", " ": "left"}, headings=False)
    rows.add_row("topology", name)
    rows.add_row("devices", f"{measures.n_devices:,}")
    rows.add_row("switches, NICs", f"{measures.n_switches:,}, {measures.n_nics:,}")
    rows.add_row("links", f"{measures.n_links:,}")
    if measures.diameter < 0:
        rows.add_row("diameter", "not connected: some devices have no way to others")
        rows.add_row("bisection, one way", "none: not connected")
    else:
        rows.add_row("diameter", f"{measures.diameter} links")
        at_most = "at most " if measures.bisection_is == "upper bound" else ""
        found = show(measures.bisection_bytes_per_s, "B/s", 4)
        rows.add_row("bisection, one way", at_most + found)
        rows.add_row("", f"{measures.bisection_is}: {measures.bisection_reason}")
    for link in measures.links:
        energy = (
            show(link.energy_j_per_bit, "J", 3) + " a bit"
            if link.energy_j_per_bit
            else ("energy not given")
        )
        rows.add_row(
            f"  {link.n_links:,} x {link.name}",
            f"{show(link.bandwidth_bytes_per_s, 'B/s', 4)} each way, "
            f"{show(link.latency_s, 's')}, {energy}",
        )
    counted = f" ({measures.priced})" if measures.priced else ""
    cost, power = measures.cost_dollars, measures.power_w
    rows.add_row("cost", "not given" if cost is None else f"{cost:,.0f} USD{counted}")
    rows.add_row("power", "not given" if power is None else show(power, "W", 4) + counted)
    if loaded is not None:
        rows.add_row("load", loaded.title)
        rows.add_row("  time", show(loaded.time_s, "s", 4))
        rows.add_row("  busiest link", f"{loaded.share.max(initial=0.0):.1%} of the time in use")
    console().print(rows, markup=False)
