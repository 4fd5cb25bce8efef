"""Random plans on shipped machines and on random fabrics: folded ranks against every rank.

``python benchmarks/check_folding.py [machines|fabrics|faults|kinds] [CASES [SEED [LOG]]]`` draws a
plan and a machine (shipped; made up; shipped with slow ranks and broken links; of two kinds of
nodes), simulates the step with one rank of each class of equivalent ones and with every rank, and
compares time, energy, traffic and memory. It prints every case that differs by more than 1e-9, how
many classes there were, and the cases whose manifest says that they were not exact. The exit status
is 1 if a case differs and does not say so.

Every case has a seed of its own, and small cases come first: of 100, 70 have at most 32 devices, 20
at most 64, 8 at most 512, and 2 of made-up fabrics at most 4,096. With a LOG, a file of one JSON
object a line, a run that was stopped goes on behind the last case of the log, and the summary is of
all of them. CASES counts those that both simulations accept.
"""

from __future__ import annotations

import collections
import json
import math
import random
import sys
import tempfile
import time
from collections.abc import Callable
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
kind: model
name: small{layers}
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


def numbers(rng: random.Random, least: int, most: int) -> dict[str, int]:
    """Draw degrees whose product is so many devices."""
    degrees = [*DEGREES, *(64, 128, 256) * (most > 64)]
    while True:
        found = {name: rng.choice(degrees) for name in ("data", "tensor", "pipeline")}
        found["tensor"] = min(found["tensor"], 8)
        found["pipeline"] = min(found["pipeline"], 8)
        found["context"] = rng.choice((1, 1, 1, 2, 4))
        if least <= math.prod(found.values()) <= most:
            return found


def plan_of(rng: random.Random, most: int, least: int = 2) -> ResolvedPlan:
    """Draw a plan."""
    fields: dict[str, Any] = dict(numbers(rng, min(least, most), most))
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


def fabric_of(rng: random.Random, most: int) -> tuple[str, str]:
    """Draw a node and a cluster of at least so many devices, as text of their files."""
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
    large = most > 64
    kind = rng.choice(("fat-tree", "rail-optimised", "dragonfly", "torus", "mesh", "switch"))
    fabric = [f"  kind: {kind}", "  link: cable"]
    if kind in {"fat-tree", "rail-optimised"}:
        fabric.append(f"  radix: {rng.choice((16, 32, 64) if large else (4, 8, 16))}\n  levels: 3")
        fabric.append(f"  oversubscription: {rng.choice((1, 1, 3))}")
        fabric.append(f"  routing: {rng.choice(('shortest', 'ecmp', 'up-down'))}")
    if kind == "dragonfly":
        fabric.append(f"  shape: {[4, 8, 4] if large else [2, 4, 2]}")
    if kind in {"torus", "mesh"}:
        shapes = ([512], [16, 32], [8, 8, 8]) if large else ([64], [8, 8], [4, 4, 4], [4, 8, 2])
        fabric.append(f"  shape: {rng.choice(shapes)}")
    cluster = "\n".join([
        f"kind: cluster\nname: cluster\nnode: node.yaml\nmax_nodes: {512 if large else 64}",
        "energy_table: energy.yaml",
        "link_types:",
        f"  cable: {{bandwidth: {speed['cable']} GB/s, latency: 2 us, energy: link}}",
        "fabric:", *fabric,
    ])  # fmt: skip
    return node, cluster


def machine(rng: random.Random, folder: Path, most: int) -> Cluster:
    """Return a shipped machine."""
    while True:
        try:
            cluster = load_cluster(rng.choice([*names("clusters"), *names("nodes")]))
        except RidgelineError:
            continue
        if cluster.max_devices > 1:
            return cluster


def fabric(rng: random.Random, folder: Path, most: int) -> Cluster:
    """Return a random one."""
    (folder / "energy.yaml").write_text(ENERGY)
    (folder / "device.yaml").write_text(DEVICE)
    node, cluster = fabric_of(rng, most)
    (folder / "node.yaml").write_text(node)
    (folder / "cluster.yaml").write_text(cluster)
    return load_cluster(str(folder / "cluster.yaml"))


def faulty(rng: random.Random, folder: Path, most: int) -> Cluster:
    """Return a shipped machine with something wrong."""
    cluster = machine(rng, folder, most)
    links = [*cluster.link_types, *cluster.nodes.link_types]
    lines = [f"rank {rng.randrange(16)} slow {rng.choice((1.5, 3))}"]
    if links:
        lines.append(f"link {rng.choice(links)} {rng.choice(('down', 'slow 0.5'))}")
    chosen = rng.sample(lines, rng.randint(1, len(lines)))
    return cluster.model_copy(update={"faults": tuple(chosen)})


