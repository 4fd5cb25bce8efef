"""ridgeline's own file of graphs: exact out and in, and every mistake is one clear error."""

from __future__ import annotations

import json
from contextlib import suppress
from fractions import Fraction
from functools import cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import ridgeline as rl
from oracles.graph_zoo import one_of_each, shallow
from ridgeline.workload import optimizers
from ridgeline.workload.files import load_model
from ridgeline.workload.trace import native
from ridgeline.workload.trace.affine import AffineNumber, NotAffineError, at_batch, joined, parse
from thoroughly import one_in, sample_of

NOT_AFFINE = {"deepseek-v2", "kimi-k2"}  # the rows of their many experts are rounded up
SMALL = ["mlp", "lenet5", "resnet18", "gpt2", "lstm-lm", "dlrm", "mobilenet"]


def _through_file(model, precisions=None, batch=None):
    text = native.to_text(native.model_document(model, precisions, batch))
    return native.from_document(json.loads(text), "a file")


@pytest.mark.parametrize("name", one_in(4, one_of_each()))
def test_a_network_survives_the_way_through_a_file(name):
    model = shallow(name)
    batch = 3 if name in NOT_AFFINE else None
    again = _through_file(model, ["bf16-mixed"], batch)
    assert again.forward(3, "bf16-mixed") == model.forward(3, "bf16-mixed")


@cache
def _again(name):
    return _through_file(load_model(name))


@sample_of(
    4,
    15,
    name=st.sampled_from(SMALL),
    batch=st.integers(1, 5000),
    precision=st.sampled_from(native.WHOLE_PRECISIONS),
)
def test_every_batch_and_precision_is_exact(name, batch, precision):
    again = _again(name)
    assert again.training(batch, precision) == load_model(name).training(batch, precision)


def test_a_graph_that_is_not_affine_is_named_and_can_be_written_for_one_batch():
    model = load_model("deepseek-v2")
    with pytest.raises(NotAffineError, match=r"blocks\.1\.experts"):
        native.model_document(model, ["fp32"])
    again = _through_file(model, ["fp32"], 2)
    with pytest.raises(rl.RidgelineError, match="batch of 2 only"):
        again.forward(4)


def test_a_training_graph_survives_with_its_optimizer():
    graph = load_model("mlp").training(4, "fp16-mixed")
    document = native.graph_file(graph, "sgd-momentum")
    again = native.from_document(json.loads(native.to_text(document)), "a file")
    assert again.training(4, "fp16-mixed") == graph
    with pytest.raises(rl.RidgelineError, match="adamw"):
        again.training(4, "fp16-mixed", optimizers.find("adamw"))


def test_a_missing_precision_is_an_error():
    with pytest.raises(rl.RidgelineError, match="no graph for the precision 'bf16-mixed'"):
        _through_file(load_model("mlp"), ["fp32"]).forward(1, "bf16-mixed")


def test_a_step_of_the_file_is_that_of_the_network(tmp_path):
    path = tmp_path / "net.json"
    path.write_text(native.to_text(native.model_document(load_model("lenet5"))))
    plan = rl.Plan(global_batch=64, data=4)
    a = rl.simulate(rl.load_model(path), "dgx1-v100", plan, software="ideal")
    b = rl.simulate("lenet5", "dgx1-v100", plan, software="ideal")
    assert any("as recorded, not as ideal" in note for note in a.manifest["notes"])
    assert (a.step_time_s, a.energy_j, a.memory_bytes) == (
        b.step_time_s,
        b.energy_j,
        b.memory_bytes,
    )


fractions = st.fractions(max_denominator=50)


@given(fractions, fractions)
def test_affine_numbers_survive_as_text(a, b):
    line = AffineNumber(a, b)
    if b:
        again = parse(str(line))
        assert isinstance(again, AffineNumber)
        assert again == line


@given(st.integers(-50, 50), st.integers(-50, 50), st.integers(1, 99))
def test_two_points_give_the_line(at_zero, slope, batch):
    def document(n):
        return {"a": [at_zero + slope * n, "text"], "b": Fraction(n, 7)}

    both = joined(document(8), document(16), (8, 16))
    assert at_batch(both, batch) == document(batch)


def _edited(edit):
    document = json.loads(native.to_text(native.model_document(load_model("mlp"), ["fp32"])))
    edit(document)
    return document


def _set(*path_and_value):
    *path, last, value = path_and_value

    def edit(document):
        for key in path:
            document = document[key]
        document[last] = value

    return edit


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (_set("version", 7), "version"),
        (_set("format", "x"), "format"),
        (_set("optimizer", "adamx"), "adam"),
        (_set("colour", 1), "unknown field"),
        (_set("graphs", []), "graphs"),
        (_set("graphs", 0, "batch", 0), r"graphs\.0\.batch"),
        (_set("graphs", 0, "loss", "nothing"), r"graphs\.0\.loss"),
        (_set("graphs", 0, "precision", "fp1"), "precision"),
        (_set("graphs", 0, "ops", 0, "inputs", ["gone"]), r"ops\.0\.inputs"),
        (_set("graphs", 0, "ops", 0, "pass", "sideways"), r"ops\.0\.pass"),
        (_set("graphs", 0, "ops", 0, "vector_flops", "many"), r"vector_flops"),
        (_set("graphs", 0, "ops", 0, "vector_flops", 10**30), "beyond"),
        (_set("graphs", 0, "ops", 0, "gemm", {"m": 1, "n": 1, "k": 0}), "k of"),
        (_set("graphs", 0, "ops", 0, "input_passes", [1]), "input_passes"),
        (_set("graphs", 0, "tensors", "images", ["input", "fp32", [1, "batch/3"]]), "batch/3"),
        (_set("graphs", 0, "tensors", "images", ["input", "fp33", [1]]), "fp32"),
    ],
)
def test_a_mistake_is_named_with_its_place(edit, message):
    with pytest.raises(rl.RidgelineError, match=message):
        native.from_document(_edited(edit), "net.json")


def test_ops_in_a_circle_are_refused():
    def swap(document):
        ops = document["graphs"][0]["ops"]
        ops[0], ops[1] = ops[1], ops[0]

    with pytest.raises(rl.RidgelineError, match="read before any op has written it"):
        native.from_document(_edited(swap), "net.json")


@pytest.mark.parametrize(
    "text",
    [
        '{"format": "ridgeline-graph", ',
        '{"format": "ridgeline-graph", "format": 1}',
        '{"format": "ridgeline-graph", "x": ' + "[" * 100_000,
        '{"format": "ridgeline-graph", "x": ' + "9" * 10_000 + "}",
        "",
    ],
)
def test_a_damaged_file_is_one_error(tmp_path, text):
    path = tmp_path / "net.json"
    path.write_text(text)
    with pytest.raises(rl.ConfigError, match=r"net\.json"):
        rl.load_model(path)


@given(st.data())
@settings(max_examples=40, deadline=None)
def test_no_cut_or_changed_file_gives_anything_but_an_error_or_a_network(tmp_path_factory, data):
    text = native.to_text(native.model_document(load_model("mlp"), ["fp32"], 2))
    at = data.draw(st.integers(0, len(text) - 1))
    changed = text[:at] + data.draw(st.sampled_from(["", "7", '"', "[", "-", "x"])) + text[at + 1 :]
    path = tmp_path_factory.mktemp("cut") / "net.json"
    path.write_text(changed if data.draw(st.booleans()) else text[:at])
    with suppress(rl.RidgelineError):
        rl.load_model(path)
