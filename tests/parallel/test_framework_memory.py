"""What frameworks hold besides: formats of gradients, buffers, weights that stay gathered."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import ridgeline as rl
from ridgeline.errors import ConfigError
from ridgeline.parallel.emit.grad_accumulation import (
    copied,
    narrow_gradients,
    with_gradients,
    with_narrow_gradients,
)
from ridgeline.parallel.emit.zero import with_sharding
from ridgeline.parallel.memory.liveness_profile import memory, model_states
from ridgeline.workload.autodiff import weight_gradients
from ridgeline.workload.graph import Pass, Role
from ridgeline.workload.liveness import memory_entries
from stacked import changed, stacked
from thoroughly import sample_of

SHAPE = {"layers": 4, "hidden": 256, "attention.heads": 4, "sequence": 64, "vocabulary": 512}
NODE = "dgx1-v100"


def step(reference: bool = False, **fields: object) -> rl.Result:
    given_ = {"global_batch": 16, "micro_batch": 1, "precision": "fp16-mixed", **fields}
    return rl.simulate(rl.load_model("gpt2", SHAPE), NODE, stacked(**given_), reference=reference)


def first(result: rl.Result, kind: str) -> int:
    """Bytes of one kind that the first rank holds when the step begins."""
    timeline = result.details.timeline
    return int(timeline.memory_profile(0)[1][0, timeline.program.memory_kinds.index(kind)])


def most(result: rl.Result, kind: str, rank: int = 0) -> int:
    """Most bytes of one kind that a rank holds."""
    timeline = result.details.timeline
    column = timeline.program.memory_kinds.index(kind)
    return int(timeline.memory_profile(rank)[1][:, column].max())


@settings(max_examples=20, deadline=None)
@given(
    widths=st.lists(st.integers(1, 64), min_size=1, max_size=5),
    precision=st.sampled_from(["fp16-mixed", "bf16-mixed", "fp32"]),
    optimizer=st.sampled_from(["sgd", "sgd-momentum", "adam"]),
)
def test_narrow_gradients_are_those_of_the_copies(
    widths: list[int], precision: str, optimizer: str
) -> None:
    """The same ops with the same tensors, the casts moved; updates get what they got."""
    model = rl.load_model("mlp", {"widths": [*widths, 10], "optimizer": optimizer})
    graph = model.training(2, precision)
    late = with_narrow_gradients(graph)
    assert {op.name for op in late.ops} == {op.name for op in graph.ops}
    assert len(late.ops) == len(graph.ops)
    assert late.tensors == graph.tensors
    assert set(weight_gradients(late).values()) == narrow_gradients(graph) | (
        set(weight_gradients(graph).values())
        - {
            op.outputs[0]
            for op in graph.ops
            if op.inputs and op.inputs[0] in narrow_gradients(graph)
        }
    )
    made: set[str] = set()
    for op in late.ops:  # no gradient is read before it is made
        read = {n for n in op.inputs if late.tensors[n].role is Role.WEIGHT_GRADIENT}
        assert read <= made
        made.update(op.outputs)
    passes = [op.pass_ is Pass.UPDATE for op in late.ops]
    assert passes == sorted(passes)


@pytest.mark.parametrize("sharding", [0, 1])
def test_sums_of_gradients_take_two_four_or_six_bytes(sharding: int) -> None:
    """Of every parameter that is computed with in 16 bits, from the beginning on."""
    held = {
        how: first(step(data=4, zero_stage=sharding, gradients__main_grads=how), "gradients")
        for how in ("narrow", "wide", "both")
    }
    graph = rl.load_model("gpt2", SHAPE).training(1, "fp16-mixed")
    cast = sum(graph.tensors[name].elements for name in narrow_gradients(graph))
    assert held["both"] - held["wide"] == held["wide"] - held["narrow"] == 2 * cast
    every = sum(graph.tensors[name].bytes for name in weight_gradients(graph).values())
    assert held["wide"] == every


def test_narrow_gradients_are_sent_in_half_the_bytes() -> None:
    wide, narrow = (step(data=4, gradients__main_grads=how) for how in ("wide", "narrow"))
    graph = rl.load_model("gpt2", SHAPE).training(1, "fp16-mixed")
    every = sum(graph.tensors[name].bytes for name in weight_gradients(graph).values())
    cast = sum(graph.tensors[name].elements for name in narrow_gradients(graph))
    sent = [
        sum(size for link, size in r.traffic_bytes.items() if "nvlink" in link)
        for r in (wide, narrow)
    ]
    assert sent[1] / sent[0] == pytest.approx(1 - 2 * cast / every, rel=0.1)
    assert narrow.step_time_s < wide.step_time_s


def test_zero_counts_sixteen_bytes_a_parameter() -> None:
    """arXiv:1910.02054, section 3.1: 2 + 2 + 12, as DeepSpeed's fp16 has them on one device."""
    model = rl.load_model("mlp", {"widths": [512, 512, 512], "bias": False, "optimizer": "adam"})
    plan = stacked(
        global_batch=4, micro_batch=1, precision="fp16-mixed", gradients__main_grads="narrow"
    )
    before = memory(model, plan).held_bytes[0]
    states = model_states(model.training(1, "fp16-mixed"))
    kinds = memory(model, plan).kinds
    held = {kind: int(before[kinds.index(kind)]) for kind in kinds}
    assert held["gradients"] == states["gradients"]
    assert held["weights"] + held["optimizer"] == states["weights"] + states["optimizer"]


