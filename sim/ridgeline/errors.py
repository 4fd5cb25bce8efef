"""The errors that a user may meet; the command line prints them as one message and exits with 2."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping
from typing import Any

_LONGEST = 60
_LONG_NAME = 200  # letters of a name that is compared with others
_LONG_WORD = re.compile(r"\S{400,}")
_WORD, _ALIKE = 3, 0.8  # letters of what may be a part of a name; share of a slip of the pen


class RidgelineError(Exception):
    """Something in the user's input is wrong; the message says what, where and how to mend it.

    As text it shows control characters of what was found as escapes, and cuts words that nobody
    would read, so that a file cannot write to the terminal.
    """

    def __str__(self) -> str:
        text = _LONG_WORD.sub(lambda word: f"{word[0][:_LONGEST]}...", super().__str__())
        return "".join(c if c.isprintable() or c == "\n" else ascii(c)[1:-1] for c in text)


class CutOffError(RidgelineError):
    """Devices that have to talk have no way to each other."""


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


def nearest(name: str, allowed: Iterable[str], cutoff: float = 0.5) -> str:
    """Return "; did you mean 'x'?" for the allowed name closest to `name`, or an empty string.

    A name that has all of the word in it counts before one that is merely alike: v100-sxm2-16gb and
    not gtx-1080 where v100 was written.
    """
    name = name[:_LONG_NAME]
    names, word = list(allowed), name.lower()
    known = {each.lower(): each for each in reversed(names)}
    holding = [each for each in known if len(word) >= _WORD and word in each]
    holding.sort(key=lambda each: (len(each), each))
    close = (
        [each for each in holding if each.startswith(word)]
        or difflib.get_close_matches(name, names, n=1, cutoff=max(cutoff, _ALIKE))
        or difflib.get_close_matches(word, known, n=1, cutoff=max(cutoff, _ALIKE))
        or holding
        or difflib.get_close_matches(word, known, n=1, cutoff=cutoff)
    )
    return f"; did you mean {known.get(close[0], close[0])!r}?" if close else ""


_SAID = {  # of pydantic's words those that are Python's and not YAML's
    "dict_type": "expected a mapping of fields",
    "tuple_type": "Input should be a valid list",
    "too_short": "expected at least {min_length} of them",
    "too_long": "expected at most {max_length} of them",
    "string_too_short": "expected text of at least {min_length} letters",
}


def said(problem: Mapping[str, Any]) -> str:
    """Say one of pydantic's problems: what a field's type allows, what was found, the nearest."""
    known = _SAID.get(problem["type"])
    allowed = problem["msg"] if known is None else known.format(**problem.get("ctx", {}))
    words: list[str] = []
    if problem["type"] == "union_tag_invalid":
        field, tag = problem["ctx"]["discriminator"].strip("'"), problem["ctx"]["tag"]
        words = problem["ctx"]["expected_tags"].split("'")[1::2]
        near = nearest(str(tag), words) or f" (allowed: {', '.join(words)})"
        return f"unknown {field} {short(tag)}{near}"
    if problem["type"] == "union_tag_not_found":
        field = problem["ctx"]["discriminator"]
        return f"the field {field} is missing, which says what this is"
    if problem["type"] == "literal_error":
        words = [word for word in problem["ctx"]["expected"].split("'")[1::2] if word]
        allowed = f"allowed: {', '.join(words) or problem['ctx']['expected']}"
    return f"{allowed}; found {short(problem['input'])}{nearest(str(problem['input']), words)}"


def short(value: object) -> str:
    """Write a value that was found, cut where it is long."""
    try:
        text = repr(value)
    except ValueError:  # Python writes no number of more than some thousand digits
        return "a number of thousands of digits"
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 3]}..."
