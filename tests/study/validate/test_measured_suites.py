"""Suites of measured kernels: tables as they are, gzipped or not; what is skipped; what ships."""

from __future__ import annotations

import gzip
import importlib.util
import json
import math
import shlex
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ridgeline.cli import execute
from ridgeline.errors import ConfigError, RidgelineError
from ridgeline.study.csv_file import read_csv
from ridgeline.study.validate import (
    call_starts,
    find_suite,
    measured,
    shipped,
    shipped_files,
    validate,
)
from ridgeline.study.validate.device_rows import device_rows, leave_one_out
from ridgeline.study.validate.expert_all_to_all import sent_copies
from ridgeline.study.validate.power_meter import NO_METER, PowerMeter, power_meter
from ridgeline.study.validate.rows import MAX_BYTES, SHIPPED, MeasuredRow, read_rows
from thoroughly import further

KERNELS = (
    "attention", "moe", "elementwise", "norm", "softmax", "linear-attention", "cast",
)  # fmt: skip
NEW = (*KERNELS, "expert-all-to-all", "kernel-power", "model-latency")
HEAD = "id,device_key,framework,version,format,m,n,k,time_us,source\n"
ROWS = (
    "a,h100-sxm5-80gb,vllm,0.24.0,bf16,4096,4096,4096,220,s\n"
    "b,abacus,vllm,0.24.0,bf16,4096,4096,4096,220,s\n"
    "c,h100-sxm5-80gb,vllm,0.24.0,nvfp4,4096,4096,4096,220,s\n"
    "d,h100-sxm5-80gb,vllm,0.24.0,fp9,4096,4096,4096,220,s\n"
    "e,h100-sxm5-80gb,vllm,0.24.0,bf16,4096,,4096,220,s\n"
    "f,h100-sxm5-80gb,vllm,0.24.0,bf16,4096,4096,4096,0,s\n"
)


def table(folder: Path, text: str, name: str = "rows.csv") -> Path:
    path = folder / name
    if name.endswith(".gz"):
        path.write_bytes(gzip.compress(text.encode()))
    else:
        path.write_text(text, encoding="utf-8")
    return path


def benchmark(name: str) -> ModuleType:
    path = Path(__file__).parents[3] / "benchmarks" / f"{name}.py"
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # where dataclasses look their annotations up
    spec.loader.exec_module(module)
    return module


def test_rows_that_cannot_be_priced_are_skipped_each_for_its_reason(tmp_path: Path) -> None:
    made = validate("gemm", table(tmp_path, HEAD + ROWS))
    assert [o.id for o in made.outcomes] == ["a"]
    assert {s.id: s.reason.split("(")[0].strip() for s in made.skipped} == {
        "b": "no device file is called 'abacus'",
        "c": made.skipped[1].reason.split("(")[0].strip(),
        "d": "no product is known in the format 'fp9'; did you mean 'fp8'?",
        "e": "n is not given, or no whole number of at least 1",
        "f": "time_us is not given, or not above 0",
    }
    assert "fp4" in made.skipped[1].reason


def test_a_gzipped_table_is_read_as_the_plain_one(tmp_path: Path) -> None:
    plain = validate("gemm", table(tmp_path, HEAD + ROWS))
    packed = validate("gemm", table(tmp_path, HEAD + ROWS, "rows.csv.gz"))
    assert [o.predicted for o in packed.outcomes] == [o.predicted for o in plain.outcomes]
    assert packed.reasons == plain.reasons


