"""Every input file has a kind and a name, one loader reads all, and JSON Schema knows them."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path

import pytest

import ridgeline as rl
from json_schema import mistakes
from ridgeline.cli import execute
from ridgeline.config import Document, read_yaml
from ridgeline.errors import ConfigError
from ridgeline.input_files import INPUT_KINDS, kind_of, kind_of_document, named
from ridgeline.report.json_schemas import schema_of_kind

ROOT = Path(__file__).parents[1]
FILES = [
    *(ROOT / "models").rglob("*.yaml"),
    *(path for path in (ROOT / "hwconfigs").glob("*/*.yaml") if path.parent.name != "templates"),
    *(ROOT / "docs" / "examples").glob("*.yaml"),
    *(ROOT / "docs" / "examples" / "jobs").glob("*.yaml"),
    *(ROOT / "docs" / "examples" / "rl").glob("*.yaml"),
    *(ROOT / "docs" / "examples" / "runs").rglob("*.yaml"),
]


@cache
def shipped() -> dict[Path, Document]:
    return {path: read_yaml(path) for path in sorted(FILES)}


def test_every_file_has_a_kind_and_the_name_of_its_file() -> None:
    assert len(shipped()) > 500
    for path, document in shipped().items():
        assert document.data["kind"] in INPUT_KINDS, path
        if ROOT / "docs" not in path.parents:
            assert document.data["name"] == path.stem, path
        assert isinstance(document.data["name"], str), path


@pytest.mark.parametrize("kind", INPUT_KINDS)
def test_every_file_is_valid_by_its_json_schema(kind: str) -> None:
    schema = schema_of_kind(kind)
    for path, document in shipped().items():
        if document.data["kind"] == kind:
            assert mistakes(schema, document.data, schema) == [], path
            wrong = {**document.data, "no-such-field": 1}
            assert mistakes(schema, wrong, schema), path
            for field in ("kind", "name"):
                bare = {key: of for key, of in document.data.items() if key != field}
                assert mistakes(schema, bare, schema), path


def test_a_model_is_checked_by_its_family() -> None:
    schema = schema_of_kind("model")
    data = dict(shipped()[ROOT / "models" / "mlp.yaml"].data)
    assert mistakes(schema, {**data, "widths": "many"}, schema)
    assert mistakes(schema, {**data, "family": "resnet"}, schema)
    assert mistakes(schema, {**data, "family": "no-family"}, schema)


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("mlp", "Model"), ("tpu-v2", "Device"), ("dgx1-v100", "Node"), ("selene-a100", "Cluster"),
        ("nanogpt", "Stack"), ("horowitz-45nm", "EnergyTable"), ("imagenet", "DataSet"),
        ("docs/examples/hbm.yaml", "DesignStudy"), ("docs/examples/jobs/two-jobs.yaml", "JobFile"),
    ],
)  # fmt: skip
def test_one_loader_reads_any_kind(name: str, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    assert type(rl.load(name)).__name__ == kind


def test_what_is_wrong_with_a_kind_is_said(tmp_path: Path) -> None:
    for text, said in (
        (
            "kind: devise\nname: x\n",
            r"x\.yaml:1:1: kind: expected 'kind: model', .*found 'devise'; did you mean 'device'",
        ),
        ("name: x\n", r"x\.yaml:1:1: the field 'kind' is missing: add the line 'kind: model', "),
    ):
        (tmp_path / "x.yaml").write_text(text)
        with pytest.raises(ConfigError, match=said):
            rl.load(tmp_path / "x.yaml")
    with pytest.raises(ConfigError, match="nothing is called 'resnet5o'; did you mean 'resnet50'"):
        rl.load("resnet5o")


@pytest.mark.parametrize("kind", INPUT_KINDS)
@pytest.mark.parametrize("field", ["kind", "name"])
def test_a_file_without_a_kind_or_a_name_is_told_which_line_to_add(
    kind: str, field: str, tmp_path: Path
) -> None:
    file = next(path for path, of in shipped().items() if of.data["kind"] == kind)
    lines = file.read_text("utf-8").splitlines()
    bare = tmp_path / "mine.yaml"
    bare.write_text("\n".join(line for line in lines if not line.startswith(f"{field}:")), "utf-8")
    added = {"kind": f"kind: {kind}", "name": "name: mine"}[field]
    said = rf"mine\.yaml:\d+:1: the field '{field}' is missing: add .*'{added}'"
    for load in (rl.load, named(INPUT_KINDS[kind].loader)):
        with pytest.raises(ConfigError, match=said):
            load(str(bare))
    bare.write_text(f"{added}\n{bare.read_text('utf-8')}", "utf-8")
    assert kind_of(str(bare)) == kind


def test_the_command_line_prints_schemas(capsys: pytest.CaptureFixture[str]) -> None:
    for kind in INPUT_KINDS:
        assert execute(["show", f"{kind}-schema", "--json"]) == 0
        assert json.loads(capsys.readouterr().out) == json.loads(json.dumps(schema_of_kind(kind)))
    assert execute(["show", "device-schema"]) == 0
    assert execute(["show", "devices-schema"]) == 2
    assert "did you mean 'device'" in capsys.readouterr().err


def test_a_name_in_a_model_file_is_its_name(tmp_path: Path) -> None:
    text = (ROOT / "models" / "mlp.yaml").read_text()
    (tmp_path / "other.yaml").write_text(text.replace("name: mlp", "name: mine"))
    assert rl.load_model(str(tmp_path / "other.yaml")).name == "mine"
    assert kind_of_document(read_yaml(tmp_path / "other.yaml")) == "model"
