"""``ridgeline import-rows``: a table of measurements in its source's words, as normalised rows."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from ridgeline.cli.output import console, print_json

if TYPE_CHECKING:
    from ridgeline.study.validate.rows import MeasuredRow


def import_rows_(
    file: str, *, suite: str | None = None, out: str | None = None, json: bool = False
) -> None:
    """Write measured rows by the names of the catalogue, and list all that was inferred.

    Parameters
    ----------
    file
        A CSV file: names and columns as people write them.
    suite
        Suite of the rows, as in ``ridgeline validate``; by default inferred from the columns.
    out
        File to write; by default FILE with "-normalised" added to its name.
    json
        Print what was read as JSON.
    """
    from ridgeline.study.csv_file import write_csv
    from ridgeline.study.import_rows import import_table, suite_of
    from ridgeline.study.validate.rows import read_rows

    source = Path(file)
    rows = read_rows(source)
    suite = suite or suite_of(source, rows)
    made = import_table(suite, source)
    path = Path(out) if out else source.with_stem(f"{source.stem}-normalised")
    write_csv(path, [row.values for row in made])
    if json:
        print_json({"suite": suite, "written": str(path), "rows": [_said(row) for row in made]})
        return
    screen = console()
    for row in made:
        said = _said(row)
        notes = [f"skipped: {said['skipped']}"] if said["skipped"] else []
        for note in [*notes, *(f"inferred: {what}" for what in said["inferred"])]:
            screen.print(f"{row.id}: {note}", markup=False, soft_wrap=True)
    named = sum(not row.text("skip") for row in made)
    words = f"wrote {path}: {named} of {len(made)} rows can be simulated (validate {suite})"
    screen.print(words, markup=False, soft_wrap=True)


def _said(row: MeasuredRow) -> dict[str, Any]:
    """Return why a row cannot be simulated, or None, and what was inferred of it."""
    inferred = [what for what in row.text("inferred").split("; ") if what]
    return {"id": row.id, "skipped": row.text("skip") or None, "inferred": inferred}
