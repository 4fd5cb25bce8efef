"""Random plans on shipped machines: faster hardware is never slower, and no other cut is faster.

``python benchmarks/check_faster.py [CASES [SEED]]`` draws a machine, a network and a plan, and
simulates the step as it is and with the rates of engines, the bandwidth of memories, or that of
links, or all of them, multiplied by a number above 1. Plans with a pipeline are also cut between
layers, in both ways that a plan may say. It prints every step that faster hardware makes longer,
and every one that is shorter when cut between layers, by how much, and a summary of both. The exit
status is 1 where one of them is more than `MOST` longer.
"""

from __future__ import annotations

import collections
import random
import sys
import tempfile
import time
from pathlib import Path

from check_folding import models, plan_of
from ridgeline.catalog import names
from ridgeline.errors import RidgelineError
from ridgeline.hardware import load_cluster
from ridgeline.hardware.cluster import Cluster
from ridgeline.parallel.plan.plan import Plan
from ridgeline.simulation import simulate
from ridgeline.workload.files import load_model
from ridgeline.workload.model import Model

FACTORS = (1.01, 1.1, 1.5, 2.0, 4.0)
PARTS = ("engines", "memory", "links", "all")
NETWORKS = ("resnet50", "vgg16", "bert-base", "gpt2")
SAME = 1e-6
MOST = 0.02
"""Orders of messages that share links are not monotone: what is let pass as such."""


def faster(name: str, part: str, factor: float) -> Cluster:
    """Load a machine with some of its rates multiplied."""
    cluster = load_cluster(name)
    changes: dict[str, str] = {}
    if part in {"engines", "all"}:
        for engine, of in cluster.device.engines.items():
            for format_, rate in of.rates.items():
                found = f"{rate.value * factor!r} FLOP/s"
                changes[f"device.engines.{engine}.rates.{format_}"] = found
    if part in {"memory", "all"}:
        for level, memory in cluster.device.memory.items():
            if memory.bandwidth is not None:
                found = f"{memory.bandwidth.value * factor!r} B/s"
                changes[f"device.memory.{level}.bandwidth"] = found
    if part in {"links", "all"}:
        for path, types in (("", cluster.link_types), ("node.", cluster.nodes.link_types)):
            for link, kind in types.items():
                found = f"{kind.bandwidth.value * factor!r} B/s"
                changes[f"{path}link_types.{link}.bandwidth"] = found
    return load_cluster(name, changes)


def drawn_plan(rng: random.Random, most: int, network: Model) -> Plan:
    """Draw a plan; of a network that is no decoder, without what only these have."""
    plan = plan_of(rng, most)
    own = {name: getattr(plan, name) for name in Plan.model_fields}
    own["precision"] = None
    if network.network.family != "decoder":
        own |= {"tensor": 1, "sequence": 1, "context": 1, "cp_comm_type": "all-gather"}
    own["micro_batch"] = rng.choice((1, 2, 8))
    own["global_batch"] = plan.global_batch * own["micro_batch"]
    return Plan(**own)


def step_s(network: Model, cluster: Cluster, plan: Plan) -> float:
    """Return the seconds of a step."""
    return simulate(network, cluster, plan, software="ideal").step_time_s


def check(cases: int, seed: int) -> int:
    """Check so many cases; return how many are further off than `MOST`."""
    rng = random.Random(seed)
    networks = [*models(Path(tempfile.mkdtemp())), *map(load_model, NETWORKS)]
    known = [*names("clusters"), *names("nodes")]
    found: collections.Counter[str] = collections.Counter()
    worst: dict[str, float] = {}
    wrong = checked = 0
    begin = time.monotonic()

    def tell(what: str, more: float, text: str) -> None:
        nonlocal wrong
        found[what] += more > SAME
        worst[what] = max(worst.get(what, 0.0), more)
        wrong += more > MOST
        if more > SAME:
            print(f"case {checked} of seed {seed}: {what}: {more:+.3%}: {text}", flush=True)

    while checked < cases:
        name, network = rng.choice(known), rng.choice(networks)
        part, factor = rng.choice(PARTS), rng.choice(FACTORS)
        try:
            cluster = load_cluster(name)
            if cluster.max_devices < 2:
                continue
            plan = drawn_plan(rng, min(64, cluster.max_devices), network)
            before = step_s(network, cluster, plan)
            after = step_s(network, faster(name, part, factor), plan)
        except RidgelineError as error:
            found[f"refused: {str(error)[:50]}"] += 1
            continue
        checked += 1
        fields = plan.model_dump(exclude_defaults=True)
        text = f"{network.name} on {name}, {fields}"
        tell(f"{part} faster", after / before - 1, f"x {factor}, {text}")
        if plan.pipeline > 1:
            for balance in ("layers", "ends"):
                other = plan.model_copy(update={"stage_balance": balance})
                try:
                    more = before / step_s(network, cluster, other) - 1
                    tell(f"cut by {balance}", more, text)
                except RidgelineError:
                    continue
    print(f"{checked} cases in {time.monotonic() - begin:.0f} s, {wrong} wrong")
    for what, times in sorted(found.items()):
        print(f"  {times:5d} {what}" + (f", worst {worst[what]:.3%}" if what in worst else ""))
    return wrong


def main(cases: str = "300", seed: str = "0") -> int:
    """Return 1 if a case is further off than `MOST`."""
    return int(check(int(cases), int(seed)) > 0)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
