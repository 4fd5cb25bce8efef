"""Engines without measured shares: more of them are never slower, and what idles is said."""

from __future__ import annotations

import random
from functools import cache
from typing import Any

import pytest

from ridgeline.hardware import load_device
from ridgeline.hardware.device import Device
from ridgeline.kernels.single_op import gemm
from thoroughly import one_in

SEED = 20


@cache
def machine(arrays: bool, vector: bool, network: str = "") -> Device:
    """A TPU v2 with other engines: arrays, a vector unit that does products, or both."""
    base = {"achievable": [], "memory.hbm.latency": "100 ns"}
    engines: dict[str, Any] = {}
    if arrays:
        side = {"rows": 128, "columns": 64, "count": 4, "clock": "1 GHz"}
        if network:
            side["network"] = {"latency": "10 ns", "bandwidth": network}
        engines["mxu"] = {
            "kind": "systolic", "runs": ["matrix"], "accumulate": "fp32",
            "rates": {"bf16": f"{2e-3 * 128 * 64 * 4} TFLOP/s"},
            "energy": {"bf16": "flop.bf16"}, "array": {**side, "dataflows": ["ws", "os"]},
        }  # fmt: skip
    if vector:
        engines["vpu"] = {
            "kind": "vector", "runs": ["matrix", "vector"],
            "rates": {"bf16": "4 TFLOP/s", "fp32": "4 TFLOP/s"},
            "energy": {"bf16": "flop.bf16", "fp32": "flop.fp32"},
        }  # fmt: skip
    return load_device("tpu-v2", {**base, "engines": engines})


ARRAYS, VECTOR, BOTH = (True, False), (False, True), (True, True)
SHAPES = [
    tuple(int(2 ** random.Random(SEED + i).uniform(0, 12)) for i in range(j, j + 3))
    for j in range(0, 120, 3)
]


@pytest.mark.parametrize(("m", "n", "k"), one_in(4, SHAPES))
def test_a_device_with_two_engines_is_as_fast_as_the_faster(m: int, n: int, k: int) -> None:
    alone = [gemm(m, n, k, machine(*of), format="bf16").time_s for of in (ARRAYS, VECTOR)]
    assert gemm(m, n, k, machine(*BOTH), format="bf16").time_s == min(alone)


def test_what_idles_is_said() -> None:
    (note,) = [
        n for n in gemm(64, 64, 8192, machine(*ARRAYS), format="bf16").notes if "arrays work" in n
    ]
    assert note.startswith("1 of 4 arrays work")
    joined = machine(*ARRAYS, "100 GB/s")
    for found in (
        gemm(1024, 1024, 8192, machine(*ARRAYS), format="bf16"),  # all have something to do
        gemm(64, 64, 64, machine(*ARRAYS), format="bf16"),  # nothing could be cut
        gemm(64, 64, 8192, joined, format="bf16"),
    ):
        assert not any("arrays work" in note for note in found.notes)
        assert found.mapped is not None
        assert found.mapped["parts"]["b"] == 1  # there is one product


def test_memories_beside_each_array_are_said_to_be_counted_as_one() -> None:
    device = load_device("tpu-v2", {"memory.vmem.instances": 2})
    assert any("one beside each array" in note for note in gemm(8, 8, 8, device).notes)