def kinds(rng: random.Random, folder: Path, most: int) -> Cluster:
    """Return a random fabric that joins two kinds of nodes with devices of their own."""
    (folder / "energy.yaml").write_text(ENERGY)
    (folder / "device.yaml").write_text(DEVICE)
    slow = DEVICE.replace("name: device", "name: slow").replace("10 TFLOP/s", "4 TFLOP/s")
    (folder / "slow.yaml").write_text(slow.replace("1 TB/s", "700 GB/s"))
    node, cluster = fabric_of(rng, 64)
    other = fabric_of(rng, 64)[0].replace("device: device.yaml", "device: slow.yaml")
    (folder / "node.yaml").write_text(node)
    (folder / "other.yaml").write_text(other.replace("name: node", "name: other", 1))
    counts = [rng.choice((1, 2, 4, 8)) for _ in range(2)]
    groups = [f"  - {{node: {name}.yaml, count: {n}}}" for name, n in
              zip(rng.sample(("node", "other"), 2), counts, strict=True)]  # fmt: skip
    text = cluster.replace("node: node.yaml\nmax_nodes: 64", "\n".join(["groups:", *groups]))
    (folder / "cluster.yaml").write_text(text)
    return load_cluster(str(folder / "cluster.yaml"))


DRAWN: dict[str, Callable[[random.Random, Path, int], Cluster]] = {
    "machines": machine, "fabrics": fabric, "faults": faulty, "kinds": kinds,
}  # fmt: skip


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


def most_devices(draw: str, share: float) -> int:
    """Return how many devices a case has at most, at a share of the way through the cases."""
    if share < 0.7:
        return 32
    if share < 0.9 or draw in {"faults", "kinds"}:
        return 64
    return 4096 if share >= 0.98 and draw == "fabrics" else 512


def compared(
    networks: list[Model], folder: Path, draw: str, seed: str, most: int
) -> dict[str, Any]:
    """Draw a case and simulate it twice; return what its line of the log says."""
    rng = random.Random(seed)
    network = rng.choice(networks)
    try:
        cluster = DRAWN[draw](rng, folder, most)
        plan = plan_of(rng, min(most, cluster.max_devices), least=most // 8 if most > 64 else 2)
        if cluster.is_mixed and plan.devices < cluster.max_devices // 2:
            return {"refused": "likely of one kind"}
        begin = time.monotonic()
        folded = simulate(network, cluster, plan)
        whole = simulate(network, cluster, plan, fold=False)
    except RidgelineError as error:
        return {"refused": str(error)[:40]}
    ranks = folded.manifest["ranks"]
    strategy = {k: v for k, v in plan.strategy.items() if v != Plan.model_fields[k].default}
    return {
        "off": difference(folded, whole),
        "time": folded.step_time_s / whole.step_time_s - 1,
        "bound": bool(ranks.get("slowest_stands_for_all", False)),
        "classes": ranks["simulated"] // plan.pipeline,
        "devices": plan.devices,
        "took_s": round(time.monotonic() - begin, 2),
        "what": f"{network.name} on {cluster.name}, {strategy}",
    }


def summarised(lines: list[dict[str, Any]]) -> int:
    """Print what cases found; return how many differ without saying so."""
    done = [line for line in lines if "refused" not in line]
    off = [line for line in done if line["off"] > SAME]
    wrong = [line for line in off if not line["bound"]]
    sizes = [line["devices"] for line in done]
    rest = max((line["off"] for line in done if line["off"] <= SAME), default=0.0)
    print(f"{len(done)} cases of 2 to {max(sizes, default=0)} devices, {len(wrong)} wrong")
    print(f"  {sum(n > 64 for n in sizes):5d} of more than 64 devices")
    print(f"  largest difference of those that are equal: {rest:.1g}")
    counted: collections.Counter[str] = collections.Counter()
    for line in lines:
        what = f"{min(line.get('classes', 0), 9)} classes a stage"
        what = "the slowest stands for all" if line.get("bound") else what
        counted[f"refused: {line['refused']}" if "refused" in line else what] += 1
    for what, times in sorted(counted.items()):
        print(f"  {times:5d} {what}")
    return len(wrong)


def check(draw: str, cases: int, seed: int, log: Path | None) -> int:
    """Compare so many cases; return how many differ without saying so."""
    folder = Path(tempfile.mkdtemp())
    networks = models(folder)
    lines = (
        [json.loads(line) for line in log.read_text().splitlines()] if log and log.exists() else []
    )
    done = sum("refused" not in line for line in lines)
    while done < cases:
        name = f"{seed}-{len(lines)}"
        found = compared(networks, folder, draw, name, most_devices(draw, done / cases))
        lines.append(found)
        done += "refused" not in found
        if log:
            with log.open("a") as file:
                file.write(json.dumps(found) + "\n")
        if found.get("off", 0.0) > SAME:
            print(f"case {name}: {found}", flush=True)
    return summarised(lines)


def main(what: str = "fabrics", cases: str = "1000", seed: str = "0", log: str = "") -> int:
    """Return 1 if a case differs without saying so."""
    return int(check(what, int(cases), int(seed), Path(log) if log else None) > 0)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
