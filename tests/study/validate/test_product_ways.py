"""Least times of frameworks' products: rows by blocks of threads, and sums that are not split."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ridgeline.hardware import load_device
from ridgeline.study.csv_file import read_csv
from ridgeline.study.validate import gemm
from ridgeline.study.validate.measured import KernelTimeBounds, PricedRow, priced
from ridgeline.study.validate.product_ways import BLOCK, product_way
from ridgeline.study.validate.rows import MAX_BYTES, SHIPPED, MeasuredRow
from ridgeline.workload.kernel_graphs import linear_graph, product_formats


def _priced(m: int, n: int, k: int, framework: str, format_: str, device: str) -> PricedRow:
    values = {
        "device_key": device, "framework": framework, "version": "1", "format": format_,
        "time_us": "1", "source": "a test", "m": str(m), "n": str(n), "k": str(k),
    }  # fmt: skip
    (found,) = priced([MeasuredRow("made.csv", 1, values)], gemm.call)
    assert isinstance(found, PricedRow)
    return found


def test_the_line_of_the_most_rows_counts_and_of_these_that_of_the_generation() -> None:
    few, many = product_way("vllm", "fp8", "hopper", 1), product_way("vllm", "fp8", "hopper", 129)
    assert few.k_s > 0.0 == few.share
    assert many.share > 0.0
    assert product_way("vllm", "fp8", "nobody's", 4096) == product_way("vllm", "fp8", "", 129)
    assert product_way("vllm", "fp8", "ada", 1) != product_way("vllm", "fp8", "", 1)
    assert product_way("nobody", "bf16").k_s == 0.0


def test_lines_are_better_on_devices_or_shapes_left_out() -> None:
    lines = [row for _, row in read_csv(SHIPPED / "product_ways.csv", MAX_BYTES)]
    fitted = [row for row in lines if row["error_left_out"]]
    assert len(fitted) > len(lines) / 2
    for row in lines:
        bare = all(float(row[name]) == 0 for name in ("k_ns", "share", "element_ns"))
        assert bare == (not row["error_left_out"])
    for row in fitted:
        assert float(row["error_left_out"]) < 0.96 * float(row["error_before"])


def test_a_long_sum_takes_its_time_however_few_outputs_there_are() -> None:
    k, way = 65536, product_way("trtllm", "nvfp4", "blackwell", 17)
    one, more = (_priced(m, 512, k, "trtllm", "nvfp4", "b200") for m in (20, 80))
    assert one.kernels_s == pytest.approx(more.kernels_s, rel=0.02)
    assert one.kernels_s >= k * way.k_s > 0.0
    assert _priced(4096, 4096, 4096, "trtllm", "nvfp4", "b200").kernels_s > 4096 * way.k_s


@given(
    m=st.integers(129, 4096), n=st.integers(1, 4096), k=st.integers(1, 65536),
    share=st.floats(0.1, 1.0),
)  # fmt: skip
@settings(max_examples=50, deadline=None)
def test_blocks_take_their_share_of_a_processor_s_peak_round_by_round(
    m: int, n: int, k: int, share: float
) -> None:
    """Counted block by block: each goes to the processor that is free first."""
    device, graph = load_device("h200-sxm"), linear_graph(m, n, k, product_formats("fp8"))
    blocks = -(-m // BLOCK) * -(-n // BLOCK)
    block_s = 2 * BLOCK * BLOCK * k / (share * 1978.9e12 / 132)
    free_s = [0.0] * 132
    for _ in range(blocks):
        first = free_s.index(min(free_s))
        free_s[first] += block_s
    least = KernelTimeBounds(blocks=blocks, block_flops=2.0 * BLOCK * BLOCK * k, share=share)
    assert least.sums_s(graph, device) == pytest.approx(max(free_s), rel=1e-3)


def test_rows_take_their_time_however_short_they_are() -> None:
    rows, processors = 32768, 132
    short, longer = (_priced(rows, 32, k, "vllm", "fp8", "h200-sxm") for k in (32, 128))
    assert short.device_s > rows * 0.96e-6 / processors
    assert longer.device_s < 1.1 * short.device_s


def test_bytes_of_rows_are_not_counted_twice() -> None:
    device, graph = load_device("h200-sxm"), linear_graph(64, 64, 2**16, product_formats("fp8"))
    assert KernelTimeBounds(64, 1e-9).more_of_rows_s(graph, device) == 0.0
    assert KernelTimeBounds(64, 0.0).more_of_rows_s(graph, device) == 0.0
    assert KernelTimeBounds(2**20, 1e-6).more_of_rows_s(graph, device) > 0.0
    assert KernelTimeBounds(1, number_s=1e-3).more_of_rows_s(graph, device) == pytest.approx(
        1e-3, rel=0.01
    )  # a row is not divided among processors
