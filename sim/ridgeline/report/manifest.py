"""The manifest: everything that is needed to repeat a result and to judge it."""

from __future__ import annotations

import hashlib
import json
from typing import Any

import numpy as np
from pydantic import BaseModel

from ridgeline.hardware.cluster import Cluster
from ridgeline.hardware.device import Device
from ridgeline.hardware.energy import EnergyTable
from ridgeline.hardware.sourced import NOT_STATED, sourced_values
from ridgeline.kernels.traffic import pooled_notes
from ridgeline.network.topology import Topology
from ridgeline.parallel.fitting_cut import stage_shares
from ridgeline.parallel.lower import COLLECTIVE, Lowered
from ridgeline.parallel.plan.default_precision import precision_notes
from ridgeline.parallel.sharding.axes import sharding_rule
from ridgeline.parallel.sharding.experts import dropped_share
from ridgeline.plugins import loaded_plugins
from ridgeline.report.result import Details
from ridgeline.report.uncertainty.ground import ground_of
from ridgeline.software.stack import GROUPS
from ridgeline.version import __version__
from ridgeline.workload.execution import Execution
from ridgeline.workload.formats import find
from ridgeline.workload.fused_op import FusedOp
from ridgeline.workload.graph import Graph
from ridgeline.workload.numerics import NARROW_MULTIPLE, PRECISIONS

FLOP_DEFINITION = (
    "1 MAC = 2 FLOP; matrix and convolution FLOPs of forward and backward at the mathematical "
    "shapes, without elementwise work and recomputation"
)


_INPUT = "input pipeline"
_CONTENTION = "slow-down of compute by overlapping communication"
_CLOCKS = "clocks under power limits"
_NEARER = "capacity of caches nearer than the last"
NOT_MODELLED = (
    _INPUT,
    "accuracy",
    _NEARER,
    _CONTENTION,
    _CLOCKS,
)


def manifest(details: Details) -> dict[str, Any]:
    """Return the manifest of one simulation as plain values; ``hash`` identifies all the rest.

    Neither clock time nor host names nor paths are in it: equal inputs give an equal manifest.
    """
    graph, cluster, plan, lowered = details.graph, details.cluster, details.plan, details.lowered
    device, feed = cluster.device, details.feed
    content: dict[str, Any] = {
        "ridgeline": __version__,
        "scope": "one training step: forward, backward, gradient reduction, update",
        "model": {
            "name": graph.name,
            "fingerprint": graph_fingerprint(graph),
            "parameters": graph.parameters,
            "sample": graph.sample,
            "overrides": dict(details.model.overrides),
        },
        "cluster": {
            "name": cluster.name,
            "fingerprint": cluster_fingerprint(cluster),
            "overrides": dict(cluster.overrides),
        },
        "device": {
            "name": device.name,
            "year": device.year,
            "process_node_nm": _scaled(device.process_node, 1e9),
            "tdp_w": _scaled(device.tdp, 1.0),
            "area_mm2": _scaled(device.area, 1e6),
            "price_usd": _scaled(device.price, 1.0),
            "energy_table": device.prices.name,
            "energy_scopes": sorted({entry.scope for entry in device.prices.entries.values()}),
        },
        **kinds_manifest(details),
        "plan": {
            **plan.strategy,
            "devices": plan.devices,
            "rank_batch": plan.rank_batch,
            "micro_batch_size": plan.micro_batch_size,
            "micro_batches": plan.micro_batches,
        },
        "software": software_manifest(details),
        "mapper": "fast",
        "flop_definition": FLOP_DEFINITION,
        "energy_scope": "devices in use and the links between them; host and cooling left out",
        "scaling": "single point",
        "not_modelled": [
            what
            for what in NOT_MODELLED
            if (device.board_limit is None or what != _CLOCKS)
            and (device.achievable or what != _NEARER)
            and not (plan.stack.overlap.contention and what == _CONTENTION)
            and not (feed is not None and what == _INPUT)
        ]
        + [*device.unpriced, *unpriced_links(details)],
        "io_modelled": feed is not None,
        "accuracy_modelled": False,
        "ranks": ranks_manifest(details),
        "not_divided": lowered.whole,
        **(
            {"dropped_choices": dropped_share(graph, plan.expert_load_factor)}
            if plan.expert_load_factor > 1
            else {}
        ),
        "trust": trust(details),
        "notes": [
            *graph.notes,
            *sharding_notes(lowered),
            *narrow_notes(lowered, plan.precision),
            *precision_notes(plan.precision, device),
            *zeros_notes(lowered),
            *source_notes(details),
            *device.component_notes,
            *pooled_notes(device),
            *(cluster.drawn.assumed if cluster.drawn is not None else ()),
            *plan.notes,
            *cut_notes(details),
            *fusion_notes(lowered, plan.stack.kernels.fused_layers),
        ],
        **({} if feed is None else {"input": feed.manifest()}),
        **(
            {}
            if details.most_micro_batches is None
            else {"most_micro_batches": details.most_micro_batches}
        ),
        **({"plugins": plugins} if (plugins := dict(loaded_plugins())) else {}),
    }
    spelled = {"spelled": dict(details.spelled)} if details.spelled else {}  # of no consequence
    return {**content, "hash": digest(content), **spelled}


