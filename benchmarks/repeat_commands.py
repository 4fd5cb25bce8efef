"""Runs the command lines that ``validate --rows --commands`` prints, each in a process of its own.

    python benchmarks/repeat_commands.py [--count N] [--seed N] [--suites SUITE ...]

draws rows at random from all suites, predicts them as ``validate`` does, runs the line that each
prints, and compares to the last digit. It ends with 1 if any differs.
"""

from __future__ import annotations

import argparse
import random
import shlex
import subprocess
import sys
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from ridgeline.study.validate import SUITES, find_suite, shipped
from ridgeline.study.validate.outcome import Outcome
from ridgeline.study.validate.rows import read_rows

PROGRAM = Path(sys.executable).with_name("ridgeline")


def outcomes(seed: int, count: int, suites: list[str]) -> list[tuple[str, Outcome]]:
    """Return the predictions of rows drawn at random, each row as likely as any other."""
    rows = [(suite, row) for suite in suites for row in read_rows(shipped(suite))]
    random.Random(seed).shuffle(rows)
    found: list[tuple[str, Outcome]] = []
    for suite, row in rows:
        made = [o for o in find_suite(suite).predict([row]) if isinstance(o, Outcome)]
        found += [(suite, one) for one in made]
        if len(found) >= count:
            break
    return found[:count]


def repeated(one: Outcome) -> str:
    """Return what the line of a row prints."""
    _, *words = shlex.split(one.command)
    ran = subprocess.run([PROGRAM, *words], capture_output=True, text=True, check=False)
    return ran.stdout.strip() or f"exit {ran.returncode}: {ran.stderr.strip()}"


def main() -> int:
    """Repeat the rows, and print those that differ."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--suites", nargs="+", default=list(SUITES), choices=list(SUITES))
    asked = parser.parse_args()
    drawn = outcomes(asked.seed, asked.count, asked.suites)
    with ThreadPoolExecutor(2) as pool:
        printed = list(pool.map(repeated, [one for _, one in drawn]))
    same: Counter[str] = Counter()
    for (suite, one), text in zip(drawn, printed, strict=True):
        same[suite] += text == repr(one.predicted)
        if text != repr(one.predicted):
            print(
                f"{suite} {one.id}: {one.predicted!r} predicted, {text} printed by\n{one.command}"
            )
    every = Counter(suite for suite, _ in drawn)
    print(", ".join(f"{suite} {same[suite]} of {every[suite]}" for suite in sorted(every)))
    return 0 if same == every else 1


if __name__ == "__main__":
    sys.exit(main())
