"""Files of Timeloop, AccelForge and ZigZag: what becomes of them, against the tools' own counts."""

from __future__ import annotations

import json
import random
import re
import shlex
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import ridgeline as rl
from ridgeline.cli import execute
from ridgeline.config import Document
from ridgeline.kernels.spatial.machine import elements_of
from ridgeline.kernels.spatial.nest import nest_of
from ridgeline.kernels.spatial.search import LayoutResult, given_layout
from ridgeline.study.import_design import Design
from ridgeline.study.import_design.documents import DesignDocument
from ridgeline.study.import_design.loops import (
    Access,
    Einsum,
    NotALayerError,
    layer_of,
    parse_index,
)
from ridgeline.workload.files import load_model
from ridgeline.workload.graph import Conv, Gemm

DESIGNS = Path(__file__).parents[2] / "docs" / "examples" / "designs"
ZIGZAG = [DESIGNS / f"zigzag-{part}.yaml" for part in ("hardware", "workload", "mapping")]
TIMELOOP = DESIGNS / "timeloop.yaml"
TREE = DESIGNS / "timeloop-tree.yaml"
ACCELFORGE = DESIGNS / "accelforge.yaml"

SPATIAL = """
architecture:
  version: 0.4
  nodes:
  - !Container {name: System, attributes: {technology: "40nm", global_cycle_seconds: 1e-9}}
  - !Component {name: MainMemory, class: DRAM, attributes: {width: 256, datawidth: 8}}
  - !Container {name: PE, spatial: {meshX: 16}}
  - !Component
    name: GlobalBuffer
    class: SRAM
    attributes: {depth: 32768, width: 64, datawidth: 8}
  - !Component {name: RegisterFile, class: regfile, attributes: {depth: 64, width: 8, datawidth: 8}}
  - !Component {name: MACC, class: intmac, attributes: {datawidth: 8}}
problem:
  shape:
    name: Conv1D
    dimensions: [C, K, R, P]
    data_spaces:
    - {name: Weights, projection: [[[C]], [[K]], [[R]]]}
    - {name: Inputs, projection: [[[C]], [[R], [P]]]}
    - {name: Outputs, projection: [[[K]], [[P]]], read_write: true}
  instance: {C: 32, K: 32, R: 3, P: 16}
mapping:
- {target: MainMemory, type: temporal, factors: "R=1,P=1,K=1,C=1", permutation: PRKC}
- {target: inter_PE_spatial, type: spatial, factors: "R=1,P=1,K=16,C=1", permutation: PRKC}
- {target: GlobalBuffer, type: temporal, factors: "R=3,P=1,K=2,C=32", permutation: PRKC}
- {target: RegisterFile, type: temporal, factors: "R=1,P=16,K=1,C=1", permutation: RPKC}
"""


def counted(design: Design) -> LayoutResult:
    """Count the words of a design's only mapping."""
    device, (layer,) = design.device, design.layers
    assert device is not None
    (engine,) = device.engines.values()
    assert engine.spatial is not None
    elements = elements_of(engine.spatial, device.memory[engine.spatial.buffer].capacity.value, 1e6)
    levels = [device.far_memory, engine.spatial.buffer, next(iter(device.memory))]
    return given_layout(nest_of(layer.loops), elements, design.mappings[layer.name], levels)


def written(path: Path, text: str) -> Path:
    path.write_text(text, encoding="utf-8")
    return path


def test_words_of_one_element_are_those_that_timeloop_publishes() -> None:
    # timeloop-accelergy-exercises, tutorial of ISPASS 2020, 03-model-conv1d+oc-3level, no-bypass,
    # timeloop-model.stats.txt: the same layer, hierarchy and mapping.
    found = counted(rl.import_design(TIMELOOP))
    counts = found.counts
    assert (counts.x_words, counts.w_words) == (288, 96)  # GlobalBuffer, scalar reads
    assert (counts.in_words, counts.out_words) == (0, 512)  # its reads and updates of outputs
    assert found.memory_words == (18, 96, 0, 512)  # MainMemory, reads and updates
    assert counts.busy_cycles == 1536  # cycles
    assert counts.cycles == 1536 + 2  # what fills and empties the array


