"""Follow docs/extending.md in a process of its own: ``follow_page.py PAGE FOLDER``.

Prints as JSON what went wrong in each section, or null. A block under a line with a file name in
backquotes is written to that file. Of a console block, every line after ``$ `` is run and must end
with 0, and what stands below it must occur in what it prints. Other Python blocks are executed.
Each section has a folder of its own, and all share one process, as plug-ins of one user do.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import shlex
import sys
import traceback
from pathlib import Path

from ridgeline.cli import execute

BLOCK = re.compile(r"(?:^`([\w.-]+)`\n\n)?^```(\w+)\n(.*?)^```$", re.DOTALL | re.MULTILINE)


def sections(text: str) -> dict[str, str]:
    """Return the text of every section that has blocks, by title."""
    parts = re.split(r"^## (.+)$", text, flags=re.MULTILINE)
    found = dict(zip(parts[1::2], parts[2::2], strict=True))
    return {title: body for title, body in found.items() if "```" in body}


def follow(body: str) -> None:
    """Do what a section says, in the working directory."""
    for file, language, code in BLOCK.findall(body):
        if file:
            Path(file).write_text(code, "utf-8")
        elif language == "console":
            for command, said in re.findall(r"^\$ (.*)\n((?:(?!\$ ).*\n)*)", code, re.MULTILINE):
                run(command, said.split("\n"))
        else:
            assert language == "python", f"a {language} block without a file"
            exec(compile(code, "extending.md", "exec"), {})


def run(command: str, said: list[str]) -> None:
    """Run one command, and look for lines in what it prints."""
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed):
        status = execute(shlex.split(command)[1:])
    assert status == 0, f"{command}: {status}\n{printed.getvalue()}"
    for line in filter(None, said):
        assert line in printed.getvalue(), f"{command}: no {line!r} in\n{printed.getvalue()}"


def main(page: str, folder: str) -> None:
    """Print what went wrong in each section, or null, as JSON."""
    outcome: dict[str, str | None] = {}
    for title, body in sections(Path(page).read_text("utf-8")).items():
        here = Path(folder) / re.sub(r"\W", "-", title)
        here.mkdir()
        os.chdir(here)
        try:
            follow(body)
            outcome[title] = None
        except Exception:
            outcome[title] = traceback.format_exc()
    print(json.dumps(outcome))


if __name__ == "__main__":
    main(*sys.argv[1:])
