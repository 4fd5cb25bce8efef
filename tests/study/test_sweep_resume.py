"""Sweeps that are killed, continued, shared between processes; and the best of their rows."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ridgeline import load_rows
from ridgeline.cli import execute
from ridgeline.errors import ConfigError
from ridgeline.study.columns import parse_formula, resolve
from ridgeline.study.parallel_run import workers
from ridgeline.study.ranking import pareto, top
from ridgeline.study.samples import MAX_SOBOL, latin_hypercube, sobol
from ridgeline.study.store import RowStore, working_file
from ridgeline.study.study_file import ValueSpan, load_study
from ridgeline.study.sweep import prepare
from thoroughly import further

HEAD = "kind: study\nname: s\nmodel: lenet5\ncluster: dgx1-v100\n"
STUDY = (
    HEAD + "plan: {data: 2}\nvary:\n  plan.global_batch: {from: 64, to: 1024, steps: 31}\n"
    "  cluster.device.memory.hbm.bandwidth: {from: 450 GB/s, to: 1800 GB/s, steps: 3, scale: log}\n"
)
COLLECTIVES = """kind: study
name: s
cluster: Torus(8x8, 12 GB/s, 500 ns)
collective: {operation: all-reduce}
vary:
  collective.size: {from: 1 kB, to: 1 GB, steps: 31, scale: log}
  collective.ranks: [16, 32, 64]