def test_words_of_sixteen_elements_are_those_that_timeloop_publishes(tmp_path: Path) -> None:
    # The same tutorial, 04-model-conv1d+oc-3levelspatial, kp.
    found = counted(rl.import_design(written(tmp_path / "kp.yaml", SPATIAL)))
    assert found.memory_words == (576, 3072, 0, 512)
    assert found.counts.w_words == 16 * 192
    assert (found.counts.in_words, found.counts.out_words) == (16 * 992, 16 * 1024)
    assert found.counts.busy_cycles == 3072
    # Timeloop fetches 16 x 1,152 words of images. The window slides back by two at each second
    # filter, and an element here keeps 14 of the 16 words that it has.
    again = 16 * 32 * (16 - 2 - 2)
    assert found.counts.x_words == 16 * 1152 - again - 16 * 32 * 2
    assert found.counts.x_words == 16 * 32 * ((16 + 1 + 1) + (2 + 1 + 1))


def test_traffic_and_energy_are_those_that_zigzag_counts(tmp_path: Path) -> None:
    # zigzag-dse 3.9.1 on these three files, with the mapping of `fc` as the default: words of 64
    # bits of the memory are 1024 of I, 512 of W and 256 of O; mac_energy is 10485.76 pJ, that of
    # the memory 716800 + 358400 + 179200 pJ.
    design = rl.import_design(ZIGZAG)
    assert design.device is not None
    result = rl.gemm(64, 32, 128, design.device, format="int8", mapping=design.mappings["fc"])
    assert result.traffic_bytes["dram"] == 8 * (1024 + 512 + 256)
    assert result.energy_j["compute"] == pytest.approx(10485.76e-12)
    assert result.energy_j["dram"] == pytest.approx(1254400e-12)
    # Over the array's border by hand: A for each of two strips, B once, results once, and sums of
    # 16 bits written by all but the last of eight tiles and read by all but the first.
    sums = 64 * 32 * 2 * (7 + 7)
    array = 2 * 64 * 128 + 128 * 32 + 64 * 32 + sums
    assert result.traffic_bytes["sram"] == array + result.traffic_bytes["dram"]  # both borders


def test_traffic_of_an_accelforge_mapping_is_that_of_its_loops() -> None:
    design = rl.import_design(ACCELFORGE)
    assert design.device is not None
    result = rl.gemm(128, 32, 64, design.device, format="int8", mapping=design.mappings["Matmul0"])
    assert result.traffic_bytes["MainMemory"] == 128 * 64 + 64 * 32 + 128 * 32
    near = 2 * 128 * 64 + 4 * 64 * 32 + 128 * 32 + 128 * 32 * (3 + 3)
    assert result.traffic_bytes["GlobalBuffer"] == near + result.traffic_bytes["MainMemory"]
    assert result.energy_j["compute"] == pytest.approx(128 * 64 * 32 * 0.08e-12)
    assert result.energy_j["static"] == pytest.approx(0.002 * result.time_s)


def test_a_device_has_what_its_file_states_and_says_what_it_does_not() -> None:
    device = rl.import_design(ZIGZAG[0]).device
    assert device is not None
    array = device.engines["multipliers"].array
    assert array is not None
    assert (array.rows.value, array.columns.value, array.dataflows) == (16, 16, ("ws",))
    assert list(device.memory) == ["reg_weight", "sram", "dram"]
    assert device.memory["reg_weight"].capacity.value == 256
    assert device.memory["sram"].capacity.value == 2**17
    assert device.memory["dram"].bandwidth is not None
    assert device.memory["dram"].bandwidth.value == 8e9
    assert device.memory["dram"].bandwidth.basis == "derived"
    assert device.idle_power.basis == device.launch_latency.basis == "assumed"
    assert "zigzag-hardware.yaml" in device.sources["file"]


