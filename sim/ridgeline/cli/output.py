"""What all verbs print with."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any

from ridgeline import units
from ridgeline.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import Console

    from ridgeline.report.result import Result


def print_json(value: Any) -> None:
    """Print a value as JSON."""
    sys.stdout.write(json.dumps(value, indent=2) + "\n")


def print_quantity(result: Any, quantity: str, *, json: bool) -> None:
    """Print one number of a result to its last digit, by `quantity_of`."""
    from ridgeline.study.quantities import quantity_of

    print_value(quantity, quantity_of(result, quantity), json=json)


def print_value(quantity: str, value: float, *, json: bool) -> None:
    """Print one number to its last digit."""
    if json:
        print_json({"quantity": quantity, "value": value})
    else:
        sys.stdout.write(f"{value!r}\n")


def print_step(result: Result, screen: Console, after: Sequence[str] = ()) -> None:
    """Print the answer of a step on one screen, and with ``--verbose`` all of it."""
    from rich.text import Text

    from ridgeline.verbosity import is_verbose

    if is_verbose():
        from ridgeline.report.summary import print_summary

        print_summary(result, screen)
        for line in after:
            screen.print(line, soft_wrap=True, markup=False)
        return
    from ridgeline.report.short_summary import short_summary

    for line in short_summary(result, after, more="-v says more"):
        screen.print(Text(line), soft_wrap=True)


def rounded(value: float) -> str:
    """Write a number with four digits, or all that stand before the point."""
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def brief(value: Any) -> str:
    """Write a value of a row, a number or the number of a quantity with at most six digits."""
    if isinstance(value, float):
        return f"{value:.6g}"
    number, space, unit = str(value).partition(" ")
    try:
        if not space:
            return number
        if float(number) and float(number) % 1000 == 0:  # 1e+06 kB: a step of a span
            return units.show(units.quantity(value), units.unprefixed(unit))
        return f"{float(number):.6g} {unit}"
    except (ValueError, ConfigError):
        return str(value)


def console() -> Console:
    """Return a console that uses the width of the terminal, or 100 columns into a pipe."""
    from rich.console import Console

    class Screen(Console):
        def print(self, *objects: Any, **options: Any) -> None:
            super().print(*objects, **{"crop": False, **options})  # what is wider goes on

        def on_broken_pipe(self) -> None:  # as of all else that is printed: see `cli.execute`
            raise BrokenPipeError

    return Screen(width=None if sys.stdout.isatty() else 100, highlight=False)


_PARTS_OF_SOMETHING = frozenset({
    "total", "value", "other", "mean", "median", "min", "max", "p05", "p95",
})  # fmt: skip


def headings(paths: Sequence[str]) -> list[str]:
    """Return the fewest last parts of each dotted path that no other of them ends in.

    A last part that says nothing alone, as the total of energy_j.total, brings the one before it.
    """
    made = []
    for path in paths:
        parts = path.split(".")
        fewest = 2 if parts[-1] in _PARTS_OF_SOMETHING else 1
        ends = (".".join(parts[-n:]) for n in range(fewest, len(parts)))
        others = [f".{other}" for other in paths if other != path]
        made.append(next((e for e in ends if not any(o.endswith(f".{e}") for o in others)), path))
    return made
