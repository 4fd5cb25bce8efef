"""A Calculon application as a model, an execution as a plan."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ridgeline.study.calculon.schema import (
    CalculonApplication,
    CalculonExecution,
    CalculonSystem,
    DataType,
)

Fields = dict[str, Any]
PRECISIONS: dict[DataType, str] = {
    "float8": "fp8-mixed",
    "float16": "fp16-mixed",
    "bfloat16": "bf16-mixed",
    "float32": "fp32",
}
_RECOMPUTE = {"full": "full", "attn_only": "selective", "none": "none"}
_VOCABULARY = 51200  # what Calculon counts an application's parameters with
_DROPOUT = 0.1  # a block has three dropouts and keeps their masks; the share changes nothing


def model_fields(
    application: CalculonApplication, execution: CalculonExecution, name: str, file: str
) -> Fields:
    """Return the fields of the decoder that the blocks belong to."""
    attention: Fields = {
        "heads": application.attn_heads,
        "head_size": application.attn_size,
        "dropout": _DROPOUT,
    }
    if execution.attention_type == "multiquery":
        attention["kv_heads"] = 1
    return {
        "kind": "model",
        "name": name,
        "family": "decoder",
        "title": name,
        "citation": f"Calculon application file {file}",
        "precision": PRECISIONS[execution.datatype],
        "vocabulary": _VOCABULARY,
        "sequence": application.seq_size,
        "layers": application.num_blocks,
        "hidden": application.hidden,
        "attention": attention,
        "feed_forward": {"width": application.feedforward, "activation": "gelu"},
        "dropout": _DROPOUT,
        "optimizer": "adamw",
    }


def plan_fields(execution: CalculonExecution) -> Fields:
    """Return the fields of the plan."""
    interleaved = execution.pipeline_interleaving > 1
    return {
        "global_batch": execution.batch_size,
        "data": execution.data_par,
        "tensor": execution.tensor_par,
        "pipeline": execution.pipeline_par,
        "micro_batch": execution.microbatch_size,
        "precision": PRECISIONS[execution.datatype],
        "recompute": _RECOMPUTE[execution.activation_recompute],
        "schedule": "interleaved" if interleaved else "1f1b",
        "virtual_stages": execution.pipeline_interleaving,
        "offload": "all" if execution.activations_offload else "none",
        "zero_stage": int(execution.optimizer_sharding),
        "sequence": 0 if execution.tensor_par_comm_type == "rs_ag" else 1,  # 0: as tensor
        "order": _order(execution),
    }


def software_settings(execution: CalculonExecution) -> Fields:
    """Return what an execution says of the software stack, by the path of the setting."""
    return {
        "overlap.gradients": execution.data_par_overlap,
        "overlap.tensor": execution.tensor_par_overlap != "none",
    }


def _order(execution: CalculonExecution) -> str:
    """Say how devices are numbered, so that dimensions of a near network are neighbours.

    Among those of one network it is Calculon's own numbering: tensor, pipeline, data.
    """
    tiers = {
        "tensor": execution.tensor_par_net,
        "context": execution.tensor_par_net,
        "pipeline": execution.pipeline_par_net,
        "data": execution.data_par_net,
    }
    return "-".join(sorted(tiers, key=lambda name: tiers[name]))


def workload_remarks(execution: CalculonExecution, system: CalculonSystem) -> Iterator[str]:
    """Say what of an execution has no counterpart, field by field."""
    yield (
        f"vocabulary: {_VOCABULARY:,}, as in Calculon's count of parameters; its times and memory"
        " have neither embedding nor classifier, here they are part of the step"
    )
    yield from _placement_remarks(execution, system)
    if execution.fused_activation:
        yield "fused_activation: not modelled; the activation function is an op of its own"
    if execution.tensor_par_comm_type == "p2p_rs_ag":
        yield (
            "tensor_par_comm_type: p2p_rs_ag is read as ar; between stages everything is always"
            " sent in parts and gathered"
        )
    if execution.in_network_reduction:
        yield "in_network_reduction: not read; switches that reduce are a property of the fabric"
    if execution.tensor_par_overlap != "none":
        yield (
            f"tensor_par_overlap: {execution.tensor_par_overlap} is read as"
            " software.overlap.tensor: whole ops run beside collectives, not pieces of one op"
        )
    if execution.tensor_par_comm_type == "rs_ag" and execution.activation_recompute != "full":
        yield (
            "seq_par_ag_redo: not read; of what is gathered for an op its part is kept, and"
            " gathered again for the backward pass"
        )


def _placement_remarks(execution: CalculonExecution, system: CalculonSystem) -> Iterator[str]:
    inner = 1
    for name in _order(execution).split("-"):
        degree = getattr(execution, f"{name}_par", 1)
        if degree == 1:
            continue
        tier = getattr(execution, f"{name}_par_net")
        together = max(system.networks[0].size // inner, 1)
        if tier > 0 and together > 1:
            yield (
                f"{name}_par_net: {tier}; here up to {min(together, degree)} neighbours are on one"
                " node and use its links"
            )
        if tier == 0 and inner * degree > system.networks[0].size:
            yield (
                f"{name}_par_net: 0, but the first tier ends at {system.networks[0].size}"
                " processors; here the group reaches over the second"
            )
        inner *= degree
