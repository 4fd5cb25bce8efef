"""Reads SCALE-Sim's topologies (CSV), versions 1 to 3; configurations are `hardware.scalesim`'s.

More is accepted than SCALE-Sim 3.0.0 itself can read of the files that it ships: no comma at the
end of a line, tabs instead of commas, comments, headings between layers, a batch size. What cannot
be understood is an error with file, line and reason.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from ridgeline.errors import ConfigError
from ridgeline.hardware.scalesim import ScaleSimConfig, read_config
from ridgeline.kernels.systolic.sparsity import StructuredSparsity, parse_sparsity
from ridgeline.workload.graph import Conv, Gemm
from ridgeline.workload.trace.layers import read_layers

__all__ = ["ScaleSimConfig", "TopologyLayer", "read_config", "read_topology"]


@dataclass(frozen=True, slots=True)
class TopologyLayer:
    """A layer of a topology.

    Attributes
    ----------
    loops
        A convolution without padding, or a matrix product. A depthwise layer is a convolution in as
        many groups as it has channels.
    sparsity
        N:M of its weights; None if the file does not say.
    line
        In the file.
    """

    name: str
    loops: Conv | Gemm
    sparsity: StructuredSparsity | None
    line: int


def read_topology(path: str | Path) -> tuple[TopologyLayer, ...]:
    """Read the layers of a topology CSV; its header says if they are convolutions or products.

    Raises
    ------
    ConfigError
        With file, line, column and reason.
    """
    layers = []
    for row in read_layers(path):
        try:
            sparsity = parse_sparsity(row.sparsity or None)
        except ConfigError as error:
            raise ConfigError(
                error.message, file=str(path), line=row.line, field=row.name
            ) from error
        layers.append(TopologyLayer(row.name, row.loops, sparsity, row.line))
    return tuple(layers)
