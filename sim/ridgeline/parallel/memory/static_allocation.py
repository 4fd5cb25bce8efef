"""Static allocation: all tensors exist before the step begins, as in frameworks of 2016.

The baseline of vDNN (M. Rhu et al., MICRO 2016, arXiv:1602.08124, sections II-B and V): every
feature map has its own place for the whole step; the gradients of maps share two buffers, those of
an op's input and output, of the largest map; weights and their gradients; and one work space for
all convolutions, as large as that of the one that needs most. Activations that can overwrite their
input do; masks and indices of pooling, which cuDNN did not need, are left out.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass

from ridgeline.parallel.checkpointing.offload import copied_bytes, with_offload
from ridgeline.workload.graph import Graph, Pass, Role
from ridgeline.workload.numerics import find, is_discrete


@dataclass(frozen=True, slots=True)
class StaticMemory:
    """Bytes of everything that a step holds from its beginning to its end.

    Attributes
    ----------
    offloadable
        Of the feature maps, those that can wait in the host's memory for the backward pass.
    """

    feature_maps: int
    gradient_maps: int
    weights: int
    weight_gradients: int
    workspace: int
    offloadable: int

    @property
    def total(self) -> int:
        """All bytes."""
        maps = self.feature_maps + self.gradient_maps
        return maps + self.weights + self.weight_gradients + self.workspace

    @property
    def map_share(self) -> float:
        """Share of all but weights and their gradients: what grows with the batch."""
        return 1 - (self.weights + self.weight_gradients) / self.total

    def to_dict(self) -> dict[str, float]:
        """Return all figures as plain values."""
        return {**asdict(self), "total": self.total, "map_share": self.map_share}


def at_once(graph: Graph, spaces: Mapping[str, int] | None = None) -> StaticMemory:
    """Return what a training graph takes if all of it is allocated at once.

    Parameters
    ----------
    spaces
        Work space of convolutions by op (`kernels.cudnn_fp32_conv.workspace_bytes`).
    """
    numerics = find(graph.precision)
    shared = {op.outputs[0] for op in graph.ops if op.in_place}
    made = {n for op in graph.ops if op.pass_ is Pass.FORWARD for n in (*op.inputs, *op.outputs)}
    tensors = [graph.tensors[n] for n in made - shared]
    sizes = [
        t.bytes
        for t in tensors
        if t.role in {Role.INPUT, Role.ACTIVATION} and not is_discrete(t.format, numerics)
    ]
    weights = sum(t.bytes for t in graph.tensors.values() if t.role is Role.WEIGHT)
    return StaticMemory(
        feature_maps=sum(sizes),
        gradient_maps=2 * max(sizes, default=0),
        weights=weights,
        weight_gradients=weights,
        workspace=max((spaces or {}).values(), default=0),
        offloadable=copied_bytes(with_offload(graph, "all")),
    )
