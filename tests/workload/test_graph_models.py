"""The networks of models/ against what is published about them, and the reading of their files."""

import pickle
import subprocess
import sys

import numpy as np
import pytest

from oracles.graph_zoo import NAMES, one_of_each, shallow
from ridgeline import catalog
from ridgeline.errors import ConfigError, RidgelineError
from ridgeline.workload import Conv, Pass, Role, layer_table, load_model
from ridgeline.workload.optimizers import OPTIMIZERS

TORCHVISION = {
    "alexnet": 61_100_840,
    "resnet18": 11_689_512,
    "resnet34": 21_797_672,
    "resnet50": 25_557_032,
    "resnet101": 44_549_160,
    "resnet152": 60_192_808,
    "vgg16": 138_357_544,
}


@pytest.mark.parametrize("name", NAMES)
def test_published_numbers(name):
    model = load_model(name)
    forward, published = model.forward(1), model.published
    if published.parameters:
        assert published.parameters.fits(forward.parameters)
    if published.forward_flops:
        assert forward.flops() == pytest.approx(published.forward_flops.value, rel=0.01)
    assert model.citation
    assert model.title


@pytest.mark.parametrize("name", sorted(TORCHVISION))
def test_torchvision_networks_have_their_parameters(name):
    published = load_model(name).published
    assert published.parameters is not None
    assert published.parameters.value == TORCHVISION[name]
    assert published.forward_flops is not None


def test_lenet_layers_have_the_parameters_of_the_paper():
    """LeCun et al., Proc. IEEE 86(11), 1998, Section II.B: C1 156, C5 48,120, F6 10,164."""
    rows = {row.name: row.parameters for row in layer_table(load_model("lenet5").forward(1))}
    assert (rows["c1"], rows["fc5"], rows["fc6"]) == (156, 48_120, 10_164)


