"""The Chrome trace holds the whole timeline, and nothing else."""

from __future__ import annotations

import gzip
import itertools
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ridgeline as rl
from ridgeline.errors import ConfigError
from ridgeline.report.accounting import CONTENTION
from ridgeline.report.perfetto import trace, write_trace
from ridgeline.report.result import Result
from ridgeline.workload.graph import Pass


def events(result: Result, phase: str) -> list[dict[str, Any]]:
    """Return the events of a phase, but for the track of the critical path (`test_whatif`)."""
    found = [event for event in trace(result)["traceEvents"] if event["ph"] == phase]
    return [event for event in found if event.get("cat") != "critical path"]


def test_every_task_of_every_stream_is_there_with_its_time(any_result: Result) -> None:
    timeline = any_result.details.timeline
    program = timeline.program
    tasks = events(any_result, "X")
    for stream, rank in enumerate(program.stream_rank.tolist()):
        mine = [event for event in tasks if event["tid"] == stream]
        busy = timeline.busy(stream)
        assert len(mine) == len(busy) > 0
        assert {event["pid"] for event in mine} == {rank}
        starts = np.array([event["ts"] for event in mine])
        durations = np.array([event["dur"] for event in mine])
        assert starts / 1e6 == pytest.approx(busy[:, 0])
        assert (starts + durations) / 1e6 == pytest.approx(busy[:, 1])
        total = math.fsum(busy[:, 1] - busy[:, 0])
        assert math.fsum(durations) / 1e6 == pytest.approx(total)


def test_no_two_tasks_of_a_stream_overlap_in_whole_nanoseconds(any_result: Result) -> None:
    """A viewer that counts nanoseconds must not nest tasks that follow each other."""
    tasks = events(any_result, "X")
    for stream in {event["tid"] for event in tasks}:
        mine = sorted((e["ts"], e["dur"]) for e in tasks if e["tid"] == stream)
        for (start, length), (after, _) in itertools.pairwise(mine):
            assert int(start * 1e3) + int(length * 1e3) <= int(after * 1e3)


def test_ranks_and_streams_have_names(result: Result, unfolded: Result) -> None:
    named = {(e["name"], e["pid"], e.get("tid")): e["args"]["name"] for e in events(result, "M")}
    assert named == {
        ("process_name", 0, None): "device0 (one of 8 alike)",
        ("thread_name", 0, 0): "compute",
        ("thread_name", 0, 1): "network",
    }
    ranks = [e["args"]["name"] for e in events(unfolded, "M") if e["name"] == "process_name"]
    assert ranks == ["device0", "device1", "device2", "device3"]


def test_a_collective_is_there_on_each_stream_that_it_occupies(unfolded: Result) -> None:
    collectives = [event for event in events(unfolded, "X") if event["cat"] == "collective"]
    names = {event["name"] for event in collectives}
    assert names
    for name in names:
        assert {e["pid"] for e in collectives if e["name"] == name} == {0, 1, 2, 3}


def test_flops_bytes_and_joules_of_the_tasks_add_up_to_the_result(any_result: Result) -> None:
    device = any_result.details.cluster.device
    once: dict[tuple[int, str, float], dict[str, Any]] = {}
    for event in events(any_result, "X"):  # a collective counts once, on whichever stream
        where = -1 if event["cat"] == "collective" else event["tid"]
        once[where, event["name"], event["ts"]] = event["args"]
    flops = sum(
        about["stands for"] * count
        for about in once.values()
        for place, count in about["FLOP"].items()
        if "matrix" in device.engines[place.rpartition(".")[0]].runs
    )
    assert flops >= any_result.flops_per_step  # vector work may be done by the same engine
    for place, total in any_result.traffic_bytes.items():
        moved = sum(about["stands for"] * about["B"].get(place, 0.0) for about in once.values())
        assert moved == pytest.approx(total)
    joules = sum(about["stands for"] * about["J"] for about in once.values())
    static = any_result.energy_j["static"]
    assert joules == pytest.approx(any_result.energy_j["total"] - static)


