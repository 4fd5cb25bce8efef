"""A sweep on a Dask cluster: a real scheduler and two workers, one of which is killed half-way."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from ridgeline.cli import execute
from ridgeline.errors import ConfigError, RidgelineError
from ridgeline.study.draws import Step, drawn
from ridgeline.study.jobs.job_file import JobFile
from ridgeline.study.jobs.neighbours import simulate_jobs
from ridgeline.study.parallel_run import _called_remotely, _run_chunk, run_jobs
from ridgeline.study.point import Point
from ridgeline.study.store import RowStore
from ridgeline.study.sweep import prepare

STUDY = """kind: study
name: s
model: lenet5
cluster: dgx1-v100
plan: {data: 2}
vary:
  plan.global_batch: {from: 64, to: 1024, steps: 31}
  cluster.device.memory.hbm.bandwidth: {from: 450 GB/s, to: 1800 GB/s, steps: 4, scale: log}
"""
Cluster = tuple[str, subprocess.Popen[bytes], list[subprocess.Popen[bytes]]]


@pytest.fixture
def study(tmp_path: Path) -> Path:
    path = tmp_path / "study.yaml"
    path.write_text(STUDY)
    return path


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    """A scheduler and two workers on this machine: address, scheduler, workers."""
    pytest.importorskip("distributed", reason="needs Dask: pip install 'ridgeline[cluster]'")
    contact = tmp_path / "scheduler.json"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    running: list[subprocess.Popen[bytes]] = []

    def start(role: str, *options: str) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "dask", role, *options, "--scheduler-file", str(contact)]
        running.append(
            subprocess.Popen(
                command,
                env=environment,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                cwd=tmp_path,
            )
        )
        return running[-1]

    try:
        scheduler = start("scheduler", "--host", "127.0.0.1", "--port", "0", "--no-dashboard")
        deadline = time.monotonic() + 60
        while not contact.exists() or not contact.read_text().endswith("}"):
            assert scheduler.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.05)
        # Two threads each: what is shared in a process must bear it.
        workers = [start("worker", "--no-nanny", "--nthreads", "2") for _ in range(2)]
        yield json.loads(contact.read_text())["address"], scheduler, workers
    finally:
        for process in running:
            process.kill()
            process.wait()


@pytest.mark.slow
@pytest.mark.filterwarnings("default")  # of Dask's own
def test_a_worker_that_is_killed_costs_no_row_and_repeats_none(
    cluster: Cluster, study: Path, tmp_path: Path
) -> None:
    address, _, workers = cluster
    sweep, told = prepare(study), list[int]()

    def progress(count: int) -> None:
        told.append(count)
        if sum(told) >= sweep.size // 2 and workers[0].poll() is None:
            workers[0].kill()
            workers[0].wait()

    with RowStore(tmp_path / "remote.jsonl") as store:
        sweep.run(store, cluster_address=address, progress=progress)
        remote = list(sweep.rows(store))
    assert workers[0].poll() is not None
    assert workers[1].poll() is None
    assert sum(told) == sweep.size == len(remote)
    with RowStore(tmp_path / "here.jsonl") as store:
        sweep.run(store)
        assert remote == list(sweep.rows(store))


@pytest.mark.slow
@pytest.mark.filterwarnings("default")
def test_a_scheduler_that_is_lost_is_said_and_what_is_done_is_kept(
    cluster: Cluster, study: Path, tmp_path: Path
) -> None:
    address, scheduler, _ = cluster
    sweep, told = prepare(study), list[int]()

    def progress(count: int) -> None:
        told.append(count)
        if sum(told) >= 40 and scheduler.poll() is None:
            scheduler.kill()
            scheduler.wait()

    with RowStore(tmp_path / "rows.jsonl") as store:
        with pytest.raises(RidgelineError, match="was lost; what was finished is kept"):
            sweep.run(store, cluster_address=address, progress=progress)
        kept = len(store)
        assert 40 <= kept < sweep.size
        sweep.run(store)
        assert len(store) == sweep.size


@pytest.mark.filterwarnings("default")
def test_an_address_without_a_scheduler_is_a_mistake_of_the_caller(
    study: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("distributed", reason="needs Dask: pip install 'ridgeline[cluster]'")
    assert execute(["sweep", str(study), "--cluster-address", "nonsense://x"]) == 2
    assert "--cluster-address" in capsys.readouterr().err


def test_without_dask_it_is_said_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "distributed", None)
    with pytest.raises(ConfigError, match=r"ridgeline\[cluster\]"):
        list(run_jobs([], cluster_address="tcp://127.0.0.1:1"))


def test_a_worker_of_another_version_refuses(study: Path) -> None:
    jobs = [(key, point) for key, _, point in prepare(study).keyed()][:1]
    with pytest.raises(RidgelineError, match=r"a worker has ridgeline .*; this is 0\.0"):
        _called_remotely(_run_chunk, jobs, "0.0")


@pytest.mark.slow
@pytest.mark.filterwarnings("default")
def test_jobs_and_draws_are_the_same_bytes_on_a_cluster(cluster: Cluster, tmp_path: Path) -> None:
    """Components of jobs, and draws of jitter, on two workers of two threads."""
    address = cluster[0]
    one = {"model": "mlp", "software": "ideal", "plan": {"data": 4, "batch": 256}, "steps": 2}
    places = {"a": [0, 1, 4, 5], "b": [2, 3, 6, 7], "c": [8, 9, 10, 11], "d": [12, 13, 14, 15]}
    jobs = [{"name": name, "placement": place, **one} for name, place in places.items()]
    where = "Tree(16, 4, 4, 25 GB/s, 1 us) @ h100-sxm5-80gb"
    file = JobFile.model_validate({"kind": "jobs", "name": "j", "cluster": where, "jobs": jobs})
    here, there = simulate_jobs(file), simulate_jobs(file, cluster_address=address)
    assert json.dumps(here.to_dict()) == json.dumps(there.to_dict())
    faults = {"cluster.faults": ["jitter normal relative=0.1 seed=3 samples=20"]}
    point = Point("mlp", "dgx1-v100", {"data": 8, "global_batch": 256}, faults)
    step, result = Step(point, None, None), point.simulate()
    alone = drawn(step, result, 1, None)
    assert len(alone) == 20
    assert drawn(step, result, 1, address) == alone == drawn(step, result, 2, None)
