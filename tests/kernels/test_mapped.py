"""Mappings given as data to systolic arrays and broadcast-grid cores."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ridgeline.errors import ConfigError
from ridgeline.hardware import load_device
from ridgeline.kernels.mapping.axes import dims_of
from ridgeline.kernels.mapping.device import machine_of
from ridgeline.kernels.mapping.explicit_evaluation import EvaluatedMapping
from ridgeline.kernels.mapping.mapper import goal_of
from ridgeline.kernels.mapping.mapping import LevelLoops, Mapping, TileLoop
from ridgeline.kernels.mapping.mapping_file import LevelSchema
from ridgeline.kernels.mapping.nest import nest_of
from ridgeline.kernels.mapping.pipeline import TIME
from ridgeline.kernels.single_op import OpResult, conv, gemm
from ridgeline.kernels.systolic.gemm import gemm_cycles
from ridgeline.workload.graph import Conv, Gemm, Pass

EXAMPLES = Path(__file__).parents[2] / "docs/examples/mappings"


def product(text: str, folder: Path, device: str = "tpu-v2", size: int = 1024) -> OpResult:
    (folder / "mapping.yaml").write_text(f"kind: mapping\n{text}")
    return gemm(size, size, size, device, mapping=str(folder / "mapping.yaml"))


WHOLE = """levels:
- {level: hbm, loops: [n=4, m=2, k=2]}
- {level: vmem, loops: [m=512, n=2, k=4]}
rows: [k=128]
columns: [n=128]
"""


def test_a_given_mapping_by_hand(tmp_path: Path) -> None:
    result = product(WHOLE, tmp_path)
    # 512 x 256 x 512 tiles, k innermost: A comes for each of 4 n, B for each of 2 m, C leaves once.
    mn = 1024 * 1024 * 2
    assert result.traffic_bytes["hbm"] == 4 * mn + 2 * mn + mn
    cycles = gemm_cycles(512, 256, 512, 128, 128, "ws", "overlapped", "full", batch=8)
    # A TPU's arrays are fed in 93.5 % of the cycles.
    assert result.parts_s["mxu.bf16 arithmetic"] == pytest.approx(cycles / 700e6 / 0.935, rel=0.003)
    assert result.mapped is not None
    seconds = result.mapped["time_s"]
    first = 2 * (512 * 512 + 512 * 256) / 600e9
    assert seconds["first load"] == pytest.approx(first)
    assert seconds["last store"] == pytest.approx(2 * 512 * 256 / 600e9)
    assert seconds["total"] == pytest.approx(sum(seconds.values()) - seconds["total"])
    assert result.mapping == "hbm: n4 m2 k2; vmem: m512 n2 k4; rows: k128; columns: n128"


def test_partial_sums_that_leave_come_back(tmp_path: Path) -> None:
    result = product(WHOLE.replace("n=4, m=2, k=2", "k=2, n=4, m=2"), tmp_path)
    mn = 1024 * 1024
    # A comes for each n, B once; sums leave twice and come back once, as fp32 until they are done.
    assert result.traffic_bytes["hbm"] == 4 * mn * 2 + mn * 2 + mn * 2 + 2 * mn * 4


def test_what_is_left_open_is_chosen_not_worse_than_what_is_settled(tmp_path: Path) -> None:
    whole = product(WHOLE, tmp_path)
    some = product("rows: [k=128]\ncolumns: [n=128]\n", tmp_path)
    free = product("name: free\n", tmp_path)
    assert free.time_s <= some.time_s <= whole.time_s
    assert free.traffic_bytes["hbm"] >= free.compulsory_bytes
    assert free.time_s == gemm(1024, 1024, 1024, "tpu-v2", mapping="optimal").time_s


_SIZES = st.integers(1, 700)


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_no_mapping_takes_less_than_its_bound(data: st.DataObject) -> None:
    loops = Gemm(m=data.draw(_SIZES), n=data.draw(_SIZES), k=data.draw(_SIZES))
    nest = nest_of(loops, Pass.FORWARD)
    machine = machine_of(load_device("tpu-v2"), "mxu", "bf16", "fp32")
    assert machine is not None
    far = data.draw(st.lists(st.tuples(st.sampled_from("mnk"), st.integers(1, 5)), max_size=5))
    held = {dim: math.prod(n for name, n in far if name == dim) for dim in nest.dims}
    near = tuple(TileLoop(dim, -(-nest.size[dim] // held[dim])) for dim in nest.dims)
    mapping = Mapping(
        (LevelLoops("hbm", tuple(TileLoop(*one) for one in far)), LevelLoops("vmem", near))
    )
    played = EvaluatedMapping(nest, mapping, machine, dims_of(loops, Pass.FORWARD), goal_of("time"))
    assert 0 < played.bound_s() <= played.found()[TIME] * (1 + 1e-9)


def test_the_dataflow_follows_from_rows_and_columns(tmp_path: Path) -> None:
    assert (
        "rows: k128; columns: m128"
        in product("rows: [k=128]\ncolumns: [m=128]\n", tmp_path).mapping
    )
    half = product("rows: [k=64]\ncolumns: [n=128]\n", tmp_path)
    assert half.utilisation == pytest.approx(0.5, rel=0.1)


def test_a_convolution_takes_a_mapping_of_its_own_loops(tmp_path: Path) -> None:
    (tmp_path / "mapping.yaml").write_text(
        "kind: mapping\nlevels:\n- {level: hbm, loops: [n=8]}\n"
        "- {level: vmem, loops: [n=*, p=*, q=*, c=*, k=*, r=*, s=*]}\n"
    )
    loops = Conv(32, 64, 28, 28, 64, 3, 3, padding=(1, 1))
    result = conv(loops, "tpu-v2", mapping=str(tmp_path / "mapping.yaml"))
    assert result.mapping.startswith("hbm: n8; vmem: n4 p28 q28 c64 k64 r3 s3")
    assert result.traffic_bytes["hbm"] == pytest.approx(result.compulsory_bytes)


def test_cores_of_a_broadcast_grid_take_tiles(tmp_path: Path) -> None:
    text = "levels:\n- {level: local, loops: [m=*, n=*, k=*]}\n"
    assert product(text, tmp_path, "lap-sp", 2048).utilisation > 0.5
    with pytest.raises(ConfigError, match=r":4:.*rows.*lay a block of A out by themselves"):
        product(text + "rows: [m=4]\n", tmp_path, "lap-sp", 256)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("rows: [m=128]\ncolumns: [n=128]\n", r"rows: the array has no dataflow with m along rows"),
        ("rows: [k=64, n=2]\n", r"rows: the rows .* hold one of m, n and k; these loops are k, n"),
        ("rows: [k=256]\n", r"rows: the array has 128 rows, and these loops need 256"),
        ("dataflow: ws\n", r"dataflow: this engine has no named dataflows"),
        (WHOLE.replace("n=2, k=4", "n=2, k=2"), r"the factors of k cover 512 of 1024 points"),
        (WHOLE.replace("m=512", "m=99999"), r"no mapping that this allows fits|cover"),
        ("levels:\n- {level: l2, loops: [m=2]}\n", r":3:.*no memory level 'l2'.*hbm, vmem"),
    ],
)
def test_what_an_array_cannot_do_is_refused(text: str, message: str, tmp_path: Path) -> None:
    size = 16384 if "99999" in text else 1024
    with pytest.raises(ConfigError, match=message):
        product(text, tmp_path, size=size)


@pytest.mark.parametrize("file", sorted(EXAMPLES.glob("*.yaml")), ids=lambda file: file.stem)
def test_the_example_of_each_file_runs_as_it_stands(
    file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from ridgeline.cli import execute

    line = next(x for x in file.read_text(encoding="utf-8").splitlines() if "ridgeline " in x)
    words = line.removeprefix("#").split()[1:]
    assert execute([str(file) if word == "THIS" else word for word in words]) == 0
    assert "mapping  " in capsys.readouterr().out


def test_loops_of_a_level_are_read_as_text_as_a_mapping_and_as_they_are_written_to_json() -> None:
    level = LevelSchema.model_validate({"level": "l2", "loops": ["k=16", "c=*", "p"]})
    assert level.loops == (("k", 16), ("c", None), ("p", None))
    as_mapping = {"level": "l2", "loops": {"k": 16, "c": "*", "p": "*"}}
    assert LevelSchema.model_validate(as_mapping) == level
    assert LevelSchema.model_validate(level.model_dump(mode="json")) == level
    with pytest.raises(ValueError, match="cannot read"):
        LevelSchema.model_validate({"level": "l2", "loops": [["k", 16, 1]]})
