"""Studies of collectives: every field by its path, rows as `collective` gives them, mistakes."""

from __future__ import annotations

from pathlib import Path

import pytest

from ridgeline import collective, load_cluster
from ridgeline.cli import execute
from ridgeline.errors import ConfigError
from ridgeline.study.ranking import pareto, top
from ridgeline.study.sweep import load_study, plain_rows, prepare, run_sweep
from ridgeline.units import quantity

HEAD = "kind: study\nname: s\ncollective: {operation: all-reduce, size: 1 MB}\n"
TOPOLOGY = """kind: topology
name: pair
devices: [a, b]
link_types: {wire: {bandwidth: 1 GB/s, latency: 1 us, energy: 1 pJ/b}}
links: [{between: [a, b], type: wire}]
"""


def write(folder: Path, text: str) -> Path:
    path = folder / "study.yaml"
    path.write_text(text)
    return path


def test_rows_are_what_a_collective_alone_costs(tmp_path: Path) -> None:
    study = load_study(write(tmp_path, HEAD + (
        "vary:\n  cluster: ['Ring(8, 50 GB/s, 1 us)', 'Torus(2x4, 25 GB/s, 1 us)', dgx1-v100]\n"
        "  collective.operation: [all-reduce, all-gather, all-to-all]\n"
        "  collective.size: [1 kB, 1 MiB]\n  collective.ranks: [4, 8]\n"
        "where: [ranks == 8]\n"
    )))  # fmt: skip
    rows = run_sweep(study)
    assert len(rows) == 18
    for row in rows:
        alone = collective(
            row["collective.operation"], quantity(row["collective.size"]), row["cluster"], ranks=8
        )
        assert row["error"] == ""
        assert (row["time_s"], row["busbw_bytes_per_s"], row["algorithm"], row["n_ranks"]) == (
            alone.time_s, alone.busbw_bytes_per_s, alone.algorithm, 8,
        )  # fmt: skip
        most = max(alone.link_utilisation.values())
        assert row["busiest_link_utilisation"] == most
        assert alone.link_utilisation[row["busiest_link"]] == most
        assert row["energy_j"] == (alone.energy_j or None)
    assert len({row["manifest_hash"] for row in rows}) == 18
    fastest = top(rows, "time_s", 1)[0]
    assert fastest["time_s"] == min(row["time_s"] for row in rows)
    assert fastest in pareto(rows, ["time_s"], ["size_bytes"])


def test_fields_of_the_network_are_replaced(tmp_path: Path) -> None:
    (tmp_path / "pair.yaml").write_text(TOPOLOGY)
    field = "cluster.link_types.wire.bandwidth"
    rows = run_sweep(load_study(write(tmp_path, HEAD + (
        f"cluster: {tmp_path / 'pair.yaml'}\n"
        f"vary: {{{field}: [1 GB/s, 2 GB/s]}}\ncolumns: {{wanted: 2e-6 + size / bandwidth}}\n"
    ))))  # fmt: skip
    assert [row["time_s"] for row in rows] == pytest.approx([row["wanted"] for row in rows])
    assert [row["energy_j"] for row in rows] == pytest.approx([2e6 * 8e-12] * 2)

    rows = run_sweep(load_study(write(tmp_path, HEAD.replace("1 MB", "1 GB") + (
        "cluster: dgx1-v100\nvary: {cluster.node.link_types.nvlink2.bandwidth: "
        "[25 GB/s, 50 GB/s]}\n"
    ))))  # fmt: skip
    slow, fast = (row["time_s"] for row in rows)
    changed = load_cluster("dgx1-v100", {"node.link_types.nvlink2.bandwidth": "50 GB/s"})
    assert fast == collective("all-reduce", 1e9, changed).time_s
    assert 1.9 < slow / fast < 2.01


def test_an_algorithm_that_does_not_apply_is_a_row_with_its_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write(tmp_path, HEAD + (
        "cluster: Ring(6, 50 GB/s, 1 us)\nvary: {collective.algorithm: [ring, torus]}\n"
    ))  # fmt: skip
    out = tmp_path / "rows.csv"
    assert execute(["sweep", str(path), "--output", str(out)]) == 1
    ring, torus = plain_rows(out)
    assert (ring["error"], ring["time_s"] > 0) == ("", True)
    assert torus["error"]
    assert torus["time_s"] is None
    assert "algorithm=torus" in capsys.readouterr().err
    assert execute(["top", str(out), "--by", "time_s"]) == 0
    assert "1 of 2 rows" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("cluster: x\nmodel: resnet50\nvary: {collective.ranks: [2]}", r":5:1: .*no model"),
        ("plan: {data: 2}\nvary: {cluster: ['Ring(2, 1 GB/s, 1 us)']}", r":4:1: .*no plan"),
        ("vary: {collective.ranks: [2]}", "'cluster' is missing"),
        (
            "cluster: Ring(4, 1 GB/s, 1 us)\nvary: {collective.algorithm: [ring, rign]}",
            r":5:37: .*did you mean 'ring'.*known: ",
        ),
        (
            "cluster: Ring(4, 1 GB/s, 1 us)\nvary: {collective.size: [1 MB, 3]}",
            r":5:32: .*write '3 MB'",
        ),
        (
            "cluster: Ring(4, 1 GB/s, 1 us)\nvary: {collective.sise: [1 MB]}",
            r":5:26: .*did you mean 'size'.*allowed: ",
        ),
        (
            "cluster: Ring(4, 1 GB/s, 1 us)\nvary: {collective.ranks: [2, 0]}",
            r":5:30: .*greater than or equal to 1",
        ),
        (
            "cluster: Ring(4, 1 GB/s, 1 us)\nvary: {cluster.latency: [1 us]}",
            r":5:26: .*no fields to replace",
        ),
        ("vary: {cluster: ['Ring(4, 1 GB/s)']}", r":4:18: .*found 2 arguments"),
        ("vary: {cluster: ['Rign(4, 1 GB/s, 1 us)']}", r":4:18: .*did you mean 'Ring'"),
        ("vary: {cluster: [dgx1-v10]}", r":4:18: .*did you mean 'dgx1-v100'"),
        ("vary: {cluster: [dgx1-v100], plan.data: [1]}", r":4:30: .*begins with cluster\. or coll"),
    ],
)
def test_mistakes_have_a_place(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        prepare(write(tmp_path, HEAD + text + "\n"))


def test_a_missing_field_of_a_collective_is_said_before_the_sweep(tmp_path: Path) -> None:
    text = HEAD.replace(", size: 1 MB", "") + "vary: {cluster: ['Ring(4, 1 GB/s, 1 us)']}\n"
    with pytest.raises(ConfigError, match=r":3:1: .*'collective.size' is missing"):
        prepare(write(tmp_path, text))