def test_a_task_says_what_it_is_and_what_limits_it(result: Result) -> None:
    tasks = events(result, "X")
    by_name = {event["name"]: event["args"] for event in tasks}
    for op in result.details.lowered.ops:
        about = by_name[op.name]
        assert (about["op"], about["layer"], about["pass"]) == (op.kind, op.layer, op.pass_)
        assert about["stands for"] == 8
    limits_s: dict[str, float] = {}
    for event in tasks:
        if event["cat"] in set(Pass):
            name = event["args"]["limited by"]
            limits_s[name] = limits_s.get(name, 0.0) + event["dur"] / 1e6
    expected = {k: v for k, v in result.limits_s.items() if k in limits_s}
    assert limits_s.keys() == expected.keys()
    longer_s = {name: limits_s[name] - expected[name] for name in expected}
    assert min(longer_s.values()) > -1e-12
    # What messages beside make tasks longer has a limit of its own.
    assert sum(longer_s.values()) <= result.limits_s[CONTENTION] * (1 + 1e-9)
    large = max((e for e in tasks if e["cat"] == "collective"), key=lambda e: e["dur"])
    assert "nvlink2" in large["args"]["limited by"]
    assert "bandwidth" in large["args"]["limited by"]


def test_a_small_collective_is_limited_by_latency(unfolded: Result) -> None:
    limits = {e["args"]["limited by"] for e in events(unfolded, "X") if e["cat"] == "collective"}
    assert limits == {"latency"}


def test_counters_follow_the_memory_of_each_rank(any_result: Result) -> None:
    timeline = any_result.details.timeline
    counters = [event for event in events(any_result, "C") if event["name"] == "memory"]
    for rank in range(len(timeline.program.rank_multiplicity)):
        times, held = timeline.memory_profile(rank)
        mine = [event for event in counters if event["pid"] == rank]
        assert [event["ts"] for event in mine] == pytest.approx((times * 1e6).tolist())
        assert [list(event["args"].values()) for event in mine] == held.tolist()
        assert all(tuple(e["args"]) == timeline.program.memory_kinds for e in mine)
    peak = max(sum(event["args"].values()) for event in counters)
    assert peak == any_result.memory_bytes["total"]


def test_the_power_counter_integrates_to_the_energy_of_the_step(any_result: Result) -> None:
    program = any_result.details.timeline.program
    counters = [event for event in events(any_result, "C") if event["name"] == "power"]
    total_j = 0.0
    for rank, alike in enumerate(program.rank_multiplicity.tolist()):
        mine = [event for event in counters if event["pid"] == rank]
        times_s = np.array([event["ts"] for event in mine]) / 1e6
        powers_w = np.array([event["args"]["W"] for event in mine])
        total_j += alike * float(np.diff(times_s) @ powers_w[:-1])
        assert powers_w[-1] == 0.0
    assert total_j == pytest.approx(any_result.energy_j["total"], rel=1e-9)


def test_the_file_is_json_that_says_what_it_is(result: Result, tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    write_trace(result, path)
    read = json.loads(path.read_text())
    assert read == trace(result)
    assert read["otherData"]["manifest_hash"] == result.manifest["hash"]
    assert "simulated, not measured" in read["otherData"]["title"]


def test_gzipped_files_hold_the_same_and_have_equal_bytes(result: Result, tmp_path: Path) -> None:
    paths = [tmp_path / name for name in ("a.json.gz", "b.json.gz", "plain.json")]
    for path in paths:
        write_trace(result, path)
    first, second, plain = (path.read_bytes() for path in paths)
    assert first == second
    assert first[3:8] == bytes(5)  # neither a name nor a time in the header
    assert gzip.decompress(first) == plain
    assert len(first) < len(plain) / 4


def test_a_missing_folder_is_an_error_with_the_name(result: Result, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="nowhere"):
        write_trace(result, tmp_path / "nowhere" / "trace.json")


def test_arrows_lead_from_each_message_to_what_reads_it() -> None:
    plan = rl.Plan(data=2, pipeline=4, global_batch=16, micro_batch=2, precision="fp16-mixed")
    played = rl.simulate("gpt2", "dgx1-v100", plan, software="ideal")
    starts, ends = events(played, "s"), events(played, "f")
    assert [arrow["id"] for arrow in starts] == [arrow["id"] for arrow in ends]
    sent = [event for event in events(played, "X") if event["name"].startswith("send ")]
    assert len(sent) == 3 * 2 * 4  # stages that send, ways, micro-batches
    slices = {(e["pid"], e["tid"], e["ts"]): e for e in events(played, "X")}
    for start, end in zip(starts, ends, strict=True):
        message = slices[start["pid"], start["tid"], start["ts"]]
        reader = slices[end["pid"], end["tid"], end["ts"]]
        assert start["pid"] != end["pid"]
        assert message["cat"] == "collective"
        assert reader["ts"] >= (message["ts"] + message["dur"]) * (1 - 1e-12)
        if message in sent:
            sent.remove(message)
    assert not sent