@pytest.mark.parametrize(
    "content", [b"not gzip", gzip.compress(b"a,b\n1,2\n")[:-9], b""], ids=["other", "cut", "empty"]
)
def test_a_damaged_gzip_file_is_one_clear_error(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "rows.csv.gz"
    path.write_bytes(content)
    with pytest.raises(ConfigError, match=r"rows\.csv\.gz"):
        validate("gemm", path)


@pytest.mark.parametrize("suite", NEW)
def test_a_table_without_the_columns_is_an_error(suite: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"rows.csv:1: the column '\w+' is missing"):
        validate(suite, table(tmp_path, "a,b\n1,2\n"))


@pytest.mark.parametrize("suite", NEW)
def test_what_ships_is_predicted_and_beside_it_trivial_predictors(suite: str) -> None:
    made = validate(suite)
    assert made.summary.n > 50
    assert len(made.trivial) >= 2
    assert made.by_device
    assert made.by_format
    for outcome in made.outcomes:
        assert outcome.device
        assert math.isfinite(outcome.error)
        assert outcome.predicted > 0
        assert outcome.p05 is not None
    answer = made.to_dict(rows=True)
    assert sum(one["n"] for one in answer["by_device"].values()) == made.summary.n
    assert len(answer["rows"]) == made.summary.n + made.summary.skipped


def test_the_order_and_the_processes_do_not_change_a_prediction() -> None:
    rows = read_rows(shipped("moe"))[:200]
    module = find_suite("moe")
    together = {o.id: o.predicted for o in module.predict(rows)}
    backwards = {o.id: o.predicted for o in module.predict(rows[::-1])}
    alone = {o.id: o.predicted for row in rows[:5] for o in module.predict([row])}
    assert together == backwards
    assert alone.items() <= together.items()


@pytest.mark.parametrize("suite", [*KERNELS, "expert-all-to-all", "kernel-power"])
def test_the_command_of_a_measured_row_prints_its_prediction(
    suite: str, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [row for row in read_rows(shipped(suite)) if row.text("power_w") or suite in KERNELS]
    rows = rows or read_rows(shipped(suite))
    outcome = next(o for row in rows for o in find_suite(suite).predict([row]))
    program, *words = shlex.split(outcome.command)
    assert program == "ridgeline"
    assert execute(words) == 0
    assert capsys.readouterr().out == f"{outcome.predicted!r}\n"


def test_plain_products_have_commands_of_their_own(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = validate("gemm", table(tmp_path, HEAD + ROWS))
    assert made.outcomes[0].command.startswith("ridgeline gemm 4096 4096 4096 --device h100")
    assert execute(shlex.split(made.outcomes[0].command)[1:]) == 0
    assert capsys.readouterr().out == f"{made.outcomes[0].predicted!r}\n"


def test_events_of_pytorch_hold_the_launch_and_graphs_do_not() -> None:
    values = {"framework": "PyTorch", "version": "2.1.0"}
    eager = measured.host_launch_s(MeasuredRow("f", 1, values))
    assert 10e-6 < eager < 40e-6
    assert (
        measured.host_launch_s(MeasuredRow("f", 1, {"framework": "vllm", "version": "0.24.0"})) == 0
    )


def test_a_pipeline_with_one_micro_batch_takes_as_long_as_one_device() -> None:
    """As four H100s do: 637.5 ms, and one 638.8 ms."""
    rows = [
        row
        for row in read_rows(shipped("model-latency"))
        if (row.text("device_key"), row.text("model"), row.text("mode"), row.text("batch"))
        == ("h100-sxm5-80gb", "gpt2_large", "training", "4")
        and row.text("parallelism") in ("", "none", "single", "pipeline 4")
        and row.text("fused") == "0"
    ]
    found = [outcome.predicted for outcome in find_suite("model-latency").predict(rows)]
    assert len(found) == 2
    assert max(found) < 1.06 * min(found)


def test_what_neusight_states_stands_beside_the_same_rows() -> None:
    stated = validate("softmax").published
    assert stated["NeuSight, Softmax, unseen"]["mean_abs_error"] == pytest.approx(0.138601)
    assert stated["NeuSight, Softmax, in distribution"]["n"] > 10
    row = next(r for r in read_rows(shipped("model-latency")) if r.text("fused") == "0")
    (outcome,) = find_suite("model-latency").predict([row])
    assert set(outcome.published) == {"NeuSight, inference"}


def test_power_beside_the_boards_limit() -> None:
    made = validate("kernel-power")
    assert made.above_limit is not None
    above, rows = made.above_limit
    assert 0 <= above <= rows == made.summary.n
    assert "the reading contradicts the load (power_suspect)" in made.reasons
    for outcome in made.outcomes:
        assert outcome.limit is not None
        assert outcome.predicted >= measured.device_named(outcome.device).idle_power.value


def test_copies_of_a_token_are_expected_values() -> None:
    assert sent_copies(2, 8, 4, once_each=False) == pytest.approx(2 * 3 / 4)
    # of 8 experts on 4 ranks, 28 pairs, 4 of which are on one rank: 7/4 ranks on average, 3/4 away
    assert sent_copies(2, 8, 4, once_each=True) == pytest.approx(3 / 4 * (2 - 4 / 28))
    assert sent_copies(8, 8, 4, once_each=True) == pytest.approx(3)
    with pytest.raises(RidgelineError):
        sent_copies(9, 8, 4, once_each=True)


def test_rows_by_device_are_left_out_one_after_the_other() -> None:
    rows = device_rows("softmax")
    seen = 0
    for device, known, left_out in leave_one_out(rows, lambda row: row.device):
        assert {row.device for row in left_out} == {device}
        assert device not in {row.device for row in known}
        assert len(known) + len(left_out) == len(rows)
        seen += len(left_out)
    assert seen == len(rows)
    assert all(row.roofline > 0 for row in rows)


def test_the_sample_is_small_and_drawn_at_even_distances() -> None:
    names = {path.name for suite in (*NEW, "gemm", "conv") for path in shipped_files(suite)}
    folder = shipped("moe").parent
    files = [path for path in folder.iterdir() if path.suffix in {".gz", ".csv"}]
    assert sum(path.stat().st_size for path in files) <= 1.5e6
    assert names - {"kernels.csv"} <= {path.name for path in files}
    module = benchmark("sample_measured")
    rows = [{"id": f"{i:03}", "m": str(2**i)} for i in range(21)]
    assert module.spread(rows, ("m",), 3) == [0, 10, 20]
    assert module.spread(rows, ("m",), 1) == [10]
    assert module.spread(rows[:2], ("m",), 3) == [0, 1]
    assert module.packed(rows) == module.packed(rows)


def test_tables_by_device_and_format_are_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert execute(["validate", "softmax", "--rows"]) == 0
    printed = capsys.readouterr().out
    assert "device   p4" in printed
    assert "NeuSight, Softmax, unseen: 13.9% stated" in printed
    assert "ridgeline validate softmax --only" in printed
    assert execute(["validate", "kernel-power", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["above_limit"]["rows"] > 0


@pytest.mark.parametrize("suite", ["gemm", "cast", "norm", "softmax", *further("attention", "moe")])
def test_what_a_call_takes_besides_its_kernels_helps_on_devices_left_out(
    suite: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """On the sample that ships, rows of each device with what is fitted to the other devices."""
    bench = benchmark("leave_one_out")
    tables = [path for path in shipped_files(suite) if path.parent.name == "measured"]
    found = list(bench.lines(suite, tables))
    assert found
    told = capsys.readouterr().out.splitlines()
    mean = {
        words: float(line.split()[-2])
        for line in told
        for words in ("nothing", "devices left out", "as shipped")
        if line.startswith(f"{suite} all") and words in line
    }
    assert mean["devices left out"] < 0.95 * mean["nothing"]
    assert mean["as shipped"] < 0.95 * mean["nothing"]


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_devices_left_out_are_predicted_without_themselves(data: st.DataObject) -> None:
    """Against fits that are written out, on random rows: no row sees a row of its device."""
    bench = benchmark("leave_one_out")
    size = data.draw(st.integers(4, 12))
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32 - 1)))
    rows = bench.Rows(
        np.sort(rng.choice(["a", "b", "c"], size)),
        rng.uniform(1e-6, 1e-4, size),
        rng.uniform(1e-6, 1e-4, size),
        np.zeros(size),
        np.ones(size),
    )
    tried = bench.candidates("gemm", rows)["start"]
    found = bench.left_out(rows, tried, "ratio")
    names = sorted(set(rows.devices.tolist()))
    if len(names) < 2:
        assert found is None
        return
    at = 0
    for name in names:
        others = [i for i in range(size) if rows.devices[i] != name]
        count = {n: sum(rows.devices[i] == n for i in others) for n in names}

        def loss(
            start_s: float, others: list[int] = others, count: dict[str, int] = count
        ) -> float:
            return sum(
                abs((rows.kernels_s[i] + start_s) / rows.measured_s[i] - 1)
                / count[str(rows.devices[i])]
                for i in others
            )

        least = min(loss(start.device_s) for start in tried)
        for i in range(size):
            if rows.devices[i] == name:
                start_s = (found[at] + 1) * rows.measured_s[i] - rows.kernels_s[i]
                assert loss(start_s) <= least * (1 + 1e-9) + 1e-12
                at += 1


def test_a_line_of_a_kernel_comes_before_that_of_its_framework() -> None:
    table = call_starts._table()
    for suite, variant, framework, kernel in table:
        start = table[suite, variant, framework, kernel]
        assert call_starts.call_start(suite, variant, framework, kernel) == start
        if kernel:
            wider = call_starts.call_start(suite, variant, framework, "no such kernel")
            assert wider == call_starts.call_start(suite, variant, framework)
        elif framework:
            other = call_starts.call_start(suite, variant, "no such framework", "x")
            assert other == call_starts.call_start(suite, variant)


def test_a_call_waits_for_the_slower_of_host_and_device() -> None:
    start = call_starts.CallStart(device_s=5e-6, slowdown=2.0, host_s=50e-6)
    assert start.call_s(10e-6) == pytest.approx(50e-6)
    assert start.call_s(40e-6) == pytest.approx(85e-6)


def test_a_call_of_another_format_takes_nothing_besides() -> None:
    assert call_starts.call_start("gemm", "bf16") == call_starts.NO_START
    assert call_starts.call_start("elementwise", "fp32") == call_starts.NO_START


def test_a_power_meter_settles_and_weighs_the_toggling_of_data() -> None:
    assert NO_METER.read_w(2.0, 1e-3, 100.0) == 2100.0
    assert NO_METER.read_w(2.0, 1e-3, 100.0, limit_w=700.0) == 700.0
    assert PowerMeter(0.25, 0.0).read_w(2.0, 1e-3, 100.0, 700.0) == 600.0
    assert PowerMeter(0.25, 1e-3).read_w(2.0, 1e-3, 100.0, 700.0) == 350.0


@given(
    st.floats(0.1, 1.0), st.floats(0.0, 1e-3), st.floats(0.0, 0.5), st.floats(0.0, 10.0),
    st.floats(1e-6, 1.0),
)  # fmt: skip
def test_busy_processors_draw_besides_events_up_to_the_limit(
    activity: float, settle_s: float, busy: float, events_j: float, time_s: float
) -> None:
    idle_w, limit_w = 100.0, 700.0
    without, with_busy = (
        PowerMeter(activity, settle_s, share).read_w(events_j, time_s, idle_w, limit_w)
        for share in (0.0, busy)
    )
    settled = time_s / (time_s + settle_s)
    assert idle_w <= without <= with_busy <= limit_w
    assert with_busy - without <= busy * (limit_w - idle_w) * settled * (1 + 1e-9) + 1e-9
    assert PowerMeter(1.0, 0.0, busy).read_w(events_j, time_s, idle_w) == pytest.approx(
        idle_w + events_j / time_s
    )  # no limit, no share of it


def test_the_line_for_the_most_rows_that_a_product_has_counts() -> None:
    lines = [row for _, row in read_csv(SHIPPED / "power_meters.csv", MAX_BYTES)]
    apart = [row for row in lines if int(row["rows"])]
    assert apart
    for row in apart:
        least = int(row["rows"])
        first, rest = (
            power_meter(row["kind"], row["variant"], row["framework"], rows)
            for rows in (least, least - 1)
        )
        assert first.activity == float(row["activity"])
        assert rest != first
        assert rest == power_meter(row["kind"], row["variant"], row["framework"])


def test_power_meters_are_better_on_devices_left_out() -> None:
    lines = [row for _, row in read_csv(SHIPPED / "power_meters.csv", MAX_BYTES)]
    assert lines
    for row in lines:
        if row["error_left_out"]:
            assert float(row["error_left_out"]) < float(row["error_before"])
        else:  # one device alone: it halves the error
            assert float(row["error_fitted"]) < 0.5 * float(row["error_before"])
        assert 0 < float(row["activity"]) <= 1
    assert power_meter("gemm", "bf16", "trtllm") != power_meter("gemm", "bf16", "another")
    assert power_meter("gemm", "bf16", "another").settle_s > 0
    assert power_meter("rnn", "", "") is NO_METER
