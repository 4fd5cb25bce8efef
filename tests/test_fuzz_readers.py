"""Spoiled files are read, or refused in one line: a sample of ``benchmarks/fuzz_readers.py``."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

import fuzz_readers
from ridgeline.errors import ConfigError, RidgelineError


@pytest.fixture(scope="module")
def readers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, fuzz_readers.ReaderUnderTest]:
    return fuzz_readers.readers(tmp_path_factory.mktemp("made"))


def test_a_sample_of_spoiled_files(readers: dict[str, fuzz_readers.ReaderUnderTest]) -> None:
    failed = fuzz_readers.run(8 * len(readers), 11, readers)
    assert not failed, failed


def test_what_the_fuzzer_finds(tmp_path: Path) -> None:
    path = tmp_path / "x.yaml"
    path.write_text("x", "utf-8")

    def raises(error: Exception) -> str | None:
        def read(_: Path) -> None:
            raise error

        return fuzz_readers.failure(read, path)

    assert raises(ConfigError("one line", file="x.yaml")) is None
    assert "KeyError" in (raises(KeyError("a")) or "")
    assert "a message with" in (raises(RidgelineError("two\nlines")) or "")
    assert "letters" in (raises(RidgelineError("many words " * 500)) or "")

    def endless(_: Path) -> None:
        while True:
            pass

    limit, fuzz_readers.LIMIT_S = fuzz_readers.LIMIT_S, 1
    try:
        assert "longer than 1 s" in (fuzz_readers.failure(endless, path) or "")
    finally:
        fuzz_readers.LIMIT_S = limit


def test_the_same_seed_spoils_alike() -> None:
    raw = Path(fuzz_readers.SEEDS / "chakra.json").read_bytes()
    spoiled = [
        [fuzz_readers.spoiled(random.Random(k), raw, [".json"]) for k in range(50)] for _ in "ab"
    ]
    assert spoiled[0] == spoiled[1]
    assert len({*spoiled[0], raw}) > 45


def test_a_message_shows_control_characters_as_escapes_and_cuts_long_words() -> None:
    error = ConfigError(f"found '\x1b[31m\u202e{'9' * 5000}'", file="a.yaml", line=3)
    assert str(error).startswith("a.yaml:3: found '\\x1b[31m\\u202e999")
    assert len(str(error)) < 200
