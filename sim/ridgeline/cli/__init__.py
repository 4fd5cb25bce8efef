"""The command line: ``ridgeline VERB``. One file per verb; nothing heavy is imported for help."""

from __future__ import annotations

import codecs
import gc
import io
import os
import sys
import warnings
from collections.abc import Sequence
from contextlib import suppress

ERROR_STATUS = 2
INTERRUPTED_STATUS = 128 + 2  # as shells say that SIGINT, or SIGPIPE, ended a command
BROKEN_PIPE_STATUS = 128 + 13
GARBAGE_THRESHOLD = 50_000  # imports make many lasting objects, for which collecting is a waste


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line and exit with its status."""
    gc.set_threshold(GARBAGE_THRESHOLD)
    _write_every_letter()
    try:
        status = execute(sys.argv[1:] if arguments is None else arguments)
    except KeyboardInterrupt:
        print("ridgeline: interrupted", file=sys.stderr)
        status = INTERRUPTED_STATUS
    sys.exit(status)


def _write_every_letter() -> None:
    """Write ``?`` for a letter that the encoding of a terminal or pipe lacks, and do not fail.

    UTF-8 has all letters; ASCII in the locale C and the code pages of Windows have not.
    """

    def substitute(error: UnicodeError) -> tuple[str | bytes, int]:
        assert isinstance(error, UnicodeEncodeError)
        made = bytearray()
        for letter in error.object[error.start : error.end]:
            # A byte of a file name that is not text goes out as it came in.
            byte = ord(letter) - 0xDC00
            made.append(byte if 0x80 <= byte <= 0xFF else ord("?"))
        return bytes(made), error.end

    codecs.register_error("ridgeline", substitute)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # not: closed, or replaced by a notebook's
            stream.reconfigure(errors="ridgeline")


def execute(arguments: Sequence[str]) -> int:
    """Run one command.

    Returns
    -------
    int
        0, or the verb's own status, or 2 after a mistake of the user, which is one message on
        standard error and no traceback, or 141 after a reader that did not read to the end.
    """
    with warnings.catch_warnings():
        return _execute(arguments)


def _note(text: str, told: set[str]) -> None:
    """Say something on standard error, once, unless nothing is to be said beside the answer."""
    from ridgeline.verbosity import is_quiet

    if text not in told and not is_quiet():
        told.add(text)
        print(f"ridgeline: note: {text}", file=sys.stderr)


def _tell_renamed(told: set[str]) -> None:
    """Say on standard error what a field of a plan is called now."""
    show = warnings.showwarning

    def tell(message: Warning | str, category: type[Warning], *where: object) -> None:
        if category is not FutureWarning:
            show(message, category, *where)  # type: ignore[arg-type]
        else:
            _note(str(message), told)

    warnings.filterwarnings("always", r"plan\.\w+ is now ", FutureWarning)
    warnings.showwarning = tell  # type: ignore[assignment]


def _execute(arguments: Sequence[str]) -> int:
    from cyclopts import CycloptsError

    from ridgeline import catalog, plugins
    from ridgeline.cli.app import app
    from ridgeline.cli.everywhere import everywhere, with_files_read
    from ridgeline.errors import RidgelineError
    from ridgeline.verbosity import saying

    if sys.stdout is None:  # closed by the caller (>&-): the answer goes nowhere
        sys.stdout = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115 - as long as we run
    try:
        given = everywhere(arguments)
        told: set[str] = set()
        _tell_renamed(told)
        with (
            saying(given.verbosity),
            plugins.named(given.plugins),
            catalog.telling(lambda name, found: _note(f"{name} is {found}", told)),
            with_files_read(),
        ):
            status = app(given.words, exit_on_error=False, print_error=False)
            sys.stdout.flush()
    except (CycloptsError, RidgelineError) as error:
        message = " ".join(str(error).split("\n"))
        if isinstance(error, CycloptsError):
            message += _negative_value(arguments)
        print(f"ridgeline: {message}", file=sys.stderr)
        return ERROR_STATUS
    except UnicodeEncodeError as error:  # of a path, see `_write_every_letter`
        said = f"{error.object!a} cannot be written in {error.encoding}, the encoding in use"
        print(f"ridgeline: {said}; PYTHONUTF8=1 in the environment makes it UTF-8", file=sys.stderr)
        return ERROR_STATUS
    except MemoryError:
        print("ridgeline: there is not enough memory for this", file=sys.stderr)
        return ERROR_STATUS
    except BrokenPipeError:  # the reader, `head` say, has closed the pipe
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return BROKEN_PIPE_STATUS
    except OSError as error:  # files explain themselves; this is standard output, full or closed
        print(f"ridgeline: cannot write the answer: {error.strerror}", file=sys.stderr)
        with suppress(OSError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return ERROR_STATUS
    return int(status or 0)


def _negative_value(arguments: Sequence[str]) -> str:
    """Say that a value such as -1MB was read as an option, where one was given."""
    value = next((word for word in arguments if word[:1] == "-" and word[1:2].isdigit()), None)
    if value is None:
        return ""
    return f" ({value!r} begins with '-' and was read as an option; --option={value} is a value)"
