"""Closed-form cycles: numbers by hand, properties, arrays against single numbers, bad input."""

from __future__ import annotations

from dataclasses import astuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ridgeline.errors import ConfigError
from ridgeline.hardware.array import Dataflow, Edge, Fold
from ridgeline.kernels.systolic import gemm_cycles, systolic_gemm
from ridgeline.kernels.systolic.closed_form import FoldSchedule, layout, spans

DATAFLOWS: tuple[Dataflow, ...] = ("os", "ws", "is")
FOLDS: tuple[Fold, ...] = ("overlapped", "pipelined", "serial")  # fastest first
EDGES: tuple[Edge, ...] = ("exact", "full")

sizes = st.integers(1, 40)
cells = st.integers(1, 12)
latencies = st.integers(1, 4)
schedules = st.builds(
    FoldSchedule, st.sampled_from(DATAFLOWS), st.sampled_from(FOLDS), st.sampled_from(EDGES),
    latencies, latencies, latencies,
)  # fmt: skip


def cycles(m: int, n: int, k: int, batch: int, rows: int, columns: int, how: FoldSchedule) -> int:
    return spans(m, n, k, batch, rows, columns, how, max).total()


@pytest.mark.parametrize("dataflow", DATAFLOWS)
@pytest.mark.parametrize("edge", EDGES)
def test_one_full_tile_is_the_published_formula(dataflow: Dataflow, edge: Edge) -> None:
    # Samajdar et al., "A Systematic Methodology for Characterizing Scalability of DNN Accelerators
    # using SCALE-Sim", ISPASS 2020, eq. 1: 2R + C + T - 2.
    size = {"os": (8, 6, 50), "ws": (50, 6, 8), "is": (6, 50, 8)}[dataflow]
    for fold in FOLDS:
        assert gemm_cycles(*size, 8, 6, dataflow, fold, edge) == 2 * 8 + 6 + 50 - 2


@pytest.mark.parametrize(
    ("size", "exact", "full"), [((5, 7, 11), 32, 99), ((33, 31, 65), 316, 381)]
)
def test_serial_edges_by_hand(size: tuple[int, int, int], exact: int, full: int) -> None:
    # 33 x 31 x 65 on 32 x 32: k in tiles of 32, 32 and 1 rows, 31 columns, 33 steps. Exact:
    # (33 + 64 + 31 - 2) * 2 + (33 + 2 + 31 - 2). Full: 3 * (33 + 64 + 32 - 2).
    assert gemm_cycles(*size, 32, 32, fold="serial") == exact
    assert gemm_cycles(*size, 32, 32, fold="serial", edge="full") == full


def test_overlapped_weights_hide_their_loads() -> None:
    # 4 x 4 tiles of 128 x 128: each is busy with 1000 rows of A; the first load of 128 and the
    # last sum's 127 + 127 hops show.
    assert gemm_cycles(1000, 512, 512, 128, 128) == 128 + 16 * 1000 + 254
    # With 10 rows of A the loads of 128 are what takes time.
    assert gemm_cycles(10, 512, 512, 128, 128) == 128 + 15 * 128 + 10 + 254
    # Without a second register the load comes on top, less the cycle that both share.
    assert gemm_cycles(1000, 512, 512, 128, 128, fold="pipelined") == (
        128 + 15 * (1000 + 128 - 1) + 1000 + 254
    )


def test_latencies_by_hand() -> None:
    # One tile of 3 x 2, 5 steps: load (3 - 1) * 2 + 1; the last operand enters after 5, is 2 rows
    # of hop_row + mac - 1 and a column of 4 away, and takes 3 cycles itself.
    assert gemm_cycles(5, 2, 3, 3, 2, hop_row=2, hop_col=4, mac_latency=3) == (
        5 + 5 + 2 * (2 + 3 - 1) + 4 + 3 - 1
    )


