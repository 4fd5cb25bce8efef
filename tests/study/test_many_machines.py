"""The recipes for Slurm and Kubernetes, run as they stand, with local processes as machines."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from ridgeline.cli import execute
from ridgeline.study.design_study import DesignStudy

RECIPES = Path(__file__).parents[2] / "packaging/cluster"
STUDY = """kind: study
name: s
model: lenet5
cluster: own.yaml
software: ideal
plan: {}
vary: {plan.global_batch: {from: 64, to: 1024, steps: 8, scale: log}}
"""
DEVICE = Path(__file__).parents[2] / "hwconfigs/devices/v100-sxm2-16gb.yaml"
pytestmark = [pytest.mark.slow, pytest.mark.skipif(os.name != "posix", reason="shell scripts")]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a study, the device that it names, and commands of the recipes on the path."""
    pytest.importorskip("distributed", reason="needs Dask: pip install 'ridgeline[cluster]'")
    (tmp_path / "study.yaml").write_text(STUDY)
    (tmp_path / "own.yaml").write_text(DEVICE.read_text("utf-8").replace(DEVICE.stem, "own"))
    commands = tmp_path / "bin"
    commands.mkdir()
    python = shlex.quote(sys.executable)
    for name, text in {
        "dask": f'exec {python} -W ignore -m dask "$@"',
        "ridgeline": f'exec {python} -m ridgeline "$@"',
        # Of two tasks; like Slurm's, it ends them when it is ended.
        "srun": 'trap "kill 0" TERM INT; "$@" & "$@" & wait',
    }.items():
        (commands / name).write_text(f"#!/bin/sh\n{text}\n")
        (commands / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{commands}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(sys.path))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def expected(folder: Path) -> bytes:
    """Rows of the same study in this process."""
    DesignStudy("study.yaml").run(output="here.csv", progress=False)
    return (folder / "here.csv").read_bytes()


def test_the_slurm_script_sweeps_with_the_tasks_of_a_job(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    script = ["bash", str(RECIPES / "slurm.sh"), "sweep", "study.yaml", "--output", "there.csv"]
    log = folder / "log"
    with log.open("wb") as stream:
        job = subprocess.Popen(script, stdout=stream, stderr=stream, start_new_session=True)
        try:
            assert job.wait(600) == 0, log.read_text()
        finally:
            os.killpg(job.pid, 9)  # as Slurm ends what a job has left
    assert (folder / "there.csv").read_bytes() == expected(folder)
    assert not (folder / "dask-7.json").exists()


@pytest.fixture
def parts() -> dict[tuple[str, str], Any]:
    """Documents of the Kubernetes recipe by kind and name."""
    documents = YAML(typ="safe").load_all((RECIPES / "kubernetes.yaml").read_text("utf-8"))
    return {(part["kind"], part["metadata"]["name"]): part for part in documents}


@pytest.fixture
def pods() -> Iterator[list[subprocess.Popen[bytes]]]:
    running: list[subprocess.Popen[bytes]] = []
    yield running
    for process in running:
        process.kill()
        process.wait()


def container(part: Any) -> Any:
    (only,) = part["spec"]["template"]["spec"]["containers"]
    return only


def test_the_kubernetes_recipe_sweeps_with_its_pods(
    folder: Path, parts: dict[tuple[str, str], Any], pods: list[subprocess.Popen[bytes]]
) -> None:
    port = 20_000 + os.getpid() % 20_000
    places = {
        "tcp://scheduler:8786": f"tcp://127.0.0.1:{port}", "8786": str(port),
        "/study/study.yaml": str(folder / "study.yaml"),
        "/rows/rows.csv": str(folder / "there.csv"),
    }  # fmt: skip

    def start(kind: str, name: str) -> subprocess.Popen[bytes]:
        command = [places.get(word, word) for word in container(parts[kind, name])["command"]]
        pods.append(subprocess.Popen(command, stderr=subprocess.DEVNULL))
        return pods[-1]

    start("Deployment", "scheduler")
    for _ in range(2):
        start("Deployment", "workers")
    deadline = time.monotonic() + 600
    while (job := start("Job", "sweep")).wait(600) != 0:  # as long as nobody answers
        assert job.returncode == 2
        assert time.monotonic() < deadline
    assert (folder / "there.csv").read_bytes() == expected(folder)


def test_the_kubernetes_recipe_fits_together(parts: dict[tuple[str, str], Any]) -> None:
    service = parts["Service", "scheduler"]["spec"]
    for (kind, _), part in parts.items():
        if kind != "Deployment":
            continue
        labels = part["spec"]["template"]["metadata"]["labels"]
        assert part["spec"]["selector"]["matchLabels"] == labels
    scheduler = parts["Deployment", "scheduler"]["spec"]["template"]["metadata"]["labels"]
    assert service["selector"] == scheduler
    assert (
        str(service["ports"][0]["port"]) in container(parts["Deployment", "scheduler"])["command"]
    )
    for name in (("Deployment", "workers"), ("Job", "sweep")):  # files at the same path
        assert {"name": "study", "mountPath": "/study"} in container(parts[name])["volumeMounts"]


def test_a_file_of_a_scheduler_that_is_not_there_is_a_mistake(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert execute(["sweep", "study.yaml", "--cluster-address", "none.json"]) == 2
    assert "there is no file none.json" in capsys.readouterr().err
