"""Products cut in pieces beside collectives of tensor-parallel ranks (`overlap_tensor=pieces`)."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import strategies as st

import ridgeline as rl
from ridgeline.parallel.passes.decompose_gemm import with_pieces
from ridgeline.parallel.sharding.divide import ShardingSpec, divide
from ridgeline.workload.graph import PIECES, Graph, Pass
from stacked import stacked
from thoroughly import sample_of

SHAPE = {
    "layers": 2, "sequence": 512, "vocabulary": 512, "hidden": 1024, "attention.heads": 8,
    "feed_forward.width": 4096,
}  # fmt: skip
MODEL = rl.load_model("gpt2", SHAPE)
CLUSTER = rl.load_cluster("selene-a100")
CUT = ("attention.query-key-value", "attention.output", "feed-forward.up", "feed-forward.down")


def step(**fields: Any) -> rl.Result:
    plan = {"micro_batch": 1, "precision": "bf16-mixed", **fields}
    return rl.simulate(MODEL, CLUSTER, stacked(**plan))


def divided(ranks: int) -> Graph:
    return divide(MODEL.training(1, "bf16-mixed"), ShardingSpec(tensor=ranks, sequence=True)).graph


def collectives(graph: Graph) -> list[tuple[object, ...]]:
    return sorted(
        (op.kind, op.attrs) for op in graph.ops if any(name == "dimension" for name, _ in op.attrs)
    )


@pytest.mark.parametrize("ranks", [2, 4, 8])
def test_as_much_is_computed_and_sent(ranks: int) -> None:
    graph = divided(ranks)
    cut = with_pieces(graph)
    assert cut.flops() == graph.flops()
    assert collectives(cut) == collectives(graph)
    assert len({op.name for op in cut.ops}) == len(cut.ops)
    before = {op.name: op for op in graph.ops}
    pieces = [op for op in cut.ops if PIECES in dict(op.attrs)]
    for whole in {
        op.name.removesuffix(".last-piece").removesuffix(".first-piece") for op in pieces
    }:
        mine = [
            op for op in pieces if op.name in {whole, f"{whole}.last-piece", f"{whole}.first-piece"}
        ]
        op = before[whole]
        rows, weight = (graph.tensors[name].bytes for name in op.inputs[:2])
        assert sum(piece.kernels for piece in mine) == ranks
        # rows and results once, the weights once for each piece
        assert sum(map(cut.read_bytes, mine)) == rows + ranks * weight
        assert sum(map(cut.write_bytes, mine)) == graph.write_bytes(op)


def test_which_products_are_cut() -> None:
    """Forward all four of a block; backward those that read what was gathered."""
    cut = with_pieces(divided(4))
    made = {op.name for op in cut.ops if op.name.endswith("-piece")}
    forward = {f"blocks.{i}.{name}" for i in range(2) for name in CUT}
    ends = {"query-key-value": "last", "up": "last", "output": "first", "down": "first"}
    expected = {f"{name}.{ends[name.rpartition('.')[2]]}-piece" for name in forward}
    expected |= {
        f"blocks.{i}.{name}.input-gradient.last-piece"
        for i in range(2)
        for name in ("attention.output", "feed-forward.down")
    }
    assert expected <= made
    assert all(op.pass_ is not Pass.WEIGHT_GRADIENT for op in cut.ops if op.name in made)


def test_what_can_not_be_cut_is_left() -> None:
    whole = divide(MODEL.training(1, "bf16-mixed"), ShardingSpec(tensor=4)).graph  # all-reduces
    assert with_pieces(whole).ops == whole.ops


@sample_of(4, 12,
    st.sampled_from([2, 4, 8]), st.sampled_from([1, 2]), st.sampled_from(["none", "full"]),
    st.booleans(), st.integers(1, 2),
)  # fmt: skip
def test_between_bounds_and_as_the_reference_plays_it(
    tensor: int, data: int, recompute: str, contention: bool, rounds: int
) -> None:
    fields = {
        "tensor": tensor, "sequence": tensor, "data": data, "recompute": recompute,
        "global_batch": data * rounds,
    }  # fmt: skip
    apart, beside = (step(**fields, overlap__tensor=how) for how in (False, "pieces"))
    assert beside.flops_per_step == apart.flops_per_step
    assert beside.traffic_bytes["nvlink3"] == pytest.approx(apart.traffic_bytes["nvlink3"])
    # one link after the other, or one device: neither can be hidden behind itself
    for queue in ("compute", "network-tensor"):
        names = beside.details.timeline.program.stream_names
        stream = next(i for i, name in enumerate(names) if name.endswith(f"/{queue}"))
        busy = np.diff(beside.details.timeline.busy(stream)).sum()
        assert beside.step_time_s >= busy * (1 - 1e-9)
    plan = stacked(**{"micro_batch": 1, "precision": "bf16-mixed", **fields},
                   overlap__tensor="pieces", overlap__contention=contention)  # fmt: skip
    fast, slow = (rl.simulate(MODEL, CLUSTER, plan, **how) for how in ({}, {"reference": True}))
    assert fast.step_time_s == pytest.approx(slow.step_time_s, rel=1e-9)


def ring(pieces: int, message_s: float, piece_s: float) -> tuple[float, float]:
    """Pass pieces round a ring: when a product that was gathered for ends, and a scattered sum."""
    done = 0.0
    for k in range(pieces):  # piece k comes with message k; the first is here
        done = max(done, k * message_s) + piece_s
    link = 0.0
    for k in range(1, pieces):
        link = max(link, k * piece_s) + message_s
    return done, max(pieces * piece_s, link)


@sample_of(7, 25, st.sampled_from([2, 4, 8]), st.sampled_from([64, 512, 2048]), st.integers(1, 8))
def test_two_tasks_end_with_the_last_piece_of_a_ring(tensor: int, tokens: int, batch: int) -> None:
    model = rl.load_model("gpt2", {**SHAPE, "sequence": tokens})
    plan = stacked(global_batch=batch, tensor=tensor, sequence=tensor, precision="bf16-mixed",
                   overlap__tensor="pieces")  # fmt: skip
    timeline = rl.simulate(model, CLUSTER, plan).details.timeline
    program, name = timeline.program, "blocks.0.feed-forward"
    labels = [program.label_names[label] for label in program.label]

    def task(label: str) -> tuple[float, float, float]:
        at = labels.index(label)
        return timeline.start_s[at], timeline.end_s[at], timeline.durations_s[at]

    others, last, sent = map(task, (f"{name}.up", f"{name}.up.last-piece",
                                    "blocks.0.norm2.y.all-gather"))  # fmt: skip
    assert others[2] == pytest.approx((tensor - 1) * last[2])
    assert others[0] < sent[1]  # it does not wait for what is gathered
    assert last[0] == pytest.approx(max(others[1], sent[1]))
    gathered, _ = ring(tensor, sent[2] / (tensor - 1), last[2])  # if both begin together
    assert max(others[2], sent[2]) + last[2] == pytest.approx(gathered)
    first, others, sent = map(task, (f"{name}.down.first-piece", f"{name}.down",
                                     f"{name}.down.y.reduce-scatter"))  # fmt: skip
    assert others[2] == pytest.approx((tensor - 1) * first[2])
    _, scattered = ring(tensor, sent[2] / (tensor - 1), first[2])
    assert max(others[1], sent[1]) - first[0] == pytest.approx(scattered)


def test_it_pays_where_messages_are_as_long_as_products() -> None:
    fields = {"tensor": 8, "sequence": 8, "global_batch": 4, "micro_batch": 4}
    blocking, bulk, pieces = (
        step(**fields, overlap__tensor=how).step_time_s for how in (False, True, "pieces")
    )
    assert pieces < bulk < blocking


def test_what_is_no_way_to_overlap_is_an_error() -> None:
    with pytest.raises(rl.ConfigError, match=r"overlap\.tensor"):
        stacked(global_batch=8, overlap__tensor="piece")  # type: ignore[arg-type]
