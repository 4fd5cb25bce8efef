"""``ridgeline lint``: which of the known ways to mislead a file uses."""

from __future__ import annotations

from typing import Annotated

from cyclopts import Parameter

from ridgeline.cli.output import console, print_json

REFUSED_STATUS = 1


def lint_(
    *files: str,
    override: Annotated[tuple[str, ...], Parameter(consume_multiple=False)] = (),
    out: str | None = None,
    json: Annotated[bool, Parameter(negative="")] = False,
) -> int:
    """Check results, comparisons, studies, tables and figures against the rules of honesty.

    Each finding names its rule (docs/honesty.md), what breaks it, and what an honest statement
    would say. The exit status is 1 if a statement is refused, and 0 after warnings alone.

    Parameters
    ----------
    files
        Results, comparisons and descriptions (.json, .yaml), studies (.yaml), anyone's tables
        (.csv, .tsv, .parquet), figures (.svg, .png).
    override
        Code of a finding that is known, such as H4: it no longer refuses. Repeat it for more, or
        join codes by commas.
    out
        With --override and one figure: file for a copy that is stamped with the overridden rules.
    json
        Print the findings as JSON.
    """
    from ridgeline.errors import ConfigError
    from ridgeline.study.lint import lint

    if not files:
        raise ConfigError("name at least one file", field="lint")
    if out is not None and (len(files) != 1 or not override):
        raise ConfigError("needs --override, and one figure", field="--out")
    reports = [lint(file, override=override) for file in files]
    if out is not None:
        from ridgeline.report.honesty.stamping import stamp_figure

        if not reports[0].stamp:
            raise ConfigError("none of the overridden rules is broken", field="--override")
        stamp_figure(files[0], out, reports[0].stamp)
    if json:
        print_json([report.to_dict() for report in reports])
    else:
        screen = console()
        for report in reports:
            screen.print(str(report), soft_wrap=True, markup=False)
        if out is not None:
            screen.print(f"wrote {out}", soft_wrap=True, markup=False)
    return REFUSED_STATUS if any(report.refused for report in reports) else 0
