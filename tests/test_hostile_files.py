"""Hostile files: refused in one line that names the file, within a second and little memory."""

from __future__ import annotations

import io
import os
import warnings
from collections.abc import Iterable, Mapping
from pathlib import Path

import pytest

import fuzz_readers
import hostile_files as hostile
from ridgeline.bounded_files import parse_json
from ridgeline.cli import execute
from ridgeline.errors import ConfigError, RidgelineError
from thoroughly import one_in

pytestmark = pytest.mark.skipif(os.name != "posix", reason="pipes, devices and limits of POSIX")


@pytest.fixture(scope="module")
def readers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, fuzz_readers.ReaderUnderTest]:
    found = fuzz_readers.readers(tmp_path_factory.mktemp("made"))
    for reader in found.values():  # what is compiled or imported first is not the file's doing
        reader.read(reader.files[0])
    return found


def suffix_of(path: Path) -> str:
    return "".join(path.suffixes[-2:]) if path.suffix in {".gz", ".et"} else path.suffix


def kinds(readers: Mapping[str, fuzz_readers.ReaderUnderTest]) -> Iterable[tuple[str, str, Path]]:
    """Every reader with each kind of file that it takes, and one of them."""
    for name, reader in readers.items():
        for suffix, path in {suffix_of(path): path for path in reader.files}.items():
            yield name, suffix, path


