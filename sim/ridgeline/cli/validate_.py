"""``ridgeline validate``: predictions beside measurements, and how far they are off."""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import Parameter

from ridgeline.cli.number_options import Finite, Whole
from ridgeline.cli.output import console, print_json, print_value
from ridgeline.cli.software import Software, one_stack
from ridgeline.errors import RidgelineError

if TYPE_CHECKING:
    from ridgeline.study.validate import Validation
    from ridgeline.study.validate.statistics import Summary

_COMMA = re.compile(r",(?=\S)")  # of plans; lines break behind it


def validate_(
    suite: str | None = None,
    *,
    data: str | None = None,
    only: str | None = None,
    quantity: Literal["predicted", "measured", "error"] | None = None,
    rows: Annotated[bool, Parameter(negative="")] = False,
    commands: Annotated[bool, Parameter(negative="")] = False,
    json: Annotated[bool, Parameter(negative="")] = False,
    plot: str | None = None,
    live: Annotated[bool, Parameter(negative="")] = False,
    calibration: str | None = None,
    backend: str | None = None,
    device: str = "cpu",
    seconds: Finite = 30.0,
    quick: Annotated[bool, Parameter(negative="")] = False,
    processes: Whole | None = None,
    software: Software = None,
) -> None:
    """Predict measurements, and say how far the predictions are off.

    Parameters
    ----------
    suite
        Suite of measurements; by default all suites that ship.
    data
        CSV file of your own: normalised rows (``ridgeline import-rows``), or a table with the
        names of its source, which is imported first.
    only
        Predict one row alone, by its id or as "line N".
    quantity
        With --only: print one number alone, to its last digit: predicted, measured or error.
    rows
        Print every row.
    commands
        Print the command that repeats every row's prediction.
    json
        Print the answer as JSON.
    plot
        File for a figure of predicted over measured values of every row: .png, .svg or .pdf.
    live
        Predict training steps on this machine, then measure them.
    calibration
        With --live: device file of this machine; by default it is calibrated now.
    backend
        With --live: numpy or torch; by default torch where it is installed.
    device
        With --live: cpu or cuda.
    seconds
        With --live: time to spend on the calibration, roughly.
    quick
        With --live: measure few shapes, and one batch of each network.
    processes
        Processes that share the rows; by default one for each core.
    software
        Predict every row of a suite under this stack, in place of its own and its settings.
    """
    from ridgeline.study.validate import SUITES, validate, validate_suites

    if processes is not None and live:
        raise RidgelineError("--processes shares rows: leave out --live, which measures alone")
    if processes is not None and processes < 1:
        raise RidgelineError(f"--processes must be at least 1, found {processes}")
    if quantity is not None and only is None:
        raise RidgelineError("--quantity is of one row: say which by --only")
    if software is not None and (suite is None or live):
        raise RidgelineError("--software is for the rows of one suite: say which")
    if only is not None and (suite is None or live):
        raise RidgelineError(f"say which suite the row is of (one of: {', '.join(SUITES)})")
    if live:
        if suite is not None or data is not None:
            raise RidgelineError("--live measures its own rows: leave out the suite and --data")
        made = [_live(backend, calibration, device, seconds, quick)]
        suite = made[0].suite
    elif (calibration, backend, device, seconds, quick) != (None, None, "cpu", 30.0, False):
        raise RidgelineError(
            "--calibration, --backend, --device, --seconds and --quick go with --live"
        )
    elif suite is None and data is not None:
        raise RidgelineError(f"say which suite the file is for (one of: {', '.join(SUITES)})")
    elif suite is None:
        made = validate_suites(list(SUITES), processes or os.cpu_count() or 1)
    else:
        stack = one_stack(software)
        made = [validate(suite, data, processes or os.cpu_count() or 1, only, stack)]
        if quantity is not None:
            _print_quantity(made[0], quantity, json=json)
            return
    if plot is not None:
        from ridgeline.report.figures.result import save
        from ridgeline.study.validate.residuals import residuals

        save(residuals(made), plot)
    if json:
        answers = [one.to_dict(rows=rows) for one in made]
        print_json(answers[0] if suite is not None else {"suites": answers})
        return
    _print_summaries(made)
    for one in made:
        if rows:
            _print_rows(one)
        if commands:
            _print_commands(one)
        _print_skipped(one)
    if plot is not None:
        console().print(f"wrote {plot}", markup=False, soft_wrap=True)


def _print_quantity(made: Validation, quantity: str, *, json: bool) -> None:
    """Print one number of the only row."""
    if made.skipped:
        raise RidgelineError(f"{made.skipped[0].id} is skipped: {made.skipped[0].reason}")
    (outcome,) = made.outcomes
    value = getattr(outcome, quantity)
    print_value(quantity, value, json=json)


