"""Search of the catalogue: words, and comparisons with units."""

from __future__ import annotations

import json

import pytest

import ridgeline as rl
from ridgeline import catalog
from ridgeline.cli import execute
from ridgeline.study.catalog_search import search_catalog


def test_mixtures_of_experts_by_their_parameters() -> None:
    found = search_catalog("moe > 100B", "models")
    names = {entry.name for entry in found}
    assert {"deepseek-v3", "mixtral-8x22b", "kimi-k2"} <= names
    assert not {"mixtral-8x7b", "gpt3-175b"} & names  # too small; no mixture
    assert all(entry.parameters and entry.parameters > 100e9 for entry in found)
    assert rl.models.search("moe > 100B") == [entry.name for entry in found]
    some = [entry for entry in found if entry.name in {"mixtral-8x22b", "gpt-oss-120b"}]
    for entry in some:  # as the graphs have them
        graph = rl.models[entry.name].forward(1)
        assert graph.parameters == pytest.approx(entry.parameters, rel=0.02)


@pytest.mark.parametrize(
    ("text", "kind", "inside", "outside"),
    [
        ("nvidia memory >= 80 GB", "devices", "h100-sxm5-80gb", "a100-sxm4-40gb"),
        ("> 150GB", "devices", "mi300x", "h100-sxm5-80gb"),
        ("year = 2017", "devices", "v100-sxm2-16gb", "h100-sxm5-80gb"),
        ("power < 100 W", "devices", "t4", "h100-sxm5-80gb"),
        ("H100 devices = 8", "nodes", "dgx-h100", "hgx-h200"),
        ("llama parameters <= 8.1B", "models", "llama3-8b", "llama3-70b"),
        ("cnn", "models", "mask-rcnn", "gpt2"),
        ("megatron year >= 2023", "software", "megatron-core", "megatron-lm-2019"),
    ],
)
def test_words_and_comparisons(text: str, kind: str, inside: str, outside: str) -> None:
    names = [entry.name for entry in search_catalog(text, kind)]
    assert inside in names
    assert outside not in names
    assert names == sorted(names)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("> 2020", "'> 2020': say of what: parameters, memory, year, devices, power"),
        ("moe > 100X", "'moe > 100X': unknown unit 'X'; say of what: parameters"),
        ("memry > 3 GB", "'memry': did you mean 'memory'"),
        ("year > 3 GB", "year in 'GB'; allowed: none"),
        ("memory > 80 W", "is not in B"),
        ("memory > 80", "80"),
        ("devices >", "expected a comparison"),
        ("parameters > 1.2.3B", "expected a number, found '1.2.3'"),
        ("parameters > 3 GB", "parameters in 'GB'; allowed: K, M, B, T"),
    ],
)
def test_a_comparison_that_says_nothing_is_refused(text: str, said: str) -> None:
    with pytest.raises(rl.ConfigError) as refused:
        search_catalog(text, "devices")
    assert said in str(refused.value)


def test_the_list_has_parameters_memory_and_year(capsys: pytest.CaptureFixture[str]) -> None:
    assert execute(["list", "models", "--search", "gpt3-175b"]) == 0
    out = capsys.readouterr().out
    assert "175B" in out
    assert "2020" in out
    assert "1 found" in out
    assert execute(["list", "devices", "--search", "h100 > 90 GB", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["devices"]
    assert found == ["h100-nvl-94gb", "h100-sxm5-96gb"]
    assert execute(["list", "devices", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"devices": catalog.names("devices")}


def test_a_shell_completes_names(capsys: pytest.CaptureFixture[str]) -> None:
    assert execute(["__complete", "run", "resnet50", "dgx"]) == 0
    listed = capsys.readouterr().out.split()
    assert "dgx-h100" in listed
    assert "resnet50" not in listed
    assert execute(["__complete", "run", "res"]) == 0
    assert "resnet50" in capsys.readouterr().out.split()
