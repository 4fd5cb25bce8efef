"""Fused expert networks of one rank: rows put in order, two grouped products, sums of tokens."""

from collections.abc import Iterable, Iterator

from ridgeline.errors import RidgelineError
from ridgeline.kernels.library.experts import EXPERTS, experts_work
from ridgeline.kernels.library.kernel_model import LibraryCall
from ridgeline.study.validate import measured
from ridgeline.study.validate.measured import MeasuredCall
from ridgeline.study.validate.outcome import Outcome, Skipped
from ridgeline.study.validate.rows import MeasuredRow
from ridgeline.workload.expert_load import loaded_rank
from ridgeline.workload.formats import find
from ridgeline.workload.kernel_graphs import experts_graph, product_formats

SHIPPED = "measured/moe_fused.csv.gz"
SHAPE = ("tokens", "experts", "topk", "hidden", "inter", "tp", "ep")
COLUMNS = (*measured.COLUMNS, *SHAPE, "distribution", "gated")
SCALE = 1.92


def predict(rows: Iterable[MeasuredRow]) -> Iterator[Outcome | Skipped]:
    """Predict the time of every fused network of experts."""
    return measured.predict_calls(rows, call, "moe", SCALE)


def call(row: MeasuredRow) -> MeasuredCall:
    """Read a row: experts and their width are those of the whole model."""
    tokens, experts, top_k, hidden, inter, tensor, ranks = measured.sizes(row, *SHAPE)
    if inter % tensor:
        raise RidgelineError(f"tp {tensor} does not divide inter {inter}")
    spread = row.text("distribution") or "balanced"
    load = loaded_rank(tokens, experts, top_k, ranks, spread)
    gated, name = row.text("gated") != "0", row.text("format")
    formats = product_formats(name)
    graph = experts_graph(
        load.rows, load.active, tokens, hidden, inter // tensor, formats, gated=gated
    )
    words = f"{tokens} tokens x {top_k} of {experts} experts, {hidden} x {inter}, tp {tensor}"
    words += f", ep {ranks}, {spread}"
    work = experts_work(
        load.counts, tokens=tokens, top_k=top_k, own=experts // ranks, hidden=hidden,
        inter=inter // tensor, gated=gated, input_bytes=_stored_bytes(formats.inputs),
        weight_bytes=_stored_bytes(formats.weights), quantises=formats.quantises,
    )  # fmt: skip
    framework, version, kernel = (row.text(n) for n in ("framework", "version", "kernel"))
    of = (framework, version, kernel, name)
    return MeasuredCall(
        graph,
        "balanced" if spread == "balanced" else "power law",
        name,
        words,
        start=measured.start_of(row, "moe", name),
        library=LibraryCall(EXPERTS, "experts", of, work, find(formats.inputs).rate),
    )


def _stored_bytes(name: str) -> float:
    """Bytes of one number in memory, with its part of the scale of its block."""
    format_ = find(name)
    return (format_.bits + (format_.block_bits / format_.block if format_.block else 0.0)) / 8
