"""Input files as pages, from the classes that read them: fields, units, defaults, JSON Schema."""

from __future__ import annotations

import json
import re

from pydantic import BaseModel

from ridgeline.input_files import INPUT_KINDS, named
from ridgeline.parallel.plan.plan import Plan
from ridgeline.report.json_schemas import schema_of_kind
from ridgeline.report.schema_page import field_tables
from ridgeline.workload.families import FAMILIES

_MORE = {
    "cluster": "fabrics.md",
    "component": "components.md",
    "dataset": "training.md",
    "device": "devices.md",
    "energy-table": "energy.md",
    "jobs": "neighbours.md",
    "model": "extending.md",
    "node": "devices.md",
    "plan": "plans.md",
    "rl-run": "reinforcement-learning.md",
    "run": "training.md",
    "software": "software.md",
    "study": "sweeps.md",
}
"""Page with examples of each kind."""
KINDS = (*INPUT_KINDS, "plan")


def schema_index() -> str:
    """Write the page that lists all kinds of file."""
    rows = [
        f"| [`{kind}`]({kind}.md) | {_first_line(kind)} | [{_MORE[kind]}](../../{_MORE[kind]}) |"
        for kind in KINDS
    ]
    return "\n".join(
        [
            "# Input files",
            "",
            "Every input file is YAML with `kind` and `name`. These tables are made from the"
            " classes that check the files. Quantities are texts with a unit: `900 GB/s`,"
            " `16 GiB`, `2 us`.",
            "",
            "An editor completes and checks a file with the JSON Schema of its kind:"
            " `ridgeline show study-schema --json`, or the file that each page links.",
            "",
            "| kind | what it describes | examples |",
            "|---|---|---|",
            *rows,
            "",
        ]
    )


def schema_page(kind: str) -> str:
    """Write the page of one kind of file."""
    head = [
        f"# Files of kind {kind}",
        f"Examples and explanations: [{_MORE[kind]}](../../{_MORE[kind]}).",
    ]
    if kind == "plan":
        head.append(
            "A plan is `--plan field=value,...`, a YAML file of these fields, or `rl.Plan(...)`."
        )
        return "\n\n".join([*head, _tables(Plan)]) + "\n"
    head.append(f"[{kind}.json]({kind}.json) is the JSON Schema.")
    if kind != "model":
        return "\n\n".join([*head, _tables(named(INPUT_KINDS[kind].schema))]) + "\n"
    known: set[type[BaseModel]] = set()
    families = [
        f"## {name}\n\n`family: {name}`\n\n{_tables(FAMILIES[name], known)}"
        for name in sorted(FAMILIES)
    ]
    head.append(
        "A network is of a family, which decides its fields. Descriptions that several families"
        " share stand once."
    )
    return "\n\n".join([*head, *families]) + "\n"


def schema_files() -> dict[str, str]:
    """Return the JSON Schema of every kind of file, by file name."""
    return {f"{kind}.json": json.dumps(schema_of_kind(kind), indent=1) for kind in INPUT_KINDS}


def _tables(model: type[BaseModel], known: set[type[BaseModel]] | None = None) -> str:
    """Write the tables of a description, generic ones by their plain name and once."""
    text = re.sub(
        r"(\w+)\[Annotated\[.*?\]\](?=\s|,|\)|$)",
        r"\1",
        field_tables(model, known),
        flags=re.MULTILINE,
    )
    tables = dict.fromkeys(f"### {part.strip()}" for part in text.split("### ") if part.strip())
    return "\n\n".join(tables)


def _first_line(kind: str) -> str:
    model = Plan if kind == "plan" else named(INPUT_KINDS[kind].schema)
    return " ".join((model.__doc__ or "").strip().split("\n\n")[0].split())
