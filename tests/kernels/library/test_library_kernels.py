"""Kernels of libraries: tiles against a count pair by pair, better devices, tables, lines."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ridgeline.hardware.load import load_device
from ridgeline.kernels.library.attention import (
    DECODE,
    PREFILL,
    SYSTOLIC,
    attention_work,
)
from ridgeline.kernels.library.convolutions import CONVOLUTION, convolution_work
from ridgeline.kernels.library.experts import EXPERTS, experts_work
from ridgeline.kernels.library.kernel_model import (
    FOLDER,
    NOTES,
    START,
    KernelKey,
    KernelModel,
    LibraryCall,
    as_arrays,
    generation_of,
    line_of,
    lines_of,
    machine_work,
    table,
)
from ridgeline.kernels.library.linear_attention import (
    CAUSAL_CONVOLUTION,
    LINEAR,
    causal_convolution_work,
    chunk_work,
)
from ridgeline.kernels.library.streams import STREAM, stream_work
from ridgeline.workload.graph import Conv
from ridgeline.workload.ops.linear_attention import DeltaHeads
from thoroughly import sample_of

MODELS = {
    "attention-prefill": PREFILL,
    "attention-encoder": PREFILL,
    "attention-decode": DECODE,
    "attention-systolic": SYSTOLIC,
    "cast": STREAM,
    "causal-convolution": CAUSAL_CONVOLUTION,
    "convolution": CONVOLUTION,
    "experts": EXPERTS,
    "linear-chunks": LINEAR,
    "linear-step": LINEAR,
    "norm": STREAM,
    "softmax": STREAM,
}
SIZES = st.integers(1, 300)


def attention(queries: int, keys: int, *, causal: bool = True, window: int = 0) -> dict[str, float]:
    shape = {"batch": 2, "heads": 8, "kv_heads": 2, "head_dim": 128, "seq_q": queries,
             "seq_kv": keys, "window": window}  # fmt: skip
    return attention_work(shape, causal=causal, cached=causal, q_bytes=2, kv_bytes=2)


HEADS = DeltaHeads(16, 128, 32, 128)
WORK: dict[str, dict[str, float]] = {
    "attention-prefill": attention(700, 700),
    "attention-encoder": attention(700, 700, causal=False),
    "attention-decode": attention(1, 5000),
    "attention-systolic": attention(60, 500),
    "cast": stream_work(500, 4096, read_bytes=2, written_bytes=1, warm=True),
    "causal-convolution": causal_convolution_work(4, 500, 8192, 2048, 2),
    "convolution": convolution_work(Conv(8, 64, 28, 28, 128, 3, 3, padding=(1, 1))),
    "experts": experts_work(
        (100, 7, 1), tokens=60, top_k=2, own=8, hidden=4096, inter=1024, gated=True,
        input_bytes=2, weight_bytes=2, quantises=False,
    ),
    "linear-chunks": chunk_work(4, 500, HEADS, step=False),
    "linear-step": chunk_work(64, 1, HEADS, step=True),
    "norm": stream_work(5000, 4096, read_bytes=4, written_bytes=4, warm=False),
    "softmax": stream_work(5000, 4096, read_bytes=4, written_bytes=4, warm=False),
}  # fmt: skip


@sample_of(10, 40,
    st.sampled_from([16, 64, 128]), st.sampled_from([32, 64]), SIZES, st.integers(0, 200),
    st.integers(0, 150), st.booleans(), st.booleans(),
)  # fmt: skip
def test_tiles_are_those_with_a_pair_that_meets(
    rows: int, keys: int, queries: int, before: int, window: int, causal: bool, packs: bool
) -> None:
    kv = queries + before
    work = as_arrays([attention(queries, kv, causal=causal, window=window)])
    choices = {"tile_rows": rows, "tile_keys": keys, "packs": float(packs), "skips": 1.0}
    counted = PREFILL.counted(work, choices)
    group = 4 if packs else 1
    met = set()
    for row in range(queries * group):
        position = before + row // group
        begin = max(0, position - window + 1) if window else 0
        # a bidirectional row with a window meets all that is behind its begin
        end = position + 1 if causal else kv
        met |= {(row // rows, key // keys) for key in range(begin, end, 1)}
    assert counted["tiles"][0] * group == len(met)
    assert counted["blocks"][0] * group == -(-queries * group // rows)
    each = np.bincount([block for block, _ in met])
    assert counted["longest"][0] == each.max()


@pytest.mark.parametrize("name", MODELS)
@sample_of(4, 15, st.data())
def test_a_better_device_is_never_slower(name: str, data: st.DataObject) -> None:
    lines = list(table(name).values())
    line = data.draw(st.sampled_from(lines))
    device = "tpu-v6e" if name == "attention-systolic" else data.draw(
        st.sampled_from(["a100-sxm4-80gb", "l40s", "h200-sxm", "b200"])
    )  # fmt: skip
    machine = machine_work(load_device(device), "bf16")
    model = MODELS[name]
    base = model.predict(as_arrays([{**machine, **WORK[name]}]), line)[0]
    what = data.draw(
        st.sampled_from(["clock", "flop_s", "vector_flop_s", "far_bps", "near_bps", "near_bytes"])
    )
    better = {**machine, what: machine[what] * data.draw(st.floats(1.0, 4.0))}
    assert model.predict(as_arrays([{**better, **WORK[name]}]), line)[0] <= base * (1 + 1e-12)
    assert base > 0


@pytest.mark.parametrize("name", MODELS)
def test_every_constant_of_a_table_is_in_its_range(name: str) -> None:
    model = MODELS[name]
    lines = table(name)
    assert lines
    for key, line in lines.items():
        assert list(line) == model.names, key
        for one in (*START, *model.constants):
            assert one.low <= line[one.name] <= one.high, (key, one.name)
        for choice in model.choices:
            assert line[choice.name] in choice.values, (key, choice.name)
    assert {path.stem for path in FOLDER.glob("*.csv")} == set(MODELS)
    assert NOTES[0] not in next(iter(lines.values()))


def test_the_narrowest_line_counts() -> None:
    wanted = KernelKey("vllm", "0.24.0", "fa3", "bf16", "wgmma")
    every = lines_of(wanted)
    assert every[0] == wanted
    assert every[-1] == KernelKey("", "", "", "bf16", "")
    lines = {key: {"at": float(at)} for at, key in enumerate(every)}
    for at, key in enumerate(every):
        found = line_of(lines, wanted)
        assert found is not None
        assert found["at"] == at
        del lines[key]
    assert line_of(lines, wanted) is None


@pytest.mark.parametrize(
    ("device", "generation"),
    [("a100-sxm4-80gb", "mma"), ("l40s", "mma"), ("h100-sxm5-80gb", "wgmma"),
     ("rtx-pro-6000-se", "mma"), ("b300", "tcgen05"), ("tpu-v6e", "systolic"),
     ("mi300x", None), ("p100-pcie", None)],
)  # fmt: skip
def test_generations_follow_from_data_sheets(device: str, generation: str | None) -> None:
    assert generation_of(load_device(device)) == generation


def test_a_device_without_such_kernels_has_no_time() -> None:
    of = ("vllm", "0.24.0", "fa3", "bf16/kv-bf16")
    call = LibraryCall(PREFILL, "attention-prefill", of, WORK["attention-prefill"], "bf16")
    assert call.time_s(load_device("mi300x")) is None
    found = call.time_s(load_device("h100-sxm5-80gb"))
    assert found is not None
    assert 5e-6 < found < 1e-3
    strange = call._replace(wanted=("vllm", "", "fa3", "fp2"))
    assert strange.time_s(load_device("h100-sxm5-80gb")) is None


@settings(max_examples=30, deadline=None)
@given(st.lists(st.integers(1, 400), min_size=1, max_size=9), st.sampled_from([16, 64, 128]))
def test_experts_fill_up_their_own_tiles(counts: list[int], height: int) -> None:
    work = experts_work(
        counts, tokens=sum(counts), top_k=1, own=16, hidden=512, inter=256, gated=False,
        input_bytes=1, weight_bytes=1, quantises=True,
    )  # fmt: skip
    assert work[f"tiles_{height}"] == sum(-(-count // height) for count in counts)
    choices: Mapping[str, float] = {
        "width": 128, "least_height": height, "most_height": height, "height_for": 1,
        "fused_activation": 0, "whole_tokens": 0,
    }  # fmt: skip
    counted = EXPERTS.counted(as_arrays([work]), choices)
    assert counted["tiles"][0] == work[f"tiles_{height}"]
    assert work["other"] == 0


def test_rows_that_no_longer_fit_the_cache_are_read_again_from_memory() -> None:
    line = {one.name: one.start for one in (*START, *STREAM.constants)}
    line |= {"resident": 8, "held_columns": 1024, "again": 1.0, "row_cycles": 0, "chain_cycles": 0,
             "element_cycles": 0, "start_us": 0.2, "start_cycles": 0}  # fmt: skip
    machine = machine_work(load_device("v100-pcie-32gb"), "")

    def passes(columns: int) -> float:
        rows = 2**27 // columns
        work = stream_work(rows, columns, read_bytes=4, written_bytes=4, warm=False)
        taken = STREAM.predict(as_arrays([{**machine, **work}]), line)[0]
        return float(taken * machine["far_bps"] * line["far_share"] / (2**27 * 4))

    assert passes(512) == pytest.approx(2, rel=0.01)
    assert passes(32768) == pytest.approx(3, rel=0.01)


def model_names() -> list[KernelModel]:
    return list({id(model): model for model in MODELS.values()}.values())


def test_constants_have_names_of_their_own() -> None:
    for model in model_names():
        assert len(set(model.names)) == len(model.names)
        assert not set(model.names) & set(KernelKey._fields)
        assert all(one.low <= one.start <= one.high for one in (*START, *model.constants))
