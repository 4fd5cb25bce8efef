"""Lengths of prompts and outputs: fixed, drawn of a distribution, or read of a trace."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ridgeline.errors import ConfigError, RidgelineError, nearest
from ridgeline.study.csv_file import read_csv

MOST_TOKENS = 2**24
_MAX_BYTES = 2**28
_FIELD = "--lengths"
TRACE_COLUMNS = ("prompt", "output")
ARRIVAL = "arrival_s"


@dataclass(frozen=True, slots=True)
class GenerationRequest:
    """A sequence that is to be generated.

    Attributes
    ----------
    prompt, output
        Tokens that are given, and that are generated; at least one each.
    arrival_s
        When it arrives.
    """

    prompt: int
    output: int
    arrival_s: float = 0.0


@dataclass(frozen=True, slots=True)
class LengthDistribution:
    """Tokens of a prompt or an output.

    Attributes
    ----------
    kind
        fixed (`first` tokens), uniform (from `first` to `second`, both included), or lognormal (of
        the median `first`, where `second` is the standard deviation of the logarithm).
    most
        Longer draws are cut to it; 0: none.
    """

    kind: str
    first: float
    second: float = 0.0
    most: int = 0

    def draw(self, count: int, rng: np.random.Generator) -> list[int]:
        """Draw lengths of at least one token."""
        match self.kind:
            case "fixed":
                drawn = np.full(count, self.first)
            case "uniform":
                drawn = rng.integers(int(self.first), int(self.second) + 1, count)
            case _:
                drawn = np.rint(self.first * np.exp(self.second * rng.standard_normal(count)))
        return [int(x) for x in np.clip(drawn, 1, self.most or MOST_TOKENS)]

    @property
    def mean(self) -> float:
        """Expected length, without the cut."""
        match self.kind:
            case "fixed":
                return self.first
            case "uniform":
                return (self.first + self.second) / 2
            case _:
                return self.first * math.exp(self.second**2 / 2)


@dataclass(frozen=True, slots=True)
class RequestLengths:
    """Where the lengths of requests come from.

    Attributes
    ----------
    prompt, output
        Distributions; of a trace None.
    trace
        Requests that a file lists, in its order.
    text
        What the user said.
    """

    prompt: LengthDistribution | None
    output: LengthDistribution | None
    trace: tuple[GenerationRequest, ...] = ()
    text: str = ""

    def requests(
        self, count: int | None, *, rate: float | None, samples: int, seed: int
    ) -> list[GenerationRequest]:
        """Return requests in the order of their arrival; the same for the same seed.

        Parameters
        ----------
        count
            Prompts; of a trace its first ones, by default all.
        rate
            Requests that arrive in a second, with exponential gaps (Poisson); None: all at once, or
            when the trace says.
        samples
            Outputs of each prompt, which all are prefilled.
        """
        rng = np.random.default_rng(seed)
        if self.prompt is None or self.output is None:
            rows = list(self.trace if count is None else self.trace[:count])
            if count is not None and count > len(rows):
                raise ConfigError(f"{count} requests of a trace of {len(rows)}", field="--requests")
            prompts = [(row.prompt, [row.output] * samples, row.arrival_s) for row in rows]
        else:
            number = count or 1
            given = self.prompt.draw(number, rng)
            made = self.output.draw(number * samples, rng)
            prompts = [
                (tokens, made[i * samples : (i + 1) * samples], 0.0)
                for i, tokens in enumerate(given)
            ]
        if rate is not None:
            times = np.cumsum(rng.exponential(1.0 / rate, len(prompts))).tolist()
            prompts = [(p, outs, at) for (p, outs, _), at in zip(prompts, times, strict=True)]
        found = [GenerationRequest(p, out, at) for p, outs, at in prompts for out in outs]
        return sorted(found, key=lambda request: request.arrival_s)


def parse_lengths(text: str) -> RequestLengths:
    """Read ``PROMPT/OUTPUT`` or the name of a trace.

    Each side is a number of tokens, ``uniform:LOW:HIGH`` or ``lognormal:MEDIAN:SIGMA``, the latter
    perhaps with ``:MOST``. A trace is a CSV file with the columns prompt and output, perhaps
    arrival_s.

    Raises
    ------
    ConfigError
        With the field, what was found and what is allowed.
    """
    if text.endswith((".csv", ".csv.gz")) or Path(text).is_file():
        return RequestLengths(None, None, _read_trace(text), text)
    sides = text.split("/")
    if len(sides) != 2:
        raise ConfigError(
            f"lengths are PROMPT/OUTPUT, such as 512/128 or lognormal:512:0.5/lognormal:1024:1, or"
            f" a CSV file; found {text!r}",
            field=_FIELD,
        )
    return RequestLengths(_distribution(sides[0]), _distribution(sides[1]), (), text)


def _distribution(text: str) -> LengthDistribution:
    words = text.strip().split(":")
    if len(words) == 1:
        return LengthDistribution("fixed", _tokens(words[0]))
    read = _KINDS.get(words[0])
    if read is None:
        raise ConfigError(
            f"no distribution of lengths is called {words[0]!r}{nearest(words[0], _KINDS)} (known:"
            f" a number, {', '.join(_KINDS)})",
            field=_FIELD,
        )
    return read(words[1:], text)


def _uniform(words: list[str], text: str) -> LengthDistribution:
    if len(words) != 2 or _tokens(words[0]) > _tokens(words[1]):
        raise ConfigError(f"uniform:LOW:HIGH, LOW at most HIGH; found {text!r}", field=_FIELD)
    return LengthDistribution("uniform", _tokens(words[0]), _tokens(words[1]))


def _lognormal(words: list[str], text: str) -> LengthDistribution:
    if len(words) not in (2, 3):
        raise ConfigError(f"lognormal:MEDIAN:SIGMA or :MOST; found {text!r}", field=_FIELD)
    try:
        sigma = float(words[1])
    except ValueError:
        sigma = math.nan
    if not 0 <= sigma <= 5:
        raise ConfigError(f"SIGMA is a number from 0 to 5; found {words[1]!r}", field=_FIELD)
    most = _tokens(words[2]) if len(words) == 3 else 0
    return LengthDistribution("lognormal", _tokens(words[0]), sigma, most)


_KINDS: dict[str, Callable[[list[str], str], LengthDistribution]] = {
    "uniform": _uniform,
    "lognormal": _lognormal,
}


def _tokens(text: str) -> int:
    if not text.strip().isdigit() or not 1 <= int(text) <= MOST_TOKENS:
        raise ConfigError(
            f"a length is a whole number of tokens from 1 to {MOST_TOKENS}; found {text!r}",
            field=_FIELD,
        )
    return int(text)


def _read_trace(path: str) -> tuple[GenerationRequest, ...]:
    rows = list(read_csv(path, _MAX_BYTES))
    if not rows:
        raise ConfigError("no requests", file=path)
    known = {*TRACE_COLUMNS, ARRIVAL}
    columns = rows[0][1].keys()
    for name in TRACE_COLUMNS:
        if name not in columns:
            near = next((nearest(found, known) for found in columns if found not in known), "")
            raise ConfigError(f"no column {name!r}{near}", file=path, line=1)
    if unknown := [name for name in columns if name not in known]:
        raise ConfigError(
            f"unknown column {unknown[0]!r}{nearest(unknown[0], known)} (allowed:"
            f" {', '.join(sorted(known))})",
            file=path,
            line=1,
        )
    found = []
    for line, row in rows:
        try:
            prompt, output = (_tokens(row[name]) for name in TRACE_COLUMNS)
            arrival_s = float(row.get(ARRIVAL) or 0.0)
            if not 0 <= arrival_s < math.inf:
                raise ConfigError(f"{ARRIVAL} is a time from 0; found {row[ARRIVAL]!r}")
        except (ConfigError, ValueError) as error:
            message = error.message if isinstance(error, RidgelineError) else str(error)
            raise ConfigError(message, file=path, line=line) from error
        found.append(GenerationRequest(prompt, output, arrival_s))
    return tuple(found)
