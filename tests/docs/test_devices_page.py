"""docs/devices.md is what the schema says; its commands and its examples run."""

from __future__ import annotations

import json
import re
import shlex
import shutil
from pathlib import Path
from typing import Any

import pytest

from json_schema import mistakes
from ridgeline.cli import execute
from ridgeline.errors import ConfigError
from ridgeline.hardware import load_device
from ridgeline.hardware.load import description
from ridgeline.hardware.schema import (
    SCHEMAS,
    field_texts,
    json_schema,
    reachable_models,
    schema_fields,
)
from ridgeline.report.schema_page import filled_page

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "devices.md"
TEXT = PAGE.read_text("utf-8")
MODELS = sorted(
    {model for root in SCHEMAS.values() for model in reachable_models(root)},
    key=lambda model: model.__name__,
)


def test_the_page_is_what_the_generator_writes() -> None:
    said = "run: python -m ridgeline.report.schema_page"
    assert filled_page(TEXT, PAGE.parent) == TEXT, said


def test_its_commands_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    commands = re.findall(r"^\$ ridgeline (.*)$", TEXT, flags=re.MULTILINE)
    assert len(commands) >= 9
    shutil.copytree(ROOT / "docs" / "examples", tmp_path / "docs" / "examples")
    monkeypatch.chdir(tmp_path)
    for command in commands:
        assert execute(shlex.split(command)) == 0, command


@pytest.mark.parametrize("model", MODELS, ids=lambda model: model.__name__)
def test_every_field_has_a_text_and_stands_on_the_page(model: Any) -> None:
    for field in schema_fields(model):
        assert field.text, field.name
        assert f"| `{field.name}` |" in TEXT
    assert f"\n### {model.__name__}\n" in TEXT


def test_texts_come_from_the_class_and_from_those_that_it_inherits() -> None:
    texts = field_texts(SCHEMAS["device-schema"])
    assert texts["name"].startswith("Name in the catalogue")
    assert texts["memory"] == "From the nearest to the farthest."
    fields = {field.name: field for field in schema_fields(SCHEMAS["device-schema"])}
    assert "prices" not in fields  # put there by the loader
    assert (fields["idle_power"].unit, fields["idle_power"].default) == ("W", "required")
    assert fields["memory"].mapped


def test_the_errors_on_the_page_are_those_that_are_said(tmp_path: Path) -> None:
    said = re.findall(r"^my-device\.yaml:\d+:\d+: (memory\.(\w+\.\w+): .*)$", TEXT, re.MULTILINE)
    assert len(said) == 2
    for message, field in said:
        name, key = field.split(".")
        wrong = {"latency": 10, "bandwidth": "900 GB"}[key]
        level = {"kind": "sram", "capacity": "8 MiB", "energy": "sram.l2", key: wrong}
        path = tmp_path / f"{key}.yaml"
        described = {"kind": "device", "name": key, "base": "tpu-v2", "memory": {name: level}}
        path.write_text(json.dumps(described))
        with pytest.raises(ConfigError) as error:
            load_device(str(path))
        assert str(error.value).endswith(message)


def test_a_wrong_file_is_not_valid_by_the_json_schema() -> None:
    schema = json_schema(SCHEMAS["device-schema"])
    data = json.loads(json.dumps(description("devices", "tpu-v2").data))  # the read one is shared
    assert mistakes(schema, data, schema) == []
    for path, wrong in (
        (("idle_power",), 10),
        (("idle_power",), "10"),
        (("engines", "mxu", "kind"), "systolik"),
        (("memory", "hbm", "bandwidht"), "1 TB/s"),
        (("year",), "2020"),
    ):
        broken = json.loads(json.dumps(data))
        place = broken
        for key in path[:-1]:
            place = place[key]
        place[path[-1]] = wrong
        assert mistakes(schema, broken, schema), path
    del data["year"]
    assert mistakes(schema, data, schema)
    assert mistakes(schema, {**data, "base": "tpu-v2"}, schema) == []
