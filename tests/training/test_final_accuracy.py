"""Final accuracies as published, between batches, and nowhere else."""

from __future__ import annotations

import pytest

from ridgeline.errors import RidgelineError
from ridgeline.training.final_accuracy import epochs_to_accuracy, final_accuracies


def test_alexnet_with_batch_norm_at_32k_fails_in_100_epochs_and_reaches_59_9_in_200() -> None:
    known = {of.epochs: of.top1_pct for of in final_accuracies("alexnet-bn", "lars", 32768)}
    assert known == {100: 57.8, 200: 59.9}
    assert epochs_to_accuracy("alexnet-bn", "lars", 32768, 59.9).epochs == 200
    assert epochs_to_accuracy("alexnet-bn", "lars", 8192, 59.9).epochs == 100
    with pytest.raises(RidgelineError, match=r"does not reach 60 %: .* 59\.9 % after 200 epochs"):
        epochs_to_accuracy("alexnet-bn", "lars", 32768, 60.0)


def test_goyals_table() -> None:
    for batch, error in ((256, 23.60), (8192, 23.74), (16384, 24.79), (65536, 33.96)):
        (found,) = final_accuracies("resnet50", "gradual warm-up", batch)
        assert found.top1_pct == pytest.approx(100 - error)
    (between,) = final_accuracies("resnet50", "gradual warm-up", 11585)  # in the middle of the logs
    assert between.top1_pct == pytest.approx(100 - (23.74 + 24.79) / 2, abs=0.01)


@pytest.mark.parametrize(
    ("network", "recipe", "batch", "says"),
    [
        ("resnet50", "gradual warm-up", 131072, "measured at batches of 256 to 65,536"),
        ("resnet50", "lamb", 256, "known: constant warm-up"),
        ("alexnet-nb", "lars", 8192, "did you mean 'alexnet-bn'"),
    ],
)
def test_outside_of_the_table(network: str, recipe: str, batch: int, says: str) -> None:
    with pytest.raises(RidgelineError, match=says):
        final_accuracies(network, recipe, batch)
