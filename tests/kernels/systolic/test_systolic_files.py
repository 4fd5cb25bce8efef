"""SCALE-Sim's files: every form that its repositories have, and errors that say where and why."""

from __future__ import annotations

from pathlib import Path

import pytest

from ridgeline.errors import ConfigError
from ridgeline.kernels.systolic import gemm_cycles, scalesim_gemm, scalesim_product
from ridgeline.kernels.systolic.scalesim_files import TopologyLayer, read_config, read_topology
from ridgeline.kernels.systolic.scalesim_report import compute_report, layer_reports
from ridgeline.kernels.traffic import as_gemm
from ridgeline.workload.graph import Conv, Gemm, Pass

CONV = (
    "Layer name, IFMAP Height, IFMAP Width, Filter Height, Filter Width, Channels, Num Filter,"
    " Strides,\n"
)
CFG = """[general]
run_name = example

[architecture_presets]
ArrayHeight:    32
ArrayWidth:     16
IfmapSramSzkB:   64
FilterSramSzkB:  32
OfmapSramSzkB:   16
Bandwidth : 10
Dataflow : {dataflow}

[sparsity]
SparsitySupport : {sparse}
OptimizedMapping : {row_wise}
BlockSize : 8
RandomNumberGeneratorSeed : 7

[run_presets]
InterfaceBandwidth: {mode}
"""


def topology(tmp_path: Path, text: str | bytes) -> tuple[TopologyLayer, ...]:
    file = tmp_path / "net.csv"
    file.write_bytes(text if isinstance(text, bytes) else text.encode())
    return read_topology(file)


def configuration(tmp_path: Path, **fields: str) -> Path:
    file = tmp_path / "array.cfg"
    defaults = {"dataflow": "ws", "sparse": "false", "row_wise": "false", "mode": "CALC"}
    file.write_text(CFG.format(**(defaults | fields)))
    return file


