"""``ridgeline compare``: steps by every normalisation, with what may be said of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from ridgeline.cli.lint_ import REFUSED_STATUS
from ridgeline.cli.output import console, print_json, rounded

if TYPE_CHECKING:
    from ridgeline.study.compare import Comparison


def compare_(
    *sides: str,
    claim: str = "",
    epochs: str = "",
    study: str | None = None,
    override: Annotated[tuple[str, ...], Parameter(consume_multiple=False)] = (),
    out: str | None = None,
    json: Annotated[bool, Parameter(negative="")] = False,
) -> int:
    """Compare steps by every normalisation, with the range of each ratio and the rules of honesty.

    The first side is the baseline. The exit status is 1 if the rules refuse the comparison.

    Parameters
    ----------
    sides
        Each a result (JSON of ``ridgeline run --json``, simulated again), a row of a sweep
        (rows.csv:3), a point of a study (study.yaml:3), or in quotes what follows ``ridgeline
        run``: "resnet50 dgx1-v100 --plan data=8 --batch 2048".
    claim
        Words that go with the comparison; they are checked with it.
    epochs
        Epochs of each side to the same accuracy, where they are known, with commas between: 90,95.
    study
        Study file that rows of a table come from: they are simulated again, and have a range.
    override
        Code of a rule that is known to be broken, such as H4: it no longer refuses, and the figure
        says so. Repeat it for more.
    out
        File for a figure: .png, .svg or .pdf.
    json
        Print the comparison as JSON.
    """
    from ridgeline.report.files import check_writable
    from ridgeline.study.compare import compare
    from ridgeline.study.lint import lint

    if out is not None:
        check_writable(out)
    found = compare(*sides, claim=claim, epochs=_numbers(epochs), study=study)
    report = lint(found.document(), override=override)
    if out is not None and not report.refused:
        from ridgeline.report.figures.result import save

        save(found.plot(override=override), out)
    if json:
        print_json(found.to_dict())
    else:
        _print(found)
        screen = console()
        for finding in report.findings:
            graver = "overridden" if finding.overridden else finding.severity
            text = f"{finding.code} {graver}: {finding.title}: {finding.found}; say instead:"
            screen.print(f"{text} {finding.say}", soft_wrap=True, markup=False)
        if out is not None:
            codes = ", ".join(f.code for f in report.findings if f.severity == "refuse")
            screen.print(
                f"no figure: {codes} refused; --override draws it with a stamp"
                if report.refused
                else f"wrote {out}",
                soft_wrap=True,
                markup=False,
            )
    return REFUSED_STATUS if report.refused else 0


def _numbers(text: str) -> list[float]:
    from ridgeline.errors import ConfigError

    if not text:
        return []
    try:
        return [float(part) for part in text.split(",")]
    except ValueError as error:
        raise ConfigError(
            f"expected numbers joined by commas, such as 90,95, found {text!r}", field="--epochs"
        ) from error


def _print(found: Comparison) -> None:
    from ridgeline.report.tables import plain_table
    from ridgeline.study.compare import NORMALISATIONS

    screen = console()
    for side in found.sides:
        screen.print(f"{side.label}: {side.name}", soft_wrap=True, markup=False)
    columns = dict.fromkeys([side.label for side in found.sides], "right")
    ratios = {f"{r.side}/{r.baseline}": "right" for r in found.ratios}
    table = plain_table({"": "left", **columns, **ratios})
    names = {"step_time_s": "step time (s)", "energy_j": "energy (J)", **NORMALISATIONS}
    for name, words in names.items():
        cells = [_cell(side.numbers[name]) for side in found.sides]
        over = [_cell(r.values.get(name)) if name in NORMALISATIONS else "" for r in found.ratios]
        table.add_row(words, *cells, *over)
    screen.print(table)
    for ratio in found.ratios:
        name = f"{ratio.side}/{ratio.baseline}"
        if isinstance(ratio.range, str):
            screen.print(f"{name}: {ratio.range}", soft_wrap=True, markup=False)
        else:
            low, high = ratio.range.throughput
            wide = ratio.range.independent
            screen.print(
                f"{name}: samples/s 5 to 95 %: {low:.3g} to {high:.3g}, both under the same draws"
                f" (shared: {ratio.range.shared}; error of the model {ratio.range.model_error});"
                f" {wide[0]:.3g} to {wide[1]:.3g} if nothing were shared",
                soft_wrap=True,
                markup=False,
            )
        if ratio.scaling != "none":
            screen.print(f"{name}: scaling: {ratio.scaling}", soft_wrap=True, markup=False)
        if ratio.software:
            screen.print(f"{name}: {ratio.software}", soft_wrap=True, markup=False)
        screen.print(f"{name}: {ratio.accuracy}", soft_wrap=True, markup=False)
        if ratio.at_equal_accuracy is not None:
            text = f"{name}: time to the same accuracy {ratio.at_equal_accuracy:.4g} times as fast"
            screen.print(text, soft_wrap=True, markup=False)


def _cell(value: float | None) -> str:
    return "not known" if value is None else rounded(value)
