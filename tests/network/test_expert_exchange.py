"""Dispatch and combine of experts by a library: the slowest of links, kernels, adapters."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ridgeline.errors import RidgelineError
from ridgeline.hardware import load_cluster
from ridgeline.network import from_cluster
from ridgeline.network.expert_exchange import (
    ExchangeShape,
    all_copies,
    call_named,
    exchange_calls,
    exchange_time_s,
)

ONE = from_cluster(load_cluster("dgx-h100"), 8)
FOUR = from_cluster(load_cluster("superpod-h100"), 32)


def test_a_tokens_copies() -> None:
    assert all_copies(8, 256, 8, once_each=False) == 8
    assert all_copies(1, 8, 8, once_each=True) == pytest.approx(1)
    assert all_copies(8, 8, 8, once_each=True) == pytest.approx(8)
    with pytest.raises(RidgelineError, match="9 of 8 experts"):
        all_copies(9, 8, 4, once_each=True)


def test_low_latency_kernels_send_every_choice_over_adapters() -> None:
    call = call_named("deepep-low-latency", "combine")
    few = exchange_time_s(call, ExchangeShape(0, 8, 256, 14336.0), FOUR, 32)
    many = exchange_time_s(call, ExchangeShape(256, 8, 256, 14336.0), FOUR, 32)
    # three of four choices leave the node, over one adapter of 48 GB/s a device
    assert many - few == pytest.approx(256 * 8 * 0.75 * 14336 / 48e9, rel=0.01)


def test_multiprocessors_that_are_given_hold_back() -> None:
    call = call_named("deepep-normal", "dispatch")
    shape = ExchangeShape(65536, 8, 256, 7392.0)
    four, eight, many = (exchange_time_s(call, shape, ONE, 8, sms) for sms in (4, 8, 128))
    assert four > 1.8 * eight > many


@settings(max_examples=40, deadline=None)
@given(st.sampled_from(sorted(exchange_calls())), st.integers(1, 4096), st.sampled_from([8, 32]))
def test_more_tokens_never_take_less(key: tuple[str, str], tokens: int, ranks: int) -> None:
    call, where = exchange_calls()[key], ONE if ranks == 8 else FOUR
    less, more = (
        exchange_time_s(call, ExchangeShape(n, 8, 256, 7168.0), where, ranks, 20)
        for n in (tokens, tokens + 1)
    )
    assert 0 < less <= more


def test_an_unknown_call_names_the_nearest() -> None:
    with pytest.raises(RidgelineError, match=r"called 'deepep-norml dispatch'.*deepep-normal"):
        call_named("deepep-norml", "dispatch")