@pytest.mark.parametrize(
    ("text", "products"),
    [
        (CONV + "Conv1, 224, 224, 7, 7, 3, 64, 2,\n", [(109 * 109, 64, 147)]),
        # MobileNet: a blank line, a tab before the name, a comment, and a comma that is missing
        (
            CONV + "\nConv2_dw, 112, 112, 3, 3, 1, 1, 1,#dw\nConv11,28,28,1,1,256,256,1\n"
            "\tConv14_0,14,14,3,3,1,1,1,\n",
            [(110 * 110, 1, 9), (28 * 28, 256, 256), (144, 1, 9)],
        ),
        # U-Net: tabs
        (CONV.replace(",", "\t") + "Conv1_1\t572\t572\t3\t3\t1\t64\t1\t\n", [(570**2, 64, 9)]),
        # MLPerf: no comma after the header, a line of commas, the heading of a group
        (
            CONV.strip().rstrip(",") + "\n,,,,,,,\nNeural Collaborative Filtering,\n"
            "MLP_FC1,1,1,1,1,64,32,1\nAttn_QxK',1,64,1,1,1,64,1, \n",
            [(1, 32, 64), (64, 64, 1)],
        ),
        # DeepBench: "IFMAP Width" twice; gradients: other spellings
        (
            "Layer, IFMAP Width, IFMAP Width, Filter Height, Filter Width, Channels, Num Filter,"
            " Strides,\nConv1,700,161,41,11,1,32,2,\n",
            [((659 // 2 + 1) * (150 // 2 + 1), 32, 451)],
        ),
        (
            "Layer name,Ifmap height,ifmap width,filter height,filter width,channel,num filters,"
            "strides,\nfc,128,1040,1,1040,1,512,1,\n",
            [(128, 512, 1040)],
        ),
        # Llama: a batch size; tiny MLPerf: a ninth value, the stride across
        (
            CONV.strip() + " Batch Size,\nEmbedding, 512, 512, 1, 1, 3, 4096, 1, 2,\n",
            [(2 * 512 * 512, 4096, 3)],
        ),
        (CONV + "Conv, 96, 96, 3, 3, 3, 8, 2, 3\n\n\n", [(47 * 32, 8, 27)]),
        (
            "Layer name,IFMAP height,IFMAP width,Filter height,Filter width,Channels,Num filter,"
            "Stride height,Stride width,\nConv,96,96,3,3,3,8,2,3,\n",
            [(47 * 32, 8, 27)],
        ),
        # Matrix products, with and without the last comma, with BOM and CRLF
        ("Layer Name, M, N, K,\nTest 1, 256, 128, 64,", [(256, 128, 64)]),
        (
            b"\xef\xbb\xbfLayer,M,N,K\r\n1,2048,4096,32\r\n2,32,64,128",
            [(2048, 4096, 32), (32, 64, 128)],
        ),
        # A column that no layer has a value in
        ("Layer,M,N,K,FFN_up,\nFFN_up,1378,18944,3584,", [(1378, 18944, 3584)]),
        # Not a depthwise layer without DP in its name; one product of a channel with it
        (
            CONV + "Depthwise, 8, 8, 3, 3, 16, 1, 1,\nDP1, 8, 8, 3, 3, 16, 1, 1,\n",
            [(36, 1, 144), (36, 1, 9)],
        ),
    ],
)  # fmt: skip
def test_topologies(
    tmp_path: Path, text: str | bytes, products: list[tuple[int, int, int]]
) -> None:
    layers = topology(tmp_path, text)
    gemms = [as_gemm(layer.loops, Pass.FORWARD) for layer in layers]
    assert [(gemm.m, gemm.n, gemm.k) for gemm in gemms] == products


@pytest.mark.parametrize(
    "text",
    [
        CONV.strip() + " Sparsity,\nCONV_1, 5, 5, 3, 3, 2, 6, 1, 2:4,",
        CONV + "CONV_1, 5, 5, 3, 3, 2, 6, 1, 2:4,",
        "Layer Name, M, N, K, Sparsity,\nGEMM_1, 3, 5, 16, 2:4,\n",
        "Layer Name, M, N, K,\nGEMM_1, 3, 5, 16, 2:4,\n",
    ],
)
def test_sparsity_column(tmp_path: Path, text: str) -> None:
    (layer,) = topology(tmp_path, text)
    assert layer.sparsity == (2, 4)


def test_windows_over_the_edge(tmp_path: Path) -> None:
    (layer,) = topology(tmp_path, CONV + "Conv1, 224, 224, 7, 7, 3, 64, 2,\n")
    assert scalesim_product(layer.loops) == (110 * 110, 64, 147)
    # torch.nn.Conv2d without padding
    assert as_gemm(layer.loops, Pass.FORWARD) == Gemm(109 * 109, 64, 147)


def test_depthwise_layers_are_groups(tmp_path: Path) -> None:
    (layer,) = topology(tmp_path, CONV + "DP1, 8, 8, 3, 3, 16, 2, 1,\n")
    assert layer.loops == Conv(1, 16, 8, 8, 32, 3, 3, groups=16)
    assert scalesim_product(layer.loops) == (36, 2, 9)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "net.csv:1: the file is empty"),
        ("\n\n", "net.csv:1: the file is empty"),
        ("Conv1, 224, 224, 7, 7, 3, 64, 2,\n", "net.csv:1: the first line must be a header"),
        ("Layer, M, K, N,\n", "net.csv:1: column 3 must be 'n', found 'k'"),
        ("Layer, height, width,\n", "net.csv:1: column 2 must be 'ifmap height', found 'height'"),
        ("Layer, M, N,\n", "column 4 must be 'k', found 'nothing'"),
        (
            "Layer, M, N, K, Sparsty,\n",
            "unknown or repeated column 'sparsty'; did you mean 'sparsity'",
        ),
        ("Layer, M, N, K,\na, 1, 2,\n", "net.csv:2: a: k must be a whole number .* found ''"),
        ("Layer, M, N, K,\n\na, 1, 2.5, 3,\n", "net.csv:3: a: n must be .* found '2.5'"),
        ("Layer, M, N, K,\na, 1, 0, 3,\n", "net.csv:2: a: n must be .* found '0'"),
        ("Layer, M, N, K,\na, 1, 2, 3, 4, 5\n", "net.csv:2: a: 5 values for the 3 columns"),
        # Shipped files that SCALE-Sim cannot read either
        ("Layer, M, N, K, Sparsity,\nGEMM_1, 1, 5, 16, 1,\n", "net.csv:2: GEMM_1: sparsity must"),
        (CONV + "FC, 1, 1, 1, ,1 2, 2, 1,\n", "net.csv:2: FC: filter width must be .* found ''"),
        (CONV + "a, 2, 2, 3, 1, 1, 1, 1,\n", "filter of 3 x 1 is larger than the image of 2 x 2"),
    ],
)
def test_topologies_that_cannot_be_understood(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        topology(tmp_path, text)


def test_missing_and_binary_files(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"no\.csv: cannot be read"):
        read_topology(tmp_path / "no.csv")
    with pytest.raises(ConfigError, match="not UTF-8"):
        topology(tmp_path, b"PK\x03\x04\xff\xfe")


def test_configuration(tmp_path: Path) -> None:
    found = read_config(configuration(tmp_path, dataflow="is", mode="USER"))
    assert (found.run_name, found.rows, found.columns, found.dataflow) == ("example", 32, 16, "is")
    assert (found.bandwidth_mode, found.bandwidths) == ("USER", (10,))
    assert (found.ifmap_kb, found.filter_kb, found.ofmap_kb) == (64, 32, 16)
    assert (found.sparsity, found.row_wise_block, found.seed) == (False, None, 7)


def test_configuration_of_version_1(tmp_path: Path) -> None:
    file = tmp_path / "google.cfg"
    file.write_bytes(
        b'\xef\xbb\xbf[general]\r\nrun_name = "GoogleTPU_os"\r\n[architecture_presets]\r\n; v1\r\n'
        b"ArrayHeight:    256\r\nArrayWidth:     256\r\nIfmapSramSz:    8192\r\nDataflow:  os\r\n"
    )
    found = read_config(file)
    assert (found.run_name, found.ifmap_kb, found.filter_kb) == ("GoogleTPU_os", 8192, None)
    assert (found.bandwidth_mode, found.seed) == ("CALC", 40)


def test_keys_of_other_versions_are_noted(tmp_path: Path) -> None:
    file = configuration(tmp_path)
    text = file.read_text("utf-8").replace("SparsitySupport", "SparseAcc : ampere\nSparsitySupport")
    file.write_text(f"{text}\n[gpu]\nTensorCores: 32\n", "utf-8")
    notes = read_config(file).notes
    assert [note.split(": ")[1:3] for note in notes] == [
        ["SparseAcc", "ampere"],
        ["TensorCores", "32"],
    ]


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("ArrayWidth", "ArayWidth", "cfg:6: ArayWidth: unknown key; did you mean 'ArrayWidth'"),
        ("ArrayWidth:     16\n", "", "the field 'ArrayWidth' is missing"),
        (
            "[sparsity]",
            "[sparsty]",
            r"cfg:13: unknown section \[sparsty\]; did you mean 'sparsity'",
        ),
        (": 7", ": seven", "cfg:17: RandomNumberGeneratorSeed: must be a whole number"),
        ("ArrayHeight:    32", "ArrayHeight:    0", "cfg:5: ArrayHeight: must be .* at least 1"),
        ("Dataflow : ws", "Dataflow : rs", "cfg:11: Dataflow: must be os or ws or is, found 'rs'"),
        ("CALC", "calc", "InterfaceBandwidth: must be CALC or USER"),
        ("ArrayWidth:     16", "ArrayWidth", "cfg:6: expected '.section.', 'name = value'"),
        ("ArrayWidth", "ArrayHeight", "cfg:6: ArrayHeight: stands twice, first in line 5"),
        ("SparsitySupport : false", "SparsitySupport : yes", "must be true or false"),
    ],
)
def test_configurations_that_cannot_be_understood(
    tmp_path: Path, old: str, new: str, message: str
) -> None:
    file = configuration(tmp_path)
    file.write_text(file.read_text().replace(old, new))
    with pytest.raises(ConfigError, match=message):
        read_config(file)


