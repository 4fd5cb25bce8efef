"""Routing, flow control and congestion control beside published and derived figures.

Hashes are drawn many times and links divided fairly (`ridgeline.network.multipath`); pauses, marks
and sprayed packets are played one by one (`ridgeline.network.transport`). Nothing is fitted. Where
the source has a transport that is not modelled (NDP, DCTCP), what is nearest stands beside it, and
the row says which.
"""

from __future__ import annotations

import csv
import math
from dataclasses import replace
from functools import cache
from importlib import resources

import numpy as np

from ridgeline.network.collectives import collective
from ridgeline.network.faults import read_faults, with_faults
from ridgeline.network.inline import from_text
from ridgeline.network.multipath import collisions, sprayed_rates
from ridgeline.network.topology import DEVICE, Floats, LinkKind, Topology, TopologyBuilder
from ridgeline.network.traffic import Flows, flow_rates, flow_times, make_flows
from ridgeline.network.transport import PRESETS, Transport, play_transport
from ridgeline.study.reproduce.table import ReproducedFigure, Reproduction

_GBIT = 1e9 / 8
_DRAWS = 4000  # of balls into bins
_SEEDS = 10  # permutations whose median counts
_PLAYED, _LONG = 3, 10e6  # of them, those that are played packet by packet; bytes of a flow
_OF_HTSIM = {"shift1": "stride:1", "shifthalf": "stride:64", "perm(seed3)": "permutation:3",
             "incast": "incast:0"}  # fmt: skip


def reproduce() -> Reproduction:
    """Compute every figure anew."""
    told = _table("transport.csv")
    rows = [*_hashes(told), *_pauses(told), *_marks(told), *_failures(told), *_incasts(told)]
    return Reproduction(
        name="transport",
        title="Routing, flow control and congestion control",
        source="published figures and derived ones; each row names its own",
        rows=(*rows, *_sprayed()),
        fits=(),
        notes=(
            "recalled figures are shown without a promise; those of NDP and DCTCP stand beside "
            "adaptive, sprayed and hashed routing, not beside their transports",
            "not compared: gains 'up to' of whole systems (HPCC, HPN, C4, STrack, REPS, RailS, "
            "Spectrum-X), whose traffic is not stated; QCN, MPTCP and one-packet windows, which "
            "are not modelled; two jobs on one link (TF117) are in `ridgeline jobs`' tests",
        ),
    )


def _table(name: str) -> dict[str, dict[str, str]]:
    text = resources.files(__package__).joinpath(name).read_text("utf-8")
    rows = list(csv.DictReader(text.splitlines()))
    return {row.get("id") or row["pattern"]: row for row in rows}


def _row(
    told: dict[str, str],
    predicted: float,
    *,
    tolerance: float | None = None,
    points: bool = False,
    note: str = "",
    published: tuple[float, float] | None = None,
) -> ReproducedFigure:
    value = published or (float(told["value"]), float(told["value"]))
    return ReproducedFigure(
        group=f"{told['id']} {told['source']}: {told['condition']}",
        quantity=told["metric"],
        unit=told["unit"],
        published=value,
        predicted=predicted,
        unfitted=predicted,
        points=points,
        tolerance=tolerance,
        note="; ".join(filter(None, (told["provenance"].replace("_", " "), note))),
    )


def two_leaves(hosts: int, spines: int, bandwidth: float, latency_s: float = 0.0) -> Topology:
    """Draw two leaves of so many hosts each, joined by so many spines, of links of one kind."""
    drawing, kind = TopologyBuilder(), LinkKind("link", bandwidth, latency_s, 0.0)
    devices = [drawing.vertex(f"host{i}", DEVICE) for i in range(2 * hosts)]
    leaves = [drawing.vertex(f"leaf{i}", "switch") for i in range(2)]
    for host in devices:
        drawing.join(host, leaves[host >= hosts], kind)
    for i in range(spines):
        spine = drawing.vertex(f"spine{i}", "switch")
        for leaf in leaves:
            drawing.join(leaf, spine, kind)
    return drawing.finish(f"two leaves of {hosts}", devices)


def across(hosts: int, size_bytes: float = 1.0) -> Flows:
    """Return a message from each host of the first leaf to one of the second."""
    first = np.arange(hosts, dtype=np.int64)
    return Flows(first, first + hosts, np.full(hosts, size_bytes))


@cache
def _shares(flows: int, links: int) -> tuple[Floats, float]:
    """Return [draws, flows] shares of the line rate, and how often no two flows met."""
    found = collisions(two_leaves(flows, links, 1.0), across(flows), draws=_DRAWS)
    return found.share, float(found.without.mean())


