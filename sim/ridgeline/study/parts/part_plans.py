"""Plans of parts from text: ``vision: data=8,frozen; projector: data=4`` or a file of them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from ridgeline.config import read_yaml
from ridgeline.errors import ConfigError, nearest, short
from ridgeline.parallel.plan.plan import Plan
from ridgeline.workload.network_parts import REST

_PARTS = re.compile(r";(?![^\[]*\])")  # but for those in brackets
_COMMAS = re.compile(r",(?![^\[]*\])")
_FLAGS = ("frozen", "colocated")
_NUMBERS = ("first_device", "ahead")
_OF_THE_STEP = ("global_batch", "forward_only", "replicas")
"""Fields of a plan that a part cannot have: of the whole step, or not modelled for parts."""
_FIELDS = tuple(name for name in Plan.model_fields if name not in _OF_THE_STEP)
_EXAMPLE = "for example 'vision: data=8,frozen'"
_WORDS = {"true": True, "false": False}


@dataclass(frozen=True)
class PartPlan:
    """How one part of a network is distributed.

    Attributes
    ----------
    fields
        Of its `Plan`; the batch is that of the step.
    frozen
        Whether its weights are not trained.
    colocated
        Whether it is on the devices of the rest of the network, before and after that; else it has
        devices of its own.
    first_device
        Rank of the first of its own devices; None: the next that is free.
    ahead
        Micro-batches that it has under way beyond those that the next part's order asks for; None:
        1, as a stage of a 1F1B pipeline has.
    """

    fields: Mapping[str, Any] = field(default_factory=dict)
    frozen: bool = False
    colocated: bool = False
    first_device: int | None = None
    ahead: int | None = None


def parse_parts(text: str) -> dict[str, PartPlan]:
    """Read plans of parts: text, or the path of a YAML file with the fields of each part.

    Raises
    ------
    ConfigError
        If the text is something else, or a field is unknown or given twice.
    """
    if text.strip().endswith((".yaml", ".yml")):
        return dict(_from_file(text.strip()))
    found: dict[str, PartPlan] = {}
    for part in filter(None, (part.strip() for part in _PARTS.split(text))):
        name, colon, rest = (piece.strip() for piece in part.partition(":"))
        if not colon or not name:
            raise ConfigError(
                f"expected PART: field=value,..., found {short(part)}; {_EXAMPLE}", field="parts"
            )
        if name in found:
            raise ConfigError(f"the part {name!r} is given twice", field="parts")
        found[name] = part_plan(name, dict(_pairs(name, rest)))
    if not found:
        raise ConfigError(f"no part is given; {_EXAMPLE}", field="parts")
    return found


def _pairs(name: str, text: str) -> Iterator[tuple[str, Any]]:
    seen = set()
    for given in filter(None, (piece.strip() for piece in _COMMAS.split(text))):
        key, equals, value = (piece.strip() for piece in given.partition("="))
        if not equals and key not in _FLAGS:
            raise ConfigError(
                f"expected field=value or one of {', '.join(_FLAGS)}, found {short(given)}"
                f"{nearest(key, (*_FLAGS, *_FIELDS))}",
                field=f"parts.{name}",
            )
        if key in seen:
            raise ConfigError(f"the field {key!r} is given twice", field=f"parts.{name}")
        seen.add(key)
        yield key, value if equals else True


def _from_file(path: str) -> Iterator[tuple[str, PartPlan]]:
    document = read_yaml(path)
    if not isinstance(document.data, Mapping) or not document.data:
        raise document.error("expected parts with their fields, such as vision: {data: 8}")
    for name, fields in document.data.items():
        if not isinstance(fields, Mapping):
            raise document.error("expected fields, such as {data: 8, frozen: true}", (name,))
        try:
            yield str(name), part_plan(str(name), {str(k): v for k, v in fields.items()})
        except ConfigError as error:
            raise document.error(error.message, (name,)) from error


def part_plan(name: str, values: Mapping[str, Any]) -> PartPlan:
    """Return the plan of a part from values of its fields.

    Raises
    ------
    ConfigError
        If a field is unknown, or has a value that is not allowed.
    """
    own = {flag: _flag(name, flag, values.get(flag, False)) for flag in _FLAGS}
    counts = {key: _count(name, key, values[key]) for key in _NUMBERS if key in values}
    fields = {k: v for k, v in values.items() if k not in (*_FLAGS, *_NUMBERS)}
    for key in fields:
        if key in _OF_THE_STEP:
            raise ConfigError("is not a field of a part", field=f"parts.{name}.{key}")
        if key not in _FIELDS:
            known = (*_FLAGS, *_NUMBERS, *_FIELDS)
            raise ConfigError(
                f"unknown field {key!r}{nearest(key, known)} (allowed: {', '.join(known)})",
                field=f"parts.{name}",
            )
    plan = PartPlan(fields, own["frozen"], own["colocated"], counts.get("first_device"),
                    counts.get("ahead"))  # fmt: skip
    _check(name, plan)
    return plan


def _check(name: str, plan: PartPlan) -> None:
    if name == REST:
        others = sorted(plan.fields)
        others += ["colocated"] if plan.colocated else []
        others += [key for key in _NUMBERS if getattr(plan, key) is not None]
        if others:
            raise ConfigError(
                f"{others[0]!r} of the rest of the network belongs into the plan; here it can be"
                " frozen",
                field=f"parts.{name}",
            )
    if plan.colocated and plan.first_device is not None:
        raise ConfigError(
            "a colocated part is on the devices of the rest", field=f"parts.{name}.first_device"
        )
    if plan.colocated and plan.ahead is not None:
        raise ConfigError(
            "a colocated part does all of its forward passes first", field=f"parts.{name}.ahead"
        )


def _flag(name: str, key: str, value: Any) -> bool:
    found = _WORDS.get(value.lower()) if isinstance(value, str) else value
    if not isinstance(found, bool):
        raise ConfigError(
            f"allowed: true, false; found {short(value)}", field=f"parts.{name}.{key}"
        )
    return found


def _count(name: str, key: str, value: Any) -> int:
    text = str(value).strip()
    if isinstance(value, bool) or not text.isdecimal() or int(text) > 10**6:
        raise ConfigError(
            f"expected a whole number from 0 to 1000000, found {short(value)}",
            field=f"parts.{name}.{key}",
        )
    return int(text)
