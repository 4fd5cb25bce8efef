"""Steps on devices of several kinds: the slow are waited for, each is priced as itself."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import ridgeline as rl
from ridgeline.errors import ConfigError, RidgelineError
from ridgeline.network.resolve import load_cluster
from ridgeline.report.fault_distribution import waited_s
from ridgeline.report.result import Result
from ridgeline.study.planner.frontier import found_by
from ridgeline.study.planner.result import Objective
from ridgeline.study.planner.searcher import searcher

FILE = Path(__file__).parents[2] / "docs" / "examples" / "fabrics" / "two-generations.yaml"
LINK = "Switch(8, 300 GB/s, 1 us)"
SLOW, FAST = "v100-sxm2-16gb", "a100-sxm4-40gb"


def step(tmp_path: Path, names: list[str], **plan: object) -> Result:
    """Simulate on eight devices behind a switch, of these kinds in rank order."""
    devices = [f"d{i}" for i in range(8)]
    file = tmp_path / "t.yaml"
    kinds = "".join(f"  {device}: {name}\n" for device, name in zip(devices, names, strict=True))
    file.write_text(
        f"kind: topology\nname: mixed\ndevices: [{', '.join(devices)}]\nswitches: [s]\n"
        f"device:\n{kinds}"
        "link_types: {l: {bandwidth: 300 GB/s, latency: 1 us}}\n"
        'links: [{between: ["d*", s], type: l}]\n'
    )
    fields = {"global_batch": 64, "precision": "fp16-mixed", **plan}
    return rl.simulate("gpt2", load_cluster(str(file)), rl.Plan(**fields), software="ideal")  # type: ignore[arg-type]


def test_replicas_wait_for_the_slow(tmp_path: Path) -> None:
    slow, fast = (step(tmp_path, [name] * 8, data=8) for name in (SLOW, FAST))
    mixed = step(tmp_path, [SLOW] * 4 + [FAST] * 4, data=8)
    assert mixed.step_time_s == pytest.approx(slow.step_time_s, rel=1e-9)
    assert fast.step_time_s < mixed.step_time_s
    assert [len(members) for members in mixed.details.lowered.classes] == [4, 4]  # one of each kind
    waits = waited_s(mixed.details.timeline)
    assert waits[0] > 0
    assert waits[1] == 0
    assert mixed.memory_bytes["capacity"] == slow.memory_bytes["capacity"]
    other = step(tmp_path, [FAST, SLOW] * 4, data=8)  # in any order
    assert other.step_time_s == pytest.approx(mixed.step_time_s, rel=1e-9)


def test_energy_and_peak_are_those_of_each_kind(tmp_path: Path) -> None:
    slow, fast = (step(tmp_path, [name] * 8, data=8) for name in (SLOW, FAST))
    mixed = step(tmp_path, [SLOW] * 4 + [FAST] * 4, data=8)
    for part in ("compute", "sram"):
        halves = (slow.energy_j[part] + fast.energy_j[part]) / 2
        assert mixed.energy_j[part] == pytest.approx(halves, rel=1e-6)
    kinds = mixed.manifest["devices"]
    assert [(kind["name"], kind["count"]) for kind in kinds] == [(SLOW, 4), (FAST, 4)]
    assert sum(kind["energy_j"] for kind in kinds) <= mixed.energy_j["total"] * (1 + 1e-9)
    assert np.isclose(
        1 / mixed.mfu,
        (1 / slow.mfu + mixed.step_time_s / fast.step_time_s / fast.mfu) / 2,
        rtol=1e-6,
    )


def test_stages_are_priced_where_they_are(tmp_path: Path) -> None:
    plan = {"data": 4, "pipeline": 2, "micro_batch": 4}
    slow, fast = (step(tmp_path, [name] * 8, **plan).step_time_s for name in (SLOW, FAST))
    mixed = step(tmp_path, [SLOW] * 4 + [FAST] * 4, **plan)
    assert fast < mixed.step_time_s < slow
    lowered = mixed.details.lowered
    assert lowered.kind_of_rank == (0, 1)  # a stage of each kind
    assert dict(mixed.time_s)["total"] == pytest.approx(mixed.step_time_s)


def test_nodes_of_two_generations() -> None:
    cluster = load_cluster(str(FILE))
    assert cluster.max_devices == 32
    assert [device.name for device in cluster.kinds_of_devices] == [
        "a100-sxm4-80gb", "h100-sxm5-80gb",
    ]  # fmt: skip
    plan = rl.Plan(data=32, global_batch=256)
    mixed = rl.simulate("mlp", cluster, plan, software="ideal")
    assert len(mixed.details.lowered.classes) < 32
    every = rl.simulate("mlp", cluster, plan, software="ideal", fold=False)
    assert len(every.details.lowered.classes) == 32
    assert mixed.step_time_s == pytest.approx(every.step_time_s, rel=1e-9)
    assert mixed.mfu == pytest.approx(every.mfu, rel=1e-9)
    for kind, whole in zip(mixed.manifest["devices"], every.manifest["devices"], strict=True):
        assert kind["count"] == whole["count"] == 16
        assert kind["energy_j"] == pytest.approx(whole["energy_j"], rel=1e-9)
    one_kind = rl.simulate("mlp", cluster, plan.model_copy(update={"data": 16}), software="ideal")
    assert not one_kind.details.lowered.kinds  # the first 16 are alike
    assert "A100" not in repr(cluster)
    assert repr(cluster) == "<Cluster two-generations: up to 2 x dgx-a100, 2 x dgx-h100>"


@pytest.mark.parametrize("objective", ["time", "energy"])
def test_the_best_plan_of_several_kinds_is_proven(objective: Objective) -> None:
    """Every plan is played: none is below its bound, and none better than the one found."""
    one = searcher("mlp", str(FILE), 32, 64, objective=objective)
    found = found_by(one)
    assert found.proven
    assert found.best.plan.devices == 32
    best, played = found.best.objective, 0
    for i in range(0, len(one.space), 3):
        group = one.groups.group(one.key(i))
        if group is None:
            continue
        try:
            replay = one.replay(one.space.plan(i))
        except RidgelineError:
            continue
        assert replay.objective >= best * (1 - 1e-12)
        assert one.tightened(group, i).time_s <= replay.step_time_s * (1 + 1e-9)
        played += 1
    assert played > 5


def test_too_many_ranks_are_refused_before_memory_is_taken() -> None:
    jitter = load_cluster("superpod-h100", {"faults": ["jitter normal relative=0.1"]})
    with pytest.raises(RidgelineError, match=r"each of the 8,192 ranks would .* use .* devices or"):
        rl.simulate("gpt2", jitter, rl.Plan(data=8192, global_batch=8192 * 8, micro_batch=1))


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("node: dgx-h100", "node: dgx-h10", "groups: no node is called 'dgx-h10'; did you mean"),
        ("groups:", "node: dgx-a100\ngroups:", "the groups say which nodes there are"),
        ("count: 2}\nlink", "cont: 2}\nlink", "unknown field 'cont'; did you mean 'count'"),
    ],
)
def test_mistakes_in_groups(tmp_path: Path, old: str, new: str, message: str) -> None:
    file = tmp_path / "t.yaml"
    text = FILE.read_text()
    assert old in text
    file.write_text(text.replace(old, new))
    with pytest.raises(ConfigError, match=message):
        load_cluster(str(file))


def test_a_fault_besides(tmp_path: Path) -> None:
    cluster = load_cluster(str(FILE), {"faults": ["rank 20 slow 3"]})
    plan = rl.Plan(data=32, global_batch=256)
    slow = rl.simulate("mlp", cluster, plan, software="ideal")
    plain = rl.simulate("mlp", load_cluster(str(FILE)), plan, software="ideal")
    assert slow.step_time_s > plain.step_time_s


def test_a_torus_of_unlike_nodes_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "t.yaml"
    text = FILE.read_text().replace("{kind: fat-tree, radix: 40,", "{kind: torus, shape: [2, 2],")
    file.write_text(text.replace("node: dgx-a100", "node: dgx1-v100"))
    with pytest.raises(RidgelineError, match=r"equally many NICs.* found nodes of 4, 8"):
        rl.simulate("mlp", load_cluster(str(file)), rl.Plan(data=32, global_batch=256))
