"""Files that points are made of: an edited one is another point, and a worker needs the same."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ridgeline import catalog, plugins
from ridgeline.bounded_files import recording
from ridgeline.errors import RidgelineError
from ridgeline.hardware import load_device
from ridgeline.study.parallel_run import _called_remotely, _run_chunk
from ridgeline.study.point_files import PointFiles, check_same_files
from ridgeline.study.sweep import Sweep, prepare
from ridgeline.version import __version__

HF = {
    "model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 64,
    "intermediate_size": 128, "num_hidden_layers": 1, "num_attention_heads": 2,
    "num_key_value_heads": 2, "vocab_size": 100, "max_position_embeddings": 16,
    "rms_norm_eps": 1e-5,
}  # fmt: skip


@pytest.fixture
def study(tmp_path: Path) -> Path:
    (tmp_path / "net.json").write_text(json.dumps(HF))
    device = (catalog.root() / "hwconfigs/devices/v100-sxm2-16gb.yaml").read_text()
    (tmp_path / "own.yaml").write_text(device.replace("name: v100-sxm2-16gb", "name: own"))
    path = tmp_path / "study.yaml"
    path.write_text(
        f"kind: study\nname: s\nmodel: {tmp_path / 'net.json'}\ncluster: {tmp_path / 'own.yaml'}\n"
        "plan: {}\nvary: {plan.global_batch: [1, 2]}\n"
    )
    return path


def keys_of(sweep: Sweep) -> list[str]:
    return [key for key, _, _ in sweep.keyed()]


@pytest.mark.parametrize("name", ["net.json", "own.yaml"])
def test_a_point_with_an_edited_file_is_another_point(study: Path, name: str) -> None:
    before, file = keys_of(prepare(study)), study.with_name(name)
    assert keys_of(prepare(study)) == before
    file.write_text(file.read_text() + "\n")
    assert not set(keys_of(prepare(study))) & set(before)


def test_a_point_with_another_plugin_is_another_point(
    study: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = keys_of(prepare(study))
    monkeypatch.setitem(plugins._digests, "/somewhere/mine.py", "0" * 64)
    assert not set(keys_of(prepare(study))) & set(before)


def test_a_worker_with_the_same_files_works(study: Path) -> None:
    sweep = prepare(study)
    files = [name for name, _ in sweep.files.contents]
    assert {str(study.with_name(name)) for name in ("net.json", "own.yaml")} < set(files)
    assert any(name.startswith("catalogue:hwconfigs/energy/") for name in files)
    jobs = [(key, point) for key, _, point in sweep.keyed()]
    rows = _called_remotely(_run_chunk, jobs, __version__, sweep.files)
    assert [row["error"] for _, row in rows] == ["", ""]


def test_a_worker_with_another_file_or_none_refuses(study: Path) -> None:
    sweep, own = prepare(study), study.with_name("own.yaml")
    jobs = [(key, point) for key, _, point in sweep.keyed()]
    own.write_text(own.read_text() + "\n")
    with pytest.raises(RidgelineError, match=rf"the worker on .* has another {own} than this"):
        _called_remotely(_run_chunk, jobs, __version__, sweep.files)
    own.unlink()
    with pytest.raises(RidgelineError, match=f"has no file {own}"):
        check_same_files(PointFiles(((str(own), "0" * 64),)))


def test_a_worker_without_the_plugin_refuses() -> None:
    with pytest.raises(RidgelineError, match=r"has no plug-in mine\.py: set RIDGELINE_PLUGINS"):
        check_same_files(PointFiles((), (("mine.py", "0" * 64),)))


def test_files_of_the_catalogue_are_named_without_where_they_lie() -> None:
    with recording() as files:
        load_device("v100-sxm2-16gb")
    found = PointFiles.of(files)
    assert "catalogue:hwconfigs/devices/v100-sxm2-16gb.yaml" in dict(found.contents)
    check_same_files(found)
    assert found.digest() == PointFiles.of(dict(reversed(files.items()))).digest()
