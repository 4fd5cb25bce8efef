"""``ridgeline demo``: the first example, with its figures."""

from __future__ import annotations

import shlex
import sys
from typing import Annotated

from cyclopts import Parameter

COMMAND = "run resnet50 dgx1-v100 --plan data=8 --batch 2048 --precision fp16-mixed"


def demo_(*, out: str = "out", json: Annotated[bool, Parameter(negative="")] = False) -> int:
    """Run the first example of the README: ResNet-50 on a DGX-1 with eight V100s.

    It needs nothing but the installation: no file and no network.

    Parameters
    ----------
    out
        Folder for the figures, the timeline, the ledger and the result.
    json
        Print the result as JSON.
    """
    from ridgeline.cli.app import app

    words = [*shlex.split(COMMAND), "--out", out]
    if json:
        words.append("--json")
    else:
        sys.stdout.write(f"$ ridgeline {shlex.join(words)}\n\n")
    return int(app(words, exit_on_error=False, print_error=False) or 0)
