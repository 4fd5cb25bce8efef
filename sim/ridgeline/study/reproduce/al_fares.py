"""Strides on an oversubscribed tree and on a fat tree: Al-Fares et al., SIGCOMM 2008, Table 2.

All 16 hosts send at once, each to the host a stride further on. The figure is what they reach
together, as a share of what their own links would let them: max-min fair rates, nothing else.
"""

from __future__ import annotations

import csv
from dataclasses import replace
from importlib import resources

from ridgeline.network.inline import from_text
from ridgeline.network.topology import Topology
from ridgeline.network.traffic import flow_rates, make_flows
from ridgeline.study.reproduce.table import ReproducedFigure, Reproduction

_HOSTS, _LINK = 16, "96 Mb/s, 0 s"  # the rate to which the paper limits every port
_STRIDES = (1, 2, 4, 8)


def reproduce() -> Reproduction:
    """Compute the strides of both networks."""
    tree = from_text(f"Tree({_HOSTS}, 4, 3.6, {_LINK})")
    text = resources.files(__package__).joinpath("al_fares.csv").read_text("utf-8")
    rows = tuple(
        ReproducedFigure(
            group="tree, uplinks oversubscribed 3.6 to 1",
            quantity=f"{row['pattern']}, share of bisection",
            unit="",
            published=(float(row["share_of_bisection"]),) * 2,
            predicted=(share := share_of_bisection(tree, row["pattern"])),
            unfitted=share,
            points=True,
            tolerance=0.005,
        )
        for row in csv.DictReader(text.splitlines())
    )
    fat = from_text(f"FatTree(4, {_LINK})")
    computed = {
        routing: [
            share_of_bisection(replace(fat, routing=routing), f"stride:{stride}")
            for stride in _STRIDES
        ]
        for routing in ("two-level-table", "flow-scheduler", "ecmp")
    }
    return Reproduction(
        name="al-fares",
        title="Strides on an oversubscribed tree and on a fat tree",
        source="Al-Fares, Loukissas and Vahdat, SIGCOMM 2008, Table 2 (measured, 16 hosts)",
        rows=rows,
        fits=(),
        notes=(
            *(
                f"FatTree(4), {routing}: strides {', '.join(map(str, _STRIDES))} reach "
                + ", ".join(f"{100 * share:.1f} %" for share in shares)
                for routing, shares in computed.items()
            ),
            "the table's figures of the fat tree and of random patterns are not at hand here, so "
            "that those are computed but not compared",
        ),
    )


def share_of_bisection(topology: Topology, pattern: str) -> float:
    """Return what all hosts reach together over what their own links allow."""
    flows = make_flows(pattern, topology.n_devices, 1.0)
    own = float(topology.bandwidth_bytes_per_s[topology.out_ptr[topology.devices]].sum())
    return float(flow_rates(topology, flows).sum()) / own
