"""Options of the verbs that search plans, in one place: what is searched, and how far."""

from __future__ import annotations

from typing import Annotated

from cyclopts import Parameter

from ridgeline.cli.names import completed
from ridgeline.cli.number_options import Count

ModelName = Annotated[
    str,
    Parameter(
        help="A name from `ridgeline list models`, or a file.", completer=completed("models")
    ),
]
ClusterName = Annotated[
    str,
    Parameter(
        help="A cluster, node or device by name, a YAML file, or a network and its device: "
        "'Ring(16, 50 GB/s, 500 ns) @ h100-sxm5-80gb' (docs/fabrics.md).",
        completer=completed("clusters", "nodes", "devices"),
    ),
]
DeviceName = Annotated[
    str | None,
    Parameter(
        help="The device of a network that names none; or a device in place of the cluster's own.",
        completer=completed("devices"),
        show_default=False,
    ),
]
Precision = Annotated[
    str | None,
    Parameter(
        help="fp32, tf32, fp16-mixed, bf16-mixed, fp8-mixed ...; by default the model's.",
        show_default=False,
    ),
]
Limit = Annotated[
    Count,
    Parameter(
        help="Simulate at most this many plans that fit (for each point), and print the gap to the"
        " bound."
    ),
]
Json = Annotated[bool, Parameter(help="Print everything as JSON.", negative="")]


def with_device(cluster: str, device: str | None) -> str:
    """Return a cluster, by name, with other devices."""
    return cluster if device is None else f"{cluster} @ {device}"