def _live(
    backend: str | None, calibration: str | None, device: str, seconds: float, quick: bool
) -> Validation:
    from ridgeline.cli.calibrate_ import said
    from ridgeline.study.live import Check, live

    return live(
        Check(
            backend=backend,
            calibration=calibration,
            device=device,
            seconds=seconds,
            quick=quick,
        ),
        said,
    )


def _print_summaries(made: list[Validation]) -> None:
    from ridgeline.report.tables import plain_table

    table = plain_table(
        {"suite": "left", "predictor": "left", "rows": "right", "skipped": "right",
         "median": "right", "mean": "right", "in 25 %": "right",
         "bias": "right", "rank": "right", "covered": "right", "left out": "right"}
    )  # fmt: skip
    for one in made:
        table.add_row(one.suite, "ridgeline", *_figures(one.summary))
        for name, summary in one.by_quantity.items():
            table.add_row("", f"  {name}", *_figures(summary))
        for name, summary in one.by_table.items():
            table.add_row("", f"  {name}", *_figures(summary))
        for name, summary in one.trivial.items():
            table.add_row("", name, *_figures(summary))
    screen = console()
    screen.print(table, markup=False)
    if len(made) == 1:
        _print_parts(made[0])
    screen.print("errors are weighted by group: machine, format, kind of work and source")
    for one in made:
        if one.above_limit is not None:
            above, rows = one.above_limit
            screen.print(f"{one.suite}: {above} of {rows} predictions exceed the board's limit")
        if one.verdicts is not None:
            right, rows = one.verdicts
            screen.print(f"{one.suite}: whether a step fits is right in {right} of {rows} rows")
    screen.print(
        "covered: share of measurements inside the range of 90 % that ridgeline states; left out: "
        "if their device had not been measured"
    )


def _print_parts(one: Validation) -> None:
    """Print the errors by device, format and kind of work, and those that others state."""
    from ridgeline.report.tables import plain_table

    if one.by_device:
        table = plain_table(
            {"by": "left", "": "left", "rows": "right", "median": "right", "mean": "right",
             "in 25 %": "right", "bias": "right"}
        )  # fmt: skip
        parts = {"device": one.by_device, "format": one.by_format, "kind": one.by_kind}
        for what, summaries in parts.items():
            for name, summary in summaries.items():
                rows, _, *figures = _figures(summary)
                table.add_row(what, name, rows, *figures[:4])
        console().print(table, markup=False)
    for name, stated in one.published.items():
        console().print(
            f"{name}: {stated['mean_abs_error']:.1%} stated, ridgeline on these "
            f"{stated['n']:.0f} rows {stated['ridgeline_mean_abs_error']:.1%} (means over rows)",
            markup=False,
        )


def _figures(summary: Summary) -> list[str]:
    def share(value: float | None, sign: str = "") -> str:
        return "" if value is None else f"{value:{sign}.1%}"

    rank = summary.rank_correlation
    return [
        str(summary.n),
        str(summary.skipped),
        share(summary.median_abs_error),
        share(summary.mean_abs_error),
        share(summary.within_25pct),
        share(summary.bias, "+"),
        "" if rank is None else f"{rank:.2f}",
        share(summary.coverage),
        share(summary.coverage_left_out),
    ]


def _print_rows(one: Validation) -> None:
    from rich.text import Text

    from ridgeline.report.tables import plain_table

    table = plain_table(
        {"row": "left", "configuration, and source": "left", "quantity": "left",
         "measured": "right", "predicted": "right", "error": "right"}
    )  # fmt: skip
    for outcome in one.outcomes:
        table.add_row(
            outcome.id,
            Text.assemble(
                _COMMA.sub(", ", outcome.configuration),
                *("\n", (outcome.source, "dim")),
                *("\n", (outcome.command, "dim")),
            ),
            outcome.quantity,
            f"{outcome.measured:.4g}",
            f"{outcome.predicted:.4g}",
            f"{outcome.error:+.1%}",
        )
    console().print(table, markup=False)


def _print_commands(one: Validation) -> None:
    for outcome in one.outcomes:
        words = f"# {outcome.id}\n{outcome.command}"
        console().print(words, markup=False, soft_wrap=True)


def _print_skipped(one: Validation) -> None:
    reasons: dict[str, Any] = one.reasons
    for reason, count in reasons.items():
        console().print(
            f"{one.suite}: {count} row{'s' * (count > 1)} skipped: {reason}",
            markup=False,
            soft_wrap=True,
        )
