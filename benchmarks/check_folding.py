"""Random plans on shipped machines and on random fabrics: folded ranks against every rank.

``python benchmarks/check_folding.py [machines|fabrics|faults|kinds] [CASES [SEED]]`` draws a plan
and a machine (shipped; made up; shipped with slow ranks and broken links; of two kinds of nodes),
simulates the step with one rank of each class of equivalent ones and with every rank, and compares
time, energy, traffic and memory. It prints every case that differs by more than 1e-9, with its
seed, how many classes there were, and the cases whose manifest says that they were not exact. The
exit status is 1 if a case differs and does not say so.
"""

from __future__ import annotations

import collections
import math
import random
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ridgeline.catalog import names
from ridgeline.errors import RidgelineError
from ridgeline.hardware import load_cluster
from ridgeline.hardware.cluster import Cluster
from ridgeline.parallel.plan.plan import Plan
from ridgeline.parallel.plan.resolved import NEUTRAL, ResolvedPlan
from ridgeline.report.result import Result
from ridgeline.simulation import simulate
from ridgeline.workload.files import load_model
from ridgeline.workload.model import Model

DECODER = """
family: decoder
title: Small
citation: made for a check
vocabulary: 512
sequence: 64
layers: {layers}
hidden: 128
attention: {{heads: 8, bias: true}}
feed_forward: {{width: 512, activation: gelu}}
norm: layer-norm
positions: learned
tied: {tied}
"""
ENERGY = """
kind: energy-table
name: energy
process_node: 12 nm
entries:
  flop: {value: 1 pJ/FLOP, scope: arithmetic}
  sram: {value: 1 pJ/B, scope: path}
  link: {value: 10 pJ/bit, scope: link}
"""
DEVICE = """
kind: device
name: device
year: 2020
idle_power: 10 W
energy_table: energy.yaml
launch_latency: 2 us
engines:
  matrix: {kind: tensor-core, runs: [matrix], rates: {fp32: 10 TFLOP/s}, energy: {fp32: flop},
           instruction: {m: 4, n: 4, k: 4}}
  vector: {kind: vector, runs: [vector], rates: {fp32: 1 TFLOP/s}, energy: {fp32: flop}}
memory:
  registers: {kind: registers, capacity: 16 MiB, instances: 64, energy: sram}
  hbm: {kind: dram, capacity: 16 GiB, bandwidth: 1 TB/s, energy: sram}
"""
SAME = 1e-9
DEGREES = (1, 2, 2, 4, 4, 8, 16, 32)


def numbers(rng: random.Random, most: int) -> dict[str, int]:
    """Draw degrees whose product is at most so many devices."""
    while True:
        found = {name: rng.choice(DEGREES) for name in ("data", "tensor", "pipeline")}
        found["tensor"] = min(found["tensor"], 8)
        found["pipeline"] = min(found["pipeline"], 8)
        found["context"] = rng.choice((1, 1, 1, 2, 4))
        if 2 <= math.prod(found.values()) <= most:
            return found


def plan_of(rng: random.Random, most: int) -> ResolvedPlan:
    """Draw a plan."""
    fields: dict[str, Any] = dict(numbers(rng, most))
    order = ["tensor", "context", "data", "pipeline"]
    rng.shuffle(order)
    usual = rng.random() < 0.5
    several = fields["pipeline"] > 1
    names_ = ("1f1b", "gpipe", "zero-bubble", "interleaved") if several else ("1f1b",)
    schedule = rng.choice(names_)
    rounds = rng.choice((1, 2, 3)) * (fields["pipeline"] if schedule == "interleaved" else 1)
    fields |= {
        "micro_batch": 1,
        "global_batch": fields["data"] * rounds,
        "zero_stage": rng.choice((0, 0, 1, 2, 3)),
        "schedule": schedule,
        "virtual_stages": 2 if schedule == "interleaved" else 1,
        "sequence": rng.choice((1, fields["tensor"])),
        "precision": "fp32",
        "recompute": rng.choice(("none", "none", "full")),
        "cp_comm_type": rng.choice(("all-gather", "ring")),
        "order": "tensor-context-data-pipeline" if usual else "-".join(order),
    }
    if fields["context"] == 1:
        fields["cp_comm_type"] = "all-gather"
    plan = Plan(**fields)
    stack = NEUTRAL.with_settings({
        "gradients.bucket": rng.choice(("100 kB", "1 MB", "1 GB")),
        "overlap.gradients": rng.choice((True, False)),
        "overlap.contention": rng.choice((True, False)),
    })  # fmt: skip
    own = {name: getattr(plan, name) for name in Plan.model_fields}
    return ResolvedPlan(**own, stack=stack)


