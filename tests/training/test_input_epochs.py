"""Input by epoch: stages by hand, the closed form of a pipeline without chance, caches, files."""

from __future__ import annotations

import json
import random
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from ridgeline.cli import execute
from ridgeline.errors import ConfigError
from ridgeline.report.result import Result
from ridgeline.study.point import Point
from ridgeline.training import goodput
from ridgeline.training.input_epochs import input_stages, kept_share, read_by_epoch
from ridgeline.training.run_file import InputSource, read_run
from ridgeline.training.steps import StepPhase, StepTimes
from ridgeline.training.train import train
from ridgeline.workload.dataset import load_dataset

IMAGES = load_dataset("imagenet")
COUNT = 1281167
BATCH = 1024
STEP_BYTES = BATCH * IMAGES.stored.value
EPOCH = -(-COUNT // BATCH)
CORES, CLOCK_HZ = 40, 2.7e9  # of a DGX-1
RUN = """\
kind: run
name: r
model: lenet5
cluster: dgx1-v100
plan: {data: 8, batch: 1024, precision: fp32}
step: {time: 0.1 s, source: test}
dataset: imagenet
target: {steps: 3000}
"""


@cache
def step(devices: int = 8, cluster: str = "dgx1-v100") -> Result:
    plan = {"data": devices, "global_batch": BATCH, "precision": "fp32"}
    return Point("lenet5", cluster, plan).simulate()


def source_of(**given: Any) -> InputSource:
    """A source of numbers in bytes and seconds."""
    return InputSource().model_copy(update=given)


def closed_form(
    step_s: float, source: InputSource, epochs: int, storage_s: float, cache_s: float
) -> float:
    """Time of whole epochs if the slowest of reading, decoding and training sets the pace."""
    kept = kept_share(source, COUNT * IMAGES.stored.value)
    other_s = max(step_s, _decode_s(), _staging_s())
    later_s = max(other_s, (1.0 - kept) * storage_s, kept * cache_s)
    return EPOCH * (max(other_s, storage_s) + (epochs - 1) * later_s)


def _decode_s() -> float:
    stages = input_stages(InputSource(), IMAGES, step())
    return stages.decode_s / stages.workers


def _staging_s() -> float:
    return input_stages(InputSource(), IMAGES, step()).staging_s


def times_of(step_s: float = 0.1, **source: Any) -> StepTimes:
    steps = StepTimes((StepPhase(3 * EPOCH, step_s),))
    return read_by_epoch(steps, source_of(**source), IMAGES, [step()], COUNT)[0]


def test_stages_by_hand() -> None:
    of = input_stages(source_of(storage=1e9, workers=20, shuffle=1000), IMAGES, step())
    assert of.storage_s == pytest.approx(STEP_BYTES / 1e9)
    assert of.decode_s == pytest.approx(BATCH * 6.82e6 / CLOCK_HZ)
    assert of.shuffle_s == pytest.approx(1000 * IMAGES.stored.value / 1e9)
    assert of.prefetch == 40
    assert of.limits_s["decoding"] == pytest.approx(of.decode_s / 20)
    shared = input_stages(source_of(storage=1e9, workers=80), IMAGES, step())
    assert shared.limits_s["decoding"] == pytest.approx(BATCH * 6.82e6 / CLOCK_HZ / CORES)
    disks = step().details.cluster.nodes.host.storage
    assert disks is not None
    local = input_stages(source_of(place="local"), IMAGES, step())
    assert local.storage_s == pytest.approx(STEP_BYTES / disks.value)


def test_requests_of_an_object_store_by_hand() -> None:
    store = {"place": "object-store", "storage": 1e12, "latency": 0.1, "stream": 1e8}
    files = input_stages(source_of(**store, connections=64), IMAGES, step())
    each_s = 0.1 + IMAGES.stored.value / 1e8
    assert files.storage_s == pytest.approx(BATCH * each_s / 64)
    shards = input_stages(
        source_of(**store, connections=64, request=8e6), IMAGES.kept_as("tfrecord"), step()
    )
    each_s = 0.1 * 115456 / 8e6 + 115456 / 1e8
    assert shards.storage_s == pytest.approx(BATCH * each_s / 64)
    with pytest.raises(ConfigError, match="give the bytes of one request"):
        input_stages(source_of(**store), IMAGES.kept_as("tfrecord"), step())


def test_adapters_of_a_node_limit_what_it_reads() -> None:
    of = input_stages(source_of(storage=1e15), IMAGES, step(16, "selene-a100"))
    assert of.storage_s == pytest.approx(STEP_BYTES / 2 / (8 * 25e9), rel=0.1)


def test_the_played_pipeline_is_its_closed_form_without_chance() -> None:
    draw = random.Random(3)
    for _ in range(12):
        storage, cached = draw.uniform(0.1e9, 2e9), draw.uniform(0.2e9, 5e9)
        source = {
            "storage": storage,
            "cache": draw.choice([0.0, 0.3, 0.9, 2.0]) * COUNT * IMAGES.stored.value,
            "prefetch": draw.choice([1, 4, 80]),
            "eviction": draw.choice(["pinned", "least-recently-used"]),
        }
        if source["cache"]:
            source["cached"] = cached
        step_s = draw.uniform(0.01, 0.3)
        found = times_of(step_s, **source)
        expected = closed_form(
            step_s, source_of(**source), 3, STEP_BYTES / storage, STEP_BYTES / cached
        )
        assert found.undisturbed_s == pytest.approx(expected, rel=1e-9)
        _, waits = found.between(0, found.count)
        assert waits.sum() == pytest.approx(expected - 3 * EPOCH * step_s, abs=1e-6 * expected)


def test_a_least_recently_used_cache_finds_what_its_formula_says() -> None:
    """Random orders read one after the other through a cache that drops what is oldest."""
    draw = random.Random(1)
    samples, held = 2000, 1200
    kept: dict[int, None] = {}
    hits = 0
    for epoch in range(11):
        for sample in draw.sample(range(samples), samples):
            if sample in kept:
                hits += epoch > 0
                del kept[sample]
            kept[sample] = None
            if len(kept) > held:
                del kept[next(iter(kept))]
    expected = kept_share(source_of(cache=held, eviction="least-recently-used"), samples)
    assert hits / (10 * samples) == pytest.approx(expected, abs=0.02)
    assert kept_share(source_of(cache=held), samples) == held / samples


def test_formats_cost_what_they_say() -> None:
    raw = input_stages(source_of(storage=1e9), IMAGES.kept_as("ffcv-raw-256"), step())
    jpeg = input_stages(source_of(storage=1e9), IMAGES, step())
    assert raw.decode_s < 0.01 * jpeg.decode_s
    assert raw.storage_s > jpeg.storage_s
    with pytest.raises(ConfigError, match="did you mean 'tfrecord'"):
        IMAGES.kept_as("tfrecords")


def written(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "run.yaml"
    path.write_text(RUN + text)
    return path


def test_a_run_waits_for_its_input_and_says_so(tmp_path: Path, capsys: Any) -> None:
    path = written(tmp_path, "input: {storage: 0.5 GB/s, workers: 40, prefetch: 2}\n")
    found = train(path)
    read_s = STEP_BYTES / 0.5e9
    of = found.input
    assert of is not None
    assert of.limit == "storage"
    assert of.wait_s == pytest.approx(read_s - 0.1)
    loading_s = found.time_s[goodput.DATA_LOADING]
    assert loading_s == pytest.approx(3000 * (read_s - 0.1) + of.fill_s - of.begun_s)
    assert found.time_s[goodput.PRODUCTIVE] == pytest.approx(300.0)
    assert execute(["train", str(path), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["input"]["limit"] == "storage"
    assert execute(["train", str(path)]) == 0
    assert "storage sets the pace" in capsys.readouterr().out


def test_a_stop_fills_the_buffers_and_a_restart_empties_them(tmp_path: Path) -> None:
    text = "input: {storage: 0.5 GB/s, workers: 40}\n"
    plain = train(written(tmp_path, text))
    evaluated = train(written(tmp_path, text + "evaluation: {every: 100, time: 1 min}\n"))
    assert plain.input is not None
    spared_s = plain.time_s[goodput.DATA_LOADING] - evaluated.time_s[goodput.DATA_LOADING]
    waits_s = 100 * plain.input.wait_s
    assert spared_s == pytest.approx(29 * min(plain.input.banked_s, 60.0, waits_s), rel=1e-6)
    text += "checkpoint: {every: 10, save_time: 0 s}\n"
    stopped = train(written(tmp_path, text + "maintenance: {every: 2 min, time: 1 s}\n"))
    filled_s = stopped.outcomes[0].restarts * (plain.input.fill_s - plain.input.begun_s)
    more_s = stopped.time_s[goodput.DATA_LOADING] - plain.time_s[goodput.DATA_LOADING]
    assert stopped.outcomes[0].restarts >= 3
    assert more_s == pytest.approx(filled_s, abs=3.0)


def test_a_straggler_gives_the_input_time(tmp_path: Path) -> None:
    """A step of 0.1 s and input every 0.24 s: a worker twice as slow makes no difference."""
    text = "input: {storage: 0.5 GB/s, workers: 40}\n"
    plain = train(written(tmp_path, text))
    slow = train(written(tmp_path, text + "stragglers: {slow: {count: 1, factor: 2.0}}\n"))
    assert slow.wall_s == pytest.approx(plain.wall_s, rel=1e-4)
    assert slow.time_s[goodput.STRAGGLERS] == pytest.approx(300.0)


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ("{storage: 1 GB/s, format: webdataset}", "input.format: imagenet has no format"),
        ("{place: object-store, storage: 1 GB/s}", "input.latency: an object store is read by"),
        ("{place: object-store, latency: 0.1 s}", "input.stream: an object store is read by"),
        ("{storage: 1 GB/s, cached: 1 GB/s}", "input.cached: nothing is kept"),
        ("{storage: 1 GB/s, prefetch: 0}", "input.prefetch"),
        ("{storage: 1 GB/s, workers: 0}", "input.workers"),
        ("{storage: 0 GB/s}", "input.storage"),
        ("{place: disk}", "input.place"),
        ("{place: parallel-file-system}", "input.storage: dgx1-v100 states no storage"),
        ("{storage: 1 GB/s, shuffle: 100000000}", "input: buffers of the input take"),
        ("{storage: 1 GB/s, spread: -1}", "input.spread"),
        ("{storage: 1 GB/s, eviction: random}", "input.eviction"),
        ("{storage: 1 GB/s, format: tfrecord, latency: 1 ms}", "input.request: imagenet is kept"),
    ],
)
def test_bad_input(tmp_path: Path, given: str, says: str) -> None:
    path = written(tmp_path, f"input: {given}\n")
    with pytest.raises(ConfigError) as error:
        train(path)
    assert says in str(error.value)
    assert f"{path}, line 9" in str(error.value).replace(":9", ", line 9")


def test_input_without_a_data_set(tmp_path: Path) -> None:
    path = written(tmp_path, "input: {storage: 1 GB/s}\n")
    path.write_text(path.read_text().replace("dataset: imagenet\n", ""))
    with pytest.raises(ConfigError, match="input needs the dataset"):
        read_run(path)
