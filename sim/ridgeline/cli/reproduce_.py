"""``ridgeline reproduce``: published results computed anew, with their residuals."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from ridgeline.cli.output import console, print_json

if TYPE_CHECKING:
    from ridgeline.study.reproduce import Reproduction, Row


def reproduce_(
    name: str | None = None, *, json: Annotated[bool, Parameter(negative="")] = False
) -> None:
    """Compute a published result anew: predicted, published, residual, with and without fits.

    Parameters
    ----------
    name
        Which one; without it, their list.
    json
        Print the answer as JSON.
    """
    from ridgeline.study.reproduce import REPRODUCTIONS, reproduce

    if name is None:
        _list(REPRODUCTIONS, json)
    elif json:
        print_json(reproduce(name).to_dict())
    else:
        _print(reproduce(name))


def _list(known: dict[str, str], json: bool) -> None:
    from ridgeline.report.summary import plain_table

    if json:
        print_json(known)
        return
    rows = plain_table({"name": "left", "what it is": "left"})
    for name, title in known.items():
        rows.add_row(name, title)
    console().print(rows)


def _print(made: Reproduction) -> None:
    from ridgeline.report.summary import plain_table

    screen = console()
    screen.print(made.title, markup=False)
    screen.print(made.source, soft_wrap=True, markup=False)
    rows = plain_table(
        {"": "left", "published": "right", "predicted": "right", "residual": "right",
         "no fits": "right", " residual": "right", " ": "left"}
    )  # fmt: skip
    group = ""
    for row in made.rows:
        if row.group != group:
            group = row.group
            rows.add_section()
            rows.add_row(group)
        rows.add_row(
            f"  {row.quantity}",
            "-".join(f"{end:.4g}" for end in dict.fromkeys(row.published)),
            f"{row.predicted:.4g}",
            _residual(row.residual, row),
            "" if not row.is_fitted or row.unfitted is None else f"{row.unfitted:.4g}",
            "" if not row.is_fitted else _residual(row.unfitted_residual, row),
            _remark(row),
        )
    screen.print(rows, markup=False)
    kept = [row.is_kept for row in made.rows if row.is_kept is not None]
    if kept:
        screen.print(f"{sum(kept)} of {len(kept)} residuals are within their tolerance")
    for fit in made.fits:
        screen.print(
            f"fitted: {fit.constant} = {fit.value} ({fit.chosen_by})", soft_wrap=True, markup=False
        )
    for note in made.notes:
        screen.print(f"note: {note}", soft_wrap=True, markup=False)


def _residual(residual: float | None, row: Row) -> str:
    if residual is None:
        return ""
    return f"{residual * 100:+.1f} {'pt' if row.points else '%'}"


def _remark(row: Row) -> str:
    remarks = [row.note] if row.note else []
    if row.is_input:
        remarks.append("input")
    if row.is_kept is False:
        remarks.append("beyond tolerance")
    return "; ".join(remarks)
