"""The training graph: well-formed, complete, and numerically the gradient of the forward graph."""

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from oracles.graph_interpreter import FORWARD, GRADIENT, SAME, run
from oracles.graph_networks import forward_graphs, forward_pairs, optimized_graphs
from oracles.graph_zoo import NAMES, TINY, one_of_each, shallow, tiny
from ridgeline.errors import RidgelineError
from ridgeline.workload import Graph, Pass, Role, load_model, ops, training_graph, weight_gradients
from ridgeline.workload.builder import GraphBuilder
from ridgeline.workload.numerics import PRECISIONS
from ridgeline.workload.ops.functions import FUNCTIONS
from ridgeline.workload.optimizers import OPTIMIZERS
from thoroughly import one_in, sample_of

SGD = OPTIMIZERS["sgd"]
GIVEN = {Role.INPUT, Role.WEIGHT, Role.BUFFER, Role.STATE}


def values(graph: Graph, seed: int) -> dict[str, np.ndarray]:
    """Random values; those of matrices and filters keep the size of what they multiply."""
    rng = np.random.default_rng(seed)
    return {
        t.name: rng.integers(0, 2, t.shape)
        if t.format == "int64"
        else rng.normal(size=t.shape) / math.sqrt(math.prod(t.shape[1:]))
        for t in graph.tensors.values()
        if t.role in {Role.INPUT, Role.WEIGHT, Role.BUFFER}
    }


def dense_gradient(graph: Graph, env, weight: str, gradient: str) -> np.ndarray:
    """The gradient in the weight's shape: a sparse one has a row for each lookup."""
    lookups = [op for op in graph.ops if op.kind == "embedding" and weight in op.inputs]
    if not lookups or ("sparse", 0) in lookups[0].attrs:
        return env[gradient]
    (lookup,) = lookups
    whole = np.zeros(graph.tensors[weight].shape)
    np.add.at(whole, env[lookup.inputs[0]].reshape(-1), env[gradient])
    return whole


def slope(forward: Graph, given_values, directions) -> tuple[float, float]:
    """Loss, and its derivative along directions of the weights, by the complex step.

    Im L(w + i h v) / h is the derivative along v without cancellation (h = 1e-30): Squire and
    Trapp, SIAM Review 40(1), 1998.
    """
    shifted = {name: value.astype(complex) for name, value in given_values.items()}
    for weight, v in directions.items():
        shifted[weight] += 1e-30j * v
    loss = run(forward, shifted)[forward.loss]
    return loss.real, loss.imag / 1e-30


@sample_of(50, 200, forward_graphs(), st.integers(0, 2**32 - 1))
def test_weight_gradients_equal_derivatives_by_the_complex_step(forward, seed):
    given_values = values(forward, seed)
    training = training_graph(forward, SGD)
    env = run(training, given_values)
    direction = np.random.default_rng(seed + 1)
    read = {op.inputs[0]: op.inputs[1] for op in training.ops if op.kind == "optimizer"}
    for weight, gradient in read.items():
        whole = dense_gradient(training, env, weight, gradient)
        v = direction.normal(size=given_values[weight].shape)
        loss, derivative = slope(forward, given_values, {weight: v})
        assert loss == pytest.approx(env[forward.loss], rel=1e-12)
        assert (whole * v).sum() == pytest.approx(derivative, rel=1e-8, abs=1e-10)


@pytest.mark.parametrize("name", one_in(2, TINY))
def test_networks_of_every_family_have_the_gradients_of_their_loss(name):
    """Along one direction in all weights at once."""
    forward = tiny(name).forward(2, "fp16-mixed")
    training = training_graph(forward, SGD)
    given_values = values(forward, 1)
    env = run(training, given_values)
    rng = np.random.default_rng(2)
    read = {op.inputs[0]: op.inputs[1] for op in training.ops if op.kind == "optimizer"}
    directions = {weight: rng.normal(size=given_values[weight].shape) for weight in read}
    _, derivative = slope(forward, given_values, directions)
    found = sum(
        (dense_gradient(training, env, weight, gradient) * directions[weight]).sum()
        for weight, gradient in read.items()
    )
    assert found == pytest.approx(derivative, rel=1e-8)


