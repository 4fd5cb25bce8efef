"""Which tensor has which number format."""

import pytest

from ridgeline.errors import RidgelineError
from ridgeline.workload import Pass, Role, load_model, optimizers
from ridgeline.workload import numerics as precisions
from ridgeline.workload.numerics import PRECISIONS

ALL = sorted(PRECISIONS)


def formats(graph, role):
    return {t.format for t in graph.tensors.values() if t.role is role}


@pytest.mark.parametrize("precision", ALL)
def test_weights_statistics_states_and_loss_are_fp32(precision):
    graph = load_model("resnet18").training(2, precision)
    assert graph.precision == precision
    for role in (Role.WEIGHT, Role.BUFFER, Role.STATE):
        assert formats(graph, role) == {"fp32"}
    assert graph.tensors[graph.loss].format == "fp32"
    means = [t for t in graph.tensors.values() if t.name.endswith(("mean", "deviation"))]
    assert {t.format for t in means} == {"fp32"}


@pytest.mark.parametrize(
    ("precision", "compute"),
    [("fp32", "fp32"), ("tf32", "tf32"), ("fp16-mixed", "fp16"), ("bf16-mixed", "bf16")],
)
def test_contractions_multiply_in_the_format_of_their_first_input(precision, compute):
    for name in ("resnet18", "alexnet", "mlp"):
        graph = load_model(name).training(2, precision)
        contractions = [op for op in graph.ops if op.loops is not None]
        assert {graph.tensors[op.inputs[0]].format for op in contractions} == {compute}
        touched = [graph.tensors[x] for op in contractions for x in (*op.inputs, *op.outputs)]
        sizes = {t.bytes // t.elements for t in touched}
        assert sizes == {2 if "mixed" in precision else 4}


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


def test_tf32_moves_the_bytes_of_fp32():
    tf32, fp32 = (load_model("alexnet").training(2, p) for p in ("tf32", "fp32"))
    for a, b in zip(tf32.ops, fp32.ops, strict=True):
        assert tf32.read_bytes(a) == fp32.read_bytes(b)
        assert tf32.write_bytes(a) == fp32.write_bytes(b)


def test_unknown_precisions_name_the_nearest_and_all():
    with pytest.raises(RidgelineError, match=r"'fp16-mixt'; did you mean 'fp16-mixed'.*bf16-mixed"):
        precisions.find("fp16-mixt")
    with pytest.raises(RidgelineError, match="'fp8-mixed' is not modelled yet"):
        load_model("lenet5").forward(1, "fp8-mixed")


def test_unknown_optimizers_name_the_nearest_and_all():
    with pytest.raises(RidgelineError, match=r"'adan'; did you mean 'adam'.*sgd-momentum"):
        optimizers.find("adan")