@given(sizes, sizes, sizes, sizes, cells, cells, schedules)
def test_more_work_or_latency_is_never_faster(
    m: int, n: int, k: int, batch: int, rows: int, columns: int, how: FoldSchedule
) -> None:
    base = cycles(m, n, k, batch, rows, columns, how)
    assert base >= -(-batch * m * n * k // (rows * columns))
    assert cycles(m + 1, n, k, batch, rows, columns, how) >= base
    assert cycles(m, n + 1, k, batch, rows, columns, how) >= base
    assert cycles(m, n, k + 1, batch, rows, columns, how) >= base
    assert cycles(m, n, k, batch + 1, rows, columns, how) >= base
    for name in ("hop_row", "hop_col", "mac_latency"):
        slower = how._replace(**{name: getattr(how, name) + 1})
        assert cycles(m, n, k, batch, rows, columns, slower) >= base


@given(sizes, sizes, sizes, sizes, cells, cells, schedules)
def test_order_of_folds_and_edges(
    m: int, n: int, k: int, batch: int, rows: int, columns: int, how: FoldSchedule
) -> None:
    by_fold = [cycles(m, n, k, batch, rows, columns, how._replace(fold=fold)) for fold in FOLDS]
    assert by_fold == sorted(by_fold)
    by_edge = [cycles(m, n, k, batch, rows, columns, how._replace(edge=edge)) for edge in EDGES]
    assert by_edge == sorted(by_edge)


@given(sizes, sizes, sizes, sizes, cells, cells, schedules)
def test_spans_sum_up(
    m: int, n: int, k: int, batch: int, rows: int, columns: int, how: FoldSchedule
) -> None:
    spent = spans(m, n, k, batch, rows, columns, how, max)
    height, width, t = layout(how.dataflow, m, n, k)
    assert spent.stream == batch * -(-height // rows) * -(-width // columns) * t
    assert min(astuple(spent)) >= 0
    assert sum(astuple(spent)) == spent.total()
    assert spent.wait == 0 or how.fold != "serial"


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(sizes, sizes, sizes, sizes, cells, cells), min_size=1, max_size=30),
    schedules, st.sampled_from([None, "2:4", "1:3"]),
)  # fmt: skip
def test_arrays_are_the_same_as_single_numbers(
    shapes: list[tuple[int, ...]], how: FoldSchedule, sparsity: str | None
) -> None:
    if sparsity:
        how = how._replace(dataflow="ws")
    options = {
        "hop_row": how.hop_row, "hop_col": how.hop_col, "mac_latency": how.mac_latency,
        "sparsity": sparsity,
    }  # fmt: skip
    m, n, k, batch, rows, columns = np.array(shapes).T
    found = gemm_cycles(m, n, k, rows, columns, *how[:3], batch=batch, **options)
    assert isinstance(found, np.ndarray)
    assert found.dtype == np.int64
    one_by_one = [
        gemm_cycles(*shape[:3], *shape[4:], *how[:3], batch=shape[3], **options) for shape in shapes
    ]
    assert found.tolist() == one_by_one


def test_arrays_broadcast() -> None:
    rows = np.array([8, 16, 32])
    table = gemm_cycles(np.array([[10], [1000]]), 64, 64, rows, rows[::-1])
    assert isinstance(table, np.ndarray)
    assert table.shape == (2, 3)
    assert table[1, 0] == gemm_cycles(1000, 64, 64, 8, 32)
    assert gemm_cycles([], 1, 1, 1, 1).shape == (0,)  # type: ignore[union-attr]
    assert isinstance(gemm_cycles(np.int32(3), 4, 5, 2, 2), int)


