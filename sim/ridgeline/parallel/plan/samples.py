"""Samples of a mixture of experts as labels, for layers that divide samples (`layers`).

The sharding rules of ops divide the tokens of a mixture by positions. Rows of experts are of
samples as well: where loads are even, each sample has its share of the rows of every expert.
"""

from __future__ import annotations

from dataclasses import replace

from ridgeline.workload.graph import Op
from ridgeline.workload.ops.routing import COMBINE, DISPATCH
from ridgeline.workload.sharding_axes import EXPERT_ROWS, EXPERTS, Labels, OpAxes, Tensors

ROUTED = frozenset({DISPATCH.name, COMBINE.name})
"""Kinds of the ops that copy tokens to rows of experts, and back."""
_TOKENS = "p"  # of a dispatch and a combine


def with_samples(
    op: Op, forward: Op, sig: OpAxes, tensors: Tensors, positions: bool = False
) -> OpAxes:
    """Return the labels of an op in which rows of experts are divided by samples.

    Parameters
    ----------
    forward
        The forward op of a gradient op; else the op itself.
    positions
        Tokens are divided by positions, as their rules say.
    """
    if EXPERTS in sig.labels and forward.kind in ROUTED:
        if positions:
            return sig
        named = zip((*op.inputs, *op.outputs), (*sig.inputs, *sig.outputs), strict=True)
        samples = min(tensors[name].shape[0] for name, labels in named if _is_of_tokens(labels))
        return replace(
            sig,
            inputs=tuple(map(_by_samples, sig.inputs)),
            outputs=tuple(map(_by_samples, sig.outputs)),
            units={_TOKENS: samples},
        )
    if forward.kind == "gemm" and EXPERTS in sig.labels:
        return replace(sig, padded=sig.padded | {EXPERT_ROWS})
    return sig


def _is_of_tokens(labels: Labels) -> bool:
    """Whether a tensor is of tokens by sample, not of rows of experts or of places in them."""
    return labels[0] == "" and (len(labels) < 3 or labels[1] == _TOKENS)


def _by_samples(labels: Labels) -> Labels:
    rest = tuple("" if label == _TOKENS else label for label in labels[1:])
    return (_TOKENS, *rest) if _is_of_tokens(labels) else labels


def samples_label(labels: Labels) -> str:
    """Return the label of samples in what an op reads: the first dimension, or the rows."""
    return labels[1] if labels[0] == EXPERTS else labels[0]
