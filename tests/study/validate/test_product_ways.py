"""Least times of frameworks' products: rows by blocks of threads, and sums that are not split."""

from __future__ import annotations

import pytest

from ridgeline.hardware import load_device
from ridgeline.study.validate import gemm
from ridgeline.study.validate.measured import LeastTimes, PricedRow, priced
from ridgeline.study.validate.product_ways import product_way
from ridgeline.study.validate.rows import MeasuredRow
from ridgeline.workload.kernel_graphs import linear_graph, product_formats


def _priced(m: int, n: int, k: int, framework: str, format_: str, device: str) -> PricedRow:
    values = {
        "device_key": device, "framework": framework, "version": "1", "format": format_,
        "time_us": "1", "source": "a test", "m": str(m), "n": str(n), "k": str(k),
    }  # fmt: skip
    (found,) = priced([MeasuredRow("made.csv", 1, values)], gemm.call)
    assert isinstance(found, PricedRow)
    return found


def test_a_generation_s_line_counts_before_the_general_one() -> None:
    general, own = product_way("vllm", "fp8"), product_way("vllm", "fp8", "ada")
    assert own.k_s > general.k_s
    assert product_way("vllm", "fp8", "hopper") == general
    assert product_way("nobody", "bf16").k_s == 0.0


def test_a_long_sum_takes_its_time_however_few_outputs_there_are() -> None:
    one, more = (_priced(m, 512, 65536, "trtllm", "nvfp4", "b200") for m in (2, 80))
    assert one.kernels_s == more.kernels_s == pytest.approx(65536 * 1.85e-9)
    assert _priced(4096, 4096, 4096, "trtllm", "nvfp4", "b200").kernels_s > 4096 * 1.85e-9


def test_rows_take_their_time_however_short_they_are() -> None:
    rows, processors = 32768, 132
    short, longer = (_priced(rows, 32, k, "vllm", "fp8", "h200-sxm") for k in (32, 128))
    assert short.device_s > rows * 0.96e-6 / processors
    assert longer.device_s < 1.1 * short.device_s


def test_bytes_of_rows_are_not_counted_twice() -> None:
    device, graph = load_device("h200-sxm"), linear_graph(64, 64, 2**16, product_formats("fp8"))
    assert LeastTimes(64, 1e-9).more_of_rows_s(graph, device) == 0.0
    assert LeastTimes(64, 0.0).more_of_rows_s(graph, device) == 0.0
    assert LeastTimes(2**20, 1e-6).more_of_rows_s(graph, device) > 0.0
