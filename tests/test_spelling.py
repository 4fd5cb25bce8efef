"""Names as people say them: resolved when one thing is meant, else all close ones are listed."""

from __future__ import annotations

import random
from typing import Any

import pytest

import ridgeline as rl
from ridgeline import catalog
from ridgeline.cli import execute
from ridgeline.config import read_yaml
from ridgeline.spelling import Spellings, squeezed

MACHINES = ("clusters", "nodes", "devices")


@pytest.mark.parametrize(
    ("said", "kinds", "meant"),
    [
        ("H100", MACHINES, "h100-sxm5-80gb"),
        ("h100 pcie", MACHINES, "h100-pcie-80gb"),
        ("DGX-H100", MACHINES, "dgx-h100"),
        ("DGX B200", MACHINES, "hgx-b200"),
        ("GB200 NVL72", MACHINES, "gb200-nvl72"),
        ("p4d.24xlarge", MACHINES, "aws-p4d-24xlarge"),
        ("Selene", MACHINES, "selene-a100"),
        ("nvidia_h100", ("devices",), "h100-sxm5-80gb"),
        ("gpt3", ("models",), "gpt3-175b"),
        ("Llama-3-70B", ("models",), "llama3-70b"),
        ("llama 3 70b", ("models",), "llama3-70b"),
        ("ResNet_50", ("models",), "resnet50"),
        ("GPT3 1.3B", ("models",), "gpt3-1.3b"),
        ("gpt3 13b", ("models",), "gpt3-13b"),
        ("Megatron Core", ("software",), "megatron-core"),
    ],
)
def test_a_name_is_found_as_people_say_it(said: str, kinds: tuple[str, ...], meant: str) -> None:
    assert catalog.resolve(said, *kinds) == catalog.spelled(said, *kinds) == meant


@pytest.mark.parametrize(
    ("said", "kinds", "listed"),
    [
        ("a100 80gb", MACHINES, ["a100-pcie-80gb", "a100-sxm4-80gb"]),
        ("bert", ("models",), ["bert-base", "bert-large"]),
        ("V100", ("devices",), [n for n in catalog.names("devices") if n.startswith("v100")]),
        ("mi300", ("devices",), ["mi300a", "mi300x"]),
    ],
)
def test_a_name_that_leaves_something_open_lists_what_is_close(
    said: str, kinds: tuple[str, ...], listed: list[str]
) -> None:
    assert catalog.spelled(said, *kinds) is None
    with pytest.raises(rl.ConfigError) as refused:
        catalog.resolve(said, *kinds)
    message = str(refused.value)
    assert message.endswith(f"? Close are {', '.join(listed)}")
    assert any(f"is called {said!r}; did you mean {name!r}?" in message for name in listed)


@pytest.mark.parametrize(
    "said", ["", " ", "-", "x", "nvidia", "zzz", "h100-sxm5-80bg", "A100 96GB"]
)
def test_what_is_not_a_name_is_none(said: str) -> None:
    assert catalog.spelled(said, *MACHINES) is None
    with pytest.raises(rl.ConfigError, match="no cluster, node or device is called"):
        catalog.resolve(said, *MACHINES)


def test_a_thing_of_another_kind_is_named() -> None:
    with pytest.raises(rl.ConfigError, match=r"'DGX H100', which is a node \(dgx-h100\)$"):
        rl.load_device("DGX H100")


@pytest.mark.parametrize("kind", catalog.FOLDERS)
def test_every_name_and_alias_means_its_own_whatever_its_punctuation(kind: str) -> None:
    kinds = MACHINES if kind in MACHINES else (kind,)
    rng = random.Random(kind)
    called = [(name, name) for name in catalog.names(kind)]
    called += [(alias, name) for name, of in catalog.aliases(kind).items() for alias in of]
    keys: dict[str, str] = {}
    for said, name in called:
        assert keys.setdefault(squeezed(said), name) == name  # no two things are called so
        spaced = said.replace("-", rng.choice(" _-")).replace("_", rng.choice(" _-"))
        other = rng.choice([spaced.upper(), spaced.lower(), spaced.title()])
        assert catalog.spelled(other, *kinds) == name, other


def test_aliases_are_those_that_the_files_say() -> None:
    """They are read without the rest of the file; here with it."""
    for kind in ("devices", "nodes", "software"):
        said = {}
        for name in catalog.names(kind):
            data = read_yaml(catalog.find(kind, name)).data
            if "aliases" in data:
                said[name] = tuple(data["aliases"])
        assert catalog.aliases(kind) == said


def test_a_word_is_found_whole_or_not_at_all() -> None:
    known = Spellings(
        (name, name) for name in ("gpt3-1.3b", "gpt3-13b", "llama3-8b", "k20", "k20x")
    )
    assert known.holding("gpt3 3b") == []
    assert known.holding("gpt") == ["gpt3-1.3b", "gpt3-13b"]
    assert known.holding("8b llama") == ["llama3-8b"]
    assert known.find("k20") == "k20"
    assert known.beginning("k2") == ["k20", "k20x"]


def test_shelves_and_loaders_take_spellings() -> None:
    assert rl.devices["H100"].name == rl.load_device("H100").name == "h100-sxm5-80gb"
    assert rl.models.resnet_50.name == rl.load("ResNet 50").name == "resnet50"
    assert rl.load_cluster("DGX H100").name == "dgx-h100"
    assert rl.load_software("Megatron Core").name == "megatron-core"
    with pytest.raises(AttributeError, match="Close are v100-pcie-16gb, v100-pcie-32gb"):
        _ = rl.devices.v100
    assert not hasattr(rl.devices, "no_such_thing")


def test_the_command_line_says_what_a_name_was_taken_to_mean(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert execute(["show", "DGX-H100", "--json"]) == 0
    assert capsys.readouterr().err == "ridgeline: note: DGX-H100 is dgx-h100\n"
    assert execute(["show", "DGX-H100", "--json", "--quiet"]) == 0
    assert capsys.readouterr().err == ""
    assert execute(["show", "dgx-h100", "--json", "-v"]) == 0
    said = capsys.readouterr().err.splitlines()
    assert all(line.startswith("ridgeline: read ") for line in said)
    assert any(line.endswith("nodes/dgx-h100.yaml") for line in said)
    assert execute(["show", "a100"]) == 2
    assert "Close are a100-100g-pod, " in capsys.readouterr().err
    assert execute(["show", "a100", "-q", "-v"]) == 2
    assert "exclude each other" in capsys.readouterr().err


def test_the_manifest_says_it_and_the_hash_does_not_depend_on_it() -> None:
    from ridgeline.study.point import Point

    def manifest(model: str, cluster: str) -> Any:
        return Point(model, cluster, {"global_batch": 32}).simulate().manifest

    plain, said = manifest("lenet5", "h100-sxm5-80gb"), manifest("LeNet-5", "H100")
    assert said["spelled"] == {"LeNet-5": "lenet5", "H100": "h100-sxm5-80gb"}
    assert "spelled" not in plain
    assert said["hash"] == plain["hash"]


@pytest.mark.parametrize("aliases", ["[1, 2]", "H100", '[""]', "{a: b}"])
def test_aliases_of_another_form_are_refused(aliases: str, tmp_path: Any) -> None:
    text = catalog.find("nodes", "dgx-h100").read_text("utf-8")
    file = tmp_path / "node.yaml"
    file.write_text(text.replace("count: 8\n", f"count: 8\naliases: {aliases}\n"), "utf-8")
    with pytest.raises(rl.ConfigError, match="aliases"):
        rl.load_node(str(file))
