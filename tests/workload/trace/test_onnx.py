"""ONNX files: exported by PyTorch against the zoo; built by hand, broken and unusual ones."""

import pytest

onnx = pytest.importorskip("onnx", reason="onnx is not installed: make test-trace")

import itertools
import os

import numpy as np
from onnx import TensorProto, helper, numpy_helper

import ridgeline as rl
from ridgeline.cli import execute
from ridgeline.errors import ConfigError, RidgelineError
from ridgeline.workload import Pass
from ridgeline.workload.trace.network import TraceWarning
from ridgeline.workload.trace.onnx_graph import _ordered

FLOAT, INT = TensorProto.FLOAT, TensorProto.INT64


def weight(name, *shape):
    return numpy_helper.from_array(np.ones(shape, np.float32) * 0.5, name)


def write(path, nodes, inputs, outputs, weights=(), opset=17):
    def declare(items):
        return [helper.make_tensor_value_info(n, kind, shape) for n, (kind, shape) in items.items()]

    graph = helper.make_graph(nodes, "g", declare(inputs), declare(outputs), list(weights))
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)])
    path.write_bytes(model.SerializeToString())
    return path


def perceptron(path, batch="n", middle=(), **more):
    nodes = [
        helper.make_node("Gemm", ["x", "a.weight", "a.bias"], ["h"], transB=1),
        *middle,
        helper.make_node("Relu", ["h" if not middle else "m"], ["r"]),
        helper.make_node("MatMul", ["r", "b.weight"], ["y"]),
    ]
    weights = [weight("a.weight", 32, 16), weight("a.bias", 32), weight("b.weight", 32, 8)]
    inputs, outputs = {"x": (FLOAT, [batch, 16])}, {"y": (FLOAT, [batch, 8])}
    return write(path, nodes, inputs, outputs, weights, **more)


def test_a_file_is_a_model_for_any_batch(tmp_path, capsys):
    path = perceptron(tmp_path / "mlp.onnx")
    model = rl.load_model(path)
    for batch in (1, 6, 100):
        graph = model.training(batch, "bf16-mixed")
        assert graph.parameters == 32 * 17 + 32 * 8
        assert graph.flops(Pass.FORWARD) == 2 * batch * (16 * 32 + 32 * 8)
    assert "the loss of the output 'y' was added: cross-entropy" in graph.notes
    assert graph.ops[0].layer == "a"
    assert execute(["run", str(path), "dgx1-v100", "--plan", "data=8", "--batch", "64"]) == 0
    assert execute(["show", str(path)]) == 0
    assert "800 parameters" in capsys.readouterr().out


def test_a_batch_that_is_a_number_in_the_file_is_symbolic_where_nothing_depends_on_it(tmp_path):
    assert rl.load_model(perceptron(tmp_path / "x.onnx", batch=4)).training(9).batch == 9


def test_sizes_that_are_only_named_must_be_given(tmp_path):
    nodes = [helper.make_node("MatMul", ["x", "w"], ["y"])]
    inputs, outputs = {"x": (FLOAT, ["n", "time", 4])}, {"y": (FLOAT, ["n", "time", 5])}
    path = write(tmp_path / "x.onnx", nodes, inputs, outputs, [weight("w", 4, 5)])
    with pytest.raises(ConfigError, match=r"the symbolic size 'time'; give it as .*dims\.time"):
        rl.load_model(path)
    graph = rl.load_model(path, {"dims.time": 7, "loss": "mse"}).training(2)
    assert graph.flops(Pass.FORWARD) == 2 * 2 * 7 * 4 * 5