def test_bandwidth_of_user_mode(tmp_path: Path) -> None:
    file = configuration(tmp_path, mode="USER")
    file.write_text(file.read_text().replace("Bandwidth : 10\n", "Bandwidth : 10, 20,30\n"))
    assert read_config(file).bandwidths == (10, 20, 30)
    file.write_text(file.read_text().replace("10, 20,30", "10, fast"))
    with pytest.raises(ConfigError, match="cfg:10: Bandwidth: must be whole numbers"):
        read_config(file)
    file.write_text(file.read_text().replace("Bandwidth : 10, fast\n", ""))
    with pytest.raises(ConfigError, match="the field 'Bandwidth' is missing"):
        read_config(file)


def test_report_in_scalesims_columns(tmp_path: Path) -> None:
    config = read_config(configuration(tmp_path))
    layers = topology(tmp_path, CONV + "Conv1, 20, 20, 3, 3, 3, 8, 2,\nDP2, 6, 6, 3, 3, 2, 4, 1,\n")
    reports = layer_reports(config, layers, "scalesim")
    assert [report.layer for report in reports] == ["Conv1", "DP2Channel_0", "DP2Channel_1"]
    first, channel = scalesim_gemm(100, 8, 27, 32, 16), scalesim_gemm(16, 4, 9, 32, 16)
    prefetched = [report.memory.cycles_with_prefetch for report in reports if report.memory]
    assert compute_report(reports) == (
        "LayerID, Total Cycles (incl. prefetch), Total Cycles, Stall Cycles, Overall Util %,"
        " Mapping Efficiency %, Compute Util %,\n"
        f"0, {prefetched[0]}, {first.total_cycles}, 0, {first.overall_util_pct},"
        f" {first.mapping_eff_pct}, {first.compute_util_pct},\n"
        f"1, {prefetched[1]}, {channel.total_cycles}, 0, {channel.overall_util_pct},"
        f" {channel.mapping_eff_pct}, {channel.compute_util_pct},\n"
        f"2, {prefetched[1]}, {channel.total_cycles}, 0, {channel.overall_util_pct},"
        f" {channel.mapping_eff_pct}, {channel.compute_util_pct},\n"
    )


