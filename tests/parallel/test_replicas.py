"""Stages with different numbers of replicas: their orders, their cuts, and what they take."""

from __future__ import annotations

import math
import tempfile
from functools import cache
from itertools import combinations, pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pods import write_pod

from ridgeline.errors import ConfigError
from ridgeline.hardware import load_cluster
from ridgeline.hardware.cluster import Cluster
from ridgeline.parallel.partition.partition_dp import balance_given, balance_replicated
from ridgeline.parallel.plan.mesh import Mesh
from ridgeline.parallel.plan.plan import Plan
from ridgeline.parallel.plan.replicas import counts_of, in_flight, replica_orders
from ridgeline.parallel.plan.text import make_plan
from ridgeline.report.result import Result
from ridgeline.simulation import simulate
from ridgeline.workload.files import load_model
from stacked import stacked
from thoroughly import sample_of

FOLDER = tempfile.TemporaryDirectory()
COUNTS = st.lists(st.integers(1, 4), min_size=2, max_size=4).filter(lambda c: len(set(c)) > 1)


@cache
def pod() -> Cluster:
    return load_cluster(str(write_pod(Path(FOLDER.name))))


def step(counts: list[int] | tuple[int, ...], *, model: str = "resnet18", **fields: Any) -> Result:
    text, own = "-".join(map(str, counts)), fields.pop("own", 1)
    plan = {
        "precision": "fp16-mixed", "micro_batch": 4, "replicas": text,
        "global_batch": 4 * math.lcm(*counts) * own,
    }  # fmt: skip
    how = {name: fields.pop(name) for name in ("reference",) if name in fields}
    return simulate(load_model(model), pod(), stacked(**{**plan, **fields}), **how)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(1, 5), min_size=1, max_size=5), st.integers(1, 3), st.data())
def test_orders_can_be_played_and_hold_what_is_published(
    counts: list[int], rounds: int, data: st.DataObject
) -> None:
    micro_batches = math.lcm(*counts) * rounds
    schedule = data.draw(st.sampled_from(("1f1b", "gpipe")))
    orders = replica_orders(schedule, counts, micro_batches)
    home = [(stage, replica) for stage, count in enumerate(counts) for replica in range(count)]
    waiting = {place: list(order) for place, order in zip(home, orders, strict=True)}
    done: set[tuple[str, int, int]] = set()  # phase, micro-batch, stage
    held, most = dict.fromkeys(home, 0), dict.fromkeys(home, 0)

    def able(stage: int, phase: str, i: int) -> bool:
        if phase == "F":
            return stage == 0 or ("F", i, stage - 1) in done
        return ("F", i, stage) in done if stage == len(counts) - 1 else ("B", i, stage + 1) in done

    while any(waiting.values()):
        before = len(done)
        for (stage, replica), slots in waiting.items():
            while slots and able(stage, slots[0].phase, slots[0].micro_batch):
                slot = slots.pop(0)
                assert slot.micro_batch % counts[stage] == replica
                done.add((slot.phase, slot.micro_batch, stage))
                held[stage, replica] += 1 if slot.phase == "F" else -1
                most[stage, replica] = max(most[stage, replica], held[stage, replica])
        assert len(done) > before, "the replicas wait for each other"
    assert len(done) == 2 * micro_batches * len(counts)
    for (stage, _), found in most.items():
        own = micro_batches // counts[stage]
        assert found == (own if schedule == "gpipe" else min(in_flight(counts, stage), own))


def test_as_many_are_under_way_as_pipedream_says() -> None:
    """NOAM: devices over replicas of the first stage; one replica each: the stages from here on."""
    assert in_flight((2, 1, 1), 0) == 2
    assert in_flight((9, 5, 1, 1), 0) == 2
    assert in_flight((15, 1), 0) == 2
    assert [in_flight((1, 1, 1, 1), stage) for stage in range(4)] == [4, 3, 2, 1]


numbers = st.integers(0, 9).map(float)


