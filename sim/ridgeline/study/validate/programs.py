"""What programs do that tables do not say: of frameworks, and of single runs (``names.yaml``)."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from ridgeline import units
from ridgeline.study.validate.names import section


@dataclass(frozen=True, slots=True)
class Run:
    """What the source of a whole run says of its plan and a table does not.

    Attributes
    ----------
    begins
        Beginnings of the reference that tables give, in lower case.
    overlap, sharding, updates
        As in `Plan`.
    grouped
        Layers that groups of devices hold together (`Plan.layers`), "" for none.
    precision
        What the number formats were, as a table would say it.
    workspace
        As in `Plan`.
    framework
        Whose programs ran, as tables call it (`frameworks`); "": it is not known.
    batch
        Samples of a step over all devices where a table gives none; 0: it is not known.
    all_reduce
        The algorithm that sums gradients (`Fabric.all_reduce`); "": the fastest.
    validates
        Whether its time counts the validation after each epoch.
    """

    begins: tuple[str, ...] = ()
    overlap: bool = True
    sharding: int = 0
    updates: Literal["together", "apart", "graph"] = "together"
    grouped: str = ""
    precision: str = ""
    workspace: str | None = None
    framework: str = ""
    batch: int = 0
    all_reduce: str = ""
    validates: bool = True


@dataclass(frozen=True, slots=True)
class Fed:
    """What a program feeds a network with.

    Attributes
    ----------
    fields
        Sizes of samples, as fields of the network; what is not among them is as it is described.
    filled
        Share of the tokens that is no padding, which throughput counts alone.
    """

    fields: Mapping[str, int] = field(default_factory=dict)
    filled: float = 1.0


def fed(network: str, source: str) -> Fed:
    """Return what the program of a source feeds a network with."""
    rows: list[Mapping[str, Any]] = section("fed")
    for row in rows:
        if network.startswith(tuple(row["networks"])) and row["in_source"] in source:
            return Fed(row["fields"], float(row.get("filled", 1.0)))
    return Fed()


def between_s(network: str, source: str, samples: int, batches: int, devices: int) -> float:
    """Return how long the device waits in a step for what a program computes on the host there.

    Parameters
    ----------
    samples, batches
        Of one device; how many batches these are.
    """
    rows: list[Mapping[str, Any]] = section("between")
    for row in rows:
        if network.startswith(tuple(row["networks"])) and row["in_source"] in source:
            counts = {"batch": batches, "sample": samples, "of_all": samples * devices}
            return sum(
                units.parse(row[name], "s") * count for name, count in counts.items() if name in row
            )
    return 0.0


def run_of(reference: str) -> Run:
    """Return what is known of a whole run beside its row."""
    known = (Run(**{**row, "begins": tuple(row["begins"])}) for row in section("runs"))
    return next((run for run in known if reference.lower().startswith(run.begins)), Run())


def updates_apart(framework: str, network: str, precision: str, *, fine_tuned: bool) -> bool:
    """Tell whether a framework's programs for a network update tensor after tensor, op by op."""
    rows: list[Mapping[str, Any]] = section("updates_apart")
    return any(
        framework.lower().startswith(tuple(row["begins"]))
        and network.startswith(tuple(row.get("networks", [""])))
        and not network.startswith(tuple(row.get("but", [])))
        and precision in row.get("precisions", [precision])
        and fine_tuned >= row.get("fine_tuned", False)
        for row in rows
    )


def scales_by_a_fixed_number(framework: str, network: str, source: str) -> bool:
    """Tell whether a program in half precision scales gradients without checking them."""
    rows: list[Mapping[str, Any]] = section("fixed_scales")
    return any(
        framework.lower().startswith(tuple(row["begins"]))
        and row["in_source"] in source
        and network.startswith(tuple(row["networks"]))
        for row in rows
    )


def workspace_of(framework: str, network: str) -> str | None:
    """Return what programs let a convolution have (`Plan.workspace`); None: no limit is known."""
    rows: list[Mapping[str, Any]] = section("workspaces")
    return next(
        (
            str(row["most"])
            for row in rows
            if framework.lower().startswith(tuple(row["begins"]))
            and network.startswith(tuple(row.get("networks", [""])))
        ),
        None,
    )


def has_primitives(framework: str, network: str, variant: str, xla: str) -> bool:
    """Tell whether a framework runs gelu, dropout and norms op by op in a program for a network.

    `variant` and `xla` are what a table says of the run, perhaps whether XLA compiled it.
    """
    rows: list[Mapping[str, Any]] = section("primitives")
    told = _compiled(variant, xla)
    return any(
        framework.lower().startswith(tuple(row["begins"]))
        and not (network.startswith(tuple(row["compiled"])) if told is None else told)
        for row in rows
    )


def _compiled(variant: str, xla: str) -> bool | None:
    """Return whether a table says that XLA was used; None if it says nothing of it."""
    if found := re.search(r"\b(with|without) ?xla\b", variant.lower()):
        return found[1] == "with"
    return {"on": True, "yes": True, "off": False, "no": False}.get(xla.lower())
