"""Parts of linear attention on one device: causal convolutions, chunked rules and scans, updates.

``kernel`` says which part a row is. Gated delta net (gdn) and KDA have heads of keys and values,
Mamba-2 heads with states of groups.
"""

from collections.abc import Iterable, Iterator

from ridgeline.errors import RidgelineError, nearest
from ridgeline.kernels.library.kernel_model import KernelModel, LibraryCall
from ridgeline.kernels.library.linear_attention import (
    CAUSAL_CONVOLUTION,
    LINEAR,
    causal_convolution_work,
    chunk_work,
)
from ridgeline.study.validate import measured
from ridgeline.study.validate.measured import MeasuredCall
from ridgeline.study.validate.outcome import Outcome, Skipped
from ridgeline.study.validate.rows import MeasuredRow
from ridgeline.workload.formats import bytes_of
from ridgeline.workload.graph import Graph
from ridgeline.workload.kernel_graphs import causal_conv_graph, delta_rule_graph, scan_graph
from ridgeline.workload.ops.linear_attention import DeltaHeads
from ridgeline.workload.ops.state_space import StateSpaceSizes

SHIPPED = "measured/linear_attention.csv.gz"
COLUMNS = (*measured.COLUMNS, "op_name", "phase", "batch", "seq", "kernel")
SCALE = 1.0
_OPS = ("gdn", "kda", "mamba2")
_GENERATION = ("generation", "verify")


def predict(rows: Iterable[MeasuredRow]) -> Iterator[Outcome | Skipped]:
    """Predict the time of every part of a layer."""
    return measured.predict_calls(rows, call, "linear-attention", SCALE)


def call(row: MeasuredRow) -> MeasuredCall:
    """Read a row: which part of which layer it is."""
    op, kernel, format_ = row.text("op_name"), row.text("kernel"), row.text("format")
    if op not in _OPS:
        raise RidgelineError(
            f"there is no linear attention {op!r}{nearest(op, _OPS)} (there are: {', '.join(_OPS)})"
        )
    batch, seq = measured.sizes(row, "batch", "seq")
    step = row.text("phase") in _GENERATION
    if "conv1d" in kernel:
        part, graph = "convolution", _convolution(row, op, batch, seq, format_)
        features = _features(row, op)
        keys = features if op == "mamba2" else _heads_of(row, op).keys * _heads_of(row, op).key_size
        work = causal_convolution_work(batch, seq, features, keys, bytes_of(format_))
        library = _library(row, CAUSAL_CONVOLUTION, "causal-convolution", op, work)
    elif op == "mamba2":
        part, graph = _scan(row, batch, seq, format_, step=step)
    else:
        part, graph = _rule(row, op, batch, seq, format_, step=step)
    words = f"{op} {part} ({kernel}), {batch} x {seq}, model of {row.text('d_model')}"
    start = measured.start_of(row, "linear-attention", f"{op} {part}")
    if part != "convolution":
        heads = _state_heads(row) if op == "mamba2" else _heads_of(row, op)
        work = chunk_work(batch, seq, heads, step=step)
        library = _library(row, LINEAR, f"linear-{'step' if step else 'chunks'}", op, work)
    return MeasuredCall(graph, f"{op} {part}", format_, words, start=start, library=library)


def _library(
    row: MeasuredRow, model: KernelModel, table: str, op: str, work: dict[str, float]
) -> LibraryCall:
    """Return which kernel of a library a row measured; lines of a table are by layer."""
    of = (row.text("framework"), row.text("version"), row.text("kernel"), op)
    return LibraryCall(model, table, of, work, row.text("format"))


def _convolution(row: MeasuredRow, op: str, batch: int, seq: int, format_: str) -> Graph:
    (taps,) = measured.sizes(row, "d_conv")
    features = _features(row, op)
    kernels = 3 if row.text("kernel").endswith("qkv3") else 1
    return causal_conv_graph(batch, seq, features, taps, format_, kernels)


def _features(row: MeasuredRow, op: str) -> int:
    """Features that a causal convolution goes over."""
    if op == "mamba2":
        return _sizes_of(row).mixed
    heads = _heads_of(row, op)
    return 2 * heads.keys * heads.key_size + heads.values * heads.value_size


def _rule(
    row: MeasuredRow, op: str, batch: int, seq: int, format_: str, *, step: bool
) -> tuple[str, Graph]:
    heads = _heads_of(row, op)
    return "step" if step else "rule", delta_rule_graph(batch, seq, heads, format_, step=step)


def _scan(row: MeasuredRow, batch: int, seq: int, format_: str, *, step: bool) -> tuple[str, Graph]:
    found = _sizes_of(row)
    if not step:
        return "scan", scan_graph(batch, seq, found, format_)
    return "step", delta_rule_graph(batch, seq, _state_heads(row), format_, step=True)


def _state_heads(row: MeasuredRow) -> DeltaHeads:
    """Return the heads of a Mamba-2 layer as those of a delta rule: states are keys."""
    found = _sizes_of(row)
    return DeltaHeads(found.groups, found.state, found.heads, found.size)


def _heads_of(row: MeasuredRow, op: str) -> DeltaHeads:
    keys, key_size, values, value_size = measured.sizes(row, "k_heads", "k_dim", "v_heads", "v_dim")
    return DeltaHeads(keys, key_size, values, value_size, per_feature=op == "kda")


def _sizes_of(row: MeasuredRow) -> StateSpaceSizes:
    return StateSpaceSizes(
        *measured.sizes(row, "heads", "head_dim", "n_groups", "d_state", "chunk")
    )
