"""Repeats a saved result from its manifest, for what its JSON does not hold: timelines, figures."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ridgeline.errors import ConfigError, RidgelineError
from ridgeline.hardware import load_cluster
from ridgeline.parallel.plans.plan import Plan
from ridgeline.report.result import Result
from ridgeline.simulation import simulate
from ridgeline.workload.model import load_model

_DESCRIBED = ("model", "cluster")


def repeat(
    saved: Mapping[str, Any],
    *,
    model: str | Path | None = None,
    cluster: str | Path | None = None,
    file: str = "",
    fold: bool = True,
) -> Result:
    """Simulate again what a result's manifest names, and check that it is the same.

    Parameters
    ----------
    saved
        A result as `Result.to_dict` gives it, read from JSON.
    model, cluster
        Files of those that are not in the catalogue.
    file
        Name for messages.
    fold
        As of `simulate`.

    Raises
    ------
    ConfigError
        If there is no manifest, or network or machine are no longer what they were.
    """
    manifest = saved.get("manifest")
    if not isinstance(manifest, Mapping) or not {*_DESCRIBED, "plan"} <= manifest.keys():
        raise ConfigError("there is no manifest of a simulated step in it", file=file)
    try:
        named = {key: (manifest[key]["name"], manifest[key]["overrides"]) for key in _DESCRIBED}
        fields = {k: v for k, v in manifest["plan"].items() if k in Plan.model_fields}
        dataset = manifest["input"]["dataset"] if manifest.get("io_modelled") else None
    except (AttributeError, KeyError, TypeError) as error:
        raise ConfigError(f"its manifest is not whole: {error}", file=file) from error
    result = simulate(
        load_model(str(model or named["model"][0]), named["model"][1]),
        load_cluster(str(cluster or named["cluster"][0]), named["cluster"][1]),
        Plan(**fields),
        dataset=dataset,
        fold=fold,
    )
    for key in _DESCRIBED:
        found, expected = result.manifest[key]["fingerprint"], manifest[key].get("fingerprint")
        if found != expected:
            raise RidgelineError(
                f"{file}: the {key} {named[key][0]!r} is not the one of this result (fingerprint "
                f"{found}, was {expected}); simulate anew, or name its file with --{key}"
            )
    return result
