"""Sweeps: the grid, its rows, and mistakes in study files."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import polars
import pytest

from ridgeline.cli import execute
from ridgeline.cli.output import brief, headings
from ridgeline.errors import ConfigError
from ridgeline.report.figures.column_axes import ColumnScale
from ridgeline.report.figures.study import bars, curve
from ridgeline.study.sweep import load_study, plain_rows, run_sweep

STUDY = """
kind: study
name: grid
model: resnet18
cluster: dgx1-v100
plan: {data: 4, global_batch: 64}
vary:
  plan.precision: [fp32, fp16-mixed]
  cluster.device.memory.hbm.bandwidth: [450 GB/s, 900 GB/s]
"""


MANY = f"[{', '.join(['1'] * 2000)}]"


def write(folder: Path, text: str) -> Path:
    path = folder / "study.yaml"
    path.write_text(text)
    return path


def test_the_grid_is_every_combination_in_order(tmp_path: Path) -> None:
    rows = run_sweep(load_study(write(tmp_path, STUDY)))
    varied = [(r["plan.precision"], r["cluster.device.memory.hbm.bandwidth"]) for r in rows]
    assert varied == [
        ("fp32", "450 GB/s"), ("fp32", "900 GB/s"),
        ("fp16-mixed", "450 GB/s"), ("fp16-mixed", "900 GB/s"),
    ]  # fmt: skip
    assert all(row["error"] == "" for row in rows)
    slow, fast, slow_mixed, fast_mixed = (row["step_time_s"] for row in rows)
    assert slow > fast > fast_mixed
    assert slow_mixed > fast_mixed
    assert len({row["manifest_hash"] for row in rows}) == 4


def test_model_cluster_and_model_fields_can_be_varied(tmp_path: Path) -> None:
    text = STUDY.replace("model: resnet18\ncluster: dgx1-v100\n", "").split("vary:")[0] + (
        "vary:\n  model: [alexnet, mlp]\n  cluster: [dgx1-p100, dgx1-v100]\n  plan.data: [1, 8]\n"
    )
    rows = run_sweep(load_study(write(tmp_path, text)))
    assert len(rows) == 8
    assert all(row["error"] == "" for row in rows)


def test_a_failing_point_is_a_row_with_its_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write(tmp_path, STUDY.replace("[fp32, fp16-mixed]", "[fp32, bf16-mixed]"))
    out = tmp_path / "rows.csv"
    status = execute(["sweep", str(path), "--output", str(out), "--json"])
    captured = capsys.readouterr()
    rows = json.loads(captured.out)
    assert status == 1
    assert [bool(row["error"]) for row in rows] == [False, False, True, True]
    assert "bf16" in captured.err
    assert len(list(csv.DictReader(out.read_text().splitlines()))) == 4


def test_csv_and_parquet_hold_the_same_rows(tmp_path: Path) -> None:
    path = write(tmp_path, STUDY)
    for name in ("a.csv", "b.csv", "a.parquet"):
        assert execute(["sweep", str(path), "--output", str(tmp_path / name)]) == 0
    assert (tmp_path / "a.csv").read_bytes() == (tmp_path / "b.csv").read_bytes()
    parquet = polars.read_parquet(tmp_path / "a.parquet")
    table = list(csv.DictReader((tmp_path / "a.csv").read_text().splitlines()))
    assert parquet.columns == list(table[0])
    assert parquet["step_time_s"].to_list() == [float(row["step_time_s"]) for row in table]


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("kind: study", "kind: study\nkindd: x", "unknown field 'kindd'"),
        ("plan.precision:", "plans.precision:", "study.yaml:8:3: .*did you mean 'plan'"),
        ("[fp32, fp16-mixed]", "[]", "at least one value"),
        ("[fp32, fp16-mixed]", "fp32", "valid list"),
        ("model: resnet18\n", "", "'model' is missing"),
        ("[fp32, fp16-mixed]", f"{MANY}\n  plan.data: {MANY}", "at most 1000000"),
        ("name: grid", "name: grid\nname: other", "stands twice"),
    ],
)  # fmt: skip
def test_a_bad_study_says_where(tmp_path: Path, old: str, new: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load_study(write(tmp_path, STUDY.replace(old, new)))


def test_an_output_of_another_kind_is_refused_before_anything_runs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write(tmp_path, STUDY)
    assert execute(["sweep", str(path), "--output", str(tmp_path / "rows.xlsx")]) == 2
    assert ".csv or .parquet" in capsys.readouterr().err
    assert sorted(p.name for p in tmp_path.iterdir()) == ["study.yaml"]


def test_lists_can_be_varied(tmp_path: Path) -> None:
    head = STUDY.split("vary:", maxsplit=1)[0]
    text = f"{head}vary:\n  model.depths: [[1, 1, 1, 1], [2, 2, 2, 2]]\n"
    rows = run_sweep(load_study(write(tmp_path, text)))
    assert [row["model.depths"] for row in rows] == ["[1, 1, 1, 1]", "[2, 2, 2, 2]"]
    assert rows[0]["step_time_s"] < rows[1]["step_time_s"]


def test_a_folder_that_is_not_there_is_found_before_anything_runs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write(tmp_path, STUDY)
    assert execute(["sweep", str(path), "--output", str(tmp_path / "no" / "rows.csv")]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "cannot be written" in captured.err


def test_headings_are_the_fewest_parts_that_tell_columns_apart() -> None:
    assert headings(["plan.data", "a.hbm.bandwidth"]) == ["data", "bandwidth"]
    both = ["a.hbm.bandwidth", "a.l2.bandwidth", "bandwidth"]
    assert headings(["step_time_s", "energy_j.total"]) == ["step_time_s", "energy_j.total"]
    assert headings(both) == ["hbm.bandwidth", "l2.bandwidth", "bandwidth"]


def test_numbers_in_tables_of_rows_have_six_digits() -> None:
    values = ["2.60092240690 MB", 0.1234567, "fp16-mixed", "Ring(4, 1 GB/s, 1 us)", 64, None]
    shown = ["2.60092 MB", "0.123457", "fp16-mixed", "Ring(4, 1 GB/s, 1 us)", "64", "None"]
    assert [brief(value) for value in values] == shown


@pytest.mark.parametrize(
    ("column", "label"),
    [
        ("samples_per_s", "throughput (samples/s)"),
        ("plan.global_batch", "global batch"),
        ("cluster.device.memory.hbm.bandwidth", "hbm bandwidth (GB/s)"),
        ("energy_j.total", "energy total (J)"),
        ("step_time_s", "step time (ms)"),
        ("joules_per_image", "joules per image"),
    ],
)
def test_an_axis_says_what_it_has_and_in_which_unit(column: str, label: str) -> None:
    value = "900 GB/s" if column.endswith("bandwidth") else 1.0
    assert ColumnScale.of(column, [{column: value}]).label == label


def test_small_machines_have_no_zeros_in_tables_and_units_that_can_be_read(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    rows = [
        {"plan.global_batch": n, "energy_j.dram": n * 1e-5, "energy_j.total": n * 1e-5, "x": n}
        for n in (1, 2, 3)
    ]
    axes = bars(rows, "energy", ["plan.global_batch"])
    assert axes.get_xlabel() == "energy (uJ)"
    assert max(patch.get_width() for patch in axes.patches) == pytest.approx(30.0)
    ticks = curve(rows, "plan.global_batch", "energy_j.total").get_xticks()
    assert all(float(tick).is_integer() for tick in ticks)
    large = [{"energy_j.static": 2e7, "energy_j.total": 2e7}]
    assert bars(large, "energy").get_xlabel() == "energy (kJ)"
    study = write(
        tmp_path,
        "kind: study\nname: small\nmodel: lenet5\ncluster: v100-sxm2-16gb\n"
        "vary: {plan.global_batch: [1, 2]}\n",
    )
    assert execute(("sweep", str(study))) == 0
    energies = [float(line.split()[4]) for line in capsys.readouterr().out.splitlines()[3:5]]
    assert min(energies) > 0


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", ":1: the first line must name the columns"),
        ("a,a\n1,2\n", ":1: .* each once"),
        ("a,b\n1,2\n3\n", ":3: 1 fields, but the header names 2 columns"),
        ("a,b\n1,2,3\n", ":2: 3 fields"),
        ('a,b\n1,"2\n', ":2: not a CSV"),
    ],
)
def test_rows_that_are_not_whole_are_refused(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "rows.csv"
    path.write_text(text)
    with pytest.raises(ConfigError, match=message):
        plain_rows(path)


def test_a_point_that_does_not_fit_says_so_in_a_ranking(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    path = tmp_path / "rows.csv"
    path.write_text("n,step_time_s,fits\n1,3.0,True\n2,1.0,False\n3,2.0,True\n")
    assert execute(["top", str(path), "--by", "step_time_s", "--n", "2"]) == 0
    assert "fits" in (out := capsys.readouterr().out)
    assert "False" in out
    assert execute(["top", str(path), "--by", "step_time_s", "--n", "1", "--largest"]) == 0
    assert "fits" not in capsys.readouterr().out


def test_steps_of_a_span_have_the_prefix_that_they_need() -> None:
    shown = [brief(value) for value in ("1 kB", "1000 kB", "1000000 kB", "1800 GB/s", "0 kB")]
    assert shown == ["1 kB", "1 MB", "1 GB", "1800 GB/s", "0 kB"]
