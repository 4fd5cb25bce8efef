"""The catalogue as attributes."""

from __future__ import annotations

import keyword

import pytest

import ridgeline as rl
from ridgeline import catalog
from ridgeline.catalog_attrs import Shelf, attribute

SHELVES = {
    "models": rl.models,
    "devices": rl.devices,
    "nodes": rl.nodes,
    "clusters": rl.clusters,
    "energy": rl.energy_tables,
    "components": rl.components,
}


@pytest.mark.parametrize("kind", SHELVES)
def test_every_shipped_name_can_be_completed(kind: str) -> None:
    shelf = SHELVES[kind]
    assert set(catalog.names(kind)) <= set(shelf)
    assert len(dir(shelf)) == len(shelf)  # no two names have one attribute
    assert all(name.isidentifier() and not keyword.iskeyword(name) for name in dir(shelf))
    assert shelf._ipython_key_completions_() == list(shelf)


def test_a_name_is_what_the_loader_gives() -> None:
    assert rl.models.gpt3_1_3b.name == "gpt3-1.3b"
    assert rl.models["lenet5"] == rl.load_model("lenet5")
    assert rl.devices.v100_sxm2_16gb == rl.load_device("v100-sxm2-16gb")
    assert rl.clusters.dgx1_v100 == rl.load_cluster("dgx1-v100")
    assert rl.nodes.dgx1_v100 == rl.load_node("dgx1-v100")
    assert rl.energy_tables.jouppi_7nm == rl.load_energy_table("jouppi-7nm")
    assert "dgx1-v100" in rl.clusters
    assert "dgx1_v100" not in rl.clusters


def test_a_wrong_name_is_told_the_nearest() -> None:
    with pytest.raises(AttributeError, match="did you mean 'resnet50'"):
        _ = rl.models.resnet5o
    with pytest.raises(rl.ConfigError, match="did you mean 'resnet50'"):
        _ = rl.models["resnet5o"]
    assert not hasattr(rl.models, "_ipython_canary_method_should_not_exist_")


def test_shelves_show_themselves() -> None:
    assert "resnet50" in repr(rl.models)
    assert "<code>resnet50</code>" in rl.models._repr_html_()


def test_attributes_are_identifiers() -> None:
    assert attribute("3-d.net") == "_3_d_net"
    assert isinstance(rl.models, Shelf)