def test_huge_products() -> None:
    side = 10**9
    assert gemm_cycles(side, side, side, 1, 1) == side**3 + 1  # more than 63 bits
    fits = np.array([2 * 10**6])
    assert gemm_cycles(fits, fits, fits // 2, 1, 1) == [4 * 10**18 + 1]
    with pytest.raises(ConfigError, match="does not fit into 63 bits"):
        gemm_cycles(np.array([side]), side, side, 1, 1)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"m": 0}, "m must be a whole number of at least 1; found 0"),
        ({"n": 2.0}, "n must be whole numbers, found an array of float64"),
        ({"k": True}, "k must be a whole number of at least 1; found True"),
        ({"rows": [4, -1]}, "rows must be at least 1; found -1"),
        ({"m": [1, 2], "n": [1, 2, 3]}, r"do not broadcast: m \(2,\), n \(3,\)"),
        ({"m": np.array([2**63], np.uint64)}, "m must be at most"),
        ({"dataflow": "rs"}, "dataflow must be one of os, ws, is; found 'rs'"),
        ({"fold": "overlaped"}, "did you mean 'overlapped'"),
        ({"edge": "round"}, "edge must be one of exact, full"),
        ({"hop_row": 0}, "hop_row must be a whole number"),
        ({"batch": 0}, "batch must be"),
        ({"compat": "scale-sim"}, "compat must be 'scalesim' or None.*did you mean"),
        ({"compat": "scalesim", "hop_col": 2}, "no latency other than 1"),
        ({"compat": "scalesim", "batch": [1, 2]}, "knows no batch"),
        ({"sparsity": "4:2"}, "sparsity must be N:M"),
        ({"sparsity": "half"}, "sparsity must be N:M"),
        ({"sparsity": "2:4", "dataflow": "os"}, "sparsity needs the dataflow 'ws'"),
    ],
)
def test_bad_input(options: dict[str, object], message: str) -> None:
    arguments: dict[str, object] = {"m": 4, "n": 4, "k": 4, "rows": 4, "cols": 4}
    with pytest.raises(ConfigError, match=message):
        gemm_cycles(**(arguments | options))  # type: ignore[arg-type]


@settings(deadline=None)
@given(sizes, sizes, sizes, cells, cells, schedules)
def test_buffer_accesses_are_those_of_the_tiles(
    m: int, n: int, k: int, rows: int, columns: int, how: FoldSchedule
) -> None:
    found = systolic_gemm(m, n, k, rows, columns, *how[:3], batch=3)
    height, width, t = layout(how.dataflow, m, n, k)
    stationary = streamed = beside = written = 0
    for i in range(0, height, rows):
        for j in range(0, width, columns):
            r, c = min(rows, height - i), min(columns, width - j)
            stationary += r * c
            streamed += t * r
            beside += t * c
            written += r * c if how.dataflow == "os" else t * c
    expected = {
        "os": (streamed, beside), "ws": (streamed, stationary), "is": (stationary, streamed),
    }[how.dataflow]  # fmt: skip
    assert (found.a_reads, found.b_reads) == (3 * expected[0], 3 * expected[1])
    assert found.c_writes == 3 * written
    assert found.c_read_backs == 3 * (written - m * n)
    assert found.mapping_efficiency == pytest.approx(
        stationary / (found.row_folds * found.column_folds * rows * columns)
        if how.dataflow != "os"
        else m * n / (found.row_folds * found.column_folds * rows * columns)
    )
    assert found.utilisation == 3 * m * n * k / (found.cycles * rows * columns)
    assert 0 < found.utilisation <= 1
    assert found.to_dict()["spans"]["stream"] == found.spans.stream


def test_structured_sparsity_shortens_k() -> None:
    dense = systolic_gemm(100, 64, 250, 16, 16)
    sparse = systolic_gemm(100, 64, 250, 16, 16, sparsity="2:4")
    assert sparse.cycles == gemm_cycles(100, 64, 126, 16, 16)  # 62 blocks of 4, and 2 of the last
    assert (sparse.macs, sparse.dense_macs) == (100 * 64 * 126, dense.macs)
    assert sparse.utilisation <= 1
    assert sparse.a_reads == dense.a_reads  # every activation may meet a weight
    assert (sparse.b_reads, sparse.index_bits) == (126 * 64, 2)
    assert systolic_gemm(100, 64, 250, 16, 16, sparsity=(4, 4)).cycles == dense.cycles
