"""Input by epoch, by hand."""

from __future__ import annotations

import pytest

from ridgeline.errors import ConfigError
from ridgeline.training.input_epochs import read_by_epoch
from ridgeline.training.run_file import InputSource, read_run
from ridgeline.training.steps import StepPhase, StepTimes
from ridgeline.workload.dataset import load_dataset

IMAGES = load_dataset("imagenet")
BATCH = 1024
STEP_BYTES = BATCH * IMAGES.stored.value
EPOCH = -(-1281167 // BATCH)


def times_of(**source: str) -> StepTimes:
    steps = StepTimes((StepPhase(3 * EPOCH, 0.1),))
    return read_by_epoch(steps, InputSource.model_validate(source), IMAGES, [BATCH])


def test_fast_storage_is_never_waited_for() -> None:
    assert times_of(storage="100 GB/s").undisturbed_s == pytest.approx(3 * EPOCH * 0.1)


def test_slow_storage_sets_the_pace_of_the_first_epoch_alone_if_all_is_kept() -> None:
    found = times_of(storage="0.2 GB/s", cache="1 TB")
    read_s = STEP_BYTES / 0.2e9
    assert read_s > 0.1
    assert found.undisturbed_s == pytest.approx(EPOCH * read_s + 2 * EPOCH * 0.1)
    _, waits = found.between(0, found.count)
    assert waits.sum() == pytest.approx(EPOCH * (read_s - 0.1))


def test_nothing_kept_reads_every_epoch_and_half_kept_reads_half() -> None:
    read_s = STEP_BYTES / 0.2e9
    assert times_of(storage="0.2 GB/s").undisturbed_s == pytest.approx(3 * EPOCH * read_s)
    half = f"{0.5 * 1281167 * IMAGES.stored.value!r} B"
    found = times_of(storage="0.2 GB/s", cache=half)
    later_s = max(0.1, 0.5 * read_s)
    assert found.undisturbed_s == pytest.approx(EPOCH * read_s + 2 * EPOCH * later_s)
    slow = times_of(storage="0.2 GB/s", cache="1 TB", cached="0.3 GB/s")
    assert slow.undisturbed_s == pytest.approx(EPOCH * read_s + 2 * EPOCH * STEP_BYTES / 0.3e9)


def test_input_without_a_data_set(tmp_path) -> None:  # type: ignore[no-untyped-def]
    file = tmp_path / "run.yaml"
    file.write_text(
        "kind: run\nname: r\nmodel: resnet50\ncluster: dgx1-v100\nplan: {data: 8, batch: 256}\n"
        "target: {steps: 10}\ninput: {storage: 1 GB/s}\n"
    )
    with pytest.raises(ConfigError, match="input needs the dataset"):
        read_run(file)
