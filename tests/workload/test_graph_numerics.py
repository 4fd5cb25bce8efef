"""Which tensor has which number format."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from machines import DEVICE, ENERGY
from ridgeline.errors import RidgelineError
from ridgeline.study.point import Point
from ridgeline.workload import Pass, Role, load_model, optimizers
from ridgeline.workload import formats as formats_
from ridgeline.workload import numerics as precisions
from ridgeline.workload.numerics import PRECISIONS, PURE

ALL = sorted(PRECISIONS)
MULTIPLIED = sorted(name for name, one in formats_.FORMATS.items() if one.kind != "index")


def formats(graph, role):
    return {t.format for t in graph.tensors.values() if t.role is role}


WITHOUT_COPIES = {"flex16+5": "flex16+5", "bf16-true": "bf16", "fp16-true": "fp16"}


@pytest.mark.parametrize("precision", ALL)
def test_weights_and_states_are_fp32_but_where_no_copy_is_kept(precision):
    graph = load_model("resnet18").training(2, precision)
    assert graph.precision == precision
    wide = precision if precision in PURE else "fp32"
    master = WITHOUT_COPIES.get(precision, wide)
    assert formats(graph, Role.BUFFER) == {wide}
    for role in (Role.WEIGHT, Role.STATE):
        assert formats(graph, role) == {master}
    assert graph.tensors[graph.loss].format == wide
    means = [t for t in graph.tensors.values() if t.name.endswith(("mean", "deviation"))]
    assert {t.format for t in means} == {wide}


@pytest.mark.parametrize(
    ("precision", "compute"),
    [
        ("fp32", "fp32"),
        ("tf32", "tf32"),
        ("fp16-mixed", "fp16"),
        ("bf16-mixed", "bf16"),
        ("bf16-true", "bf16"),
        ("fp16-true", "fp16"),
        ("flex16+5", "flex16+5"),
    ],
)
def test_contractions_multiply_in_the_format_of_their_first_input(precision, compute):
    for name in ("resnet18", "alexnet", "mlp"):
        graph = load_model(name).training(2, precision)
        contractions = [op for op in graph.ops if op.loops is not None]
        assert {graph.tensors[op.inputs[0]].format for op in contractions} == {compute}
        touched = [graph.tensors[x] for op in contractions for x in (*op.inputs, *op.outputs)]
        sizes = {t.bytes // t.elements for t in touched}
        assert sizes == {2 if "mixed" in precision or precision in WITHOUT_COPIES else 4}


@pytest.mark.parametrize("precision", ["fp16-mixed", "bf16-mixed"])
def test_each_conv_and_linear_weight_is_cast_once_and_its_gradient_cast_back(precision):
    graph = load_model("resnet50").training(2, precision)
    used = {t.name for t in graph.tensors.values() if t.role is Role.WEIGHT and "bn" not in t.name}
    used = {name for name in used if "downsample.1" not in name}
    casts = [op for op in graph.ops if op.kind == "cast"]
    forward = [op.inputs[0] for op in casts if op.pass_ is Pass.FORWARD]
    back = [op.outputs[0] for op in casts if op.pass_ is Pass.WEIGHT_GRADIENT]
    weights = [name for name in forward if graph.tensors[name].role is Role.WEIGHT]
    assert sorted(weights) == sorted(used)
    assert len(used) == 53 + 2  # convolutions, and the classifier's weight and bias
    assert sorted(back) == sorted(f"{name}.grad" for name in used)
    assert len(forward) - len(weights) == 2  # the images, and the logits for the loss
    assert {graph.tensors[name].format for name in back} == {"fp32"}
    assert {t.format for t in graph.tensors.values() if t.role is Role.WEIGHT_COPY} == {
        PRECISIONS[precision].compute
    }


@pytest.mark.parametrize("precision", ["fp32", "tf32"])
def test_full_precision_casts_nothing_and_scales_nothing(precision):
    kinds = {op.kind for op in load_model("vgg16").training(2, precision).ops}
    assert kinds.isdisjoint({"cast", "scale", "unscale"})


def test_only_fp16_scales_the_loss():
    def scaling(precision):
        ops = load_model("lenet5").training(2, precision).ops
        return sum(op.kind == "scale" for op in ops), sum(op.kind == "unscale" for op in ops)

    assert scaling("fp16-mixed") == (2, 10)  # loss and its gradient; ten weight tensors
    assert scaling("bf16-mixed") == (0, 0)


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(MULTIPLIED), st.sampled_from(MULTIPLIED))
def test_what_is_stored_as_one_format_and_multiplied_as_another(stored, multiplied):
    """Storage is that of the first, arithmetic that of the second, of the same graph."""
    name = f"{stored}-as-{multiplied}"
    one, of, by = formats_.find(name), formats_.find(stored), formats_.find(multiplied)
    assert one.tensor_bits(1000) == of.tensor_bits(1000)
    assert (one.largest, one.least) == (of.largest, of.least)
    assert (one.rate, one.accumulator) == (by.rate, by.accumulator)
    assert (one.kernels, of.kernels) == (name, of.rate)
    assert formats_.bytes_of(name) == formats_.bytes_of(stored)
    assert precisions.same_in_memory(name, stored)
    numerics = precisions.find(name)
    assert numerics.compute == name
    narrow_range = of.kind == "float" and of.exponent_bits < 8
    assert (numerics.loss_scale is not None) == narrow_range


def test_stored_halves_are_mixed_precision_by_another_name():
    mixed, stored, short = (
        load_model("lenet5").training(4, precision)
        for precision in ("fp16-mixed", "fp16-as-fp32", "fp16-stored")
    )
    assert stored.tensors == short.tensors
    assert [op.kind for op in stored.ops] == [op.kind for op in mixed.ops]
    for a, b in zip(stored.ops, mixed.ops, strict=True):
        assert stored.read_bytes(a) + stored.write_bytes(a) == (
            mixed.read_bytes(b) + mixed.write_bytes(b)
        )
    kinds = {op.kind for op in load_model("lenet5").training(2, "fp32-as-bf16").ops}
    assert "cast" not in kinds  # weights and what is multiplied lie in memory alike


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("fp16-as-fp31", "unknown number format 'fp31'; did you mean 'fp32'"),
        ("int32-as-fp32", "there is no number format 'int32-as-fp32': int32 only indexes"),
        ("fp16-as-int8-as-bf16", "int8-as-bf16 is itself converted"),
    ],
)
def test_formats_that_cannot_be_stored_so(name, message):
    with pytest.raises(RidgelineError, match=message):
        precisions.find(name)


def test_tf32_moves_the_bytes_of_fp32():
    tf32, fp32 = (load_model("alexnet").training(2, p) for p in ("tf32", "fp32"))
    for a, b in zip(tf32.ops, fp32.ops, strict=True):
        assert tf32.read_bytes(a) == fp32.read_bytes(b)
        assert tf32.write_bytes(a) == fp32.write_bytes(b)


def test_unknown_precisions_name_the_nearest_and_all():
    with pytest.raises(RidgelineError, match=r"'fp16-mixt'; did you mean 'fp16-mixed'.*bf16-mixed"):
        precisions.find("fp16-mixt")
    with pytest.raises(RidgelineError, match="did you mean 'fp8-mixed'"):
        load_model("lenet5").forward(1, "fp8-mixd")


NARROW = {
    "fp8-mixed": ("fp8-e4m3", "fp8-e5m2"), "int8-mixed": ("int8", "int8"),
    "fp8-block-mixed": ("fp8-block", "fp8-block"), "mxfp8-mixed": ("mxfp8", "mxfp8"),
}  # fmt: skip


@pytest.mark.parametrize("precision", NARROW)
def test_products_with_weights_are_narrow_and_everything_else_is_bf16(precision):
    forward, gradient = NARROW[precision]
    graph = load_model("bert-base").training(2, precision)
    wide = load_model("bert-base").training(2, "bf16-mixed")
    assert graph.flops() == wide.flops()
    seen = set()
    for op in graph.ops:
        if op.loops is None:
            continue
        a, b = (graph.tensors[name] for name in op.inputs[:2])
        sizes = (op.loops.m, op.loops.n, op.loops.k)
        if op.kind == "gemm" and all(size % 16 == 0 for size in sizes):
            seen.add(op.pass_)
            assert a.format == (forward if op.pass_ is Pass.FORWARD else gradient)
            assert b.format == forward
            assert {graph.tensors[name].format for name in op.outputs} == {"bf16"}
        else:
            assert {a.format, b.format} == {"bf16"}, op.name
    assert len(seen) == 3


@pytest.mark.parametrize("precision", NARROW)
def test_each_operand_is_quantised_once_and_written_twice(precision):
    graph = load_model("bert-base").training(2, precision)
    quantised = [op for op in graph.ops if op.kind == "quantise"]
    narrow = [op for op in quantised if graph.tensors[op.outputs[0]].bytes]
    sources = [(op.inputs[0], graph.tensors[op.outputs[0]].format) for op in narrow]
    assert len(sources) == len(set(sources)) > 0
    reads = 2 if precision == "int8-mixed" else 1  # int8 looks for the largest magnitude first
    for op in quantised:
        source, copy = graph.tensors[op.inputs[0]], graph.tensors[op.outputs[0]]
        if copy.format in NARROW[precision]:
            assert graph.read_bytes(op) == reads * source.bytes
            assert graph.write_bytes(op) == 2 * copy.bytes
            assert op.vector_flops == 4 * source.elements
    gradients = {t.format for t in graph.tensors.values() if t.role is Role.WEIGHT_GRADIENT}
    assert gradients == {"bf16", "fp32"}  # as a product gives it, and as the optimizer takes it


def test_scales_of_a_tensors_own_magnitude_cost_a_reading():
    shape = {"layers": 1, "sequence": 32}
    delayed, own = (
        load_model("llama3-8b", shape).training(2, f"fp8-{n}") for n in ("mixed", "dynamic")
    )
    assert [op.name for op in delayed.ops] == [op.name for op in own.ops]
    for a, b in zip(delayed.ops, own.ops, strict=True):
        more = delayed.tensors[a.inputs[0]].bytes if a.kind == "quantise" else 0
        assert own.read_bytes(b) == delayed.read_bytes(a) + more
        assert own.write_bytes(b) == delayed.write_bytes(a)


@pytest.mark.parametrize("tied", [False, True])
def test_classifiers_of_decoders_are_narrow_only_if_asked(tied):
    for narrow in (False, True):
        shape = {"layers": 1, "sequence": 32, "tied": tied, "narrow_classifier": narrow}
        graph = load_model("llama3-8b", shape).training(2, "fp8-mixed")
        formats = {
            op.layer == "head": {graph.tensors[name].format for name in op.inputs[:2]}
            for op in graph.ops
            if op.kind == "gemm"
        }
        assert formats[True] == ({"fp8-e4m3", "fp8-e5m2"} if narrow else {"bf16"})
        assert "bf16" not in formats[False]


def test_products_whose_sizes_are_no_multiples_of_16_stay_wide():
    graph = load_model("lenet5").training(2, "fp8-mixed")
    assert not any(op.kind == "quantise" for op in graph.ops)


@settings(max_examples=15, deadline=None)
@given(st.integers(1, 40), st.integers(1, 12), st.integers(1, 4))
def test_rows_of_experts_are_filled_up_to_what_narrow_products_need(tokens, experts, chosen):
    fields = {
        "layers": 1, "hidden": 64, "vocabulary": 64, "sequence": tokens, "mixture.width": 32,
        "attention.heads": 4, "attention.kv_heads": 4, "feed_forward.width": 32,
        "mixture.experts": experts, "mixture.top_k": min(chosen, experts),
    }  # fmt: skip
    wide, narrow = (
        load_model("mixtral-8x7b", fields).forward(1, p) for p in ("bf16-mixed", "fp8-mixed")
    )
    rows, filled = (g.tensors["blocks.0.experts.dispatch.y"].shape[1] for g in (wide, narrow))
    assert filled % precisions.NARROW_MULTIPLE == 0
    assert 0 <= filled - rows < precisions.NARROW_MULTIPLE
    products = [
        op for op in narrow.ops if op.kind == "gemm" and op.layer.startswith("blocks.0.experts.")
    ]
    products = [op for op in products if op.loops.batch == experts and "router" not in op.name]
    assert {narrow.tensors[name].format for op in products for name in op.inputs} == {"fp8-e4m3"}


def test_a_flexpoint_tensor_shares_five_bits():
    graph = load_model("lenet5").training(2, "flex16+5")
    for tensor in graph.tensors.values():
        if tensor.format == "flex16+5":
            assert tensor.bytes == 2 * tensor.elements + 1


def test_unknown_optimizers_name_the_nearest_and_all():
    with pytest.raises(RidgelineError, match=r"'adan'; did you mean 'adam'.*sgd-momentum"):
        optimizers.find("adan")


@pytest.mark.parametrize("precision", ["flex16+5", "int8-mixed", "fp8-mixed"])
def test_a_device_that_has_a_format_trains_in_it(precision, tmp_path):
    formats = ("bf16", "fp8", "int8", "flex16+5")
    rates = "{fp32: 10 TFLOP/s, " + ", ".join(f"{name}: 40 TFLOP/s" for name in formats) + "}"
    energy = "{fp32: flop.fp32, " + ", ".join(f"{name}: flop.fp16" for name in formats) + "}"
    text = DEVICE.replace("{fp32: 10 TFLOP/s, fp16: 40 TFLOP/s}", rates)
    text = text.replace("{fp32: flop.fp32, fp16: flop.fp16}", energy)
    (tmp_path / "energy.yaml").write_text(ENERGY)
    (tmp_path / "device.yaml").write_text(text)
    plan = {"global_batch": 16, "precision": precision}
    result = Point("bert-base", str(tmp_path / "device.yaml"), plan).simulate()
    done = result.ledger().by("place", "unit", value="amount")
    narrow = {"flex16+5": "flex16+5", "int8-mixed": "int8", "fp8-mixed": "fp8"}[precision]
    assert done[f"matrix.{narrow}", "FLOP"] > 0.5 * result.flops_per_step
