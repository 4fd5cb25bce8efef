"""Layers that are divided otherwise than the rest of the network: rules of a layer-wise plan.

The ``data x tensor`` devices of a stage divide every layer, but not every layer alike: some by
samples (data parallel), some by features (model parallel), or in groups that share the features
while samples are divided between the groups. A rule says for the layers of a pattern how many
devices share the features; all others divide the samples. A. Krizhevsky, One weird trick for
parallelizing convolutional neural networks, 2014, arXiv:1404.5997: convolutions by samples, fully
connected layers by features; D. Das et al., 2016, arXiv:1602.06709, section 3.3: the same in groups
of nodes.

Devices that share the features of some layer are neighbours, and so the plan's dimension "tensor"
is as wide as the widest layer needs. It has *levels*: of the degrees 1 < a < b of three layers, the
a innermost devices are level 0, and the b/a groups of them level 1. A layer is divided by features
on the levels within its degree, and by samples on those beyond.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from itertools import pairwise

from ridgeline.errors import ConfigError, nearest

_FIELD = "plan.layers"
_KEYS = ("data", "tensor")
_EXAMPLE = "for example 'fc*: data=1,tensor=8'"


@dataclass(frozen=True, slots=True)
class LayerRule:
    """How the layers of a pattern are divided; None: what the other degree leaves."""

    pattern: str
    data: int | None
    tensor: int | None


def parse_rules(raw: object) -> tuple[LayerRule, ...]:
    """Read rules: text, ``PATTERN: data=D,tensor=T; ...``, or a mapping as in a file.

    Raises
    ------
    ValueError
        If a rule has no pattern or no degree, or something else.
    """
    if isinstance(raw, str):
        return tuple(_rule(part) for part in re.split(r"[;\n]", raw.strip().strip("[]")) if part)
    if isinstance(raw, Mapping):
        return tuple(_of_mapping(str(pattern), value) for pattern, value in raw.items())
    raise ValueError(f"expected rules, found {raw!r}; {_EXAMPLE}")


def _rule(text: str) -> LayerRule:
    pattern, colon, rest = (part.strip() for part in text.rpartition(":"))
    if not colon or not pattern:
        raise ValueError(f"expected PATTERN: data=D,tensor=T, found {text.strip()!r}; {_EXAMPLE}")
    pairs = [pair.partition("=") for pair in filter(None, re.split(r"[,\s]+", rest))]
    twice = {key for key, _, _ in pairs if sum(key == k for k, _, _ in pairs) > 1}
    if twice:
        raise ValueError(f"the rule of {pattern!r} gives {min(twice)!r} twice")
    return _of_mapping(pattern, {key: value for key, _, value in pairs})


def _of_mapping(pattern: str, degrees: object) -> LayerRule:
    found: dict[str, int] = {}
    if isinstance(degrees, str):
        return _rule(f"{pattern}: {degrees}")
    if not isinstance(degrees, Mapping) or not degrees:
        raise ValueError(f"the rule of {pattern!r} gives no degree; {_EXAMPLE}")
    for key, value in degrees.items():
        if key not in _KEYS:
            near = nearest(str(key), _KEYS)
            raise ValueError(f"the rule of {pattern!r} has {key!r}{near} (allowed: data, tensor)")
        digits = str(value).strip()
        if isinstance(value, bool) or not digits.isdigit() or int(digits) < 1:
            raise ValueError(
                f"the rule of {pattern!r} has {key}={value}; allowed: a whole number of devices"
            )
        found[key] = int(digits)
    return LayerRule(pattern, found.get("data"), found.get("tensor"))


def settled(rules: Iterable[LayerRule], data: int, tensor: int) -> str:
    """Return the text of rules, each with the devices that share features, checked.

    Raises
    ------
    ValueError
        If the degrees of a rule do not use all ``data x tensor`` devices, or degrees do not divide
        each other.
    """
    devices, parts, degrees = data * tensor, [], {tensor}
    for rule in rules:
        share = rule.tensor if rule.tensor is not None else devices // (rule.data or 1)
        copies = rule.data if rule.data is not None else max(1, devices // share)
        if share * copies != devices:
            raise ValueError(
                f"the rule of {rule.pattern!r} uses data={copies} x tensor={share} devices, but all"
                f" layers share the {devices} of the plan (data={data} x tensor={tensor}); allowed:"
                f" degrees whose product is {devices}"
            )
        degrees.add(share)
        parts.append(f"{rule.pattern}:tensor={share}")
    ordered = sorted(degrees)
    for few, many in pairwise(ordered):
        if many % few:
            raise ValueError(
                f"degrees of tensor that differ between layers must divide each other, since groups"
                f" lie in groups; found {few} and {many}"
            )
    return ";".join(parts)


def kind_of(dimension: str) -> str:
    """Dimension of the plan that a level is of."""
    return dimension.partition(".")[0]


def levels(text: str, tensor: int, *experts: int) -> tuple[int, ...]:
    """Return how many devices, or groups of the level before, each level has, innermost first.

    Parameters
    ----------
    experts
        Neighbours that hold an expert, or all of a mixture, once; fewer than `tensor` are a level.
    """
    within, found = 1, []
    rules = parse_rules(text) if text else ()
    degrees = {tensor, *(min(n, tensor) for n in experts), *(rule.tensor or 1 for rule in rules)}
    for degree in sorted(degrees):
        if degree > within:
            found.append(degree // within)
            within = degree
    return tuple(found)


@dataclass(frozen=True)
class LayerDegrees:
    """How many devices share the features of each layer: the first rule that matches counts."""

    rules: tuple[LayerRule, ...]
    default: int

    def of(self, layer: str) -> int:
        """Return the degree of a layer."""
        for rule in self.rules:
            if fnmatchcase(layer, rule.pattern):
                return rule.tensor or 1
        return self.default

    def check(self, layers: Iterable[str], network: str) -> None:
        """Raise ConfigError if a rule is of no layer: nothing would follow it."""
        known = list(dict.fromkeys(layers))
        for i, rule in enumerate(self.rules):
            matched = [layer for layer in known if fnmatchcase(layer, rule.pattern)]
            before = self.rules[:i]
            if (
                rule.pattern != "*"
                and matched
                and all(
                    any(fnmatchcase(layer, other.pattern) for other in before) for layer in matched
                )
            ):
                raise ConfigError(
                    f"the rule of {rule.pattern!r} is never reached: rules before it cover all its "
                    "layers, and the first that matches counts",
                    field=_FIELD,
                )
            if not matched:
                near = nearest(rule.pattern.strip("*"), known)
                raise ConfigError(
                    f"no layer of {network} is called {rule.pattern!r}{near} "
                    f"(it has {', '.join(known[:12])}{', ...' if len(known) > 12 else ''})",
                    field=_FIELD,
                )
