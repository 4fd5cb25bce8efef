"""Where in Calculon's files stands what one of ridgeline's fields was made of."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from ridgeline.config import Document
from ridgeline.errors import ConfigError
from ridgeline.yaml_nodes import Location

_OF_APPLICATION: dict[str, Location] = {
    "attention.heads": ("attn_heads",),
    "attention.head_size": ("attn_size",),
    "feed_forward": ("feedforward",),
    "hidden": ("hidden",),
    "layers": ("num_blocks",),
    "sequence": ("seq_size",),
}
_OF_EXECUTION: dict[str, Location] = {
    "data": ("data_par",),
    "global_batch": ("batch_size",),
    "micro_batch": ("microbatch_size",),
    "offload": ("activations_offload",),
    "order": ("tensor_par_net",),
    "pipeline": ("pipeline_par",),
    "precision": ("datatype",),
    "recompute": ("activation_recompute",),
    "schedule": ("pipeline_interleaving",),
    "sequence": ("tensor_par_comm_type",),
    "tensor": ("tensor_par",),
    "virtual_stages": ("pipeline_interleaving",),
    "zero_stage": ("optimizer_sharding",),
}
_OF_SYSTEM: dict[str, Location] = {
    "achievable": ("matrix",),
    "count": ("networks", 0, "size"),
    "engines.matrix": ("matrix",),
    "engines.vector": ("vector",),
    "host.memory": ("mem2", "GiB"),
    "link_types.adapter": ("networks", 1),
    "link_types.mem2": ("mem2",),
    "link_types.tier0": ("networks", 0),
    "link_types.tier1": ("networks", 1),
    "max_nodes": ("networks", 1, "size"),
    "memory.mem1.achievable": ("mem1", "MB_efficiency"),
    "memory.mem1.bandwidth": ("mem1", "GBps"),
    "memory.mem1.capacity": ("mem1", "GiB"),
}
_SYSTEM_FILES = frozenset({"device.yaml", "node.yaml", "cluster.yaml"})


@dataclass(frozen=True, slots=True)
class Origins:
    """The three files as they were read."""

    application: Document
    execution: Document
    system: Document

    def of(self, error: ConfigError, folder: Path) -> ConfigError:
        """Return an error of a file in `folder`, or of the plan, as one of the user's own file.

        Others are returned as they are.
        """
        field = error.field or ""
        of_plan, dot, rest = field.partition(".")
        if of_plan == "plan" and (dot or error.file is None):
            return self._placed(error, self.execution, _OF_EXECUTION, rest)
        if error.file is None or Path(error.file).parent != folder:
            return error
        if Path(error.file).name in _SYSTEM_FILES:
            return self._placed(error, self.system, _OF_SYSTEM, field)
        return self._placed(error, self.application, _OF_APPLICATION, field)

    @staticmethod
    def _placed(
        error: ConfigError, document: Document, places: dict[str, Location], field: str
    ) -> ConfigError:
        fits = [path for path in places if f"{field}.".startswith(f"{path}.")]
        return document.error(error.message, places[max(fits, key=len)] if fits else ())