"""


def write(folder: Path, text: str) -> Path:
    path = folder / "study.yaml"
    path.write_text(text)
    return path


def lines(path: Path) -> int:
    return path.read_bytes().count(b"\n") if path.exists() else 0


@pytest.mark.parametrize("text", [STUDY, *further(COLLECTIVES)], ids=["steps", "collectives"])
def test_a_killed_sweep_goes_on_and_loses_and_repeats_no_row(tmp_path: Path, text: str) -> None:
    study = write(tmp_path, text)
    whole, out = tmp_path / "whole.csv", tmp_path / "rows.csv"
    working = working_file(out)
    running = subprocess.Popen(
        [sys.executable, "-m", "ridgeline", "sweep", str(study), "--output", str(out),
         "--processes", "2"],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    deadline = time.monotonic() + 300
    while lines(working) < 10 and running.poll() is None and time.monotonic() < deadline:
        time.sleep(0.01)
    running.send_signal(signal.SIGKILL)
    running.wait()
    assert not out.exists()
    done = lines(working)
    assert 10 <= done < 93
    with working.open("ab") as stream:
        stream.write(b'{"key": "half a li')
    with RowStore(working) as store:
        kept = {key: store[key] for key in store._places}
    assert len(kept) == done
    told: list[int] = []
    sweep = prepare(study)
    with RowStore(working) as store:
        sweep.run(store, progress=told.append)
        assert len(store) == 93
        assert all(store[key] == row for key, row in kept.items())
    assert sum(told) == lines(working) == 93  # none is there twice
    assert execute(["sweep", str(study), "--output", str(out), "--resume"]) == 0
    assert execute(["sweep", str(study), "--output", str(whole), "--processes", "1"]) == 0
    assert out.read_bytes() == whole.read_bytes()
    assert not working.exists()


def test_one_and_two_processes_write_the_same_bytes(tmp_path: Path) -> None:
    study = write(tmp_path, STUDY.replace("steps: 31", "steps: 6"))
    for n in (1, 2):
        out = str(tmp_path / f"{n}.csv")
        assert execute(["sweep", str(study), "--output", out, "--processes", str(n)]) == 0
    assert (tmp_path / "1.csv").read_bytes() == (tmp_path / "2.csv").read_bytes()


def test_equal_points_are_simulated_once(tmp_path: Path) -> None:
    text = HEAD + "plan: {data: 2}\nvary:\n  plan.global_batch: [64, 64, 128, 64]\n"
    sweep = prepare(write(tmp_path, text))
    with RowStore(tmp_path / "work") as store:
        told: list[int] = []
        sweep.run(store, progress=told.append)
        assert sum(told) == 4
        assert len(store) == 2
        assert [row["plan.global_batch"] for row in sweep.rows(store)] == [64, 64, 128, 64]


def test_another_file_content_is_another_point(tmp_path: Path) -> None:
    own = tmp_path / "own.yaml"
    own.write_text("kind: device\nbase: v100-sxm2-16gb\nname: own\n")
    study = write(
        tmp_path,
        HEAD.replace("dgx1-v100", str(own)) + "vary: {plan.global_batch: [8]}\n",
    )
    first = [key for key, _, _ in prepare(study).keyed()]
    own.write_text(own.read_text() + "tdp: 250 W\n")
    assert [key for key, _, _ in prepare(study).keyed()] != first


def test_two_sweeps_do_not_share_a_working_file(tmp_path: Path) -> None:
    with RowStore(tmp_path / "work"), pytest.raises(ConfigError, match="another sweep"):
        RowStore(tmp_path / "work")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("  cluster.device.memory.hbm.bandwith: [1 GB/s]\n", r":6:40: .*bandwith"),
        ("  plan.global_batch: [8, many]\n", r":6:26: .*whole number"),
        ("  cluster.device.memory.hbm.bandwidth: [1 GB/s, 5 mm2]\n", r":6:49: .*an area"),
        ("  plan.global_batch: {from: 1, to: 9}\n", "steps"),
        ("  plan.global_batch: {from: 1, to: 9, steps: 1000000000}\n", "less than or equal"),
        ("  model: [lenet5, lenet9]\n", r":6:19: .*lenet9"),
        ("  plan.global_batch: [8]\nwhere: [global_batch << 3]\n", r"7:9: .*not allowed"),
        ("  plan.global_batch: [8]\nwhere: [globel_batch < 3]\n", "did you mean|no column"),
        ("  plan.global_batch: [8]\nzip: [{plan.data: [1, 2], plan.tensor: [1]}]\n", "as many"),
        ("  plan.global_batch: [8]\nzip: [{plan.global_batch: [1, 2]}]\n", "varied twice"),
    ],
)  # fmt: skip
def test_a_mistake_is_said_with_its_place_before_anything_runs(
    tmp_path: Path, text: str, message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        prepare(write(tmp_path, HEAD + "vary:\n" + text))


@pytest.mark.parametrize("method", ["sobol", "latin-hypercube"])
def test_samples_stay_in_their_box_and_follow_their_seed(tmp_path: Path, method: str) -> None:
    text = HEAD + (
        f"sample:\n  method: {method}\n  count: 21\n  seed: 4\n  over:\n"
        "    plan.global_batch: {from: 8, to: 4096, scale: log}\n    plan.data: [1, 2, 4]\n"
    )
    study = load_study(write(tmp_path, text))
    rows = list(study.combinations())
    assert len(rows) == 21
    assert rows == list(study.combinations())
    assert all(8 <= row["plan.global_batch"] <= 4096 for row in rows)
    assert {row["plan.data"] for row in rows} == {1, 2, 4}
    other = load_study(write(tmp_path, text.replace("seed: 4", "seed: 5")))
    assert rows != list(other.combinations())


@pytest.mark.parametrize("draw", [sobol, latin_hypercube])
@given(st.integers(0, 7), st.integers(1, MAX_SOBOL), st.integers(0, 99))
@settings(max_examples=40, deadline=None)
def test_samples_fill_every_slice_once(
    draw: Callable[[int, int, int], np.ndarray], k: int, dimensions: int, seed: int
) -> None:
    points = draw(2**k, dimensions, seed)
    for column in np.floor(points * 2**k).T:
        assert sorted(column.tolist()) == list(range(2**k))


def test_where_requirements_and_columns(tmp_path: Path) -> None:
    text = HEAD + (
        "plan: {precision: fp32}\nvary:\n  plan.data: [1, 2, 8]\n  plan.global_batch: [8, 64]\n"
        "where: [global_batch / data >= 8]\ncolumns: {per_sample: energy_j.total / global_batch}\n"
        "require: ['device_count > 1']\n"
    ).replace("device_count", "devices")
    out = tmp_path / "rows.csv"
    assert execute(["sweep", str(write(tmp_path, text)), "--output", str(out)]) == 0
    rows = load_rows(out).to_dicts()
    assert [(r["plan.data"], r["plan.global_batch"]) for r in rows] == [
        (1, 8), (1, 64), (2, 64), (8, 64),
    ]  # fmt: skip
    assert [row["feasible"] for row in rows] == [False, False, True, True]
    for row in rows:
        assert row["per_sample"] == row["energy_j.total"] / row["plan.global_batch"]
    assert all(row["feasible"] for row in top(rows, "step_time_s", 9))


@pytest.mark.parametrize(
    "text",
    ["__import__('os')", "().__class__", "[1 for x in y]", "a if b else c", "f'{a}'", "a[0]",
     "lambda: 1", "(a := 1)", "max(*a)", "open('x')", "9" * 600, "(" * 200, "a.b()", "1 +"],
)  # fmt: skip
def test_a_formula_is_arithmetic_only(text: str) -> None:
    with pytest.raises(ConfigError):
        parse_formula(text)


def test_formulas_know_units_and_short_names() -> None:
    row = {"cluster.hbm.bandwidth": "900 GB/s", "n": 3}
    assert parse_formula("bandwidth / 2 + n").value(row) == 4.5e11 + 3
    assert parse_formula("bandwidth >= '0.9 TB/s' and not n > 3").value(row) is True
    with pytest.raises(ConfigError, match="cannot be computed"):
        parse_formula("n / (n - 3)").value(row)
    with pytest.raises(ConfigError, match="any of"):
        resolve("x", ["a.x", "b.x"])


@given(
    st.lists(st.tuples(*[st.integers(0, 4)] * 3), min_size=1, max_size=30),
)
@settings(max_examples=100, deadline=None)
def test_the_front_is_what_nothing_beats(points: list[tuple[int, int, int]]) -> None:
    rows = [{"a": a, "b": b, "c": c, "error": ""} for a, b, c in points]

    def beats(p: tuple[int, ...], q: tuple[int, ...]) -> bool:
        p, q = (p[0], p[1], -p[2]), (q[0], q[1], -q[2])
        return p != q and all(x <= y for x, y in zip(p, q, strict=True))

    expected = sorted(p for p in points if not any(beats(q, p) for q in points))
    front = pareto(rows, ["a", "b"], ["c"])
    assert sorted((r["a"], r["b"], r["c"]) for r in front) == expected


@given(st.floats(1e-3, 1e6), st.floats(1e-3, 1e6), st.integers(1, 40), st.booleans())
def test_a_span_keeps_its_ends_and_its_order(a: float, b: float, n: int, log: bool) -> None:
    fields = {"from": a, "to": b, "steps": n, "scale": "log" if log else "linear"}
    values = ValueSpan.model_validate(fields).values()
    assert values[0] == pytest.approx(a, rel=1e-11)
    if n > 1:
        assert values[-1] == pytest.approx(b, rel=1e-11)
    assert values == sorted(values, reverse=b < a)


def test_rates_follow_an_array(tmp_path: Path) -> None:
    text = HEAD.replace("dgx1-v100", "tpu-v2") + (
        "plan: {global_batch: 64, precision: bf16-mixed}\n"
        "vary:\n  cluster.device.engines.mxu.array.rows: [64, 128, 256]\n"
    )
    out = tmp_path / "rows.csv"
    assert execute(["sweep", str(write(tmp_path, text)), "--output", str(out)]) == 0
    rows = load_rows(out).to_dicts()
    peaks = [row["flops_per_step"] / row["step_time_s"] / row["mfu"] for row in rows]
    assert peaks == pytest.approx([22.95e12, 45.9e12, 91.8e12], rel=1e-3)


def _runs(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def test_workers_end_with_what_they_work_for_though_they_are_not_finished() -> None:
    before = set(multiprocessing.active_children())

    def interrupted() -> None:
        with workers(2) as pool:
            assert pool.submit(abs, -1).result() == 1
            for _ in range(8):
                pool.submit(time.sleep, 3600)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    # A thread of the pool waits for them, too, and `is_alive` is true where that was faster.
    pids = [worker.pid for worker in set(multiprocessing.active_children()) - before if worker.pid]
    end = time.monotonic() + 60
    while any(map(_runs, pids)) and time.monotonic() < end:
        time.sleep(0.05)
    assert not any(map(_runs, pids))
