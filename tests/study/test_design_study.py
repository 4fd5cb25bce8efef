"""Studies in Python: rows as of a file, in parallel, and as tables of three libraries."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ridgeline as rl
from ridgeline.study.sweep import load_study, plain_rows, run_sweep

GRID: dict[str, Any] = {
    "model": "lenet5",
    "cluster": "v100-sxm2-16gb",
    "plan": {"precision": "fp32"},
    "vary": {
        "plan.global_batch": [32, 64],
        "cluster.device.memory.hbm.bandwidth": ["600 GB/s", "0.9 TB/s"],
    },
}


@pytest.fixture(scope="module")
def rows() -> rl.StudyRows:
    return rl.Study(**GRID).run(progress=False)


def test_keywords_a_mapping_a_text_and_a_file_are_one_study(
    rows: rl.StudyRows, tmp_path: Path
) -> None:
    text = json.dumps({"kind": "study", "name": "study", **GRID}, indent=1)
    file = tmp_path / "study.yaml"
    file.write_text(text, "utf-8")
    for source in (GRID, text, file, str(file)):
        study = rl.Study(source)
        assert (len(study), study.fields) == (4, list(GRID["vary"]))
        assert study.run(progress=False).rows == rows.rows
    assert run_sweep(load_study(file)) == rows.rows
    assert rl.load(file).run(progress=False).rows == rows.rows
    assert [row["error"] for row in rows] == [""] * 4


def test_arrays_ranges_and_plans_are_what_they_hold() -> None:
    plan = rl.Plan(global_batch=64, precision="fp32")
    study = rl.Study(
        model="lenet5", cluster="dgx1-v100", plan=plan,
        vary={"plan.data": np.array([1, 2]), "plan.global_batch": range(64, 129, 64)},
    )  # fmt: skip
    assert study.file.vary == {"plan.data": [1, 2], "plan.global_batch": [64, 128]}
    assert study.file.plan == {"global_batch": 64, "precision": "fp32"}
    assert rl.Study(study.file.model_dump(), name="other").name == "other"


def test_processes_and_a_killed_run_give_the_same_rows(
    rows: rl.StudyRows, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "rows.csv"
    study = rl.Study(**GRID)
    done = 0

    def killed(count: int) -> None:
        nonlocal done
        done += count
        if done == 3:
            raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr("ridgeline.study.design_study.progress_bar", lambda *_: _Progress(killed))
        with pytest.raises(KeyboardInterrupt):
            study.run(output=out)
    kept = (tmp_path / "rows.csv.partial.jsonl").read_text().splitlines()
    assert len(kept) == 3
    assert not out.exists()
    assert study.run(output=out, processes=2).rows == rows.rows
    assert [row["step_time_s"] for row in plain_rows(out)] == [r["step_time_s"] for r in rows]
    assert list(tmp_path.iterdir()) == [out]


class _Progress:
    def __init__(self, advance: Callable[[int], None]) -> None:
        self.advance = advance

    def __enter__(self) -> Callable[[int], None]:
        return self.advance

    def __exit__(self, *_: object) -> None:
        pass


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"modl": "lenet5"}, r"^modl: unknown field 'modl'; did you mean 'model'"),
        ({"vary": {"plan.globl_batch": [1]}}, "did you mean 'global_batch'"),
        ({"vary": {"plan.global_batch": ["many"]}}, r"^vary.plan.global_batch.0: expected a whole"),
        ({"vary": {}}, "nothing is varied"),
        (
            {"cluster": "a100"},
            r"^cluster: no cluster, node or device is called 'a100'; did you mean 'a100-",
        ),
        ({"model": rl.Plan(global_batch=1)}, r"^model: Input should be a valid string"),
        ({"where": ["plan.global_batch > 100"]}, r"^where: these conditions leave no point"),
        ({"columns": {"x": "no_such / 2"}}, r"^columns.x: "),
        ({"zip": [{"plan.micro_batch": [1]}, {}]}, r"^zip"),
        ({"kind": "model"}, "expected 'kind: study'"),
        ({"software": "alll"}, "no software stack is called 'alll'"),
    ],
)
def test_a_mistake_is_told_as_of_a_file(fields: dict[str, Any], said: str) -> None:
    with pytest.raises(rl.ConfigError, match=said):
        rl.Study({**GRID, **fields})


def test_options_of_a_run_that_make_no_sense_are_refused(tmp_path: Path) -> None:
    study = rl.Study(**GRID)
    for options, said in (
        ({"processes": 0}, "^processes: must be at least 1"),
        ({"processes": 2, "cluster": "tcp://x:1"}, "^processes: "),
        ({"resume": True}, "^resume: "),
        ({"output": tmp_path / "rows.txt"}, "must end in .csv or .parquet"),
    ):
        with pytest.raises(rl.ConfigError, match=said):
            study.run(**options)
    for source, said in ((3, "found int"), ("nothere.yaml", "cannot be read"), ("a:\n b", "kind")):
        with pytest.raises(rl.ConfigError, match=said):
            rl.Study(source)


def test_rows_are_a_sequence_with_best_and_front(rows: rl.StudyRows) -> None:
    assert len(rows[:2]) == 2
    assert rows.failed == []
    best = rows.top("step_time_s", 1)
    assert best[0]["step_time_s"] == min(row["step_time_s"] for row in rows)
    front = rows.pareto(min="step_time_s,energy_j.total", max=["samples_per_s"])
    assert front.rows == rl.pareto(rows, ["step_time_s", "energy_j.total"], "samples_per_s")
    assert rl.top(rows, "samples_per_s", 4, largest=True)[-1] == rows.top("samples_per_s", 1)[0]
    assert "lenet5" not in rows._repr_html_()
    assert "<td>600 GB/s</td>" in rows._repr_html_()
    with pytest.raises(rl.ConfigError, match="at least two columns"):
        rows.pareto("step_time_s")
    with pytest.raises(rl.ConfigError, match="found int"):
        rl.top(3, "step_time_s")  # type: ignore[arg-type]


def test_rows_as_polars(rows: rl.StudyRows) -> None:
    frame = rows.to_polars()
    assert frame["step_time_s"].to_list() == [row["step_time_s"] for row in rows]
    assert rl.top(frame, "step_time_s", 2) == rl.top(rows, "step_time_s", 2)


def test_rows_as_pandas(rows: rl.StudyRows) -> None:
    pytest.importorskip("pandas")
    frame = rows.to_pandas()
    assert frame["step_time_s"].tolist() == [row["step_time_s"] for row in rows]
    assert frame.attrs["units"]["energy_j.total"] == "J"
    assert [r["step_time_s"] for r in rl.top(frame, "step_time_s")] == sorted(frame["step_time_s"])


def test_varied_fields_are_coordinates_of_xarray_with_units(rows: rl.StudyRows) -> None:
    pytest.importorskip("xarray")
    table = rows.to_xarray()
    batch, bandwidth = GRID["vary"]
    assert dict(table.sizes) == {batch: 2, bandwidth: 2}
    assert table[bandwidth].values.tolist() == [600e9, 900e9]
    assert table[bandwidth].attrs == {"units": "B/s"}
    assert table["step_time_s"].attrs == {"units": "s"}
    for row in rows:
        place = {batch: row[batch], bandwidth: {"6": 600e9, "0": 900e9}[row[bandwidth][0]]}
        assert table["step_time_s"].sel(place).item() == row["step_time_s"]
        assert table["bound"].sel(place).item() == row["bound"]


def test_fields_varied_together_and_samples_share_a_dimension_and_gaps_are_nan() -> None:
    pytest.importorskip("xarray")
    study = rl.Study(
        model="lenet5", cluster="v100-sxm2-16gb", vary={"plan.global_batch": [8, 16]},
        zip=[{"plan.precision": ["fp32", "fp16-mixed"], "plan.micro_batch": [2, 4]}],
        where=["plan.global_batch > plan.micro_batch * 2"],
    )  # fmt: skip
    rows = study.run(progress=False)
    table = rows.to_xarray()
    assert dict(table.sizes) == {"plan.global_batch": 2, "plan.precision+plan.micro_batch": 2}
    assert table["plan.precision"].values.tolist() == ["fp32", "fp16-mixed"]
    assert int(table["step_time_s"].isnull().sum()) == 4 - len(rows) == 1
    drawn = rl.Study(
        model="lenet5", cluster="v100-sxm2-16gb",
        sample={"method": "sobol", "count": 4, "over": {"plan.global_batch": [8, 16, 32]}},
    )  # fmt: skip
    assert dict(drawn.run(progress=False).to_xarray().sizes) == {"sample": 4}
