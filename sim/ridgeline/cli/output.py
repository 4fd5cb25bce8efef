"""What all verbs print with."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console


def print_json(value: Any) -> None:
    """Print a value as JSON."""
    sys.stdout.write(json.dumps(value, indent=2) + "\n")


def rounded(value: float) -> str:
    """Write a number with four digits, or all that stand before the point."""
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def console() -> Console:
    """Return a console that uses the width of the terminal, or 100 columns into a pipe."""
    from rich.console import Console

    return Console(width=None if sys.stdout.isatty() else 100, highlight=False)
