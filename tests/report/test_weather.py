"""Faults, stragglers and jitter: what they do to a step, and who is waited for."""

from __future__ import annotations

import json
import shlex
from contextlib import suppress

import numpy as np
import pytest

import ridgeline as rl
from ridgeline import catalog
from ridgeline.cli import execute
from ridgeline.errors import ConfigError, CutOffError
from ridgeline.network.faults import read_faults, with_faults
from ridgeline.network.resolve import load_cluster, topology_of
from ridgeline.report.fault_distribution import weather
from ridgeline.report.result import Result

PLAN = rl.Plan(data=8, global_batch=256)


def step(*faults: str, name: str = "dgx1-v100", plan: rl.Plan = PLAN) -> Result:
    return rl.simulate("mlp", load_cluster(name, {"faults": list(faults)}), plan, fold=False)


@pytest.mark.parametrize("name", catalog.names("clusters")[::6])
def test_a_broken_link_slows_or_cuts_off(name: str) -> None:
    cluster = load_cluster(name)
    each = cluster.nodes.count
    n = min(cluster.max_devices, 2 * each if each > 1 else 4)
    plan = rl.Plan(data=n, global_batch=8 * n)
    whole_s = step(name=name, plan=plan).step_time_s
    for kind in sorted(topology_of(cluster, n).link_classes):
        for how in ("down", "down all"):
            with suppress(CutOffError):
                found_s = step(f"link {kind} {how}", name=name, plan=plan).step_time_s
                assert found_s >= whole_s * (1 - 1e-9)


def test_one_of_several_parallel_links() -> None:
    whole = topology_of("dgx1-v100")
    one, every, slow = (
        with_faults(whole, read_faults([f"link node0.device0 node0.device3 {how}"]), 8)
        for how in ("down", "down all", "slow 0.25")
    )
    link = whole.links_between(0, 3)[0]
    assert whole.count[link] == 2
    assert one.bandwidth_bytes_per_s[one.links_between(0, 3)[0]] == (
        whole.bandwidth_bytes_per_s[link] / 2
    )
    assert not every.links_between(0, 3)
    assert slow.bandwidth_bytes_per_s[slow.links_between(3, 0)[0]] == (
        whole.bandwidth_bytes_per_s[link] / 4
    )


def test_a_lost_device_is_replaced_or_missed() -> None:
    lost = with_faults(topology_of("dgx1-v100"), read_faults(["device 3 lost"]), 4)
    assert lost.devices.tolist() == [0, 1, 2, 4]
    with pytest.raises(CutOffError, match="it needs 8 devices, and 7 are left"):
        step("device node0.device3 lost")


def test_static_ways_are_cut_off() -> None:
    faults = ["link node0.device0 node0.device3 down all"]
    assert step(*faults).step_time_s > 0
    with pytest.raises(CutOffError, match="with static routing"):
        step(*faults, "reroute static")


def test_a_slow_rank_is_waited_for() -> None:
    plain, slow = step(), step("rank 3 slow 1.5")
    found = weather(slow)
    assert max(found.waited_for, key=lambda rank: found.waited_for[rank]) == 3
    assert found.median_s == found.p95_s == slow.step_time_s
    assert slow.step_time_s > plain.step_time_s
    assert slow.time_s["total"] == pytest.approx(sum(
        value for name, value in slow.time_s.items() if name != "total"
    ))  # fmt: skip
    assert slow.energy_j["dram"] == pytest.approx(plain.energy_j["dram"])  # counts are the same
    ranks = slow.manifest["ranks"]
    assert ranks["real"] == ranks["simulated"] == 8


def test_jitter_is_drawn_by_its_seed() -> None:
    line = "jitter lognormal relative=0.2 seed={} samples=6"
    one, again, other = (weather(step(line.format(seed))) for seed in (1, 1, 50))
    assert one == again
    assert one.median_s != other.median_s
    plain_s = step().step_time_s
    assert plain_s < one.least_s <= one.median_s <= one.p95_s <= one.most_s
    assert 0 < sum(one.waited_for.values()) <= 1 + 1e-12
    assert np.isclose(
        weather(step("jitter constant relative=0.1 samples=2")).p95_s, plain_s, rtol=0.2
    )


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("lynk a b down", "found 'lynk a b down'; did you mean 'link'"),
        ("link a b broken", "write link A B down, link A B down all, or link A B slow 0.5"),
        ("link a b slow 2", "more than 0 and at most 1"),
        ("rank 3 slow 0.5", "1 or more times as long"),
        ("rank 3 slow x", "'x' is no number"),
        ("jitter exponential", "jitter needs relative or mean"),
        ("jitter exponential rel=1", "jitter has no 'rel'; did you mean 'relative'"),
        ("jitter exponential relative=0.1 samples=0", "samples 1 to"),
        ("", "a fault begins with what is hit"),
    ],
)
def test_lines_that_cannot_be_read(line: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        read_faults([line])


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("nic node0.nic9 lost", "has no nic 'node0.nic9'; did you mean"),
        ("link nvlink9 down", "has no links 'nvlink9'; did you mean 'nvlink2'"),
        ("link node0.device0 node0.device7 down", "no link joins"),
        ("device 12 lost", "there are ranks 0 to 7"),
        ("rank 12 slow 2", "the job has ranks 0 to 7"),
        ("jitter lognrmal relative=1", "no distribution is called 'lognrmal'; did you mean"),
    ],
)
def test_names_that_are_nowhere(
    line: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["run", "mlp", "dgx1-v100", "--plan", "data=8", "--batch", "64", "--fault", line]
    assert execute(words) == 2
    assert message in capsys.readouterr().err


def test_run_prints_what_faults_do(capsys: pytest.CaptureFixture[str]) -> None:
    words = shlex.split("run mlp dgx1-v100 --plan data=8 --batch 64 --fault 'rank 2 slow 2'")
    assert execute(words) == 0
    assert "waited for, at collectives, were ranks 2" in capsys.readouterr().out
    assert execute([*words, "--json"]) == 0
    faults = json.loads(capsys.readouterr().out)["faults"]
    assert faults["median_s"] > faults["healthy_s"]
