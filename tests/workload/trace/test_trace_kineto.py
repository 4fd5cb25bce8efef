"""Profiler traces: the replay of one rank gives the measured times, whatever the trace."""

from __future__ import annotations

import gzip
import json
import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import ridgeline as rl
from ridgeline.workload.execution import TaskKind
from ridgeline.workload.trace import kineto


def measured(seed, *, rank=0, world=4, launches=30):
    """A host that launches kernels on two streams and sometimes waits for the device."""
    r = random.Random(seed)
    now, events, free = 1000.0, [], {7: 0.0, 20: 0.0}
    for i in range(launches):
        now += r.uniform(2, 30)
        talks = r.random() < 0.2
        stream = 20 if talks else 7
        call = {"ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "ts": now, "dur": 3.0,
                "args": {"correlation": i + 1}}  # fmt: skip
        start = max(now + r.uniform(1, 9), free[stream], free[7] if talks else 0)
        args = {"stream": stream, "correlation": i + 1}
        if talks:
            args |= {"Collective name": "allreduce", "In msg nelems": 1000, "dtype": "Float",
                     "Out msg nelems": 1000, "Process Group Ranks": str(list(range(world))),
                     "Process Group Name": "0", "Group size": world}  # fmt: skip
        name = "ncclDevKernel_AllReduce" if talks else f"gemm{i % 3}"
        kernel = {"ph": "X", "cat": "kernel", "name": name, "ts": start, "dur": r.uniform(5, 60),
                  "args": args}  # fmt: skip
        events += [call, kernel]
        free[stream] = start + kernel["dur"]
        now += 3
        if r.random() < 0.1:
            end = max(*free.values(), now) + 4
            events.append({"ph": "X", "cat": "cuda_runtime", "name": "cudaDeviceSynchronize",
                           "ts": now, "dur": end - now, "args": {}})  # fmt: skip
            now = end
    r.shuffle(events)
    noise = [{"ph": "M", "name": "process_name"}, {"ph": "X", "cat": "cpu_op", "name": "aten::mm",
             "ts": 5, "dur": 1e9, "args": {}}]  # fmt: skip
    return {"schemaVersion": 1, "distributedInfo": {"rank": rank, "world_size": world},
            "traceEvents": noise + events}  # fmt: skip


@given(st.integers(0, 10**6))
@settings(max_examples=20, deadline=None)
def test_the_replay_of_one_rank_is_what_was_measured(tmp_path_factory, seed):
    trace = measured(seed)
    path = tmp_path_factory.mktemp("kineto") / "rank0.json"
    path.write_text(json.dumps(trace))
    result = rl.simulate(rl.load_model(path), "dgx-a100")
    events = [e for e in trace["traceEvents"] if e.get("cat") in {"kernel", "cuda_runtime"}]
    origin = min(e["ts"] for e in events)
    span_us = max(e["ts"] + e["dur"] for e in events if e["cat"] == "kernel") - origin
    timeline = result.details.timeline
    on_device = np.isin(timeline.program.kind, [TaskKind.COMPUTE, TaskKind.COLLECTIVE])
    starts = sorted((e["ts"] - origin) * 1e-6 for e in events if e["cat"] == "kernel")
    assert np.sort(timeline.start_s[on_device]) == pytest.approx(starts, abs=1e-12)
    assert timeline.end_s[on_device].max() == pytest.approx(span_us * 1e-6, abs=1e-12)
    assert result.manifest["times"] == "measured"


def test_collectives_of_several_ranks_meet(tmp_path):
    paths = []
    for rank in range(4):
        paths.append(tmp_path / f"rank{rank}.json.gz")
        paths[-1].write_bytes(gzip.compress(json.dumps(measured(7, rank=rank)).encode()))
    execution = kineto.load_ranks(paths)
    collectives = int((execution.kind == TaskKind.COLLECTIVE).sum())
    assert collectives
    assert collectives % 4 == 0
    result = rl.simulate(execution, "dgx-a100")
    program = result.details.timeline.program
    assert int((program.kind == TaskKind.COLLECTIVE).sum()) == collectives // 4
    one = rl.simulate(kineto.load(paths[0]), "dgx-a100")
    assert result.step_time_s == pytest.approx(one.step_time_s, rel=1e-9)  # equal ranks


