"""Experts are shared in every number format, and gradients summed in few kernels."""

from __future__ import annotations

import pytest

from ridgeline.kernels.traffic import streamed_bytes
from ridgeline.parallel.emit.grad_accumulation import adds, casts, sum_bytes, with_summing_products
from ridgeline.parallel.memory.liveness_profile import held_bytes
from ridgeline.parallel.plan.plan import Plan
from ridgeline.parallel.sharding.experts import expert_weights, with_experts
from ridgeline.simulation import simulate
from ridgeline.workload.autodiff import weight_gradients
from ridgeline.workload.files import load_model
from ridgeline.workload.graph import Gemm, Graph, Pass, Role
from ridgeline.workload.model import Model
from stacked import stacked

OF_WEIGHTS = {Role.WEIGHT, Role.WEIGHT_COPY, Role.WEIGHT_GRADIENT, Role.STATE}


def mixture(precision: str) -> Graph:
    fields = {"layers": 4, "sequence": 64}  # three dense layers, one of experts
    return load_model("deepseek-v3", fields).training(2, precision)


def experts_bytes(graph: Graph) -> dict[Role, int]:
    """Bytes of what belongs to the weights of experts, by role."""
    found = dict.fromkeys(OF_WEIGHTS, 0)
    for tensor in graph.tensors.values():
        layer, _, last = tensor.name.partition(".experts.")
        if layer == "blocks.3" and last.startswith(("gate-up.weight", "down.weight")):
            found[tensor.role] = found.get(tensor.role, 0) + tensor.bytes
    return found


