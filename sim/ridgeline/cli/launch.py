"""Launch files on the command line: ``ridgeline run CLUSTER --from FILE``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ridgeline.cli.assignments import assignments
from ridgeline.errors import ConfigError, RidgelineError
from ridgeline.study.launch import launch_choices, read_launch
from ridgeline.study.launch.dry_run import DryRun, dry_run
from ridgeline.study.point import ROOTS

if TYPE_CHECKING:
    from rich.console import Console

_MOST_NAMED = 12


def read_dry_run(
    file: str,
    named: tuple[str, str],
    set_: Sequence[str],
    *,
    devices: int | None,
    software: str,
    plan: Mapping[str, Any],
) -> DryRun:
    """Read a launch file, and return what simulates it.

    Parameters
    ----------
    named
        What stands before the options: a cluster, or a model and a cluster.
    set_
        Values of ``--set``: dotted paths of fields, and variables of the file.

    Raises
    ------
    RidgelineError
        If the file describes no step, or several of which none is chosen.
    """
    model, cluster = named if named[1] else ("", named[0])
    paths = [text for text in set_ if text.partition("=")[0].split(".")[0].strip() in ROOTS]
    variables = {}
    for text in set_:
        if text not in paths:
            name, equals, value = (part.strip() for part in text.partition("="))
            if not equals or not name:
                raise ConfigError(f"expected name=value, found {text!r}", field="--set")
            variables[name] = value
    if devices is not None:
        variables.setdefault("devices", str(devices))
    _check_choice(file, variables)
    job = read_launch(file, set_=variables)
    return dry_run(
        job,
        model=model,
        cluster=cluster,
        devices=devices if job.devices != devices else None,
        software=software,
        plan=plan,
        overrides=assignments(paths),
    )


def _check_choice(file: str, variables: Mapping[str, str]) -> None:
    """Refuse a file of several jobs of which none is chosen, and name them."""
    choices = launch_choices(file)
    names = {choice.partition("=")[0] for choice in choices}
    if len(choices) > 1 and not names & variables.keys():
        some = "\n  ".join(f"--set {choice}" for choice in choices[:_MOST_NAMED])
        more = f"\n  and {len(choices) - _MOST_NAMED} more" if len(choices) > _MOST_NAMED else ""
        raise RidgelineError(f"{file} has {len(choices)} jobs; choose one:\n  {some}{more}")


def print_dry_run(dry: DryRun, screen: Console, *, explain: bool) -> None:
    """Print what a launch file says, and what of it was not understood."""
    job = dry.job
    read = len(job.settings) - len(job.unread)
    screen.print(
        f"from {job.file} ({job.framework}): {read} of {len(job.settings)} settings understood",
        soft_wrap=True, markup=False, highlight=False,
    )  # fmt: skip
    if explain:
        from ridgeline.report.tables import plain_table

        table = plain_table({"line": "right", "setting": "left", "value": "left", "became": "left"})
        for one in job.settings:
            line = str(one.line) if one.line else ""
            table.add_row(line, one.name, _short(one.value), one.became or "NOT UNDERSTOOD")
        screen.print(table)
    elif job.unread:
        names = ", ".join(dict.fromkeys(setting.name for setting in job.unread))
        screen.print(f"not understood: {names}", soft_wrap=True, markup=False, highlight=False)
    for note in dry.notes:
        screen.print(f"note: {note}", soft_wrap=True, markup=False, highlight=False)


def _short(text: str, most: int = 40) -> str:
    return text if len(text) <= most else f"{text[: most - 3]}..."
