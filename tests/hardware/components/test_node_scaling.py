"""Scaling between nodes against figures that follow from the published equations."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

import ridgeline as rl
from ridgeline.hardware.components.scaling import interpolated, tables

NODES = st.floats(2, 250).map(lambda nm: f"{nm!r} nm")


def test_45_to_7_nm_is_what_the_equations_give() -> None:
    """From 1.0 V to 0.7 V, Stillmaker and Baas divide energy by 18 and area by 17."""
    energy = rl.scale_node(1.0, "45 nm", "7 nm", "energy")
    by_hand = (0.1776 * 0.49 - 0.09097 * 0.7 + 0.02447) / (1.018 - 0.3107 + 0.1539)
    assert energy.value == pytest.approx(by_hand, rel=1e-12)
    assert 1 / energy.factor == pytest.approx(18, rel=0.01)
    assert 1 / rl.scale_node(1.0, "45 nm", "7 nm", "area").factor == pytest.approx(17, rel=0.01)


def test_sram_does_not_scale_with_logic() -> None:
    assert rl.scale_node(1.0, "5 nm", "3 nm", "area", "sram").factor == 1.0
    assert rl.scale_node(1.0, "5 nm", "3 nm", "area").factor < 0.6
    logic = rl.scale_node(1.0, "22 nm", "7 nm", "area").factor
    assert rl.scale_node(1.0, "22 nm", "7 nm", "area", "sram").factor > 1.2 * logic


def test_a_foundry_step_is_its_statement() -> None:
    found = rl.scale_node(10.0, "7 nm", "5 nm", "energy", "tsmc")
    assert found.value == pytest.approx(7.0)
    assert found.notes == ("energy scaled from 7 nm to 5 nm by tsmc",)


@given(NODES, NODES, st.sampled_from(["energy", "delay", "area", "leakage"]),
       st.sampled_from(["stillmaker-baas", "tsmc", "sram"]))  # fmt: skip
def test_there_and_back_is_nothing(one: str, other: str, quantity: str, law: str) -> None:
    there = rl.scale_node(3.0, one, other, quantity, law)  # type: ignore[arg-type]
    back = rl.scale_node(there.value, other, one, quantity, law)  # type: ignore[arg-type]
    assert back.value == pytest.approx(3.0, rel=1e-12)
    assert there.value > 0


@given(st.floats(3, 180), st.floats(0, 1))
def test_area_and_energy_never_grow_with_progress(node: float, share: float) -> None:
    finer = 3 + (node - 3) * share
    for quantity in ("energy", "area"):
        for law in ("stillmaker-baas", "tsmc", "sram"):
            factor = rl.scale_node(1.0, f"{node!r} nm", f"{finer!r} nm", quantity, law).factor  # type: ignore[arg-type]
            assert factor <= 1 + 1e-9


def test_leaving_the_tables_is_marked() -> None:
    for law, node in (("stillmaker-baas", "250 nm"), ("tsmc", "2 nm"), ("sram", "2 nm")):
        notes = rl.scale_node(1.0, "28 nm", node, "area", law).notes  # type: ignore[arg-type]
        assert any(note.startswith("extrapolated") for note in notes)
    notes = rl.scale_node(1.0, "28 nm", "5 nm", "energy").notes
    assert any("below 7 nm the equations end" in note for note in notes)


def test_interpolation_meets_its_points() -> None:
    nodes = tables().logic.nodes
    at, values = [n.node for n in nodes], [n.area for n in nodes]
    assert [interpolated(node, at, values) for node in at] == [(value, ()) for value in values]


def test_mistakes_are_clear() -> None:
    for arguments, message in (
        ((1.0, "45", "7 nm", "energy"), "has no unit"),
        ((1.0, "45 nm", "7 nm", "enrgy"), "did you mean 'energy'"),
        ((1.0, "45 nm", "7 nm", "energy", "tsmcc"), "did you mean 'tsmc'"),
        ((1.0, "0 nm", "7 nm", "energy"), "more than 0"),
    ):
        with pytest.raises(rl.ConfigError, match=message):
            rl.scale_node(*arguments)  # type: ignore[arg-type]
