"""Fused expert networks of one rank: rows put in order, two grouped products, sums of tokens."""

from collections.abc import Iterable, Iterator

from ridgeline.errors import RidgelineError
from ridgeline.study.validate import measured
from ridgeline.study.validate.measured import Call
from ridgeline.study.validate.outcome import Outcome, Skipped
from ridgeline.study.validate.rows import Row
from ridgeline.workload.expert_load import loaded_rank
from ridgeline.workload.kernel_graphs import experts_graph, product_formats

SHIPPED = "measured/moe_fused.csv.gz"
SHAPE = ("tokens", "experts", "topk", "hidden", "inter", "tp", "ep")
COLUMNS = (*measured.COLUMNS, *SHAPE, "distribution", "gated")
SCALE = 1.92


def predict(rows: Iterable[Row]) -> Iterator[Outcome | Skipped]:
    """Predict the time of every fused network of experts."""
    return measured.predict_calls(rows, call, "moe", SCALE)


def call(row: Row) -> Call:
    """Read a row: experts and their width are those of the whole model."""
    tokens, experts, top_k, hidden, inter, tensor, ranks = measured.sizes(row, *SHAPE)
    if inter % tensor:
        raise RidgelineError(f"tp {tensor} does not divide inter {inter}")
    spread = row.text("distribution") or "balanced"
    load = loaded_rank(tokens, experts, top_k, ranks, spread)
    gated, name = row.text("gated") != "0", row.text("format")
    graph = experts_graph(
        load.rows, load.active, tokens, hidden, inter // tensor, product_formats(name), gated=gated
    )
    words = f"{tokens} tokens x {top_k} of {experts} experts, {hidden} x {inter}, tp {tensor}"
    words += f", ep {ranks}, {spread}"
    return Call(
        graph,
        "balanced" if spread == "balanced" else "power law",
        name,
        words,
        start=measured.start_of(row, "moe", name),
    )
