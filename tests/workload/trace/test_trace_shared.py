"""What all tracers share: symbolic batches, idioms, the writer; no PyTorch, no onnx needed."""

import contextlib
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import ridgeline as rl
from ridgeline.cli import execute
from ridgeline.errors import ConfigError, RidgelineError
from ridgeline.workload import Pass, Role
from ridgeline.workload.trace import protobuf
from ridgeline.workload.trace.ir import Capture, Recorder, resolved
from ridgeline.workload.trace.network import TraceWarning, traced_model
from ridgeline.workload.trace.onnx_file import load_onnx
from ridgeline.workload.trace.patterns import fused
from ridgeline.workload.trace.symbolic import SymbolicAffine, merge


class Sketch(Recorder):
    """A recorder with the few steps that the tests write by hand."""

    def __init__(self, batch, features=16):
        super().__init__()
        self.batch, self.features = batch, features
        self.x = self.value((batch, features), "real", "input", "x")

    def op(self, kind, *inputs, shape=None, **attrs):
        out = self.value(shape or self.values[inputs[0]].shape, "real")
        self.step(kind, attrs.pop("layer", ""), inputs, (out,), attrs.pop("source", ""), **attrs)
        return out

    def linear(self, x, name, features):
        rows, k = self.values[x].shape
        weight = self.value((features, k), "real", "weight", f"{name}.weight")
        shape = (rows, features)
        return self.op(
            "matmul", x, weight, shape=shape, layer=name, m=rows, n=features, k=k, batch=1
        )

    def done(self, x):
        labels = self.value((self.values[x].shape[0],), "int64", "input", "labels")
        loss = self.op("loss", x, labels, shape=(), which="cross-entropy", axis=1)
        return Capture(self.values, tuple(self.steps), loss, self.batch)


def perceptron(batch):
    sketch = Sketch(batch)
    return sketch.done(sketch.linear(sketch.op("relu", sketch.linear(sketch.x, "a", 32)), "b", 8))


def model(write, **options):
    chosen = {"optimizer": "sgd", "strict": False, "attention": "separate"} | options
    return traced_model([write(n) for n in (2, 4, 6)], "sketch", "by hand", **chosen)


def kinds_of(capture):
    return [step.kind for step in fused(resolved(capture)).steps]


def test_a_traced_network_is_a_model_for_any_batch_and_every_optimizer():
    traced = model(perceptron)
    for batch in (1, 7, 512):
        graph = traced.training(batch, "fp16-mixed")
        assert graph.batch == batch
        assert graph.parameters == 16 * 32 + 32 * 8
        assert graph.flops(Pass.FORWARD) == 2 * batch * graph.parameters
        assert graph.flops(Pass.WEIGHT_GRADIENT) == graph.flops(Pass.FORWARD)
    assert traced.input_bytes_per_sample == 16 * 4 + 8
    result = rl.simulate(traced, "dgx1-v100", rl.Plan(data=2, global_batch=64, micro_batch=8))
    assert result.step_time_s > 0
    assert result.manifest["model"]["parameters"] == 16 * 32 + 32 * 8


@given(st.integers(0, 50), st.integers(0, 9), st.integers(2, 20))
def test_numbers_of_three_traces_become_a_line(fixed, slope, batch):
    def write(n):
        sketch = Sketch(n)
        cut = sketch.op("slice", sketch.x, shape=(n, 4), axis=1, start=fixed + slope * n, length=4)
        return sketch.done(sketch.linear(cut, "a", 3))

    symbolic = merge([resolved(write(batch * i)) for i in (1, 2, 3)])
    assert not symbolic.fixed_because
    assert symbolic.at(100).steps[0].attrs["start"] == fixed + slope * 100
    assert symbolic.fingerprint == merge([resolved(write(n)) for n in (5, 6, 9)]).fingerprint


