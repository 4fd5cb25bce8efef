"""Stated ranges: seeded, replayed and not lowered again, as wide as their tables say."""

from __future__ import annotations

import json
from dataclasses import replace
from statistics import NormalDist
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ridgeline import catalog
from ridgeline.hardware import load_device
from ridgeline.parallel.plan.plan import Plan
from ridgeline.report import uncertainty as module
from ridgeline.report.result import Result
from ridgeline.report.summary import headline
from ridgeline.report.uncertainty import class_key, distributions, ground, sample, uncertainty
from ridgeline.report.uncertainty.distributions import (
    ModelError,
    model_error,
    relation_of,
    scatter,
    spread,
)
from ridgeline.report.uncertainty.ground import ground_of, kind_of, step_errors
from ridgeline.simulation import simulate
from ridgeline.software.load import load_software
from ridgeline.study.validate import SUITES

PROGRAM = "pytorch-amp-2021"


@pytest.fixture(scope="module", name="result")
def eight_devices() -> Result:
    plan = Plan(global_batch=64, data=8, precision="fp32")
    return simulate("alexnet", "dgx1-v100", plan, software=PROGRAM)


@pytest.fixture(scope="module", name="single")
def one_device() -> Result:
    plan = Plan(global_batch=64, precision="fp16-mixed")
    return simulate("resnet18", "dgx1-v100", plan, software=PROGRAM)


def with_spreads(monkeypatch: pytest.MonkeyPatch, factor: float) -> None:
    """Scale what is known of parameters, and leave the model's own error out."""
    spread, scatter = distributions.spread, distributions.scatter
    monkeypatch.setattr(module, "spread", lambda *args: factor * spread(*args))
    monkeypatch.setattr(module, "scatter", lambda *args: factor * scatter(*args))
    monkeypatch.setattr(module, "model_error", lambda _: None)
    exact = next(iter(step_errors().values()))
    error = replace(exact.error, median=0.0, low=0.0, high=0.0)
    known = ground.Ground(replace(exact, error=error), "none")
    monkeypatch.setattr(module, "ground_of", lambda _: known)


def test_equal_results_have_equal_ranges_and_the_json_has_them(result: Result) -> None:
    stated = json.loads(result.to_json())["uncertainty"]
    assert stated == uncertainty(replace(result))
    assert set(stated) == {"step_time_s", "energy_j"}
    for interval in stated.values():
        assert 0 < interval["p05"] < interval["p95"]
    assert stated != uncertainty(result, seed=1)


def test_the_keys_of_json_keep_their_order(result: Result) -> None:
    assert list(result.to_dict())[-2:] == ["uncertainty", "manifest"]


def test_nothing_is_lowered_again_and_tables_do_without(
    result: Result, monkeypatch: pytest.MonkeyPatch
) -> None:
    def forbidden(*_: Any, **__: Any) -> None:
        raise AssertionError

    monkeypatch.setattr("ridgeline.simulation.lower", forbidden)
    uncertainty(result)
    monkeypatch.setattr("ridgeline.report.uncertainty.uncertainty", forbidden)
    fresh = replace(result)
    assert "step_time_s" in fresh.to_row()
    with pytest.raises(AssertionError):
        fresh.to_dict()


