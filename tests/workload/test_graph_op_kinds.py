"""Single ops: their shapes, bytes, arithmetic and complaints."""

import pytest

from ridgeline.errors import RidgelineError
from ridgeline.workload import Pass, ops, training_graph
from ridgeline.workload.builder import GraphBuilder
from ridgeline.workload.graph import Gemm
from ridgeline.workload.numerics import PRECISIONS
from ridgeline.workload.optimizers import OPTIMIZERS


def builder(precision="fp32"):
    return GraphBuilder("test", 2, PRECISIONS[precision])


def sequence(b, time=3, width=4):
    tokens = b.input("tokens", (2, time), "int64")
    return ops.embedding(b, "embedding", tokens, b.weight("table", (10, width)))


def trained(b, x, optimizer="sgd"):
    labels = b.input("labels", b.shape(x)[:-1], "int64")
    return training_graph(b.graph(ops.cross_entropy(b, "loss", x, labels)), OPTIMIZERS[optimizer])


def test_vector_flops_by_hand():
    """Two sequences of 3 tokens with 4 features; every count from the table of op kinds."""
    b = builder()
    x = ops.layer_norm(b, "layer", sequence(b))  # 24 elements
    x = ops.activation(b, "gelu", ops.rms_norm(b, "rms", x), "gelu")
    gate, up = ops.fused_linear(b, "up", x, (2, 2), bias=False)
    x = ops.gated(b, "swiglu", gate, up, "swiglu")  # 12 elements
    graph = trained(b, ops.softmax(b, "softmax", x))
    flops = {op.name: op.vector_flops for op in graph.ops if op.vector_flops}
    assert flops == {
        "layer": 7 * 24,
        "rms": 4 * 24,
        "gelu": 9 * 24,
        "swiglu": 6 * 12,
        "softmax": 6 * 12,
        "loss": 5 * 12,
        "loss.input-gradient": 3 * 12,
        "softmax.input-gradient": 5 * 12,
        "swiglu.input-gradient": 12 * 12,
        "gelu.input-gradient": 17 * 24,
        "rms.input-gradient": 9 * 24,
        "layer.input-gradient": 13 * 24,
        "embedding.weight-gradient": 24,
        "table.update": 4 * 40,
        "layer.weight.update": 4 * 4,
        "layer.bias.update": 4 * 4,
        "rms.weight.update": 4 * 4,
        "up.weight.update": 4 * 16,
    }


def test_a_cell_counts_its_elementwise_work():
    b = builder()
    ops.recurrent(b, "lstm", sequence(b), 5, "lstm", bias="one")
    ops.recurrent(b, "gru", "embedding.y", 5, "gru", bias="two")
    flops = {op.name: op.vector_flops for op in b.ops}
    assert flops["lstm"] == 22 * 2 * 3 * 5
    assert flops["gru"] == (16 + 3) * 2 * 3 * 5
    assert b.ops[-1].loops == Gemm(2, 15, 5, batch=3)


@pytest.mark.parametrize("precision", ["fp32", "bf16-mixed"])
def test_lookups_read_rows_of_the_table_and_gradients_fill_it(precision):
    b = builder(precision)
    graph = trained(b, ops.linear(b, "fc", sequence(b), 3))
    lookup = next(op for op in graph.ops if op.name == "embedding")
    assert graph.read_bytes(lookup) == 6 * 8 + 6 * 4 * 4
    assert graph.write_bytes(lookup) == 6 * 4 * (4 if precision == "fp32" else 2)
    gradient = next(op for op in graph.ops if op.name == "embedding.weight-gradient")
    assert graph.write_bytes(gradient) == 10 * 4 * 4 + 2 * 6 * 4 * 4  # zeros, read and write rows
    assert graph.tensors[gradient.outputs[0]].shape == (10, 4)


def test_sparse_gradients_have_a_row_for_each_lookup():
    b = builder()
    tokens = b.input("tokens", (2, 3), "int64")
    x = ops.embedding(b, "embedding", tokens, b.weight("table", (1000, 4)), sparse=True)
    graph = trained(b, ops.linear(b, "fc", x, 3), "adam")
    gradient = next(op for op in graph.ops if op.name == "embedding.weight-gradient")
    assert graph.write_bytes(gradient) == 6 * 4 * 4
    update = next(op for op in graph.ops if op.name == "table.update")
    assert graph.read_bytes(update) == 4 * 6 * 4 * 4  # rows of weight, gradient, two states
    assert graph.write_bytes(update) == 3 * 6 * 4 * 4
    assert update.vector_flops == 14 * 6 * 4


def test_sparse_gradients_have_their_limits():
    b = builder()
    tokens = b.input("tokens", (2, 3), "int64")
    table = b.weight("table", (1000, 4))
    x = ops.embedding(b, "one", tokens, table, sparse=True)
    with pytest.raises(RidgelineError, match="'lamb' needs the whole gradient, which is sparse"):
        trained(b, ops.linear(b, "fc", x, 3), "lamb")
    b = builder()
    tokens = b.input("tokens", (2, 3), "int64")
    table = b.weight("table", (1000, 4))
    x = ops.embedding(b, "one", tokens, table, sparse=True)
    with pytest.raises(RidgelineError, match="'table' has sparse gradients, but is used twice"):
        trained(b, ops.product(b, "head", x, table))


