"""Job configurations of torchtitan."""

from __future__ import annotations

from pathlib import Path

import pytest

from ridgeline.errors import ConfigError
from ridgeline.study.launch import LaunchJob, read_launch

FILE = Path(__file__).parents[2] / "data" / "launch" / "torchtitan.toml"
OLD = """
[job]
description = "older layout"

[model]
name = "llama3"
flavor = "70B"
norm_type = "rmsnorm"

[optimizer]
name = "AdamW"

[metrics]
log_freq = 10

[training]
batch_size = 8
seq_len = 8192
data_parallel_replicate_degree = 1
data_parallel_shard_degree = -1
tensor_parallel_degree = 8
compile = false

[experimental]
context_parallel_degree = 1
pipeline_parallel_degree = 4
pipeline_parallel_schedule = "Interleaved1F1B"

[activation_checkpoint]
mode = "full"

[float8]
enable_float8_linear = false
"""


def written(folder: Path, text: str, **set_: str) -> LaunchJob:
    path = folder / "job.toml"
    path.write_text(text, "utf-8")
    return read_launch(path, set_=set_)


def changed(folder: Path, old: str, new: str) -> LaunchJob:
    text = FILE.read_text("utf-8")
    assert old in text
    return written(folder, text.replace(old, new))


def test_a_job_becomes_model_plan_and_software() -> None:
    job = read_launch(FILE)
    assert (job.framework, job.model, job.devices) == ("torchtitan", "llama3-8b", 16)
    assert job.model_fields == {"sequence": 4096}
    expected = {
        "data": 8, "tensor": 2, "sequence": True, "zero_stage": 3, "hybrid_shard_size": 4,
        "micro_batch": 4, "global_batch": 128, "precision": "fp8-dynamic",
        "recompute": "alternate", "optimizer": "adamw",
    }  # fmt: skip
    assert expected.items() <= job.plan.items()
    assert job.software == "torchtitan-async-tp"
    assert job.software_settings == {"optimizer.impl": "foreach"}
    assert not job.unread
    assert "weights are gathered in 16 bits here, there in 8" in job.notes
    lines = {setting.name: setting.line for setting in job.settings}
    assert lines["training.local_batch_size"] == 16


def test_the_older_layout_has_other_sections(tmp_path: Path) -> None:
    job = written(tmp_path, OLD)
    assert (job.model, job.devices, job.software) == ("llama3-70b", None, "torchtitan")
    assert job.plan["schedule"] == "interleaved"
    assert job.plan["micro_batch"] == 2  # as many micro-batches as stages, unless told otherwise
    assert job.plan["zero_stage"] == 2  # weights stay gathered in a pipeline
    assert job.plan["recompute"] == "full"
    assert any("--devices N" in note for note in job.notes)
    sized = written(tmp_path, OLD, devices="64")
    assert (sized.plan["data"], sized.plan["global_batch"]) == (2, 16)


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("global_batch_size = 128", "global_batch_size = 100", "global batch 100"),
        ('flavor = "8B"', 'flavor = "8.5B"', "no description"),
        ('name = "AdamW"', 'name = "Sophia"', "sophia is not modelled"),
        ('selective_ac_option = "op"', 'selective_ac_option = "most"', "'most'"),
        ('mode = "selective"', 'mode = "memory_budget"\nmemory_budget = 2', "share from 0 to 1"),
        ("seq_len = 4096", "seq_len = 4096\nenable_cpu_offload = true", "host's memory"),
    ],
)
def test_what_cannot_be_simulated_is_refused(tmp_path: Path, old: str, new: str, says: str) -> None:
    with pytest.raises(ConfigError, match=says) as refused:
        changed(tmp_path, old, new)
    assert refused.value.line


@pytest.mark.parametrize(
    ("old", "new", "mode"),
    [
        ('mode = "selective"', 'mode = "none"', "none"),
        ('option = "op"', 'option = "1"', "full"),
        ('option = "op"', 'option = "2"', "full:2"),
        ('mode = "selective"', 'mode = "memory_budget"', "budget:0.5"),
        ('mode = "selective"', 'mode = "memory_budget"\nmemory_budget = 0.3', "budget:0.3"),
        ('mode = "selective"', 'mode = "memory_budget"\nmemory_budget = 0', "full"),
    ],
)
def test_modes_of_recomputation_are_read(tmp_path: Path, old: str, new: str, mode: str) -> None:
    assert changed(tmp_path, old, new).plan["recompute"] == mode


def test_a_compiled_loss_alone_is_no_compiled_network(tmp_path: Path) -> None:
    job = changed(tmp_path, '["model", "loss"]', '["loss"]')
    assert job.software == "torchtitan"
    assert job.software_settings["kernels.cross_entropy"] == "fused"


def test_a_setting_that_nobody_knows_is_listed(tmp_path: Path) -> None:
    job = changed(tmp_path, "seq_len = 4096", "seq_len = 4096\nnew_thing = 3")
    assert [(each.name, each.value, each.line) for each in job.unread] == [
        ("training.new_thing", "3", 19)
    ]


def test_small_networks_for_tests_have_their_widths(tmp_path: Path) -> None:
    job = changed(tmp_path, 'flavor = "8B"', 'flavor = "debugmodel"')
    assert job.model_fields["hidden"] == 256
    assert job.model_fields["layers"] == 6
