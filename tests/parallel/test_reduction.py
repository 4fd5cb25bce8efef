"""Gradients that are sent in a format of their own, and fp16 that is only in memory."""

from __future__ import annotations

import pytest

import ridgeline as rl
from ridgeline.errors import ConfigError
from ridgeline.parallel.emit.buckets import gradient_buckets, moved
from ridgeline.workload.graph import Role
from stacked import changed, stacked

MODEL = rl.load_model("mlp")


@pytest.mark.parametrize("precision", ["fp32", "fp16-mixed", "bf16-mixed", "fp16-autocast"])
@pytest.mark.parametrize("format_", ["bf16", "fp16"])
def test_half_of_the_bytes_are_sent_and_no_gradient_is_left_out(
    precision: str, format_: str
) -> None:
    graph = MODEL.training(2, precision)
    own, sent = (gradient_buckets(graph, 2**14, (), of) for of in ("", format_))
    names = [sorted(n for b in buckets for n in b.tensors) for buckets in (own, sent)]
    assert names[0] == names[1]
    made = sum(graph.tensors[name].bytes for name in names[0])
    assert all(sum(b.made_bytes for b in buckets) == made for buckets in (own, sent))
    assert sum(b.size_bytes for b in own) == made
    assert all(graph.tensors[n].format == "fp32" for n in names[0])
    assert sum(b.size_bytes for b in sent) == made / 2


def test_gradients_that_are_no_wider_stay_as_they_are() -> None:
    graph = MODEL.training(2, "flex16+5")
    assert gradient_buckets(graph, 2**14) == gradient_buckets(graph, 2**14, (), "fp16")


def test_casts_read_one_format_and_write_the_other() -> None:
    plan = stacked(global_batch=8, data=2, precision="fp32", gradients__reduce_dtype="fp16")
    graph = MODEL.training(4, "fp32")
    gradients = sum(t.bytes for t in graph.tensors.values() if t.role is Role.WEIGHT_GRADIENT)
    buckets = {"data": gradient_buckets(graph, plan.bucket_bytes, (), "fp16")}
    copied = moved(plan, graph, buckets)
    assert copied.size_bytes == 2 * (gradients + gradients / 2)
    also = changed(plan, gradients__bucket_copies=True)
    assert moved(also, graph, buckets) == copied


def test_the_network_carries_half_and_a_slow_one_takes_half_as_long() -> None:
    def step(reduction: str) -> rl.Result:
        plan = stacked(
            global_batch=8,
            data=2,
            precision="fp32",
            overlap__gradients=False,
            gradients__reduce_dtype=reduction,
        )
        return rl.simulate("alexnet", "pcie3-8gpu", plan)

    own, half = step(""), step("fp16")
    for link, size in own.traffic_bytes.items():
        if link not in own.details.cluster.device.memory:
            assert half.traffic_bytes[link] == pytest.approx(size / 2)
    ratio = half.time_s["exposed_communication"] / own.time_s["exposed_communication"]
    assert 0.45 < ratio < 0.6
    assert half.flops_per_step == own.flops_per_step


def test_both_executors_agree() -> None:
    plan = stacked(global_batch=16, data=4, precision="fp32", gradients__reduce_dtype="bf16")
    fast, slow = (rl.simulate(MODEL, "dgx1-v100", plan, reference=r) for r in (False, True))
    assert fast.step_time_s == pytest.approx(slow.step_time_s, rel=1e-9)


@pytest.mark.parametrize("sharding", [1, 2, 3])
def test_shared_gradients_are_not_sent_so(sharding: int) -> None:
    with pytest.raises(ConfigError, match="zero_stage=0"):
        stacked(global_batch=8, data=2, gradients__reduce_dtype="fp16", zero_stage=sharding)


def test_fp16_in_memory_multiplies_like_fp32_and_moves_half() -> None:
    """On a P40, whose fp16 is 64 times slower than its fp32 and not described."""
    wide, stored = (
        rl.simulate("resnet50", "p40", rl.Plan(global_batch=32, precision=precision))
        for precision in ("fp32", "fp16-stored")
    )
    assert stored.flops_per_step == wide.flops_per_step
    assert stored.time_s["compute"] == pytest.approx(wide.time_s["compute"], rel=0.05)
    assert stored.time_s["memory_stall"] < 0.65 * wide.time_s["memory_stall"]
    assert stored.memory_bytes["activations"] < 0.6 * wide.memory_bytes["activations"]
    assert stored.memory_bytes["weights"] > wide.memory_bytes["weights"]  # with their copies
