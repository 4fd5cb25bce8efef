"""Calculon's three files become a model, a plan and a machine; mistakes in them have a place."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ridgeline.cli import execute
from ridgeline.errors import ConfigError
from ridgeline.hardware.load import load_cluster
from ridgeline.kernels.efficiency_table import achievable_share
from ridgeline.parallel.plan.text import make_plan
from ridgeline.study.calculon import read_calculon
from ridgeline.study.calculon.schema import CalculonExecution
from ridgeline.study.calculon.workload import plan_fields
from ridgeline.workload.files import load_model

EXAMPLES = Path(__file__).parents[2] / "docs" / "examples" / "calculon"
NAMES = ("gpt3-22b.json", "tensor-8.json", "a100.json")
Files = dict[str, dict[str, Any]]


def examples(blocks: int = 48) -> Files:
    files = {name: json.loads((EXAMPLES / name).read_text("utf-8")) for name in NAMES}
    files["gpt3-22b.json"]["num_blocks"] = blocks
    return files


def written(files: Files, folder: Path) -> list[str]:
    for name, data in files.items():
        (folder / name).write_text(json.dumps(data, indent=2), "utf-8")
    return [str(folder / name) for name in NAMES]


def replaced(data: Any, path: str, value: Any) -> None:
    *heads, last = path.split(".")
    for head in heads:
        data = data[int(head) if isinstance(data, list) else head]
    if value is None:
        del data[last]
    else:
        data[int(last) if isinstance(data, list) else last] = value


def test_every_field_arrives(tmp_path: Path) -> None:
    read = read_calculon(*written(examples(), tmp_path))
    read.write(tmp_path / "out")
    model = load_model(str(tmp_path / "out" / read.model))
    blocks = 12 * 6144**2 * 48
    assert model.training(1).parameters == pytest.approx(blocks, rel=0.02)
    cluster = load_cluster(str(tmp_path / "out" / read.machine))
    device, node = cluster.device, cluster.nodes
    assert device.engines["matrix"].rates["fp16"].value == 312e12
    assert device.engines["vector"].rates["fp16"].value == 78e12
    assert device.capacity_bytes == 80 * 2**30
    assert device.memory["mem1"].bandwidth is not None
    assert device.memory["mem1"].bandwidth.value * device.memory["mem1"].achievable.value == (
        pytest.approx(0.9 * 2039e9)
    )
    assert (node.count, cluster.max_devices) == (8, 4480)
    assert node.link_types["tier0"].bandwidth.value == 300e9
    assert node.link_types["tier0"].achievable.value == 0.8
    assert 2 * node.link_types["tier0"].latency.value == 1e-5
    assert cluster.link_types["tier1"].bandwidth.value == 25e9
    plan = make_plan(read.plan)
    assert (plan.data, plan.tensor, plan.pipeline, plan.sequence) == (2, 8, 1, 8)
    assert (plan.global_batch, plan.micro_batch, plan.zero_stage) == (16, 4, 1)
    assert (plan.recompute, plan.precision) == ("selective", "fp16-mixed")
    assert read.settings == {"overlap.gradients": False, "overlap.tensor": False}


def test_an_op_reaches_the_share_of_its_size(tmp_path: Path) -> None:
    read = read_calculon(*written(examples(), tmp_path))
    read.write(tmp_path)
    device = load_cluster(str(tmp_path / read.machine)).device
    graph = load_model(str(tmp_path / read.model)).training(1, "fp16-mixed")
    found = {}
    for op in graph.ops:
        if op.loops is not None:
            row = achievable_share(op, device, "matrix", "fp16")
            assert row is not None
            found[op.matrix_flops] = row.fraction.value
    for flops, share in found.items():
        size = flops / 1e9
        assert share == (0.85 if size >= 100 else 0.8 if size >= 10 else 0.5 if size >= 1 else 0.1)
    assert len(set(found.values())) > 1


def test_the_command_that_is_printed_gives_the_same_step(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files, out = written(examples(blocks=4), tmp_path), tmp_path / "out"
    assert execute(["calculon", *files, "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert any("mem1.MB_efficiency" in remark for remark in result.pop("remarks"))
    assert execute(["calculon", *files, "--output", str(out)]) == 0
    text = capsys.readouterr().out
    command = re.search(r"the same: ridgeline (.*)$", text, re.MULTILINE)
    assert command is not None
    assert execute([*shlex.split(command[1]), "--json"]) == 0
    again = json.loads(capsys.readouterr().out)
    assert again["step_time_s"] == result["step_time_s"]
    assert again["memory_bytes"] == result["memory_bytes"]


def test_offloaded_activations_wait_in_the_host(tmp_path: Path) -> None:
    files = examples(blocks=6)
    kept = read_calculon(*written(files, tmp_path)).simulate()
    files["tensor-8.json"]["activations_offload"] = True
    slow = read_calculon(*written(files, tmp_path)).simulate()
    files["a100.json"]["mem2"]["GBps"] = 1000
    fast = read_calculon(*written(files, tmp_path)).simulate()
    assert slow.memory_bytes["activations"] < 0.8 * kept.memory_bytes["activations"]
    assert kept.step_time_s <= fast.step_time_s < slow.step_time_s
    between = [sum(v for k, v in r.traffic_bytes.items() if "tier" in k) for r in (kept, slow)]
    assert between[0] == between[1] > 0


def test_older_files_say_the_same(tmp_path: Path) -> None:
    new, old = examples(), examples()
    for engine in ("matrix", "vector"):
        rate = new["a100.json"][engine]["float16"]
        old["a100.json"][engine] = {
            "tflops": rate["tflops"],
            "gflops_efficiency": {"float16": rate["gflops_efficiency"]},
        }
    for network in old["a100.json"]["networks"]:
        network["ops"] = {name: factor for name, (factor, _) in network["ops"].items()}
        network["collective_minus1_scalar"] = True
    for field in ("fused_activation", "attention_type", "tensor_par_overlap"):
        del old["tensor-8.json"][field]
    (tmp_path / "old").mkdir()
    assert read_calculon(*written(new, tmp_path)) == read_calculon(*written(old, tmp_path / "old"))


def test_files_of_the_first_versions_say_the_same(tmp_path: Path) -> None:
    new, old = examples(), examples()
    new["a100.json"]["matrix"]["bfloat16"] = new["a100.json"]["matrix"]["float16"]
    new["a100.json"]["vector"]["bfloat16"] = new["a100.json"]["vector"]["float16"]
    for engine in ("matrix", "vector"):  # one rate and its shares, for whatever the run is in
        old["a100.json"][engine] = old["a100.json"][engine]["float16"]
    application = old["gpt3-22b.json"]
    for field in ("feedforward", "attn_size"):
        del application[field]
    application |= {"name": "Megatron-22B", "num_layers": application.pop("num_blocks")}
    (tmp_path / "old").mkdir()
    read, as_new = (
        read_calculon(*written(files, folder))
        for files, folder in ((old, tmp_path / "old"), (new, tmp_path))
    )
    assert (read.files, read.plan, read.settings) == (as_new.files, as_new.plan, as_new.settings)
    said = " ".join(set(read.remarks) - set(as_new.remarks))
    for field in ("feedforward:", "attn_size:", "matrix.gflops_efficiency:", "vector.gflops_"):
        assert field in said


def test_a_memory_without_a_limit_holds_everything(tmp_path: Path) -> None:
    files = examples(blocks=4)
    files["a100.json"]["mem1"]["GiB"] = 80_000_000_000
    read = read_calculon(*written(files, tmp_path))
    assert any(remark.startswith("mem1.GiB: 8e+10 is read as no limit") for remark in read.remarks)
    result = read.simulate()
    assert result.memory_bytes["capacity"] == 2**60
    files["a100.json"]["mem1"]["GiB"] = 80
    limited = read_calculon(*written(files, tmp_path)).simulate()
    assert limited.memory_bytes["capacity"] == 80 * 2**30
    assert result.step_time_s == limited.step_time_s
    assert result.memory_bytes["total"] == limited.memory_bytes["total"]


@pytest.mark.parametrize(
    ("execution", "message"),
    [
        ({"tensor_par": 7, "num_procs": 14}, r"tensor-8.json:3:3: tensor_par: .*does not divide"),
        (
            {"pipeline_par": 3, "num_procs": 48, "batch_size": 8, "pipeline_interleaving": 2},
            r"tensor-8.json:1:1: schedule interleaved: the 1 micro-batches",
        ),
    ],
)
def test_what_does_not_suit_is_a_field_of_the_users_file(
    tmp_path: Path, execution: dict[str, Any], message: str
) -> None:
    files = examples(blocks=4)
    files["tensor-8.json"] |= execution
    with pytest.raises(ConfigError, match=message) as error:
        read_calculon(*written(files, tmp_path)).simulate()
    assert str(tmp_path) in str(error.value)


def test_a_mistake_in_what_was_made_is_one_of_the_users_file(tmp_path: Path) -> None:
    origins = read_calculon(*written(examples(), tmp_path)).origins
    made = tmp_path / "made"
    for file, field, place in (
        ("device.yaml", "memory.mem1.capacity.value", "a100.json:41:5: mem1.GiB"),
        ("device.yaml", "engines.vector.rates", r"a100.json:\d+:3: vector"),
        ("device.yaml", "year", "a100.json:1:1"),
        ("cluster.yaml", "link_types.tier1.latency", "networks.1"),
        ("gpt3-22b.yaml", "attention.head_size", "gpt3-22b.json:6:3: attn_size"),
    ):
        found = origins.of(ConfigError("no", file=str(made / file), line=9, field=field), made)
        assert re.search(place, str(found))
        assert str(made) not in str(found)
    elsewhere = ConfigError("no", file="hwconfigs/x.yaml", field="hidden")
    assert origins.of(elsewhere, made) is elsewhere


@pytest.mark.parametrize(
    ("file", "path", "value", "message"),
    [
        ("gpt3-22b.json", "hiden", 1, r"gpt3-22b.json:\d+.*hiden.*did you mean 'hidden'"),
        ("gpt3-22b.json", "hidden", None, r"gpt3-22b.json.*'hidden' is missing"),
        ("gpt3-22b.json", "num_blocks", 2000, r"gpt3-22b.json:7.*less than or equal to 1000"),
        ("a100.json", "networks.0.size", 2000, r"a100.json:\d+:\d+: networks.0.size: found 2000"),
        ("gpt3-22b.json", "num_blocks", 0, r"gpt3-22b.json:7.*num_blocks.*found 0"),
        ("tensor-8.json", "num_procs", 15, r"tensor-8.json:2.*num_procs: 15 is not .* = 16"),
        ("tensor-8.json", "batch_size", 15, r"tensor-8.json.*batch_size: 15 is no multiple"),
        ("tensor-8.json", "weight_offload", True, r"weight_offload: not simulated"),
        ("tensor-8.json", "training", False, r"training: inference is not simulated"),
        ("tensor-8.json", "datatype", "float32", r"datatype: .*has no float32 .it has: float16"),
        ("tensor-8.json", "data_par_net", 2, r"data_par_net: found 2; .*networks 0 to 1"),
        ("tensor-8.json", "pipeline_interleaving", 2, r"tensor-8.json:\d+.*needs pipeline_par of"),
        ("tensor-8.json", "training", "yes", r"training: .*boolean"),
        ("a100.json", "mem1.GiB", "80", r"a100.json:\d+:\d+: mem1.GiB.*found '80'"),
        ("a100.json", "networks.0.efficiency", 1.2, r"networks.0.efficiency.*less than or equal"),
        ("a100.json", "networks.1.size", 8, r"tensor-8.json:2:\d+: num_procs: found 16; .*join 8"),
        ("a100.json", "networks.0.speed", 3, r"unknown field 'speed'"),
        ("a100.json", "processing_mode", "both", r"processing_mode.*allowed: roofline, no_overlap"),
        ("a100.json", "mem1.MB_efficiency", [[9, 0.5]], r"mem1.MB_efficiency.*last size must be 0"),
        (
            "a100.json",
            "matrix.float16.gflops_efficiency",
            [[1, 0.5], [1, 0.5], [0, 0.1]],
            r"matrix.float16.gflops_efficiency: sizes must fall",
        ),
        ("a100.json", "matrix", {}, r"matrix: there is no number format"),
    ],
)
def test_a_mistake_is_named(file: str, path: str, value: Any, message: str, tmp_path: Path) -> None:
    files = examples()
    replaced(files[file], path, value)
    with pytest.raises(ConfigError) as caught:
        read_calculon(*written(files, tmp_path))
    assert re.search(message, str(caught.value)), str(caught.value)


def test_a_broken_file_exits_with_2(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = written(examples(), tmp_path)
    text = Path(files[2]).read_text("utf-8")
    for broken in (text[:-40], "", "[1, 2]", "\x00"):
        Path(files[2]).write_text(broken, "utf-8")
        assert execute(["calculon", *files]) == 2
        told = capsys.readouterr().err
        assert "a100.json" in told
        assert "Traceback" not in told


def test_a_machine_without_a_network_is_no_source_of_energies(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="--like"):
        read_calculon(*written(examples(), tmp_path), like="a100-sxm4-80gb")


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_every_execution_is_a_plan_of_the_same_devices(data: st.DataObject) -> None:
    tensor, pipeline, data_par = (data.draw(st.sampled_from((1, 2, 4, 8))) for _ in range(3))
    chunks = data.draw(st.sampled_from((1, 2, 3))) if pipeline > 1 else 1
    micro, count = data.draw(st.integers(1, 4)), pipeline * data.draw(st.integers(1, 3))
    fields = examples()["tensor-8.json"] | {
        "num_procs": tensor * pipeline * data_par,
        "tensor_par": tensor,
        "pipeline_par": pipeline,
        "data_par": data_par,
        "batch_size": data_par * micro * count,
        "microbatch_size": micro,
        "pipeline_interleaving": chunks,
        "optimizer_sharding": data.draw(st.booleans()),
        "tensor_par_net": data.draw(st.integers(0, 1)),
        "pipeline_par_net": data.draw(st.integers(0, 1)),
        "data_par_net": data.draw(st.integers(0, 1)),
        "tensor_par_comm_type": data.draw(st.sampled_from(("ar", "rs_ag", "p2p_rs_ag"))),
    }
    execution = CalculonExecution(**fields)
    plan = make_plan(plan_fields(execution))
    assert plan.devices == execution.num_procs
    assert plan.micro_batches * plan.micro_batch_size * plan.data == execution.batch_size
    near = [name for name in ("tensor", "pipeline", "data") if fields[f"{name}_par_net"] == 0]
    order = [name for name in plan.order.split("-") if name != "context"]
    assert set(order[: len(near)]) == set(near)
