"""Small graphs and regions of layers for tests of fused groups."""

from __future__ import annotations

import math
import random

from ridgeline.kernels.fusion.regions import FusedRegion, RowOp, RowRead, RowTensor, RowWindow
from ridgeline.kernels.fusion.schedule import FusedSchedule
from ridgeline.workload.graph import Conv, Graph, Op, Pass, Role, Tensor


def chain(rng: random.Random, layers: int, batch: int) -> Graph:
    """Convolutions and pools that follow each other, one of which may be added to a later one."""
    height, channels = rng.choice([6, 9, 14]), rng.choice([3, 16, 40])
    name = "x"
    tensors = {name: Tensor(name, (batch, channels, height, height), "bf16", Role.INPUT)}
    ops: list[Op] = []
    for place in range(layers):
        shape = tensors[name].shape
        out, kind = f"y{place}", rng.random()
        before = [n for n, t in tensors.items() if t.shape == shape and n not in (name, "x")]
        if kind < 0.25 and before:
            tensors[out] = Tensor(out, shape, "bf16", Role.ACTIVATION)
            reads = (name, rng.choice(before))
            ops.append(Op(out, "add", Pass.FORWARD, "", reads, (out,),
                          vector_flops=math.prod(shape)))  # fmt: skip
        else:
            size = rng.choice([1, 3]) if shape[2] >= 3 else 1
            stride = rng.choice([1, 1, 2])
            features = rng.choice([16, 40, 64])
            loops = Conv(batch, shape[1], shape[2], shape[3], features, size, size,
                         (stride, stride), (size // 2, size // 2))  # fmt: skip
            weight = f"w{place}"
            tensors[weight] = Tensor(weight, (features, shape[1], size, size), "bf16", Role.WEIGHT)
            tensors[out] = Tensor(
                out, (batch, features, loops.h_out, loops.w_out), "bf16", Role.ACTIVATION
            )
            ops.append(Op(out, "conv2d", Pass.FORWARD, "", (name, weight), (out,), loops=loops))
        name = out
    return Graph("chain", batch, "bf16", tensors, tuple(ops), name)


def measure(found: FusedSchedule, objective: str) -> float:
    return {
        "time": found.total.time_s,
        "energy": found.total.energy_j,
        "bytes": found.total.far_bytes,
    }[objective]


def with_sums(rng: random.Random, region: FusedRegion) -> FusedRegion:
    """Let ops that make sums follow some of a region's tensors, as weight gradients do."""
    ops, tensors = [*region.ops], [*region.tensors]
    read = {r.tensor for op in ops for r in op.reads}
    for driver in rng.sample(sorted(read | {region.last}), k=min(2, len(read))):
        rows = tensors[driver].rows
        size = rng.randint(1, 4)
        window = RowWindow(size, rng.randint(1, 3), rng.randint(0, size - 1))
        # The input behind it, from outside, with as many rows as the windows reach.
        behind = max(1, (rows - 1) * window.stride + size - 2 * window.padding)
        place = rng.randint(tensors[driver].producer + 1, len(ops))
        tensors = [
            t._replace(producer=t.producer + (t.producer >= place)) if t.producer >= 0 else t
            for t in tensors
        ]
        tensors.append(RowTensor(f"input of {driver}", behind, float(rng.randint(1, 5)), -1, False))
        tensors.append(RowTensor(f"sum of {driver}", rows, 0.0, place, False))
        reads = RowRead(driver, RowWindow()), RowRead(len(tensors) - 2, window)
        ops.insert(place, RowOp(reads, len(tensors) - 1, sum_bytes=3.0, follows=driver))
    return FusedRegion(tuple(ops), tuple(tensors))


def random_region(rng: random.Random) -> FusedRegion:
    """Return a few layers, one of which may be added to a later one, on a few rows."""
    rows = [rng.randint(1, 12)]
    tensors = [RowTensor("x", rows[0], float(rng.randint(1, 5)), -1, False)]
    ops: list[RowOp] = []
    for place in range(rng.randint(1, 4)):
        source = len(tensors) - 1
        kind = rng.random()
        if kind < 0.1:  # attention to all rows
            window, out = RowWindow(rows[source], 0, 0), rng.randint(1, 8)
        else:
            size = rng.randint(1, min(4, rows[source]))
            stride, padding = rng.randint(1, 3), rng.randint(0, (size - 1) // 2)
            window = RowWindow(size, stride, padding)
            out = (rows[source] + 2 * padding - size) // stride + 1
        reads = [RowRead(source, window)]
        same = [t for t in range(len(tensors)) if rows[t] == out and t != source]
        if same and rng.random() < 0.7:
            reads.append(RowRead(rng.choice(same), RowWindow()))
        elif rng.random() < 0.2:
            rows.append(out)
            tensors.append(RowTensor(f"skip{place}", out, float(rng.randint(1, 5)), -1, False))
            reads.append(RowRead(len(tensors) - 1, RowWindow()))
        rows.append(out)
        tensors.append(
            RowTensor(f"y{place}", out, float(rng.randint(1, 5)), place, rng.random() < 0.2)
        )
        ops.append(RowOp(tuple(reads), len(tensors) - 1))
    return FusedRegion(tuple(ops), tuple(tensors))