def _hashes(told: dict[str, dict[str, str]]) -> list[ReproducedFigure]:
    """Flows that are hashed onto links, as balls that are thrown into bins."""
    rows = []
    for one in told.values():
        words = one["metric"].replace(",", "").split()
        if one["topic"] != "ecmp" or "flows" not in words or "links" not in words:
            continue
        flows = int(next(word for word in words if word.isdecimal()))
        links = int(words[words.index("links") - 1])
        share, without = _shares(flows, links)
        if one["unit"] == "probability":
            spread = math.sqrt(without * (1 - without) / _DRAWS)
            rows.append(_row(one, without, tolerance=4 * spread, points=True))
        else:
            slowest = "slowest" in words
            each = share.min(axis=1) if slowest else share.mean(axis=1)
            spread = float(each.std()) / math.sqrt(_DRAWS)
            tolerance = 4 * spread + (1e-3 if slowest else 0.0)  # of the figure's own draws
            rows.append(_row(one, float(each.mean()), tolerance=tolerance, points=True))
    one_spine = two_leaves(2, 1, 100 * _GBIT)
    rate = float(flow_rates(one_spine, across(2))[0]) / _GBIT
    rows.append(_row(told["TF069"], rate, tolerance=0.01))
    return rows


def _pauses(told: dict[str, dict[str, str]]) -> list[ReproducedFigure]:
    """One flow against three that come over one link, where switches pause links, not flows."""
    drawing, kind = TopologyBuilder(), LinkKind("link", 40 * _GBIT, 1e-6, 0.0)
    hosts = [drawing.vertex(f"host{i}", DEVICE) for i in range(5)]
    near, far = (drawing.vertex(name, "switch") for name in ("near", "far"))
    for host in hosts[1:4]:
        drawing.join(host, far, kind)
    for vertex in (hosts[0], hosts[4], far):
        drawing.join(vertex, near, kind)
    topology = drawing.finish("parking lot", hosts)
    flows = Flows(np.arange(4), np.full(4, 4), np.full(4, 50e6))
    found = play_transport(
        topology, flows, replace(PRESETS["pfc"], payload_bytes=1000.0), bin_s=1e-3, bins=20
    )
    rates = found.received_bytes[:, 5:15].mean(axis=1) / 1e-3 / _GBIT  # all are active
    note = "packets, PFC, no rate control"
    alone = _row(told["TF015a"], float(rates[0]), tolerance=0.05, note=note)
    return [alone, _row(told["TF015b"], float(rates[1:].mean()), tolerance=0.05, note=note)]


def _marks(told: dict[str, dict[str, str]]) -> list[ReproducedFigure]:
    """Two greedy flows under DCQCN."""
    topology = from_text("Switch(3, 40 Gb/s, 1 us)")
    flows = Flows(np.array([0, 1]), np.array([2, 2]), np.full(2, 500e6))
    transport = replace(PRESETS["dcqcn"], payload_bytes=1000.0)
    found = play_transport(topology, flows, transport, bin_s=10e-3, bins=20)
    rates = found.received_bytes[:, 2:18].mean(axis=1) / 10e-3 / _GBIT
    note = "packets; the one that is farther off, from 20 to 180 ms"
    worst = float(rates[np.abs(rates - 20.0).argmax()])
    return [_row(told["TF010"], worst, note=note)]


def _failures(told: dict[str, dict[str, str]]) -> list[ReproducedFigure]:
    """Permutations of 128 hosts with one slow link of the core, by how packets are routed."""
    sound = from_text("FatTree(8, 10 Gb/s, 1 us)")
    core = next(
        link for link in range(sound.n_links)
        if sound.vertex_kinds[sound.source[link]] == sound.vertex_kinds[sound.target[link]]
        and "core" in sound.vertex_names[sound.target[link]]
    )  # fmt: skip
    ends = (sound.vertex_names[v] for v in (sound.source[core], sound.target[core]))
    topology = with_faults(sound, read_faults([f"link {' '.join(ends)} slow 0.1"]), 128)
    hashed, sprayed, adaptive, marked = [], [], [], []
    transport = Transport(routing="adaptive", control="pfc", payload_bytes=8936, header_bytes=64)
    by_marks = replace(transport, routing="ecmp", dcqcn=True)
    for seed in range(_SEEDS):
        flows = make_flows(f"permutation:{seed}", 128, _LONG)
        hashed.append(collisions(topology, flows, draws=1, seed=seed).rates[0])
        sprayed.append(sprayed_rates(topology, flows))
        if seed < _PLAYED:
            adaptive.append(_LONG / play_transport(topology, flows, transport).done_s)
            again = replace(by_marks, seed=seed)
            marked.append(_LONG / play_transport(topology, flows, again).done_s)

    def of(rates: list[Floats], how: str) -> float:
        each = np.array(rates) / _GBIT
        found = {
            "mean": each.mean(axis=1),
            "median": np.median(each, axis=1),
            "slowest": each.min(axis=1),
            "10th": np.percentile(each, 10, axis=1),
        }[how]
        return float(np.median(found))

    median = f"median of {_SEEDS} permutations"
    rows = []
    for name in ("TF023", "TF026"):
        how = told[name]["metric"].split()[0]
        rows.append(
            _row(
                told[name],
                of(sprayed, how),
                note=f"fluid, sprayed evenly, nothing sent anew on other ways; {median}",
            )
        )
    for name in ("TF028", "TF029"):
        how = told[name]["metric"].split()[0]
        rows.append(
            _row(told[name], of(adaptive, how), note=f"packets, adaptive, PFC; median of {_PLAYED}")
        )
    for name in ("TF035", "TF036", "TF037", "TF038"):
        how = told[name]["metric"].split()[0]
        rows.append(_row(told[name], of(hashed, how), note=f"fluid, ECMP, no DCTCP; {median}"))
        note = f"packets, ECMP, DCQCN in the place of DCTCP; median of {_PLAYED}"
        rows.append(_row(told[name], of(marked, how), note=note))
    return rows


