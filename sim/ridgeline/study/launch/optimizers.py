"""Optimizers by the names that frameworks have for them."""

from __future__ import annotations

from ridgeline.study.launch import tables
from ridgeline.study.launch.job import LaunchDraft


def take(draft: LaunchDraft, name: str) -> None:
    """Fill the optimizer of the plan from a setting; nothing said, or "auto": the network's own.

    Raises
    ------
    ConfigError
        If the simulator has no such optimizer, and none that is alike.
    """
    word = tables.word(draft, name)
    if word is None:
        return
    known = tables.table("optimizers")
    if word in known["same"]:
        optimizer = known["same"][word]
    elif word in known["alike"]:
        optimizer, note = known["alike"][word][0], ", ".join(known["alike"][word][1:])
        draft.note(f"optimizer {word}, taken as {optimizer}: {note}")
    else:
        raise draft.error(f"the optimizer {word} is not modelled", name)
    draft.plan["optimizer"] = optimizer
    draft.ignore(name, became=f"plan.optimizer={optimizer}")
