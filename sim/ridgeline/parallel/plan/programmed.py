"""A network as a program writes it: its attention kernel, its loss and its embedding tables.

These are fields of a network's description that a software stack decides, unless the user replaced
them by name.
"""

from __future__ import annotations

from dataclasses import replace

from pydantic import BaseModel

from ridgeline.software.stack import AttentionKernel, KernelSettings
from ridgeline.workload.families.base import Network
from ridgeline.workload.model import Model

_FUSED = frozenset({"flash", "flash-1"})
_KERNELS = frozenset({"attention", "attention.kernel", "latent_attention.kernel", "kernel"})
_LOSS = {"fused": False, "separate": True, "log-softmax": "log-softmax"}


def attention_of(kernels: KernelSettings, year: int | None) -> AttentionKernel | None:
    """Return the kernel of attention of a program on devices of a year."""
    old = kernels.attention_since and year is not None and year < kernels.attention_since
    return kernels.attention_fallback if old else kernels.attention


def programmed(model: Model, kernels: KernelSettings, year: int | None = None) -> Model:
    """Return a network as a program runs it on devices of a year."""
    network, said = model.network, model.overrides
    changes: dict[str, object] = {}
    if network.recorded:
        return model
    kernel = attention_of(kernels, year)
    if kernel is not None and not _KERNELS & said.keys():
        changes |= _attention(network, kernel)
    if kernels.cross_entropy is not None and "separate_loss" not in said:
        changes["separate_loss"] = _LOSS[kernels.cross_entropy]
    tables = kernels.embedding_tables
    if tables is not None and isinstance(getattr(network, "tables", None), str):
        changes |= {} if "tables" in said else {"tables": tables}
    changes = {name: value for name, value in changes.items() if value != getattr(network, name)}
    if not changes:
        return model
    return replace(model, network=network.model_copy(update=changes))


_HOLDERS = ("variants", "towers")
"""Fields with descriptions of layers, each of which may attend."""


def _parts(of: BaseModel, kernel: AttentionKernel) -> dict[str, object]:
    """Return the parts of a description that attend, as a kernel does it."""
    changes: dict[str, object] = {}
    for name in ("attention", "latent_attention", "cross_attention"):
        part = getattr(of, name, None)
        if isinstance(part, BaseModel) and "kernel" in type(part).model_fields:
            latent = name == "latent_attention"
            of_part = ("flash" if kernel in _FUSED else "separate") if latent else kernel
            changes[name] = part.model_copy(update={"kernel": of_part})
    for name in _HOLDERS:
        if held := getattr(of, name, ()):
            changes[name] = tuple(part.model_copy(update=_parts(part, kernel)) for part in held)
    return changes


def _attention(network: Network, kernel: AttentionKernel) -> dict[str, object]:
    """Return the fields of a network that say how attention is computed, as a kernel does it."""
    changes = _parts(network, kernel)
    if isinstance(getattr(network, "attention", None), str):  # of a trace: two kernels are known
        changes["attention"] = "flash" if kernel in _FUSED else "separate"
    if isinstance(getattr(network, "kernel", None), str) and kernel == "eager":
        changes["kernel"] = kernel
    return changes