def fabric_of(rng: random.Random) -> tuple[str, str]:
    """Draw a node and a cluster, as text of their files."""
    count = rng.choice((1, 2, 4, 4, 8))
    n_switches = rng.choice((0, 1, 1, 2)) if count > 1 else 0
    n_nics = rng.choice([n for n in (1, 2, 4, 8) if n <= count])
    speed = {name: rng.choice((5, 10, 20, 25, 40)) for name in ("wire", "slot", "cable")}
    parts = [f"  - {{name: switch{i}, kind: switch}}" for i in range(n_switches)]
    parts += [f"  - {{name: plx{i}, kind: switch}}" for i in range(n_nics)]
    parts += [f"  - {{name: nic{i}, kind: nic}}" for i in range(n_nics)]
    links = []
    for i in range(count):
        links += [f"  - {{between: [device{i}, switch{s}], type: wire}}" for s in range(n_switches)]
        links.append(f"  - {{between: [device{i}, plx{i * n_nics // count}], type: slot}}")
    links += [f"  - {{between: [nic{i}, plx{i}], type: slot}}" for i in range(n_nics)]
    if not n_switches:  # a ring, and some links across
        pairs = {tuple(sorted((i, (i + 1) % count))) for i in range(count)} if count > 1 else set()
        pairs |= {(a, b) for a in range(count) for b in range(a + 1, count) if rng.random() < 0.2}
        links += [
            f"  - {{between: [device{a}, device{b}], type: wire, count: {rng.choice((1, 1, 2))}}}"
            for a, b in sorted(pairs)
        ]
    if n_nics > 1 and rng.random() < 0.5:  # a root between the switches of the adapters
        parts.append("  - {name: root, kind: switch}")
        links += [f"  - {{between: [plx{i}, root], type: slot}}" for i in range(n_nics)]
    node = "\n".join([
        "kind: node\nname: node\ndevice: device.yaml",
        f"count: {count}\nenergy_table: energy.yaml\ncollective_latency: 5 us\nlink_types:",
        f"  wire: {{bandwidth: {speed['wire']} GB/s, latency: 1 us, energy: link}}",
        f"  slot: {{bandwidth: {speed['slot']} GB/s, latency: 1 us, energy: link}}",
        "components:", *parts, "links:", *links,
    ])  # fmt: skip
    kind = rng.choice(("fat-tree", "rail-optimised", "dragonfly", "torus", "mesh", "switch"))
    fabric = [f"  kind: {kind}", "  link: cable"]
    if kind in {"fat-tree", "rail-optimised"}:
        fabric.append(f"  radix: {rng.choice((4, 8, 16))}\n  levels: 3")
        fabric.append(f"  oversubscription: {rng.choice((1, 1, 3))}")
        fabric.append(f"  routing: {rng.choice(('shortest', 'ecmp', 'up-down'))}")
    if kind == "dragonfly":
        fabric.append("  shape: [2, 4, 2]")
    if kind in {"torus", "mesh"}:
        fabric.append(f"  shape: {rng.choice(([64], [8, 8], [4, 4, 4], [4, 8, 2]))}")
    cluster = "\n".join([
        "kind: cluster\nname: cluster\nnode: node.yaml\nmax_nodes: 64\nenergy_table: energy.yaml",
        "link_types:",
        f"  cable: {{bandwidth: {speed['cable']} GB/s, latency: 2 us, energy: link}}",
        "fabric:", *fabric,
    ])  # fmt: skip
    return node, cluster


def machines(rng: random.Random, folder: Path) -> Iterator[Cluster]:
    """Yield shipped machines in turn."""
    known = [*names("clusters"), *names("nodes")]
    rng.shuffle(known)
    while True:
        for name in known:
            try:
                cluster = load_cluster(name)
            except RidgelineError:
                continue
            if cluster.max_devices > 1:
                yield cluster


def fabrics(rng: random.Random, folder: Path) -> Iterator[Cluster]:
    """Yield random ones."""
    (folder / "energy.yaml").write_text(ENERGY)
    (folder / "device.yaml").write_text(DEVICE)
    while True:
        node, cluster = fabric_of(rng)
        (folder / "node.yaml").write_text(node)
        (folder / "cluster.yaml").write_text(cluster)
        yield load_cluster(str(folder / "cluster.yaml"))


