"""The software stacks that ship: their sources, their names, and the frameworks they stand for."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from typing import Any

import pytest

import ridgeline as rl
from ridgeline import catalog
from ridgeline.config import read_yaml
from ridgeline.software import load_software as load
from ridgeline.software.stack import GROUPS, setting_paths
from ridgeline.study.import_rows.rules import section
from ridgeline.workload.numerics import PRECISIONS

load_software = cache(load)
NAMES = catalog.names("software")
ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "software.md").read_text("utf-8")
EXAMPLE = ROOT / "docs" / "examples" / "my-stack.yaml"


@cache
def vendors() -> set[str]:
    return {rl.devices[one].vendor.lower() for one in rl.devices}


@pytest.mark.parametrize("name", NAMES)
def test_of_every_stack_the_name_is_the_files_and_a_line_and_a_family_say_what_it_is(name):
    stack = load_software(name)
    assert stack.name == name == name.lower()
    assert "_" not in name
    assert 0 < len(stack.description) <= 110
    assert "family" in read_yaml(catalog.find("software", name)).data
    assert stack.bound or stack.year is not None or name == "unstated"
    assert (stack.family == "ideal") == stack.bound


def test_no_two_stacks_have_one_name():
    assert len({load_software(name).name for name in NAMES}) == len(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_every_value_that_a_file_states_has_a_source(name):
    stack = load_software(name)
    data = read_yaml(catalog.find("software", name)).data
    stated = {f"{group}.{field}" for group in GROUPS for field in data.get(group, {})}
    assert stated
    assert stated <= set(stack.provenance)
    for path, where in stack.provenance.items():
        assert where.source in stack.sources or len(where.source) >= 20, path
    for key, text in stack.sources.items():
        assert len(text) >= 20, key


@pytest.mark.parametrize("name", NAMES)
def test_every_citation_of_a_file_is_used_in_it_or_named_by_a_note(name):
    data = read_yaml(catalog.find("software", name)).data
    said = [
        f"{value['source']} {value.get('note', '')}"
        for group in GROUPS
        for value in data.get(group, {}).values()
    ]
    for key in data.get("sources", {}):
        assert any(key in text for text in said), key


def test_a_citation_has_one_meaning_along_the_bases():
    for name in NAMES:
        data = read_yaml(catalog.find("software", name)).data
        if base := data.get("base"):
            of_base = load_software(base).sources
            assert not {
                key
                for key, text in data.get("sources", {}).items()
                if of_base.get(key, text) != text
            }, name


@pytest.mark.parametrize("name", NAMES)
def test_what_a_stack_supports_is_there(name):
    supports = load_software(name).supports
    assert set(supports.networks) <= {
        "decoder", "transformer", "cnn", "rnn", "recommender", "diffusion", "speech", "other",
    }  # fmt: skip
    assert set(supports.vendors) <= vendors()
    assert set(supports.plan) <= {"data", "tensor", "context", "pipeline", "expert", "spatial"}
    assert set(supports.precisions) <= set(PRECISIONS)
    for listed in supports.model_dump().values():
        assert len(set(listed)) == len(listed)
    if load_software(name).plan.precision is not None:
        assert load_software(name).plan.precision in PRECISIONS


@pytest.mark.parametrize("name", NAMES)
def test_collectives_of_every_program_slow_what_runs_beside_them(name):
    stack = load_software(name)
    assert stack.overlap.contention != stack.bound


def test_every_row_of_names_means_a_stack_and_the_last_is_for_the_rest():
    rows = section("software")
    assert {row["software"] for row in rows} <= set(NAMES)
    assert rows[-1] == {"framework": [""], "software": "unstated"}


def test_the_example_of_the_page_is_a_stack():
    stack = load_software(EXAMPLE)
    assert stack.name == EXAMPLE.stem
    assert stack.host.launch_time == 0.0
    assert stack.provenance["kernels.attention"].of == "megatron-core"
    assert stack.provenance["gradients.bucket"].source == "runtime"
    assert stack.supports.vendors == ()
    assert stack.supports.plan == load_software("megatron-core").supports.plan


def test_the_page_has_every_stack_and_every_setting_and_the_example():
    for name in [*NAMES, *setting_paths()]:
        assert f"`{name}`" in PAGE, name
    lines = EXAMPLE.read_text("utf-8").splitlines()
    shown = re.findall(r"```yaml\n(.*?)```", PAGE, flags=re.DOTALL)[0].splitlines()
    assert lines[: len(shown)] == shown
    assert len(PAGE.splitlines()) < 200


def test_the_python_of_the_page_runs_and_gives_what_its_comments_say(monkeypatch):
    monkeypatch.chdir(ROOT)
    names: dict[str, Any] = {}
    for line in re.findall(r"```python\n(.*?)```", PAGE, flags=re.DOTALL)[0].splitlines():
        code, _, said = line.partition("#")
        exec(code, names)
        if said.strip()[:1] in {'"', "1"}:
            assert eval(code, names) == eval(said), line
    assert names["quick"].gradients.bucket == 40e6
    assert names["mine"].name == "my-stack"
