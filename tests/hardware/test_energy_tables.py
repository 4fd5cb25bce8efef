"""The energy tables: published ratios, and the arithmetic of every derived entry once more."""

from __future__ import annotations

import math

import pytest

from ridgeline import catalog
from ridgeline.errors import ConfigError
from ridgeline.hardware import EnergyTable, load_device, load_energy_table, load_node
from ridgeline.hardware.energy import Unit
from ridgeline.kernels import price
from ridgeline.workload.graph import Gemm, Graph, Op, Pass, Role, Tensor

Published = dict[str, dict[str, float]]
HOROWITZ: Published = {  # ISSCC 2014, Fig. 1.1.9: pJ
    "add": {"int8": 0.03, "fp16": 0.4, "fp32": 0.9},
    "multiply": {"int8": 0.2, "fp16": 1.1, "fp32": 3.7},
    "sram": {"sram.8kib": 10, "sram.l1": 20, "sram.l2": 100},  # per 64-bit access
}
JOUPPI: Published = {  # ISCA 2021, Table 2: pJ
    "add": {"int8": 0.007, "bf16": 0.11, "fp16": 0.16, "fp32": 0.38},
    "multiply": {"int8": 0.07, "bf16": 0.21, "fp16": 0.34, "fp32": 1.31},
    "sram": {"sram.8kib": 7.5, "sram.l1": 8.5, "sram.l2": 14},
}
PUBLISHED = {"horowitz-45nm": HOROWITZ, "jouppi-7nm": JOUPPI}


def table(name: str) -> EnergyTable:
    return load_energy_table(name)


def pj_flop(name: str, entry: str) -> float:
    return table(name).price_j(entry, "J/FLOP") * 1e12


def pj_bit(name: str, entry: str) -> float:
    return table(name).price_j(entry, "J/B") * 1e12 / 8


def between(node: float, one: float, at_one: float, other: float, at_other: float) -> float:
    """Energy at a feature size from those at two others, as a power of the feature size."""
    exponent = math.log(at_one / at_other) / math.log(one / other)
    return at_other * math.pow(node / other, exponent)


def shipped(value: float) -> object:
    return pytest.approx(value, rel=0.004)  # files state three digits


@pytest.mark.parametrize("name", PUBLISHED)
def test_arithmetic_is_the_mean_of_multiply_and_add(name: str) -> None:
    published = PUBLISHED[name]
    for format_, add in published["add"].items():
        fma = (published["multiply"][format_] + add) / 2
        assert pj_flop(name, f"flop.{format_}") == shipped(fma)
    tensor = (published["multiply"]["fp16"] + published["add"]["fp32"]) / 2
    assert pj_flop(name, "flop.fp16.tensor") == shipped(tensor)


@pytest.mark.parametrize("name", PUBLISHED)
def test_sram_is_published_per_64_bits(name: str) -> None:
    for entry, access in PUBLISHED[name]["sram"].items():
        assert pj_bit(name, entry) == shipped(access / 64)
        assert table(name).entries[entry].width_bits == 64


def test_horowitz_ratios() -> None:
    add = pj_flop("horowitz-45nm", "add.fp32")
    assert 64 * pj_bit("horowitz-45nm", "dram.ddr3") / add == shipped(1300 / 0.9)
    assert 64 * pj_bit("horowitz-45nm", "sram.l1") / add == shipped(20 / 0.9)
    assert pj_flop("horowitz-45nm", "multiply.fp32") / add == shipped(3.7 / 0.9)
    assert 32 * pj_bit("horowitz-45nm", "registers") == shipped(1.0)


def test_jouppi_ratios() -> None:
    add = pj_flop("jouppi-7nm", "add.fp32")
    assert 64 * pj_bit("jouppi-7nm", "dram.ddr4") / add == shipped(1300 / 0.38)
    assert 64 * pj_bit("jouppi-7nm", "dram.hbm2") == shipped((250 + 450) / 2)
    assert 64 * pj_bit("jouppi-7nm", "dram.gddr6") == shipped((350 + 480) / 2)
    registers = pj_bit("horowitz-45nm", "registers") * 7.5 / 10
    assert pj_bit("jouppi-7nm", "registers") == shipped(registers)


def test_bf16_at_45_nm() -> None:
    multiply = 1.1 * 0.21 / 0.34
    add = 0.4 * 0.11 / 0.16
    assert pj_flop("horowitz-45nm", "flop.bf16") == shipped((multiply + add) / 2)
    assert pj_flop("horowitz-45nm", "flop.bf16.tensor") == shipped((multiply + 0.9) / 2)


