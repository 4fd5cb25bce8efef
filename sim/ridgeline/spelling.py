"""Spellings of names: which of the known names a person means who writes it otherwise.

Case, punctuation, vendors and the order of words do not matter: ``DGX-H100``, ``dgx h100`` and
``NVIDIA DGX_H100`` are one name. A decimal point does: 1.3B is not 13B.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import cached_property

_VENDORS = re.compile(
    r"\b(nvidia|tesla|geforce|quadro|amd|instinct|google|cloud|intel|habana|graphcore|aws)\b"
)
_SQUEEZED = re.compile(r"(?<!\d)\.|\.(?!\d)|[^a-z0-9.]")
_WORD = re.compile(r"(?:[a-z0-9]|(?<=\d)\.(?=\d))+")
_TOKEN = re.compile(r"[a-z]+|\d+(?:\.\d+)?")


def squeezed(name: str) -> str:
    """Leave out case, punctuation but that of decimals, and vendors."""
    return _SQUEEZED.sub("", _without_vendor(name))


def sorted_words(name: str) -> str:
    """Put the words of a name in order, without vendors."""
    return " ".join(sorted(re.findall(r"[a-z0-9]+", _without_vendor(name))))


def _without_vendor(name: str) -> str:
    text = name.lower()
    return _VENDORS.sub("", text.replace("_", " ")) if "_" in text else _VENDORS.sub("", text)


class Spellings:
    """Names by all that they are called.

    Parameters
    ----------
    called
        Pairs of a spelling and the name that it means. Where two equal spellings mean two names,
        the last counts.
    """

    def __init__(self, called: Iterable[tuple[str, str]]) -> None:
        self._called = tuple(called)

    @cached_property
    def _keys(self) -> dict[str, str]:
        without_points: dict[str, set[str]] = {}
        for spelling, name in self._called:
            without_points.setdefault(squeezed(spelling).replace(".", ""), set()).add(name)
        keys = {key: min(meant) for key, meant in without_points.items() if len(meant) == 1}
        keys |= {sorted_words(spelling): name for spelling, name in self._called}
        keys |= {squeezed(spelling): name for spelling, name in self._called}
        keys.pop("", None)
        return keys

    def find(self, *spelled: str) -> str | None:
        """Return the name that the first known one of these means, or None."""
        keys = (key for each in spelled for key in (sorted_words(each), squeezed(each)))
        return next((self._keys[key] for key in keys if key in self._keys), None)

    def holding(self, spelled: str) -> list[str]:
        """Return all names with each word of this one in them, sorted.

        ``llama 70b`` is in llama2-70b and in llama3-70b; ``llama 0b`` in neither, since a word is
        found whole or not at all.
        """
        words = [_tokens(word) for word in _WORD.findall(_without_vendor(spelled))]
        if not words or len(squeezed(spelled)) < _SHORTEST:
            return []
        found = {name for called, name in self._called if _holds(_tokens(called.lower()), words)}
        return sorted(found)

    def beginning(self, spelled: str) -> list[str]:
        """Return all names that begin with these letters, sorted: mi300 is of mi300a and mi300x."""
        start = squeezed(spelled)
        if len(start) < _SHORTEST:
            return []
        return sorted({name for called, name in self._called if squeezed(called).startswith(start)})


_SHORTEST = 2
"""Letters of what may stand for a part of a name."""


def _tokens(text: str) -> list[str]:
    return _TOKEN.findall(text)


def _holds(tokens: list[str], words: list[list[str]]) -> bool:
    """Tell whether the tokens of each word stand in a name one after the other."""
    return all(
        any(tokens[at : at + len(word)] == word for at in range(len(tokens) - len(word) + 1))
        for word in words
    )
