"""Reinforcement learning: recurrences, conservation, pools that add up, both arrangements."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from ridgeline.cli import execute
from ridgeline.errors import ConfigError, RidgelineError
from ridgeline.study.rl.iteration_pipeline import IterationTimes, play_iterations
from ridgeline.study.rl.rl_file import read_rl
from ridgeline.study.rl.rl_run import RlRun, run_rl, splits

EXAMPLES = Path(__file__).parents[2] / "docs" / "examples" / "rl"
FIELDS = """kind: rl-run
name: small
cluster: dgx-h100
devices: 8
actor: llama3.2-1b
prompts: 24
lengths: uniform:20:200/lognormal:60:0.9:300
iterations: 3
train: {plan: {tensor: 1}, pack: 512}
"""


def written(folder: Path, text: str = FIELDS, **fields: str) -> Path:
    path = folder / "run.yaml"
    more = "".join(f"{name}: {value}\n" for name, value in fields.items())
    path.write_text(text + more)
    return path


def played(folder: Path, text: str = FIELDS, **fields: str) -> RlRun:
    return run_rl(read_rl(written(folder, text, **fields)))


@pytest.mark.parametrize("seed", range(60))
def test_iterations_follow_a_recurrence(seed: int) -> None:
    rng = np.random.default_rng(seed)
    times = [IterationTimes(*rng.uniform(0.1, 5, 3).tolist()) for _ in range(rng.integers(1, 12))]
    stale = int(rng.integers(0, 4))
    spans = play_iterations(times, stale)
    ends, copied = [0.0], []
    trained = 0.0
    for i, (rollout, train, copy) in enumerate(times):
        start, needs = ends[-1], i - 1 - stale
        if needs >= 0:
            start = max(start, copied[needs]) + (times[needs].copy_s if stale else 0.0)
        ends.append(start + rollout)
        begun = max(ends[-1], trained)
        copied.append(begun + train + copy)
        trained = copied[-1]
        span = spans[i]
        assert span.rollout_start_s == pytest.approx(start)
        assert span.rollout_end_s == pytest.approx(ends[-1])
        assert span.train_start_s == pytest.approx(begun)
        assert span.copied_s == pytest.approx(copied[-1])


@pytest.mark.parametrize(("stale", "each"), [(0, 3 + 4 + 0.5), (1, 4 + 0.5), (3, 4 + 0.5)])
def test_equal_iterations_take_what_the_head_of_the_module_says(stale: int, each: float) -> None:
    spans = play_iterations([IterationTimes(3, 4, 0.5)] * 30, stale)
    gaps = np.diff([span.copied_s for span in spans])[10:]
    assert gaps == pytest.approx(each)
    slow = play_iterations([IterationTimes(9, 4, 0.5)] * 30, max(stale, 1))
    assert np.diff([span.copied_s for span in slow])[10:] == pytest.approx(9.5)


def test_more_staleness_never_takes_longer() -> None:
    rng = np.random.default_rng(3)
    times = [IterationTimes(*rng.uniform(0.1, 5, 2).tolist(), 0.0) for _ in range(20)]
    ends = [play_iterations(times, stale)[-1].copied_s for stale in range(5)]
    assert ends == sorted(ends, reverse=True)


@pytest.mark.parametrize("arrangement", ["colocated", "disaggregated", "asynchronous"])
def test_every_token_is_trained_on_once_and_the_time_of_pools_adds_up(
    arrangement: str, tmp_path: Path
) -> None:
    more = {} if arrangement == "colocated" else {"rollout_devices": "4"}
    run = played(tmp_path, arrangement=arrangement, **more)
    for batch, span in zip(run.batches, run.spans, strict=True):
        records = [record for one in batch.runs for record in one.records]
        assert len(records) == 24
        assert batch.generated == sum(record.request.output for record in records)
        assert batch.tokens == batch.generated + sum(r.request.prompt for r in records)
        packed = run.phases.rows(batch.tokens, run.train_devices) * 512
        assert batch.tokens <= packed < batch.tokens + 512 * (run.train_devices + 1)
        assert span.train_start_s >= span.rollout_end_s
    for pool in run.pool_s().values():
        parts = {name: value for name, value in pool.items() if name != "total"}
        assert sum(parts.values()) == pytest.approx(pool["total"], rel=1e-9)
        assert min(parts.values()) >= -1e-9 * pool["total"]
    found = run.to_dict()
    assert found["trained_tokens"] == found["generated_tokens"]
    assert set(found["scored_s"]) == {"reference", "critic"}
    assert set(found["trained_s"]) == {"actor", "critic"}


def test_grpo_has_no_critic_and_groups_of_outputs(tmp_path: Path) -> None:
    run = played(
        tmp_path,
        algorithm="grpo",
        samples="4",
        iterations="1",
        text=FIELDS.replace("iterations: 3\n", ""),
    )
    found = run.to_dict()
    assert set(found["trained_s"]) == {"actor"}
    assert set(found["scored_s"]) == {"reference"}
    assert sum(len(one.records) for one in run.batches[0].runs) == 96


def test_the_best_split_is_the_best_of_all(tmp_path: Path) -> None:
    file = read_rl(written(tmp_path, arrangement="asynchronous"))
    runs = splits(file)
    assert [run.rollout_devices for run in runs] == list(range(1, 8))
    assert run_rl(file).iteration_s == min(run.iteration_s for run in runs)


def test_ppo_on_64_devices_in_both_arrangements() -> None:
    together = run_rl(read_rl(EXAMPLES / "ppo-64-colocated.yaml"))
    shares = together.to_dict()["shares"]["all"]
    assert 0.1 < shares["longest rollout"] < 0.5  # lengths are lognormal: the tail waits
    assert shares["weights"] < 0.05
    apart = run_rl(read_rl(EXAMPLES / "ppo-64-asynchronous.yaml"), 48)
    found = apart.to_dict()
    assert found["rollout_devices"] + found["train_devices"] == 64
    assert found["shares"]["train"]["rollouts"] > 0.1
    pools = apart.pool_s()
    assert sum(pool["total"] for pool in pools.values()) == pytest.approx(64 * apart.makespan_s)


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"algorithm": "grpo", "critic": "gpt2"}, "grpo has no critic"),
        ({"rollout_devices": "4"}, "colocated phases share all devices"),
        ({"arrangement": "disaggregated", "rollout_devices": "8"}, "some must train; found 8"),
        ({"arrangement": "asynchronous", "staleness": "0"}, "0 is disaggregated"),
        ({"arangement": "colocated"}, "did you mean 'arrangement'"),
    ],
)
def test_mistakes_of_a_file_are_named(fields: dict[str, str], why: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=why) as found:
        read_rl(written(tmp_path, **fields))
    assert "run.yaml" in str(found.value)


def test_what_does_not_fit_is_refused(tmp_path: Path) -> None:
    options = "{options: {chnk: 5}}"
    with pytest.raises(ConfigError, match="there is no 'chnk'"):
        played(tmp_path, rollout=options)
    with pytest.raises(RidgelineError, match="8 devices are no whole replicas of 16"):
        played(
            tmp_path,
            rollout="{plan: {tensor: 16}}",
            text=FIELDS.replace("dgx-h100", "superpod-h100"),
        )
    path = str(written(tmp_path))
    assert execute(["rl", path, "--splits"]) == 2
