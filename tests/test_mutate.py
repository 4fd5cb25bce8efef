"""Mutation testing tells a bug that tests see from a change that they cannot see."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

import mutate
from thoroughly import further


def test_hand_made_mutants_are_what_is_in_the_package() -> None:
    mutants = list(mutate.hand_made())
    assert len(mutants) >= 7
    for mutant in mutants:
        assert mutant.source != (mutate.ROOT / mutant.path).read_text("utf-8")
        assert all((mutate.ROOT / test).is_file() for test in mutant.tests)


def test_mutants_that_compute_the_same_are_of_lines_of_the_package() -> None:
    for (file, line, becomes), why in mutate.equivalent().items():
        lines = {text.strip() for text in (mutate.ROOT / file).read_text("utf-8").splitlines()}
        assert line in lines, (file, line)
        assert becomes != line
        assert why


def test_the_nearest_tests_come_first() -> None:
    reached = mutate.tests_by_distance()
    files = reached(mutate.PACKAGE / "kernels" / "bsp_gemm.py")
    assert files[0] == "tests/kernels/test_bsp.py"
    assert len(files) > 100


def a_minute_is_an_hour() -> mutate.Mutant:
    """A bug where nothing is compiled."""
    path = "sim/ridgeline/units.py"
    source = (mutate.ROOT / path).read_text("utf-8")
    changed = source.replace("Decimal(60)", "Decimal(3600)")
    assert changed != source
    return mutate.Mutant(path, 1, "a minute is an hour", changed, ("tests/test_units.py",))


@pytest.mark.slow
@pytest.mark.parametrize(
    "change", ["a minute is an hour", *further("the longest part of a cut is")]
)
def test_a_bug_is_killed_and_a_comment_survives(tmp_path: Path, change: str) -> None:
    """The second one is of a module with kernels, whose tests compile for most of their time."""
    known = [a_minute_is_an_hour(), *mutate.hand_made()]
    bug = next(one for one in known if one.change.startswith(change))
    comment = dataclasses.replace(bug, source=(mutate.ROOT / bug.path).read_text("utf-8") + "# !\n")
    checkout = mutate.Checkout(mutate.copied(tmp_path))
    assert checkout.passes(bug.tests)
    assert [checkout.run(mutant) for mutant in (bug, comment)] == ["killed", "survived"]
    path = checkout.root / bug.path
    assert path.read_bytes() == (mutate.ROOT / bug.path).read_bytes()
