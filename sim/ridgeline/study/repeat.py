"""Repeats a saved result from its manifest, for what its JSON does not hold: timelines, figures."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from ridgeline.errors import ConfigError, RidgelineError
from ridgeline.network.resolve import load_cluster
from ridgeline.parallel.plan.plan import Plan
from ridgeline.parallel.plan.resolved import NOISE, ResolvedPlan
from ridgeline.report.result import RESULT_SCHEMA, Result
from ridgeline.simulation import simulate
from ridgeline.software.load import load_software
from ridgeline.software.stack import GROUPS, Stack
from ridgeline.workload.files import load_network

_DESCRIBED = ("model", "cluster")


def repeat(
    saved: Mapping[str, Any],
    *,
    model: str | Path | None = None,
    cluster: str | Path | None = None,
    software: str | Path | None = None,
    file: str = "",
    fold: bool = True,
) -> Result:
    """Simulate again what a result's manifest names, and check that it is the same.

    Parameters
    ----------
    saved
        A result as `Result.to_dict` gives it, read from JSON.
    model, cluster, software
        Files of those that are not in the catalogue.
    file
        Name for messages.
    fold
        As of `simulate`.

    Raises
    ------
    ConfigError
        If there is no manifest, or network, machine or software are no longer what they were; or
        if a later ridgeline wrote it in a form that is not known here.
    """
    schema = saved.get("schema", 1)  # of files that say none
    if not isinstance(schema, int) or isinstance(schema, bool) or not 1 <= schema <= RESULT_SCHEMA:
        raise ConfigError(
            f"schema {schema!r:.40} is not known (known: 1 to {RESULT_SCHEMA}): a later ridgeline"
            " wrote it, which can read it",
            file=file,
            field="schema",
        )
    manifest = saved.get("manifest")
    if (
        not isinstance(manifest, Mapping)
        or not {*_DESCRIBED, "plan", "software"} <= manifest.keys()
    ):
        raise ConfigError(
            "there is no manifest of a simulated step in it, or one of an earlier ridgeline, which"
            " names no software stack",
            file=file,
        )
    try:
        named = {key: (manifest[key]["name"], manifest[key]["overrides"]) for key in _DESCRIBED}
        fields = {k: v for k, v in manifest["plan"].items() if k in Plan.model_fields}
        run = manifest["software"]
        noise = {name: run[name] for name in NOISE}
        decided, notes = tuple(run["decided"].items()), tuple(run["notes"])
        chosen_by = run["chosen_by"]
        dataset = manifest["input"]["dataset"] if manifest.get("io_modelled") else None
    except (AttributeError, KeyError, TypeError) as error:
        raise ConfigError(f"its manifest is not whole: {error}", file=file) from error
    stack = _stack(run, software, file)
    result = simulate(
        load_network(str(model or named["model"][0]), named["model"][1]),
        load_cluster(str(cluster or named["cluster"][0]), named["cluster"][1]),
        ResolvedPlan(**fields, **noise, stack=stack, decided=decided, notes=notes),
        dataset=dataset,
        fold=fold,
        most_micro_batches=manifest.get("most_micro_batches"),
    )
    result = replace(result, details=replace(result.details, chosen_by=chosen_by))
    for key in _DESCRIBED:
        found, expected = result.manifest[key]["fingerprint"], manifest[key].get("fingerprint")
        if found != expected:
            raise RidgelineError(
                f"{file}: the {key} {named[key][0]!r} is not the one of this result (fingerprint "
                f"{found}, was {expected}); simulate anew, or name its file with --{key}"
            )
    return result


def _stack(run: Mapping[str, Any], software: str | Path | None, file: str) -> Stack:
    """Load the stack of a manifest, and check that its settings are those of the result."""
    stack = load_software(str(software or run["name"]), run["overrides"])
    found = {group: getattr(stack, group).model_dump(mode="json") for group in GROUPS}
    changed = [
        f"{group}.{name}"
        for group, settings in found.items()
        for name, value in settings.items()
        if value != run["settings"].get(group, {}).get(name)
    ]
    if changed:
        raise RidgelineError(
            f"{file}: the software {run['name']!r} is not the one of this result"
            f" ({', '.join(changed)} differ); simulate anew, or name its file with --software"
        )
    return stack
