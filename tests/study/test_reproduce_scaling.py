"""Published results of distributed training, computed anew."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ridgeline.hardware.load import load_cluster
from ridgeline.study.reproduce import ReproducedFigure, calculon, das, megatron, reproduce
from ridgeline.study.reproduce.gpipe import speed_up
from ridgeline.study.reproduce.pipedream import PipeDreamChain


def promised(found: list[ReproducedFigure]) -> list[bool]:
    kept = [row.is_kept for row in found]
    return [one for one in kept if one is not None]


@pytest.mark.parametrize(("name", "count"), [("das", 17), ("lee", 2), ("goyal", 3), ("gpipe", 5)])
def test_promises_are_kept(name: str, count: int) -> None:
    assert promised(list(reproduce(name).rows)) == [True] * count


def test_what_pipedream_promises_but_for_what_is_said_to_be_missed() -> None:
    made = reproduce("pipedream").rows
    missed = {(row.group.split()[0], row.quantity) for row in made if row.is_kept is False}
    assert missed == {("4", "speed-up of the published one, best cuts")}
    assert promised(list(made)).count(True) == 9


def test_nothing_of_the_xeon_nodes_is_fitted() -> None:
    for name in ("das", "lee"):
        made = reproduce(name)
        assert not made.fits
        assert not any(row.is_fitted for row in made.rows)


def test_summing_all_gradients_explains_neither_pair_of_lees_figures() -> None:
    rows = reproduce("lee").rows
    for scheme in {row.quantity for row in rows if row.tolerance is None}:
        assert max(abs(row.residual) for row in rows if row.quantity == scheme) > 0.15


def test_four_micro_batches_are_shown_as_not_explained() -> None:
    unexplained = [row for row in reproduce("gpipe").rows if row.note == "not explained"]
    assert {row.tolerance for row in unexplained} == {None}
    assert all(row.residual < -0.25 for row in unexplained)
    assert len(unexplained) == 2


@given(st.integers(1, 64), st.integers(1, 64))
def test_the_speed_up_is_what_the_bubble_leaves(stages: int, micro_batches: int) -> None:
    bubble = (stages - 1) / (micro_batches + stages - 1)
    assert speed_up(stages, micro_batches) == pytest.approx(stages * (1 - bubble))


@settings(max_examples=25, deadline=None)
@given(st.integers(2, 24), st.sampled_from((64, 128, 256, 1024)), st.sampled_from((32, 256, 1024)))
def test_the_best_groups_are_next_to_the_root(nodes: int, batch: int, ofm: int) -> None:
    """Das et al.: G* = sqrt(N MB / ofm); of the divisors of N, one of the two around it is best."""
    root = math.sqrt(nodes * batch / ofm)
    able = [g for g in range(1, nodes + 1) if nodes % g == 0]
    below = max((g for g in able if g <= root), default=1)
    above = min((g for g in able if g >= root), default=nodes)
    assert das.best_groups(nodes, batch, ofm) in {below, above}


def test_pipedreams_best_is_no_slower_than_any_configuration() -> None:
    chain = PipeDreamChain(
        (5.0, 4.0, 3.0, 2.0, 1.0), (1.0, 2.0, 4.0, 8.0, 50.0), (9.0, 7.0, 5.0, 1.0, 0.0)
    )
    for bandwidth in (0.5, 2.0, 10.0, 100.0):
        stages, best = chain.best(4, bandwidth)
        own = [stage.replicas for stage in stages]
        for replicas in ((3, 1), (2, 1, 1), (1, 3), (2, 2), (1, 1, 1, 1)):
            assert chain.speed_up(replicas, bandwidth) <= best * (1 + 1e-12)
        if len(own) > 1:
            assert chain.speed_up(own, bandwidth) == pytest.approx(best)


@pytest.mark.parametrize("mode", ["full", "seqsel", "sel"])
def test_memory_is_calculons_but_for_what_is_said(mode: str) -> None:
    line = next(
        one for one in calculon.lines() if (one["model"], one["mode"]) == ("megatron-22b", mode)
    )
    rows = {row.quantity: row for row in calculon.compare(line)}
    alike = rows["total of blocks, gradients as there"]
    assert bool(alike.note) == (mode == "sel")
    assert abs(alike.residual) <= 0.05
    assert (alike.tolerance is None) == (mode == "sel")
    assert rows["activations"].note.startswith("published formula")


def test_every_prediction_of_calculon_adds_up() -> None:
    kinds = ("weights", "gradient", "optimizer", "activation")
    for line in calculon.lines():
        parts = sum(float(line[f"{kind}_bytes"]) for kind in kinds)
        assert parts == pytest.approx(float(line["total_bytes"]), rel=1e-3)


def test_korthikantis_22_b_is_within_a_tenth() -> None:
    chosen = [line for line in megatron.lines() if line.text("source_model") == "GPT 22B"]
    assert len(chosen) == 2
    assert promised(list(megatron.rows(chosen))) == [True, True]
    assert len(megatron.lines()) >= 16


@pytest.mark.parametrize(
    ("name", "devices", "bandwidth"),
    [("cori-haswell-aries", 2388, 8e9), ("big-basin-p100-50gbe", 352, 6.25e9)],
)
def test_clusters_of_the_papers(name: str, devices: int, bandwidth: float) -> None:
    cluster = load_cluster(name)
    assert cluster.max_devices == devices
    assert cluster.fabric is not None
    assert cluster.link_types[cluster.fabric.link].bandwidth.value == bandwidth
