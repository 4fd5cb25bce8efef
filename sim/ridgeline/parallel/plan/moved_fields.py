"""Fields that have left `Plan` for a stack, a machine or a network: still read, with a note.

A plan that names one keeps it as a replacement of the new field (`Plan.moved`), which
`plan.resolved` applies. This reading ends with the next release.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any, NamedTuple

from ridgeline.errors import ConfigError, nearest


class MovedField(NamedTuple):
    """Where an old field is now, and what its words are called there.

    Attributes
    ----------
    path
        ``plan.…``, ``software.…``, ``cluster.…`` or ``model.…``.
    words
        New value by old value; values that are not in it stay as they are.
    """

    path: str
    words: Mapping[Any, Any] = {}


MOVED = {
    "chunks": MovedField("plan.virtual_stages"),
    "cut": MovedField("plan.stage_balance"),
    "context_mode": MovedField("plan.cp_comm_type", {"gather": "all-gather"}),
    "expert_tensor": MovedField("plan.expert_tensor_parallel"),
    "sharding": MovedField("plan.zero_stage"),
    "sharding_ranks": MovedField("plan.hybrid_shard_size"),
    "statistics": MovedField("software.kernels.sync_batch_norm", {"own": False, "shared": True}),
    "layout": MovedField("software.kernels.layout"),
    "workspace": MovedField("software.kernels.conv_workspace"),
    "library": MovedField("software.kernels.conv_library"),
    "norms": MovedField("software.kernels.norm"),
    "heads": MovedField("software.kernels.attention_transpose", {"strided": False, "copied": True}),
    "functions": MovedField("software.kernels.fusion"),
    "data_gradients": MovedField("software.kernels.input_gradients"),
    "issue": MovedField("software.host.launch_time"),
    "issue_ahead": MovedField("software.host.async_launch"),
    "gradients": MovedField("software.gradients.main_grads"),
    "adding": MovedField(
        "software.gradients.accumulation_fusion", {"kernels": False, "products": True}
    ),
    "bucket": MovedField("software.gradients.bucket"),
    "bucket_per_rank": MovedField("software.gradients.bucket_per_rank"),
    "bucket_copies": MovedField("software.gradients.bucket_copies"),
    "reduction": MovedField("software.gradients.reduce_dtype"),
    "gradient_passes": MovedField("software.gradients.sweeps"),
    "cycle": MovedField("software.gradients.fusion_cycle_time"),
    "overlap": MovedField("software.overlap.gradients"),
    "overlap_tensor": MovedField("software.overlap.tensor"),
    "overlap_expert": MovedField("software.overlap.moe_a2a"),
    "contention": MovedField("software.overlap.contention"),
    "updates": MovedField(
        "software.optimizer.impl",
        {"together": "foreach", "chunks": "fused", "apart": "per-tensor"},
    ),
    "update_passes": MovedField("software.optimizer.clip_sweeps"),
    "checks": MovedField("software.optimizer.loss_scale_check"),
    "regather": MovedField("software.zero.reshard_after_forward"),
    "gather_copies": MovedField("software.zero.gather_copies"),
    "pieces": MovedField("software.pipeline.p2p_scatter_gather"),
    "keep_outputs": MovedField("software.pipeline.deallocate_outputs", {False: True, True: False}),
    "buffers": MovedField("software.pipeline.buffers_per_stage"),
    "dispatch": MovedField(
        "software.moe.dispatch", {"choices": "per-expert", "nodes": "node-limited"}
    ),
    "row_sums": MovedField("software.moe.combine"),
    "expert_products": MovedField("software.moe.grouped_gemm", {"together": True, "apart": False}),
    "reserved": MovedField("software.memory.runtime"),
    "allocator": MovedField("software.memory.allocator"),
    "spread": MovedField("cluster.device_speed_std"),
    "unequal": MovedField("model.sequence_length_std"),
    "imbalance": MovedField("model.expert_load_factor"),
}
"""Where each field of `Plan` that is no longer one is now, by its old name."""

_PLAN = "plan."
_OPTIONAL = frozenset({"workspace", "library"})
"""Old fields that may be None, which a text says as none."""


def split_moved(fields: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Part the fields of a plan into its own, renamed ones read, and those that are elsewhere now.

    Returns
    -------
    tuple
        Fields of `Plan`, and values by new path for the others.

    Raises
    ------
    ConfigError
        If a field is given by its old and its new name.
    """
    own, moved = {}, {}
    for name, given in fields.items():
        if name not in MOVED:
            own[name] = given
            continue
        path = MOVED[name].path
        warnings.warn(f"plan.{name} is now {path}", FutureWarning, stacklevel=4)
        value = _worded(name, given)
        if path.startswith(_PLAN):
            if (new := path.removeprefix(_PLAN)) in fields:
                raise ConfigError(
                    f"this field is {new} now, which is given, too", field=f"plan.{name}"
                )
            own[new] = value
        elif name == "buffers":  # which were counted for all stages
            moved[path] = value / fields.get("pipeline", 1)
        else:
            moved[path] = value
    return own, moved


def _worded(name: str, value: Any) -> Any:
    words = MOVED[name].words
    if isinstance(value, str):
        value = None if value.lower() == "none" and name in _OPTIONAL else from_text(value)
    if not words:
        return value
    if value in words:
        return words[value]
    if isinstance(value, str) and isinstance(next(iter(words)), str):
        if value in words.values():
            return value
        if all(isinstance(new, bool) for new in words.values()):
            known = ", ".join(map(str, words))
            near = nearest(value, map(str, words))
            raise ConfigError(f"allowed: {known}; found {value!r}{near}", field=f"plan.{name}")
    return value


def from_text(value: str) -> Any:
    """Read the text of a command line as a setting: true, false, a number, or as it is."""
    plain = {"true": True, "false": False}
    if value.lower() in plain:
        return plain[value.lower()]
    for kind in (int, float):
        try:
            return kind(value)
        except ValueError:
            continue
    return value
