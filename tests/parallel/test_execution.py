"""Executions on machines: what meets, what it costs, and what cannot be."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import ridgeline as rl
from ridgeline.network.cluster_topology import from_cluster
from ridgeline.network.collectives import collective
from ridgeline.parallel.executions.lower import lower_execution
from ridgeline.workload.execution import COLLECTIVES, Execution, TaskKind
from thoroughly import sample_of

NAN = float("nan")


def execution(ranks, groups=(), world=None):
    """Make an execution of lists of tasks: (kind, fields, numbers of earlier tasks of the rank)."""
    columns = {"kind": [], "flops": [], "size_bytes": [], "op": [], "group": [], "peer": [],
               "tag": [], "duration_s": [], "stream": []}  # fmt: skip
    default = {"flops": NAN, "size_bytes": NAN, "op": -1, "group": -1, "peer": -1, "tag": 0,
               "duration_s": NAN, "stream": None}  # fmt: skip
    streams = {TaskKind.COMPUTE: 0, TaskKind.COLLECTIVE: 1, TaskKind.SEND: 2, TaskKind.RECEIVE: 3,
               TaskKind.HOST: 4, TaskKind.MEMORY: 5, TaskKind.MARK: 4}  # fmt: skip
    ptr, dep_ptr, deps = [0], [0], []
    for tasks in ranks:
        for kind, fields, before in tasks:
            row = {**default, "kind": kind, **fields}
            if row["stream"] is None:
                row["stream"] = streams[kind]
            for name, values in columns.items():
                values.append(row[name])
            deps += [ptr[-1] + b for b in before]
            dep_ptr.append(len(deps))
        ptr.append(ptr[-1] + len(tasks))
    n = ptr[-1]
    types = {"kind": np.uint8, "op": np.int8, "flops": float, "size_bytes": float,
             "duration_s": float}  # fmt: skip
    return Execution(
        name="made", ranks=np.arange(len(ranks), dtype=np.int32), world=world or len(ranks),
        task_ptr=np.array(ptr, np.int64), id=np.arange(n), label=np.zeros(n, np.int32),
        start_s=np.full(n, NAN), format=np.full(n, -1, np.int8),
        **{name: np.array(v, types.get(name, np.int32)) for name, v in columns.items()},
        dep_ptr=np.array(dep_ptr, np.int64), dep_index=np.array(deps, np.int32),
        group_ptr=np.cumsum([0, *map(len, groups)]).astype(np.int64),
        group_rank=np.array([r for g in groups for r in g], np.int32),
        group_names=tuple(map(str, range(len(groups)))),
        stream_names=("compute", "network", "send", "receive", "host", "memory"),
        label_names=("task",),
    )  # fmt: skip


def compute(flops, *before, **more):
    return TaskKind.COMPUTE, {"flops": flops, "size_bytes": 0.0, **more}, before


def reduce(size, *before, group=-1, op="all-reduce"):
    fields = {"size_bytes": size, "op": COLLECTIVES.index(op), "group": group}
    return TaskKind.COLLECTIVE, fields, before


def send(size, peer, *before, tag=0):
    return TaskKind.SEND, {"size_bytes": size, "peer": peer, "tag": tag}, before


def receive(size, peer, *before, tag=0):
    return TaskKind.RECEIVE, {"size_bytes": size, "peer": peer, "tag": tag}, before


def test_a_compute_task_takes_its_roofline():
    cluster = rl.load_cluster("dgx1-v100")
    device = cluster.device
    result = rl.simulate(execution([[compute(1e12)]]), cluster, format="fp32")
    rate = max(e.rates["fp32"].value for e in device.engines.values() if "fp32" in e.rates)
    assert result.step_time_s >= device.launch_latency.value + 1e12 / rate
    assert result.flops_per_step == 1e12
    size = 1e10
    memory = execution([[compute(0.0, size_bytes=size)]])
    level = device.memory[device.far_memory]
    expected = device.launch_latency.value + size / (level.bandwidth.value * level.achievable.value)
    assert rl.simulate(memory, cluster).step_time_s == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("op", ["all-reduce", "all-gather", "reduce-scatter", "all-to-all"])
def test_a_collective_alone_takes_what_the_collective_takes(op):
    ranks = [[reduce(1e8, op=op)] for _ in range(8)]
    result = rl.simulate(execution(ranks), "dgx1-v100")
    assert result.step_time_s == pytest.approx(collective(op, 1e8, "dgx1-v100").time_s, rel=1e-9)
    assert result.rank_time_s == (result.step_time_s,) * 8
    parts = [value for name, value in result.time_s.items() if name != "total"]
    assert sum(parts) == pytest.approx(result.step_time_s, rel=1e-12)


def test_groups_that_share_no_link_do_not_slow_each_other():
    one = execution([[reduce(1e8, group=0)] for _ in range(4)], [[0, 1, 2, 3]])
    pair = [[reduce(1e8, group=r // 4)] for r in range(8)]
    both = execution(pair, [[0, 1, 2, 3], [4, 5, 6, 7]])
    alone = rl.simulate(one, "dgx-a100")
    assert rl.simulate(both, "dgx-a100").step_time_s == pytest.approx(alone.step_time_s, rel=1e-9)


def test_a_message_waits_for_both_ends():
    ranks = [[compute(1e13), send(1e6, 1, 0)], [receive(1e6, 0), compute(1e12, 0)]]
    result = rl.simulate(execution(ranks), "dgx1-v100")
    first = rl.simulate(execution([[compute(1e13)]]), "dgx1-v100").step_time_s
    last = rl.simulate(execution([[compute(1e12)]]), "dgx1-v100").step_time_s
    message = collective("send", 1e6, "dgx1-v100", ranks=2).time_s
    assert result.step_time_s == pytest.approx(first + message + last, rel=1e-9)
    assert result.time_s["bubble"] > 0


def test_measured_times_replay_and_the_least_of_a_collective_counts():
    def late(seconds):
        kind, fields, before = reduce(1e6, 0)
        return kind, {**fields, "duration_s": seconds}, before

    work = [compute(NAN, duration_s=2.0), compute(NAN, duration_s=3.0)]
    result = rl.simulate(execution([[work[0], late(1.5)], [work[1], late(0.5)]]), "dgx1-v100")
    assert result.manifest["times"] == "measured"
    assert result.step_time_s == 3.5
    assert rl.simulate(
        execution([[compute(1e12, duration_s=9.0)]]), "dgx1-v100", times="modelled"
    ).step_time_s < 1  # fmt: skip


@pytest.mark.parametrize(
    ("ranks", "message"),
    [
        ([[compute(NAN, size_bytes=NAN)]], "state neither"),
        ([[reduce(8)], [compute(1)]], "met on 1 of 2 ranks"),
        ([[reduce(8)], [reduce(16)]], "meets"),
        ([[reduce(8)], [reduce(8, op="broadcast")]], "meets"),
        ([[send(8, 1)], [compute(1)]], "met on 1 of 2"),
        ([[send(8, 1)], [receive(8, 0, tag=3)]], "met on 1 of 2"),
        ([[send(8, 1)], [receive(9, 0)]], "meets"),
        ([[send(8, 0)], [compute(1)]], "with rank 0"),
        ([[compute(-1.0)]], "flops is -1"),
        ([[reduce(8, 1), compute(1, 0)], [reduce(8)]], "in a circle"),
    ],
)
def test_what_does_not_fit_together_is_one_error(ranks, message):
    with pytest.raises(rl.RidgelineError, match=message):
        rl.simulate(execution(ranks), "dgx1-v100")


def test_a_rank_outside_its_group_is_an_error():
    with pytest.raises(rl.RidgelineError, match=r"not in that group|met on"):
        rl.simulate(execution([[reduce(8, group=0)], [compute(1)]], [[1]]), "dgx1-v100")


def test_a_plan_or_a_small_machine_is_an_error():
    with pytest.raises(rl.RidgelineError, match="takes no plan"):
        rl.simulate(execution([[compute(1)]]), "dgx1-v100", rl.Plan(global_batch=1))
    with pytest.raises(rl.RidgelineError, match="8 devices"):
        rl.simulate(execution([[compute(1)]], world=9), "dgx1-v100")
    with pytest.raises(rl.RidgelineError, match="no engine for fp3"):
        rl.simulate(execution([[compute(1)]]), "dgx1-v100", format="fp3")
    with pytest.raises(rl.RidgelineError, match="have no measured time"):
        rl.simulate(execution([[compute(1)]]), "dgx1-v100", times="measured")


@st.composite
def jobs(draw):
    """Every rank does the same list of things, with work of its own."""
    n = draw(st.sampled_from([2, 4]))
    halves = [list(range(n // 2)), list(range(n // 2, n))]
    ranks = [[] for _ in range(n)]
    for step in range(draw(st.integers(1, 6))):
        what = draw(st.sampled_from(["compute", "all", "half", "message"]))
        size = float(draw(st.integers(1, 2**22)))
        for rank, tasks in enumerate(ranks):
            before = [len(tasks) - 1] if tasks and draw(st.booleans()) else []
            if what == "compute":
                tasks.append(compute(float(draw(st.integers(1, 10**11))), *before))
            elif what == "all":
                tasks.append(reduce(size, *before))
            elif what == "half":
                tasks.append(reduce(size, *before, group=rank * 2 // n))
            elif rank % 2:
                tasks.append(receive(size, rank - 1, *before, tag=step))
            else:
                tasks.append(send(size, rank + 1, *before, tag=step))
    return execution(ranks, halves)


@sample_of(8, 30, jobs())
def test_both_executors_agree_and_parts_add_up(job):
    cluster = rl.load_cluster("dgx1-v100")
    fast = rl.simulate(job, cluster)
    slow = rl.simulate(job, cluster, reference=True)
    assert fast.step_time_s == pytest.approx(slow.step_time_s, rel=1e-9)
    for account in (fast.time_s, fast.energy_j):
        parts = [value for name, value in account.items() if name != "total"]
        assert sum(parts) == pytest.approx(account["total"], rel=1e-9)
        assert min(parts) >= 0
    assert fast.to_dict() == rl.simulate(job, cluster).to_dict()


@given(jobs())
@settings(max_examples=30, deadline=None)
def test_private_links_change_nothing(job):
    """Links whose users need one stream are played as fixed times; sharing them gives the same."""
    from dataclasses import replace

    from ridgeline.engine.executor import run

    cluster = rl.load_cluster("dgx1-v100")
    program = lower_execution(job, cluster, from_cluster(cluster, job.world)).program
    is_link = np.array(["->" in name for name in program.resource_names], np.bool_)
    shared = run(replace(program, shared=is_link))
    assert run(program).end_s == pytest.approx(shared.end_s, rel=1e-9)