def test_unknown_operators_warn_or_are_refused(tmp_path):
    odd = helper.make_node("Sorcery", ["h"], ["m"], domain="magic")
    path = perceptron(tmp_path / "x.onnx", middle=[odd])
    with pytest.raises(ConfigError, match=r"the shape of node 'Sorcery'"):
        rl.load_model(path)
    model = onnx.load(path)
    model.graph.value_info.append(helper.make_tensor_value_info("m", FLOAT, ["n", 32]))
    model.opset_import.append(helper.make_opsetid("magic", 1))
    path.write_bytes(model.SerializeToString())
    with pytest.warns(TraceWarning, match=r"Sorcery \(1 x, .*%"):
        graph = rl.load_model(path).training(3)
    assert "unknown" in {op.kind for op in graph.ops}
    with pytest.raises(RidgelineError, match="unknown operations: Sorcery"):
        rl.load_model(path, {"strict": True})


def test_cycles_missing_values_and_garbage_are_one_error_each(tmp_path, capsys):
    nodes = [
        helper.make_node("Add", ["x", "b"], ["a"], name="first"),
        helper.make_node("Relu", ["a"], ["b"], name="second"),
    ]
    io = {"x": (FLOAT, [2, 3])}, {"b": (FLOAT, [2, 3])}
    cyclic = write(tmp_path / "cyclic.onnx", nodes, *io)
    missing = write(tmp_path / "missing.onnx", [helper.make_node("Add", ["x", "q"], ["b"])], *io)
    wrong = tmp_path / "wrong.onnx"
    wrong.write_bytes(b"\x3a\x05\x0a\x03\x0a\x01\xff")
    for path, message in (
        (cyclic, "a cycle through the nodes first, second"),
        (missing, "reads 'q', which nothing makes"),
        (wrong, "wrong.onnx"),
    ):
        assert execute(["run", str(path), "dgx1-v100", "--batch", "8"]) == 2
        error = capsys.readouterr().err
        assert message in error
        assert "Traceback" not in error


def spoil_opset(model):
    model.opset_import[0].version = 999


def spoil_no_opset(model):
    model.opset_import[0].version = 0


def spoil_few_bytes(model):
    tensor = model.graph.initializer[1]
    tensor.raw_data = tensor.raw_data[:-4]


def spoil_many_bytes(model):
    model.graph.initializer[1].raw_data += b"more"


def spoil_sizes(model):
    model.graph.initializer[0].dims[:] = [2**40, 2**40]


def spoil_sign(model):
    model.graph.initializer[0].dims[0] = -32


def spoil_input(model):
    model.graph.input[0].type.tensor_type.shape.dim[1].dim_value = -16


def spoil_type(model):
    model.graph.initializer[0].data_type = 99


def spoil_escapes(model):
    model.graph.node[0].input[0] = "\x1b[31m\u202e"


def spoil_attribute(model):
    model.graph.node[0].attribute[0].CopyFrom(helper.make_attribute("transB", "yes"))


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (spoil_opset, r"operators of version 999; the onnx package here knows 1 to \d+"),
        (spoil_no_opset, "operators of version 0"),
        (spoil_few_bytes, r"'a.bias' has 124 bytes; its sizes need 128"),
        (spoil_many_bytes, r"'a.bias' has 132 bytes; its sizes need 128"),
        (spoil_sizes, r"'a.weight' cannot have the sizes 1099511627776 x 1099511627776"),
        (spoil_sign, r"'a.weight' cannot have the sizes -32 x 16"),
        (spoil_input, r"the input 'x' cannot have the sizes -16"),
        (spoil_type, r"'a.weight' has the data type 99"),
        (spoil_escapes, r"reads '.*\\x1b\[31m.*', which nothing makes"),
        (spoil_attribute, r"x\.onnx: "),
    ],
)
def test_what_cannot_be_is_refused(tmp_path, spoil, message):
    path = perceptron(tmp_path / "x.onnx")
    model = onnx.load(path)
    spoil(model)
    path.write_bytes(model.SerializeToString())
    with pytest.raises(ConfigError, match=message) as caught:
        rl.load_model(path)
    assert str(caught.value).isprintable()


@pytest.mark.parametrize("size", [0, 1, 10, 100, 1000])
def test_a_file_that_is_cut_is_refused(tmp_path, size):
    path = perceptron(tmp_path / "x.onnx")
    path.write_bytes(path.read_bytes()[:size])
    with pytest.raises(ConfigError, match=r"x\.onnx"):
        rl.load_model(path)