@sample_of(3, 8, stages=st.sampled_from([2, 4]), more=st.integers(0, 6))
def test_buffers_are_there_for_every_micro_batch_that_may_be(stages: int, more: int) -> None:
    """One more buffer is one more micro-batch under way; the last stage has none."""
    fields = {"pipeline": stages, "recompute": "full"}
    free, fixed, next_ = (
        step(pipeline__buffers_per_stage=n / stages, **fields)
        for n in (0, stages + more, stages + more + 1)
    )
    size = 64 * 256 * 2 * 4 // stages  # inputs of the layers of a stage
    for rank in range(stages):
        a, b, c = (most(result, "activations", rank) for result in (free, fixed, next_))
        if rank == stages - 1:
            assert a == b == c
            continue
        assert c - b >= size
        assert b - a == (more + rank) * (c - b)


def test_too_few_buffers_are_refused() -> None:
    with pytest.raises(ConfigError, match="allowed: 0, or at least as many"):
        stacked(global_batch=16, pipeline=4, micro_batch=1, pipeline__buffers_per_stage=3 / 4)
    with pytest.raises(ConfigError, match="not modelled together"):
        stacked(
            global_batch=16,
            pipeline=4,
            micro_batch=1,
            pipeline__buffers_per_stage=9,
            schedule="interleaved",
            virtual_stages=2,
        )


def test_the_last_block_and_the_root_stay_gathered() -> None:
    """They are sent once, and held from one pass to the other."""
    fields = {"data": 4, "zero_stage": 3, "gradients__bucket": "1 B"}
    again, stay = (step(zero__reshard_after_forward=how, **fields) for how in ("all", "blocks"))
    graph = rl.load_model("gpt2", SHAPE).training(1, "fp16-mixed")

    def copies(words: str) -> int:
        return sum(
            t.bytes
            for t in graph.tensors.values()
            if t.name.endswith(".fp16") and t.name.startswith(words)
        )

    block, every = copies("blocks.3."), copies("")
    outside = every - sum(copies(f"blocks.{k}.") for k in range(4))
    held = [most(r, "workspace") for r in (again, stay)]
    assert held[1] >= held[0]
    assert stay.step_time_s <= again.step_time_s
    sent = [sum(v for k, v in r.traffic_bytes.items() if "nvlink" in k) for r in (again, stay)]
    assert sent[0] > sent[1]
    assert block + outside > 0
    assert np.isclose((sent[0] - sent[1]) / sent[0], 0.1, atol=0.1)


@pytest.mark.parametrize("regather", ["all", "blocks"])
@pytest.mark.parametrize("bucket_bytes", [1.0, 1e5])
def test_what_is_gathered_is_copied_out_of_its_buffer_once(
    bucket_bytes: float, regather: str
) -> None:
    graph = rl.load_model("gpt2", SHAPE).training(1, "fp16-mixed")
    plain, copied_out = (
        with_sharding(graph, 3, 4, bucket_bytes, regather=regather, copies=copies)
        for copies in (False, True)
    )
    place = {name: i for i, op in enumerate(copied_out.ops) for name in op.outputs}
    gathers = [op for op in copied_out.ops if op.kind == "all-gather"]
    copies = [op for op in copied_out.ops if op.name.endswith(".copy-out")]
    assert len(gathers) == len(copies) > 0
    for op in copies:
        size = sum(copied_out.tensors[name].bytes for name in op.outputs)
        assert copied_out.read_bytes(op) == copied_out.write_bytes(op) == size
        assert max(place[name] for name in op.inputs) < place[op.outputs[0]]
    assert {name for op in gathers for name in op.outputs} == {
        n for op in copies for n in op.inputs
    }
    others = [op for op in copied_out.ops if op not in copies and op not in gathers]
    assert others == [op for op in plain.ops if op.kind != "all-gather"]
    out = {name for op in copies for name in op.outputs}
    for i, op in enumerate(copied_out.ops):
        assert all(place[name] < i for name in out.intersection(op.inputs))


def test_copies_of_what_is_gathered_take_time_and_both_executors_agree() -> None:
    fields = {"data": 4, "zero_stage": 3, "gradients__bucket": "1 B"}
    plain, copied_out = (step(zero__gather_copies=copies, **fields) for copies in (False, True))
    assert copied_out.step_time_s > plain.step_time_s
    assert most(copied_out, "workspace") >= most(plain, "workspace")
    assert copied_out.flops_per_step == plain.flops_per_step
    slow = step(zero__gather_copies=True, reference=True, **fields)
    assert np.isclose(slow.step_time_s, copied_out.step_time_s, rtol=1e-9)