def nested(r, start, end, depth=0):
    """Ops of one thread, one within another, some of them touching."""
    ops, now = [], start
    while now < end and len(ops) < 12:
        first = now + r.choice((0, r.uniform(0, 5)))
        last = min(end, first + r.uniform(1, 40))
        if first >= last:
            break
        ops.append((f"op{depth}.{len(ops)}", first, last))
        if depth < 3 and r.random() < 0.6:
            ops += nested(r, first, last, depth + 1)
        now = last
    return ops


@given(st.integers(0, 10**6))
@settings(max_examples=20, deadline=None)
def test_a_run_without_a_device_is_what_its_threads_did(tmp_path_factory, seed):
    r = random.Random(seed)
    threads = {tid: nested(r, r.uniform(0, 50), 200) for tid in (11, 12)}
    events = [{"ph": "X", "cat": "cpu_op", "name": name, "pid": 1, "tid": tid, "ts": start,
               "dur": end - start, "args": {}}
              for tid, ops in threads.items() for name, start, end in ops]  # fmt: skip
    r.shuffle(events)
    path = tmp_path_factory.mktemp("kineto") / "cpu.json"
    path.write_text(json.dumps({"traceEvents": events}))
    execution = rl.load_model(path)
    assert "there are no kernels" in execution.notes[1]
    timeline = rl.simulate(execution, "dgx-a100").details.timeline
    origin = min(start for ops in threads.values() for _, start, _ in ops)
    names = np.array(execution.label_names)[execution.label]
    streams = np.array(execution.stream_names)[execution.stream]
    for tid, ops in threads.items():
        for _, start, end in ops:  # at every moment the innermost op
            moments = np.linspace(start, end, 7)[1:-1]
            inner = [max((o for o in ops if o[1] <= t < o[2]), key=lambda o: (o[1], -o[2]))
                     for t in moments]  # fmt: skip
            of = streams == f"thread {tid}"
            for moment, op in zip(moments - origin, inner, strict=True):
                at = of & (timeline.start_s <= moment * 1e-6) & (moment * 1e-6 < timeline.end_s)
                same = {name for name, *span in ops if span == [*op[1:]]}
                assert len(names[at]) == 1
                assert set(names[at]) <= same
        busy = sum(timeline.end_s[of] - timeline.start_s[of]) * 1e6
        covered = np.zeros(20_000, bool)
        for _, start, end in ops:
            covered[round(start * 100) : round(end * 100)] = True
        assert busy == pytest.approx(covered.sum() / 100, abs=0.02 * (2 * len(ops) + 1))


def kernel(correlation, start, **args):
    return {"ph": "X", "cat": "kernel", "name": "k", "pid": 0, "tid": 7, "ts": start, "dur": 5.0,
            "args": {"correlation": correlation} | args}  # fmt: skip


def reduced(ranks, size):
    return kernel(1, 10.0, stream=20) | {
        "name": "ncclDevKernel_AllReduce",
        "args": {"stream": 20, "Collective name": "allreduce", "In msg nelems": 8,
                 "Out msg nelems": 8, "dtype": "Float", "Group size": size,
                 "Process Group Ranks": ranks},
    }  # fmt: skip


@pytest.mark.parametrize(
    ("ranks", "size", "members"),
    [
        ("[5, 13, 21, ..., 125]", 16, list(range(5, 128, 8))),
        ("[5, 13, 21, ...]", 16, list(range(5, 128, 8))),
        ("[0, 1, 2, ..., 127]", 128, list(range(128))),
        ("[5, 13, 21, ..., 126]", 16, None),  # no equal steps
        ("[5, 13, 22, ..., 125]", 16, None),
        ("[5, ..., 125]", 16, None),
        ("[5, 13, 21, ..., 125]", 17, None),
        ("[5, 13", 16, None),
    ],
)
def test_groups_of_one_rank_of_many_are_filled_in(tmp_path, ranks, size, members):
    trace = {"distributedInfo": {"rank": 5, "world_size": 128},
             "traceEvents": [kernel(1, 1.0, stream=7), reduced(ranks, size)]}  # fmt: skip
    (tmp_path / "rank5.json").write_text(json.dumps(trace))
    execution = kineto.load(tmp_path / "rank5.json")
    tasks = np.flatnonzero(execution.kind == TaskKind.COLLECTIVE)
    if members is None:
        assert not len(tasks)
        assert any("without a described group" in note for note in execution.notes)
    else:
        assert execution.members(int(execution.group[tasks[0]])).tolist() == members


