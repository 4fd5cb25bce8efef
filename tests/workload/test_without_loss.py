"""Inference runs neither losses nor classifiers that only help to train."""

from __future__ import annotations

import pytest

from ridgeline.workload.files import load_model


@pytest.mark.parametrize(
    ("name", "helps", "last"),
    [
        ("googlenet", "auxiliary", "fc.add-bias"),
        ("inception-v3", "auxiliary", "fc.add-bias"),
        ("fcn", "auxiliary", "classifier.upsample"),
    ],
)
def test_auxiliary_classifiers_do_not_run_in_inference(name: str, helps: str, last: str) -> None:
    model = load_model(name)
    training = [op.name for op in model.forward(2).ops]
    inference = model.inference(2)
    names = [op.name for op in inference.ops]
    assert any(each.startswith(helps) for each in training)
    assert not any(each.startswith(helps) for each in names)
    assert names[-1] == last
    # All else but losses is as it was, in the same order.
    left = [each for each in training if not each.startswith(helps) and "loss" not in each]
    assert names == left


@pytest.mark.parametrize("name", ["mask-rcnn", "bert-base", "retinanet"])
def test_all_heads_are_results_of_a_network(name: str) -> None:
    """Losses that are added up without weights: none of their heads is taken away."""
    model = load_model(name)
    before, after = model.forward(1), model.inference(1)
    assert sum(op.matrix_flops for op in after.ops) == sum(op.matrix_flops for op in before.ops)
    assert not [op.name for op in after.ops if op.kind == "loss"]