def test_what_is_collected_flattened_and_cast_lies_in_one_buffer_each() -> None:
    """DeepSpeed's fp16: 2, 2 and 4 bytes of every parameter, and a bucket while it collects."""
    graph = with_gradients(rl.load_model("gpt2", SHAPE).training(1, "fp16-mixed"), "flat")
    copies = copied(graph, "flat")
    number = sum(graph.tensors[name].elements for name in copies.waiting)
    entries = memory_entries(graph, **copies._asdict())
    spans = entries.spans[-4:]  # a bucket of 5e8 elements holds all of this network
    assert [size for *_, size in spans] == [2 * number, 2 * number, 4 * number, 2 * number]
    collected, flat, cast, bucket = spans
    assert bucket[0] == collected[0]
    assert bucket[1] < flat[0] <= cast[0]
    assert flat[1] <= cast[1]
    assert collected[1] > flat[1]
    apart = {name for buffer in copies.buffers for name in buffer}
    assert len(apart) == 3 * len(copies.waiting)
    assert copies.begun(graph) == (4 * number,)
    held = sum(e.start_bytes + e.end_bytes for op in entries.entries for e in op)
    assert held == 0  # all that is taken is given back


def test_bf16_sums_are_reduced_in_a_copy_of_two_bytes() -> None:
    """All of them at once, behind the last backward pass, where nothing else of it is left."""
    graph = rl.load_model("gpt2", SHAPE).training(1, "bf16-mixed")
    copies = copied(graph, "both")
    cast = sum(graph.tensors[name].elements for name in narrow_gradients(graph))
    ((first_op, last_op, size),) = copies.staged
    assert size == 2 * cast
    assert first_op == last_op
    assert graph.ops[first_op].kind == "optimizer"
    assert copied(graph, "wide") == type(copies)()


def test_a_full_device_gets_free_segments_back() -> None:
    """What is reserved stays in a device in which the tensors have room."""
    plan = stacked(global_batch=4, precision="fp16-mixed", memory__allocator="caching")
    free = rl.simulate("gpt2", "v100-sxm2-16gb", plan).memory_bytes
    tight = changed(plan, memory__runtime=free["capacity"] - free["total"] + 2**28)
    held = rl.simulate("gpt2", "v100-sxm2-16gb", tight)
    exact = rl.simulate("gpt2", "v100-sxm2-16gb", changed(tight, memory__allocator="exact"))
    assert held.memory_bytes["total"] < free["total"] + tight.stack.memory.runtime
    assert exact.memory_bytes["total"] <= held.memory_bytes["total"]


def test_tables_of_sixteen_bits_are_states_as_all_other_weights() -> None:
    """Of a tied one the classifier has the copy in either case; norms alone have none."""
    shape = {**SHAPE, "tied": False}
    states = {
        tables: model_states(
            rl.load_model("gpt2", {**shape, "tables": tables}).training(1, "fp16-mixed")
        )
        for tables in ("master", "computed")
    }
    vectors = (SHAPE["vocabulary"] + SHAPE["sequence"]) * SHAPE["hidden"]
    assert states["master"]["gradients"] - states["computed"]["gradients"] == 2 * vectors
    assert states["master"]["weights"] - states["computed"]["weights"] == 2 * vectors
    assert states["computed"]["optimizer"] - states["master"]["optimizer"] == 4 * vectors
    graph = rl.load_model("gpt2", {**shape, "tables": "computed"}).training(1, "fp16-mixed")
    assert sum(states["computed"].values()) == pytest.approx(16 * graph.parameters, rel=0.01)


def test_narrow_sums_stay_narrow_where_products_add_to_them() -> None:
    """Half the bytes held and sent, and no kernel that adds."""
    model = rl.load_model("llama2-7b", {"layers": 2})

    def run(how: str, fused: bool) -> rl.Result:
        plan = stacked(
            global_batch=8, data=2, micro_batch=1, precision="bf16-mixed",
            gradients__main_grads=how, gradients__accumulation_fusion=fused,
        )  # fmt: skip
        return rl.simulate(model, "dgx-h100", plan)

    for fused in (False, True):
        wide, narrow = run("wide", fused), run("narrow", fused)
        held = narrow.memory_bytes["gradients"] / wide.memory_bytes["gradients"]
        assert 0.5 <= held < 0.65
        assert narrow.traffic_bytes["nvlink4"] < 0.65 * wide.traffic_bytes["nvlink4"]
    apart, together = run("narrow", False), run("narrow", True)
    assert together.step_time_s < apart.step_time_s
    assert together.memory_bytes["gradients"] == apart.memory_bytes["gradients"]
