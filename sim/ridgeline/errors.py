"""The errors that a user may meet; the command line prints them as one message and exits with 2."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class RidgelineError(Exception):
    """Something in the user's input is wrong; the message says what, where and how to mend it."""


class ConfigError(RidgelineError):
    """A file or an option cannot be read as what it should be.

    Parameters
    ----------
    message
        What was found and what is allowed.
    file, line, column
        Where; ``line`` and ``column`` count from 1.
    field
        Dotted path of the offending field.
    """

    def __init__(
        self,
        message: str,
        *,
        file: str | None = None,
        line: int | None = None,
        column: int | None = None,
        field: str | None = None,
    ) -> None:
        self.message, self.file, self.line, self.column, self.field = (
            message,
            file,
            line,
            column,
            field,
        )
        place = ":".join(str(part) for part in (file, line, column) if part is not None)
        super().__init__(": ".join(part for part in (place, field, message) if part))


def nearest(name: str, allowed: Iterable[str]) -> str:
    """Return "; did you mean 'x'?" for the allowed name closest to `name`, or an empty string."""
    close = difflib.get_close_matches(name, list(allowed), n=1, cutoff=0.5)
    return f"; did you mean {close[0]!r}?" if close else ""
