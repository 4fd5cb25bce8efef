"""``ridgeline new`` writes descriptions that run as they stand, with a comment on every field."""

from __future__ import annotations

import itertools
import json
import re
from pathlib import Path

import pytest

from ridgeline.cli import execute
from ridgeline.cli.app import VERBS
from ridgeline.config import parse_yaml
from ridgeline.hardware import load_cluster, load_device
from ridgeline.hardware.sourced import NOT_STATED, sourced_values
from ridgeline.hardware.templates import DEVICE_KINDS, device_template


@pytest.fixture(params=DEVICE_KINDS)
def written(
    request: pytest.FixtureRequest, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> Path:
    path = tmp_path / "mine.yaml"
    assert execute(["new", "device", "--kind", request.param, "--output", str(path)]) == 0
    assert capsys.readouterr() == ("", "")
    return path


def test_a_template_prices_products_and_trains(
    written: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert execute(["gemm", "512", "512", "512", "--device", str(written), "--json"]) == 0
    one = json.loads(capsys.readouterr().out)
    peak = max(
        rate.value
        for engine in load_device(str(written)).engines.values()
        for rate in engine.rates.values()
    )
    assert one["time_s"] >= 2 * 512**3 / peak
    assert execute(["run", "mlp", str(written), "--batch", "32", "--json"]) == 0
    step = json.loads(capsys.readouterr().out)
    assert step["step_time_s"] > 0
    assert step["energy_j"]["total"] > 0
    if "lint" in VERBS:
        assert execute(["lint", str(written)]) == 0


def test_every_value_of_a_template_is_assumed_and_has_a_source(written: Path) -> None:
    device = load_device(str(written))
    assert device.name == "mine"
    data = parse_yaml(written.read_text("utf-8"), "template").data
    for path, value in sourced_values(device):
        if value.source == "default of the schema" or path.startswith("prices"):
            continue
        assert (value.source, value.basis) == ("yours", "assumed"), path
        assert value.source != NOT_STATED
    assert set(data["sources"]) == {"yours"}


def test_a_device_file_is_a_cluster_of_one_node_of_one_device(written: Path) -> None:
    cluster = load_cluster(str(written))
    assert (cluster.max_nodes, cluster.nodes.count, cluster.device.name) == (1, 1, "mine")


@pytest.mark.parametrize("kind", DEVICE_KINDS)
def test_every_field_is_explained_where_it_first_stands(kind: str) -> None:
    lines = device_template(kind).splitlines()
    assert max(map(len, lines)) <= 100
    seen = set()
    for before, line in itertools.pairwise(lines):
        field = re.match(
            r" *(rows|clock|capacity|bandwidth|idle_power|launch_latency|tiles):", line
        )
        if field and field[1] not in seen:
            seen.add(field[1])
            assert before.lstrip().startswith("# "), line
    assert {"capacity", "bandwidth", "idle_power", "launch_latency"} <= seen


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["device", "--kind", "systolik"], "did you mean 'systolic'"),
        (["devise", "--kind", "gpu"], "did you mean 'device'"),
        (["device"], "a device is of a kind: systolic"),
        (["study", "--kind", "gpu"], "a study has no kinds"),
        (["model", "--name", "a: b"], "letters, digits"),
        (["device", "--kind", "gpu", "--name", "a: b"], "letters, digits"),
        (["device", "--kind", "gpu", "--output", "."], "is there already"),
    ],
)
def test_mistakes(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert execute(["new", *arguments]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert message in err
    assert err.count("\n") == 1


@pytest.mark.parametrize(
    ("what", "run"),
    [
        ("model", "run FILE h100-sxm5-80gb --batch 1"),
        ("node", "run mlp FILE --plan data=8 --batch 64"),
        ("cluster", "run mlp FILE --plan data=16 --batch 64"),
        ("study", "sweep FILE"),
        ("run", "train FILE --json"),
    ],
)
def test_a_file_to_start_from_runs(
    what: str, run: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "mine.yaml"
    assert execute(["new", what, "--output", str(path)]) == 0
    text = path.read_text("utf-8")
    assert max(map(len, text.splitlines())) <= 100
    assert "name: mine" in text
    assert sum(line.lstrip().startswith("# ") for line in text.splitlines()) > 5
    assert capsys.readouterr() == ("", "")
    assert execute(run.replace("FILE", str(path)).split()) == 0, capsys.readouterr().err
    assert execute(["new", what, "--json"]) == 0