@pytest.mark.parametrize(
    ("info", "ranks", "world"),
    [
        ({"rank": 34}, "", 35),  # older files have no world_size
        (None, "[0, 1, 2, 3]", 4),
        ({"rank": 1}, "[1, 9]", 10),
        ({"rank": 1, "world_size": 16}, "[1, 9]", 16),
    ],
)
def test_the_number_of_ranks_follows_from_what_is_stated(tmp_path, info, ranks, world):
    trace = {"traceEvents": [kernel(1, 1.0, stream=7), *([reduced(ranks, 2)] if ranks else [])]}
    if info is not None:
        trace["distributedInfo"] = info
    (tmp_path / "a.json").write_text(json.dumps(trace))
    assert kineto.load(tmp_path / "a.json").world == world


def test_a_group_beyond_the_stated_ranks_is_an_error_with_file_and_field(tmp_path):
    trace = {"distributedInfo": {"rank": 0, "world_size": 4},
             "traceEvents": [reduced("[0, 9]", 2)]}  # fmt: skip
    (tmp_path / "a.json").write_text(json.dumps(trace))
    with pytest.raises(rl.ConfigError, match=r"a\.json: distributedInfo\.world_size: 4, but .* 9"):
        kineto.load(tmp_path / "a.json")


def test_devices_of_every_kind_and_several_of_them(tmp_path):
    """MTIA's events have no stream, but stand in its place; a stream is one of its device."""
    launch = {"ph": "X", "cat": "mtia_runtime", "ts": 0.0, "dur": 1.0, "args": {"correlation": 1},
              "name": "runFunction - job_prep_and_submit_for_execution"}  # fmt: skip
    events = [launch, kernel(1, 4.0), kernel(2, 12.0) | {"cat": "mtia_ccp_events", "tid": 8}]
    unfinished = {key: value for key, value in kernel(3, 30.0).items() if key != "dur"}
    (tmp_path / "mtia.json").write_text(json.dumps({"traceEvents": [*events, unfinished]}))
    execution = kineto.load(tmp_path / "mtia.json")
    assert {"stream 7", "stream 8", "host"} <= set(execution.stream_names)
    assert "1 kernels that did not end while recording are left out" in execution.notes
    both = [kernel(1, 4.0, device=0, stream=7), kernel(2, 6.0, device=1, stream=7)]
    (tmp_path / "both.json").write_text(json.dumps({"traceEvents": both}))
    execution = kineto.load(tmp_path / "both.json")
    assert {"device 0 stream 7", "device 1 stream 7"} <= set(execution.stream_names)
    assert rl.simulate(execution, "dgx-a100").step_time_s == pytest.approx(7e-6)


def test_kernels_without_work_cannot_be_priced(tmp_path):
    (tmp_path / "a.json").write_text(json.dumps(measured(1)))
    with pytest.raises(rl.RidgelineError, match="state neither arithmetic nor traffic"):
        rl.simulate(rl.load_model(tmp_path / "a.json"), "dgx-a100", times="modelled")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"traceEvents": []}', "no kernels and no ops of the host among 0 events"),
        ('{"traceEvents": [{"ph": "X", "cat": "cpu_op", "name": "aten::mm", "ts": 1, "dur": 9},'
         ' {"ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "ts": 2, "dur": 1}]}',
         "1 calls of a device and no kernel are among its 2 events"),
        ('{"traceEvents": [{"ph": "X", "cat": "cpu_op", "name": "a", "ts": 1, "dur": -1}]}',
         "its time"),
        ('{"traceEvents": [{"ph": "X", "cat": "kernel"}]}', "lacks or misstates"),
        ('{"traceEvents": [{"ph": "X", "cat": "kernel", "name": "k", "ts": 1, "dur": -1,'
         ' "args": {"stream": 7}}]}', "its time"),
        ('{"traceEvents": [{"ph": "X",', "ends too early"),
        ('{"distributedInfo": {"rank": 9, "world_size": 2}, "traceEvents": []}', "rank 9"),
        ('{"traceEvents": [' + "[" * 100_000, "nested too deep"),
        ('{"traceEvents": [1 2]}', "expected , or ]"),
    ],
)  # fmt: skip
def test_a_damaged_trace_is_one_error_with_its_line(tmp_path, text, message):
    path = tmp_path / "a.json"
    path.write_text(text)
    with pytest.raises(rl.ConfigError, match=message) as error:
        rl.load_model(path)
    assert "a.json" in str(error.value)
