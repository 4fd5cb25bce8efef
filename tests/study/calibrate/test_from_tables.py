"""Devices and nodes from tables of measured kernels: what was put in is found again."""

from __future__ import annotations

import csv
import gzip
import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import polars
import pytest

import ridgeline as rl
from ridgeline.cli import execute
from ridgeline.errors import ConfigError, RidgelineError
from ridgeline.hardware import Device, load_device
from ridgeline.hardware.load import description, load_node
from ridgeline.study.calibrate import document, table_fit
from ridgeline.study.calibrate.from_tables import TableCalibration, calibrate_from
from ridgeline.study.calibrate.kernel_tables import kernel_table, kind_of, read_kernels, read_table
from ridgeline.study.calibrate.table_links import are_collectives, read_collectives
from ridgeline.study.collective_point import CollectivePoint
from ridgeline.study.validate.rows import SHIPPED, MeasuredRow

MEASURED = SHIPPED / "measured"
PRODUCTS = [(1 << i, 1 << j, 1 << k) for i in (9, 11, 13) for j in (9, 11, 12) for k in (8, 11, 13)]


def _write(path: Path, rows: Iterable[Mapping[str, object]]) -> Path:
    table = list(rows)
    with path.open("w", newline="", encoding="utf-8") as stream:
        writer = csv.DictWriter(stream, list(table[0]))
        writer.writeheader()
        writer.writerows(table)
    return path


def _bare(folder: Path, name: str, **more: object) -> str:
    """Write a shipped device whose achievable shares are forgotten."""
    data = dict(description("devices", name).data)
    kept = {k: v for k, v in data.items() if k not in {"achievable", "achievable_from", "base"}}
    path = folder / "bare.yaml"
    document.write(path, {**kept, "name": "bare", **more}, "a device without shares")
    return str(path)


def _times(device: Device, rows: Sequence[Mapping[str, object]]) -> list[float]:
    """Return what the calls of rows take on a device."""
    table = [
        MeasuredRow("made.csv", i, {k: str(v) for k, v in row.items()})
        for i, row in enumerate(rows)
    ]
    calls = kernel_table(table, "made").calls
    return [float(time_s) for time_s in table_fit.predicted(calls, device)]


def _products(device: Device) -> list[dict[str, object]]:
    rows: list[dict[str, object]] = [
        {"format": "fp16", "m": m, "n": n, "k": k, "time_us": 1.0} for m, n, k in PRODUCTS
    ]
    return [row | {"time_us": 1e6 * s} for row, s in zip(rows, _times(device, rows), strict=True)]


def test_shares_and_bandwidth_that_made_the_rows_are_found(tmp_path: Path) -> None:
    bare = _bare(tmp_path, "v100-sxm2-16gb")
    share = {"value": 0.613, "source": "made", "basis": "measured"}
    row = {"engine": "tensor-cores", "format": "fp16", "op": "gemm", "fraction": share}
    true = load_device(bare, {"achievable": [row], "memory.hbm.achievable": 0.71})
    moved: list[dict[str, object]] = [
        {"format": "fp32", "op": "add", "rows": n, "cols": 1024, "time_us": 1.0}
        for n in range(40_000, 80_000, 1_000)
    ]
    moved = [row | {"time_us": 1e6 * s} for row, s in zip(moved, _times(true, moved), strict=True)]
    tables = [
        _write(tmp_path / "products.csv", _products(true)),
        _write(tmp_path / "add.csv", moved),
    ]
    made = calibrate_from(tables, bare, "mine")
    path = tmp_path / "mine.yaml"
    assert made.write(path, None) == [path]
    device = load_device(str(path))
    first = device.achievable[0]
    assert (first.format, first.op, first.fraction.basis) == ("fp16", "gemm", "measured")
    assert first.fraction.value == pytest.approx(0.613, rel=0.03)
    assert "rows of products.csv" in first.fraction.note
    assert device.sources[first.fraction.source].startswith(str(tables[0]))
    assert device.memory["hbm"].achievable.value == pytest.approx(0.71, rel=0.03)
    assert device.launch_latency.value == pytest.approx(true.launch_latency.value, rel=0.1)
    assert made.time is not None
    before, after = made.time
    assert after["held out"]["all"].mean < 0.03 < before["held out"]["all"].mean
    assert rl.load_cluster(str(path)).device.name == "mine"


@pytest.fixture(scope="module")
def turing(tmp_path_factory: pytest.TempPathFactory) -> TableCalibration:
    bare = _bare(tmp_path_factory.mktemp("turing"), "t4")
    return calibrate_from([MEASURED / "gemm_fp32.csv.gz"], bare, "mine", rows_of="t4")