@pytest.mark.parametrize("which", ["result", "single", "toy"])
def test_without_spreads_the_range_is_the_prediction(
    which: str, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    result = request.getfixturevalue(which)
    with_spreads(monkeypatch, 0.0)
    stated = uncertainty(result)
    for end in ("p05", "p95"):
        assert stated["step_time_s"][end] == pytest.approx(result.step_time_s, rel=1e-9)
        assert stated["energy_j"][end] == pytest.approx(result.energy_j["total"], rel=1e-9)


def test_wider_spreads_make_wider_ranges(single: Result, monkeypatch: pytest.MonkeyPatch) -> None:
    widths = []
    for factor in (0.5, 1.0, 2.0):
        with monkeypatch.context() as patch:
            with_spreads(patch, factor)
            widths.append(sample(single).spread)
    assert 0 < widths[0] < widths[1] < widths[2]


def test_a_network_of_several_devices_is_another_kind(result: Result, single: Result) -> None:
    assert kind_of(result.details) == "several-devices"
    assert kind_of(single.details) == "single-device"


def test_a_range_rests_on_the_family_of_the_software(single: Result) -> None:
    step = ground_of(single.details).step
    assert step is not None
    assert (step.kind, step.family, step.vendor) == ("single-device", "pytorch", "nvidia")
    trust = single.manifest["trust"]["uncertainty"]
    assert f"{step.n} measured steps of pytorch software on nvidia devices" in trust
    widths = {}
    for name in ("pytorch-amp-2021", "ngc-tensorflow"):
        other = simulate(
            "resnet50", "dgx1-v100", Plan(global_batch=64, precision="fp16-mixed"), software=name
        )
        assert other.uncertainty is not None
        stated = other.uncertainty["step_time_s"]
        widths[name] = stated["p95"] / stated["p05"]
    assert widths["pytorch-amp-2021"] != widths["ngc-tensorflow"]


def test_a_bound_and_what_nobody_measured_state_no_range(toy: Result) -> None:
    assert toy.uncertainty is None
    assert "is a bound" in toy.manifest["trust"]["uncertainty"]
    assert json.loads(toy.to_json())["uncertainty"] is None
    assert ("", "no range is stated") in headline(toy)
    own = load_software("megatron-core").model_copy(update={"name": "mine", "family": "other"})
    plan = Plan(global_batch=8, precision="bf16-mixed")
    for software, machine, why in (
        (own, "dgx-a100", "no measured language model step of mine software on nvidia devices"),
        ("pytorch", "mi250x-gcd", "of pytorch software on amd devices"),
    ):
        found = simulate("gpt2", machine, plan, software=software)
        assert found.uncertainty is None
        assert why in found.manifest["trust"]["uncertainty"]


def test_more_devices_than_were_ever_measured_state_no_range(single: Result) -> None:
    details = single.details
    many = details.plan.model_copy(update={"data": 4096, "global_batch": 4096})
    found = ground_of(replace(details, plan=many))
    assert found.step is None
    assert "4,096 devices; the most of a measured step of pytorch software" in found.text


def test_every_family_that_is_known_was_measured() -> None:
    families = {ground.family_of(load_software(name)) for name in catalog.names("software")}
    for (kind, family, _), step in step_errors().items():
        assert kind in {"llm", "single-device", "several-devices"}
        assert family in families
        assert 0 < step.n <= step.error.n
        assert step.pooled or step.n == step.error.n
        assert min(step.error.low, step.error.high) >= 0
        assert step.most_devices >= (2 if kind == "several-devices" else 1)
        assert 1 <= step.devices <= step.n


def test_every_suite_states_a_range() -> None:
    for kind in (*(set(SUITES) - {"llm", "single-device"}), "node-power"):
        error = model_error(kind)
        assert error is not None, kind
        assert error.n > 5
        assert min(error.low, error.high) >= 0
        assert error.low + error.high > 0


@given(st.floats(1e-6, 1 - 1e-6))
def test_quantiles_of_the_normal_distribution(share: float) -> None:
    found = distributions._standard_normal(np.array([share]))
    assert found[0] == pytest.approx(NormalDist().inv_cdf(share), rel=1e-7, abs=1e-8)


@given(st.floats(-1, 1), st.floats(0, 1), st.floats(0, 1), st.booleans())
def test_draws_have_the_ends_of_the_interval(
    median: float, low: float, high: float, points: bool
) -> None:
    error = ModelError("k", points, median, low, high, 10, 2, None, None, None)
    ends = error.draws(np.array([0.05, 0.5, 0.95]))
    p05, p95 = error.interval(2.0)
    expected = 2.0 + ends if points else 2.0 * np.exp(ends)
    assert [p05, p95] == pytest.approx([expected[0], expected[2]])
    assert ends[1] == pytest.approx(median, abs=1e-9)
    wider = error.interval(2.0, 0.5)
    assert wider[0] <= p05
    assert wider[1] >= p95


@pytest.mark.parametrize(
    ("device", "origin", "relation"),
    [
        ("v100-sxm2-16gb", "v100-sxm2-16gb", "own"),
        ("v100-pcie-16gb", "v100-sxm2-16gb", "generation"),
        ("a100-pcie-40gb", "a100-sxm4-40gb", "other"),
    ],
)
def test_shares_that_were_taken_over_say_from_whom(device: str, origin: str, relation: str) -> None:
    described = load_device(device)
    row = next(row for row in described.achievable if row.op == "conv2d")
    assert relation_of(described, row) == (origin, relation)
    assert distributions.spread("conv2d", "own") < distributions.spread("conv2d", relation) or (
        relation == "own"
    )


def test_every_class_of_every_shipped_device_has_a_spread() -> None:
    kinds = set()
    for name in catalog.names("devices"):
        device = load_device(name)
        for row in device.achievable:
            _, relation = relation_of(device, row)
            assert spread(row.op, relation) > 0
            key = class_key(row.format, row.op, row.pass_, row.filter)
            assert scatter(name, key) > 0
            kinds.add(row.op)
    assert "attention-1" in kinds  # no table has its spread: it is that of the worst known one
    known = [spread(op, "own") for op in ("gemm", "conv2d", "recurrence")]
    assert spread("attention-1", "own") == max(known)
