"""A point of a design study: a model on a cluster under a plan, with fields replaced."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from ridgeline import catalog
from ridgeline.errors import ConfigError, nearest
from ridgeline.hardware.load import load_cluster
from ridgeline.parallel.plan import make_plan, plan_fields
from ridgeline.report.result import Result
from ridgeline.simulation import simulate
from ridgeline.workload.model import Model, load_model

ROOTS = ("model", "cluster", "plan")


@dataclass(frozen=True)
class Point:
    """Everything that `simulate` needs, by name.

    Attributes
    ----------
    model, cluster
        Names in the catalogue, or paths.
    plan
        Fields of the plan.
    overrides
        Dotted path -> new value. Paths begin with ``model.``, ``cluster.`` (``cluster.node.…``,
        ``cluster.device.…``, ``cluster.device.energy_table.…``) or ``plan.``.
    """

    model: str
    cluster: str
    plan: Mapping[str, Any]
    overrides: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def parse(
        cls,
        model: str,
        cluster: str,
        plan: str,
        more: Mapping[str, Any],
        overrides: Mapping[str, Any],
    ) -> Point:
        """Make a point of the words of a command line; `more` holds plan fields or None."""
        return cls(model, cluster, plan_fields(plan, more), overrides)

    def with_values(self, values: Mapping[str, Any]) -> Point:
        """Return this point with more fields replaced: ``model``, ``cluster`` or dotted paths.

        Raises
        ------
        ConfigError
            If a path does not begin with model, cluster or plan.
        """
        names = {"model": self.model, "cluster": self.cluster}
        overrides = dict(self.overrides)
        for path, value in values.items():
            if path in names:
                if not isinstance(value, str):
                    raise ConfigError(f"expected a name, found {value!r}", field=path)
                names[path] = value
            else:
                check_path(path)
                overrides[path] = value
        return Point(names["model"], names["cluster"], self.plan, overrides)

    def simulate(self, dataset: str | None = None, *, fold: bool = True) -> Result:
        """Load everything and simulate it, fed from a data set if one is named."""
        return simulate(
            self.load("model"), self.load("cluster"), self.load("plan"), dataset=dataset, fold=fold
        )

    def load(self, root: str) -> Any:
        """Load the model, the cluster or the plan, with its fields replaced."""
        replaced = {}
        for path, value in self.overrides.items():
            head, rest = check_path(path)
            if head == root:
                replaced[rest] = value
        if root == "model":
            return shared_model(
                self.model, json.dumps(replaced, sort_keys=True), _state(self.model)
            )
        if root == "cluster":
            return load_cluster(self.cluster, replaced)
        return make_plan({**self.plan, **replaced})


@lru_cache(maxsize=16)
def shared_model(name: str, replaced: str, state: tuple[int, int]) -> Model:
    """Load a model; points with the same model share it, and so its graphs."""
    return load_model(name, json.loads(replaced))


def _state(name: str) -> tuple[int, int]:
    """Return what changes when a model's file is written anew."""
    try:
        there = catalog.find("models", name).stat()
    except OSError:
        return 0, 0  # loading says what is wrong
    return there.st_mtime_ns, there.st_size


def check_path(path: str) -> tuple[str, str]:
    """Part a dotted path into its root and the rest, or raise ConfigError."""
    root, _, rest = path.partition(".")
    if root not in ROOTS or not rest:
        raise ConfigError(
            f"a path begins with {', '.join(f'{r}.' for r in ROOTS)} and goes on with a field"
            f"{nearest(root, ROOTS) if root not in ROOTS else ''}",
            field=path,
        )
    return root, rest