@sample_of(38, 150, optimized_graphs())
def test_training_graph_is_well_formed(case):
    forward, optimizer = case
    graph = training_graph(forward, optimizer)
    known = {t.name for t in graph.tensors.values() if t.role in GIVEN}
    made: set[str] = set()
    for op in graph.ops:
        assert known.issuperset(op.inputs), op
        assert len(op.input_passes) == len(op.inputs)
        new = {name for name in op.outputs if graph.tensors[name].role not in GIVEN}
        assert new.isdisjoint(made), op
        made |= new
        known |= new
        if op.in_place:
            old, new_ = graph.tensors[op.inputs[0]], graph.tensors[op.outputs[0]]
            assert old.bytes == new_.bytes
    assert known == graph.tensors.keys()
    assert len({op.name for op in graph.ops}) == len(graph.ops)
    order = [op.pass_ is Pass.UPDATE for op in graph.ops]
    assert order == sorted(order)


@settings(max_examples=100, deadline=None)
@given(optimized_graphs())
def test_every_weight_gets_one_gradient_and_one_update(case):
    forward, optimizer = case
    graph = training_graph(forward, optimizer)
    weights = [t for t in graph.tensors.values() if t.role is Role.WEIGHT]
    updates = [op for op in graph.ops if op.kind == "optimizer"]
    assert [op.inputs[0] for op in updates] == [t.name for t in weights]
    assert weight_gradients(graph).keys() == {t.name for t in weights}
    for weight, op in zip(weights, updates, strict=True):
        gradient = graph.tensors[weight_gradients(graph)[weight.name]]
        assert gradient.format == weight.format
        assert gradient.shape[1:] == weight.shape[1:]
        assert gradient.role is Role.WEIGHT_GRADIENT
        rule = OPTIMIZERS[dict(op.attrs)["rule"]]
        states = [graph.tensors[name] for name in op.inputs[2:]]
        assert [t.shape for t in states] == list(rule.state_shapes(weight.shape).values())
        kept = rule.format_of(weight.elements, PRECISIONS[forward.precision].master)
        assert all((t.format, t.role) == (kept, Role.STATE) for t in states)
        made, *after = op.outputs
        assert tuple(after) == op.inputs[2:]
        assert op.vector_flops == rule.flops(gradient.elements)
        if rule.products:
            (applied,) = (o for o in graph.ops if o.outputs == (weight.name,) and o is not op)
            assert (applied.kind, applied.inputs[0]) == ("apply-update", weight.name)
        else:
            assert made == weight.name
            assert rule.name in {optimizer.name, optimizer.otherwise}


@sample_of(25, 100, forward_graphs())
def test_gradients_have_shape_and_format_of_their_tensor(forward):
    """A sparse one has as many rows as there are lookups; several outputs' may be one tensor."""
    graph = training_graph(forward, SGD)
    sparse = {o.inputs[1]: o.inputs[0] for o in graph.ops if ("sparse", 1) in o.attrs}
    for tensor in graph.tensors.values():
        of, _, rest = tensor.name.rpartition(".grad")
        if of in graph.tensors and not rest.endswith("unscaled"):
            shape = graph.tensors[of].shape
            if of in sparse:
                shape = (graph.tensors[sparse[of]].elements, *shape[1:])
            assert (tensor.shape, tensor.format) == (shape, graph.tensors[of].format)


@sample_of(25, 100, forward_pairs())
def test_work_is_linear_in_the_batch(pair):
    """All but what only tensors take part in that do not grow: updates, sums of losses."""
    small, large = (training_graph(forward, SGD) for forward in pair)
    for a, b in zip(small.ops, large.ops, strict=True):
        same = all(small.tensors[name] == large.tensors[name] for name in (*a.inputs, *a.outputs))
        factor = 1 if same else 3
        assert b.matrix_flops == factor * a.matrix_flops
        assert b.vector_flops == factor * a.vector_flops


