"""Launch files of training frameworks: what they say of model, plan, software and machine.

Nothing of a file is executed or imported, and nothing is guessed silently: a setting that is not
understood is listed, a value that is missing is asked for by name.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from ridgeline.errors import ConfigError, nearest
from ridgeline.study.launch.job import LaunchDraft, LaunchJob, Setting
from ridgeline.study.launch.registry import Reader, known_readers
from ridgeline.study.launch.sources import LaunchSource, open_source

__all__ = ["LaunchDraft", "LaunchJob", "Setting", "frameworks", "launch_choices", "read_launch"]


def frameworks() -> list[str]:
    """Return the names of the frameworks whose launch files can be read."""
    return list(known_readers())


def read_launch(
    path: str | Path, *, framework: str | None = None, set_: Mapping[str, str] | None = None
) -> LaunchJob:
    """Read a launch file of a training framework.

    Parameters
    ----------
    framework
        Whose file it is; by default what its content says.
    set_
        Values for what the file leaves open: a variable, or which of several jobs is meant.

    Raises
    ------
    ConfigError
        If the file describes no training step that can be simulated; with the true reason, the
        file and the line.
    """
    source = open_source(path, set_)
    return _reader(source, framework).read(source)


def launch_choices(path: str | Path, *, framework: str | None = None) -> tuple[str, ...]:
    """Return what chooses each of several jobs in a file, as for `set_`; empty for one job.

    ``recipe=NAME`` of a file of recipes, ``launch=2`` of a script that starts several.

    Raises
    ------
    ConfigError
        If the file is not of a known framework.
    """
    source = open_source(path)
    return _reader(source, framework).choices(source)


def _reader(source: LaunchSource, framework: str | None) -> Reader:
    known = known_readers()
    if framework is not None:
        if framework not in known:
            raise ConfigError(
                f"unknown framework {framework!r}{nearest(framework, known)}"
                f" (known: {', '.join(known)})"
            )
        return known[framework]
    sure = {name: each.recognises(source.text, source.suffix) for name, each in known.items()}
    best = max(sure, key=lambda name: sure[name], default="")
    if not best or sure[best] <= 0:
        raise source.error(
            f"not known as a launch file of any framework (known: {', '.join(known)});"
            " name the framework if it is one"
        )
    return known[best]