@settings(max_examples=60, deadline=None)
@given(st.data(), st.integers(2, 7), st.lists(st.integers(1, 4), min_size=1, max_size=4))
def test_cuts_of_given_replicas_equal_exhaustive_search(
    data: st.DataObject, n: int, counts: list[int]
) -> None:
    counts = counts[:n]
    k = len(counts)

    def table(columns: int) -> np.ndarray[Any, Any]:
        row = st.lists(numbers, min_size=columns, max_size=columns)
        return np.array(data.draw(st.lists(row, min_size=n, max_size=n))).reshape(n, columns)

    time, sync, send = table(1)[:, 0], table(k), table(k - 1)

    def slowest(bounds: list[tuple[int, int]]) -> float:
        stages = (
            max(time[i:j].sum(), sync[i:j, s].sum()) / counts[s] for s, (i, j) in enumerate(bounds)
        )
        links = (send[j - 1, s] for s, (_, j) in enumerate(bounds[:-1]))
        return float(max([*stages, *links]))

    found = balance_given(time.tolist(), counts, send_s=send, sync_s=sync)
    assert [stage.replicas for stage in found] == counts
    best = min(slowest(list(pairwise((0, *cuts, n)))) for cuts in combinations(range(1, n), k - 1))
    assert slowest([(stage.first, stage.stop) for stage in found]) == pytest.approx(best)


@settings(max_examples=25, deadline=None)
@given(st.data(), st.lists(st.floats(0.1, 9), min_size=2, max_size=7), st.integers(2, 6))
def test_the_best_of_all_replicas_is_the_best_cut_of_these(
    data: st.DataObject, time: list[float], devices: int
) -> None:
    n = len(time)
    weights = np.array(data.draw(st.lists(numbers, min_size=n, max_size=n)))
    sent = np.array(data.draw(st.lists(numbers, min_size=n, max_size=n)))
    r = np.arange(1, devices + 1)
    sync = np.outer(weights, 2 * (r - 1) / r)
    stages, best = balance_replicated(time, devices, send_s=sent, sync_s=sync)
    counts = [stage.replicas for stage in stages]
    own = sync[:, [count - 1 for count in counts]]
    given_ = balance_given(
        time, counts, send_s=np.outer(sent, np.ones(len(counts) - 1)), sync_s=own
    )
    until = np.concatenate(([0.0], np.cumsum(time)))
    slowest = max(
        [sent[stage.stop - 1] for stage in given_[:-1]]
        + [
            max(until[s.stop] - until[s.first], own[s.first : s.stop, k].sum()) / s.replicas
            for k, s in enumerate(given_)
        ]
    )
    assert slowest == pytest.approx(best)


def test_ranks_are_numbered_stage_by_stage() -> None:
    mesh = Mesh.of(Plan(replicas="3-1-2", tensor=2, global_batch=6))
    assert [mesh.stage(k).tolist() for k in range(3)] == [
        [0, 1, 2, 3, 4, 5], [6, 7], [8, 9, 10, 11],
    ]  # fmt: skip
    assert mesh.groups(0, "data").tolist() == [[0, 2, 4], [1, 3, 5]]
    assert mesh.replica(2, 1).tolist() == [10, 11]


@sample_of(3, 8, COUNTS, st.sampled_from(("pipedream", "continuous")), st.sampled_from((1, 2)))
def test_a_period_is_as_long_as_its_fullest_queue(
    counts: list[int], schedule: str, own: int
) -> None:
    result = step(counts, schedule=schedule, own=own)
    timeline = result.details.timeline
    program = timeline.program
    busy = np.zeros(len(program.stream_names))
    for task, took in enumerate(timeline.durations_s):
        group = program.group[task]
        mine = program.stream[task : task + 1]
        if group >= 0:
            mine = program.group_stream[program.group_ptr[group] : program.group_ptr[group + 1]]
        busy[mine] += took
    assert busy.max() <= result.step_time_s * (1 + 1e-9)
    assert result.step_time_s == pytest.approx(busy.max(), rel=1e-2)
    assert result.manifest["ranks"] == {"real": sum(counts), "simulated": sum(counts)}


@sample_of(3, 8, COUNTS, st.sampled_from(("1f1b", "gpipe", "pipedream")))
def test_the_work_is_that_of_one_replica_a_stage(counts: list[int], schedule: str) -> None:
    """As many micro-batches do as many FLOPs and send as many activations on any replicas."""
    many = step(counts, schedule=schedule, precision="fp32")
    stages, batch = len(counts), 4 * math.lcm(*counts)
    # The same cuts on one replica each: of all that is alike, the work of a forward pass.
    single = simulate(
        load_model("resnet18"), pod(),
        Plan(global_batch=batch, micro_batch=4, pipeline=stages, precision="fp32"),
    )  # fmt: skip
    assert many.flops_per_step == single.flops_per_step
    assert many.details.plan.devices == sum(counts)
    parts = math.fsum(v for k, v in many.time_s.items() if k != "total")
    assert parts == pytest.approx(many.step_time_s, rel=1e-9)
    engine = many.energy_j["compute"] / single.energy_j["compute"]
    assert engine == pytest.approx(1.0, rel=0.02)  # but for updates, of every replica