def test_nodes_may_stand_in_any_order(tmp_path):
    names = ["x", *(f"v{i}" for i in range(3000))]
    nodes = [helper.make_node("Relu", [x], [y]) for x, y in itertools.pairwise(names)]
    last = helper.make_node("MatMul", [names[-1], "w"], ["y"])
    io = {"x": (FLOAT, ["n", 4])}, {"y": (FLOAT, ["n", 5])}
    path = write(tmp_path / "x.onnx", [last, *reversed(nodes)], *io, [weight("w", 4, 5)])
    ordered = _ordered(onnx.load(path).graph, path)
    assert [node.output[0] for node in ordered] == [*names[1:], "y"]


@pytest.mark.parametrize("location", ["not-there.bin", "../x.bin", "/dev/zero", "pipe"])
def test_weights_stored_elsewhere_are_never_looked_for(tmp_path, location):
    path = perceptron(tmp_path / "x.onnx")
    os.mkfifo(tmp_path / "pipe")
    model = onnx.load(path)
    for tensor in model.graph.initializer:
        tensor.ClearField("raw_data")
        tensor.data_location = TensorProto.EXTERNAL
        tensor.external_data.add(key="location", value=location)
    path.write_bytes(model.SerializeToString())
    assert rl.load_model(path).training(2).parameters == 800


def test_a_large_file_is_read_in_little_memory(tmp_path):
    import tracemalloc

    nodes = [helper.make_node("MatMul", ["x", "w"], ["y"])]
    io = {"x": (FLOAT, ["n", 4096])}, {"y": (FLOAT, ["n", 8192])}
    path = write(tmp_path / "x.onnx", nodes, *io, [weight("w", 4096, 8192)])
    tracemalloc.start()
    try:
        assert rl.load_model(path).training(2).parameters == 4096 * 8192
        assert tracemalloc.get_traced_memory()[1] < 32e6 < path.stat().st_size
    finally:
        tracemalloc.stop()


def test_tied_weights_that_are_stored_twice_are_one(tmp_path):
    table = np.random.default_rng(0).normal(size=(50, 6)).astype(np.float32)
    nodes = [
        helper.make_node("Gather", ["table", "ids"], ["e"]),
        helper.make_node("MatMul", ["e", "head"], ["y"]),
    ]
    io = {"ids": (INT, ["n", 5])}, {"y": (FLOAT, ["n", 5, 50])}
    for other, parameters in ((table.T, 300), (table.T + 1, 600)):
        head = numpy_helper.from_array(np.ascontiguousarray(other), "head")
        weights = [numpy_helper.from_array(table, "table"), head]
        graph = rl.load_model(write(tmp_path / "x.onnx", nodes, *io, weights)).training(2)
        assert graph.parameters == parameters
        assert graph.tokens_per_sample == 5


def test_sequences_are_their_parts(tmp_path):
    """As exporters write split and stack."""
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["h"]),
        helper.make_node("SplitToSequence", ["h", "size"], ["parts"], axis=1),
        helper.make_node("SequenceAt", ["parts", "zero"], ["a"]),
        helper.make_node("SequenceAt", ["parts", "one"], ["b"]),
        helper.make_node("SequenceConstruct", ["a", "b"], ["pair"]),
        helper.make_node("ConcatFromSequence", ["pair"], ["y"], axis=1),
    ]
    numbers = [
        numpy_helper.from_array(np.array(value, np.int64), name)
        for name, value in (("size", 6), ("zero", 0), ("one", 1))
    ]
    io = {"x": (FLOAT, ["n", 4])}, {"y": (FLOAT, ["n", 10])}
    path = write(tmp_path / "x.onnx", nodes, *io, [weight("w", 4, 10), *numbers])
    forward = rl.load_model(path).forward(3)
    assert [op.kind for op in forward.ops] == ["gemm", "concat", "loss"]
    assert [forward.tensors[y].shape for y in forward.ops[0].outputs] == [(3, 6), (3, 4)]