def ranks_manifest(details: Details) -> dict[str, Any]:
    """Return how many ranks stand for how many, and the least step time where not exactly.

    That is the step with each collective and message as fast as its fastest group alone.
    """
    lowered, timeline = details.lowered, details.timeline
    sizes = [len(members) for members in lowered.classes]
    content: dict[str, Any] = {"real": sum(sizes), "simulated": len(sizes)}
    if len(set(sizes)) > 1:
        content["one_stands_for"] = [min(sizes), max(sizes)]
    if not lowered.fastest_s:
        return content
    from ridgeline.engine.replay import replay_s

    program = timeline.program
    n_rows = len(program.event_ptr) - 1
    count = np.bincount(program.cost, minlength=n_rows)
    total_s = np.bincount(program.cost, timeline.durations_s, n_rows)
    ratios = np.ones((n_rows, 1))
    for row, fastest_s in lowered.fastest_s.items():
        if total_s[row] > 0:
            ratios[row] = min(1.0, fastest_s * count[row] / total_s[row])
    least_s = float(replay_s(timeline, ratios)[0])
    return {**content, "slowest_stands_for_all": True, "step_time_s_at_least": least_s}


def kinds_manifest(details: Details) -> dict[str, Any]:
    """Return the devices of each kind of a step on several, and what they take without links."""
    lowered, program = details.lowered, details.timeline.program
    if not lowered.kinds:
        return {}
    price_j = np.array([account.price_j for account in program.accounts])
    event_j = program.event_count * price_j[program.event_account]
    row_j = np.add.reduceat(np.append(event_j, 0.0), program.event_ptr[:-1])
    row_j[np.diff(program.event_ptr) == 0] = 0.0
    computes = np.array([name != COLLECTIVE for name in program.kind_names])[program.kind]
    kind_of_rank, times = np.array(lowered.kind_of_rank), program.rank_multiplicity
    kind_of_task = kind_of_rank[program.stream_rank[program.stream]]
    task_j = row_j[program.cost] * program.multiplicity
    time_s = details.timeline.makespan_s
    found = []
    for kind, device in enumerate([details.cluster.device, *(k.device for k in lowered.kinds)]):
        count = int(times[kind_of_rank == kind].sum())
        own_j = float(task_j[computes & (kind_of_task == kind)].sum())
        found.append({
            "name": device.name,
            "count": count,
            "energy_j": own_j + device.idle_power.value * count * time_s,
        })  # fmt: skip
    return {"devices": found}


def software_manifest(details: Details) -> dict[str, Any]:
    """Return the stack of a step, its settings, and what it decided of the plan."""
    plan = details.plan
    stack = plan.stack
    return {
        "name": stack.name,
        "chosen_by": details.chosen_by,
        "bound": stack.bound,
        "settings": {group: getattr(stack, group).model_dump(mode="json") for group in GROUPS},
        "overrides": dict(stack.overrides),
        "decided": dict(plan.decided),
        "notes": list(plan.notes),
        "device_speed_std": plan.device_speed_std,
        "sequence_length_std": plan.sequence_length_std,
        "expert_load_factor": plan.expert_load_factor,
    }


_WORTH_SAYING = 0.02
"""Share of a step that another cut saves; less is within what the estimate of a pipeline tells."""


def unpriced_links(details: Details) -> list[str]:
    """Say whose bytes cost no energy since nobody has stated what a link takes."""
    timeline = details.timeline
    accounts = timeline.program.accounts
    places = {
        accounts[index].place
        for index, count in timeline.ledger().items()
        if accounts[index].component == "network" and count > 0 and not accounts[index].price_j
    }
    return [f"energy of {place} links: none is stated" for place in sorted(places)]


