"""``ridgeline import-rows``: a table of measurements in its source's words, as normalised rows."""

from __future__ import annotations

from pathlib import Path

from ridgeline.cli.output import console


def import_rows_(file: str, *, suite: str | None = None, out: str | None = None) -> None:
    """Write measured rows by the names of the catalogue, and list all that was inferred.

    Parameters
    ----------
    file
        A CSV file: names and columns as people write them.
    suite
        What was measured, as ``ridgeline validate`` has it; by default what the columns tell.
    out
        The file to write; by default beside FILE, with "-normalised" behind its name.
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
    screen = console()
    for row in made:
        for words in filter(None, (row.text("skip"), *row.text("inferred").split("; "))):
            mark = "skipped: " if words == row.text("skip") else "inferred: "
            screen.print(f"{row.id}: {mark}{words}", markup=False, soft_wrap=True)
    named = sum(not row.text("skip") for row in made)
    words = f"wrote {path}: {named} of {len(made)} rows can be simulated (validate {suite})"
    screen.print(words, markup=False, soft_wrap=True)
