"""Optimizers: what they keep, read, write and compute for every weight."""

import pytest

from ridgeline.errors import RidgelineError
from ridgeline.workload import Role, load_model, memory_entries, optimizers
from ridgeline.workload.optimizers import OPTIMIZERS

STATES = {
    "sgd": 0,
    "sgd-momentum": 1,
    "adam": 2,
    "adamw": 2,
    "rmsprop": 2,
    "adagrad": 1,
    "lars": 1,
    "lamb": 2,
}


@pytest.mark.parametrize("name", STATES)
def test_states_are_fp32_tensors_of_the_weights_size(name):
    graph = load_model("lenet5").training(2, "bf16-mixed", OPTIMIZERS[name])
    assert memory_entries(graph).initial["optimizer"] == 4 * STATES[name] * graph.parameters


def test_adafactor_keeps_sums_of_rows_and_columns():
    rule = OPTIMIZERS["adafactor"]
    assert rule.state_shapes((30, 20)) == {
        "second-moment.rows": (30,),
        "second-moment.columns": (20,),
    }
    assert rule.state_shapes((4, 30, 20)) == {
        "second-moment.rows": (4, 30),
        "second-moment.columns": (4, 20),
    }
    assert rule.state_shapes((20,)) == {"second-moment": (20,)}
    graph = load_model("t5-small").training(1)
    states = [t for t in graph.tensors.values() if t.role is Role.STATE]
    assert sum(t.elements for t in states) < graph.parameters / 100


@pytest.mark.parametrize(
    ("name", "reads", "writes", "flops"),
    [
        ("sgd", 2, 1, 4),
        ("sgd-momentum", 3, 2, 6),
        ("adam", 4, 3, 14),
        ("adamw", 4, 3, 16),
        ("rmsprop", 4, 3, 11),
        ("adagrad", 3, 2, 6),
        ("lars", 5, 2, 10),  # weight and gradient again, once their norms are known
        ("lamb", 6, 4, 20),  # and the update, stored until its norm is known
    ],
)
def test_updates_move_these_tensors(name, reads, writes, flops):
    graph = load_model("mlp").training(2, "fp32", OPTIMIZERS[name])
    for op in graph.ops:
        if op.kind == "optimizer":
            size = graph.tensors[op.inputs[0]].elements
            assert graph.read_bytes(op) == 4 * reads * size
            assert graph.write_bytes(op) == 4 * writes * size
            assert op.vector_flops == flops * size


def test_every_rule_says_what_it_counts_and_where_it_comes_from():
    for rule in OPTIMIZERS.values():
        assert rule.rule
        assert rule.source
        assert rule.by_element == (rule.gradient_passes == 1)


def test_unknown_names_are_explained():
    with pytest.raises(RidgelineError, match="did you mean 'lamb'"):
        optimizers.find("lamp")
