"""``ridgeline new``: a description to start from."""

from __future__ import annotations

import sys
from typing import Annotated

from cyclopts import Parameter

from ridgeline.cli.output import print_json


def new_(
    what: str,
    *,
    kind: str,
    name: str | None = None,
    output: Annotated[str | None, Parameter(name=["--output", "-o"])] = None,
    json: Annotated[bool, Parameter(negative="")] = False,
) -> None:
    """Write a description that runs as it stands, with a comment on every field.

    Its numbers are of the size that such devices have and stand for no device: replace them, and
    say in `sources` where yours come from. docs/devices.md lists all fields.

    Parameters
    ----------
    what
        What to describe: device.
    kind
        Kind of device: systolic, spatial, gpu, bsp, grid, cpu, wafer or chiplet.
    name
        Name of the new device; by default the name of the file, else my-KIND.
    output
        File to write, in place of standard output. It must not exist yet.
    json
        Print the description as JSON, without comments.
    """
    from pathlib import Path

    from ridgeline.config import parse_yaml
    from ridgeline.errors import ConfigError, nearest
    from ridgeline.hardware.templates import device_template
    from ridgeline.report.files import write_text

    if what != "device":
        raise ConfigError(f"cannot begin {what!r}{nearest(what, ['device'])} (known: device)")
    if output is not None and Path(output).exists():
        raise ConfigError("is there already; give another name", file=output)
    if name is None and output is not None:
        name = Path(output).stem
    text = device_template(kind, name)
    if output is not None:
        write_text(output, text)
    if json:
        print_json(parse_yaml(text, f"template {kind}").data)
    elif output is None:
        sys.stdout.write(text)