def cut_notes(details: Details) -> list[str]:
    """Say how a pipeline is cut whose plan leaves it open, or where another cut would be better."""
    lowered, plan = details.lowered, details.plan
    balance = plan.stage_balance
    if lowered.cut_as is not None:
        return [
            f"stages are cut as by stage_balance={lowered.cut_as}: messages share links, and as"
            " they are played the step ends sooner so"
        ]
    saved, full = 1 - lowered.shortest_cut, lowered.shortest_memory_share
    notes = []
    if saved >= _WORTH_SAYING:
        notes.append(
            f"stages are cut as the plan says (stage_balance={balance}): with stage_balance=even,"
            f" the pipeline would end about {saved:.0%} sooner"
        )
    if 0 < full <= 1 and not fits_by_stage(details):
        notes.append(
            f"stages are cut as the plan says (stage_balance={balance}), and do not fit into"
            f" memory: with stage_balance=even, the fullest device would hold about {full:.0%} of"
            " what it has room for"
        )
    return notes


def fits_by_stage(details: Details) -> bool:
    """Tell whether every stage of a step fits into its devices' memory."""
    step = (details.lowered, details.timeline)
    return bool(stage_shares(step, details.plan.widest(), details.cluster.device).max() <= 1.0)


def fusion_notes(lowered: Lowered, objective: str | None) -> list[str]:
    """Name the layers that are fused, or say that none are, where the software asks for it."""
    if objective is None:
        return []
    groups = [op for op in lowered.graph.ops if isinstance(op, FusedOp)]
    if not groups:
        return [f"no layers are fused: the step has the least {objective} without"]
    named = [
        f"{op.name} ({len(op.parts)} ops, {op.how.rows} rows a step)" for op in groups if op.how
    ]
    return [f"layers fused for the least {objective}: {'; '.join(named)}"]


def sharding_notes(lowered: Lowered) -> list[str]:
    """Name the op kinds that cannot be divided by a plan, since they have no sharding rule."""
    ruleless = {kind: n for kind, n in lowered.whole.items() if sharding_rule(kind) is None}
    if not ruleless:
        return []
    named = ", ".join(f"{kind} ({n} op{'s' if n > 1 else ''})" for kind, n in ruleless.items())
    return [
        f"slower than it need be: every device that shares a layer does all of {named}, since these"
        " op kinds have no sharding rule"
    ]


def narrow_notes(lowered: Lowered, precision: str | None) -> list[str]:
    """Say how much of the work a precision with narrow products does in them."""
    numerics = PRECISIONS.get(precision or "")
    if numerics is None or numerics.narrow is None:
        return []
    graph, formats = lowered.graph, {numerics.narrow.forward, numerics.narrow.gradient}
    done = {True: 0.0, False: 0.0}
    for i, flops in graph.contractions:
        is_narrow = any(graph.tensors[name].format in formats for name in graph.ops[i].inputs)
        done[is_narrow] += flops
    if not done[False]:
        return []
    share = done[True] / (done[True] + done[False])
    some, rest = (
        (f"{share:.0%} of the matrix FLOPs are", "the rest") if share else ("none is", "all")
    )
    bits = find(numerics.narrow.forward).bits
    which = f"products with weights whose sizes are multiples of {NARROW_MULTIPLE}"
    return [f"{precision}: {some} in {bits} bits ({which}), {rest} in {numerics.compute}"]


def source_notes(details: Details) -> list[str]:
    """Say which of the user's files cite no source."""
    model, feed = details.model, details.feed
    notes = [] if model.citation else [f"the network {model.name} cites no source"]
    if feed is not None and feed.dataset.unsourced:
        figures = ", ".join(feed.dataset.unsourced)
        notes.append(f"no source of the data set {feed.dataset.name}: {figures}")
    return notes


def zeros_notes(lowered: Lowered) -> list[str]:
    """Say what zeros in operands saved, and those that nothing was saved by."""
    dense = useful = issued = 0.0
    unused: dict[str, int] = {}
    for i, flops in lowered.graph.contractions:
        cost = lowered.op_costs[i]
        dense += flops
        useful += flops * cost.useful
        issued += flops * cost.issued
        for note in cost.notes:
            why = note.partition(" are computed: ")[2]
            if why:
                unused[why] = unused.get(why, 0) + 1
    if useful == dense:
        return []
    shares = f"{useful / dense:.1%} meet no zero, {issued / dense:.1%} take time"
    return [
        f"of the matrix FLOPs at their mathematical shapes, {shares}; MFU counts the latter",
        *(f"zeros in operands of {count} ops save nothing: {why}" for why, count in unused.items()),
    ]


