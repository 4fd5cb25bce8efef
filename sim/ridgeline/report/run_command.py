"""The command line that repeats a step."""

from __future__ import annotations

import json
import shlex
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ridgeline.report.result import Result


def run_command(result: Result) -> str:
    """Return the ``ridgeline run`` that simulates a step again, as its manifest names it.

    Networks, machines and stacks that are not in the catalogue are named as they name themselves;
    their files have to be named in place of that.
    """
    given, plan = result.manifest, dict(result.details.plan.chosen)
    words = ["ridgeline", "run", given["model"]["name"], given["cluster"]["name"]]
    batch, precision = result.details.plan.global_batch, result.details.plan.precision
    layers = plan.pop("layers", "")
    fields = {k: v for k, v in plan.items() if k not in {"global_batch", "precision"}}
    if fields:
        words += ["--plan", ",".join(f"{name}={value}" for name, value in fields.items())]
    words += ["--batch", str(batch), "--precision", precision]
    if layers:
        words += ["--layers", layers]
    words += ["--software", given["software"]["name"]]
    for root, changed in (
        ("model", given["model"]["overrides"]),
        ("cluster", given["cluster"]["overrides"]),
        ("software", given["software"]["overrides"]),
    ):
        for path, value in changed.items():
            words += ["--set", f"{root}.{path}={_written(value)}"]
    if given["io_modelled"]:
        words += ["--dataset", given["input"]["dataset"]]
    return shlex.join(words)


def _written(value: Any) -> str:
    """Write a value as it would stand in a YAML file; words as they are."""
    return value if isinstance(value, str) else json.dumps(value)