def test_a_part_is_read_in_part():
    b = builder()
    x = sequence(b, time=4)
    ops.cut(b, "cut", x, axis=1, start=1, length=1)
    ops.position_embedding(b, "where", x, b.weight("positions", (16, 4)))
    graph = b.graph("cut.y")
    cut, where = graph.ops[-2:]
    assert graph.read_bytes(cut) == graph.write_bytes(cut) == 2 * 1 * 4 * 4
    assert graph.read_bytes(where) == 2 * 4 * 4 * 4 + 4 * 4 * 4


def test_copies_move_every_byte_once_each_way():
    b = builder()
    x = ops.conv2d(b, "conv", b.input("images", (2, 3, 4, 4)), 2, 1)
    y = ops.concat(b, "concat", [x, ops.relu(b, "relu", x), x])
    labels = b.input("labels", (2, 4, 4), "int64")
    graph = training_graph(
        b.graph(ops.cross_entropy(b, "loss", y, labels, axis=1)), OPTIMIZERS["sgd"]
    )
    size = 2 * 6 * 4 * 4 * 4
    for name in ("concat", "concat.input-gradient"):
        op = next(op for op in graph.ops if op.name == name)
        assert graph.read_bytes(op) == graph.write_bytes(op) == size


def test_images_become_rows_of_features():
    b = builder()
    one = b.input("one", (2, 6, 4, 4))
    two = b.input("two", (2, 3, 2, 2))
    assert b.shape(ops.concat(b, "rows", [one, two], features=3)) == (2, 32 + 4, 3)


def test_transposed_convolutions_invert_the_sizes_of_convolutions():
    for kernel, stride, padding in [(2, 2, 0), (4, 2, 1), (3, 1, 1), (5, 3, 2)]:
        b = builder()
        x = b.input("x", (2, 3, 7, 5))
        y = ops.conv_transpose2d(b, "up", x, 4, kernel, stride=stride, padding=padding)
        z = ops.conv2d(b, "down", y, 3, kernel, stride=stride, padding=padding)
        assert b.shape(z) == b.shape(x)
        up = next(op for op in b.ops if op.name == "up")
        assert up.loops.macs == 2 * 7 * 5 * 3 * 4 * kernel**2


def test_a_norm_of_a_mini_batch_forms_weight_gradients_only():
    for norm, flops in ((ops.layer_norm, 5), (ops.rms_norm, 3)):
        b = builder()
        x = norm(b, "norm", b.input("features", (2, 3, 4)))
        graph = trained(b, ops.linear(b, "fc", x, 3))
        op = next(op for op in graph.ops if op.name == "norm.weight-gradient")
        assert op.vector_flops == flops * 24
        assert set(op.input_passes) == {1}
        assert op.pass_ is Pass.WEIGHT_GRADIENT


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda b, x: ops.attention_scores(b, "l", x, x, 3, 1), "3 heads do not divide 4 features"),
        (lambda b, x: ops.attention_scores(b, "l", x, x, 2, 4), "do not fit together"),
        (lambda b, x: ops.rotary(b, "l", x, ops.rotary_angles(b, "a", 2, 4)), "against"),
        (lambda b, x: ops.rotary_angles(b, "a", 3, 5), "5 features cannot be rotated in pairs"),
        (lambda b, x: ops.position_embedding(b, "l", x, b.weight("p", (2, 4))), "3 positions"),
        (lambda b, x: ops.top_k(b, "l", x, 5), "5 of 4 experts"),
        (lambda b, x: ops.cut(b, "l", x, axis=1, start=2, length=2), "2 to 4 of 3"),
        (lambda b, x: ops.crop(b, "l", "images", 9), "8 x 8 to 9 x 9"),
        (lambda b, x: ops.pad_channels(b, "l", "images", 2), "pads 3 channels to 2"),
        (lambda b, x: ops.upsample(b, "l", "images", 4, "nearest"), "enlarges images of 8 x 8"),
        (lambda b, x: ops.concat(b, "l", [x, "images"]), "cannot put the shapes"),
        (lambda b, x: ops.concat(b, "l", ["images"], features=5), "cannot put the shapes"),
        (lambda b, x: ops.product(b, "l", x, b.weight("w", (2, 5))), "does not end in 5"),
        (lambda b, x: ops.dot_interaction(b, "l", "flat", 3), "3 vectors do not divide 4"),
        (lambda b, x: ops.mean_squared_error(b, "l", x, "flat"), "do not belong together"),
        (lambda b, x: ops.ctc(b, "l", x, b.input("t", (2, 4), "int64")), "4 labels in 3"),
        (lambda b, x: ops.conv2d(b, "l", "images", 2, 3, weights_of="c"), "'c' do not fit"),
        (lambda b, x: ops.multiply(b, "l", x, "flat"), "multiplies shapes"),
    ],
)
def test_impossible_ops_are_explained(make, message):
    b = builder()
    x = sequence(b)
    b.input("images", (2, 3, 8, 8))
    b.input("flat", (2, 4))
    b.weight("c.weight", (2, 3, 1, 1))
    with pytest.raises(RidgelineError, match=message):
        make(b, x)


def test_a_gate_with_one_trained_side_has_one_gradient():
    b = builder()
    x = ops.gated(b, "gate", b.input("a", (2, 4)), ops.linear(b, "fc", "a", 4), "geglu")
    (op,) = [o for o in trained(b, x).ops if o.name.startswith("gate.")]
    assert op.outputs == ("fc.add-bias.y.grad",)