def trust(details: Details) -> dict[str, Any]:
    """Say how far the numbers can be trusted: calibration, assumed and unsourced values."""
    device, lowered = details.cluster.device, details.lowered
    flops = {True: 0.0, False: 0.0}
    for i, of_op in lowered.graph.contractions:
        flops[lowered.op_costs[i].calibrated] += of_op
    done = flops[True] + flops[False]
    assumed, unsourced = list[str](), list[str]()
    for path, value in sourced_values(device):
        is_assumed, is_unsourced = value.basis == "assumed", value.source == NOT_STATED
        if (is_assumed or is_unsourced) and _matters(device, path):
            assumed += [path] if is_assumed else []
            unsourced += [path] if is_unsourced else []
    return {
        "calibrated_flop_share": flops[True] / done if done else 1.0,
        "assumed_values": sorted(assumed),
        "unsourced_values": sorted(unsourced),
        "uncertainty": ground_of(details).text,
    }


def _matters(device: Device, path: str) -> bool:
    """Leave out the share of a bandwidth that a memory level does not have."""
    where, _, field = path.rpartition(".")
    level = device.memory.get(where.removeprefix("memory."))
    return field != "achievable" or level is None or level.bandwidth is not None


def cluster_fingerprint(cluster: Cluster) -> str:
    """Hash of a cluster's values, with its node, device and energy tables."""
    node, device = cluster.nodes, cluster.device
    parts = [
        _dump(cluster), _table(cluster.prices), _dump(node), _table(node.prices), _dump(device),
        _table(device.prices),
    ]  # fmt: skip
    for group in cluster.group_nodes:
        parts += [_dump(group), _table(group.prices), _dump(group.devices)]
    if cluster.drawn is not None:
        parts += [topology_fingerprint(cluster.drawn), *map(_dump, cluster.kinds_of_devices)]
    return hashlib.sha256(f"[{','.join(parts)}]".encode()).hexdigest()[:16]


def _dump(part: BaseModel) -> str:
    rare = {name for name in ("groups", "faults") if getattr(part, name, None) == ()}
    return _compact(part.model_dump(mode="json", exclude={"aliases", *rare}))


_tables: dict[int, tuple[EnergyTable, str]] = {}


def _table(table: EnergyTable | None) -> str:
    """Write an energy table; points of a study share it, and that of the last few is remembered."""
    if table is None:
        return "null"
    known = _tables.get(id(table))
    if known is None or known[0] is not table:
        if len(_tables) >= _MOST_FINGERPRINTS:
            _tables.clear()
        known = _tables[id(table)] = table, _dump(table)
    return known[1]


_fingerprints: dict[int, tuple[Graph, str]] = {}
_MOST_FINGERPRINTS = 8


def graph_fingerprint(graph: Graph) -> str:
    """Hash of all ops and tensors of a graph; that of the last few graphs is remembered."""
    known = _fingerprints.get(id(graph))
    if known is None or known[0] is not graph:
        known = graph, _fingerprint(graph)
        if len(_fingerprints) >= _MOST_FINGERPRINTS:
            _fingerprints.clear()
        _fingerprints[id(graph)] = known
    return known[1]


def _fingerprint(graph: Graph) -> str:
    text = repr((graph.batch, graph.precision, sorted(graph.tensors.items()), graph.ops))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def execution_fingerprint(execution: Execution) -> str:
    """Hash of all tasks of an execution."""
    hasher = hashlib.sha256(repr((execution.world, execution.label_names)).encode())
    for name in ("task_ptr", "kind", "stream", "label", "duration_s", "flops", "size_bytes", "op",
                 "group", "peer", "tag", "dep_ptr", "dep_index", "group_rank"):  # fmt: skip
        hasher.update(getattr(execution, name).tobytes())
    return hasher.hexdigest()[:16]


def topology_fingerprint(topology: Topology) -> str:
    """Hash of a network's links and devices, so that it does not matter where it stood."""
    hasher = hashlib.sha256()
    for values in (
        topology.source, topology.target, topology.bandwidth_bytes_per_s, topology.latency_s,
        topology.energy_j_per_byte, topology.devices,
    ):  # fmt: skip
        hasher.update(np.ascontiguousarray(values).tobytes())
    return hasher.hexdigest()


def digest(content: object) -> str:
    """Hash of plain values."""
    return hashlib.sha256(_compact(content).encode()).hexdigest()[:16]


def _compact(content: object) -> str:
    return json.dumps(content, sort_keys=True, separators=(",", ":"))


def _scaled(value: Any, factor: float) -> float | None:
    return None if value is None else value.value * factor
