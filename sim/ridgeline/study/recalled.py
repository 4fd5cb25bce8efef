"""Results of studies of many steps: all their numbers, but the step itself only when asked for."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from ridgeline.report.result import Details, Result
from ridgeline.simulation import simulate


def without_step(result: Result) -> Result:
    """Return a result that simulates its step once more for whoever asks for its details."""
    return replace(result, details=Recalled(result.details))


_MADE_AGAIN = frozenset({"graph", "lowered", "timeline"})


class Recalled(Details):
    """Details whose graph, program and timeline are made again when they are first asked for."""

    def __init__(self, known: Details) -> None:
        vars(self).update(
            model=known.model, cluster=known.cluster, plan=known.plan, chosen_by=known.chosen_by,
            spelled=known.spelled,
        )  # fmt: skip

    def __getattr__(self, name: str) -> Any:
        """Simulate the step again."""
        if name not in _MADE_AGAIN:
            raise AttributeError(name)
        known = vars(self)
        again = simulate(known["model"], known["cluster"], known["plan"]).details
        known.update({part: getattr(again, part) for part in _MADE_AGAIN})
        return known[name]
