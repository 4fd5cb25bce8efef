"""The option ``--software`` of verbs that simulate steps, and the table of all stacks."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from ridgeline.cli.names import completed
from ridgeline.cli.output import console, rounded
from ridgeline.errors import ConfigError
from ridgeline.verbosity import is_quiet

if TYPE_CHECKING:
    from ridgeline.study.stacks import StackComparison

ALL = "all"
OPTION = "--software"
Software = Annotated[
    str | None,
    Parameter(
        help="Software stack: a name from `ridgeline list software`, or a file; by default the"
        " usual one of the machine or the network.",
        show_default=False,
        completer=completed("software"),
    ),
]
SoftwareOrAll = Annotated[
    str | None,
    Parameter(
        help="Software stack: a name from `ridgeline list software`, a file, or all for a table of"
        " the step under every one that can run it; by default the usual one of the machine or"
        " the network.",
        show_default=False,
        completer=completed("software"),
    ),
]


def one_stack(software: str | None) -> str:
    """Return the name of a stack, or "" for the usual one.

    Raises
    ------
    ConfigError
        If all are asked for, which only ``ridgeline run`` and ``sweep`` take.
    """
    if software == ALL:
        raise ConfigError(
            "all compares a step under every stack: ridgeline run does, and sweep", field=OPTION
        )
    return software or ""


def tell_stack(name: str) -> None:
    """Say on a terminal under which stack a step is simulated now; "" clears the line."""
    if sys.stderr.isatty() and not is_quiet():
        said = f"under {name}" if name else ""
        print(f"\r\x1b[K{said}", end="", file=sys.stderr, flush=True)


def print_stacks(found: StackComparison) -> None:
    """Print the step under every stack, the fastest first."""
    from ridgeline.report.tables import plain_table
    from ridgeline.units import show

    screen = console()
    screen.print(
        f"{found.title}: the step under every software stack that can run it", soft_wrap=True
    )
    precisions = {step.row["precision"] for step in found.steps if not step.error}
    extra = ["precision"] if len(precisions) > 1 else []
    decided = (
        ["of the plan"] if any({*step.decided} - {"precision"} for step in found.steps) else []
    )
    columns = ("step", "samples/s", "MFU", "GiB", "fits", "of ideal")
    table = plain_table(
        {
            "software": "left",
            **dict.fromkeys(columns, "right"),
            **dict.fromkeys([*extra, *decided], "left"),
        }
    )
    for step in found.steps:
        if step.error:
            table.add_row(step.software, "failed", *[""] * (len(table.columns) - 2))
            continue
        row = step.row
        table.add_row(
            step.software,
            show(row["step_time_s"], "s", 4),
            rounded(row["samples_per_s"]),
            f"{row['mfu']:.1%}",
            f"{row['memory_bytes'] / 2**30:.1f}",
            "yes" if row["fits"] else "no",
            f"{row['of_bound']:.3f}",
            *(str(row[name]) for name in extra),
            *[",".join(f"{k}={v}" for k, v in step.decided.items() if k != "precision")]
            * len(decided),
        )
    screen.print(table)
    if not extra:
        screen.print(f"all in {next(iter(precisions))}; ideal is a bound, not a program")
    else:
        screen.print("ideal is a bound, not a program")
    for step in found.steps:
        if step.error:
            screen.print(f"{step.software}: {step.error}", soft_wrap=True)
    if found.refused:
        screen.print(
            f"{len(found.refused)} other stacks cannot run it (--json says why)", soft_wrap=True
        )