@pytest.mark.parametrize(("name", "node"), [("horowitz-45nm", 45), ("jouppi-7nm", 7)])
def test_fp64_is_scaled_from_keckler(name: str, node: float) -> None:
    assert pj_flop(name, "flop.fp64") == shipped(between(node, 40, 25, 10, 4.35))


def test_16_nm_lies_between_45_and_7_nm() -> None:
    old, middle, new = table("horowitz-45nm"), table("asic-16nm"), table("jouppi-7nm")
    for entry in middle.entries:
        if entry.startswith("dram"):
            continue
        unit: Unit = "J/FLOP" if entry.startswith("flop") else "J/B"
        prices = [t.price_j(entry, unit) for t in (old, middle, new)]
        expected = between(16, 40, 25e-12, 10, 4.35e-12)
        if entry != "flop.fp64":
            expected = between(16, 45, prices[0], 7, prices[2])
        assert prices[1] == shipped(expected), entry
        assert prices[0] > prices[1] > prices[2]


ALPHA = math.log((3.7 + 0.9) / (1.31 + 0.38)) / math.log(45 / 7)
OPERANDS_PJ = (3 * 8 + 11) / 4 + 4 * 1.9  # Gebhart: 3 reads, 1 write, 1 mm of wire each; 40 nm


def instruction_pj() -> tuple[float, float]:
    """Operands, and fetch, decode and issue, of one lane's multiply-add at 12 nm."""
    operands = OPERANDS_PJ * (12 / 40) ** ALPHA
    return operands, 30 * (12 / 45) ** ALPHA - operands


def test_gpu_arithmetic_holds_its_share_of_the_instruction() -> None:
    _, issue = instruction_pj()
    fp32 = between(12, 45, 2.3, 7, 0.845)
    assert pj_flop("gpu-12nm", "flop.fp32") == shipped(fp32 + issue / 2)
    fp16 = between(12, 45, 0.75, 7, 0.25)
    assert pj_flop("gpu-12nm", "flop.fp16") == shipped(fp16 + issue / 4)
    int8 = between(12, 45, 0.115, 7, 0.0385)
    assert pj_flop("gpu-12nm", "flop.int8") == shipped(int8 + issue / 8)
    fp64 = between(12, 40, 25, 10, 4.35)
    assert pj_flop("gpu-12nm", "flop.fp64") == shipped(fp64 + issue / 2)
    tensor = between(12, 45, 1.0, 7, 0.36)
    assert pj_flop("gpu-12nm", "flop.fp16.tensor") == shipped(tensor + 32 * issue / 2048)
    scaled = 1.5 * issue  # Pascal
    assert pj_flop("gpu-16nm", "flop.fp32") == shipped(between(16, 45, 2.3, 7, 0.845) + scaled / 2)
    assert pj_flop("gpu-16nm", "flop.fp16") == shipped(between(16, 45, 0.75, 7, 0.25) + scaled / 4)
    assert pj_flop("gpu-16nm", "flop.fp64") == shipped(between(16, 40, 25, 10, 4.35) + scaled / 2)


def test_gpu_data_paths_share_the_measured_energy_of_streaming() -> None:
    operands, _ = instruction_pj()
    registers = operands / 128
    assert pj_bit("gpu-12nm", "registers") == shipped(registers)
    watts = (138 + 137 + 124 + 124) / 4  # gpu-benches, cuda-roofline at 0.125 FLOP/B, four V100s
    arithmetic = 109e9 * 17.8e-12
    path = (watts - arithmetic - 35) / 869e9 * 1e12 / 8
    rest = path - 3.97 - registers
    weights = {"sram.l1": 5.85, "sram.l2": 15.48, "dram.hbm2": 30.55 - 14}
    share = {entry: rest * w / sum(weights.values()) for entry, w in weights.items()}
    share["dram.hbm2"] += 3.97
    for entry, energy in share.items():
        assert pj_bit("gpu-12nm", entry) == shipped(energy), entry
    assert pj_bit("gpu-16nm", "registers") == shipped(1.5 * registers)
    assert pj_bit("gpu-16nm", "sram.l1") == shipped(1.5 * share["sram.l1"])
    feature = (16 / 12) ** ALPHA
    assert pj_bit("gpu-16nm", "sram.l2") == shipped(feature * share["sram.l2"])
    controller = feature * (share["dram.hbm2"] - 3.97)
    assert pj_bit("gpu-16nm", "dram.hbm2") == shipped(3.97 + controller)


