"""The achievable shares: the estimator, and that the shipped figures are what it prints."""

from __future__ import annotations

import csv
import functools
import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ridgeline.hardware import load_device
from ridgeline.study.calibrate import kernel_shares
from ridgeline.study.validate import shipped
from thoroughly import one_in

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


def _script(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, BENCHMARKS / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


published_kernels = _script("published_kernels")
calibrate_devices = _script("calibrate_devices")
calibrate_recurrences = _script("calibrate_recurrences")
calibrate_attention = _script("calibrate_attention")
DEVICES = sorted(published_kernels.SOURCES)


def test_measurements_are_complete_and_cited() -> None:
    with shipped("gemm").open(newline="", encoding="utf-8") as stream:
        table = list(csv.DictReader(stream))
    assert len({row["id"] for row in table}) == len(table)
    assert len([row for row in table if row["device"] == "NV_V100"]) == 864 + 318
    for row in table:
        assert float(row["time_ms"]) > 0
        assert "@" in row["source"]


calibrated = functools.cache(calibrate_devices.calibrate)


@pytest.mark.parametrize("name", one_in(4, DEVICES))
def test_shipped_shares_are_what_the_script_prints(name: str) -> None:
    shipped = [
        row
        for row in load_device(name).achievable
        if row.op != "recurrence" and row.fraction.basis == "measured"
    ]
    estimated = calibrated(name)
    assert len(shipped) == len(estimated)
    for row, fraction in zip(shipped, estimated, strict=True):
        stored = "" if row.stored is None else f"{row.stored}-as-"
        assert (row.engine, stored + row.format, row.op, row.pass_, row.filter) == (
            fraction.engine,
            fraction.format,
            fraction.op,
            fraction.pass_,
            fraction.filter,
        )
        assert row.fraction.value == pytest.approx(fraction.value, abs=0.0006)
        assert (row.fraction.source, row.fraction.basis) == ("deepbench", "measured")
        assert (row.block is not None) == fraction.blocked
        launch_s = load_device(name).launch_latency.value
        fixed_s = launch_s if row.latency is None else row.latency.value
        assert fixed_s == pytest.approx(launch_s + (fraction.more_s or 0.0), abs=6e-9)


@pytest.mark.parametrize("name", ["v100-sxm2-16gb", "mi25"])
def test_shipped_recurrences_are_what_the_script_prints(name: str) -> None:
    shipped = [
        row
        for row in load_device(name).achievable
        if row.op == "recurrence" and row.fraction.basis == "measured"
    ]
    for rows in calibrate_recurrences.layers(name):
        (row,) = [r for r in shipped if (r.format, r.pass_) == (rows.format, rows.pass_)]
        fraction, step_latency_s = calibrate_recurrences.best(rows)
        assert row.step_latency is not None
        assert row.fraction.value == pytest.approx(fraction, abs=0.0006)
        assert row.step_latency.value == pytest.approx(step_latency_s, abs=0.6e-6)


@pytest.mark.parametrize("name", DEVICES)
def test_a_general_class_never_hides_a_specific_one(name: str) -> None:
    rows = [row for row in load_device(name).achievable if row.fraction.basis == "measured"]
    for position, row in enumerate(rows):
        for later in rows[position + 1 :]:
            classes = [(one.engine, one.format, one.stored, one.op) for one in (row, later)]
            same = classes[0] == classes[1]
            assert not (
                same and row.pass_ in (None, later.pass_) and row.filter in (None, later.filter)
            )


@pytest.mark.parametrize("name", DEVICES)
def test_shares_are_plausible(name: str) -> None:
    # direct products stay below the peak; Winograd's F(4 x 4) does 4 times less than is counted
    for row in load_device(name).achievable:
        assert 0.1 < row.fraction.value < (4 if row.block is not None else 2.25)
        assert row.fraction.value < 1 or row.filter != "1x1"
        if row.op == "gemm":
            assert row.fraction.value < 1


@pytest.mark.parametrize("name", DEVICES)
def test_large_products_are_predicted_well(name: str) -> None:
    # The library of the Maxwell board's time leaves more unexplained: it is the one exception.
    most = 0.14 if name == "titan-x-maxwell" else 0.1
    for fraction in calibrated(name):
        if fraction.op == "gemm":
            assert fraction.n_counted > 50
            assert fraction.median_abs_error < most
            assert abs(fraction.median_error) < 0.1


@given(
    st.lists(
        st.tuples(st.floats(0.01, 2), st.integers(1, 50)),
        min_size=1,
        max_size=30,
    )
)
def test_the_weighted_median_is_the_median_of_repeated_values(
    values: list[tuple[float, int]],
) -> None:
    repeated = sorted(value for value, weight in values for _ in range(weight))
    assert kernel_shares.weighted_median(values) == repeated[(len(repeated) - 1) // 2]


@given(fraction=st.floats(0.1, 1.5), sizes=st.lists(st.integers(10, 400), min_size=3, max_size=20))
def test_kernels_that_follow_the_model_give_its_fraction_back(
    fraction: float, sizes: list[int]
) -> None:
    kernels = [
        kernel_shares.KernelShare(
            engine="e",
            format="fp32",
            op="gemm",
            pass_=None,
            filter=None,
            flops=int(size * 1e9),
            arithmetic_s=size * 1e-4,
            memory_s=size * 1e-6,
            latency_s=2e-6,
            measured_s=2e-6 + size * 1e-4 / fraction,
        )
        for size in sizes
    ]
    result = kernel_shares.class_share(kernels, None, None)
    assert result.value == pytest.approx(fraction)
    assert result.median_abs_error == pytest.approx(0, abs=1e-9)
    assert result.n_counted == len(kernels)


def test_small_kernels_and_those_bound_by_traffic_do_not_count() -> None:
    def kernel(flops: float, memory_s: float) -> bool:
        counts = kernel_shares.KernelShare(
            "e", "fp32", "gemm", None, None, int(flops), 1e-3, memory_s, 2e-6, 2e-3
        ).counts
        assert isinstance(counts, bool)
        return counts

    assert kernel(2e9, 1e-4)
    assert not kernel(0.5e9, 1e-4)
    assert not kernel(2e9, 2.5e-3)


def test_devices_say_what_sweeps_of_attention_give() -> None:
    for (name, pass_), fit in calibrate_attention.fits().items():
        of_gradient = {"forward": "forward", "backward": "input-gradient"}[pass_]
        own = load_device(name).achievable[::-1]  # the first of a format counts, then its base's
        rows = {row.format: row for row in own if row.ramp and row.pass_ == of_gradient}
        assert set(rows) == {"bf16", "fp16"}
        for row in rows.values():
            assert row.ramp.fraction.value == pytest.approx(fit.share, abs=0.0051)
            assert row.ramp.tiles.value == pytest.approx(fit.tiles, abs=0.051)
        assert abs(fit.residuals).max() < 0.23