@pytest.mark.parametrize("name", NAMES)
def test_backward_flops_are_forward_flops_for_each_operand_that_depends_on_weights(name):
    """A product has two gradients of its own size; none for a mini-batch as operand.

    Fused attention is two products, whose four gradients are twice its forward FLOPs, and one more
    that only repeats the scores; a recurrence's operands are its gates and its weights. What is
    made of weights alone (their rows, their directions) is as a weight. What an indexer computes
    to choose keys has no gradient (`index-scores`).
    """
    graph = shallow(name).training(3)
    forward = [op for op in graph.ops if op.pass_ is Pass.FORWARD]
    learned = {graph.loss}  # tensors on whose gradients something depends
    for op in reversed(forward):
        if op.kind != "index-scores" and not learned.isdisjoint(op.outputs):
            learned.update(op.inputs)
    weights = {t.name for t in graph.tensors.values() if t.role is Role.WEIGHT} - graph.frozen
    moving = set(weights)
    of_weights, of_inputs = 0, 0
    for op in forward:
        if op.loops is not None and not learned.isdisjoint(op.outputs):
            wanted = [x in moving for x in op.inputs[:2]]
            is_weight = [x in weights for x in op.inputs[:2]]
            of_weights += op.matrix_flops * sum(is_weight)
            of_inputs += op.matrix_flops * (sum(wanted) - sum(is_weight))
        if not moving.isdisjoint(op.inputs):
            moving.update(op.outputs)
        if weights.issuperset(op.inputs):
            weights.update(op.outputs)
    assert graph.flops(Pass.WEIGHT_GRADIENT) == of_weights
    assert graph.flops(Pass.INPUT_GRADIENT) == of_inputs


@pytest.mark.parametrize("name", ["vgg16", "resnet50", "alexnet", "mlp", "unet"])
def test_backward_flops_are_twice_forward_but_for_the_first_input_gradient(name):
    graph = load_model(name).training(3)
    first = next(op for op in graph.ops if op.loops is not None)
    backward = graph.flops(Pass.INPUT_GRADIENT) + graph.flops(Pass.WEIGHT_GRADIENT)
    assert graph.flops(Pass.WEIGHT_GRADIENT) == graph.flops(Pass.FORWARD)
    assert backward == 2 * graph.flops(Pass.FORWARD) - first.matrix_flops
    assert not any(op.pass_ is Pass.INPUT_GRADIENT and op.layer == first.layer for op in graph.ops)


def test_the_forward_graph_is_untouched_and_part_of_the_training_graph():
    forward = load_model("resnet18").forward(2)
    before = (dict(forward.tensors), forward.ops)
    graph = training_graph(forward, SGD)
    assert (dict(forward.tensors), forward.ops) == before
    part = tuple(op for op in graph.ops if op.pass_ is Pass.FORWARD)
    assert [op.name for op in part] == [op.name for op in forward.ops]


def _chain(*layers):
    b = GraphBuilder("chain", 2, PRECISIONS["fp32"])
    x, labels = b.input("images", (2, 3, 8, 8)), b.input("labels", (2,), "int64")
    for i, layer in enumerate(layers):
        x = layer(b, f"layer{i}", x)
    x = ops.linear(b, "fc", x, 5, bias=False, flatten=True)
    return b, ops.cross_entropy(b, "loss", x, labels)


def _conv(b, name, x):
    return ops.conv2d(b, name, x, 3, 3, padding=1)


def _pool(b, name, x):
    return ops.max_pool(b, name, x, 2)


def _drop(b, name, x):
    return ops.dropout(b, name, x, 0.5)


def _tanh(b, name, x):
    return ops.activation(b, name, x, "tanh")


