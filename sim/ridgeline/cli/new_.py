"""``ridgeline new``: a description to start from."""

from __future__ import annotations

import sys
from typing import Annotated

from cyclopts import Parameter

from ridgeline.cli.output import print_json

_PLAIN = ("model", "node", "cluster", "study", "run")  # of each, one file to start from


def new_(
    what: str,
    *,
    kind: str | None = None,
    name: str | None = None,
    output: Annotated[str | None, Parameter(name=["--output", "-o"])] = None,
    json: Annotated[bool, Parameter(negative="")] = False,
) -> None:
    """Write a description that runs as it stands, with a comment on every field.

    Its numbers are of the size that such things have and stand for none: replace them, and say in
    `sources` where yours come from. ``ridgeline show KIND-schema`` lists all fields.

    Parameters
    ----------
    what
        What to describe: device, model, node, cluster, study or run.
    kind
        Of a device: systolic, spatial, gpu, bsp, grid, cpu, wafer or chiplet.
    name
        Its name; by default the name of the file, else my-KIND.
    output
        File to write, in place of standard output. It must not exist yet.
    json
        Print the description as JSON, without comments.
    """
    from pathlib import Path

    from ridgeline.config import parse_yaml
    from ridgeline.errors import ConfigError
    from ridgeline.report.files import write_text

    if output is not None and Path(output).exists():
        raise ConfigError("is there already; give another name", file=output)
    if name is None and output is not None:
        name = Path(output).stem
    text = _text(what, kind, name)
    if output is not None:
        write_text(output, text)
    if json:
        print_json(parse_yaml(text, f"template {kind or what}").data)
    elif output is None:
        sys.stdout.write(text)


def _text(what: str, kind: str | None, name: str | None) -> str:
    """Return the description of something, as YAML with a comment on every field."""
    from ridgeline.errors import ConfigError, nearest
    from ridgeline.hardware.templates import DEVICE_KINDS, device_template, template
    from ridgeline.input_files import INPUT_KINDS, named
    from ridgeline.workload.families import FAMILIES

    known = ["device", *_PLAIN]
    if what not in known:
        raise ConfigError(
            f"cannot begin {what!r}{nearest(what, known)} (known: {', '.join(known)})"
        )
    if what == "device":
        if kind is None:
            raise ConfigError(f"a device is of a kind: {', '.join(DEVICE_KINDS)}", field="--kind")
        return device_template(kind, name)
    if kind is not None:
        raise ConfigError(f"a {what} has no kinds, as a device has; found {kind!r}", field="--kind")
    schema = FAMILIES["decoder"] if what == "model" else named(INPUT_KINDS[what].schema)
    return template(what, schema, name)