def test_spatial_arrays_have_the_rooms_that_their_scratchpads_say() -> None:
    device = rl.import_design(TREE).device
    assert device is not None
    spatial = device.engines["mac"].spatial
    assert spatial is not None
    assert (spatial.rows.value, spatial.columns.value) == (12, 14)
    rooms = (spatial.images.words, spatial.filters.words, spatial.sums.words)
    assert [room.value for room in rooms] == [12, 192, 16]
    assert device.memory[spatial.buffer].capacity.value == 16384 * 64 / 8


def test_what_cannot_be_said_is_named_with_its_line(tmp_path: Path) -> None:
    remarks = rl.import_design(ZIGZAG).remarks
    (added,) = [remark for remark in remarks if "residual" in remark.message]
    assert (added.kind, added.field) == ("left out", "2.equation")
    line = ZIGZAG[1].read_text("utf-8").splitlines()[added.line - 1]
    assert line.strip().startswith("equation: O[d][k]=X")
    bypass = TIMELOOP.read_text("utf-8") + (
        "- {target: RegisterFile, type: bypass, keep: [Outputs], bypass: [Weights, Inputs]}\n"
    )
    source = written(tmp_path / "bypass.yaml", bypass)
    messages = [remark.message for remark in rl.import_design(source).remarks]
    assert any("Inputs, Weights pass by 'RegisterFile'" in message for message in messages)


def test_every_assumption_is_marked_in_the_files(tmp_path: Path) -> None:
    for files in ([TIMELOOP], [TREE], [ACCELFORGE], ZIGZAG):
        design = rl.import_design(files)
        design.write(tmp_path)
        assert design.device is not None
        table = rl.load_energy_table(str(tmp_path / f"{design.device.name}-energy.yaml"))
        guessed = [name for name, entry in table.entries.items() if entry.basis == "assumed"]
        said = [remark for remark in design.remarks if "of the energy table" in remark.message]
        assert len(guessed) == len(said)
        again = rl.load_device(str(tmp_path / f"{design.device.name}.yaml"))
        assert again.model_dump(exclude={"prices"}) == design.device.model_dump(exclude={"prices"})


def test_commands_that_are_printed_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for i, files in enumerate(([TIMELOOP], [ACCELFORGE], ZIGZAG)):
        out = tmp_path / str(i)
        assert execute(["import-design", *map(str, files), "--out", str(out), "--json"]) == 0
        printed = json.loads(capsys.readouterr().out)
        assert printed["commands"]
        for command in printed["commands"]:
            assert execute([*shlex.split(command)[1:], "--quantity", "time_s"]) == 0, command
            assert float(capsys.readouterr().out) > 0
        model = load_model(str(out / "layers.csv"))
        assert model.network.smallest_batch == 1
    assert execute(["import-design", *map(str, ZIGZAG)]) == 0
    text = capsys.readouterr().out
    assert "conv1: conv 1 16 14 14 32 3x3 --padding 1x1, with a mapping" in text


