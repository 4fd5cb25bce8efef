"""Ranges by distance: farther is never narrower; what was left out is inside as often as said."""

from __future__ import annotations

import importlib.util
import itertools
import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from hypothesis import strategies as st

from ridgeline import catalog
from ridgeline.hardware import Device, load_device
from ridgeline.kernels.library.kernel_model import table
from ridgeline.parallel.plan.plan import Plan
from ridgeline.report.uncertainty import device_range, new_device_range
from ridgeline.report.uncertainty.device_range import (
    DISTANCES,
    distance_of,
    generation_of,
    range_of,
)
from ridgeline.report.uncertainty.distributions import model_error
from ridgeline.report.uncertainty.ground import ground_of
from ridgeline.simulation import simulate
from ridgeline.study.validate import shipped_files, validate
from thoroughly import sample_of

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


def _script(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, BENCHMARKS / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


leave_one_out = _script("leave_one_out")
fit_kernels = _script("fit_kernels")
fit_product_library = _script("fit_product_library")
device_ranges = _script("device_ranges")


def _another(name: str, **more: object) -> Device:
    return load_device(name).model_copy(update={"name": "another", **more})


def test_boards_of_one_architecture_are_one_generation() -> None:
    of = {name: generation_of(load_device(name)) for name in ("h100-sxm5-80gb", "h200-sxm", "b200",
          "gb300", "l40s", "a100-sxm4-40gb", "a100-pcie-80gb", "mi300x")}  # fmt: skip
    assert of["h100-sxm5-80gb"] == of["h200-sxm"]
    assert of["a100-sxm4-40gb"] == of["a100-pcie-80gb"]
    assert of["b200"] == of["gb300"]
    assert len({of["h200-sxm"], of["b200"], of["l40s"], of["a100-pcie-80gb"], of["mi300x"]}) == 5


@pytest.mark.parametrize("kind", sorted(device_range._devices()))
def test_a_farther_device_never_has_a_narrower_range(kind: str) -> None:
    found = device_range._ranges()
    ends = []
    for distance in DISTANCES:
        error = found[kind, "", distance]
        ends.append((error.median - error.low * 1.645, error.median + error.high * 1.645))
    for nearer, farther in itertools.pairwise(ends):
        assert farther[0] <= nearer[0] + 1e-5
        assert farther[1] >= nearer[1] - 1e-5


def test_distances_follow_from_who_was_measured() -> None:
    kind = "framework-gemm"
    h200 = load_device("h200-sxm")
    assert distance_of(kind, h200) == "own"
    assert distance_of(kind, h200, left_out=True) == "generation"
    assert distance_of(kind, _another("h200-sxm")) == "generation"
    assert distance_of(kind, load_device("gtx-1080ti")) in {"generation", "vendor"}
    assert distance_of(kind, _another("h200-sxm", vendor="Nobody")) == "other"
    assert distance_of("convergence", h200) is None
    widths = []
    for device in (h200, _another("h200-sxm"), _another("h200-sxm", vendor="Nobody")):
        error = range_of(kind, device)
        assert error is not None
        low, high = error.interval(1.0)
        widths.append(np.log(high / low))
    assert widths[0] <= widths[1] < widths[2]


def test_kinds_without_devices_have_one_range() -> None:
    assert range_of("convergence", None) == model_error("convergence")
    assert range_of("convergence", load_device("t4"), left_out=True) is None


def test_shipped_tables_name_shipped_devices() -> None:
    for kind, measured in device_range._devices().items():
        assert set(measured) <= set(catalog.names("devices")), kind
        for name, (generation, vendor) in measured.items():
            device = load_device(name)
            assert (generation, vendor) == (generation_of(device), device.vendor.lower())
    for kind, left_out, _ in device_range._ranges():
        assert left_out in ("", *device_range._devices()[kind])


@pytest.mark.parametrize("suite", ["softmax", "norm", "elementwise"])
def test_ranges_without_a_device_hold_as_often_as_stated(suite: str) -> None:
    summary = validate(suite).summary
    assert summary.coverage is not None
    assert summary.coverage_left_out is not None
    assert 0.85 <= summary.coverage <= 0.97
    assert 0.80 <= summary.coverage_left_out <= 0.97


def test_a_step_on_a_device_that_nobody_measured_is_stated_wider() -> None:
    plan = Plan(global_batch=64, precision="fp16-mixed")
    widths = {}
    for name in ("v100-sxm2-16gb", "l40"):
        result = simulate("resnet50", name, plan, software="pytorch-amp-2021")
        step = ground_of(result.details).step
        assert step is not None
        widths[name] = step.distance, step.error.low + step.error.high
        if step.distance == "own":
            assert new_device_range(result) is not None
            assert "as wide as" not in step.text
        else:
            assert new_device_range(result) is None
            assert "left-out devices" in step.text
    assert widths["v100-sxm2-16gb"][0] == "own"
    assert widths["l40"][0] != "own"
    assert widths["l40"][1] >= widths["v100-sxm2-16gb"][1]


@sample_of(
    4,
    15,
    seed=st.integers(0, 10**6),
    between=st.floats(0.02, 0.4),
    within=st.floats(0.02, 0.4),
)
def test_new_devices_of_a_known_law_are_inside_nine_times_in_ten(
    seed: int, between: float, within: float
) -> None:
    """Errors are a device's offset and a row's; sides are of 16 devices, tested on 300 others."""
    rng = np.random.default_rng(seed)

    def rows(devices: int) -> object:
        offset = np.repeat(rng.normal(0, between, devices), 40)
        error = offset + rng.normal(0, within, len(offset))
        name = np.repeat([f"d{i}" for i in range(devices)], 40)
        same = np.full(len(error), "x")
        return device_ranges.Errors(error, np.zeros(len(error)), name, name, same, same)

    known, new = rows(16), rows(300)
    made, share = device_ranges.conformal(known, known.device)
    assert share >= 0.9
    assert 0.78 <= float(new.weight @ made.inside(new)) <= 0.995


def test_sides_around_others_hold_both() -> None:
    near, far = device_ranges.Sides(0.1, 0.2, 0.3), device_ranges.Sides(-0.2, 0.1, 0.1)
    both = far.around(near)
    assert both.ends[0] <= min(near.ends[0], far.ends[0])
    assert both.ends[1] == pytest.approx(max(near.ends[1], far.ends[1]))
    assert both.median == far.median


def test_kernels_are_predicted_without_a_row_of_their_own_device() -> None:
    files = [path for path in shipped_files("norm") if path.name.endswith(".gz")]
    calls, lines = fit_kernels.read_calls("norm", files), table("norm")
    mine = calls.devices == "t4"
    slower = replace(calls, measured_s=np.where(mine, 3.0, 1.0) * calls.measured_s)
    errors, of_slower = (
        fit_kernels.without(each, lines, calls.devices, 2) for each in (calls, slower)
    )
    assert mine.any()
    np.testing.assert_allclose(3.0 * (1.0 + of_slower[mine]), 1.0 + errors[mine])
    assert not np.allclose(of_slower[~mine], errors[~mine])  # others are fitted to it


def test_places_of_calls_are_those_of_their_rows() -> None:
    files = [path for path in shipped_files("cast") if path.name.endswith(".gz")]
    calls = fit_kernels.read_calls("cast", files)
    assert len(set(calls.places.tolist())) == len(calls)
    kept = calls.where(calls.devices == "l40s")
    assert set(kept.places.tolist()) < set(calls.places.tolist())


def test_few_devices_that_agree_have_narrower_ranges_than_few_that_do_not() -> None:
    def made(outlier: float) -> device_ranges.Sides:
        random = np.random.default_rng(3)
        device = np.repeat(["a", "b", "c", "d", "e"], 200)
        error = random.normal(0.0, 0.1, len(device))
        error[device == "e"] += outlier
        same = np.zeros(len(device))
        rows = device_ranges.Errors(error, same, device, device, device, device)
        found = device_ranges.conformal(rows, device)
        assert found is not None
        sides, share = found
        assert share >= 0.9 or sides == device_ranges.sides_of(rows, 0.05 * 5 / 7, 1.0)
        return sides

    assert made(0.0).high < 0.13
    assert made(1.0).high > 0.5
