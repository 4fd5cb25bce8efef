"""Register files, queues, arithmetic, wires, memories and links."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

import ridgeline as rl
from ridgeline import catalog


@pytest.mark.parametrize("name", catalog.names("components"))
def test_every_variant_of_what_ships_can_be_evaluated(name: str) -> None:
    described = rl.components[name]
    assert described.name == name
    assert described.sources
    for variant in described.variants or (None,):
        found = rl.component(
            name,
            **({"variant": variant} if variant else {"capacity": "2 KiB"}),
            node="28 nm",
        )
        figures = (found.read_j, found.area_m2, found.leakage_w)
        assert any(figure is not None and figure > 0 for figure in figures)
        assert all(figure is None or figure > 0 for figure in figures)  # unknown is never zero
        assert found.sources


def test_arithmetic_is_as_published() -> None:
    for variant, node, picojoules in (
        ("fp32", "45 nm", 4.6), ("fp16", "45 nm", 1.5), ("int8", "45 nm", 0.23),
        ("fp32", "7 nm", 1.69), ("bf16", "7 nm", 0.32), ("int8", "7 nm", 0.077),
    ):  # fmt: skip
        found = rl.component("mac", variant=variant, node=node)
        assert found.read_j == pytest.approx(picojoules * 1e-12)


@given(st.floats(3, 130))
def test_wider_formats_never_cost_less(node: float) -> None:
    for formats in (("int8", "int16", "int32"), ("bf16", "fp16", "fp32", "fp64"),
                    ("bf16", "bf16-fp32"), ("fp16", "fp16-fp32")):  # fmt: skip
        found = [rl.component("mac", variant=v, node=f"{node!r} nm") for v in formats]
        energies = [one.read_j for one in found]
        areas = [one.area_m2 for one in found if one.area_m2 is not None]
        assert energies == sorted(energies)
        assert areas == sorted(areas)


def test_tpu_v4i_is_near() -> None:
    """An 8-bit MAC of TPU v4i takes 0.084 pJ at 7 nm (AccelForge after Jouppi 2021)."""
    found = rl.component("mac", variant="int8", node="7 nm")
    assert found.read_j == pytest.approx(0.084e-12, rel=0.15)


def test_caterpillars_unit_is_in_the_band() -> None:
    """Li and Pedram 2017 publish 0.0056 mm2 and 2.63 pJ for a pipelined fp16 FMA at 45 nm."""
    found = rl.component("mac", variant="fp16", node="45 nm")
    assert 0.5 < found.area_m2 / 0.0056e-6 < 2
    assert 0.5 < found.read_j / 2.63e-12 < 2


def test_register_files_meet_their_two_points_and_a_third() -> None:
    """ZigZag's 128 bytes take 0.095 pJ for 16 bits; no fitting target: its node is not stated."""
    for capacity, picojoules, within in (
        ("256 B", 0.083, 1e-6), ("2 B", 0.021, 0.01), ("128 B", 0.095, 0.35),
    ):  # fmt: skip
        found = rl.component("register-file", capacity=capacity, width="16 bit", node="32 nm")
        assert found.read_j == pytest.approx(picojoules * 1e-12, rel=within)


@given(st.sampled_from(["register-file", "fifo"]), st.floats(1, 14), st.floats(0, 6))
def test_more_registers_never_cost_less(name: str, small: float, more: float) -> None:
    one, other = (
        rl.component(name, capacity=f"{2.0**power!r} B", width="16 bit", node="22 nm")
        for power in (small, small + more)
    )
    for quantity in ("read_j", "area_m2", "leakage_w"):
        assert 0 < getattr(one, quantity) <= getattr(other, quantity) * (1 + 1e-12)


def test_a_queue_is_its_registers_and_pointers() -> None:
    plain, queue = (
        rl.component(n, capacity="512 B", node="40 nm") for n in ("register-file", "fifo")
    )
    bits = 8  # 256 entries of 16 bits
    assert queue.read_j - plain.read_j == pytest.approx(0.206682e-12 * bits / 32)
    assert queue.area_m2 - plain.area_m2 == pytest.approx(2 * 225e-12 * bits / 32)


def test_ports_take_area() -> None:
    two, six = (
        rl.component("register-file", capacity="512 B", node="40 nm", ports=ports)
        for ports in ("1R1W", "4R2W")
    )
    assert six.area_m2 == pytest.approx(two.area_m2 * 2.2)


def test_a_router_goes_with_its_width() -> None:
    wide, narrow = (
        rl.component("noc-router", node="32 nm", width=width) for width in ("256 bit", "64 bit")
    )
    assert wide.read_j == pytest.approx(20.74e-12)
    assert narrow.read_j == pytest.approx(20.74e-12 / 4)
    assert "in proportion to the width, from 256 bits" in narrow.notes


def test_a_memory_device_does_not_go_with_the_node() -> None:
    found = rl.component("dram", variant="hbm3", node="5 nm")
    assert found.energy_j_per_byte == pytest.approx(3.9e-12 * 8)
    assert found.bandwidth_bytes_per_s == 819e9
    assert found.area_m2 is None
    assert any("does not go with" in note for note in found.notes)


def test_what_is_extrapolated_is_marked() -> None:
    assert rl.component("mac", variant="fp32", node="5 nm").is_extrapolated
    assert rl.component("register-file", capacity="64 KiB", node="32 nm").is_extrapolated
    assert not rl.component("wire", node="50 nm").is_extrapolated
    assert "assumed" in " ".join(rl.component("dram", variant="hbm4").notes)


def test_a_component_of_ones_own(tmp_path) -> None:  # type: ignore[no-untyped-def]
    path = tmp_path / "mine.yaml"
    path.write_text(
        "kind: component\nname: mine\ndefault: a\nsources: {me: measured}\n"
        "variants: {a: {at: [{node: 28 nm, energy: {value: 2 pJ/op, source: me}}]}}\n"
    )
    found = rl.component(str(path), node="28 nm")
    assert found.read_j == 2e-12
    assert found.sources == {"me": "measured"}
    path.write_text("kind: component\nname: mine\n")
    with pytest.raises(rl.ConfigError, match="one of grid, cells and variants"):
        rl.component(str(path), node="28 nm")
    path.write_text("kind: component\nname: mine\ndefault: b\nvariants: {a: {at: [{}]}}\n")
    with pytest.raises(rl.ConfigError, match="there is no variant 'b'"):
        rl.component(str(path), node="28 nm")
