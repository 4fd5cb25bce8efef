"""Steering: fields of a plan that the user fixes, to a value, some values or a range.

``tensor=8`` leaves plans with eight tensor-parallel devices, ``pipeline=4..16`` those with four to
sixteen stages, ``micro_batch=1,2`` those with one of two sizes. A field that nothing on these
devices can have, alone or with what else is fixed, is an error that names what it could be.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from ridgeline.errors import ConfigError, nearest
from ridgeline.parallel.plan.plan import SWITCH, Plan
from ridgeline.study.planner.space import GRID_MODES, SCHEDULE_NAMES, PlanSpace

OPTION = "--fix"
_RANGE = re.compile(r"(\d*)\.\.(\d*)")
_SEPARATOR = re.compile(r",(?=\s*[a-z_]+\s*=)")
_WHY = {
    "data": "what other degrees leave of the devices, a divisor of the batch",
    "tensor": "divisors of the devices that share every head evenly, or copy it",
    "sequence": "1, or the degree of tensor, where a sample is a sequence",
    "context": "divisors of the devices and of the positions of a sample",
    "pipeline": "divisors of the devices, at most the parts that the network can be cut into",
    "micro_batch": "divisors of the samples of a rank, which are the batch over data",
    "virtual_stages": "of interleaved schedules whose micro-batches are a multiple of pipeline",
    "expert": "divisors of the experts of every mixture and of data",
    "zero_stage": "above 0 where replicas share something, and the stack shards state",
    "schedule": "orders that flush, and 1f1b without a pipeline",
    "recompute": "what the network has, by one of the modes of a plan or by modules",
}
"""What limits the values of a field, in words."""
_ELSEWHERE = {
    "global_batch": "give it with --batch",
    "precision": "give it with --precision",
    "stage_balance": "a setting of the stack: --set software.plan.stage_balance=...",
    "hybrid_shard_size": "a setting of the stack: --set software.plan.hybrid_shard_size=...",
    "expert_tensor_parallel": (
        "a setting of the stack: --set software.plan.expert_tensor_parallel=..."
    ),
}
"""Fields of a plan that a search takes by another way."""


@dataclass(frozen=True)
class FixedField:
    """A field of a plan, and the values that it may have.

    Attributes
    ----------
    values
        Allowed values; empty: those from `least` to `most`.
    """

    name: str
    values: tuple[Any, ...] = ()
    least: int = 0
    most: int = 2**62

    def __str__(self) -> str:
        if self.values:
            return f"{self.name}={','.join(map(str, self.values))}"
        most = "" if self.most == 2**62 else self.most
        return f"{self.name}={self.least or ''}..{most}"

    def keeps(self, column: Any) -> Any:
        """Return [P] whether each of the values is allowed."""
        if self.values:
            return np.isin(column, np.array(self.values, dtype=column.dtype))
        return (column >= self.least) & (column <= self.most)


def fixed_texts(words: Iterable[str]) -> dict[str, str]:
    """Read ``["tensor=8,pipeline=4..16"]`` into texts by field.

    Raises
    ------
    ConfigError
        If a word is not ``field=values``, or a field stands twice.
    """
    found: dict[str, str] = {}
    for word in words:
        for part in _SEPARATOR.split(word):
            name, equals, value = (piece.strip() for piece in part.partition("="))
            if not (name and equals and value):
                raise ConfigError(f"expected field=values, found {part!r}", field=OPTION)
            if name in found:
                raise ConfigError(f"the field {name!r} is given twice", field=OPTION)
            found[name] = value
    return found


def fixed_fields(given: Mapping[str, Any]) -> tuple[FixedField, ...]:
    """Read the fixes of a search: a value, or a text as on the command line, by field.

    Raises
    ------
    ConfigError
        If a field is unknown, is not searched, or has values of another kind.
    """
    return tuple(_fixed(name, str(value)) for name, value in given.items())


def _fixed(name: str, text: str) -> FixedField:
    if name not in Plan.model_fields:
        raise ConfigError(
            f"a plan has no field {name!r}{nearest(name, Plan.model_fields)}", field=OPTION
        )
    if name in _ELSEWHERE:
        raise ConfigError(f"{name}: {_ELSEWHERE[name]}", field=OPTION)
    if name not in COLUMNS:
        raise ConfigError(
            f"{name} is not searched (searched: {', '.join(COLUMNS)}); ridgeline run --plan takes"
            " it, with a plan that a search has found",
            field=OPTION,
        )
    span = _RANGE.fullmatch(text)
    if name in _WORDS:
        if span:
            raise ConfigError(f"{name} has no range, found {text!r}", field=OPTION)
        words = tuple(word.strip() for word in text.split(","))
        allowed = _WORDS[name]
        for word in words:
            if allowed and word not in allowed:
                raise ConfigError(
                    f"{name}: found {word!r}{nearest(word, allowed)} (searched:"
                    f" {', '.join(allowed)})",
                    field=OPTION,
                )
            Plan(global_batch=1, **{name: word} if name == "recompute" else {})
        return FixedField(name, words)
    if span:
        least, most = int(span[1] or 0), int(span[2] or 2**62)
        if least > most:
            raise ConfigError(f"{name}: {text} is empty", field=OPTION)
        return FixedField(name, (), least, most)
    if name == "sequence" and text.lower() in SWITCH:
        return FixedField(name, (), 2) if SWITCH[text.lower()] == 0 else FixedField(name, (1,))
    try:
        return FixedField(name, tuple(int(part) for part in text.split(",")))
    except ValueError:
        raise ConfigError(
            f"{name}: expected a number, some with commas, or a range as 4..16, found {text!r}",
            field=OPTION,
        ) from None


def restricted(space: PlanSpace, fixes: Iterable[FixedField], where: str) -> PlanSpace:
    """Return the plans that have the fixed fields.

    Parameters
    ----------
    where
        The devices and the model, in words of an error.

    Raises
    ------
    ConfigError
        If no plan has one of them, alone or with those before it: what it can be, and why.
    """
    given: list[FixedField] = []
    if not len(space):
        return space
    left = space
    for fix in fixes:
        kept = fix.keeps(COLUMNS[fix.name](left))
        if not kept.any():
            alone = bool(fix.keeps(COLUMNS[fix.name](space)).any())
            among, beside = (left, f" with {', '.join(map(str, given))}") if alone else (space, "")
            can = sorted(set(COLUMNS[fix.name](among).tolist()))
            why = f", {_WHY[fix.name]}" if fix.name in _WHY else ""
            raise ConfigError(
                f"no plan of {where} has {fix}{beside}; {fix.name} can be"
                f" {', '.join(map(str, can))}{why}",
                field=OPTION,
            )
        left = left.where(kept)
        given.append(fix)
    return left


def _named(names: Iterable[str], column: Any) -> Any:
    return np.array(list(names))[column]


COLUMNS: dict[str, Any] = {
    "data": lambda s: s.data,
    "tensor": lambda s: s.tensor,
    "sequence": lambda s: np.where(s.sequence > 0, s.tensor, 1),
    "context": lambda s: s.context,
    "cp_comm_type": lambda s: _named(("all-gather", "ring"), s.ring),
    "pipeline": lambda s: s.pipeline,
    "micro_batch": lambda s: s.micro_batch,
    "virtual_stages": lambda s: s.chunks,
    "expert": lambda s: s.expert,
    "zero_stage": lambda s: s.sharding,
    "schedule": lambda s: _named(SCHEDULE_NAMES, s.schedule),
    "recompute": lambda s: _named(s.modes, s.recompute),
    "tensor_rows": lambda s: s.tensor_rows,
    "tensor_mode": lambda s: _named(GRID_MODES, s.tensor_mode),
    "spatial": lambda s: s.spatial,
    "offload": lambda s: np.full(len(s), s.offload),
}
"""Fields that are searched, and [P] their values in a space."""
_WORDS: dict[str, tuple[str, ...]] = {
    "cp_comm_type": ("all-gather", "ring"),
    "schedule": SCHEDULE_NAMES,
    "recompute": (),
    "tensor_mode": GRID_MODES,
    "offload": ("none", "all", "conv"),
}
"""Fields whose values are words: those that are searched; empty: as a plan checks them."""
