"""The ``search`` block of a study file: what is best, and how and how long it is looked for."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from ridgeline.config import Strict

MAX_EVALUATIONS = 1_000_000
MAX_SEEDS = 1000
DEFAULT_EVALUATIONS = 60

MEASURES: Mapping[str, str] = MappingProxyType(
    {
        "area_total_mm2": "area_mm2 * devices",
        "cost_usd": "price_usd * devices",
        "edp_j_s": "energy_j.total * step_time_s",
        "joules_per_sample": "energy_j.total / (samples_per_s * step_time_s)",
        "power_w": "energy_j.total / step_time_s",
        "samples_per_joule": "samples_per_s * step_time_s / energy_j.total",
        "tokens_per_joule": "tokens_per_s * step_time_s / energy_j.total",
    }
)
"""Columns that a search of steps adds where its objectives or conditions name them."""


def _listed(value: Any) -> Any:
    return [value] if isinstance(value, str) else value


class SearchSettings(Strict):
    """Objectives of a search over the varied fields of a study, and its budget."""

    objectives: dict[str, Literal["min", "max"]] = Field(min_length=1, max_length=6)
    """Columns of a row, and whether the smallest or the largest value is best."""
    method: Annotated[
        list[str],
        BeforeValidator(_listed, json_schema_input_type=str | list[str]),
        Field(min_length=1),
    ] = Field(default=["lazy-gp"])
    """How points are chosen: a name or several; random runs beside them."""
    evaluations: int | None = Field(default=None, ge=1, le=MAX_EVALUATIONS)
    """Points of each search; without it, 60, and all points where all are enumerated."""
    seed: int = Field(default=0, ge=0, le=2**31)
    """Of the first search; a search with the same seed chooses the same points."""
    seeds: int = Field(default=1, ge=1, le=MAX_SEEDS)
    """How many searches of each method, with this seed and those after it."""
    parallel: int = Field(default=1, ge=1, le=1000)
    """Points that are suggested at once, before any of them is simulated."""
    reference: dict[str, float] = Field(default_factory=dict)
    """Value of each objective from which hypervolume counts, in the unit of its column."""
