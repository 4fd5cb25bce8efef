"""What micro-batches, accumulation and devices of a launch file come to."""

from __future__ import annotations

from collections.abc import Mapping

from ridgeline.study.launch import shape
from ridgeline.study.launch.job import LaunchDraft
from ridgeline.study.launch.tables import devices_given

Where = Mapping[str, tuple[str, ...]]
"""Settings behind what a message is about: "devices", "data", "global_batch", ..."""


def settle(draft: LaunchDraft, micro: int | None, accumulation: int | None, where: Where) -> None:
    """Fill the batch and the degree of data parallelism as far as the file tells them.

    A number of devices that the user gives counts where the file has none. What cannot be known
    without one is said in the notes.

    Parameters
    ----------
    micro
        Samples of a data-parallel rank at a time.
    accumulation
        Micro-batches of a rank for one update; None: the file leaves it open.

    Raises
    ------
    ConfigError
        If the numbers contradict each other.
    """
    plan = draft.plan
    if draft.devices is None:
        draft.devices = _devices_of(draft)
    plan["micro_batch"] = micro
    draft.accumulation = accumulation or 1
    stated = plan.get("global_batch")
    if draft.devices is None and "data" not in plan and micro and accumulation and stated:
        ranks, rest = divmod(stated, micro * accumulation)
        if rest:
            raise draft.error(
                f"global batch {stated} cannot be divided by micro-batch {micro} x"
                f" accumulation {accumulation}",
                draft.placed(where.get("global_batch", ())),
            )
        draft.devices = ranks * _model_ranks(draft)
        draft.note(
            f"{draft.devices} devices follow from global batch {stated} = micro-batch {micro} x"
            f" accumulation {accumulation} x {ranks} data-parallel ranks"
        )
    draft.check(where)
    _check_experts(draft, where)
    data = plan.get("data")
    if data is None:
        _ask(draft, micro, accumulation, stated)
        return
    if micro is None or (accumulation is None and stated is not None):
        return
    count = accumulation or 1
    batch = micro * count * data
    if stated is not None and stated != batch:
        raise draft.error(
            f"global batch {stated} is not micro-batch {micro} x accumulation {count} x {data}"
            f" data-parallel ranks = {batch}",
            draft.placed(where.get("global_batch", ())),
        )
    plan["global_batch"] = batch


def _check_experts(draft: LaunchDraft, where: Where) -> None:
    degree = draft.plan.get("expert") or 1
    own = draft.model_fields.get("mixture")
    listed = shape.shapes().get(draft.model, {}) if draft.model and degree > 1 else {}
    experts = own["experts"] if isinstance(own, dict) else listed.get("mixture.experts")
    if degree == 1 or not draft.model or (experts and experts % degree == 0):
        return
    has = (
        f"the {experts} experts of {draft.model}" if experts else f"{draft.model}, without experts"
    )
    raise draft.error(
        f"expert {degree} does not divide {has}", draft.placed(where.get("expert", ()))
    )


def _model_ranks(draft: LaunchDraft) -> int:
    ranks = 1
    for part in ("tensor", "pipeline", "context"):
        ranks *= draft.plan.get(part) or 1
    return ranks


def _devices_of(draft: LaunchDraft) -> int | None:
    if "data" in draft.plan:
        return int(draft.plan["data"]) * _model_ranks(draft)
    return devices_given(draft)


def _ask(
    draft: LaunchDraft, micro: int | None, accumulation: int | None, stated: int | None
) -> None:
    ask = "the file does not say how many devices there are: give it (--devices N)"
    if stated is None and micro is not None:
        ranks = _model_ranks(draft)
        parts = f"{micro} x {accumulation or 1} x N" + (f" / {ranks}" if ranks > 1 else "")
        ask += f"; the global batch is then {parts}"
    draft.note(ask)
