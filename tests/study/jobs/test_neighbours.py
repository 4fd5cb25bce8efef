"""Jobs on one fabric: alone as `simulate` says, apart as alone, and together by the sums."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import ridgeline as rl
from engine.programs import programs
from ridgeline.cli import execute
from ridgeline.engine.executor import run
from ridgeline.engine.merged_programs import merged, repeated
from ridgeline.engine.program import Program
from ridgeline.engine.reference import run_reference
from ridgeline.errors import ConfigError, RidgelineError
from ridgeline.network.cluster_topology import from_cluster
from ridgeline.network.placement import Free, leaves_of
from ridgeline.network.resolve import topology_of
from ridgeline.study.jobs.components import Passed
from ridgeline.study.jobs.figure import slowdowns
from ridgeline.study.jobs.job_file import JobFile, read_jobs
from ridgeline.study.jobs.neighbours import JobResult, Neighbours, parted, simulate_jobs

EXAMPLES = Path(__file__).parents[3] / "docs" / "examples" / "jobs"
TREE = "Tree(16, 4, 4, 25 GB/s, 0 s) @ h100-sxm5-80gb"  # leaves of four, with one link's worth up
MLP = {"model": "mlp", "software": "ideal", "plan": {"data": 4, "batch": 256}}
# a flow to no device, and too many messages
FAR = {"from": 0, "to": 77, "rate": "1 GB/s"}
MANY = {"pattern": "all-to-all", "rate": "1 GB/s", "message": "1 B"}
# four devices below two leaves of four: what they send each other passes the core
LEFT, RIGHT = [0, 1, 4, 5], [2, 3, 6, 7]


def file_of(*jobs: dict[str, Any], **more: Any) -> JobFile:
    given = {"kind": "jobs", "name": "test", "cluster": TREE, "devices": 16, **more}
    return JobFile.model_validate({**given, "jobs": list(jobs)})


def job(name: str, placement: Any = None, **more: Any) -> dict[str, Any]:
    return {"name": name, **MLP, "placement": placement, **more}


def sending_in_a_step_s(of: JobResult) -> float:
    """Return how long a job of three steps and equal collectives sends in a step, alone."""
    each_s = of.completion_alone.p50_s
    assert each_s is not None
    return each_s * (of.completion_alone.flows // 3)


def test_a_job_alone_takes_what_simulate_says() -> None:
    for stack, plan in (
        ("ngc-pytorch", {"data": 8, "batch": 64}),
        ("ideal", {"data": 2, "pipeline": 4, "batch": 64, "micro_batch": 8}),
    ):
        asked = {"name": "one", "model": "resnet18", "plan": plan, "software": stack}
        given = {"kind": "jobs", "name": "one", "cluster": "dgx1-v100", "jobs": [asked]}
        found = simulate_jobs(JobFile.model_validate(given))
        fields = {("global_batch" if k == "batch" else k): v for k, v in plan.items()}
        step = rl.simulate("resnet18", "dgx1-v100", rl.Plan(**fields), software=stack, fold=False)
        assert found.jobs[0].alone_s == pytest.approx(step.step_time_s, rel=1e-9)
        assert found.jobs[0].step_times_s == pytest.approx([step.step_time_s] * 3, rel=1e-9)
        assert found.fairness == 1.0


def test_a_job_on_mixed_devices_has_those_of_its_ranks(tmp_path: Path) -> None:
    """On both kinds as simulated; on the second as where that comes first."""
    text = (EXAMPLES.parent / "fabrics" / "two-generations.yaml").read_text()
    mixed, turned = tmp_path / "mixed.yaml", tmp_path / "turned.yaml"
    mixed.write_text(text.replace("count: 2", "count: 1"))
    groups = {"dgx-a100": "dgx-h100", "dgx-h100": "dgx-a100"}
    turned.write_text(re.sub("dgx-[ah]100", lambda of: groups[of[0]], mixed.read_text()))

    def alone_s(where: Path, ranks: range) -> float:
        plan = {"data": len(ranks) // 2, "pipeline": 2, "batch": 64, "precision": "fp16-mixed"}
        one = {"name": "one", "model": "resnet18", "software": "ideal", "plan": plan}
        given = {"kind": "jobs", "name": "one", "cluster": str(where), "devices": 16}
        jobs = [{**one, "placement": list(ranks)}]
        return simulate_jobs(JobFile.model_validate({**given, "jobs": jobs})).jobs[0].alone_s

    plan = rl.Plan(data=8, pipeline=2, global_batch=64, precision="fp16-mixed")
    step = rl.simulate("resnet18", str(mixed), plan, software="ideal", fold=False)
    assert alone_s(mixed, range(16)) == pytest.approx(step.step_time_s, rel=1e-9)
    second = alone_s(mixed, range(8, 16))
    assert second == pytest.approx(alone_s(turned, range(8)), rel=1e-9)
    assert second < 0.9 * alone_s(mixed, range(8))  # H100s, not A100s


def test_jobs_without_a_common_link_go_on_as_alone() -> None:
    found = simulate_jobs(file_of(job("a", [0, 1, 2, 3]), job("b", [4, 5, 6, 7])))
    for one in found.jobs:
        assert one.step_times_s == pytest.approx([one.alone_s] * 3, rel=1e-9)
        assert one.completion.p99_s == pytest.approx(one.completion_alone.p99_s, rel=1e-9)
    assert not found.links


def test_a_job_beside_an_idle_one_goes_on_as_alone() -> None:
    alone = simulate_jobs(file_of(job("a", LEFT))).jobs[0]
    silent = {**MLP, "plan": {"data": 1, "batch": 64}}
    late = job("b", RIGHT, arrival="1 s")
    for other in ({"name": "b", **silent, "placement": [2]}, late):
        beside = simulate_jobs(file_of(job("a", LEFT), other)).jobs[0]
        assert beside.step_times_s == pytest.approx(alone.step_times_s, rel=1e-9)
        assert beside.slowdown == pytest.approx(1.0, rel=1e-9)


def test_equal_jobs_that_send_at_once_take_one_plus_their_share_of_sending() -> None:
    """Row TF117 of the reference: 1 + c, where c is the share of a step in which links are busy."""
    file = file_of(job("a", LEFT), job("b", RIGHT))
    found = simulate_jobs(file)
    for one in found.jobs:
        share = sending_in_a_step_s(one) / one.alone_s
        assert 0.1 < share < 1.0  # so that the formula says something
        assert one.slowdown == pytest.approx(1.0 + share, rel=1e-9)
    assert found.fairness == pytest.approx(1.0, rel=1e-12)
    assert [link.name for link in found.links]
    assert {name for link in found.links for name in link.bytes_by_job} == {"a", "b"}
    # while both are at it, each would fill the link that holds it up alone
    assert max(link.offered for link in found.links) == pytest.approx(2.0, rel=1e-9)


def test_bytes_on_links_are_those_of_the_jobs_alone() -> None:
    found = simulate_jobs(file_of(job("a", LEFT), job("b", RIGHT, steps=2)))
    alone = [
        simulate_jobs(file_of(job("a", LEFT, steps=1))).jobs[0],
        simulate_jobs(file_of(job("b", RIGHT, steps=1))).jobs[0],
    ]
    for one, other in zip(found.jobs, alone, strict=True):
        assert one.sent_bytes == other.sent_bytes > 0
    # the four hops of a ring over two leaves pass twelve links, each with the same bytes
    for link in found.links:
        for one in found.jobs:
            expected = len(one.step_times_s) * one.sent_bytes / 12
            assert link.bytes_by_job[one.name] == pytest.approx(expected, rel=1e-9)


@settings(max_examples=8, deadline=None)
@given(st.floats(0.1, 24.0), st.floats(0.1, 24.0), st.booleans())
def test_more_background_is_never_faster(one: float, other: float, steady: bool) -> None:
    def step_s(rate: float) -> float:
        flow = {"name": "noise", "flows": [{"from": 2, "to": 6, "rate": f"{rate} GB/s"}]}
        if not steady:  # the same gaps, scaled: more messages
            flow |= {"message": "100 kB", "seed": 3}
        return simulate_jobs(file_of(job("a", LEFT), background=[flow])).jobs[0].step_time_s

    less, more = sorted((one, other))
    alone = simulate_jobs(file_of(job("a", LEFT))).jobs[0].step_time_s
    assert alone * (1 - 1e-9) <= step_s(less)
    if steady:  # messages may come in better or worse moments; streams cannot
        assert step_s(less) <= step_s(more) * (1 + 1e-9)


@pytest.mark.parametrize(("rate", "left"), [(5.0, 20.0), (10.0, 15.0), (12.5, 12.5), (20.0, 12.5)])
def test_a_steady_stream_takes_its_rate_or_half(rate: float, left: float) -> None:
    """A ring that wants all 25 GB/s up a tree, beside a stream on the same links."""
    alone = simulate_jobs(file_of(job("a", LEFT))).jobs[0]
    sending_s = sending_in_a_step_s(alone)
    flow = {"name": "noise", "flows": [{"from": 2, "to": 6, "rate": f"{rate} GB/s"}]}
    beside = simulate_jobs(file_of(job("a", LEFT), background=[flow]))
    assert "NaN" not in json.dumps(beside.to_dict())  # a stream has no completions
    found = beside.jobs[0]
    expected_s = alone.alone_s + sending_s * (25.0 / left - 1.0)
    assert found.step_time_s == pytest.approx(expected_s, rel=1e-9)


def test_results_depend_on_the_seed_and_on_nothing_else() -> None:
    def text(seed: int, placement_seed: int = 0) -> str:
        noise = {
            "name": "noise", "pattern": "random:1", "rate": "2 GB/s", "message": "200 kB",
            "seed": seed,
        }  # fmt: skip
        file = file_of(
            job("a"), job("b"), background=[noise], placement="random", seed=placement_seed,
            arrivals={"process": "poisson", "mean_gap": "100 us", "seed": seed},
        )  # fmt: skip
        return json.dumps(simulate_jobs(file).to_dict())

    assert text(1) == text(1)
    assert text(1) != text(2)
    assert text(1) != text(1, placement_seed=9)


def test_a_manifest_repeats_its_result() -> None:
    noise = {"name": "noise", "pattern": "random:1", "rate": "2 GB/s", "message": "200 kB"}
    arrivals = {"process": "poisson", "mean_gap": "100 us", "seed": 3}
    file = file_of(job("a"), job("b"), background=[noise], placement="random", arrivals=arrivals)
    found = json.loads(json.dumps(simulate_jobs(file).to_dict()))
    again = JobFile.model_validate(found["manifest"]["jobs"])
    assert json.loads(json.dumps(simulate_jobs(again).to_dict())) == found


def test_jobs_that_take_turns_on_a_link_go_on_as_alone() -> None:
    """The other half of row TF117: nothing is lost if each sends while the other computes."""
    long = {"plan": {"data": 4, "batch": 65536}}
    alone = simulate_jobs(file_of(job("a", LEFT, **long))).jobs[0]
    sending_s = sending_in_a_step_s(alone)
    assert sending_s < 0.5 * alone.alone_s
    late = f"{alone.alone_s / 2!r} s"
    found = simulate_jobs(file_of(job("a", LEFT, **long), job("b", RIGHT, arrival=late, **long)))
    assert [one.slowdown for one in found.jobs] == pytest.approx([1.0, 1.0], rel=1e-9)
    together = simulate_jobs(file_of(job("a", LEFT, **long), job("b", RIGHT, **long)))
    assert all(one.slowdown > 1.01 for one in together.jobs)


def test_the_same_arrivals_whatever_is_drawn_behind_them() -> None:
    """Background is drawn for longer where jobs turn out to take longer; its beginning stays."""
    noise = {"name": "noise", "pattern": "permutation:1", "rate": "20 GB/s", "message": "5 MB"}
    file = file_of(job("a", LEFT, steps=1), background=[noise])
    short = simulate_jobs(file)
    longer = simulate_jobs(file.model_copy(update={"jobs": [*file.jobs, late_job()]}))
    assert short.jobs[0].step_times_s == longer.jobs[0].step_times_s


def late_job() -> Any:
    """Return a job that begins long after the others have ended."""
    return file_of(job("late", [8], plan={"data": 1, "batch": 64}, arrival="20 ms")).jobs[0]


@settings(max_examples=60, deadline=None)
@given(programs(), programs())
def test_merged_programs_without_common_resources_end_as_alone(one: Program, two: Program) -> None:
    parts = [replace(p, rank_multiplicity=np.ones_like(p.rank_multiplicity)) for p in (one, two)]
    both = merged(parts, ["one", "two"], set())
    timeline = run(both.program)
    for number, part in enumerate(parts):
        alone, beside = run(part), both.part(timeline, number)
        np.testing.assert_allclose(beside.end_s, alone.end_s, rtol=1e-9)
        np.testing.assert_allclose(beside.start_s, alone.start_s, rtol=1e-9)


@settings(max_examples=60, deadline=None)
@given(programs(), programs())
def test_both_executors_play_merged_programs_alike(one: Program, two: Program) -> None:
    parts = [replace(p, rank_multiplicity=np.ones_like(p.rank_multiplicity)) for p in (one, two)]
    common = set(parts[0].resource_names) & set(parts[1].resource_names)
    parts[1] = replace(
        parts[1],
        capacity=np.array([
            dict(zip(parts[0].resource_names, parts[0].capacity, strict=True)).get(name, capacity)
            for name, capacity in zip(parts[1].resource_names, parts[1].capacity, strict=True)
        ]),
    )  # fmt: skip
    both = merged(parts, ["one", "two"], common).program
    fast, slow = run(both), run_reference(both)
    np.testing.assert_allclose(fast.end_s, slow.end_s, rtol=1e-9)


@settings(max_examples=60, deadline=None)
@given(programs(), st.integers(1, 4), st.floats(0.0, 5.0), st.floats(0.0, 5.0))
def test_repeated_steps_take_as_long_as_one(
    program: Program, steps: int, start_s: float, between_s: float
) -> None:
    many = repeated(program, steps, start_s=start_s, between_s=between_s)
    timeline = run(many.program)
    once_s = run(program).end_s.max(initial=0.0)
    np.testing.assert_allclose(many.step_times_s(timeline), once_s, rtol=1e-9, atol=1e-9)
    assert timeline.end_s.max() == pytest.approx(
        start_s + steps * once_s + (steps - 1) * between_s, rel=1e-9
    )


def test_folded_programs_and_unlike_links_are_refused() -> None:
    lowered = rl.simulate("mlp", "dgx1-v100", rl.Plan(data=8, global_batch=256)).details.lowered
    with pytest.raises(RidgelineError, match="folded"):
        merged([lowered.program], ["one"], {"a link"})
    every = rl.simulate("mlp", TREE, rl.Plan(data=4, global_batch=256), fold=False)
    program = every.details.lowered.program
    name = program.resource_names[int(program.work_resource[-1])]
    with pytest.raises(RidgelineError, match="another capacity"):
        merged([program, program.scaled({name: 2.0})], ["one", "two"], {name})


def test_placements() -> None:
    fabric = topology_of("Tree(16, 4, 4, 25 GB/s, 0 s)")
    assert leaves_of(fabric) == [i // 4 for i in range(16)]
    free = Free(fabric)
    assert free.take("packed", 3) == (0, 1, 2)
    assert free.take("striped", 5) == (3, 4, 8, 12, 5)
    assert free.take_named(["7", 6]) == (7, 6)
    with pytest.raises(ConfigError, match="given out twice"):
        free.take_named([7])
    with pytest.raises(ConfigError, match="6 of 16"):
        free.take("random", 7)
    assert sorted(free.take("random", 6, seed=3)) == [9, 10, 11, 13, 14, 15]


def test_jobs_of_whole_nodes_get_whole_nodes() -> None:
    cluster = rl.load_cluster("h100-roce-pod", {"fabric.radix": 20, "fabric.oversubscription": 4})
    fabric = from_cluster(cluster, 64)
    assert leaves_of(fabric)[::8] == [0, 0, 1, 1, 2, 2, 3, 3]
    for how in ("packed", "striped", "random"):
        ranks = np.array(Free(fabric).take(how, 32, seed=5)).reshape(4, 8)
        assert (ranks == ranks[:, :1] + np.arange(8)).all()
        assert (ranks[:, 0] % 8 == 0).all()
    assert Free(fabric).take("striped", 16) == (*range(8), *range(16, 24))
    assert Free(fabric).take_named(["node3"]) == tuple(range(24, 32))


def test_the_example_files_run_and_packing_keeps_jobs_apart(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    picture = tmp_path / "slow.png"
    file = str(EXAMPLES / "two-jobs.yaml")
    assert execute(["jobs", file, "--placement", "packed,striped", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [job["slowdown"] for job in found["packed"]["jobs"]] == pytest.approx([1.0, 1.0])
    assert all(job["slowdown"] > 1.2 for job in found["striped"]["jobs"])
    assert execute(["jobs", file, "--plot", str(picture)]) == 0
    assert "fairness (Jain) 1.0000" in capsys.readouterr().out
    assert picture.stat().st_size > 1000


def test_the_figure_draws_the_slow_downs() -> None:
    found = simulate_jobs(file_of(job("a", LEFT), job("b", RIGHT)))
    axes = slowdowns({"here": found})
    widths = [bar.get_width() for bar in axes.patches]
    assert widths == pytest.approx([one.slowdown - 1.0 for one in found.jobs])
    assert [label.get_text() for label in axes.get_yticklabels()] == ["a", "b"]


def test_fairness_is_jains() -> None:
    found = simulate_jobs(file_of(job("a", LEFT), job("b", RIGHT)))
    one = replace(found.jobs[0], step_times_s=(2 * found.jobs[0].alone_s,))
    other = replace(found.jobs[1], step_times_s=(found.jobs[1].alone_s,))
    unlike: Neighbours = replace(found, jobs=(one, other))
    assert unlike.fairness == pytest.approx((0.5 + 1.0) ** 2 / (2 * (0.25 + 1.0)))


@pytest.mark.parametrize(
    ("line", "wrong", "message"),
    [
        (4, "placement: packd", "did you mean 'packed'"),
        (4, "background: [{name: x, pattern: 'incast:0'}]", "needs a rate"),
        (4, "background: [{name: x, flows: [{from: 1, to: 1, rate: 1 GB/s}]}]", "to itself"),
        (4, "background: [{name: x}]", "either a pattern"),
        (4, "background: [{name: a, pattern: all-to-all, rate: 1 GB/s}]", "name of a job"),
        (4, "devices: 0", "greater than or equal to 1"),
        (4, "set: {plan.data: 3}", "a path begins with"),
    ],
)
def test_mistakes_in_a_file_say_where(
    line: int, wrong: str, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "jobs.yaml"
    path.write_text(
        f"kind: jobs\nname: bad\ncluster: '{TREE}'\n{wrong}\n"
        "jobs:\n  - {name: a, model: mlp, plan: {data: 4, batch: 256}}\n"
    )
    assert execute(["jobs", str(path)]) == 2
    said = capsys.readouterr().err
    assert f"jobs.yaml:{line}" in said
    assert message in said


@pytest.mark.parametrize(
    ("jobs", "more", "message"),
    [
        ([job("a", plan={"data": 8, "batch": 64})], {"devices": 4}, "need 8 devices, found 4"),
        ([job("a", [0, 1])], {}, "has 4 devices, and 2 are named"),
        ([job("a", [0, 1, 2, 99])], {}, "there is no device 99"),
        ([job("a", ["nod0"])], {}, "has no device and no node"),
        ([job("a", LEFT), job("b", LEFT)], {}, "given out twice"),
        ([job("a")], {"background": [{"name": "x", "flows": [FAR]}]}, "no device 77"),
        ([job("a", steps=10_000_000)], {}, "tasks of all steps"),
        ([job("a")], {"background": [{"name": "x", **MANY}]}, "messages"),
    ],
)  # fmt: skip
def test_jobs_that_cannot_be_are_refused(
    jobs: list[dict[str, Any]], more: dict[str, Any], message: str
) -> None:
    with pytest.raises(RidgelineError, match=message):
        simulate_jobs(file_of(*jobs, **more))


def test_placement_by_file(tmp_path: Path) -> None:
    hosts = tmp_path / "hosts.txt"
    hosts.write_text("0  # the first\n1\n4\n5\n")
    path = tmp_path / "jobs.yaml"
    path.write_text(
        f"kind: jobs\nname: one\ncluster: '{TREE}'\ndevices: 16\njobs:\n"
        f"  - {{name: a, model: mlp, plan: {{data: 4, batch: 256}}, placement: '{hosts}'}}\n"
    )
    assert simulate_jobs(read_jobs(path)).jobs[0].devices == (0, 1, 4, 5)


def apart() -> JobFile:
    """Two jobs that share links, and two that share none."""
    return file_of(
        job("a", LEFT), job("c", [8, 9, 10, 11]), job("b", RIGHT), job("d", [12, 13, 14, 15])
    )


def test_the_answer_is_the_same_in_several_processes() -> None:
    here, there = simulate_jobs(apart()), simulate_jobs(apart(), processes=2)
    assert json.dumps(here.to_dict()) == json.dumps(there.to_dict())
    assert [one.name for one in here.jobs] == ["a", "c", "b", "d"]
    assert here.jobs[1].slowdown == pytest.approx(1.0, rel=1e-12)
    assert here.jobs[0].slowdown > 1.1


@given(st.lists(st.frozensets(st.sampled_from("abcdefgh"), max_size=3), min_size=1, max_size=8))
def test_components_are_those_of_the_graph_of_common_links(links: list[frozenset[str]]) -> None:
    found = parted([Passed(own, 1) for own in links])
    assert sorted(n for part in found for n in part) == list(range(len(links)))
    reached = [{n} for n in range(len(links))]
    for _ in links:  # as often as a way can be long
        for mine in reached:
            mine |= {n for n, own in enumerate(links) if any(own & links[m] for m in mine)}
    assert {frozenset(part) for part in found} == {frozenset(mine) for mine in reached}