def test_a_v100_in_fp64_rises_in_power_as_measured() -> None:
    # gpu-benches: 5990 GFLOP/s at 841 GB/s, mean of four V100s, against 109 GFLOP/s at 869 GB/s
    measured_w = (227 + 249 + 235 + 220) / 4 - (138 + 137 + 124 + 124) / 4
    streaming = sum(
        table("gpu-12nm").price_j(entry, "J/B")
        for entry in ("dram.hbm2", "sram.l2", "sram.l1", "registers")
    )
    per_flop = table("gpu-12nm").price_j("flop.fp64", "J/FLOP")
    per_flop += 16 * table("gpu-12nm").price_j("registers", "J/B")  # 32 B per multiply-add
    modelled_w = (5990e9 - 109e9) * per_flop + (841e9 - 869e9) * streaming
    assert modelled_w == pytest.approx(measured_w, rel=0.1)


@pytest.mark.parametrize(("format_", "size"), [("fp16", 4096), ("fp16", 8192), ("fp32", 4096)])
@pytest.mark.parametrize("name", ["v100-sxm2-16gb", "p100-sxm2"])
def test_a_busy_gpu_stays_between_idle_and_tdp(name: str, format_: str, size: int) -> None:
    device = load_device(name)
    tensors = {key: Tensor(key, (size, size), format_, Role.ACTIVATION) for key in "abc"}
    op = Op("gemm", "gemm", Pass.FORWARD, "", ("a", "b"), ("c",), Gemm(size, size, size))
    cost = price(op, Graph("gemm", 1, format_, tensors, (op,), "c"), device)
    energy = 0.0
    for key, flops in cost.flops.items():
        engine, _, precision = key.rpartition(".")
        entry = device.engines[engine].energy[precision]
        energy += flops * device.prices.price_j(entry, "J/FLOP")
    for level, moved in cost.traffic_bytes.items():
        energy += moved * device.prices.price_j(device.memory[level].energy, "J/B")
    watts = energy / cost.time_s(device) + device.idle_power.value
    assert device.tdp is not None
    assert 2.5 * device.idle_power.value < watts < device.tdp.value


@pytest.mark.parametrize("exchange", ["horowitz-45nm", "jouppi-7nm", "asic-16nm"])
@pytest.mark.parametrize(
    "name",
    # Not of GDDR, DDR3, DDR4 and 16-bit integers, which these tables do not price.
    [
        n
        for n in catalog.names("devices")
        if not {"gddr", "ddr4"} & set(load_device(n).memory) and n not in {"eyeriss", "tpu-v1"}
    ],
)
def test_the_table_of_every_device_can_be_exchanged(name: str, exchange: str) -> None:
    assert load_device(name, {"energy_table": exchange}).prices.name == exchange


def test_a_table_without_the_event_is_no_price_of_zero() -> None:
    with pytest.raises(ConfigError, match=r"no entry 'flop\.fp16\.tensor'"):
        load_device("v100-sxm2-16gb", {"energy_table": "gpu-16nm"})


@pytest.mark.parametrize("name", catalog.names("nodes"))
def test_links_of_a_class_cost_what_the_class_costs(name: str) -> None:
    node = load_node(name)
    assert node.prices is not None
    for link_type in node.link_types.values():
        assert node.prices.price_j(link_type.energy, "J/B") == shipped(80e-12)


def test_a_price_in_the_wrong_unit_is_refused() -> None:
    with pytest.raises(ConfigError, match="another dimension"):
        table("gpu-12nm").price_j("flop.fp32", "J/B")
    with pytest.raises(ConfigError, match=r"did you mean 'flop\.fp32'"):
        table("gpu-12nm").price_j("flop.fp23", "J/FLOP")


DARK_MEMORY = {  # the table of the documents: pJ, 16-bit integer and 64-bit floating point, vs. add
    "add": (0.18, 5, 1.0, 1.0),
    "multiply": (0.62, 20, 3.4, 4.0),
    "registers.16word": (0.12, 0.34, 0.7, 0.07),
    "registers.64word": (0.23, 0.42, 1.3, 0.08),
    "sram.4kword": (8, 26, 44, 5.2),
    "sram.32kword": (11, 47, 61, 9.4),
    "dram": (640, 2560, 3556, 512),
}


