"""The functions behind the verbs: the same answers and mistakes as on the command line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import ridgeline as rl
from ridgeline.cli import execute
from ridgeline.workload.graph import Conv


def _printed(capsys: pytest.CaptureFixture[str], command: str) -> Any:
    assert execute([*command.split(), "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def _plain(value: Any) -> Any:
    return json.loads(json.dumps(value))


def test_roofline_and_topology_are_those_of_the_command_line(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    made = rl.roofline("H100", gemm="4096x4096x4096", format="bf16")
    command = "roofline h100-sxm5-80gb --gemm 4096x4096x4096 --format bf16 --out roofline.svg"
    assert _printed(capsys, command) == _plain(made.to_dict())
    assert made.plot().has_data()
    network = rl.topology("Ring(4, 50 GB/s, 1 us)", load="all-reduce 1MB")
    assert (
        execute(["topology", "Ring(4, 50 GB/s, 1 us)", "--load", "all-reduce 1MB", "--json"]) == 0
    )
    assert json.loads(capsys.readouterr().out) == _plain(network.to_dict())
    assert network.measures.n_devices == 4
    network.write(tmp_path / "ring.yaml")
    assert rl.topology(str(tmp_path / "ring.yaml")).measures.n_links == network.measures.n_links


def test_plan_and_scaling_are_those_of_the_command_line(capsys: pytest.CaptureFixture[str]) -> None:
    found = rl.plan("lenet5", "dgx1-v100", devices=2, batch=32, fix={"data": 2})
    said = _printed(capsys, "plan lenet5 dgx1-v100 --devices 2 --batch 32 --fix data=2")
    assert said["best"]["step_time_s"] == found.best.step_time_s
    assert found.best.plan.data == 2
    study = rl.scaling("lenet5", "dgx1-v100", [1, 2], strategies=["data"], batch=32)
    command = "scaling lenet5 dgx1-v100 --devices 1,2 --strategies data --batch 32"
    assert _printed(capsys, command) == _plain(study.to_dict())


def test_a_step_of_a_file_is_scaled_as_the_step_itself(tmp_path: Path) -> None:
    result = rl.simulate("lenet5", "v100-sxm2-16gb", rl.Plan(global_batch=64))
    file = tmp_path / "result.json"
    result.to_json(file)
    direct, saved = (rl.whatif(step, "hbm.bandwidth=2x") for step in (result, file))
    assert direct.after_s == saved.after_s < direct.before_s
    for scale, said in (("hbm=0x", "factor above 0"), ("nothing 2x", "nothing")):
        with pytest.raises(rl.ConfigError, match=said):
            rl.whatif(result, scale)
    with pytest.raises(rl.RidgelineError, match="needs a result"):
        rl.whatif("result.txt", "hbm=2x")


def test_suites_and_reproductions_are_called_by_name() -> None:
    with pytest.raises(rl.RidgelineError, match="did you mean 'gemm'"):
        rl.validate("gem")
    assert rl.reproduce("das").rows
    with pytest.raises(rl.RidgelineError, match="no reproduction 'dass'"):
        rl.reproduce("dass")


def test_calibration_says_what_it_cannot() -> None:
    with pytest.raises(rl.RidgelineError, match="seconds must be more than 0"):
        rl.calibrate(seconds=0)
    with pytest.raises(rl.RidgelineError, match="threads must be 1 to"):
        rl.calibrate(threads=10**6)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((3, "dgx1-v100", rl.Plan(global_batch=8)), r"^model: expected a network .*found int 3"),
        (("lenet5", 3, rl.Plan(global_batch=8)), r"^cluster: expected a cluster .*found int 3"),
        (("lenet5", "dgx1-v100", "data=8"), r"^plan: expected a Plan, .*found str 'data=8'"),
        (("lenet5", rl.devices.h100, rl.Plan(global_batch=8)), r"^cluster: .*found Device"),
    ],
)
def test_what_is_of_another_type_is_named(arguments: Any, said: str) -> None:
    with pytest.raises(rl.ConfigError, match=said):
        rl.simulate(*arguments)


@pytest.mark.parametrize("load", [rl.load_cluster, rl.load_device, rl.load_node, rl.load_model])
def test_loaders_take_names_and_paths_alone(load: Any) -> None:
    with pytest.raises(rl.ConfigError, match="expected a name or a path, found 3"):
        load(3)


def test_the_mistyped_field_of_a_plan_is_told_before_the_missing_one() -> None:
    with pytest.raises(rl.ConfigError, match=r"plan.dat: unknown field; did you mean 'data'"):
        rl.Plan(dat=8)


def test_a_convolution_takes_the_numbers_of_the_command_line(
    capsys: pytest.CaptureFixture[str],
) -> None:
    made = rl.conv(2, 8, 14, 12, 16, (3, 5), "a40", stride=(2, 1), padding=1, groups=2)
    command = "conv 2 8 14 12 16 3x5 --device a40 --stride 2x1 --padding 1 --groups 2"
    assert _printed(capsys, command) == _plain(made.to_dict())
    loops = Conv(2, 8, 14, 12, 16, 3, 5, (2, 1), (1, 1), (1, 1), 2)
    assert rl.conv(loops, "a40") == made == rl.conv(loops, device="a40")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((2, "a40"), "expected batch, c_in, height"),
        ((2, 8, 14, 12, 16, (3, 3, 3), "a40"), "filter is a whole number, or two"),
        ((2, 8, 14, 12, 16, "3", "a40"), "filter is a whole number, or two"),
        ((2, 8, 14, 12, 16, 3), "expected batch, c_in, height"),
        ((2, 8, 14, 12, 0, 3, "a40"), "c_out"),
        ((2, 8, 14, 12, 16, 30, "a40"), "larger than the padded image"),
    ],
)
def test_a_mistaken_convolution_is_told(arguments: Any, said: str) -> None:
    with pytest.raises(rl.RidgelineError, match=said):
        rl.conv(*arguments)
