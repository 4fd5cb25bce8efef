"""Fused attention on one device: prefill, encoders, generation, as serving frameworks call it."""

from collections.abc import Iterable, Iterator

from ridgeline.errors import RidgelineError, nearest
from ridgeline.kernels.library.attention import DECODE, PREFILL, SYSTOLIC, attention_work
from ridgeline.kernels.library.kernel_model import SYSTOLIC_UNIT, LibraryCall, generation_of
from ridgeline.study.validate import measured
from ridgeline.study.validate.measured import MeasuredCall
from ridgeline.study.validate.outcome import Outcome, Skipped
from ridgeline.study.validate.rows import MeasuredRow
from ridgeline.workload.formats import bytes_of, find
from ridgeline.workload.kernel_graphs import attention_graph

SHIPPED = "measured/attention_prefill.csv.gz"
SAMPLES = ("measured/attention_encoder.csv.gz", "measured/attention_decode.csv.gz")
SHAPE = ("batch", "heads", "kv_heads", "head_dim", "seq_q", "seq_kv", "causal", "window")
COLUMNS = (*measured.COLUMNS, *SHAPE)
MEASURED = (*measured.COLUMNS, "op", "m", "seq_kv", "batch")
"""Of tables by layers of Llama-3.1-8B: ops attention_prefill and attention_decode."""
_LLAMA_HEADS, _LLAMA_KV_HEADS, _LLAMA_HEAD_DIM = 32, 8, 128
SCALE = 4.97
_PROJECTED = "bf16"
"""What products leave. Over a cache, calls first put new keys and values there; encoders do not."""
_FORMATS = {"bf16": "bf16", "fp16": "fp16", "fp8": "fp8-e4m3", "fp32": "fp32"}


def predict(rows: Iterable[MeasuredRow]) -> Iterator[Outcome | Skipped]:
    """Predict the time of every call of attention."""
    return measured.predict_calls(rows, call, "attention", SCALE)


def call(row: MeasuredRow) -> MeasuredCall | None:
    """Read a row; its format is "compute/kv-cache", or one for both. None of another layer."""
    if "op" in row.values:
        return _layer(row)
    batch, heads, kv_heads, head_dim, seq_q, seq_kv = measured.sizes(row, *SHAPE[:6])
    causal, window = row.text("causal") == "True", row.whole("window") or 0
    if row.text("causal") not in ("True", "False"):
        raise RidgelineError(f"causal must be True or False, found {row.text('causal')!r}")
    format_, _, cache = row.text("format").partition("/kv-")
    kind = "decode" if seq_q == 1 < seq_kv else "prefill" if causal else "encoder"
    graph = attention_graph(
        batch, heads, kv_heads, head_dim, seq_q, seq_kv, causal=causal, window=window,
        format=_format(format_), kv_format=_format(cache or format_),
        projected=_PROJECTED if cache or seq_q == 1 else None,
    )  # fmt: skip
    words = f"{kind}, {batch} x {heads}/{kv_heads} heads of {head_dim}, {seq_q} of {seq_kv}"
    words += f", window {window}" if window else ""
    start = measured.start_of(row, kind, row.text("format"))
    library = _library(row, _format(format_), _format(cache or format_), causal=causal)
    kind += " window" if window else ""
    return MeasuredCall(graph, kind, row.text("format"), words, start=start, library=library)


def _library(row: MeasuredRow, format_: str, cache: str, *, causal: bool) -> LibraryCall:
    """Return which kernel of a library a row measured."""
    shape = {name: row.whole(name) or 0 for name in (*SHAPE[:6], "window")}
    work = attention_work(
        shape, causal=causal, cached=causal,
        q_bytes=bytes_of(format_), kv_bytes=bytes_of(cache),
    )  # fmt: skip
    framework, version, kernel = (row.text(n) for n in ("framework", "version", "kernel"))
    of = (framework, version, kernel, row.text("format"))
    if shape["seq_q"] == 1 < shape["seq_kv"]:
        return LibraryCall(DECODE, "attention-decode", of, work, find(format_).rate)
    table = "attention-prefill" if causal else "attention-encoder"
    return LibraryCall(PREFILL, table, of, work, find(format_).rate)


def _layer(row: MeasuredRow) -> MeasuredCall | None:
    """Read a row of a table by layers, where m new tokens are the last of seq_kv positions."""
    op, format_ = row.text("op"), _format(row.text("format"))
    if not op.startswith("attention"):
        return None
    batch, seq_kv = measured.sizes(row, "batch", "seq_kv")
    seq_q = 1 if op == "attention_decode" else measured.sizes(row, "m")[0]
    graph = attention_graph(
        batch, _LLAMA_HEADS, _LLAMA_KV_HEADS, _LLAMA_HEAD_DIM, seq_q, seq_kv,
        causal=True, format=format_,
    )  # fmt: skip
    kind = "decode" if seq_q == 1 else "prefill"
    shape = {
        "batch": batch, "heads": _LLAMA_HEADS, "kv_heads": _LLAMA_KV_HEADS,
        "head_dim": _LLAMA_HEAD_DIM, "seq_q": seq_q, "seq_kv": seq_kv, "window": 0,
    }  # fmt: skip
    size = bytes_of(format_)
    work = attention_work(shape, causal=True, cached=False, q_bytes=size, kv_bytes=size)
    library: LibraryCall | None = None
    if generation_of(measured.device_named(row.text("device_key"))) == SYSTOLIC_UNIT:
        of = ("", "", "", row.text("format"))
        library = LibraryCall(SYSTOLIC, "attention-systolic", of, work, find(format_).rate)
    words = f"{kind}, {batch} x {seq_q} of {seq_kv}"
    return MeasuredCall(graph, kind, row.text("format"), words, library=library)


def _format(name: str) -> str:
    if name not in _FORMATS:
        raise RidgelineError(
            f"no attention is known in the format {name!r}{nearest(name, _FORMATS)} (known: "
            f"{', '.join(_FORMATS)})"
        )
    return _FORMATS[name]
