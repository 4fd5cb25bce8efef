"""The command line as a user meets it: answers, keys, and one clear message for every mistake."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from pathlib import Path

import pytest

from machines import DEVICE, write_machine
from ridgeline.cli import execute
from ridgeline.cli.app import VERBS, app

KEYS = {
    "step_time_s", "samples_per_s", "tokens_per_s", "flops_per_step", "mfu", "hfu", "time_s",
    "energy_j", "memory_bytes", "traffic_bytes", "bound", "fits", "uncertainty", "manifest",
}  # fmt: skip
TIME = {"compute", "memory_stall", "exposed_communication", "bubble", "input", "optimizer", "total"}
ENERGY = {"compute", "registers", "sram", "dram", "network", "static", "total"}
MEMORY = {"weights", "gradients", "optimizer", "activations", "workspace", "total", "capacity"}


def call(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    status = execute(arguments)
    captured = capsys.readouterr()
    return status, captured.out, captured.err


def test_the_keys_and_sums_of_a_result(capsys: pytest.CaptureFixture[str]) -> None:
    status, out, err = call(
        capsys, "run", "resnet50", "dgx1-v100", "--plan", "data=8", "--batch", "2048", "--json"
    )
    result = json.loads(out)
    assert (status, err) == (0, "")
    assert result.keys() >= KEYS
    assert result["time_s"].keys() == TIME
    assert result["energy_j"].keys() == ENERGY
    assert result["memory_bytes"].keys() == MEMORY
    for name in ("time_s", "energy_j", "memory_bytes"):
        parts = [v for k, v in result[name].items() if k not in {"total", "capacity"}]
        assert math.fsum(parts) == pytest.approx(result[name]["total"], rel=1e-9)
    assert result["time_s"]["total"] == result["step_time_s"]
    assert result["samples_per_s"] == 2048 / result["step_time_s"]


def test_the_same_command_gives_the_same_bytes() -> None:
    command = [sys.executable, "-m", "ridgeline", "run", "alexnet", "dgx1-v100"]
    command += ["--plan", "data=4", "--batch", "64", "--json"]
    outputs = {subprocess.run(command, capture_output=True, check=True).stdout for _ in range(2)}
    assert len(outputs) == 1


def test_a_run_on_a_machine_of_the_users_own(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    node = write_machine(tmp_path)
    status, out, _ = call(capsys, "run", "mlp", str(node), "--plan", "data=4", "--batch", "64")
    assert status == 0
    assert "toy-node" in out
    assert "a bound and not a prediction" in " ".join(
        out.split()
    )  # the machine has no measured efficiencies


def test_out_of_memory_is_a_finding(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ("run", "vgg16", "v100-sxm2-16gb", "--batch", "512")
    status, out, err = call(capsys, *arguments)
    assert (status, err) == (0, "")
    assert "does not fit" in out
    assert "activations" in out
    assert "micro_batch=" in out
    assert call(capsys, *arguments, "--require-fit")[0] == 3
    result = json.loads(call(capsys, *arguments, "--json")[1])
    assert result["fits"] is False
    assert result["memory_bytes"]["total"] > result["memory_bytes"]["capacity"]


def test_the_suggested_micro_batch_does_fit(capsys: pytest.CaptureFixture[str]) -> None:
    _, out, _ = call(capsys, "run", "vgg16", "v100-sxm2-16gb", "--batch", "512")
    suggested = int(out.split("micro_batch=")[1].split()[0])
    plan = ("--plan", f"micro_batch={suggested}")
    arguments = ("run", "vgg16", "v100-sxm2-16gb", "--batch", "512", *plan, "--json")
    assert json.loads(call(capsys, *arguments)[1])["fits"] is True


def test_overrides_reach_every_level(capsys: pytest.CaptureFixture[str]) -> None:
    base = ("run", "resnet18", "dgx1-v100-edr", "--plan", "data=16", "--batch", "256", "--json")
    before = json.loads(call(capsys, *base)[1])
    for field, faster in [
        ("cluster.device.memory.hbm.bandwidth=1.8 TB/s", True),
        ("cluster.device.energy_table.entries.dram.hbm2.value=1 pJ/bit", False),
        ("cluster.node.link_types.nvlink2.latency=0 s", False),
        ("cluster.link_types.edr.bandwidth=400 Gb/s", True),
        ("model.classes=10", True),
    ]:
        status, out, err = call(capsys, *base, "--set", field)
        assert status == 0, err
        after = json.loads(out)
        if faster:
            assert after["step_time_s"] < before["step_time_s"], field
        assert after["manifest"]["hash"] != before["manifest"]["hash"], field


def test_the_energy_of_links_can_be_overridden(capsys: pytest.CaptureFixture[str]) -> None:
    base = ("run", "mlp", "dgx1-v100", "--plan", "data=8", "--batch", "64", "--json")
    before = json.loads(call(capsys, *base)[1])
    for level in ("cluster", "cluster.node"):
        dear = f"{level}.energy_table.entries.link.nvlink2.value=1 J/B"
        after = json.loads(call(capsys, *base, "--set", dear)[1])
        moved = before["traffic_bytes"]["nvlink2"]
        assert after["energy_j"]["network"] == pytest.approx(moved * 1.0, rel=1e-9)
        assert after["energy_j"]["dram"] == before["energy_j"]["dram"]


def test_a_changed_machine_is_named_and_not_compared(capsys: pytest.CaptureFixture[str]) -> None:
    base = ("run", "resnet50", "v100-sxm2-16gb", "--batch", "112")
    assert "predicted against published" in call(capsys, *base, "-v")[1]
    for change in ("cluster.device.memory.hbm.bandwidth=10 TB/s", "model.depths=[1, 1, 1, 1]"):
        out = call(capsys, *base, "--set", change, "-v")[1]
        assert "no measurement of this configuration is shipped" in out
        assert f"changed: {change.split('.', 1)[1]}" in " ".join(out.split())
        manifest = json.loads(call(capsys, *base, "--set", change, "--json")[1])["manifest"]
        assert change.split("=")[0].split(".", 1)[1] in {
            **manifest["model"]["overrides"],
            **manifest["cluster"]["overrides"],
        }


def test_an_assumed_efficiency_is_not_called_measured(capsys: pytest.CaptureFixture[str]) -> None:
    change = "cluster.device.achievable.0.fraction.value=1.0"
    step = ("run", "mlp", "v100-sxm2-16gb", "--batch", "64", "--software", "ideal")
    arguments = (*step, "--set", change, "--json")
    trust = json.loads(call(capsys, *arguments)[1])["manifest"]["trust"]
    assert trust["calibrated_flop_share"] == 0
    assert "achievable.0.fraction" in trust["assumed_values"]


def test_standard_output_that_is_full() -> None:
    command = [sys.executable, "-m", "ridgeline", "list"]
    with Path("/dev/full").open("w", encoding="utf-8") as full:
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert done.returncode == 2
    assert "cannot write the answer" in done.stderr
    assert "Traceback" not in done.stderr


def test_standard_output_that_is_closed() -> None:
    command = [sys.executable, "-m", "ridgeline", "list", "devices"]
    closed = ["bash", "-c", 'exec "$0" "$@" >&-', *command]
    done = subprocess.run(closed, stderr=subprocess.PIPE, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


MISTAKES = [
    (("run", "resnet5", "dgx1-v100", "--batch", "8"), "'resnet5'; did you mean 'resnet50'"),
    (("run", "resnet50", "dgx1-v10", "--batch", "8"), "'dgx1-v10'; did you mean 'dgx1-v100'"),
    (("run", "resnet50", "dgx1-v100"), "batch size is missing"),
    (("run", "resnet50", "dgx1-v100", "--batch", "x"), "expected a whole number, found 'x'"),
    (("run", "resnet50", "dgx1-v100", "--batch", "1.5"), "a whole number, found '1.5'"),
    (("gemm", "8.5", "8", "8", "--device", "p100-sxm2"), "a whole number, found '8.5'"),
    (("run", "mlp", "dgx1-v100", "--batch", "8", "--plan", "expert=2"), "must divide data=1"),
    (("run", "mlp", "dgx1-v100", "--batch", "8", "--set", "cluster.device.idle_power=1 V"),
     "override of "),
    (("run", "resnet50", "dgx1-v100", "--plan", "data=3", "--batch", "8"), "evenly by data=3"),
    (("run", "resnet50", "dgx1-v100", "--plan", "data=16", "--batch", "16"), "needs 16 devices"),
    (("run", "resnet50", "dgx1-v100", "--plan", "dta=8", "--batch", "8"), "did you mean 'data'"),
    (("run", "resnet50", "dgx1-v100", "--batch", "8", "--precision", "fp61"), "fp61"),
    (("run", "resnet50", "dgx1-v100", "--batch", "8", "--precision", "bf16-mixed"), "bf16"),
    (("run", "resnet50", "dgx1-v100", "--batch", "8", "--set", "foo=1"), "a path begins with"),
    (("run", "mlp", "dgx1-v100", "--batch", "8", "--set", "cluster.device.idle_pwr=1 W"),
     "unknown field 'idle_pwr'; did you mean 'idle_power'"),
    (("run", "resnet50", "dgx1-v100", "--bacth", "8"), "--bacth"),
    (("rnu",), "did you mean \"run\""),
    (("show", "resnet"), "did you mean 'resnet"),
    (("list", "devces"), "did you mean 'devices'"),
    (("collective", "all-reduce", "100", "dgx1-v100"), "'100' has no unit"),
    (("collective", "all-redcue", "100 MB", "dgx1-v100"), "did you mean 'all-reduce'"),
    (("collective", "all-reduce", "1 MB", "Rnig(4, 1 GB/s, 1 us)"), "Ring"),
    (("gemm", "8", "8", "8"), "give either --device NAME or --array"),
    (("gemm", "8", "8", "8", "--array", "32by3"), "expected rows x columns"),
    (("gemm", "8", "8", "8", "--array", "4x4", "--dataflow", "xs"), "did you mean 'ws'"),
    (("gemm", "8", "8", "8", "--array", "4x4", "--compat", "scalesin"), "scalesim"),
    (("gemm", "0", "1", "1", "--device", "v100-sxm2-16gb"), "m must be a whole number from 1"),
    (("gemm", str(2**40), "8", str(2**40), "--device", "v100-sxm2-16gb"), "at most 2**53"),
    (("gemm", "8", "8", "8", "--device", "v100-sxm2-16gb", "--format", "fp61"), "fp61"),
    (("gemm", "8", "8", "8", "--device", "v100"), "'v100'"),
    (("conv", "1", "3", "4", "4", "8", "7", "--device", "p100-sxm2"), "larger than the padded"),
    (("conv", "1", "3", "8", "8", "8", "3", "--device", "p100-sxm2", "--pass", "x"), "no pass 'x'"),
    (("roofline", "v101-sxm2-16gb"), "did you mean 'v100-sxm2-16gb'"),
    (("energy-table", "horowits"), "did you mean 'horowitz-45nm'"),
    (("sweep", "nowhere.yaml"), "nowhere.yaml: cannot be read: No such file"),
    (
        ("run", "mlp", "dgx1-v100", "--batch", "8", "--set", "software.memory.runtime=1e30GB"),
        "at most 1.15e+18",
    ),
    (("run", "dgx1-v100", "mlp", "--batch", "8"), "'dgx1-v100', which is a node"),
    (("run", "mlp", "resnet50", "--batch", "8"), "'resnet50', which is a model"),
    (("run", "", "dgx1-v100", "--batch", "8"), "no model is called ''"),
    (("import-rows", "docs/examples/measured.csv", "--suite", "lm"), "did you mean 'llm'"),
    (("run", "m" * 400, "dgx1-v100", "--batch", "8"), "no model is called 'mmm"),
    (("run", "mlp", "m" * 400, "--batch", "8"), "no cluster, node or device is called 'mmm"),
    (("run", "mlp", "Ring(4, 1 GB/s, 1 us)", "--batch", "8"), "has no devices"),
    (("run", "mlp", "dgx1-v100", "--batch", "8", "--set", "plan.data=1", "--set", "plan.data=2"),
     "'plan.data' is given twice"),
    (("collective", "all-reduce", "--", "-1MB", "dgx1-v100"), "at least 0 B, found -1000000"),
    (("collective", "all-reduce", "1MB", "Ring(4, 1 GBps, 1 us)"), "did you mean 'GB/s'"),
    (("formats", "--lognormal=nan,4"), "expected finite numbers"),
    (("formats", "--lognormal=1,4", "--scale", "inf"), "expected a number, found 'inf'"),
    (("calibrate", "--seconds", "nan"), "expected a number, found 'nan'"),
    (("top", "docs/examples/hbm.csv", "--by", "step_time_s", "--n", "0"), "must be >= 1"),
    (("plan", "mlp", "dgx-a100", "--devices", "2", "--batch", "8", "--limit", "0"), ">= 1"),
]  # fmt: skip


@pytest.mark.parametrize(("arguments", "message"), MISTAKES, ids=lambda v: str(v)[:60])
def test_a_mistake_is_one_message(
    capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], message: str
) -> None:
    status, out, err = call(capsys, *arguments)
    assert (status, out) == (2, "")
    assert err.lower().count("\n") == 1
    assert err.startswith("ridgeline: ")
    assert message.lower() in err.lower()


BOMB = "a0: &a0 [x, x]\n" + "".join(
    f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]\n" for i in range(1, 12)
)
FILES = {
    "misspelt": (DEVICE.replace("idle_power", "idle_pwoer"), "unknown field 'idle_pwoer'"),
    "wrong unit": (DEVICE.replace("10 W", "10 V"), "idle_power"),
    "wrong dimension": (
        DEVICE.replace("10 W", "10 GB"),
        "found '10 GB', a size where a power is due",
    ),
    "truncated": (DEVICE[:-40], ""),
    "bomb": (BOMB, "more than"),
    "not yaml": ("kind: device\n  name: x: y\n", "not YAML"),
    "duplicate key": (DEVICE + "year: 2021\n", "stands twice"),
    "tag": ("kind: !!python/object:os.system x\n", "tag"),
    "empty": ("", "empty"),
    "a list": ("- 1\n- 2\n", "mapping"),
    "binary": ("\x00\x01\x02", ""),
    "two": (f"{DEVICE}---\n{DEVICE}", "but found another document"),
    "octal": (DEVICE.replace("2020", "02020"), "cannot read '02020' as a whole number"),
    "no name": (DEVICE.replace("name: ", "name: '' # "), "name: "),
    "no kind": (DEVICE.replace("kind: device\n", ""), "the field 'kind' is missing"),
    "near": (DEVICE.replace("kind: vector", "kind: vektor"), "did you mean 'vector'"),
    "too large": (DEVICE.replace("16 GiB", "16e9 GiB"), "must be at most"),
    "unpriced": (DEVICE.replace("energy: dram", "energy: drum"), "did you mean 'dram'"),
}


@pytest.mark.parametrize("case", FILES)
def test_a_broken_file_is_one_message_with_its_place(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, case: str
) -> None:
    write_machine(tmp_path)
    text, message = FILES[case]
    path = tmp_path / "device.yaml"
    path.write_text(text)
    out_folder = tmp_path / "out"
    status, out, err = call(
        capsys, "run", "mlp", str(path), "--batch", "8", "--out", str(out_folder)
    )
    assert (status, out) == (2, "")
    assert err.startswith(f"ridgeline: {path}:")
    assert message in err
    assert err.count("\n") == 1
    assert not out_folder.exists()


def test_a_directory_is_not_a_file(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    status, _, err = call(capsys, "run", "mlp", str(tmp_path), "--batch", "8")
    assert status == 2
    assert "directory" in err


def test_an_output_that_cannot_be_written(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    blocker = tmp_path / "file"
    blocker.write_text("")
    status, out, err = call(
        capsys, "run", "mlp", "v100-sxm2-16gb", "--batch", "8", "--out", str(blocker / "out")
    )
    assert (status, out) == (2, "")
    assert "cannot be created" in err


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_has_help_with_an_example(capsys: pytest.CaptureFixture[str], verb: str) -> None:
    status, out, _ = call(capsys, verb, "--help")
    assert status == 0
    assert "Example: ridgeline" in " ".join(out.split())
    assert "--json" in out


ROOT = Path(__file__).parents[2]


def test_help_imports_nothing_heavy() -> None:
    code = (
        "import sys; from ridgeline.cli import execute; execute(['--help']);"
        "heavy = {'numba', 'numpy', 'matplotlib', 'simpy', 'pydantic', 'ruamel.yaml'};"
        "print(sorted(heavy & set(sys.modules)))"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip().endswith("[]")


def test_a_machine_that_only_multiplies_integers_says_so(
    capsys: pytest.CaptureFixture[str],
) -> None:
    for device, precision in (("eyeriss", "fp32"), ("tpu-v1", "int8-mixed")):
        status, _, err = call(
            capsys, "run", "mlp", device, "--batch", "4", "--precision", precision
        )
        says = (
            f"{device} has no engine for matrix work in" in err
            and "it does matrix work in: " in err
        )
        assert (status, err.count("\n"), says) == (2, 1, True)


def test_a_sample_has_its_article(capsys: pytest.CaptureFixture[str]) -> None:
    out = call(capsys, "run", "lenet5", "v100-sxm2-16gb", "--batch", "4", "-v")[1]
    assert "energy an image" in out


@pytest.mark.parametrize("verb", VERBS)
def test_every_argument_of_a_verb_is_explained_in_its_help(verb: str) -> None:
    arguments = app[verb].assemble_argument_collection(parse_docstring=True)
    assert not [argument.name for argument in arguments if not argument.parameter.help]