def test_report_in_our_own_counting(tmp_path: Path) -> None:
    config = read_config(configuration(tmp_path))
    layers = topology(tmp_path, CONV + "Conv1, 20, 20, 3, 3, 3, 8, 2,\nDP2, 6, 6, 3, 3, 2, 4, 1,\n")
    conv, depthwise = layer_reports(config, layers)
    assert conv.total_cycles == gemm_cycles(81, 8, 27, 32, 16)
    assert depthwise.total_cycles == gemm_cycles(16, 4, 9, 32, 16, batch=2)
    assert depthwise.overall_util_pct <= 100
    assert (conv.stall_cycles, conv.memory) == (0, None)
    assert f"0, , {conv.total_cycles}, 0, " in compute_report([conv])


def test_our_own_counting_in_user_mode_has_the_stalls_of_the_device(tmp_path: Path) -> None:
    calc = read_config(configuration(tmp_path))
    user = read_config(configuration(tmp_path, mode="USER"))
    layers = topology(tmp_path, CONV + "Conv1, 20, 20, 3, 3, 3, 8, 2,\nDP2, 6, 6, 3, 3, 2, 4, 1,\n")
    for free, waiting, layer in zip(
        layer_reports(calc, layers), layer_reports(user, layers), layers, strict=True
    ):
        assert waiting.stall_cycles is not None
        assert waiting.dram_words is not None
        assert waiting.total_cycles == free.total_cycles + waiting.stall_cycles
        assert waiting.stall_cycles > 0  # first loads and last stores of 10 words a cycle
        gemm = as_gemm(layer.loops, Pass.FORWARD)
        assert waiting.dram_words >= gemm.batch * (gemm.k * gemm.n + gemm.m * gemm.n)


def test_sparse_layers(tmp_path: Path) -> None:
    layers = topology(tmp_path, "Layer, M, N, K, Sparsity,\na, 30, 20, 64, 2:4,\nb, 30, 20, 64,\n")
    sparse = read_config(configuration(tmp_path, sparse="True"))
    ours = [report.total_cycles for report in layer_reports(sparse, layers)]
    assert ours == [gemm_cycles(30, 20, k, 32, 16) for k in (32, 64)]
    theirs = [report.total_cycles for report in layer_reports(sparse, layers, "scalesim")]
    assert theirs == [gemm_cycles(30, 20, k, 32, 16, compat="scalesim") for k in (32, 64)]

    off = read_config(configuration(tmp_path))
    assert {r.total_cycles for r in layer_reports(off, layers, "scalesim")} == {theirs[1]}

    row_wise = read_config(configuration(tmp_path, sparse="true", row_wise="true"))
    (first, _) = layer_reports(row_wise, layers, "scalesim")
    assert first.mapping_eff_pct == (
        scalesim_gemm(30, 20, 64, 32, 16, row_wise_block=8, seed=7).mapping_eff_pct
    )
    with pytest.raises(ConfigError, match="in SCALE-Sim's way only"):
        layer_reports(row_wise, layers)


def test_what_scalesim_does_not_know(tmp_path: Path) -> None:
    config = read_config(configuration(tmp_path))
    layers = topology(tmp_path, CONV.strip() + " Batch Size,\na, 5, 5, 3, 3, 2, 6, 1, 4,\n")
    with pytest.raises(
        ConfigError, match="knows no batch, padding or dilation; found a batch of 4"
    ):
        layer_reports(config, layers, "scalesim")
    with pytest.raises(ConfigError, match="compat must be 'scalesim' or None"):
        layer_reports(config, layers, "v2")
