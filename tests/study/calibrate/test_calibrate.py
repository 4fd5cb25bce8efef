"""From measurements to a device file that the rest of ridgeline takes."""

from __future__ import annotations

from pathlib import Path

import pytest
from law import (
    A_S,
    B_S,
    BACK_S,
    C_S,
    CONV_BYTE_S,
    CONV_LAUNCH_S,
    CONV_RATE,
    EACH_S,
    FAR_BYTE_S,
    LAUNCH_S,
    NEAR_BYTE_S,
    RATE,
    STEP_S,
    STREAM_BYTE_S,
    TENSOR_S,
    Law,
)

import ridgeline as rl
from ridgeline.cli import execute
from ridgeline.errors import ConfigError, RidgelineError
from ridgeline.hardware import Device, load_device
from ridgeline.hardware.sourced import sourced_values
from ridgeline.kernels import price
from ridgeline.study.calibrate import Options, calibrate, document, machine, probes, shapes
from ridgeline.study.calibrate.backend import open_backend
from ridgeline.workload.graph import Gemm

OPTIONS = Options(seconds=1.0, threads=1, name="law")


@pytest.fixture(scope="module")
def law(tmp_path_factory: pytest.TempPathFactory) -> Device:
    path = tmp_path_factory.mktemp("law") / "law.yaml"
    calibrate(OPTIONS, backend=Law()).write(path)
    return load_device(str(path))


def test_a_law_without_noise_is_found(law: Device) -> None:
    """Values are written with four digits, so to 1e-3."""
    close = pytest.approx
    peak = law.engines["cores"].rates["fp32"].value
    assert 0.7 * RATE < peak <= RATE
    for row in law.achievable:
        if row.op == "gemm" and row.format == "fp32":
            assert row.fraction.value * peak == close(RATE, rel=2e-3)
            assert row.latency.value == close(LAUNCH_S, rel=2e-2)
            assert row.repack.a.value == close(1 / A_S, rel=2e-2)
            assert row.repack.b.value == close(1 / B_S, rel=2e-2)
            assert row.repack.c.value == close(1 / C_S, rel=2e-2)
            if row.pass_ != "weight-gradient":
                assert row.each.value == close(EACH_S, rel=2e-2)
        if row.op == "conv2d":
            assert row.fraction.value * peak == close(CONV_RATE, rel=2e-2)
            assert row.latency.value == close(CONV_LAUNCH_S, rel=2e-2)
            assert row.repack.a.value == close(1 / CONV_BYTE_S, rel=2e-2)
    assert {(r.pass_, r.filter) for r in law.achievable if r.op == "conv2d"} == {
        (p, f)
        for p in ("forward", "input-gradient", "weight-gradient")
        for f in ("1x1", "3x3", "larger")
    }
    kernels = {(row.op, row.pass_, row.rule): row for row in law.kernels}
    for kind in ("relu", "softmax"):
        for pass_ in ("forward", "input-gradient"):
            row = kernels[kind, pass_, None]
            assert row.latency.value == close(LAUNCH_S, rel=2e-2)
            assert row.throughput.value == close(1 / STREAM_BYTE_S, rel=2e-3)
    assert kernels["optimizer", "update", "sgd"].latency.value == close(TENSOR_S, rel=2e-2)
    assert kernels["fill", None, None].latency.value == close(BACK_S + STEP_S, rel=2e-2)
    for name, level in law.memory.items():
        if level.bandwidth is not None and name != law.far_memory:
            assert level.bandwidth.value == close(1 / NEAR_BYTE_S, rel=0.05)


def test_shapes_that_were_not_measured_are_predicted(law: Device) -> None:
    machine_ = Law()
    for gemm in [*shapes.products(25, seed=99), *shapes.batches(10, seed=99)]:
        work = probes.product_work(gemm, "forward", "fp32")
        before = machine_.time_s
        machine_.product(gemm, "forward", "fp32")()
        predicted = price(work.op, work.graph, law, found=(0, 0, 0)).time_s(law)
        assert predicted == pytest.approx(machine_.time_s - before, rel=0.01)


