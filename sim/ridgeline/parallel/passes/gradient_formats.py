"""Gradients of weights in the format in which a program keeps, adds up and sends them."""

from __future__ import annotations

from ridgeline.parallel.emit import grad_accumulation
from ridgeline.parallel.pass_manager import graph_pass
from ridgeline.workload.graph import Graph


@graph_pass("gradient-formats", 40, lambda to: (to.stack.gradients.main_grads,))
def with_gradient_formats(graph: Graph, main_grads: str) -> Graph:
    """Return the graph whose gradients have a program's format (`GradientSettings.main_grads`)."""
    return grad_accumulation.with_gradients(graph, main_grads)


@graph_pass(
    "gradient-accumulation-fusion",
    45,
    lambda to: () if to.stack.gradients.accumulation_fusion else None,
)
def with_accumulation_fusion(graph: Graph) -> Graph:
    """Return the graph whose products add to gradients of earlier micro-batches themselves."""
    return grad_accumulation.with_summing_products(graph)