def test_layers_of_the_table_are_the_layers(tmp_path: Path) -> None:
    design = rl.import_design(ZIGZAG)
    design.write(tmp_path)
    graph = load_model(str(tmp_path / "layers.csv")).forward(1)
    assert [op.loops for op in graph.ops if op.loops is not None] == [
        layer.loops for layer in design.layers
    ]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: 1", "neither hardware, workload nor mapping"),
        ("- 1", "neither hardware, workload nor mapping"),
        ("", "empty"),
        ("architecture: {nodes: [}", "not YAML"),
        ("architecture: {nodes: []}", "no multipliers"),
        ("architecture: {nodes: [{{ include('a') }}]}", "Jinja template"),
        ("cores: {0: a.yaml}", "one core's file"),
        ("memories: {}", "operational_array"),
        ("arch: {nodes: [!Memory {name: M}]}", "no !Compute"),
        ("arch: {nodes: [!Compute {name: M}]}", "no storage"),
        ("problem: {shape: cnn-layer}", "by itself"),
        (SPATIAL.replace("K=16", "K=8"), "its factors cover 16 of 32"),
        (SPATIAL.replace("K=16", "K=32"), "do not fit"),
        (SPATIAL.replace("K: 32,", ""), "no size of 'K'"),
        (SPATIAL.replace("target: GlobalBuffer", "target: GlobalBufer"), "no target"),
        (SPATIAL.replace('"R=3', '"Q=3'), "no dimension 'Q'"),
        ("a: &a [1]\narchitecture: {<<: *a}", "can be merged"),
    ],
)  # fmt: skip
def test_mistakes_are_one_line_with_a_place(tmp_path: Path, text: str, message: str) -> None:
    path = written(tmp_path / "design.yaml", text)
    try:
        said = "\n".join(map(str, rl.import_design(path).remarks))
    except rl.ConfigError as error:
        said = str(error)
        assert "\n" not in said
    assert message in said
    assert re.search(rf"{re.escape(str(path))}:\d+", said)


def test_a_mapping_alone_is_an_error_of_status_two(capsys: pytest.CaptureFixture[str]) -> None:
    assert execute(["import-design", str(ZIGZAG[2])]) == 2
    said = capsys.readouterr().err
    assert "together with its hardware" in said
    assert said.count("\n") == 1


def test_merges_cannot_explode(tmp_path: Path) -> None:
    rows = ["a0: &a0 {x: 1}"]
    rows += [f"a{i}: &a{i} {{p: *a{i - 1}, q: *a{i - 1}}}" for i in range(1, 40)]
    with pytest.raises(rl.ConfigError, match="more than 400000 values"):
        rl.import_design(written(tmp_path / "a.yaml", "\n".join([*rows, "arch: *a39"])))
    with pytest.raises(rl.ConfigError, match=r"merged into itself|nested|not YAML"):
        rl.import_design(written(tmp_path / "b.yaml", "arch: &a\n  <<: *a\n  x: 1"))


SMALL = st.integers(1, 7)


@settings(max_examples=200, deadline=None)
@given(
    st.tuples(SMALL, SMALL, SMALL, SMALL, SMALL, SMALL, SMALL, SMALL), st.integers(1, 3),
    st.integers(1, 3), st.permutations(["N", "G", "K", "C", "P", "Q", "R", "S"]),
)  # fmt: skip
def test_a_convolution_is_read_whatever_the_order_of_its_dimensions(
    sizes: tuple[int, ...], stride: int, dilation: int, order: list[str]
) -> None:
    n, g, k, c, p, q, r, s = sizes
    stated = dict(zip("NGKCPQRS", sizes, strict=True))
    source = DesignDocument(Document("test", {}, {}), {})
    window = ((("P", stride), ("R", dilation)), (("Q", stride), ("S", dilation)))
    layer = layer_of(Einsum(
        "x", {dim: stated[dim] for dim in order},
        (
            Access("W", tuple(((dim, 1),) for dim in "GKCRS")),
            Access("I", ((("N", 1),), (("G", 1),), (("C", 1),), *window)),
            Access("O", tuple(((dim, 1),) for dim in "NGKPQ"), output=True),
        ),
        source, (),
    ))  # fmt: skip
    assert isinstance(layer.loops, Conv)
    assert layer.loops.macs == n * g * k * c * p * q * r * s
    assert (layer.loops.h_out, layer.loops.w_out) == (p, q)
    assert (layer.loops.h_in, layer.loops.w_in) == (
        (p - 1) * stride + (r - 1) * dilation + 1, (q - 1) * stride + (s - 1) * dilation + 1,
    )  # fmt: skip
    assert {dim: letter.upper() for dim, letter in layer.letters.items()} == {d: d for d in order}
    assert layer.operands == {"I": "a", "W": "b", "O": "c"}