def test_sizes_that_are_no_lines_are_named_and_fix_the_batch():
    def write(n):
        sketch = Sketch(n)
        pairs = sketch.op(
            "rearrange", sketch.x, shape=(n * n, 16), layer="pairs", source="all pairs"
        )
        return sketch.done(sketch.linear(pairs, "a", 3))

    with pytest.warns(
        TraceWarning, match="only batch 2 can be priced: the op all pairs in 'pairs'"
    ):
        traced = model(write)
    assert traced.training(2).parameters == 48
    with pytest.raises(RidgelineError, match=r"traced at batch 2 .*3 was asked for.*all pairs"):
        traced.training(3)
    assert traced.input_bytes_per_sample > 0


def test_a_size_that_is_only_sometimes_whole_asks_for_the_right_batch():
    line = SymbolicAffine(Fraction(0), Fraction(1, 2))
    assert line.at(4) == 2
    assert line.at(3) is None


def test_unknown_operations_are_named_with_number_and_share_or_refused():
    def write(n):
        sketch = Sketch(n)
        x = sketch.linear(sketch.x, "a", 16)
        for _ in range(2):
            x = sketch.op("unknown", x, source="my.op")
        return sketch.done(sketch.linear(x, "b", 4))

    # 2 x 16 elements a sample, over 2 x 16 x 20 matrix FLOPs, and 5 FLOPs a logit
    share = 32 / (32 + 640 + 20)
    message = rf"my\.op \(2 x, {share:.2%} of the forward FLOPs"
    with pytest.warns(TraceWarning, match=message):
        traced = model(write)
    with pytest.raises(RidgelineError, match=message):
        model(write, strict=True)
    kinds = [op.kind for op in traced.training(4).ops]
    assert kinds.count("unknown") == 4  # forward and backward


def test_a_loss_without_weights_is_an_error():
    with pytest.raises(RidgelineError, match="depends on no trained parameter"):
        model(lambda n: (s := Sketch(n)).done(s.op("relu", s.x)))


def test_weights_that_the_loss_does_not_need_are_held_but_not_trained():
    def write(n):
        sketch = Sketch(n)
        sketch.value((10, 10), "real", "weight", "idle")
        sketch.value((3,), "real", "frozen", "frozen")
        return sketch.done(sketch.linear(sketch.x, "a", 4))

    graph = model(write).training(2)
    assert graph.parameters == 100 + 64 + 3
    assert graph.tensors["frozen"].role is Role.WEIGHT
    assert graph.frozen == {"frozen"}
    assert [op.inputs[0] for op in graph.ops if op.kind == "optimizer"] == ["a.weight"]


@pytest.mark.parametrize(
    ("write", "kind"),
    [
        (lambda s, x: s.op("multiply", x, s.op("sigmoid", x)), "silu"),
        (
            lambda s, x: s.op("multiply", s.op("scale", x, number=0.5),
                              s.op("shift", s.op("erf", s.op("scale", x, number=0.7)), number=1.0)),
            "gelu",
        ),
        (
            lambda s, x: s.op("multiply", x, s.op("rsqrt", s.op("shift", s.op(
                "mean", s.op("multiply", x, x), shape=(s.batch, 1)), number=1e-6))),
            "normalize",
        ),
    ],
)  # fmt: skip
def test_idioms_become_the_op_that_they_mean(write, kind):
    sketch = Sketch(2)
    x = sketch.linear(sketch.x, "a", 16)
    capture = sketch.done(sketch.linear(write(sketch, x), "b", 4))
    assert kinds_of(capture) == ["matmul", kind, "matmul", "loss"]


def test_an_idiom_whose_inside_is_needed_elsewhere_stays_as_it_is():
    sketch = Sketch(2)
    x = sketch.linear(sketch.x, "a", 16)
    gate = sketch.op("sigmoid", x)
    y = sketch.op("add", sketch.op("multiply", x, gate), gate)
    assert "silu" not in kinds_of(sketch.done(sketch.linear(y, "b", 4)))