@pytest.mark.parametrize("entry", DARK_MEMORY)
@pytest.mark.parametrize(("column", "format_"), [(0, "int16"), (1, "fp64")])
def test_the_table_of_the_documents_comes_back_with_its_ratios(
    entry: str, column: int, format_: str
) -> None:
    prices, published = table("dark-memory-45nm"), DARK_MEMORY[entry]
    energy, unit = prices.access(f"{entry}.{format_}")
    assert (energy, unit) == (pytest.approx(published[column] * 1e-12), "J")
    ratio, printed = prices.ratio(f"{entry}.{format_}", f"add.{format_}"), published[2 + column]
    digits = len(str(printed).partition(".")[2]) if isinstance(printed, float) else 0
    assert round(ratio, digits) == pytest.approx(printed, abs=1.01 * 10**-digits)


def test_dram_costs_500_and_3556_additions() -> None:
    prices = table("dark-memory-45nm")
    assert prices.ratio("dram.int16", "add.int16") == pytest.approx(3556, abs=0.5)
    assert prices.ratio("dram.fp64", "add.fp64") == 512  # the documents say "> 500"


def test_relative_prices_have_joules_only_with_a_reference() -> None:
    relative = table("eyeriss-normalised")
    published = {"registers": 1, "wire.array": 2, "sram.buffer": 6, "dram": 200}
    for entry, macs in published.items():
        assert relative.ratio(entry, "mac.int16") == pytest.approx(macs)
        with pytest.raises(ConfigError, match="is relative"):
            relative.price_j(entry, "J/B")
    absolute = load_energy_table("eyeriss-normalised", {"reference": "0.4 pJ/FLOP"})
    assert absolute.price_j("flop.int16", "J/FLOP") == pytest.approx(0.4e-12)
    for entry, macs in published.items():
        assert 2 * absolute.price_j(entry, "J/B") == pytest.approx(macs * 0.8e-12)


def test_a_wire_is_priced_by_byte_and_metre() -> None:
    assert table("data-movement").price_j("wire", "J/B/m") == pytest.approx(0.24e-12 * 8 / 1e-3)
    with pytest.raises(ConfigError, match="another dimension"):
        table("data-movement").price_j("wire", "J/B")


def test_ratios_need_a_stated_width_and_one_unit() -> None:
    with pytest.raises(ConfigError, match="states no width"):
        table("data-movement").ratio("dram.hbm2", "dram.ddr4")
    with pytest.raises(ConfigError, match=r"no entry 'dram\.hbm4'"):
        table("data-movement").ratio("dram.hbm4", "dram.ddr4")


@pytest.mark.parametrize("name", [n for n in catalog.names("energy") if n != "not-stated"])
def test_every_price_says_its_unit_scope_node_and_source(name: str) -> None:
    prices = table(name)
    for entry in prices.entries.values():
        assert entry.source != "not stated"
        assert entry.basis != "not stated"
        assert all(key.strip() in prices.sources for key in entry.source.split(","))
        is_device = entry.process_node is not None or prices.process_node is not None
        assert is_device or name == "data-movement"


FP8 = 0.21 * (4 / 8) ** (math.log(0.34 / 0.21) / math.log(11 / 8))  # 4 bits of significand, 7 nm


def test_8_bit_matrix_units_multiply_short_significands_and_add_in_32_bits() -> None:
    fp8 = {45: (FP8 * 1.1 / 0.34 + 0.9) / 2, 7: (FP8 + 0.38) / 2}
    int8 = {45: (0.2 + 0.1) / 2, 7: (0.07 + 0.03) / 2}
    for name, node in {"horowitz-45nm": 45, "jouppi-7nm": 7}.items():
        assert pj_flop(name, "flop.fp8.tensor") == shipped(fp8[node])
        assert pj_flop(name, "flop.int8.tensor") == shipped(int8[node])
    overhead = {}
    sizes = ((12, 1, 8 * 8 * 16 * 2), (7, 1, 16 * 8 * 32 * 2), (5, 4, 64 * 256 * 32 * 2))
    for node, warps, flop in sizes:
        issue = 30 * (node / 45) ** ALPHA - OPERANDS_PJ * (node / 40) ** ALPHA
        overhead[node] = 32 * warps * issue / flop
    for node, per_flop in overhead.items():
        expected = between(node, 45, int8[45], 7, int8[7]) + per_flop
        assert pj_flop(f"gpu-{node}nm", "flop.int8.tensor") == shipped(expected)
    expected = between(5, 45, fp8[45], 7, fp8[7]) + overhead[5]
    assert pj_flop("gpu-5nm", "flop.fp8.tensor") == shipped(expected)


def test_rows_list_every_entry() -> None:
    rows = table("gpu-12nm").rows()
    assert [row["entry"] for row in rows] == list(table("gpu-12nm").entries)
    assert all(row["value"] and row["scope"] for row in rows)
