"""The input pipeline: the slowest of reading, decoding and training sets the pace."""

from __future__ import annotations

import pytest

import ridgeline as rl
from ridgeline import catalog
from ridgeline.workload.dataset import load_dataset
from ridgeline.workload.files import load_model

PLAN = rl.Plan(global_batch=2048, data=8, precision="fp16-mixed")


@pytest.mark.parametrize("name", catalog.names("datasets"))
def test_every_data_set_loads_and_says_where_its_figures_come_from(name):
    dataset = load_dataset(name)
    for figure in (dataset.stored, dataset.decoded, dataset.decoding):
        assert figure.source in dataset.sources
    assert dataset.citation
    assert not dataset.unsourced


def test_files_of_a_users_own_may_cite_nothing_and_results_say_so(tmp_path):
    (tmp_path / "data.yaml").write_text(
        "kind: dataset\nname: data\ntitle: Ours\nunit: sample\nstored: 100 kB\n"
        "decoded: {value: 600 kB, source: counted}\ndecoding: 1e7\n"
    )
    (tmp_path / "net.yaml").write_text(
        "kind: model\nname: net\nfamily: mlp\ntitle: Ours\n"
        "inputs: 784\nwidths: [64, 10]\nactivation: relu\n"
    )
    plan = rl.Plan(global_batch=64, precision="fp32")
    result = rl.simulate(
        str(tmp_path / "net.yaml"), "dgx1-v100", plan, dataset=str(tmp_path / "data.yaml")
    )
    notes = result.manifest["notes"]
    assert any("net cites no source" in note for note in notes)
    assert any("data set data: stored, decoding" in note for note in notes)
    assert "cites no source" in result.summary(verbose=True)
    assert not any("source" in n for n in rl.simulate("mlp", "dgx1-v100", plan).manifest["notes"])


def test_every_data_set_that_a_network_names_is_there():
    named = {load_model(name).network.dataset for name in catalog.names("models")} - {""}
    assert named <= set(catalog.names("datasets"))
    assert {"imagenet", "coco", "wmt-en-de", "librispeech", "criteo", "tokens"} <= named


def test_a_slow_host_prolongs_the_step_by_what_is_missing():
    dry = rl.simulate("resnet18", "dgx1-v100", PLAN)
    wet = rl.simulate("resnet18", "dgx1-v100", PLAN, dataset="own")
    dataset, host = load_dataset("imagenet"), rl.load_cluster("dgx1-v100").nodes.host
    decoding_s = 2048 * dataset.decoding.value / (host.cores.value * host.clock.value)
    assert wet.step_time_s == pytest.approx(decoding_s, rel=1e-12)
    assert wet.time_s["input"] == pytest.approx(decoding_s - dry.step_time_s, rel=1e-9)
    assert wet.bound == "decoding on the host"
    assert wet.samples_per_s == pytest.approx(2048 / wet.step_time_s)
    assert wet.mfu * wet.step_time_s == pytest.approx(dry.mfu * dry.step_time_s)
    for account in (wet.time_s, wet.energy_j):
        parts = [value for name, value in account.items() if name != "total"]
        assert sum(parts) == pytest.approx(account["total"], rel=1e-9)
    assert sum(wet.limits_s.values()) == pytest.approx(wet.step_time_s, rel=1e-9)


def test_a_fast_host_hides_the_input_and_the_manifest_says_that_it_was_modelled():
    dry = rl.simulate("resnet50", "dgx1-v100", PLAN)
    wet = rl.simulate("resnet50", "dgx1-v100", PLAN, dataset="imagenet")
    assert wet.step_time_s == dry.step_time_s
    assert wet.time_s["input"] == 0
    assert wet.manifest["io_modelled"]
    assert "input pipeline" not in wet.manifest["not_modelled"]
    assert not dry.manifest["io_modelled"]
    assert "input pipeline" in dry.manifest["not_modelled"]
    assert wet.manifest["hash"] != dry.manifest["hash"]


def test_slow_disks_limit_and_more_nodes_read_more():
    cluster = rl.load_cluster("dgx1-v100", {"node.host.storage": "100 MB/s"})
    result = rl.simulate("resnet18", cluster, PLAN, dataset="imagenet")
    stored = load_dataset("imagenet").stored.value
    assert result.step_time_s == pytest.approx(2048 * stored / 1e8)
    assert result.bound == "storage bandwidth"
    assert result.traffic_bytes["storage"] == 2048 * stored


@pytest.mark.parametrize(
    ("model", "cluster", "dataset", "message"),
    [
        ("resnet18", "dgx-h100", "imagenet", "does not say how fast it reads"),
        ("resnet18", "dgx1-v100", "tokens", "is of tokens"),
        ("resnet18", "dgx1-v100", "imagenett", "did you mean 'imagenet'"),
        ("mlp", "dgx1-v100", "own", "does not say what data set"),
    ],
)
def test_what_is_not_known_is_an_error(model, cluster, dataset, message):
    with pytest.raises(rl.RidgelineError, match=message):
        rl.simulate(model, cluster, rl.Plan(global_batch=8, data=8), dataset=dataset)
