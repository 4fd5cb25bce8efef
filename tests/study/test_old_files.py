"""Files that an earlier ridgeline wrote are read, or refused for a reason that says what to do."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ridgeline.cli import execute
from ridgeline.report.figures.embedded import RECORD, VERSION
from ridgeline.report.result import RESULT_SCHEMA
from ridgeline.study.verify import verify

OLD = Path(__file__).parents[1] / "data" / "result_0_1_0.json"
"""`ridgeline run lenet5 v100-sxm2-16gb --batch 32 --json` of 28 November 2026, without a schema."""


def test_a_result_of_before_schemas_is_read() -> None:
    """Its numbers may have changed since then, which is what `verify` tells."""
    assert "schema" not in json.loads(OLD.read_text("utf-8"))
    found = verify(OLD)
    assert found.verdict in {"equal", "differs"} or "no longer" in found.reason, found.reason
    assert execute(["lint", str(OLD)]) in {0, 1}


@pytest.mark.parametrize("schema", [RESULT_SCHEMA + 1, 0, -1, "1", True, None, [1], 10**200])
@pytest.mark.parametrize("verb", ["whatif", "compare"])
def test_a_schema_that_is_not_known_is_refused(
    verb: str, schema: object, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "later.json"
    file.write_text(json.dumps({"schema": schema, **json.loads(OLD.read_text("utf-8"))}), "utf-8")
    words = {"whatif": [str(file), "--scale", "hbm.bandwidth=2x"], "compare": [str(file)] * 2}[verb]
    assert execute([verb, *words]) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert str(file) in said
    assert f"known: 1 to {RESULT_SCHEMA}" in said
    assert len(said) < 400


def test_a_later_result_is_not_repeated(tmp_path: Path) -> None:
    file = tmp_path / "later.json"
    text = json.dumps({"schema": RESULT_SCHEMA + 1, **json.loads(OLD.read_text("utf-8"))})
    file.write_text(text, "utf-8")
    found = verify(file)
    assert found.verdict == "cannot be repeated"
    assert "a later ridgeline wrote it" in found.reason


def test_the_record_of_a_later_figure_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "later.svg"
    record = json.dumps({RECORD: VERSION + 1, "axes": []}).replace('"', "&quot;")
    file.write_text(
        f'<svg xmlns="http://www.w3.org/2000/svg"><desc>{record}</desc></svg>', encoding="utf-8"
    )
    assert execute(["verify", str(file)]) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert f"form {VERSION + 1} of the record is not known" in said
