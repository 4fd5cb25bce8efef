"""The verbs `topology` and `collective`, and what their options refuse."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ridgeline.cli import execute
from ridgeline.network.inline import DIMENSIONS, INLINE, from_text


def call(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    status = execute(arguments)
    captured = capsys.readouterr()
    return status, captured.out, captured.err


def test_what_a_topology_amounts_to(capsys: pytest.CaptureFixture[str]) -> None:
    status, out, _ = call(capsys, "topology", "dgx1-p100", "--load", "all-reduce 100MB", "--json")
    found = json.loads(out)
    assert status == 0
    assert found["n_devices"] == 8
    links = {link["name"]: link for link in found["links"]}
    assert links["nvlink1"]["n_links"] == 16
    assert links["nvlink1"]["energy_j_per_bit"] > 0
    assert found["cost_dollars"] == 129000
    assert found["power_w"] > 8 * 250
    assert 0 < max(found["load"]["link_utilisation"].values()) <= 1 + 1e-9


def test_a_topology_of_a_file_has_cost_and_power(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    path = tmp_path / "pair.yaml"
    path.write_text(
        "kind: topology\nname: pair\ndevices: [a, b]\nswitches: [s]\nswitch_cost: 100 USD\n"
        "switch_power: 50 W\nlink_types:\n"
        "  wire: {bandwidth: 1 GB/s, latency: 1 us, energy: 8 pJ/B, cost: 10 USD, power: 1 W}\n"
        "links:\n  - {between: [a, s], type: wire}\n  - {between: [b, s], type: wire, count: 2}\n"
    )
    status, out, _ = call(capsys, "topology", str(path), "--json")
    found = json.loads(out)
    assert status == 0
    assert (found["cost_dollars"], found["power_w"]) == (130.0, 53.0)
    assert found["links"][0]["energy_j_per_bit"] == pytest.approx(1e-12)
    assert (found["diameter"], found["n_links"]) == (2, 3)
    status, out, _ = call(capsys, "collective", "send", "1MB", str(path), "--json")
    assert json.loads(out)["time_s"] == pytest.approx(1e-3 + 2e-6)


def test_a_picture_is_written(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = tmp_path / "torus.png"
    status, out, _ = call(
        capsys,
        "topology",
        "Torus(3x4, 1 GB/s, 1 us)",
        "--load",
        "stride:1 1MB",
        "--plot",
        str(path),
    )
    assert status == 0
    assert "busiest link" in out
    assert path.read_bytes()[:4] == b"\x89PNG"


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["topology", "Ring(4, 1 GB/s, 0 s)", "--load", "all-redoce 1MB"], "known:"),
        (["topology", "Rong(4, 1 GB/s, 0 s)"], "did you mean"),
        (["collective", "send", "1MB", "Ring(4, 1 GB/s, 0 s)", "--cost", "bps"], "bsp"),
        (["collective", "send", "1MB", "Ring(4, 1 GB/s, 0 s)", "--compression", "x=1"], "density"),
    ],
)
def test_mistakes_are_said(
    capsys: pytest.CaptureFixture[str], arguments: list[str], says: str
) -> None:
    status, _, err = call(capsys, *arguments)
    assert status == 2
    assert says in err
    assert "Traceback" not in err


def test_one_rank_sends_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    status, out, _ = call(capsys, "collective", "all-reduce", "1MB", "dgx-a100", "--ranks", "1")
    assert status == 0
    assert "nothing is sent" in out


def test_the_topology_of_the_page_is_one(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    page = (Path(__file__).parents[2] / "docs" / "network.md").read_text("utf-8")
    path = tmp_path / "page.yaml"
    (text,) = (part for part in page.split("```yaml\n") if part.startswith("kind: topology"))
    path.write_text(text.partition("```")[0], "utf-8")
    found = json.loads(call(capsys, "topology", str(path), "--json")[1])
    assert (found["n_devices"], found["n_links"], found["diameter"]) == (4, 6, 3)


def test_the_page_has_all_families_with_examples_that_draw() -> None:
    page = (Path(__file__).parents[2] / "docs" / "network.md").read_text("utf-8")
    table = page.partition("| family | parameters |")[2].partition("\n\n")[0]
    rows = [[cell.strip() for cell in row.strip("| ").split("|")] for row in table.splitlines()[2:]]
    assert sorted(row[0].strip("`") for row in rows) == sorted(INLINE)
    for name, _, example, devices, in_products, *_ in rows:
        assert example.startswith("`" + name.strip("`") + "(")
        assert from_text(example.strip("`")).n_devices == int(devices)
        assert (in_products == "yes") == (name.strip("`") in DIMENSIONS)
