"""Eyeriss: priced ops, mapping files, and the published latencies."""

from __future__ import annotations

from pathlib import Path

import pytest

from ridgeline.errors import ConfigError
from ridgeline.hardware import load_device
from ridgeline.kernels.single_op import OpResult, conv, gemm
from ridgeline.study.reproduce import reproduce
from ridgeline.workload.graph import Conv

EXAMPLES = Path(__file__).parents[3] / "docs/examples/mappings"
CONV1 = Conv(4, 3, 227, 227, 96, 11, 11, (4, 4))


def on_eyeriss(text: str, folder: Path, loops: Conv = CONV1) -> OpResult:
    (folder / "mapping.yaml").write_text(text)
    return conv(loops, "eyeriss", mapping=str(folder / "mapping.yaml"))


def test_five_published_latencies_without_a_fit() -> None:
    found = [row for row in reproduce("eyeriss").rows if row.tolerance is not None]
    assert len(found) == 5
    assert all(row.is_kept and not row.is_fitted for row in found)


def test_the_buffer_traffic_of_the_chip() -> None:
    row = next(row for row in reproduce("eyeriss").rows if row.unit == "MB")
    assert abs(row.residual) < 0.08


def test_the_authors_mapping_as_data_is_the_layout_of_the_reproduction() -> None:
    result = conv(CONV1, "eyeriss", mapping=str(EXAMPLES / "eyeriss-conv1.yaml"))
    row = reproduce("eyeriss").rows[0]
    assert result.parts_s["array.int16 arithmetic"] * 1e3 == pytest.approx(row.predicted)


def test_constraints_settle_what_they_name_and_leave_the_rest() -> None:
    loops = Conv(4, 256, 13, 13, 384, 3, 3, padding=(1, 1))
    bound = conv(loops, "eyeriss", mapping=str(EXAMPLES / "row-stationary-3x3.yaml"))
    free = conv(loops, "eyeriss")
    assert "rows: k=4 r=3;" in bound.mapping
    assert free.time_s <= bound.time_s


def test_gradients_and_products_are_priced_too() -> None:
    for pass_ in ("input-gradient", "weight-gradient"):
        result = conv(Conv(1, 8, 8, 8, 8, 3, 3), "eyeriss", pass_=pass_)
        assert 0 < result.utilisation <= 1
    result = gemm(64, 64, 64, "eyeriss")
    assert 0 < result.utilisation <= 1
    assert result.traffic_bytes["dram"] >= result.compulsory_bytes
    assert result.energy_j["dram"] > 0


MISTAKES = [
    ("levels:\n- level: drum\n  loops: [n=4]\n", r":3:.*no memory level 'drum'; did you mean 'dr"),
    ("levels:\n- level: dram\n  loops: [n=4, z=2]\n", r":4:.*no loop 'z'.*there are: n, g, k, c"),
    ("levels:\n- level: dram\n  loops: [n=x]\n", r":4:.*cannot read 'n=x' as a loop"),
    ("levels:\n- level: dram\n  loops: [n=0]\n", r":4:.*the factor of n must be from 1"),
    ("rows: [r=11, r=2]\n", r":2:.*rows.*the loop r stands twice"),
    ("rowz: [r=11]\n", r":2:.*unknown field 'rowz'; did you mean 'rows'"),
    ("dataflow: row-stationery\n", r":2:.*no dataflow 'row-stationery'; did you mean 'row-stat"),
    ("levels:\n- {level: buffer}\n- {level: dram}\n", r":4:.*levels go from far to near"),
    ("rows: [r=11, k=2]\n", r"no layout of the loops .* fits the array"),
]  # fmt: skip


@pytest.mark.parametrize(("text", "message"), MISTAKES)
def test_mistakes_in_a_mapping_name_file_line_and_field(
    text: str, message: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=message):
        on_eyeriss(f"kind: mapping\n{text}", tmp_path)


WHOLE = """kind: mapping
levels:
- {{level: dram, loops: [n=4, p=8, c={c}]}}
- {{level: buffer, loops: [k=3, q=55]}}
- {{level: scratchpads, loops: [k={k}, s=11]}}
rows: [r=11]
columns: [p=7, k=2]
"""


@pytest.mark.parametrize(
    ("c", "k", "message"),
    [
        (2, 16, "the factors of c cover 2 of 3 points"),
        (3, 32, "an element holds 224 words of filters, and its tile has 352"),
    ],
)
def test_a_mapping_that_the_array_cannot_do_is_refused(
    c: int, k: int, message: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=message):
        on_eyeriss(WHOLE.format(c=c, k=k), tmp_path)


def test_a_device_that_takes_no_mapping_says_so() -> None:
    with pytest.raises(ConfigError, match="v100-sxm2-16gb has no engine that takes a mapping"):
        conv(CONV1, "v100-sxm2-16gb", mapping=str(EXAMPLES / "eyeriss-conv1.yaml"))


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("engines.array.spatial.buffer", "buffr", "no memory level 'buffr'; did you mean 'buffer'"),
        ("engines.array.spatial.rows", 0, "must be at least 1, found 0"),
        ("engines.array.spatial.clock", "400 MHz", "no rate of the engine is that"),
        ("engines.array.kind", "vector", "'spatial' belongs to an engine of kind spatial"),
    ],
)
def test_a_description_that_does_not_fit_is_refused(
    field: str, value: object, message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        load_device("eyeriss", {field: value})