torch = pytest.importorskip("torch", reason="PyTorch is not installed: make test-trace")
from torch import nn

from workload.trace import torch_networks


def exported(make, inputs, path):
    """Export on the meta device: as an ONNX file whose weights are elsewhere."""
    ir = pytest.importorskip("onnx_ir", reason="onnxscript is not installed")
    pytest.importorskip("onnxscript", reason="onnxscript is not installed")
    with torch.device("meta"):
        module = make()
    held = {
        name
        for of in (module.named_parameters, module.named_buffers)
        for name, _ in of(remove_duplicate=False)
    }
    batch = torch.export.Dim("batch")
    program = torch.onnx.export(
        module, inputs, dynamo=True, optimize=False, verbose=False,
        dynamic_shapes=tuple({0: batch} for _ in inputs),
    )  # fmt: skip
    for name, value in program.model.graph.initializers.items():
        of = value.const_value
        if name in held:
            value.const_value = ir.ExternalTensor(
                "none", 0, of.nbytes, of.dtype, shape=of.shape, name=name
            )
    path.write_bytes(ir.to_proto(program.model).SerializeToString())
    return path


def ids(*shape):
    return torch.zeros(shape, dtype=torch.int64, device="meta")


IMAGES = (torch.zeros(2, 3, 224, 224, device="meta"),)
NETWORKS = {
    "resnet50": (lambda: torch_networks.ResNet50().eval(), IMAGES, {}),
    "vgg16": (torch_networks.Vgg16, IMAGES, {}),
    "bert-base": (lambda: torch_networks.Bert(layers=2), (ids(2, 512), ids(2, 512), ids(2, 80)),
                  {"layers": 2}),
    "gpt2": (lambda: torch_networks.Gpt2(layers=2), (ids(2, 1024),), {"layers": 2}),
    "llama3-8b": (lambda: torch_networks.Llama(layers=2), (ids(2, 8192),), {"layers": 2}),
    "lstm-lm": (torch_networks.LstmLm, (ids(2, 35),), {"bias": "two"}),
}  # fmt: skip


@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.filterwarnings("ignore")
def test_an_exported_network_agrees_with_the_zoo_and_with_pytorch(name, tmp_path):
    """Stacks of equal blocks have two of them, in the real sizes."""
    make, inputs, overrides = NETWORKS[name]
    loaded = rl.load_model(exported(make, inputs, tmp_path / f"{name}.onnx"))
    zoo = rl.load_model(name, overrides).training(4)
    with torch.device("meta"):
        traced = rl.trace(make(), *inputs).training(4)
    graph = loaded.training(4)
    assert graph.parameters == traced.parameters == zoo.parameters
    for part in (Pass.FORWARD, Pass.INPUT_GRADIENT, Pass.WEIGHT_GRADIENT):
        assert graph.flops(part) == pytest.approx(zoo.flops(part), rel=0.005)
        assert graph.flops(part) == pytest.approx(traced.flops(part), rel=0.005)
    assert graph.activation_bytes == pytest.approx(zoo.activation_bytes, rel=0.02)
    assert graph.activation_bytes == pytest.approx(traced.activation_bytes, rel=0.02)