def test_noise_is_said(tmp_path: Path) -> None:
    made = calibrate(OPTIONS, backend=Law(noise=0.08))
    for name, group in made.found.groups.items():
        if name.startswith("gemm fp32"):
            found, truth = group.fit(), 1 / RATE
            wide = found.factor[0] ** 2  # 90 % ranges of three classes: twice as wide holds all
            assert truth / wide <= found.seconds[0] <= truth * wide
            low, middle, high = found.spread
            assert -0.3 < low < middle < high < 0.3
            assert high - low > 0.08
    path = tmp_path / "noisy.yaml"
    made.write(path)
    row = load_device(str(path)).achievable[0]
    assert row.fraction.basis == "measured"
    assert "80 measured" in row.fraction.note
    assert "90 % range: a factor of 1.0" in row.fraction.note


def test_an_accelerator_is_described_as_its_driver_does(tmp_path: Path) -> None:
    path = tmp_path / "accelerator.yaml"
    calibrate(OPTIONS, backend=Law(device="cuda", formats=("fp32",))).write(path)
    device = load_device(str(path))
    assert list(device.memory) == ["registers", "l2", "memory"]
    assert device.memory["registers"].instances.value == 100
    assert device.memory["l2"].capacity.value == 0.625 * 2**25  # the last share that is held
    assert device.memory["l2"].bandwidth.value == pytest.approx(1 / NEAR_BYTE_S, rel=0.05)
    assert device.memory["memory"].bandwidth.value == pytest.approx(1 / FAR_BYTE_S, rel=0.05)
    assert device.capacity_bytes == 2**34
    assert "An accelerator" in device.description
    plan = rl.Plan(global_batch=64, precision="fp32")
    assert rl.simulate(rl.load_model("mlp"), str(path), plan).fits


def test_every_value_has_a_source(law: Device) -> None:
    for path, value in sourced_values(law):
        assert value.source != "not stated", path
    assert "measured by ridgeline calibrate on" in law.sources["calibration"]
    assert "a law" in law.sources["calibration"]


def test_shapes_depend_on_the_seed_alone() -> None:
    assert shapes.products(30, 5) == shapes.products(30, 5)
    assert shapes.products(30, 5)[:10] == shapes.products(10, 5)
    assert shapes.products(30, 5) != shapes.products(30, 6)
    first, second = Law(), Law()
    for backend in (first, second):
        calibrate(OPTIONS, backend=backend)
    assert first.asked == second.asked
    sides = [(g.m, g.n, g.k) for g in shapes.products(64, 0)]
    for side in range(3):  # skinny ones and large ones, along every side
        assert min(s[side] for s in sides) < 8
        assert max(s[side] for s in sides) > 1024


