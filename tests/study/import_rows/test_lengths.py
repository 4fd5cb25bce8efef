"""How unequal batches of sentences are, against batches that are drawn."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ridgeline.study.import_rows.ragged_batches import _share_of_source, longest, of_two_languages

DRAWS = 20_000


@pytest.mark.parametrize("sentences", [1, 16, 128])
def test_the_longest_of_a_batch_varies_as_drawn(sentences: int) -> None:
    draw = np.random.default_rng(3).normal(0.0, 0.235, (DRAWS, sentences))
    most = np.exp(draw).max(axis=1)
    assert longest(sentences, 0.235) == pytest.approx(most.std() / most.mean(), rel=0.03)


@settings(max_examples=20)
@given(st.integers(1, 4096), st.floats(1e-3, 0.5))
def test_the_longest_of_more_sentences_varies_less(sentences: int, deviation: float) -> None:
    assert 0.0 < longest(2 * sentences, deviation) < longest(sentences, deviation)


@pytest.mark.parametrize("deviation", [0.05, 0.215, 0.4])
def test_the_work_of_a_batch_of_tokens_varies_as_drawn(deviation: float) -> None:
    source = _share_of_source("transformer-big")
    over = np.exp(np.random.default_rng(5).normal(0.0, deviation, DRAWS))  # source over target
    longer = np.maximum(over, 1.0)
    work = source * over / longer + (1.0 - source) * 1.0 / longer
    found = of_two_languages("transformer-big", deviation)
    assert found == pytest.approx(work.std() / work.mean(), rel=0.03)


def test_an_encoder_has_less_than_half_of_the_work() -> None:
    assert 0.3 < _share_of_source("transformer-big") < 0.5