def _reads(graph, layer):
    forward = {name for op in graph.ops if op.pass_ is Pass.FORWARD for name in op.outputs}
    return {
        name
        for op in graph.ops
        if op.layer == layer and op.pass_ is not Pass.FORWARD
        for name in op.inputs
        if name in forward
    }


def test_saved_tensors_are_what_the_gradients_read():
    b, loss = _chain(_conv, ops.batch_norm, ops.relu, _pool, _drop)
    graph = training_graph(b.graph(loss), SGD)
    assert _reads(graph, "layer1") == {
        "layer0.add-bias.y",
        "layer1.mean",
        "layer1.inverse-deviation",
    }
    assert _reads(graph, "layer2") == {"layer2.y"}
    assert _reads(graph, "layer3") == {"layer3.indices"}
    assert _reads(graph, "layer4") == {"layer4.mask"}
    assert graph.tensors["layer3.indices"].bytes == 8 * graph.tensors["layer3.y"].elements


def test_relu_works_in_place_only_if_nothing_else_needs_its_input():
    def relu_beside(b, name, x):
        return ops.add(b, f"{name}.add", ops.relu(b, name, x), x)

    b, loss = _chain(_conv, ops.relu)
    alone = {op.name: op.in_place for op in training_graph(b.graph(loss), SGD).ops}
    b, loss = _chain(_conv, relu_beside)
    beside = {op.name: op.in_place for op in training_graph(b.graph(loss), SGD).ops}
    b, loss = _chain(ops.relu)
    on_input = {op.name: op.in_place for op in training_graph(b.graph(loss), SGD).ops}
    assert alone["layer1"]
    assert not beside["layer1"]
    assert not beside["layer1.add"]  # relu's gradient reads its output
    assert not on_input["layer0"]


def test_a_tensor_that_a_gradient_needs_is_kept_in_training_and_overwritten_without():
    b, loss = _chain(_conv, _tanh, _tanh)
    forward = b.graph(loss)
    training = training_graph(forward, SGD)
    assert [op.in_place for op in forward.ops if op.kind == "tanh"] == [True, True]
    assert [op.in_place for op in training.ops if op.kind == "tanh"][:2] == [True, False]


def test_resnet_overwrites_in_every_relu_and_residual_add():
    graph = load_model("resnet50").training(2, "fp16-mixed")
    forward = [op for op in graph.ops if op.pass_ is Pass.FORWARD]
    assert all(op.in_place for op in forward if op.kind in {"relu", "add"})
    assert not any(op.in_place for op in forward if op.kind not in {"relu", "add", "bias"})


def test_fan_out_gradients_are_added_in_place():
    graph = load_model("resnet50").training(2)
    sums = [op for op in graph.ops if op.kind == "add" and op.pass_ is Pass.INPUT_GRADIENT]
    assert len(sums) == 16  # one for the two readers of each block's input
    assert all(op.in_place for op in sums)


def test_batch_norm_streams_its_input_twice_each_way():
    graph = load_model("resnet18").training(2)
    norms = [op for op in graph.ops if op.kind == "batch-norm"]
    passes = {op.pass_: op.input_passes for op in norms}
    assert passes == {Pass.FORWARD: (2, 1, 1, 1, 1), Pass.INPUT_GRADIENT: (2, 2, 1, 1, 1)}


def test_a_weight_that_does_not_reach_the_loss_is_an_error():
    b, loss = _chain()
    ops.linear(b, "stray", "images", 3)
    with pytest.raises(RidgelineError, match=r"'stray.weight' does not reach the loss"):
        training_graph(b.graph(loss), SGD)


def test_unknown_op_kinds_are_an_error():
    b, loss = _chain(ops.relu)
    forward = b.graph(loss)
    ops_ = tuple(replace(op, kind="fft") if op.kind == "gemm" else op for op in forward.ops)
    strange = replace(forward, ops=ops_)
    with pytest.raises(RidgelineError, match="no gradient is known for ops of kind 'fft'"):
        training_graph(strange, SGD)