def test_products_of_many_dimensions_and_what_is_no_product() -> None:
    source = DesignDocument(Document("test", {}, {}), {})

    def layer(*accesses: Access, **sizes: int) -> Gemm | Conv:
        return layer_of(Einsum("x", sizes, accesses, source, ())).loops

    def access(name: str, dims: str, *, output: bool = False) -> Access:
        return Access(name, tuple(((dim, 1),) for dim in dims), output)

    scores = layer(
        access("Q", "bhme"), access("K", "bhpe"), access("QK", "bhmp", output=True),
        b=2, h=4, m=8, p=16, e=32,
    )  # fmt: skip
    assert scores == Gemm(8, 16, 32, 8)
    with pytest.raises(NotALayerError, match="in A alone"):
        layer(access("A", "mkz"), access("B", "kn"), access("C", "mn", output=True),
              m=2, k=2, n=2, z=2)  # fmt: skip
    with pytest.raises(NotALayerError, match="steps of 0"):
        parse_index("0*ox + fx")
    with pytest.raises(NotALayerError, match="1 inputs"):
        layer(access("A", "m"), access("C", "m", output=True), m=2)


WORDS = (
    "0", "-1", "1e400", "nan", "inf", "''", "null", "[]", "{}", "!x y", "true", "*a", "&a [1]",
    "99999999999999999999", "'K=0'", "[[]]", "1/0", "2**9999", "a*b", "x[1..0]", "D1", "I1", "O",
    "{a: {<<: {b: 1}}}", "'é'", "1.5", "[1,2]", "Weights", "!Component", "{name: 3}", "- 1", "{{",
)  # fmt: skip


def mutated(choose: random.Random, text: str) -> str:
    """Return a text with one to four of its lines spoiled."""
    lines = text.split("\n")
    for _ in range(choose.choice((1, 1, 1, 2, 4))):
        i, j = choose.randrange(len(lines)), choose.randrange(len(lines))
        head, colon, _ = lines[i].partition(": ")
        numbers = list(re.finditer(r"\d+", lines[i]))
        match choose.randrange(7):
            case 0:
                del lines[i]
            case 1:
                lines.insert(i, lines[j])
            case 2 if colon:
                lines[i] = head + colon + choose.choice(WORDS)
            case 3 if numbers:
                found = choose.choice(numbers)
                word = choose.choice(("0", "-3", "1e30", "7", "1000000007", "4096", "0.5"))
                lines[i] = lines[i][: found.start()] + word + lines[i][found.end() :]
            case 4:
                lines[i], lines[j] = lines[j], lines[i]
            case 5:
                lines[i] = lines[i][: choose.randrange(len(lines[i]) + 1)]
            case _:
                lines[i] = " " * choose.randrange(6) + lines[i].lstrip()
        lines = lines or [""]
    return "\n".join(lines)


def test_spoiled_files_are_errors_of_one_line_or_designs(tmp_path: Path) -> None:
    kpath = written(tmp_path / "kp.yaml", SPATIAL)
    sets = ([TIMELOOP], [TREE], [ACCELFORGE], ZIGZAG, [kpath])
    read = 0
    for seed in range(500):
        choose = random.Random(seed)
        files = choose.choice(sets)
        spoiled = choose.randrange(len(files))
        paths = []
        for i, file in enumerate(files):
            text = file.read_text("utf-8")
            text = mutated(choose, text) if i == spoiled else text
            paths.append(written(tmp_path / f"spoiled-{i}.yaml", text))
        try:
            design = rl.import_design(paths)
        except rl.RidgelineError as error:
            assert "\n" not in str(error), seed  # noqa: PT017 - a design is as good
        else:
            read += 1
            assert json.dumps(design.to_dict())
    assert 50 < read < 450  # files of both kinds