@pytest.mark.parametrize("schedule", ["1f1b", "gpipe", "pipedream"])
def test_the_slow_engine_agrees(schedule: str) -> None:
    fast, slow = (step((3, 1, 2), schedule=schedule, reference=ref) for ref in (False, True))
    assert fast.step_time_s == pytest.approx(slow.step_time_s, rel=1e-9)
    assert fast.memory_bytes == slow.memory_bytes


def test_equal_replicas_are_a_plan_like_any_other() -> None:
    plan = make_plan({"replicas": "2-2-2", "global_batch": 16})
    assert (plan.data, plan.pipeline, plan.replicas) == (2, 3, "")
    assert plan == make_plan({"data": 2, "pipeline": 3, "global_batch": 16})


def test_weights_are_stashed_for_what_a_replica_has_under_way() -> None:
    counts = (4, 1, 2)
    stashed, single = (
        step(counts, schedule=schedule, precision="fp32").details.timeline.program
        for schedule in ("pipedream", "continuous")
    )
    kind = list(stashed.memory_kinds).index("weights")
    ranks = [stage for stage, count in enumerate(counts) for _ in range(count)]
    for rank, stage in enumerate(ranks):
        ratio = stashed.memory_initial[rank, kind] / single.memory_initial[rank, kind]
        assert ratio == pytest.approx(
            in_flight(counts, stage), rel=5e-3
        )  # states of norms are not stashed


def test_more_replicas_of_the_slowest_stage_are_faster() -> None:
    """VGG-16: convolutions on all devices but one, which has the layers with all the weights."""
    rates = [
        step(
            counts, model="vgg16", schedule="pipedream", micro_batch=64, global_batch=64 * 6
        ).samples_per_s
        for counts in ((1, 1), (2, 1), (3, 1))
    ]
    assert rates[0] < rates[1] < rates[2]
    assert rates[2] < 2 * rates[0]


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"replicas": "2-x"}, "for example 2-1-1"),
        ({"replicas": "2-0"}, "for example 2-1-1"),
        ({"replicas": "2-1", "data": 2}, "better left out"),
        ({"replicas": "2-1", "pipeline": 3}, "better left out"),
        ({"replicas": "2-1", "schedule": "zero-bubble"}, "allowed: 1f1b"),
        ({"replicas": "2-1", "zero_stage": 1}, "zero_stage=1"),
        ({"replicas": "2-1", "order": "pipeline-tensor-context-data"}, "ends in pipeline"),
        ({"replicas": "3-2", "global_batch": 16}, "12 or 18"),
    ],
)
def test_what_cannot_be_is_refused(fields: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        make_plan({"global_batch": 12, **fields})


@pytest.mark.parametrize("fields", [{}, {"schedule": "gpipe"}, {"tensor": 2, "context": 2}])
def test_shared_weights_are_summed_over_all_who_hold_them(fields: dict[str, Any]) -> None:
    """Every gradient once, over its stage's replicas; that of the table over both stages'."""
    fast = step((3, 1), model="gpt2", micro_batch=1, **fields)
    slow = step((3, 1), model="gpt2", micro_batch=1, reference=True, **fields)
    assert fast.step_time_s == pytest.approx(slow.step_time_s, rel=1e-9)
    lowered = fast.details.lowered
    tied = {label for _, label in lowered.talks if label.startswith("all-reduce tied")}
    assert tied == {"all-reduce tied embedding.weight"}
    table = lowered.graph.tensors["embedding.weight.grad"].bytes
    sizes = {t.size_bytes for (_, label), t in lowered.talks.items() if label in tied}
    assert sizes == {table}
    shared = fields.get("context", 1)
    rest = sum(
        s.size_bytes for s in lowered.schedules if s.op == "all-reduce" and s.n_ranks == 3 * shared
    )
    both = [s for s in lowered.schedules if s.n_ranks == 4 * shared]
    assert len(both) == fields.get("tensor", 1)
    assert rest > 0


def test_weights_that_are_updated_at_different_times_are_refused() -> None:
    assert counts_of("2-1") == (2, 1)
    with pytest.raises(ConfigError, match=r"share the weights .* allowed: 1f1b, gpipe"):
        step((2, 1), model="gpt2", schedule="pipedream")
