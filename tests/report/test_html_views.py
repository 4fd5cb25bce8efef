"""Views of machines, models and plans: well-formed, self-contained, escaped, and right."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

import ridgeline as rl
from ridgeline.report.html.machine import _graph
from ridgeline.study.study_file import load_study
from ridgeline.units import show
from ridgeline.workload.summary import layer_table

THINGS = {
    "device": lambda: rl.load_device("v100-sxm2-16gb"),
    "systolic device": lambda: rl.load_device("tpu-v1"),
    "node": lambda: rl.load_node("dgx1-v100"),
    "node with a switch": lambda: rl.load_node("dgx-a100"),
    "cluster": lambda: rl.load_cluster("selene-a100"),
    "cluster of one device": lambda: rl.load_cluster("t4"),
    "model": lambda: rl.load_model("lenet5"),
    "plan": lambda: rl.Plan(global_batch=1536, data=8, tensor=8, pipeline=12),
    "large plan": lambda: rl.Plan(global_batch=2**16, data=2**12, pipeline=64, micro_batch=1),
}


def parsed(html: str) -> ET.Element:
    """Parse a fragment; entities of HTML that are none of XML do not occur."""
    return ET.fromstring(html)


def words(html: str) -> str:
    return " ".join(" ".join(parsed(html).itertext()).split())


@pytest.mark.parametrize("name", THINGS)
def test_a_view_is_one_closed_fragment_without_scripts_or_outside_resources(name: str) -> None:
    html = THINGS[name]()._repr_html_()
    tags = {element.tag for element in parsed(html).iter()}
    assert tags <= {"div", "table", "tr", "td", "th", "svg", "g", "title", "rect", "text", "line"}
    assert "svg" in tags or name == "model"
    attributes = {name for element in parsed(html).iter() for name in element.attrib}
    assert not any(attribute.startswith("on") or "href" in attribute for attribute in attributes)
    assert "url(" not in html
    assert html == THINGS[name]()._repr_html_()


def test_a_device_shows_every_engine_and_level() -> None:
    device = rl.load_device("v100-sxm2-16gb")
    text = words(device._repr_html_())
    for name, engine in device.engines.items():
        assert name in text
        assert all(show(rate.value, "FLOP/s") in text for rate in engine.rates.values())
    for name, level in device.memory.items():
        assert f"{name}: {show(level.capacity.value, 'B')}" in text


def test_a_node_draws_every_vertex_and_every_pair_of_linked_ones() -> None:
    node = rl.load_node("dgx1-v100")
    drawing = parsed(node._repr_html_()).find(".//svg")
    assert drawing is not None
    assert len(drawing.findall(".//rect")) == len(node.vertices)
    pairs = {tuple(sorted(link.between)) for link in node.links}
    assert len(drawing.findall(".//line")) == len(pairs)
    width, height = (float(drawing.attrib[side]) for side in ("width", "height"))
    for box in drawing.findall(".//rect"):
        assert 0 <= float(box.attrib["x"]) <= width - float(box.attrib["width"])
        assert 0 <= float(box.attrib["y"]) <= height - float(box.attrib["height"])


def test_a_cluster_says_how_large_it_can_be() -> None:
    cluster = rl.load_cluster("selene-a100")
    text = words(cluster._repr_html_())
    assert f"up to {cluster.max_devices:,} x a100-sxm4-80gb" in text
    assert "fabric" in text
    assert words(rl.load_cluster("t4")._repr_html_()).startswith("device t4")


def test_a_model_lists_every_layer_and_its_sums() -> None:
    model = rl.load_model("lenet5")
    graph = model.forward(model.network.smallest_batch)
    rows = parsed(model._repr_html_()).findall(".//tr")[1:]
    cells = [[cell.text or "" for cell in row] for row in rows]
    assert {row[0] for row in cells} == {op.layer for op in graph.ops}
    assert sum(int(row[3].replace(",", "") or 0) for row in cells) == graph.parameters
    assert f"{graph.parameters:,} parameters" in words(model._repr_html_())


def test_a_model_of_very_many_layers_is_shown_in_part() -> None:
    model = rl.load_model("gpt3-175b")
    html = model._repr_html_()
    rows = ["".join(row.itertext()) for row in parsed(html).findall(".//tr")[1:]]
    (left,) = (row for row in rows if row.startswith("… "))
    graph = model.forward(model.network.smallest_batch)
    assert int(left.split()[1].replace(",", "")) + len(rows) - 1 == len(layer_table(graph))
    assert f"{graph.parameters:,} parameters" in words(html)
    assert len(html) < 150_000


def test_a_study_says_what_varies_what_stays_and_what_is_asked(tmp_path: Path) -> None:
    path = tmp_path / "study.yaml"
    path.write_text(
        "kind: study\nname: <b>\nmodel: lenet5\ncluster: tpu-v2\nplan: {precision: bf16-mixed}\n"
        "vary: {plan.global_batch: [1, 2, 3, 4, 5, 6, 7, 8, 9, 10]}\n"
        "zip: [{plan.tensor: [1, 2], plan.data: [2, 1]}]\n"
        "sample: {method: sobol, count: 4, over: {plan.bucket: {from: 1 MB, to: 9 MB}}}\n"
        "where: [global_batch > 2]\ncolumns: {half: step_time_s / 2}\nrequire: [half < 1]\n"
    )
    text = words(load_study(path)._repr_html_())
    assert "study <b>: at most 80 points" in text
    assert "plan.global_batch grid 1, 2, 3, 4, 5, 6, 7, 8, … 2 more" in text
    assert "plan.data together 1 2, 1" in text
    assert "plan.bucket sobol, 4 1 MB to 9 MB, linear" in text
    assert "plan.precision bf16-mixed" in text
    assert (
        "left out unless global_batch > 2 column half step_time_s / 2 feasible if half < 1" in text
    )


def test_a_plan_says_what_was_chosen_and_draws_no_more_than_can_be_seen() -> None:
    html = rl.Plan(global_batch=2**16, data=2**12, pipeline=64, micro_batch=1)._repr_html_()
    text = words(html)
    assert "plan for 262144 devices" in text
    assert "65536 samples = 4096 replicas x 16 micro-batches x 1" in text
    assert len(re.findall("<rect", html)) <= 72
    assert "replica 4095" in text


def test_things_say_themselves_in_one_line_and_one_is_no_plural() -> None:
    assert repr(rl.load_model("resnet50")) == "<Model resnet50: ResNet-50 v1.5>"
    changed = rl.load_model("resnet50", {"classes": 10})
    assert repr(changed) == "<Model resnet50: ResNet-50 v1.5 with 1 changes>"
    text = words(rl.Plan(global_batch=1)._repr_html_())
    assert "plan for 1 device 1 sample = 1 replica x 1 micro-batch x 1" in text


def test_text_of_a_file_is_escaped() -> None:
    hostile = '<script>alert("&")</script>'
    device = rl.load_device("t4").model_copy(update={"description": hostile, "name": hostile})
    model = rl.load_model("lenet5")
    model = type(model)(hostile, model.network)
    for thing in (device, model):
        html = thing._repr_html_()
        assert "<script" not in html
        assert hostile in words(html)


def test_a_drawing_of_too_many_vertices_is_left_out() -> None:
    from ridgeline.network.resolve import topology_of

    assert "too many" in _graph(topology_of("Ring(300, 1 GB/s, 1 us)"))
    assert "<svg" in _graph(topology_of("Ring(30, 1 GB/s, 1 us)"))