class Folding(nn.Module):
    """What exporters compute ahead: norms, lookups by position, masks, copies of a token."""

    def __init__(self, width=12, heads=3, side=3):
        super().__init__()
        self.heads, n = heads, side * side
        self.stem = torch.nn.Conv2d(3, width, 4, stride=4, bias=False)
        self.norm = torch.nn.BatchNorm2d(width)
        self.token = torch.nn.Parameter(torch.zeros(1, 1, width))
        self.table = torch.nn.Parameter(torch.randn(2 * n + 1, heads))
        self.blocks = torch.nn.ModuleList([torch.nn.Linear(width, 4 * width) for _ in range(2)])
        self.norms = torch.nn.ModuleList([torch.nn.LayerNorm(width) for _ in range(2)])
        self.head = torch.nn.Linear(width, 5)
        where = torch.arange(n + 1)
        self.register_buffer("where", where[:, None] - where[None] + n)
        self.register_buffer(
            "mask", torch.zeros(n + 1, n + 1).masked_fill(where[:, None] < where, -1e9)
        )

    def forward(self, x):
        x = torch.relu(self.norm(self.stem(x))).flatten(2).transpose(1, 2)
        x = torch.cat([self.token.expand(x.shape[0], -1, -1), x], 1)
        bias = self.table[self.where.view(-1)].view(*self.where.shape, -1).permute(2, 0, 1)
        for block, norm in zip(self.blocks, self.norms, strict=True):
            q, k, v, y = block(norm(x)).chunk(4, -1)
            q, k, v = (t.unflatten(-1, (self.heads, -1)).transpose(1, 2) for t in (q, k, v))
            scores = q @ k.transpose(-1, -2) + bias + self.mask
            x = x + y * (scores.softmax(-1) @ v).transpose(1, 2).flatten(2)
        return self.head(x[:, 0])


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("dynamo", [False, True], ids=["legacy", "dynamo"])
@pytest.mark.parametrize("is_new", [True, False], ids=["new", "trained"])
def test_an_export_for_inference_has_the_parameters_of_the_module(dynamo, is_new, tmp_path):
    if dynamo:
        pytest.importorskip("onnxscript", reason="onnxscript is not installed")
    torch.manual_seed(0)
    module, x = Folding(), torch.zeros(2, 3, 12, 12)
    torch.nn.init.normal_(module.norm.bias)  # a folded bias of zeros is dropped by one exporter
    if not is_new:
        with torch.no_grad():
            for tensor in (*module.parameters(), module.norm.running_mean):
                tensor.copy_(torch.randn(tensor.shape))
    traced = rl.trace(module, x).training(4)
    path = tmp_path / "x.onnx"
    more = {"external_data": False, "verbose": False} if dynamo else {}
    torch.onnx.export(module.eval(), (x,), path, dynamo=dynamo, **more)
    graph = rl.load_model(path).training(2)
    assert graph.parameters == traced.parameters
    assert graph.flops() == traced.flops() // 2
    assert any("batch normalisation" in note for note in graph.notes)


class Fresh(nn.Module):
    """As initialised: equal layers, zeros, ones, a scalar; a table that is only looked up."""

    def __init__(self):
        super().__init__()
        layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)
        self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.stem, self.norm = nn.Conv1d(4, 16, 3, padding=1), nn.BatchNorm1d(16)
        self.token = nn.Embedding(7, 16)
        self.head = nn.Linear(16, 7, bias=False)
        self.head.weight = self.token.weight
        self.scale = nn.Parameter(torch.tensor(1.5))
        self.zero = nn.Linear(16, 16)
        nn.init.zeros_(self.zero.bias)
        self.register_buffer("window", torch.linspace(0, 1, 16))

    def forward(self, x, ids):
        x = self.norm(self.stem(x)).transpose(1, 2) + self.token(ids)
        x = self.layers(x * self.window + torch.arange(16.0))
        return self.head(self.zero(x)) * self.scale.exp()


@pytest.mark.filterwarnings("ignore")
def test_the_newer_exporter_states_its_parameters(tmp_path):
    pytest.importorskip("onnxscript", reason="onnxscript is not installed")
    torch.manual_seed(0)
    module, path = Fresh().eval(), tmp_path / "x.onnx"
    inputs = torch.randn(4, 4, 6), torch.zeros(4, 6, dtype=torch.int64)
    torch.onnx.export(module, inputs, path, dynamo=True, external_data=False, verbose=False)
    graph, traced = rl.load_model(path).training(4), rl.trace(module, *inputs).training(4)
    assert graph.parameters == traced.parameters == sum(p.numel() for p in module.parameters())
    assert graph.flops() == traced.flops()