def test_rows_make_a_device_as_good_as_the_shipped_one_on_held_out_rows(
    turing: TableCalibration,
) -> None:
    assert turing.time is not None
    assert turing.fit is not None
    held = [call for call in turing.fit.calls if call.is_held_out]
    assert 0.2 < len(held) / len(turing.fit.calls) < 0.47
    shipped = table_fit.residuals(held, load_device("t4"))["all"]
    bare, made = (errors["held out"]["all"] for errors in turing.time)
    assert made.mean <= shipped.mean
    assert made.mean < bare.mean


def test_what_is_held_out_depends_on_the_shape_alone() -> None:
    table = read_kernels(MEASURED / "gemm_llm.csv.gz", "h100-sxm5-80gb")
    sides: dict[tuple[str, str], set[bool]] = {}
    for call in table.calls:
        sides.setdefault((call.call.words, call.call.format), set()).add(call.is_held_out)
    assert all(len(side) == 1 for side in sides.values())


def test_power_is_fitted_where_it_was_measured() -> None:
    made = calibrate_from([MEASURED / "quantize_cast.csv.gz"], "h200-sxm", "mine")
    assert made.power is not None
    assert made.fields is not None
    before, after = made.power
    assert after["fitted"]["all"].mean < before["fitted"]["all"].mean
    assert {"idle power", "energy of bytes"} <= {
        one["name"] for one in made.to_dict()["parameters"]
    }


@pytest.mark.parametrize("format_", ["csv.gz", "parquet"])
def test_aiconfigurator_columns_and_files_are_read(tmp_path: Path, format_: str) -> None:
    rows = [
        {"framework": "TRTLLM", "version": "1.0", "device": "NVIDIA H100", "op_name": "gemm",
         "kernel_source": "x", "gemm_dtype": "fp8_block", "m": m, "n": 4096, "k": 512,
         "latency": 0.125}
        for m in (64, 128)
    ]  # fmt: skip
    path = tmp_path / f"gemm_perf.{format_}"
    if format_ == "parquet":
        polars.DataFrame(rows).write_parquet(path)
    else:
        plain = _write(tmp_path / "plain.csv", rows)
        path.write_bytes(gzip.compress(plain.read_bytes()))
    table = read_kernels(path, "h100-sxm5-80gb")
    assert [call.call.format for call in table.calls] == ["fp8-block"] * 2
    assert [call.measured_s for call in table.calls] == [pytest.approx(125e-6)] * 2
    assert table.calls[0].row.text("framework") == "trtllm"


def test_aiconfigurator_attention_and_experts_are_read() -> None:
    attention = {"op_name": "generation_attention", "batch_size": "4", "isl": "1", "step": "511",
                 "num_heads": "32", "num_key_value_heads": "0", "head_dim": "128",
                 "attn_dtype": "bfloat16", "kv_cache_dtype": "fp8", "latency": "0.5"}  # fmt: skip
    experts = {"moe_dtype": "nvfp4", "num_tokens": "64", "hidden_size": "512", "inter_size": "256",
               "topk": "2", "num_experts": "8", "moe_tp_size": "1", "moe_ep_size": "2",
               "distribution": "uniform", "latency": "0.5"}  # fmt: skip
    (call,) = kernel_table([MeasuredRow("a.csv", 2, attention)], "b200").calls
    assert call.call.words == "decode, 4 x 32/32 heads of 128, 1 of 512"
    assert call.call.format == "bf16/kv-fp8"
    assert kind_of([MeasuredRow("a.csv", 2, experts)]).name == "aiconfigurator's experts"


def test_deepbench_columns_are_read(tmp_path: Path) -> None:
    with (SHIPPED / "kernels.csv").open(newline="", encoding="utf-8") as stream:
        ours = [row for row in csv.DictReader(stream) if row["device"] == "NV_V100"]
    written = ("op", "machine", "asked", "format", "pass", "measured")
    raw = [{k: v for k, v in row.items() if k not in written} for row in ours[::9]]
    bare = _bare(tmp_path, "v100-sxm2-16gb")
    path = _write(tmp_path / "deepbench.csv", raw)
    made = calibrate_from([path], bare, "mine")
    assert made.time is not None
    before, after = (errors["held out"]["all"].mean for errors in made.time)
    assert after < before
    kinds = {row["op"] for row in made.fields["achievable"]}
    assert kinds == {"gemm", "conv2d"}


