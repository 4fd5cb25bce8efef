"""Kinds of engines and fabrics: those that ship, those that plug-ins register, and no others."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import pytest
from pydantic import TypeAdapter, ValidationError

from ridgeline.errors import ConfigError, said
from ridgeline.hardware import load_cluster, load_device
from ridgeline.hardware.cluster import FABRIC_KINDS, Cluster
from ridgeline.hardware.device import ENGINE_KINDS
from ridgeline.hardware.schema import json_schema
from ridgeline.kernels.contraction_time import ENGINE_MODELS
from ridgeline.network.topology import FABRICS
from ridgeline.open_names import OpenNames
from ridgeline.registry import Registry

NODE = "kind: cluster\nname: mine\nnode: dgx-a100\nmax_nodes: 4\n"
LINKS = "link_types: {hdr: {bandwidth: 25 GB/s, latency: 1 us, energy: 10 pJ/bit}}\n"


def test_kinds_that_ship_are_those_that_something_is_registered_for() -> None:
    assert set(ENGINE_KINDS.shipped) == set(ENGINE_MODELS)
    assert set(FABRIC_KINDS.shipped) == set(FABRICS)


def test_an_unknown_name_is_said_as_of_a_closed_field() -> None:
    names = OpenNames("torus", "mesh")
    with pytest.raises(ValidationError) as found:
        TypeAdapter(Annotated[str, names]).validate_python("messh")
    (problem,) = found.value.errors()
    told = said(problem)
    assert told == "allowed: torus, mesh; found 'messh'; did you mean 'mesh'?"
    with pytest.raises(ValidationError, match="string"):
        TypeAdapter(Annotated[str, names]).validate_python(3)


def test_a_registry_opens_names() -> None:
    names = OpenNames("torus")
    things: Registry[str, object] = Registry("thing", "ridgeline.open_names", opens=names)
    things.register("ring")(object())
    assert list(names) == ["torus", "ring"]
    assert TypeAdapter(Annotated[str, names]).validate_python("ring") == "ring"


def test_a_file_with_an_unknown_kind_names_all_kinds(tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text(NODE + LINKS + "fabric: {kind: fat-treee, link: hdr, radix: 40}\n")
    with pytest.raises(ConfigError) as found:
        load_cluster(str(file))
    text = str(found.value)
    assert "mine.yaml:6:10: fabric.kind: allowed: fat-tree, " in text
    assert "did you mean 'fat-tree'?" in text


def test_parameters_are_of_kinds_that_plug_ins_register(tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text(NODE + LINKS + "fabric: {kind: switch, link: hdr, parameters: {a: 1}}\n")
    with pytest.raises(ConfigError, match="is of kinds that plug-ins register"):
        load_cluster(str(file))
    device = tmp_path / "own.yaml"
    device.write_text(
        "kind: device\nname: own\nbase: a100-sxm4-80gb\n"
        "engines: {tensor-cores: {parameters: {a: 1}}}\n"
    )
    with pytest.raises(ConfigError, match="is of kinds that plug-ins register"):
        load_device(str(device))


def test_schemas_for_editors_list_the_kinds() -> None:
    fabric = json_schema(Cluster)["$defs"]["Fabric"]["properties"]["kind"]
    assert fabric["enum"] == list(FABRIC_KINDS)