def faulty(rng: random.Random, folder: Path) -> Iterator[Cluster]:
    """Yield shipped machines with something wrong."""
    for cluster in machines(rng, folder):
        links = [*cluster.link_types, *cluster.nodes.link_types]
        lines = [f"rank {rng.randrange(16)} slow {rng.choice((1.5, 3))}"]
        lines.append(f"link {rng.choice(links)} {rng.choice(('down', 'slow 0.5'))}")
        yield cluster.model_copy(update={"faults": tuple(rng.sample(lines, rng.choice((1, 2))))})


def kinds(rng: random.Random, folder: Path) -> Iterator[Cluster]:
    """Yield random fabrics that join two kinds of nodes with devices of their own."""
    (folder / "energy.yaml").write_text(ENERGY)
    (folder / "device.yaml").write_text(DEVICE)
    slow = DEVICE.replace("name: device", "name: slow").replace("10 TFLOP/s", "4 TFLOP/s")
    (folder / "slow.yaml").write_text(slow.replace("1 TB/s", "700 GB/s"))
    while True:
        node, cluster = fabric_of(rng)
        other = fabric_of(rng)[0].replace("device: device.yaml", "device: slow.yaml")
        (folder / "node.yaml").write_text(node)
        (folder / "other.yaml").write_text(other.replace("name: node", "name: other", 1))
        counts = [rng.choice((1, 2, 4, 8)) for _ in range(2)]
        groups = [f"  - {{node: {name}.yaml, count: {n}}}" for name, n in
                  zip(rng.sample(("node", "other"), 2), counts, strict=True)]  # fmt: skip
        text = cluster.replace("node: node.yaml\nmax_nodes: 64", "\n".join(["groups:", *groups]))
        (folder / "cluster.yaml").write_text(text)
        try:
            yield load_cluster(str(folder / "cluster.yaml"))
        except RidgelineError:
            continue


DRAWN = {"machines": machines, "fabrics": fabrics, "faults": faulty, "kinds": kinds}


def difference(folded: Result, whole: Result) -> float:
    """Return the largest relative difference between two results of a step."""
    pairs = [(folded.step_time_s, whole.step_time_s)]
    pairs += [(folded.energy_j[part], joules) for part, joules in whole.energy_j.items()]
    pairs += [(folded.traffic_bytes[name], size) for name, size in whole.traffic_bytes.items()]
    pairs += [(folded.memory_bytes[name], size) for name, size in whole.memory_bytes.items()]
    return max((abs(a - b) / b for a, b in pairs if b), default=0.0)


def models(folder: Path) -> list[Model]:
    """Return the networks of the check."""
    found = [load_model("mlp")]
    for layers, tied in ((4, True), (8, False)):
        path = folder / f"decoder{layers}.model.yaml"
        path.write_text(DECODER.format(layers=layers, tied=str(tied).lower()))
        found.append(load_model(str(path)))
    return found


def check(draw: str, cases: int, seed: int) -> int:
    """Compare so many cases; return how many differ without saying so."""
    rng = random.Random(seed)
    folder = Path(tempfile.mkdtemp())
    networks, found = models(folder), DRAWN[draw](rng, folder)
    classes: collections.Counter[str] = collections.Counter()
    compared = wrong = 0
    begin = time.monotonic()
    while compared < cases:
        cluster, network = next(found), rng.choice(networks)
        plan = plan_of(rng, min(512 if draw == "machines" else 64, cluster.max_devices))
        if cluster.is_mixed and plan.devices < cluster.max_devices // 2:
            continue  # likely of one kind
        try:
            folded = simulate(network, cluster, plan)
            whole = simulate(network, cluster, plan, fold=False)
        except RidgelineError as error:
            classes[f"refused: {str(error)[:40]}"] += 1
            continue
        compared += 1
        ranks = folded.manifest["ranks"]
        says = ranks.get("slowest_stands_for_all", False)
        per_stage = ranks["simulated"] // plan.pipeline
        classes["bound" if says else f"{min(per_stage, 9)} classes a stage"] += 1
        off = difference(folded, whole)
        if off > SAME:
            wrong += not says
            times = folded.step_time_s / whole.step_time_s - 1
            strategy = {k: v for k, v in plan.strategy.items() if v != Plan.model_fields[k].default}
            print(f"case {compared} of seed {seed}: off by {off:.2g}, time {times:+.2%}, {ranks},"
                  f" {network.name} on {cluster.name}, {strategy}", flush=True)  # fmt: skip
    print(f"{compared} cases in {time.monotonic() - begin:.0f} s, {wrong} wrong")
    for what, times in sorted(classes.items()):
        print(f"  {times:5d} {what}")
    return wrong


def main(what: str = "fabrics", cases: str = "1000", seed: str = "0") -> int:
    """Return 1 if a case differs without saying so."""
    return int(check(what, int(cases), int(seed)) > 0)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
