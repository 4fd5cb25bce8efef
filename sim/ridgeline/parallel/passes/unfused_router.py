"""Routers of experts and rotations of latent attention as programs run them op by op.

Megatron-Core has one kernel for each, but only where it is asked for: `--moe-router-fusion` is off
by default (`transformer_config.py`), and fused rotations of latent attention are experimental
(`fusions/fused_mla_yarn_rope_apply.py`), so that `--enable-experimental` is needed besides. Without
them both are ops of PyTorch, which stream their tensors one by one or are too small to be more
than a launch. `UNFUSED` counts them; what rotations of other attention, gates and norms do is fused
anyway.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from types import MappingProxyType

from ridgeline.parallel.pass_manager import graph_pass
from ridgeline.workload.graph import Graph, Op, Pass
from ridgeline.workload.numerics import MASTER
from ridgeline.workload.ops.attention import JOIN_HEADS, ROTARY
from ridgeline.workload.ops.routing import TOP_K

Kernels = tuple[tuple[int | Fraction, int | Fraction], ...]
"""What each kernel reads and writes of the op's largest tensor."""


@dataclass(frozen=True, slots=True)
class Unfused:
    """A function as the ops that it consists of.

    Attributes
    ----------
    forward, gradient
        Its kernels.
    wide
        Whether they are in fp32.
    steps
        What the ops are.
    """

    forward: Kernels
    gradient: Kernels
    wide: bool
    steps: str


_SMALL, _FILLED, _READ, _COPY, _SUM = (0, 0), (0, 1), (1, 0), (1, 1), (2, 1)
_HALF = (Fraction(1, 2), Fraction(1, 2))
_ANGLES = (_SMALL,) * 6

UNFUSED: Mapping[str, Unfused] = MappingProxyType(
    {
        ROTARY.name: Unfused(
            forward=(_COPY, *_ANGLES, _COPY, _HALF, _COPY, _COPY, _SUM, _COPY),
            gradient=(
                _COPY, _HALF, _COPY, _COPY, _SUM,
                _FILLED, _HALF, _FILLED, _HALF, _SUM, _FILLED, _SUM,
            ),
            wide=False,
            steps="even features before odd ones; cosines and sines, scaled and cast; times the"
            " cosines; one half with another sign, both in the other order, times the sines; the"
            " sum; beside what is not rotated (nothing). Of each its gradient, of slices a copy in"
            " zeros, and sums of these (models/common/embeddings/rope_utils.py)",
        ),
        TOP_K.name: Unfused(
            forward=(
                _READ, _SMALL,
                _FILLED, _COPY, _SMALL,
                _FILLED, _COPY, _COPY, _SMALL, _READ,
                *(_SMALL,) * 7,
                _SMALL, (0, 2), _SMALL, _SMALL, (2, 2), _SMALL, _COPY, _SMALL,
            ),
            gradient=(_FILLED, *(_SMALL,) * 7, _FILLED, _SMALL),
            wide=True,
            steps="the choice, sorted; weights of the chosen among zeros; a map of them; how many"
            " each expert and rank has; the order of rows: all places of the map sorted, and"
            " weights in this order. Of the weights the gradients (transformer/moe/moe_utils.py,"
            " token_dispatcher.py)",
        ),
    }
)  # fmt: skip


@graph_pass("unfused-router", 70, lambda to: () if to.stack.kernels.fusion == "routed" else None)
def with_routing_apart(graph: Graph) -> Graph:
    """Return the graph whose routers and rotations of latent attention are ops of their own."""
    made = {name: op.layer for op in graph.ops for name in op.outputs}
    joined = {made[n] for op in graph.ops if op.kind == JOIN_HEADS.name for n in op.inputs}
    return replace(
        graph,
        ops=tuple(
            _written_out(op, graph) if op.kind == TOP_K.name or op.layer in joined else op
            for op in graph.ops
        ),
    )


def _written_out(op: Op, graph: Graph) -> Op:
    unfused = UNFUSED.get(op.kind)
    if unfused is None:
        return op
    kernels = unfused.forward if op.priced_as is Pass.FORWARD else unfused.gradient
    first, made = graph.tensors[op.inputs[0]], graph.tensors[op.outputs[0]]
    reads, writes = (Fraction(sum(counts)) for counts in zip(*kernels, strict=True))
    if made.elements != first.elements:  # all of it is of the larger one
        both, none = reads + writes, Fraction(0)
        reads, writes = (none, both) if made.elements > first.elements else (both, none)
    width = Fraction(replace(made, format=MASTER).bytes, made.bytes) if unfused.wide else 1
    return replace(
        op,
        attrs=(*op.attrs, ("kernels", len(kernels))),
        input_passes=(reads * width, *(1 for _ in op.inputs[1:])),
        output_passes=(writes * width, *(1 for _ in op.outputs[1:])),
    )