def test_links_that_made_the_rows_are_found(tmp_path: Path) -> None:
    node, changed = "hgx-h200", {"cluster.node.link_types.nvlink4.achievable": 0.61}
    rows = []
    for operation in ("all_reduce", "all_gather"):
        for size in (2**i for i in range(16, 31)):
            asked = {"operation": operation.replace("_", "-"), "size": f"{size} B", "ranks": 8}
            time_s = CollectivePoint(node, asked, changed).simulate()[0].time_s
            rows.append({"device_key": "h200-sxm", "system": "", "op": operation, "ranks": 8,
                         "bytes": size, "time_us": 1e6 * time_s})  # fmt: skip
    table = _write(tmp_path / "links.csv", rows)
    made = calibrate_from([table], "h200-sxm", "mine", node=node, node_name="mine-node")
    assert made.fields is None
    path = tmp_path / "mine-node.yaml"
    assert made.write(tmp_path / "mine.yaml", path) == [path]
    link = load_node(str(path)).link_types["nvlink4"]
    assert link.achievable.value == pytest.approx(0.61, rel=0.03)
    assert "rows of links.csv" in link.achievable.note
    with pytest.raises(RidgelineError, match="say by --node"):
        calibrate_from([table], "h200-sxm", "mine")


def test_the_command_writes_a_file_that_other_verbs_take(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    device = load_device("v100-sxm2-16gb", {"launch_latency": "4 us"})
    table = _write(tmp_path / "products.csv", _products(device))
    out = str(tmp_path / "mine.yaml")
    words = ["calibrate", "--from", str(table), "--base", "v100-sxm2-16gb", "--output", out]
    assert execute([*words, "--json"]) == 0
    made = json.loads(capsys.readouterr().out)
    assert made["time"]["held out"]["all"]["n"] > 0
    assert made["tables"][0]["rows"] == len(PRODUCTS)
    assert execute(words) == 0
    assert "held out: gemm fp16" in capsys.readouterr().out
    for verb in (["gemm", "512", "512", "512", "--device", out, "--format", "fp16"],
                 ["show", out], ["run", "mlp", out, "--batch", "16"]):  # fmt: skip
        assert execute(verb) == 0


GOOD = {"device_key": "mine", "format": "bf16", "m": "8", "n": "8", "k": "8", "time_us": "5"}


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        ([{k if k != "time_us" else "time_ms": v for k, v in GOOD.items()}],
         r"table.csv:1: the column 'time_us' is missing; did you mean 'time_ms'\? \(nearest is a "
         r"table of products"),
        ([GOOD, {**GOOD, "m": "8.5"}], r"table.csv:3: m: expected a whole number .*'8.5'"),
        ([{**GOOD, "time_us": "fast"}], r"table.csv:2: time_us: expected a number, found 'fast'"),
        ([{**GOOD, "time_us": "-1"}], r"table.csv:2: time_us: expected a time above 0, found '-1'"),
        ([GOOD, {**GOOD, "device_key": "other"}], r"2 devices; say which one by --rows-of"),
        ([{**GOOD, "format": "bf61"}], r"no row can be priced: .*did you mean 'bf16'"),
    ],
)  # fmt: skip
def test_bad_tables_say_where_and_what(
    tmp_path: Path, rows: list[dict[str, str]], said: str
) -> None:
    path = _write(tmp_path / "table.csv", rows)
    with pytest.raises(ConfigError, match=said):
        read_kernels(path, "h100-sxm5-80gb")


def test_bad_options_and_files_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = _write(tmp_path / "table.csv", [GOOD])
    assert execute(["calibrate", "--from", str(path)]) == 2
    assert "--from needs --base" in capsys.readouterr().err
    assert execute(["calibrate", "--base", "t4"]) == 2
    assert "belong to --from" in capsys.readouterr().err
    with pytest.raises(ConfigError, match="did you mean 'mine'"):
        read_kernels(path, "t4", "min")
    (tmp_path / "no.parquet").write_bytes(b"no")
    with pytest.raises(ConfigError, match="cannot be read as Parquet"):
        read_table(tmp_path / "no.parquet")
    (tmp_path / "empty.csv").write_text("m,n,k\n")
    with pytest.raises(ConfigError, match="there are no rows"):
        read_table(tmp_path / "empty.csv")


def test_logs_of_nccl_tests_are_collectives(tmp_path: Path) -> None:
    ranks = "\n".join(
        f"#  Rank  {r} Group  0 Pid {r} on node0 device  {r} [0x0{r}] NVIDIA H200" for r in range(8)
    )
    sizes = "\n".join(
        f"  {2**i}  {2**i // 4}  float  sum  -1  {2**i / 4e5:.2f}  1.0  1.0  0  9.9  1.0  1.0  0"
        for i in range(20, 33)
    )
    log = tmp_path / "all_reduce.log"
    log.write_text(f"{ranks}\n{sizes}\n", "utf-8")
    rows = read_table(log)
    assert are_collectives(rows)
    calls, skipped = read_collectives(rows, load_node("hgx-h200"))
    assert not skipped
    assert {(call.operation, call.ranks) for call in calls} == {("all-reduce", 8)}
    assert calls[0].measured_s == pytest.approx(2**20 / 4e5 * 1e-6, abs=1e-8)