def test_a_quick_calibration_with_numpy_can_be_used(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "here.yaml"
    arguments = ["calibrate", "--quick", "--seconds", "0.5", "--threads", "1", "--out", str(path)]
    assert execute(arguments) == 0
    said = capsys.readouterr()
    assert "wrote" in said.out
    assert "products" in said.err
    assert execute(["show", str(path)]) == 0
    device = load_device(str(path))
    assert device.name == "here"
    assert "quick: few shapes" in said.out
    run = rl.simulate(rl.load_model("mlp"), str(path), rl.Plan(global_batch=64, precision="fp32"))
    work = probes.product_work(Gemm(256, 256, 256), "forward", "fp32")
    product = price(work.op, work.graph, device, found=(0, 0, 0))
    assert 1e8 < 2 * 256**3 / product.time_s(device) < 1e13
    assert product.calibrated
    assert run.step_time_s > 0
    assert sorted(p.name for p in tmp_path.iterdir()) == ["here.yaml"]


def test_a_machine_that_others_use_is_told_before_anything_is_measured(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(machine, "usable_cores", lambda: 4)
    for load, words in ((None, None), (0.4, None), (2.25, "load average 2.2, 4 processor")):
        monkeypatch.setattr(machine, "load_average", lambda load=load: load)
        said = machine.disturbance()
        assert said is None if words is None else words in str(said)


def test_mistakes_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(match: str, **options: object) -> None:
        with pytest.raises(RidgelineError, match=match):
            calibrate(Options(**options))

    refused("no backend 'nunpy'; did you mean 'numpy'", backend="nunpy", threads=1)
    refused("no device 'gpu'", device="gpu", threads=1)
    refused("NumPy computes on the cpu", device="cuda", threads=1)
    refused("seconds must be more than 0", seconds=0.0)
    refused("threads must be 1 to", threads=machine.usable_cores() + 1)
    refused("threads must be 1 to", threads=0)
    monkeypatch.setitem(__import__("sys").modules, "torch", None)
    monkeypatch.delitem(
        __import__("sys").modules, "ridgeline.study.calibrate.torch_backend", raising=False
    )
    with pytest.raises(RidgelineError, match="needs PyTorch: pip install"):
        open_backend("torch", "cpu", 1, 0)


def test_a_file_that_cannot_be_written_is_refused_before_anything_is_measured(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for out in (tmp_path / "not" / "here.yaml", tmp_path, tmp_path / "here.csv"):
        assert execute(["calibrate", "--quick", "--out", str(out)]) == 2
        assert str(out) in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_a_write_that_fails_leaves_the_old_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "old.yaml"
    path.write_text("old")

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "replace", full)
    with pytest.raises(ConfigError, match="No space left"):
        document.write(path, {"kind": "device"}, "new")
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_rows_of_ops_that_do_not_exist_are_refused(tmp_path: Path) -> None:
    made = calibrate(OPTIONS, backend=Law())
    made.fields["kernels"][0]["op"] = "rellu"
    path = tmp_path / "typo.yaml"
    made.write(path)
    with pytest.raises(
        RidgelineError, match=r"kernels\.0\.op: there is no 'rellu'; did you mean 'relu'"
    ):
        rl.simulate(rl.load_model("mlp"), str(path), rl.Plan(global_batch=8, precision="fp32"))


def test_caches_are_read_as_the_system_lists_them(tmp_path: Path) -> None:
    for index, (level, kind, size, shared) in enumerate(
        [(1, "Data", "48K", "0"), (1, "Instruction", "32K", "0"), (2, "Unified", "2048K", "0-1"),
         (3, "Unified", "32M", "0-3,8-11")]
    ):  # fmt: skip
        folder = tmp_path / f"index{index}"
        folder.mkdir()
        for name, text in (("level", level), ("type", kind), ("size", size),
                           ("shared_cpu_list", shared)):  # fmt: skip
            (folder / name).write_text(f"{text}\n")
    caches = machine._caches(tmp_path)
    assert [(c.level, c.size_bytes, c.cores) for c in caches] == [
        (1, 48 * 1024, 1), (2, 2 * 2**20, 2), (3, 32 * 2**20, 8)
    ]  # fmt: skip
    assert document.levels_of(caches, 4) == [
        ("l1", 4 * 48 * 1024), ("l2", 2 * 2 * 2**20), ("l3", 32 * 2**20)
    ]  # fmt: skip
    assert machine._caches(tmp_path / "none") == ()


def test_energy_counters_are_read_and_begin_again(tmp_path: Path) -> None:
    assert machine.energy_counter(tmp_path / "none") is None
    zone, part = tmp_path / "intel-rapl:0", tmp_path / "intel-rapl:0:0"
    for folder in (zone, part):
        folder.mkdir()
        (folder / "energy_uj").write_text("900000\n")
        (folder / "max_energy_range_uj").write_text("1000000\n")
    counter = machine.energy_counter(tmp_path)
    assert counter is not None
    assert list(counter.files) == [zone / "energy_uj"]  # a part is counted with its package

    def work() -> None:  # 0.3 J, over the end of the counter
        (zone / "energy_uj").write_text("200000\n")

    watts = counter.watts_of(work, 0.2)
    assert 0.3 / 0.5 < watts <= 0.3 / 0.2