@pytest.mark.parametrize("precision", ["fp32", "bf16-mixed", "fp8-mixed"])
@pytest.mark.parametrize("ranks", [2, 8])
def test_ranks_hold_their_part_of_the_experts_in_every_format(precision: str, ranks: int) -> None:
    whole = mixture(precision)
    part = with_experts(whole, ranks)
    assert experts_bytes(part) == {r: n // ranks for r, n in experts_bytes(whole).items()}
    held = expert_weights(part)
    assert {n for n in held if part.tensors[n].role is Role.WEIGHT} == {
        "blocks.3.experts.gate-up.weight",
        "blocks.3.experts.down.weight",
    }
    exchanges = [op for op in part.ops if op.kind == "all-to-all"]
    assert len(exchanges) == 4  # there and back, forward and backward
    assert sum(op.matrix_flops for op in part.ops) == sum(op.matrix_flops for op in whole.ops)
    for op in part.ops:
        if isinstance(op.loops, Gemm) and ".experts.down" in op.name and op.loops.batch > 1:
            assert {part.tensors[n].shape[0] for n in op.inputs} == {op.loops.batch}


@pytest.mark.parametrize("precision", ["fp32", "fp16-mixed"])
def test_a_gradient_is_cast_and_added_in_one_kernel(precision: str) -> None:
    """The sum is read and written in fp32, and the gradient read in the format it was made in."""
    graph = load_model("gpt2", {"layers": 1, "sequence": 64}).training(1, precision)
    wanted = set(weight_gradients(graph).values())
    of_products = 0
    for op in graph.ops:
        kept = [name for name in op.outputs if name in wanted]
        if kept and op.pass_ is not Pass.UPDATE:
            elements = sum(graph.tensors[name].elements for name in kept)
            assert sum_bytes(op, graph, kept) == (10 if casts(op) else 12) * elements
            of_products += casts(op)
    assert (of_products > 8) == (precision != "fp32")


def test_products_make_gradients_in_the_format_of_the_sum() -> None:
    graph = load_model("gpt2", {"layers": 1, "sequence": 64}).training(1, "bf16-mixed")
    summing = with_summing_products(graph)
    assert weight_gradients(summing) == weight_gradients(graph)
    made = {name: op for op in summing.ops for name in op.outputs}
    products = [made[g] for g in weight_gradients(summing).values() if made[g].loops is not None]
    assert len(products) == 4  # the classifier shares its weights with the embedding
    assert all(adds(op) and summing.tensors[op.outputs[0]].format == "fp32" for op in products)
    assert sum(op.matrix_flops for op in summing.ops) == sum(op.matrix_flops for op in graph.ops)
    read = {name for op in summing.ops for name in op.inputs}
    assert all(name in made or name in graph.tensors for name in read)


def test_adding_in_products_saves_kernels_of_every_micro_batch_but_the_first() -> None:
    model = load_model("gpt3-1.3b", {"layers": 2, "hidden": 1024, "sequence": 256})
    times = {
        (adding, n): simulate(
            model,
            "dgx-a100",
            stacked(
                global_batch=n,
                micro_batch=1,
                precision="bf16-mixed",
                gradients__accumulation_fusion=adding,
            ),
        ).step_time_s
        for adding in (False, True)
        for n in (1, 3)
    }
    saved = [times[False, n] - times[True, n] for n in (1, 3)]
    assert 0 < saved[0] * 3 < saved[1]


def test_attention_of_ops_of_its_own_is_divided_between_heads() -> None:
    fields = {"layers": 2, "hidden": 512, "attention.heads": 8, "attention.kernel": "eager"}
    model = load_model("gpt3-1.3b", fields)
    plan = Plan(global_batch=2, tensor=4, precision="bf16-mixed")
    assert simulate(model, "dgx-a100", plan).details.lowered.whole == {}


@pytest.mark.parametrize("ranks", [2, 8, 256])
def test_rows_are_put_in_order_where_a_rank_has_several_experts(ranks: int) -> None:
    """Behind each all-to-all to the experts and before each back, all rows are copied once."""
    part = with_experts(mixture("bf16-mixed"), ranks)
    copies = [i for i, op in enumerate(part.ops) if op.kind == "in-order"]
    exchanges = [i for i, op in enumerate(part.ops) if op.kind == "all-to-all"]
    assert len(exchanges) == 4
    if ranks == 256:  # a row's expert is the rank's only one
        assert not copies
        return
    assert [i - j for i, j in zip(copies, exchanges, strict=True)] == [1, -1, 1, -1]
    for i, op in ((i, part.ops[i]) for i in copies):
        (read,), (made,) = op.inputs, op.outputs
        assert part.tensors[read].shape == part.tensors[made].shape
        assert part.tensors[made].shape[0] == 256 // ranks
        assert part.tensors[made].elements == 2 * 64 * 8 * 7168  # tokens, choices, features
        assert any(made in later.inputs for later in part.ops[i + 1 :])


def test_steps_of_a_loss_stream_the_logits_more_often() -> None:
    """Five times read and three written instead of once; nothing else of the step changes."""

    def step(**fields: object) -> Graph:
        return load_model("gpt2", {"layers": 1, "sequence": 64, **fields}).training(2, "fp16-mixed")

    fused, separate = step(), step(separate_loss=True)
    assert fused.tensors == separate.tensors
    (other,) = [(a, b) for a, b in zip(fused.ops, separate.ops, strict=True) if a != b]
    assert other[0].name == other[1].name == "loss"
    assert (other[1].input_passes, other[1].output_passes) == ((5, 1), (0, 3))
    plans = [Plan(global_batch=2, tensor=2, precision="fp16-mixed")] * 2
    times = [
        simulate(load_model("gpt2", {"layers": 1, "separate_loss": loss}), "dgx1-v100", plan)
        for loss, plan in zip((False, True), plans, strict=True)
    ]
    logits = 2 * 1024 * 50257 * 4  # of both devices together
    moved = times[1].traffic_bytes["hbm"] - times[0].traffic_bytes["hbm"]
    assert moved == pytest.approx(6 * logits, rel=1e-3)
    longer = times[1].step_time_s - times[0].step_time_s
    assert 3 * logits / 1e12 < longer < 3.2 * logits / 700e9


def test_the_loss_of_log_probabilities_forms_their_gradient_in_full() -> None:
    """PyTorch's cross entropy: while the gradient of the logits is formed, one more as large.

    Written as zeros, read with the log-probabilities; the rest of the step does not change.
    """

    def model(loss: object) -> Model:
        fields = {"layers": 1, "sequence": 512, "separate_loss": loss}
        return load_model("gpt2", fields)

    graphs = [model(loss).training(8, "bf16-mixed") for loss in (False, "log-softmax")]
    logits = 8 * 512 * 50257 * 4
    pairs = zip(*(graph.ops for graph in graphs), strict=True)
    ((at, before, after),) = (
        (i, a, b)
        for i, (a, b) in enumerate(pairs)
        if (a.outputs, a.output_passes) != (b.outputs, b.output_passes)
    )
    assert after.name == "loss.input-gradient"
    assert streamed_bytes(after, graphs[1]) - streamed_bytes(before, graphs[0]) == 2 * logits
    held = [held_bytes(graph).sum(axis=1) for graph in graphs]
    assert (held[1] - held[0])[at] == logits
    assert ((held[1] - held[0])[:at] == 0).all()
    assert ((held[1] - held[0])[at + 1 :] == 0).all()
    for tensor in (1, 2):
        plan = Plan(global_batch=8, tensor=tensor, precision="fp16-mixed")
        steps = [simulate(model(loss), "dgx1-v100", plan) for loss in (False, "log-softmax")]
        more = steps[1].memory_bytes["total"] - steps[0].memory_bytes["total"]
        assert more == pytest.approx(logits / tensor, rel=1e-3)
