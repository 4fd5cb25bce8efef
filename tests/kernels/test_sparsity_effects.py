"""What zeros save: on toy engines of every kind, by hand, and as properties."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from machines import DEVICE, ENERGY
from ridgeline.errors import ConfigError
from ridgeline.hardware import Device, load_device
from ridgeline.kernels.single_op import OpResult, conv, gemm
from ridgeline.kernels.sparsity_break_even import break_even
from ridgeline.kernels.systolic.gemm import gemm_cycles
from ridgeline.study.point import Point
from ridgeline.workload.graph import Conv
from ridgeline.workload.sparsity import n_of_m, parse
from thoroughly import sample_of

FOLDER = tempfile.TemporaryDirectory()
SKIPS = """
    skips:
      - {zeros: "n:m", ratio: "2:4", saves: [cycles, traffic]}
      - {zeros: unstructured, saves: [cycles, traffic], efficiency: 0.5}
      - {zeros: block, granule: [16, 8], saves: [cycles, traffic]}
      - {zeros: activation, saves: [energy, traffic]}
"""
KINDS = {
    "tensor-core": "instruction: {m: 4, n: 4, k: 4}",
    "systolic": """array: {rows: 32, columns: 32, count: 4, clock: 4.8828125 GHz,
                          dataflows: [ws, os]}""",
    "broadcast-grid": """grid: {side: 4, cores: 256, clock: 4.8828125 GHz,
                                local_memory: 16 KiB}""",
    "vector": "instruction: {m: 1, n: 1, k: 1}",
}


def machine(kind: str) -> Device:
    """The toy device with another engine, which makes use of all kinds of zeros."""
    folder = Path(FOLDER.name)
    (folder / "energy.yaml").write_text(ENERGY)
    text = DEVICE.replace("kind: tensor-core", f"kind: {kind}")
    text = text.replace("instruction: {m: 4, n: 4, k: 4}", KINDS[kind] + SKIPS.rstrip())
    path = folder / f"{kind}.yaml"
    path.write_text(text)
    return load_device(str(path))


MACHINES = {kind: machine(kind) for kind in KINDS}
TOY = MACHINES["tensor-core"]
sizes = st.integers(1, 600)
shares = st.floats(0.01, 1.0)
kinds = st.sampled_from(["unstructured", "block", "activation"])
engines = st.sampled_from(sorted(KINDS))


def sparse(kind: str, density: float) -> str:
    return f"block 16x8 {density!r}" if kind == "block" else f"{kind} {density!r}"


def measures(result: OpResult) -> list[float]:
    """Everything that must not grow with fewer non-zeros."""
    return [
        result.time_s,
        result.issued_flops,
        result.useful_flops,
        result.worked_flops,
        *result.traffic_bytes.values(),
        *result.energy_j.values(),
        *result.parts_s.values(),
        result.compulsory_bytes,
    ]


@settings(max_examples=80, deadline=None)
@given(engines, kinds, sizes, sizes, sizes)
def test_density_1_is_dense(engine: str, kind: str, m: int, n: int, k: int) -> None:
    dense = gemm(m, n, k, MACHINES[engine])
    assert measures(gemm(m, n, k, MACHINES[engine], sparsity=sparse(kind, 1.0))) == measures(dense)
    assert dense.useful_flops == dense.issued_flops == dense.flops


@sample_of(38, 150, engines, kinds, sizes, sizes, sizes, shares, shares)
def test_fewer_non_zeros_never_cost_more(
    engine: str, kind: str, m: int, n: int, k: int, one: float, other: float
) -> None:
    fewer, more = sorted((one, other))
    results = [gemm(m, n, k, MACHINES[engine], sparsity=sparse(kind, d)) for d in (fewer, more)]
    for less, greater in zip(*map(measures, results), strict=True):
        assert less <= greater * (1 + 1e-9)


@settings(max_examples=60, deadline=None)
@given(engines, sizes, sizes, sizes, st.integers(1, 8), st.integers(1, 8))
def test_n_of_m_is_never_slower_than_dense_and_more_zeros_never_slower(
    engine: str, m: int, n: int, k: int, a: int, b: int
) -> None:
    fewer, more = sorted((a, b))
    dense = gemm(m, n, k, MACHINES[engine])
    results = [gemm(m, n, k, MACHINES[engine], sparsity=(kept, 8)) for kept in (fewer, more)]
    for less, middle, most in zip(*map(measures, [*results, dense]), strict=True):
        assert less <= middle * (1 + 1e-9)
        assert middle <= most * (1 + 1e-9)


@settings(max_examples=60, deadline=None)
@given(engines, kinds, sizes, sizes, sizes, shares)
def test_utilisation_counts_issued_work_and_useful_work_stands_apart(
    engine: str, kind: str, m: int, n: int, k: int, density: float
) -> None:
    result = gemm(m, n, k, MACHINES[engine], sparsity=sparse(kind, density))
    peak = MACHINES[engine].engines["matrix"].rates[result.format].value
    assert result.utilisation == pytest.approx(result.issued_flops / (peak * result.time_s))
    assert 0 < result.utilisation <= 1 + 1e-9
    assert result.useful_flops == pytest.approx(density * result.flops)
    assert result.useful_flops <= result.issued_flops * (1 + 1e-9)
    assert result.useful_flops <= result.worked_flops * (1 + 1e-9)
    assert result.worked_flops <= result.flops
    assert result.issued_flops <= result.flops
    price = MACHINES[engine].prices.price_j("flop.fp16", "J/FLOP")
    assert result.energy_j["compute"] == pytest.approx(result.worked_flops * price)
    assert result.traffic_bytes["hbm"] >= result.compulsory_bytes * (1 - 1e-12)


def test_two_of_four_by_hand() -> None:
    dense, half = gemm(4096, 4096, 4096, TOY), gemm(4096, 4096, 4096, TOY, sparsity="2:4")
    arithmetic = "matrix.fp16 arithmetic"
    assert half.parts_s[arithmetic] == pytest.approx(dense.parts_s[arithmetic] / 2)
    assert half.issued_flops == half.useful_flops == dense.flops / 2
    assert half.energy_j["compute"] == pytest.approx(dense.energy_j["compute"] / 2)
    weights = 2 * 4096**2
    stored = weights / 2 + 4096**2 / 2 * 2 / 8  # half of them, and two bits for each
    assert half.compulsory_bytes == pytest.approx(dense.compulsory_bytes - weights + stored)
    assert not [note for note in half.notes if not note.startswith(("tiles:", "register traffic"))]


def test_a_pattern_that_leaves_less_than_the_engine_s_runs_at_the_engine_s() -> None:
    full, more = (gemm(512, 512, 512, TOY, sparsity=s) for s in ("2:4", "1:4"))
    assert more.issued_flops == full.issued_flops
    assert more.useful_flops == full.useful_flops / 2
    assert gemm(512, 512, 512, TOY, sparsity="1:2").issued_flops == full.issued_flops


@pytest.mark.parametrize(
    ("pattern", "fits"),
    [("1:2", True), ("2:8", True), ("3:8", False), ("3:4", False), ("1:3", True), ("2:3", False)],
)
def test_patterns_fit_if_no_group_of_the_engine_gets_too_many(pattern: str, fits: bool) -> None:
    """Looked at on the worst matrix of a pattern, column by column of the engine's groups."""
    zeros = parse(pattern)
    assert zeros is not None
    kept, of = zeros.group
    worst = 0
    for shift in range(of):  # the kept ones of neighbouring groups as close together as can be
        column = [
            (i % of >= of - kept) if (i // of) % 2 == 0 else (i % of < kept) for i in range(24 * of)
        ]
        column = column[shift // of * of :]
        worst = max(worst, *(sum(column[g : g + 4]) for g in range(0, len(column) - 3, 4)))
    result = gemm(256, 256, 240, TOY, sparsity=pattern)
    assert (result.issued_flops < result.flops) == fits
    if fits:
        assert worst <= 2
    else:
        assert "do not fit the 2:4" in result.notes[0]


def test_zeros_at_random_seldom_fill_a_whole_granule() -> None:
    result = gemm(512, 512, 512, TOY, sparsity="block 4x8 0.3")
    assert result.issued_flops == pytest.approx(result.flops * (1 - 0.7**4))  # 16 x 8: 4 blocks
    large = gemm(512, 512, 512, TOY, sparsity="block 32x32 0.3")
    assert large.issued_flops == pytest.approx(large.flops * 0.3)


def test_efficiency_delays_the_gain_and_gating_saves_no_time() -> None:
    result = gemm(2048, 2048, 2048, TOY, sparsity="unstructured 0.4")
    assert result.issued_flops == pytest.approx(0.8 * result.flops)
    dense = gemm(2048, 2048, 2048, TOY)
    assert result.energy_j["compute"] == pytest.approx(0.4 * dense.energy_j["compute"])
    gated = gemm(2048, 2048, 2048, TOY, sparsity="activation 0.4")
    assert gated.issued_flops == gated.flops
    assert gated.energy_j["compute"] == pytest.approx(0.4 * dense.energy_j["compute"])
    assert gated.compulsory_bytes < dense.compulsory_bytes


def test_cycles_of_two_of_four_weights_are_those_of_the_array() -> None:
    device = load_device(
        str(Path(FOLDER.name) / "systolic.yaml"),
        {
            "engines.matrix.array.count": 1,
            "engines.matrix.rates": {"fp32": "10 TFLOP/s", "fp16": "10 TFLOP/s"},
            "engines.matrix.array.dataflows": ["ws"],
        },
    )
    result = gemm(640, 96, 256, device, sparsity="2:4", format="fp16")
    cycles = gemm_cycles(640, 96, 256, 32, 32, edge="full", sparsity="2:4")
    expected = cycles / 4.8828125e9
    assert result.parts_s["matrix.fp16 arithmetic"] == pytest.approx(expected)


def test_zeros_that_an_engine_knows_nothing_of_are_computed() -> None:
    dense = gemm(512, 512, 512, "v100-sxm2-16gb")
    result = gemm(512, 512, 512, "v100-sxm2-16gb", sparsity="unstructured 0.1")
    assert measures(result)[0] == dense.time_s
    assert result.issued_flops == result.flops == 10 * result.useful_flops
    assert "makes no use of unstructured zeros" in result.notes[0]


def test_grouped_weights_serve_the_forward_pass_only() -> None:
    loops = Conv(8, 64, 28, 28, 64, 3, 3, padding=(1, 1))
    forward, back = (
        conv(loops, TOY, pass_=p, sparsity="2:4") for p in ("forward", "input-gradient")
    )
    assert forward.issued_flops == forward.flops / 2
    assert back.issued_flops == back.flops
    assert "not grouped along the sum" in back.notes[0]
    weights = conv(loops, TOY, pass_="weight-gradient", sparsity="2:4")
    assert weights.useful_flops == weights.flops  # it reads no weights
    images = conv(loops, TOY, pass_="weight-gradient", sparsity="activation 0.25")
    assert images.useful_flops == images.flops / 4


@pytest.mark.parametrize("engine", sorted(KINDS))
@pytest.mark.parametrize("kind", ["unstructured", "block", "activation"])
def test_break_even_parts_gain_from_no_gain(engine: str, kind: str) -> None:
    device, shape = MACHINES[engine], (768, 640, 512)
    block = "16x8" if kind == "block" else None
    found = break_even(*shape, device, kind, block=block)
    dense = gemm(*shape, device)
    measured = {
        "time": lambda r: r.time_s,
        "energy": lambda r: r.energy_j["total"],
        "traffic": lambda r: r.traffic_bytes["hbm"],
    }
    for name, measure in measured.items():
        density = getattr(found, name)
        assert 0 <= density <= 1
        if density > 0.02:
            below = gemm(*shape, device, sparsity=sparse(kind, 0.98 * density))
            assert measure(below) < measure(dense)
        if density < 0.98:
            above = gemm(*shape, device, sparsity=sparse(kind, min(1.0, 1.02 * density + 1e-6)))
            assert measure(above) >= measure(dense) * (1 - 1e-9)


def test_break_even_by_hand() -> None:
    found = break_even(4096, 4096, 4096, TOY, "unstructured", format="fp16")
    assert found.time == pytest.approx(0.5)  # the efficiency: bound by arithmetic
    # A bit for every element, or 12 bits for every non-zero and 32 for every column: of 16 bits.
    assert found.traffic == pytest.approx(15 / 16, abs=1e-3)
    never = break_even(512, 512, 512, "v100-sxm2-16gb", "unstructured")
    assert never == (0, 0, 0)


def test_a_network_counts_issued_work_in_its_utilisation() -> None:
    plan = {"global_batch": 4, "precision": "fp16-mixed"}
    device = str(Path(FOLDER.name) / "tensor-core.yaml")
    dense = Point("alexnet", device, plan).simulate()
    fields = {"model.weight_sparsity": "2:4", "model.relu_density": 0.5}
    zeros = Point("alexnet", device, plan, fields).simulate()
    assert zeros.flops_per_step == dense.flops_per_step
    assert zeros.step_time_s < dense.step_time_s
    assert zeros.energy_j["total"] < dense.energy_j["total"]
    said = " ".join(zeros.manifest["notes"])
    assert "meet no zero" in said
    assert "not grouped along the sum of this pass" in said
    peak = 40e12
    issued = sum(
        op.matrix_flops * cost.issued
        for op, cost in zip(zeros.details.lowered.ops, zeros.details.lowered.op_costs, strict=True)
        if op.loops is not None
    )
    assert zeros.mfu == pytest.approx(issued / zeros.step_time_s / peak)


@pytest.mark.parametrize(
    ("skip", "said"),
    [
        ('{zeros: "n:m", saves: [cycles]}', "those need one"),
        ('{zeros: block, ratio: "2:4", saves: [cycles]}', "belongs to the zeros"),
        ('{zeros: "n:m", ratio: "4:2", saves: [cycles]}', "1 <= N <= M"),
        ("{zeros: block, granule: [0, 1], saves: [cycles]}", "at least 1 x 1"),
        ("{zeros: block, saves: [cycles], efficiency: 1.5}", "at most 1"),
        ("{zeros: blocks, saves: [cycles]}", "zeros"),
        ("{zeros: block, saves: [time]}", "saves"),
    ],
)
def test_a_device_that_says_it_wrong_is_refused(skip: str, said: str, tmp_path: Path) -> None:
    (tmp_path / "energy.yaml").write_text(ENERGY)
    text = DEVICE.replace("    instruction:", f"    skips: [{skip}]\n    instruction:")
    (tmp_path / "device.yaml").write_text(text)
    with pytest.raises(ConfigError, match=said):
        load_device(str(tmp_path / "device.yaml"))


def test_shipped_devices_run_two_of_four_at_twice_the_rate() -> None:
    for name in ("a100-sxm4-80gb", "h100-sxm5-80gb"):
        dense = gemm(8192, 8192, 8192, name, format="bf16")
        half = gemm(8192, 8192, 8192, name, format="bf16", sparsity=n_of_m(2, 4))
        key = "tensor-cores.bf16 arithmetic"
        assert half.parts_s[key] == pytest.approx(dense.parts_s[key] / 2)
