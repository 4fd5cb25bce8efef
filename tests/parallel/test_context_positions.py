"""Sharing positions among devices needs a sample that is a sequence of tokens."""

from __future__ import annotations

import pytest

import ridgeline as rl
from ridgeline.errors import ConfigError


@pytest.mark.parametrize("model", ["vit-b16", "resnet18"])
def test_context_without_positions_says_that_there_are_none(model: str) -> None:
    with pytest.raises(ConfigError, match=r"context=2 shares the positions.*allowed: 1"):
        rl.simulate(model, "dgx1-v100", rl.Plan(context=2, global_batch=8))