def refusal(reader: fuzz_readers.ReaderUnderTest, path: Path) -> str:
    """Return what a reader says of a file that it must not take; fail if it says nothing good."""
    with fuzz_readers.limited(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with pytest.raises(RidgelineError) as caught:
            reader.read(path)
    said = str(caught.value)
    assert fuzz_readers.fault_of(said) is None, said
    return said


def check(readers: Mapping[str, fuzz_readers.ReaderUnderTest], name: str, path: Path) -> None:
    """Have a file refused, or at least read without harm where a reader may take anything."""
    if name in LENIENT:
        wrong = fuzz_readers.failure(readers[name].read, path)
        assert wrong is None, f"{name}: {wrong}"
    else:
        refusal(readers[name], path)


@pytest.mark.parametrize("place", hostile.PLACES)
def test_what_is_no_file_of_a_size_is_refused(
    readers: dict[str, fuzz_readers.ReaderUnderTest], place: str, tmp_path: Path
) -> None:
    for name, suffix, _ in kinds(readers):
        path = tmp_path / f"{name}{suffix}"
        hostile.PLACES[place](path)
        assert path.name in refusal(readers[name], path), name


LENIENT = {"lint", "launch"}
"""What states nothing breaks no rule, and a script may run a program of any name."""


@pytest.mark.parametrize("content", hostile.TEXTS)
def test_what_is_of_no_kind_is_refused(
    readers: dict[str, fuzz_readers.ReaderUnderTest], content: str, tmp_path: Path
) -> None:
    for name, suffix, _ in kinds(readers):
        path = tmp_path / f"{name}{suffix}"
        path.write_bytes(hostile.TEXTS[content])
        check(readers, name, path)


def of_suffix(
    readers: Mapping[str, fuzz_readers.ReaderUnderTest], *suffixes: str
) -> list[tuple[str, str, Path]]:
    return [one for one in kinds(readers) if one[1] in suffixes]


@pytest.mark.parametrize("case", hostile.YAML)
def test_yaml(readers: dict[str, fuzz_readers.ReaderUnderTest], case: str, tmp_path: Path) -> None:
    for name, suffix, _ in of_suffix(readers, ".yaml", ".yml"):
        path = tmp_path / f"{name}{suffix}"
        path.write_text(f"kind: device\nname: x\n{hostile.YAML[case]}\n", "utf-8")
        refusal(readers[name], path)


@pytest.mark.parametrize("case", hostile.JSON)
def test_json(readers: dict[str, fuzz_readers.ReaderUnderTest], case: str, tmp_path: Path) -> None:
    for name, suffix, _ in of_suffix(readers, ".json"):
        path = tmp_path / f"{name}{suffix}"
        path.write_text(hostile.JSON[case], "utf-8")
        check(readers, name, path)


@pytest.mark.parametrize("case", hostile.WIDE_JSON)
def test_wide_json(case: str) -> None:
    with fuzz_readers.limited(), pytest.raises(ConfigError, match="more values than"):
        parse_json(hostile.WIDE_JSON[case], "x.json")


@pytest.mark.parametrize("case", one_in(3, hostile.packed(b"{}")))
def test_packed(
    readers: dict[str, fuzz_readers.ReaderUnderTest], case: str, tmp_path: Path
) -> None:
    for name in ("graph", "kineto", "chakra-json", "kernel-table", "rows", "lengths"):
        first = readers[name].files[0]
        path = tmp_path / f"{name}{suffix_of(first)}.gz"
        path.write_bytes(hostile.packed(first.read_bytes())[case])
        refusal(readers[name], path)


@pytest.mark.parametrize("case", one_in(3, hostile.rows("a,b\n1,2\n")))
def test_tables(
    readers: dict[str, fuzz_readers.ReaderUnderTest], case: str, tmp_path: Path
) -> None:
    for name, suffix, good in of_suffix(readers, ".csv"):
        path = tmp_path / f"{name}{suffix}"
        path.write_text(hostile.rows(good.read_text("utf-8"))[case], "utf-8")
        wrong = fuzz_readers.failure(readers[name].read, path)
        assert wrong is None, f"{name}: {wrong}"


@pytest.mark.parametrize("case", hostile.pictures())
def test_pictures(
    readers: dict[str, fuzz_readers.ReaderUnderTest], case: str, tmp_path: Path
) -> None:
    path = tmp_path / "x.png"
    path.write_bytes(hostile.pictures()[case])
    refusal(readers["lint"], path)


@pytest.mark.parametrize("case", hostile.XML)
@pytest.mark.parametrize(("reader", "suffix"), [("fabric", ".xml"), ("collective", ".xml")])
def test_xml(
    readers: dict[str, fuzz_readers.ReaderUnderTest],
    reader: str, suffix: str, case: str, tmp_path: Path,
) -> None:  # fmt: skip
    path = tmp_path / f"x{suffix}"
    path.write_text(hostile.XML[case], "utf-8")
    refusal(readers[reader], path)


@pytest.mark.parametrize("case", hostile.XML)
def test_drawings(
    readers: dict[str, fuzz_readers.ReaderUnderTest], case: str, tmp_path: Path
) -> None:
    path = tmp_path / "x.svg"
    path.write_text(hostile.XML[case], "utf-8")
    wrong = fuzz_readers.failure(readers["lint"].read, path)
    assert wrong is None, wrong


def write_parquet(stream: io.BytesIO, kind: str) -> None:
    polars = pytest.importorskip("polars")
    columns = {
        "good": lambda: [1.0, 2.0],
        "rows": lambda: polars.repeat(1.0, 30_000_000, eager=True),
        "text": lambda: polars.repeat("x" * 100_000, 10_000, eager=True),
        "lists": lambda: [[1], [2, 3]],
    }
    polars.DataFrame({"a": columns[kind]()}).write_parquet(stream)


def test_parquet(
    readers: dict[str, fuzz_readers.ReaderUnderTest],
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
) -> None:
    for case, content in hostile.parquet(write_parquet).items():
        path = tmp_path / "x.parquet"
        path.write_bytes(content)
        assert "x.parquet" in refusal(readers["table"], path), case
    assert capfd.readouterr().err == ""  # the threads of polars say nothing


def test_the_command_line_ends_with_two_and_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "x.yaml"
    path.write_text(f'kind: device\nname: "\\e[31m"\nx: {hostile.MANY}\n', "utf-8")
    assert execute(["show", str(path)]) == 2
    said = capsys.readouterr().err
    assert said == f"ridgeline: {path}:3:4: a number of more than 300 digits\n"


@pytest.mark.parametrize("kind", ["study", "jobs", "rl-run", "run"])
def test_what_has_nothing_to_show_says_which_verb_takes_it(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "x.yaml"
    path.write_text(f"kind: {kind}\nname: x\n", "utf-8")
    assert execute(["show", str(path)]) == 2
