"""The answer of one simulation: numbers, ledger and manifest."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ridgeline import views
from ridgeline.engine.timeline import Timeline
from ridgeline.hardware.cluster import Cluster
from ridgeline.parallel.lower import Lowered
from ridgeline.parallel.plan.resolved import ResolvedPlan
from ridgeline.workload.graph import Graph
from ridgeline.workload.model import Model

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from ridgeline.report.input_pipeline import InputPipeline
    from ridgeline.report.ledger import Ledger

RESULT_SCHEMA = 1
"""Form of the JSON of a result. It grows when a key goes or changes its meaning."""


@dataclass(frozen=True)
class Details:
    """What a result was computed from; figures and exports read it, JSON leaves it out.

    `feed` is how the input is read and prepared, where that is modelled.
    """

    model: Model
    graph: Graph
    cluster: Cluster
    plan: ResolvedPlan
    lowered: Lowered
    timeline: Timeline
    feed: InputPipeline | None = None
    chosen_by: str = "you"
    """Who chose the software stack (`plan.stack_choice`)."""
    most_micro_batches: int | None = None
    """Micro-batches that were played of a step with more; None: all."""
    spelled: Mapping[str, str] = field(default_factory=dict)
    """Names that were given and not those of the catalogue, and which they were taken to mean."""


@dataclass(frozen=True)
class Result:
    """Time, energy and memory of one training step, each broken down, with a manifest.

    ``time_s`` splits the wall clock of the critical rank, ``energy_j`` counts all devices in use
    for one step, ``memory_bytes`` is the fullest rank at its fullest moment. The parts of each sum
    to its ``total``; ``memory_bytes["capacity"]`` stands apart. ``kept_bytes`` are those that
    memory levels kept from op to op, so that no level behind them passed them. `limits_s` splits
    the same time by what limited each op. ``tokens_per_s`` is None for a model without tokens. SI
    units.
    """

    step_time_s: float
    samples_per_s: float
    tokens_per_s: float | None
    flops_per_step: int
    mfu: float
    hfu: float
    time_s: Mapping[str, float]
    energy_j: Mapping[str, float]
    memory_bytes: Mapping[str, int]
    traffic_bytes: Mapping[str, float]
    kept_bytes: Mapping[str, float]
    bound: str
    limits_s: Mapping[str, float]
    fits: bool
    details: Details = field(repr=False, compare=False)

    @cached_property
    def manifest(self) -> Mapping[str, Any]:
        """What the step can be repeated and judged by; see `report.manifest`."""
        return views.view("manifest")(self.details)  # type: ignore[no-any-return]

    @cached_property
    def uncertainty(self) -> Mapping[str, Mapping[str, float]] | None:
        """5 and 95 % of ``step_time_s`` and ``energy_j``, found when first asked for.

        None of a bound, and of steps unlike all that were compared with measurements;
        ``manifest["trust"]["uncertainty"]`` says what the range rests on, or why there is none.
        """
        return views.view("uncertainty")(self)  # type: ignore[no-any-return]

    @cached_property
    def critical_path_s(self) -> Mapping[str, float]:
        """The step time by what its critical path does; found when asked for."""
        return views.view("critical_path_s")(self)  # type: ignore[no-any-return]

    def to_dict(self) -> dict[str, Any]:
        """Return everything but the details as plain values, with the keys of the JSON form."""
        values: dict[str, Any] = {"schema": RESULT_SCHEMA, **self._stated()}
        values["node_power_w"] = views.view("stated_node_power")(self)
        values["critical_path_s"] = self.critical_path_s
        values["uncertainty"] = self.uncertainty
        values["manifest"] = self.manifest
        return json.loads(json.dumps(values))  # type: ignore[no-any-return]

    def _stated(self) -> dict[str, Any]:
        return {f.name: getattr(self, f.name) for f in fields(self) if f.name != "details"}

    def to_json(self, path: str | Path | None = None) -> str:
        """Return the result as JSON text, and write it to `path` if one is given."""
        text = json.dumps(self.to_dict(), indent=2) + "\n"
        if path is not None:
            from ridgeline.report.files import write_text

            write_text(path, text)
        return text

    def to_row(self) -> dict[str, Any]:
        """Return the numbers as one flat row: ``energy_j.dram`` and so on, for tables."""
        row: dict[str, Any] = {}
        for name, value in self._stated().items():
            if name == "limits_s":
                continue
            if isinstance(value, Mapping):
                row |= {f"{name}.{part}": number for part, number in value.items()}
            else:
                row[name] = value
        return {**row, "manifest_hash": self.manifest["hash"]}

    def summary(self, *, verbose: bool = False) -> str:
        """Return the answer as text: 24 lines of 80 columns, or all of it in 100 columns."""
        return views.view("summary_text")(self, verbose=verbose)  # type: ignore[no-any-return]

    def plot(self, kind: str, ax: Axes | None = None, *, theme: str | None = None) -> Axes:
        """Draw a figure of this step.

        Parameters
        ----------
        kind
            "roofline", "timeline", "time", "energy", "memory", "power", "tornado", "utilisation" or
            "topology": the network in use, with what the step puts on its links.
        ax
            Where to; by default into a figure of its own.
        theme
            Of such a figure: "screen", or "print" for a column of a paper; by default that of
            `report.figures.themes.theme`, else "screen".

        Raises
        ------
        RidgelineError
            If there is no such figure.
        """
        return views.view("draw")(kind, self, ax, theme)  # type: ignore[no-any-return]

    def ledger(self) -> Ledger:
        """Return every counted event by op, pass, operand and place, with its energy."""
        return views.view("ledger")(self)  # type: ignore[no-any-return]

    def to_perfetto(self, path: str | Path) -> None:
        """Write the timeline as a Chrome trace (JSON), which Perfetto and chrome://tracing open."""
        views.view("write_trace")(self, path)

    def _repr_html_(self) -> str:
        return views.html("result", self)

    def __repr__(self) -> str:
        model, cluster = self.manifest["model"]["name"], self.manifest["cluster"]["name"]
        return (
            f"<Result {model} on {self.manifest['plan']['devices']} devices of {cluster}: "
            f"{self.step_time_s * 1e3:.4g} ms a step, {self.samples_per_s:.4g} samples/s, "
            f"{self.energy_j['total']:.4g} J a step, bound by {self.bound}>"
        )