@pytest.mark.filterwarnings("ignore")
def test_copied_modules_are_as_many_in_the_older_exporter(tmp_path):
    layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)
    module = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False).eval()
    x, path = torch.randn(4, 6, 16), tmp_path / "x.onnx"
    torch.onnx.export(module, (x,), path, dynamo=False)
    assert rl.load_model(path).training(4).parameters == sum(p.numel() for p in module.parameters())


@pytest.mark.parametrize(
    ("equation", "shapes", "flops"),
    [
        ("bld,dke,ble->blk", [(3, 6, 8), (8, 5, 8), (3, 6, 8)], 2 * 18 * 8 * 40 + 2 * 18 * 40),
        ("...d,kd->...k", [(3, 6, 8), (4, 8)], 2 * 18 * 32),
        ("bii->bi", [(3, 5, 5)], 0),
        ("bi,bj->bij", [(3, 5), (3, 4)], 2 * 3 * 20),
    ],
)
def test_einstein_sums_are_products_of_pairs(equation, shapes, flops, tmp_path):
    names = [f"x{i}" for i in range(len(shapes))]
    nodes = [
        helper.make_node("Gemm", ["x", "w"], ["h"]),
        helper.make_node("ReduceSum", ["h"], ["s"], keepdims=0),
        helper.make_node("Einsum", names, ["e"], equation=equation),
        helper.make_node("Mul", ["e", "s"], ["y"]),
    ]
    inputs = {"x": (FLOAT, [3, 2])} | {n: (FLOAT, s) for n, s in zip(names, shapes, strict=True)}
    shape = np.einsum(equation, *(np.zeros(s) for s in shapes)).shape
    path = write(tmp_path / "x.onnx", nodes, inputs, {"y": (FLOAT, shape)}, [weight("w", 2, 2)])
    graph = rl.load_model(path, {"loss": "mse"}).training(3)
    assert graph.flops(Pass.FORWARD) == flops + 2 * 3 * 4


@pytest.mark.parametrize("attribute", [{"keepdims": "x"}, {"axes": "no"}, {"odd": 3}])
def test_attributes_of_wrong_types_are_one_error(attribute, tmp_path, capsys):
    path = perceptron(
        tmp_path / "x.onnx", middle=[helper.make_node("Squeeze", ["h"], ["m"], **attribute)]
    )
    code = execute(["run", str(path), "dgx1-v100", "--batch", "8"])
    assert code == 2
    assert "Traceback" not in capsys.readouterr().err


def made_up(values, name="val_1"):
    return numpy_helper.from_array(np.asarray(values, np.float32), name)


@pytest.mark.filterwarnings("ignore::ridgeline.workload.trace.network.TraceWarning")
@pytest.mark.parametrize(
    ("values", "parameters"),
    [
        (np.zeros((1, 4, 4)), 0),  # a mask that hides nothing
        (np.triu(np.full((4, 4), -1e9), 1)[None], 0),
        (np.tile(np.arange(1.0, 5.0), (4, 1)), 4),  # a row for every position
        (np.arange(1.0, 5.0).repeat(4).reshape(1, 4, 4), 4),
        (np.arange(1.0, 17.0).reshape(1, 4, 4), 16),  # a table of positions
    ],
)
def test_what_is_added_ahead_is_a_mask_or_a_table(values, parameters, tmp_path):
    nodes = [
        helper.make_node("Add", ["x", "val_1"], ["a"]),
        helper.make_node("MatMul", ["a", "w"], ["y"]),
    ]
    inputs, outputs = {"x": (FLOAT, ["n", 4, 4])}, {"y": (FLOAT, ["n", 4, 3])}
    path = write(tmp_path / "x.onnx", nodes, inputs, outputs, [made_up(values), weight("w", 4, 3)])
    graph = rl.load_model(path).training(2)
    assert graph.parameters == parameters + 12