def test_a_product_that_is_taken_apart_writes_its_parts():
    sketch = Sketch(2)
    x = sketch.linear(sketch.x, "a", 48)
    bias = sketch.value((48,), "real", "weight", "a.bias")
    x = sketch.op("add", x, bias, layer="a")
    parts = [
        sketch.op("slice", x, shape=(2, 16), axis=1, start=16 * i, length=16) for i in range(3)
    ]
    y = sketch.op("add", sketch.op("multiply", parts[0], parts[1]), parts[2])
    capture = fused(resolved(sketch.done(sketch.linear(y, "b", 4))))
    assert [s.kind for s in capture.steps[:4]] == ["matmul", "bias", "bias", "bias"]
    assert len(capture.steps[0].outputs) == 3
    assert sum(v.elements for v in capture.values.values() if v.origin == "weight") == 48 * 17 + 64


def test_constants_are_no_part_of_the_step():
    sketch = Sketch(2)
    mask = sketch.value((2, 16), "real", "constant")
    masked = sketch.op("multiply", sketch.x, sketch.op("exp", mask))
    assert kinds_of(sketch.done(sketch.linear(masked, "a", 4))) == ["multiply", "matmul", "loss"]


@settings(max_examples=150, deadline=None)
@given(st.binary(max_size=200))
def test_any_bytes_give_a_config_error_or_are_read(tmp_path_factory, data):
    path = tmp_path_factory.mktemp("onnx") / "x.onnx"
    path.write_bytes(data)
    with contextlib.suppress(ConfigError):
        rest, places = protobuf.slim(path)
        assert len(rest) <= 2 * len(data) + 16
        assert not places


def message(number, content):
    return protobuf._delimited(number, content)


def test_the_data_of_large_initializers_is_left_out_and_found_again(tmp_path):
    data = bytes(range(256)) * 1024
    tensor = message(8, b"w") + message(9, data)
    path = tmp_path / "x.onnx"
    path.write_bytes(message(7, message(5, tensor) + message(2, b"graph")))
    rest, places = protobuf.slim(path)
    assert len(rest) < 100
    place = places["w"]
    assert path.read_bytes()[place.offset : place.offset + place.size] == data


@pytest.mark.parametrize("cut", [1, 100, 70_000])
def test_a_file_that_is_cut_off_is_one_error(tmp_path, cut):
    whole = message(7, message(5, message(8, b"w") + message(9, bytes(2**17))))
    path = tmp_path / "x.onnx"
    path.write_bytes(whole[:-cut])
    with pytest.raises(ConfigError, match="cut off"):
        load_onnx(path, {})


def test_pickles_are_never_read_and_missing_files_are_named(tmp_path, capsys):
    path = tmp_path / "model.pt"
    path.write_bytes(b"\x80\x04.")
    assert execute(["run", str(path), "dgx1-v100", "--batch", "8"]) == 2
    assert "a pickle is a program that runs when it is loaded" in capsys.readouterr().err
    assert execute(["show", str(tmp_path / "none.onnx")]) == 2
    assert "No such file" in capsys.readouterr().err
    empty = tmp_path / "empty.onnx"
    empty.touch()
    assert execute(["run", str(empty), "dgx1-v100", "--batch", "8"]) == 2
    assert "the file is empty" in capsys.readouterr().err


def test_without_pytorch_the_error_says_what_to_install(monkeypatch):
    import sys

    monkeypatch.setitem(sys.modules, "torch", None)
    monkeypatch.delitem(sys.modules, "ridgeline.workload.trace.torch_trace", raising=False)
    monkeypatch.delattr("ridgeline.workload.trace.torch_trace", raising=False)
    with pytest.raises(RidgelineError, match=r"pip install 'ridgeline\[trace\]'"):
        rl.trace(None, None)


def test_options_of_a_trace_are_checked(tmp_path):
    with pytest.raises(ConfigError, match="unknown option; did you mean 'loss'"):
        load_onnx(tmp_path / "x.onnx", {"los": "mse"})
    with pytest.raises(ConfigError, match="unknown loss 'hinge'"):
        load_onnx(tmp_path / "x.onnx", {"loss": "hinge"})