def test_vector_flops_by_hand():
    """One image of 2 channels, 2 x 2; every count from the table of op kinds."""
    b = GraphBuilder("hand", 1, PRECISIONS["fp32"])
    x, labels = b.input("images", (1, 2, 2, 2)), b.input("labels", (1,), "int64")
    x = ops.batch_norm(b, "bn", ops.conv2d(b, "conv", x, 2, 1))  # 8 elements
    x = ops.max_pool(b, "pool", ops.relu(b, "relu", x), 2)  # 2 outputs of 4
    x = ops.linear(b, "fc", x, 3, bias=False, flatten=True)
    forward = b.graph(ops.cross_entropy(b, "loss", x, labels))
    graph = training_graph(forward, OPTIMIZERS["adam"])
    flops = {op.name: op.vector_flops for op in graph.ops if op.vector_flops}
    assert flops == {
        "conv.add-bias": 8,
        "bn": 5 * 8,
        "relu": 8,
        "pool": 8,
        "loss": 5 * 3,
        "loss.input-gradient": 3 * 3,
        "pool.input-gradient": 2,
        "relu.input-gradient": 8,
        "bn.input-gradient": 8 * 8,
        "conv.add-bias.weight-gradient": 8,
        "conv.weight.update": 14 * 4,
        "conv.bias.update": 14 * 2,
        "bn.weight.update": 14 * 2,
        "bn.bias.update": 14 * 2,
        "fc.weight.update": 14 * 6,
    }


def test_batch_norm_of_the_images_forms_no_input_gradient():
    b, loss = _chain(ops.batch_norm)
    op = next(
        o for o in training_graph(b.graph(loss), SGD).ops if o.layer == "layer0" and "-" in o.name
    )
    assert op.pass_ is Pass.WEIGHT_GRADIENT
    assert op.outputs == ("layer0.weight.grad", "layer0.bias.grad")
    assert op.input_passes == (1, 1, 1, 1, 1)
    assert op.vector_flops == 4 * 2 * 3 * 8 * 8


@pytest.mark.parametrize("name", one_of_each())
def test_flop_table_covers_every_kind_of_the_zoo(name):
    table = {kind for kind, _, _ in ops.flop_table()}
    for precision in ("fp32", "fp16-mixed"):
        assert {op.kind for op in shallow(name).training(1, precision).ops} <= table


def test_every_kind_is_computed_by_the_interpreter():
    # What only traces use has sizes but no layout (views are dropped), so that it cannot be run;
    # tests/workload/trace holds its FLOPs and what it keeps against PyTorch's own count.
    only_traced = {*FUNCTIONS, "matmul", "group-norm", "joint"}
    # Rounding is proven bit by bit in the tests of the number formats; a copy in another order of
    # axes, or of rows, changes no value (tests of layouts, tests/parallel/test_expert_formats.py).
    only_traced |= {"quantise", "layout", "in-order", "scatter-add"}
    only_traced.add("host-input")  # a mini-batch as the host sent it (tests of reproduced TPU v1)
    # What a ring of devices adds is played by tests/parallel/test_ring_data.py.
    only_traced.add("merge-attention")
    only_traced |= {"orthogonalise", "apply-update"}  # parts of updates, as "optimizer" is
    # Kernels of inference alone: sizes are held by tests/workload/test_kernel_graphs.py, of those
    # with a cache by tests/workload/test_generation.py.
    only_traced |= {"latent-attention", "head-products"}
    only_traced |= {"causal-conv1d", "delta-rule", "delta-rule-exchange", "delta-rule-step"}
    only_traced.add("scan-exchange")
    only_traced |= {
        "latent-attention",
        "head-products",
    }  # of a cache; tests/workload/test_generation
    kinds = {kind for kind, _, _ in ops.flop_table()} - {"optimizer"} - only_traced
    # What passes tensors between parts, and unpacks weights of few bits, computes no function.
    kinds -= {"hand-over", "take-over", "unpack"}
    assert kinds - SAME <= FORWARD.keys()
    assert kinds - SAME <= GRADIENT.keys()
