"""Algorithms of convolutions: what they hold, and which one a library takes."""

import csv
from collections import Counter
from importlib import resources

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ridgeline.cli import execute
from ridgeline.errors import RidgelineError
from ridgeline.hardware import load_device
from ridgeline.kernels.cudnn_fp32_conv import (
    LIBRARIES,
    UNFOLDING,
    Rates,
    algorithms,
    fastest,
    workspace_bytes,
)
from ridgeline.parallel.memory.liveness_profile import memory
from ridgeline.parallel.plan.plan import Plan
from ridgeline.workload.files import load_model
from ridgeline.workload.graph import Conv, Pass

DIRECTIONS = (Pass.FORWARD, Pass.INPUT_GRADIENT, Pass.WEIGHT_GRADIENT)
RATES = Rates(5e12, 250e9)


@st.composite
def convolutions(draw: st.DrawFn) -> Conv:
    side, taps = draw(st.integers(1, 300)), draw(st.sampled_from([1, 2, 3, 5, 7]))
    groups = draw(st.sampled_from([1, 1, 2]))
    return Conv(
        batch=draw(st.integers(1, 64)),
        c_in=groups * draw(st.integers(1, 64)),
        h_in=max(side, taps),
        w_in=max(draw(st.integers(1, 300)), taps),
        c_out=groups * draw(st.integers(1, 64)),
        r=taps,
        s=taps,
        stride=draw(st.sampled_from([(1, 1), (2, 2), (1, 2)])),
        padding=draw(st.sampled_from([(0, 0), (taps // 2, taps // 2), (taps, taps)])),
        dilation=(1, 1),
        groups=groups,
    )


@settings(max_examples=60)
@given(convolutions(), st.sampled_from(DIRECTIONS), st.sampled_from(LIBRARIES), st.data())
def test_more_room_never_slows_and_something_always_fits(
    loops: Conv, direction: Pass, library: str, data: st.DataObject
) -> None:
    every = algorithms(loops, direction, RATES, library)  # type: ignore[arg-type]
    assert all(a.workspace_bytes >= 0 and a.time_s > 0 for a in every)
    assert len({a.name for a in every}) == len(every)
    room = data.draw(st.integers(0, max(a.workspace_bytes for a in every)))
    tight = fastest(loops, direction, RATES, library, room)  # type: ignore[arg-type]
    free = fastest(loops, direction, RATES, library)  # type: ignore[arg-type]
    least = min(a.workspace_bytes for a in every)
    assert least == 0 or library in UNFOLDING  # these have their buffer of columns or do nothing
    assert tight.workspace_bytes <= max(room, least)
    assert free.time_s <= tight.time_s
    twice = Rates(2 * RATES.flop_per_s, 2 * RATES.bytes_per_s)
    assert fastest(loops, direction, twice, library).time_s == pytest.approx(free.time_s / 2)  # type: ignore[arg-type]


@settings(max_examples=40)
@given(convolutions(), st.sampled_from(DIRECTIONS))
def test_spectra_are_those_that_numpy_makes(loops: Conv, direction: Pass) -> None:
    """Real planes padded to powers of two, transformed by NumPy, each plane by itself."""
    found = {a.name: a.workspace_bytes for a in algorithms(loops, direction, RATES)}
    slides = loops.stride == (1, 1) and loops.groups == 1 and loops.padding[0] < loops.r
    if not slides:
        assert not {"fft", "fft-tiling", "winograd", "winograd-nonfused"} & found.keys()
        return
    planes = loops.batch * (loops.c_in + loops.c_out), loops.c_in * loops.c_out
    padded = [n + 2 * p for n, p in zip((loops.h_in, loops.w_in), loops.padding, strict=True)]
    sides = [next(1 << e for e in range(20) if 1 << e >= n) for n in padded]
    if max(sides) > 256:
        assert "fft" not in found
    else:
        assert found["fft"] == _spectrum_bytes(*sides) * sum(planes)
    height, width = (
        (loops.h_in, loops.w_in) if direction is Pass.INPUT_GRADIENT else (loops.h_out, loops.w_out)
    )
    step = 32 - loops.r + 1  # results that a tile of 32 gives
    tiles = len(range(0, height, step)) * len(range(0, width, step))
    assert found["fft-tiling"] == _spectrum_bytes(32, 32) * (planes[0] * tiles + planes[1])


def _spectrum_bytes(height: int, width: int) -> int:
    return np.fft.rfft2(np.zeros((height, width))).astype(np.complex64).nbytes


def test_the_fastest_is_what_libraries_measured_to_be() -> None:
    """DeepBench names the forward algorithm that cuDNN found by running all of them."""
    devices = {
        "NV_TitanX": "titan-x-maxwell",
        "NV_P100": "p100-pcie",
        "NV_TitanX_Pascal": "titan-x-pascal",
        "NV_V100": "v100-pcie-16gb",
    }
    text = resources.files("ridgeline.study.validate").joinpath("data/kernels.csv").read_text()
    right: Counter[bool] = Counter()
    for row in csv.DictReader(text.splitlines()):
        known = row["kind"] == "conv" and row["device"] in devices and row["algo"]
        if not known or (row["precision"], row["pass_"]) != ("fp32", "fwd"):
            continue
        loops = _loops(row)
        rates = Rates.of(load_device(devices[row["device"]]))
        ours = fastest(loops, Pass.FORWARD, rates).name
        right[_family(ours) == _family(row["algo"])] += 1
    assert right.total() > 200
    assert right[True] / right.total() > 0.9


def _loops(row: dict[str, str]) -> Conv:
    def whole(name: str) -> int:
        return int(float(row[name]))

    return Conv(
        whole("batch"), whole("C"), whole("H"), whole("W"), whole("Kout"), whole("R"), whole("S"),
        (whole("stride_h"), whole("stride_w")), (whole("pad_h"), whole("pad_w")),
    )  # fmt: skip


def _family(name: str) -> str:
    return next(f for f in ("gemm", "fft", "winograd") if f in name.lower())


def test_work_space_is_held_while_its_convolution_runs() -> None:
    device = load_device("titan-x-maxwell")
    plan = Plan(global_batch=16, precision="fp32")
    without, beside = memory("vgg16", plan), memory("vgg16", plan, convolutions=device)
    spaces = workspace_bytes(without.graph, device)
    extra = (beside.held_bytes - without.held_bytes).sum(axis=1)
    assert extra.tolist() == [spaces.get(op.name, 0) for op in without.graph.ops]
    assert max(spaces.values()) > 0
    mixed = load_model("vgg16").training(16, "fp16-mixed")
    assert not workspace_bytes(mixed, device)
    assert execute(["memory", "vgg16", "--batch", "16", "--convolutions", "titan-x-maxwell"]) == 0


def test_an_operation_that_does_not_fit_takes_less_space() -> None:
    device = load_device("titan-x-maxwell")
    small = load_device("titan-x-maxwell", {"memory.gddr.capacity.value": "2 GiB"})
    graph = load_model("vgg16").training(64, "fp32")
    roomy, tight = workspace_bytes(graph, device), workspace_bytes(graph, small)
    assert max(tight.values()) < max(roomy.values())


def test_unknown_libraries_and_machines_without_fp32_are_refused() -> None:
    with pytest.raises(RidgelineError, match=r"'cudnn3'; did you mean 'cudnn"):
        algorithms(Conv(1, 1, 8, 8, 1, 3, 3), Pass.FORWARD, RATES, "cudnn3")  # type: ignore[arg-type]
    with pytest.raises(RidgelineError, match="no engine computes fp32 products"):
        Rates.of(load_device("eyeriss"))