def _incasts(told: dict[str, dict[str, str]]) -> list[ReproducedFigure]:
    """Incasts, and a permutation on one path each."""
    topology = from_text("Switch(6, 10 Gb/s, 1 us)")
    flows = Flows(np.array([0, 0, 0, 0, 5]), np.array([1, 2, 3, 4, 4]), np.full(5, 20e6))
    transport = Transport(control="pfc", payload_bytes=8936, header_bytes=64)
    found = play_transport(topology, flows, transport, bin_s=1e-3, bins=60)
    rates = found.received_bytes[:, 5:15].mean(axis=1) * 9000 / 8936 / 1e-3 / _GBIT
    note = "packets, PFC, no NDP; with headers"
    rows = [
        _row(told["TF041"], float(rates[2]), tolerance=0.03, note=note),
        _row(told["TF042"], float(rates[3]), note=note),
    ]
    many = make_flows("incast:0", 6, 10e6)
    last_s = float(play_transport(topology, many, transport).done_s.max())
    best = 8936 / 9000 * 10.0
    rows.append(
        _row(
            {**told["TF050"], "unit": "Gb/s", "metric": "goodput of a 5-to-1 incast"},
            50e6 / last_s / _GBIT, published=(best, best), tolerance=0.005,
            note="packets, PFC; the bound is payload over packet times 10 Gb/s",
        )
    )  # fmt: skip
    tree = from_text("FatTree(16, 100 Gb/s, 500 ns)")
    last_us = []
    for seed in range(_SEEDS):
        some = make_flows(f"permutation:{seed}", 1024, 2e6)
        last_us.append(2e12 / float(collisions(tree, some, draws=1, seed=seed).rates.min()))
    rows.append(
        _row(
            told["TF046"], float(np.median(last_us)), published=(160.0, 1300.0), tolerance=0.0,
            note="fluid, ECMP, 100 Gb/s taken; from the ideal to the limit",
        )
    )  # fmt: skip
    for name, share in (("TF121a", 0.5), ("TF121b", 0.875)):
        whole = from_text("Switch(8, 50 GB/s, 0 s)")
        hub = next(v for v, kind in enumerate(whole.vertex_kinds) if kind == "switch")
        ends = f"{whole.vertex_names[3]} {whole.vertex_names[hub]}"
        slow = with_faults(whole, read_faults([f"link {ends} slow {share}"]), 8)
        times = [
            collective("all-reduce", 1e9, where, algorithm="ring").time_s for where in (slow, whole)
        ]
        rows.append(_row(told[name], times[0] / times[1], tolerance=0.001, note=f"f = {share}"))
    return rows


def _sprayed() -> list[ReproducedFigure]:
    """Play the patterns of an htsim run (`packet-vs-fluid`) packet by packet."""
    topology = from_text("FatTree(8, 100 Gb/s, 500 ns)")
    rows = []
    for name, told in _table("packet_vs_fluid.csv").items():
        if name not in _OF_HTSIM:
            continue
        flows = make_flows(_OF_HTSIM[name], 128, float(told["bytes_per_flow"]))
        fluid_us = float(flow_times(topology, flows, 16).max()) * 1e6
        for routing in ("spray", "adaptive"):
            transport = replace(PRESETS[routing], payload_bytes=4000.0, header_bytes=64.0)
            last_us = float(play_transport(topology, flows, transport).done_s.max()) * 1e6
            published = float(told["ndp_last_us"])
            rows.append(
                ReproducedFigure(
                    group=f"htsim {name}, {told['flows']} flows",
                    quantity=f"last arrival, NDP; packets, {routing}, PFC",
                    unit="us",
                    published=(published, published),
                    predicted=last_us,
                    unfitted=last_us,
                    tolerance=0.08,
                    note=f"fluid {fluid_us:.4g}",
                )
            )
    return rows
