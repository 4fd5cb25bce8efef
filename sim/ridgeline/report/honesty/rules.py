"""The rules, by code: what each looks for, how grave it is, and what an honest statement says."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from ridgeline.errors import ConfigError
from ridgeline.registry import Registry
from ridgeline.report.honesty.evidence import Evidence

Severity = Literal["warn", "refuse"]

HOEFLER = "T. Hoefler, twelve ways to mislead with deep-learning performance (2018)"
BENCHMARKS = "A. Pedram, M. Lynch, G. Lauterbach, common benchmark cheats (2018)"


@dataclass(frozen=True, slots=True)
class Found:
    """What a check found: words with the file's own numbers, and how grave it is if not as usual.

    Attributes
    ----------
    say
        The honest statement, where the numbers of the file allow a closer one than the rule's.
    """

    text: str
    severity: Severity | None = None
    say: str = ""


Check = Callable[[Evidence], Found | None]


@dataclass(frozen=True, slots=True)
class Rule:
    """One way to mislead.

    Attributes
    ----------
    code
        H1 to H12 (Hoefler's rules), C1 to C6 (benchmark cheats), P1 to P6 (plots).
    title
        The rule in a few words.
    source
        Who stated it.
    severity
        "warn": a reader must be told; "refuse": the statement may not be made.
    trigger
        What breaks it, in words.
    say
        What the honest statement would be.
    covers
        Rules that are not reported beside this one, since its honest statement heals them too.
    check
        Looks at the evidence.
    """

    code: str
    title: str
    source: str
    severity: Severity
    trigger: str
    say: str
    covers: tuple[str, ...]
    check: Check


RULES: Registry[str, Rule] = Registry("honesty rule", "ridgeline.report.honesty.checks")


def rule(
    code: str,
    title: str,
    *,
    source: str,
    severity: Severity,
    trigger: str,
    say: str,
    covers: Sequence[str] = (),
) -> Callable[[Check], Check]:
    """Return a decorator that registers a check as a rule."""

    def put(check: Check) -> Check:
        RULES.register(code)(
            Rule(code, title, source, severity, trigger, say, tuple(covers), check)
        )
        return check

    return put


@dataclass(frozen=True, slots=True)
class Finding:
    """A rule that a file breaks.

    Attributes
    ----------
    found
        What breaks it, with the file's own numbers.
    say
        What the honest statement would be.
    overridden
        Whether the author has said that it is known.
    """

    code: str
    title: str
    severity: Severity
    found: str
    say: str
    overridden: bool = False

    def to_dict(self) -> dict[str, Any]:
        """Return everything as plain values."""
        return {name: getattr(self, name) for name in self.__slots__}


def findings_of(evidence: Evidence, override: Sequence[str] = ()) -> tuple[Finding, ...]:
    """Return every rule that the evidence breaks, in the order of the codes.

    Parameters
    ----------
    override
        Codes of findings that are known; they stay in the list, and no longer refuse.

    Raises
    ------
    ConfigError
        If a code is unknown.
    """
    known = known_codes(override)
    found = {
        code: (one, rule_)
        for code, rule_ in RULES.items()
        if not evidence.unread and (one := rule_.check(evidence)) is not None
    }
    covered = {other for _, rule_ in found.values() for other in rule_.covers}
    return tuple(
        Finding(
            code,
            rule_.title,
            one.severity or rule_.severity,
            one.text,
            one.say or rule_.say,
            code in known,
        )
        for code, (one, rule_) in sorted(found.items(), key=lambda item: order_of(item[0]))
        if code not in covered
    )


def order_of(code: str) -> tuple[int, int]:
    """Return the place of a code in tables: H, C, P, each by number."""
    return "HCP".index(code[0]), int(code[1:])


def known_codes(codes: Sequence[str]) -> frozenset[str]:
    """Return codes of rules as they are written in the tables.

    Raises
    ------
    ConfigError
        If there is no such rule.
    """
    known = [code.strip().upper() for part in codes for code in part.split(",") if code.strip()]
    for code in known:
        if code not in RULES:
            raise ConfigError(
                f"there is no rule {code!r} (there are: {', '.join(sorted(RULES, key=order_of))})",
                field="--override",
            )
    return frozenset(known)
