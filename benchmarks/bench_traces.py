"""How fast Chakra traces are read, lowered and played: GPT-3 175B on 1,024 devices.

    python benchmarks/bench_traces.py

ASTRA-sim 2 (commit 518bd51, congestion-unaware analytical network) took 64.0 s and 1,085 MB for a
trace of the same number of nodes (tensor 8, pipeline 8, data 16, 8 micro-batches, 1F1B).
"""

from __future__ import annotations

import json
import resource
import sys
import tempfile
import time
from pathlib import Path

from ridgeline.engine.executor import run
from ridgeline.hardware.load import load_cluster
from ridgeline.network.cluster_topology import from_cluster
from ridgeline.parallel.executions.lower import lower_execution
from ridgeline.report.execution import execution_result
from ridgeline.workload.trace import chakra, chakra_files
from ridgeline.workload.trace import chakra_encode as encode

ASTRA_SIM_S, ASTRA_SIM_MB = 64.0, 1085
SEND, RECEIVE, COLLECTIVE, COMPUTE = 5, 6, 7, 4


class Rank:
    """The nodes of one rank."""

    def __init__(self) -> None:
        self.nodes: list[bytes] = []

    def add(self, name: str, kind: int, deps: list[int], **attributes: int | str) -> int:
        number = len(self.nodes)
        node = encode.field(1, number) if number else b""
        node += encode.field(2, name.encode()) + encode.field(3, kind)
        if deps:
            node += encode.field(5, b"".join(map(encode.varint, deps)))
        node += encode.attribute("is_cpu_op", False)
        for key, value in attributes.items():
            node += encode.attribute(key, value)
        self.nodes.append(encode.varint(len(node)) + node)
        return number

    def write(self, path: Path) -> None:
        head = encode.field(1, b"0.0.4")
        path.write_bytes(encode.varint(len(head)) + head + b"".join(self.nodes))


def schedule(stage: int, stages: int, micro_batches: int) -> list[tuple[str, int]]:
    """Forward and backward passes of a stage in the order of 1F1B."""
    warm = min(stages - 1 - stage, micro_batches)
    order = [("F", i) for i in range(warm)]
    for i in range(micro_batches):
        if warm + i < micro_batches:
            order.append(("F", warm + i))
        order.append(("B", i))
    return order


def gpt_trace(
    folder: Path, tensor: int, stages: int, data: int, micro_batches: int, layers: int
) -> Path:
    """Write the traces of a GPT of hidden size 12,288 and 2,048 tokens; return the first."""
    hidden, tokens = 12288, 2048
    size, own, step = tokens * hidden * 2, layers // stages, data * tensor
    groups: dict[str, list[int]] = {}
    for stage in range(stages):
        for d in range(data):
            first = (stage * data + d) * tensor
            groups[f"tensor.{stage}.{d}"] = list(range(first, first + tensor))
        for t in range(tensor):
            groups[f"data.{stage}.{t}"] = [(stage * data + d) * tensor + t for d in range(data)]
    (folder / f"gpt{chakra_files.GROUPS_SUFFIX}").write_text(json.dumps(groups))
    flops, parameters = (
        24 * tokens * hidden * hidden // tensor,
        12 * hidden * hidden * own // tensor,
    )
    for number in range(stages * step):
        stage, d, t = number // step, number // tensor % data, number % tensor
        rank, last = Rank(), -1
        for what, m in schedule(stage, stages, micro_batches):
            deps, times = [last] if last >= 0 else [], 1 if what == "F" else 2
            before = number - step if what == "F" else number + step
            if 0 <= before < stages * step:
                tag = m if what == "F" else 1000 + m
                deps.append(rank.add("receive", RECEIVE, [], comm_size=size, comm_src=before,
                                     comm_dst=number, comm_tag=tag))  # fmt: skip
            for layer in range(own):
                for part, share, passes in (("attention", 3, 4), ("mlp", 1, 6)):
                    work = flops * times * (1 if share == 3 else 2) // 3
                    last = rank.add(f"{what}.{part}.{layer}", COMPUTE, deps, num_ops=work,
                                    tensor_size=size * passes * times)  # fmt: skip
                    last = rank.add(f"{what}.{part}.{layer}.sum", COLLECTIVE, [last], comm_type=0,
                                    comm_size=size, pg_name=f"tensor.{stage}.{d}")  # fmt: skip
                    deps = [last]
            after = number + step if what == "F" else number - step
            if 0 <= after < stages * step:
                tag = m if what == "F" else 1000 + m
                rank.add("send", SEND, [last], comm_size=size, comm_src=number, comm_dst=after,
                         comm_tag=tag)  # fmt: skip
        if data > 1:
            last = rank.add("gradients", COLLECTIVE, [last], comm_type=0,
                            comm_size=2 * parameters, pg_name=f"data.{stage}.{t}")  # fmt: skip
        rank.add("update", COMPUTE, [last], num_ops=10 * parameters, tensor_size=16 * parameters)
        rank.write(folder / f"gpt.{number}.et")
    return folder / "gpt.0.et"


def measure(path: Path) -> None:
    cluster = load_cluster("selene-a100")
    start = time.process_time()
    execution = chakra.load(path)
    read = time.process_time()
    topology = from_cluster(cluster, execution.world)
    lowered = lower_execution(execution, cluster, topology)
    made = time.process_time()
    timeline = run(lowered.program)
    played = time.process_time()
    result = execution_result(lowered, timeline, cluster)
    print(f"{execution.n_tasks} nodes of {execution.world} ranks")
    rate = execution.n_tasks / (read - start) / 1e6
    print(f"  read    {read - start:6.2f} s CPU, {rate:.2f} M nodes/s")
    print(f"  lowered {made - read:6.2f} s CPU to {lowered.program.n_tasks} tasks")
    print(f"  played  {played - made:6.2f} s CPU, step {result.step_time_s:.4f} s")
    print("  ", {name: round(value, 4) for name, value in result.time_s.items()})


def main() -> None:
    with tempfile.TemporaryDirectory() as small:
        measure(gpt_trace(Path(small), 2, 2, 2, 2, 4))  # compiles
    with tempfile.TemporaryDirectory() as large:
        path = gpt_trace(Path(large), 8, 8, 16, 8, 96)
        before = time.process_time()
        measure(path)
        spent = time.process_time() - before
    units = 1 if sys.platform == "darwin" else 1000
    peak_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / units
    print(
        f"ASTRA-sim {ASTRA_SIM_S:.0f} s, here {spent:.1f} s: {ASTRA_SIM_S / spent:.0f} times as"
        f" fast; peak {peak_mb:.0f} MB against {ASTRA_SIM_MB} MB"
    )


if __name__ == "__main__":
    main()
