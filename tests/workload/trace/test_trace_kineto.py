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


def test_kernels_without_work_cannot_be_priced(tmp_path):
    (tmp_path / "a.json").write_text(json.dumps(measured(1)))
    with pytest.raises(rl.RidgelineError, match="state neither arithmetic nor traffic"):
        rl.simulate(rl.load_model(tmp_path / "a.json"), "dgx-a100", times="modelled")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"traceEvents": []}', "no kernels"),
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
