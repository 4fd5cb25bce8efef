"""Input pipeline as processes: closed forms, an explicit recurrence, and what buffers are for."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from ridgeline.training.input_pipeline import InputSimulation, InputStages, input_waits


def drawn(draw: random.Random) -> InputStages:
    return InputStages(
        storage_s=draw.choice([0.0, 1e-3, 1e-2, 0.1]) * draw.uniform(0.5, 2.0),
        decode_s=draw.uniform(0.01, 0.5),
        workers=draw.choice([1, 2, 3, 8, 16]),
        prefetch=draw.choice([1, 2, 7, 32]),
        cache_s=draw.choice([0.0, draw.uniform(0.0, 0.1)]),
        staging_s=draw.choice([0.0, draw.uniform(0.0, 0.02)]),
        shuffle_s=draw.choice([0.0, 1.0]),
    )


def starts(stages: InputStages, steps: int, step_s: float) -> list[float]:
    """Starts of steps by an explicit recurrence over mini-batches, in seconds.

    A stage takes a mini-batch once the one before it is done there, and hands it on once the
    buffer behind has room: that of mini-batch k - capacity is taken by then.
    """
    workers, room = stages.workers, stages.prefetch
    sources = [(stages.storage_s, stages.shuffle_s), (stages.cache_s, 0.0)]
    sources = [of for of in sources if any(of)]
    put: list[list[float]] = [[] for _ in sources]  # mini-batch -> in the buffer of its source
    taken: list[float] = []  # by a worker
    decoded: list[float] = []  # in the buffer of decoded ones
    staging: list[float] = []  # taken by the stager
    staged: list[float] = []  # on the devices' side
    begun: list[float] = []  # step
    free = [0.0] * workers
    for k in range(steps):
        for number, (time_s, first_s) in enumerate(sources):
            before = put[number][-1] if k else first_s
            full = taken[k - workers] if k >= workers else 0.0
            put[number].append(max(before + time_s, full))
        worker = min(range(workers), key=lambda w: free[w])
        taken.append(max(free[worker], *(of[k] for of in put), taken[-1] if k else 0.0)
                     if put else free[worker])  # fmt: skip
        full = staging[k - room] if k >= room else 0.0
        done = max(taken[k] + stages.decode_s, full)
        decoded.append(done)
        free[worker] = done
        staging.append(max(done, staged[-1] if k else 0.0))
        full = begun[k - 1] if k else 0.0
        staged.append(max(staging[k] + stages.staging_s, full))
        begun.append(max(staged[k], begun[-1] + step_s if k else 0.0))
    return begun


def test_processes_agree_with_the_recurrence() -> None:
    draw = random.Random(5)
    for _ in range(40):
        stages, step_s = drawn(draw), draw.uniform(0.001, 0.1)
        found = InputSimulation(stages).train(120, step_s)[:-1]
        assert found == pytest.approx(starts(stages, 120, step_s), rel=1e-9)


def test_without_chance_the_slowest_stage_sets_the_pace() -> None:
    draw = random.Random(7)
    for _ in range(20):
        stages, step_s = drawn(draw), draw.uniform(0.001, 0.1)
        found = input_waits(stages, step_s, nodes=1000)
        assert found.nodes == 1
        assert found.wait_s == pytest.approx(max(0.0, stages.batch_s - step_s), abs=1e-9)
        fill_s = stages.shuffle_s + stages.decode_s + stages.staging_s
        assert found.fill_s >= fill_s * (1 - 1e-9)


def test_a_run_from_an_empty_pipeline_takes_what_its_waits_say() -> None:
    draw = random.Random(11)
    for _ in range(10):
        stages, step_s, steps = drawn(draw), draw.uniform(0.001, 0.1), 1000
        of = input_waits(stages, step_s)
        expected = of.fill_s + steps * (step_s + of.wait_s) - min(of.begun_s, steps * of.wait_s)
        whole = float(InputSimulation(stages).train(steps, step_s)[-1])
        assert whole == pytest.approx(expected, abs=2 * (stages.batch_s + step_s))


def test_a_stop_spares_as_much_waiting_as_buffers_hold() -> None:
    stages = InputStages(storage_s=0.1, decode_s=0.2, workers=4, prefetch=5)
    of = input_waits(stages, 0.05)
    # A mini-batch on the devices' side and one with the stager, five that are ready, four with
    # workers, four read, one with the reader; but two are under way without a stop, too.
    assert of.banked_s == pytest.approx((1 + 1 + 5 + 4 + 4 + 1 - 2) * 0.1)
    assert input_waits(replace(stages, prefetch=15), 0.05).banked_s == pytest.approx(
        of.banked_s + 1.0
    )


def test_buffers_even_out_chance() -> None:
    """Input that is faster than the steps in the mean and varies: the more is ready, the better."""
    stages = InputStages(storage_s=0.005, decode_s=0.08, workers=8, prefetch=1, spread=1.0)
    waits = [
        input_waits(replace(stages, prefetch=depth), 0.0105, 4, seed=1).wait_s
        for depth in (1, 4, 64)
    ]
    assert waits[0] > 1.5 * waits[1] > 0.0
    assert waits[2] < 0.3 * waits[0]


def test_a_step_waits_for_the_slowest_of_its_nodes() -> None:
    stages = InputStages(storage_s=0.005, decode_s=0.08, workers=8, prefetch=1, spread=0.5)
    few, many = (input_waits(stages, 0.0105, nodes, seed=2).wait_s for nodes in (2, 16))
    assert many > few > 0.0


def test_the_mean_of_what_varies_sets_the_pace_behind_deep_buffers() -> None:
    stages = InputStages(storage_s=0.02, decode_s=0.001, workers=1, prefetch=64, spread=0.5)
    found = input_waits(stages, 0.001, seed=3)
    assert found.wait_s + 0.001 == pytest.approx(0.02, rel=0.08)


def test_the_same_seed_gives_the_same_waits() -> None:
    stages = InputStages(storage_s=0.005, decode_s=0.08, workers=8, prefetch=2, spread=1.0)
    one, same, other = (input_waits(stages, 0.0105, 4, seed=s) for s in (1, 1, 2))
    assert one == same
    assert one != other