def test_resnet50_stages_have_the_shapes_of_the_paper():
    """He et al., CVPR 2016, Table 1, column 50-layer."""
    rows = {row.name: row.output_shape for row in layer_table(load_model("resnet50").forward(4))}
    assert rows["conv1"] == (4, 64, 112, 112)
    assert rows["maxpool"] == (4, 64, 56, 56)
    for stage, (blocks, channels, size) in enumerate(
        [(3, 256, 56), (4, 512, 28), (6, 1024, 14), (3, 2048, 7)], start=1
    ):
        for i in range(blocks):
            out = (4, channels, size, size)
            assert rows[f"layer{stage}.{i}.relu"] == rows[f"layer{stage}.{i}.add"] == out
            assert rows[f"layer{stage}.{i}.conv2"] == (4, channels // 4, size, size)
        assert f"layer{stage}.{blocks}.relu" not in rows
    assert rows["avgpool"] == (4, 2048, 1, 1)
    assert rows["fc"] == (4, 1000)


def test_alexnet_and_vgg_feature_maps():
    alexnet = {r.name: r.output_shape for r in layer_table(load_model("alexnet").forward(1))}
    assert alexnet["conv1"] == (1, 64, 55, 55)
    assert alexnet["pool5"] == (1, 256, 6, 6)
    vgg = {r.name: r.output_shape for r in layer_table(load_model("vgg16").forward(1))}
    assert vgg["pool5"] == (1, 512, 7, 7)
    assert vgg["fc6"] == (1, 4096)


@pytest.mark.parametrize("name", one_of_each())
def test_layer_table_sums_to_the_graph(name):
    graph = shallow(name).forward(2, "fp16-mixed")
    rows = layer_table(graph)
    assert sum(row.parameters for row in rows) == graph.parameters
    assert sum(row.forward_flops for row in rows) == graph.flops()
    outputs = [x for op in graph.ops for x in (op.outputs[1:] if op.in_place else op.outputs)]
    new = [graph.tensors[x] for x in outputs if graph.tensors[x].role is Role.ACTIVATION]
    assert sum(row.activation_bytes for row in rows) == sum(t.bytes for t in new)
    assert layer_table(shallow(name).training(2, "fp16-mixed"))[0].name == rows[0].name


def test_v1_strides_in_the_first_convolution_of_a_block(tmp_path):
    text = (catalog.root() / "models/resnet50.yaml").read_text()
    path = tmp_path / "v1.yaml"
    path.write_text(text.replace("stride_on: 3x3", "stride_on: 1x1"))
    v1, v15 = load_model(path).forward(1), load_model("resnet50").forward(1)
    stride = {op.name: op.loops.stride for op in v1.ops if isinstance(op.loops, Conv)}
    assert stride["layer2.0.conv1"] == (2, 2)
    assert stride["layer2.0.conv2"] == (1, 1)
    assert v1.parameters == v15.parameters
    # "3.8 x 10^9 FLOPs (multiply-adds)": He et al., Section 3.3 and Table 1.
    assert v1.flops() / 2 == pytest.approx(3.8e9, rel=0.02)


@pytest.mark.parametrize(
    ("options", "parameters"),
    [("groups: 32\nwidth_per_group: 4", 25_028_904), ("width_per_group: 128", 68_883_240)],
)
def test_resnext_and_wide_resnets_are_data(tmp_path, options, parameters):
    """torchvision documentation: resnext50_32x4d and wide_resnet50_2, num_params."""
    head, _, _ = (catalog.root() / "models/resnet50.yaml").read_text().partition("published:")
    path = tmp_path / "wide.yaml"
    path.write_text(f"{head}\n{options}\n")
    assert load_model(path).forward(1).parameters == parameters


def test_training_graphs_are_cached_by_value():
    model = load_model("lenet5")
    graph = model.training(8, "tf32")
    assert model.training(8, "tf32", OPTIMIZERS["sgd"]) is graph
    assert load_model("lenet5").training(8, "tf32") is graph
    assert model.training(9, "tf32") is not graph


def test_models_and_graphs_travel_between_processes():
    model = load_model("resnet18")
    assert pickle.loads(pickle.dumps(model)) == model
    graph = model.training(2)
    assert pickle.loads(pickle.dumps(graph)) == graph


def test_windows_may_differ_in_height_and_width(tmp_path):
    path = tmp_path / "oblong.yaml"
    path.write_text(LENET.replace("kernel: 5", "kernel: [5, 3], padding: [0, 1]", 1))
    rows = {row.name: row for row in layer_table(load_model(path).forward(1))}
    assert rows["c1"].output_shape == (1, 6, 28, 32)
    assert rows["c1"].parameters == 6 * (5 * 3 + 1)


def test_description_repeats_the_model():
    model = load_model("vgg16")
    assert type(model.network).model_validate(model.description) == model.network


@pytest.mark.parametrize("precision", ["fp32", "fp16-mixed"])
def test_input_bytes_are_images_in_fp32_and_a_label(precision):
    model = load_model("resnet50")
    assert model.input_bytes_per_sample == 3 * 224 * 224 * 4 + 8
    inputs = [t for t in model.training(7, precision).tensors.values() if t.role is Role.INPUT]
    assert sum(t.bytes for t in inputs) == 7 * model.input_bytes_per_sample


def test_graphs_say_what_a_sample_is():
    assert load_model("resnet50").forward(1).sample == "images"
    assert load_model("mlp").forward(1).sample == "samples"


@pytest.mark.parametrize("batch", [0, -1, 2**24 + 1])
def test_absurd_batches_are_errors(batch):
    with pytest.raises(RidgelineError, match="allowed: 1 to"):
        load_model("lenet5").training(batch)


def test_sizes_are_exact_integers_whatever_the_batch_comes_as():
    graph = load_model("vgg16").training(np.int32(2**20))
    assert graph.flops() > 2**48
    assert all(type(op.matrix_flops) is int for op in graph.ops)


LENET = (catalog.root() / "models/lenet5.yaml").read_text()
RESNET = (catalog.root() / "models/resnet18.yaml").read_text()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (LENET.replace("family: sequential", "family: sequentiell"), "did you mean 'sequential'"),
        (LENET.replace("family: sequential\n", ""), "'family' must name a network family"),
        ("- 1\n", "expected a mapping of fields"),
        (LENET.replace("kind: model", "kind: device"), "expected 'kind: model', found 'device'"),
        (LENET.replace("optimizer: sgd", "optimizer: adamm"), "did you mean 'adam'"),
        (LENET.replace("layer: conv", "layer: konv", 1), "konv"),
        (LENET.replace("filters: 6", "filter: 6"), "unknown field 'filter'"),
        (LENET.replace("filters: 6", "filters: 0"), "greater than or equal to 1"),
        (LENET.replace("filters: 6", "filters: 6.5"), "integer"),
        (
            LENET.replace("kernel: 5", "kernel: [5, 5, 5]", 1),
            "number from 1 to 1024 or [height, width]",
        ),
        (LENET.replace("kernel: 5", "kernel: true", 1), "found True"),
        (LENET.replace("kernel: 5", "kernel: 2000", 1), "from 1 to 1024"),
        (LENET.replace("height: 32", "height: 3"), "window of 5 x 5 does not fit on images of 3"),
        (LENET.replace("  - {layer: flatten}\n", ""), "'fc5': put a flatten layer"),
        (LENET.replace("name: tanh1", "name: c1"), "'c1.y'; rename a layer"),
        (LENET + "\nnonsense: 1\n", "unknown field 'nonsense'"),
        (RESNET.replace("[2, 2, 2, 2]", "[2, 2, 2, 1000000000]"), "10000"),
        (RESNET.replace("[2, 2, 2, 2]", "[2000, 2000]"), "more than 10000 layers"),
        (RESNET.replace("[2, 2, 2, 2]", "[]"), "at least 1"),
        (RESNET.replace("block: basic", "block: basic\nstride_on: 1x1"), "bottleneck"),
    ],
)
def test_broken_files_are_explained(tmp_path, text, message):
    path = tmp_path / "broken.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=r"broken\.yaml:") as caught:
        load_model(path)
    assert message in str(caught.value)


def test_unknown_names_list_what_is_there():
    with pytest.raises(ConfigError, match="did you mean 'resnet50'"):
        load_model("resnett50")


def test_importing_the_room_is_light():
    code = (
        "import sys, ridgeline.workload; from ridgeline.workload import Graph;"
        "print(sorted({'numba', 'pydantic', 'numpy', 'matplotlib'} & set(sys.modules)))"
    )
    path = str(catalog.root() / "sim")
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={"PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.strip() == "[]"


def test_weight_gradient_ops_of_a_layer_come_before_those_of_earlier_layers():
    graph = load_model("resnet50").training(1)
    order = [op.layer for op in graph.ops if op.pass_ is Pass.WEIGHT_GRADIENT and op.loops]
    forward = [op.layer for op in graph.ops if op.pass_ is Pass.FORWARD and op.loops]
    assert order == forward[::-1]
