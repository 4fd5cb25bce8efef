"""Modules of a layer whose activations wait on the host, as Megatron-Core names them.

``--fine-grained-activation-offloading --offload-modules ...`` sends away what the backward pass of
a module reads of the forward pass (core/pipeline_parallel/fine_grained_activation_offload.py;
which modules: core/transformer/transformer_config.py, offload_modules):

================  ==============================================================
module            forward ops whose saved tensors leave
================  ==============================================================
attn_norm         the norm before attention
qkv_linear        products that form queries, keys and values
core_attn         attention itself: scores, or the fused kernel
attn_proj         the product behind it
mlp_norm          the norm before a feed-forward network or a mixture
expert_fc1        first products of experts
moe_act           activation functions of experts
fused_group_mlp   both products of experts and what is between them
================  ==============================================================

Besides, all modules that can be formed again (`modules.MODULES`): what is saved anywhere in them.
"""

from __future__ import annotations

from ridgeline.errors import nearest
from ridgeline.parallel.checkpointing.blocks import attention_cores, forward_ops
from ridgeline.parallel.checkpointing.modules import (
    JOINED,
    MODULES,
    attention_of,
    module_blocks,
    parts_of,
)
from ridgeline.workload.graph import Graph, Op

_PRODUCTS = ("qkv_linear", "attn_proj")
_NORMS = ("attn_norm", "mlp_norm")
_EXPERTS = ("expert_fc1", "fused_group_mlp")
OFFLOAD_MODULES = (*_PRODUCTS, *_NORMS, *_EXPERTS, *MODULES)
"""Names that `parse_offload_modules` takes."""

_OUTPUTS = frozenset({"output", "o_proj", "out_proj", "linear_proj", "dense", "c_proj"})
_SECOND = frozenset({"down", "down_proj", "linear_fc2", "w2", "wo"})
_FUSED_CORES = frozenset(
    {"flash-attention", "merge-attention", "linear-attention", "delta-rule", "softmax-with-sinks"}
)


def parse_offload_modules(text: str) -> str:
    """Return names of modules joined by ``+`` in their order.

    Raises
    ------
    ValueError
        If a name is unknown, with the nearest.
    """
    names = [part.strip() for part in text.split(JOINED)]
    for name in names:
        if name not in OFFLOAD_MODULES:
            known = ("none", "all", "conv", *OFFLOAD_MODULES)
            raise ValueError(
                f"allowed: none, all, conv, or modules joined by {JOINED}:"
                f" {', '.join(OFFLOAD_MODULES)}; found {name!r}{nearest(name, known)}"
            )
    return JOINED.join(name for name in OFFLOAD_MODULES if name in names)


def read_back(graph: Graph, name: str) -> frozenset[str]:
    """Return what the backward ops of a module read of what its forward ops read or made."""
    ops = [graph.ops[i] for i in _ops_of(graph, name)]
    layers = {op.layer for op in ops}
    own = frozenset(tensor for op in ops for tensor in (*op.inputs, *op.outputs))
    forward = set(forward_ops(graph))
    again = {
        tensor
        for i, op in enumerate(graph.ops)
        if i not in forward and op.layer in layers
        for tensor in op.inputs
    }
    return own & again


def _ops_of(graph: Graph, name: str) -> list[int]:
    """Return the forward ops of all copies of a module."""
    if name in _PRODUCTS:
        return [i for i in forward_ops(graph) if _product_of_attention(graph.ops[i]) == name]
    if name in _EXPERTS:
        return [i for i in _expert_ops(graph) if name != "expert_fc1" or _is_first(graph.ops[i])]
    if name in _NORMS:
        norms = module_blocks(graph, "layernorm")
        attends = [_attends(graph, block) for block in norms]
        wanted = name == "attn_norm"
        return [i for block, of in zip(norms, attends, strict=True) if of is wanted for i in block]
    if name == "core_attn":
        fused = [i for i in forward_ops(graph) if graph.ops[i].kind in _FUSED_CORES]
        return [*fused, *(i for block in attention_cores(graph) for i in block)]
    return [i for block in module_blocks(graph, name) for i in block]


def _product_of_attention(op: Op) -> str:
    """Tell which of the two kinds of products of attention an op is; "": it is none."""
    parts = parts_of(op.layer)
    if op.kind != "gemm" or not attention_of(parts):
        return ""
    return "attn_proj" if parts[-1] in _OUTPUTS else "qkv_linear"


def _expert_ops(graph: Graph) -> list[int]:
    """Return products of experts and what is between them: what computes on dispatched rows."""
    acts = {i for block in module_blocks(graph, "moe_act") for i in block}
    rows: set[str] = set()
    found = []
    for i in forward_ops(graph):
        op = graph.ops[i]
        if op.kind == "dispatch":
            rows.update(op.outputs)
        elif op.kind != "combine" and not rows.isdisjoint(op.inputs):
            rows.update(op.outputs)
            if i in acts or op.kind == "gemm":
                found.append(i)
    return found


def _is_first(op: Op) -> bool:
    return op.kind == "gemm" and parts_of(op.layer)[-1] not in _SECOND


def _attends(graph: Graph, norm: tuple[int, ...]) -> bool:
    """Tell whether what reads a norm first is attention."""
    made = {name for i in norm for name in graph.ops[i].outputs}
    for op in graph.ops[max(norm) + 1 :]:
        if not made.isdisjoint(op.inputs):
            if op.kind in {"cast", "quantise"}:
                made.update(op.outputs)
                continue
            return bool(attention_of(parts_of(op.layer)))
    return False
