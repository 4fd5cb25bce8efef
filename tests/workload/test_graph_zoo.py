"""Networks of the zoo against their papers: what formulas and published tables say of them."""

from dataclasses import replace

import pytest

from oracles.graph_zoo import NAMES
from ridgeline.errors import ConfigError
from ridgeline.workload import Conv, Pass, Role, layer_table, load_model, peak
from ridgeline.workload.graph import Gemm

APPLICATIONS = {
    "images": {"lenet5", "alexnet", "alexnet-two-tower", "alexnet-bn", "overfeat-fast", "vgg-a"}
    | {"vgg16", "vgg19"}
    | {"vgg116", "vgg216", "vgg316", "vgg416", "googlenet", "inception-v3", "densenet121"}
    | {"resnet18", "resnet34", "resnet50", "resnet101", "resnet152", "mobilenet", "amoebanet-d"}
    | {f"resnet-cifar-{n}" for n in (20, 32, 44, 56, 110)},
    "later images": {"swin-tiny", "swin-small", "swin-base", "inception-v4", "inception-resnet-v2"}
    | {"xception", "resnext101-64x4d", "vit-l32"}
    | {f"convnext-{n}" for n in ("tiny", "small", "base", "large")}
    | {f"regnet-{n}" for n in ("x-400mf", "x-3.2gf", "y-400mf", "y-3.2gf", "y-8gf", "y-16gf")},
    "diffusion": {"stable-diffusion-1", "stable-diffusion-2", "flux1-schnell"}
    | {f"dit-{n}2" for n in ("s", "b", "l", "xl")},
    "detection": {"ssd300", "ssd-resnet34", "mask-rcnn"} | {f"efficientdet-d{n}" for n in range(8)},
    "segmentation": {"unet", "fcn"},
    "recurrent": {"lstm-lm", "deepspeech2", "gnmt", "rnn-t"},
    "transformers": {"transformer-base", "transformer-big", "bert-base", "bert-large", "vit-b16"}
    | {"vit-l16", "gpt2", "t5-small", "t5-base", "t5-large", "t5-3b", "t5-11b"}
    | {f"gpt3-{n}" for n in ("125m", "350m", "760m", "1.3b", "2.7b", "6.7b", "13b", "175b")}
    | {f"llama2-{n}" for n in ("7b", "13b", "70b")}
    | {f"llama3-{n}" for n in ("8b", "70b", "405b")}
    | {"mixtral-8x7b", "deepseek-v2", "deepseek-v3"},
    "recommendation": {"dlrm", "dlrm-dcnv2", "ncf"},
    "games": {"minigo"},
    "plain": {"mlp"},
}


@pytest.mark.parametrize("application", APPLICATIONS)
def test_every_application_has_its_networks(application):
    assert APPLICATIONS[application] <= set(NAMES)


def test_published_counts_fit_to_half_of_their_last_digit():
    count = load_model("gpt3-13b").published.parameters
    assert count.fits(12_854_999_999)
    assert not count.fits(12_855_000_001)
    exact = load_model("resnet50").published.parameters
    assert exact.fits(25_557_032)
    assert not exact.fits(25_557_033)


@pytest.mark.parametrize(("name", "more"), [("vgg116", 20), ("vgg216", 40), ("vgg416", 80)])
def test_very_deep_vgg_adds_convolutions_to_every_group(name, more):
    """Rhu et al., MICRO 2016: 100 more for each step of depth."""
    graph = load_model(name).forward(1)
    convs = [op for op in graph.ops if isinstance(op.loops, Conv)]
    assert len(convs) == 13 + 5 * more
    assert len(convs) + 3 == int(name.removeprefix("vgg"))
    extra = more * 9 * sum(c * c for c in (64, 128, 256, 512, 512)) + more * 1472
    assert graph.parameters == load_model("vgg16").forward(1).parameters + extra


def test_vgg416_needs_the_memory_that_vdnn_reports():
    """67.1 GB at batch 32: Rhu et al., MICRO 2016. Our peak has no workspaces."""
    assert peak(load_model("vgg416").training(32)).total / 2**30 == pytest.approx(67.1, rel=0.03)


def test_auxiliary_classifiers_hang_on_the_side():
    """Without them GoogLeNet has Caffe's 6,998,552 parameters, Inception v3 torchvision's 5.713 G.

    HPE deep learning cookbook, table of models; torchvision, Inception_V3_Weights, _ops.
    """
    graph = load_model("googlenet").forward(1)
    rows = [r for r in layer_table(graph) if not r.name.startswith("auxiliary")]
    assert sum(r.parameters for r in rows) == 6_998_552
    inception = [
        r
        for r in layer_table(load_model("inception-v3").forward(1))
        if not r.name.startswith("auxiliary")
    ]
    assert sum(r.forward_flops for r in inception) == pytest.approx(2 * 5.713e9, rel=1e-3)
    assert [op.name for op in graph.ops][-2:] == ["loss-sum1", "loss-sum2"]


def test_inception_modules_have_the_shapes_of_the_papers():
    """Szegedy et al., CVPR 2015, Table 1, and CVPR 2016, Table 1."""
    rows = {r.name: r.output_shape for r in layer_table(load_model("googlenet").forward(1))}
    assert rows["inception3a"] == (1, 256, 28, 28)
    assert rows["inception4e"] == (1, 832, 14, 14)
    assert rows["inception5b"] == (1, 1024, 7, 7)
    rows = {r.name: r.output_shape for r in layer_table(load_model("inception-v3").forward(1))}
    assert rows["mixed5d"] == (1, 288, 35, 35)
    assert rows["mixed6e"] == (1, 768, 17, 17)
    assert rows["mixed7c"] == (1, 2048, 8, 8)


def test_densenet_grows_by_32_channels_a_layer():
    """Huang et al., CVPR 2017, Table 1."""
    rows = {r.name: r.output_shape for r in layer_table(load_model("densenet121").forward(1))}
    channels = 64
    for block, (layers, size) in enumerate([(6, 56), (12, 28), (24, 14), (16, 7)], start=1):
        for i in range(1, layers + 1):
            channels += 32
            assert rows[f"block{block}.{i}.concat"] == (1, channels, size, size)
        channels //= 2
    assert rows["avgpool"] == (1, 1024, 1, 1)


def test_depthwise_convolutions_have_one_group_a_channel():
    convs = [op.loops for op in load_model("mobilenet").forward(1).ops if op.kind == "conv2d"]
    depthwise = [c for c in convs if c.groups > 1]
    assert len(depthwise) == 13
    assert all(c.groups == c.c_in == c.c_out for c in depthwise)
    pointwise = sum(2 * c.macs for c in convs if c.r == 1)
    assert pointwise / load_model("mobilenet").forward(1).flops() == pytest.approx(
        0.9486, abs=0.003
    )


def test_unet_cuts_what_it_puts_beside():
    """Ronneberger et al., MICCAI 2015, Figure 1."""
    graph = load_model("unet").forward(1)
    rows = {r.name: r.output_shape for r in layer_table(graph)}
    assert rows["bottom-relu2"] == (1, 1024, 28, 28)
    for level, size, channels in ((4, 56, 1024), (3, 104, 512), (2, 200, 256), (1, 392, 128)):
        assert rows[f"concat{level}"] == (1, channels, size, size)
    assert rows["classes"] == (1, 2, 388, 388)
    assert graph.tensors["masks"].shape == (1, 388, 388)


def test_cifar_resnets_have_no_weights_in_shortcuts():
    rows = {r.name: r for r in layer_table(load_model("resnet-cifar-20").forward(1))}
    assert rows["layer2.0.downsample.0"].output_shape == (1, 16, 16, 16)
    assert rows["layer2.0.downsample.1"].output_shape == (1, 32, 16, 16)
    assert rows["layer3.2.relu"].output_shape == (1, 64, 8, 8)
    assert sum(r.parameters for n, r in rows.items() if "downsample" in n) == 0


@pytest.mark.parametrize(
    ("layers", "filters", "millions", "to"),
    [(18, 208, 82, 1), (18, 416, 318, 2), (36, 544, 1050, 10), (72, 512, 1800, 100)],
)
def test_amoebanet_has_the_parameters_of_gpipe(layers, filters, millions, to):
    """Huang et al., GPipe, NeurIPS 2019, Table 1, in their last printed digit (318 M by 0.4 %)."""
    graph = load_model("amoebanet-d", {"layers": layers, "filters": filters}).forward(1)
    assert graph.parameters / 1e6 == pytest.approx(millions, abs=to)


def test_ssd_looks_at_8732_boxes():
    """Liu et al., ECCV 2016, Section 3.1."""
    for name, classes in (("ssd300", 91), ("ssd-resnet34", 81)):
        graph = load_model(name).forward(2)
        assert graph.tensors["scores.y"].shape == (2, 8732, classes)
        assert graph.tensors["boxes.y"].shape == (2, 8732, 4)


def test_a_pyramid_in_both_directions_has_eight_nodes_a_cell():
    """Tan et al., CVPR 2020, Figure 2 (d): two sums of two below, three of three, and the ends."""
    graph = load_model("efficientdet-d0").forward(1)
    weights = [name for name in graph.tensors if name.startswith("cell1.") and ".weight" in name]
    assert sum(graph.tensors[n].shape == (1, 1, 1, 1) for n in weights) == 4 * 2 + 3 * 3 + 2
    anchors = 9 * sum((512 // 2**level) ** 2 for level in range(3, 8))
    assert graph.tensors["classes.y"].shape == (1, anchors, 90)
    assert graph.tensors["boxes.y"].shape == (1, anchors, 4)


def test_swin_attends_inside_windows_and_shifts_every_other_block():
    """Liu et al., ICCV 2021, Figures 2 and 3; one window is left in the last stage."""
    graph = load_model("swin-tiny").forward(2)
    scores = [op for op in graph.ops if op.kind == "attention-scores"]
    windows = [graph.tensors[op.outputs[0]].shape for op in scores]
    of_stages = [(64, 3), (16, 6), (4, 12), (1, 24)]
    assert windows == [
        (2 * count, heads, 49, 49)
        for (count, heads), depth in zip(of_stages, (2, 2, 6, 2), strict=True)
        for _ in range(depth)
    ]
    rolled = [op.layer for op in graph.ops if op.layer.endswith(".roll")]
    assert rolled == [
        f"stage{stage}.{i}.attention.roll" for stage, i in ((1, 1), (2, 1), (3, 1), (3, 3), (3, 5))
    ]


def test_a_transducer_classifies_every_frame_with_every_label():
    """49.0 million parameters, as the reference's layers have them: LSTMs with two biases."""
    graph = load_model("rnn-t").forward(2)
    assert graph.tensors["joint.classes.y"].shape == (2, 205, 54, 1024)
    assert graph.tensors["encoder.before.1.y"].shape == (2, 410, 1024)

    def lstm(inputs: int, hidden: int) -> int:
        return 4 * hidden * (inputs + hidden + 2)

    encoder = lstm(240, 1024) + lstm(1024, 1024) + lstm(2048, 1024) + 2 * lstm(1024, 1024)
    joint = (1024 + 1) * 512 + (512 + 1) * 512 + (512 + 1) * 1024
    assert graph.parameters == encoder + 1023 * 512 + 2 * lstm(512, 512) + joint


def test_cross_layers_have_two_matrices_of_low_rank():
    """Wang et al., WWW 2021, Section 3.5; rows of a table that are added up leave it as one."""
    graph = load_model("dlrm-dcnv2").training(2048)
    features = 27 * 128
    crossed = [t for t in graph.tensors.values() if t.role is Role.WEIGHT and "cross" in t.name]
    assert sum(t.elements for t in crossed) == 3 * (2 * 512 * features + features)
    table = next(op for op in graph.ops if op.name == "table21")
    assert graph.read_bytes(table) == 2048 * 100 * (8 + 128 * 4)
    assert graph.tensors["table21.y"].shape == (2048, 128)
    assert graph.tensors["table21.weight.grad"].shape == (2048 * 100, 128)


def test_diffusion_u_nets_read_the_text_at_three_of_four_sizes():
    """Rombach et al., CVPR 2022, Table 15: attention at 64, 32 and 16 pixels and in the middle."""
    graph = load_model("stable-diffusion-2").forward(1)
    scores = [op for op in graph.ops if op.kind == "attention-scores"]
    shapes = {graph.tensors[op.outputs[0]].shape for op in scores}
    sides = {64: 5, 32: 10, 16: 20, 8: 20}
    assert shapes == {
        (1, heads, side**2, keys) for side, heads in sides.items() for keys in (side**2, 77)
    }
    assert len(scores) == 2 * (3 * 2 + 1 + 3 * 3)


def test_flux_attends_to_text_and_image_together():
    graph = load_model("flux1-schnell").forward(1)
    scores = [op for op in graph.ops if op.kind == "attention-scores"]
    assert {graph.tensors[op.outputs[0]].shape for op in scores} == {(1, 24, 512, 512)}
    assert len(scores) == 19 + 38
    assert graph.tensors["head.y"].shape == (1, 256, 64)


def test_mask_rcnn_as_torchvision_counts_it():
    """134.38 GMAC at 800 x 800 with 1000 regions and no mask: MaskRCNN_ResNet50_FPN_Weights."""
    graph = load_model("mask-rcnn", {"regions": 1000}).forward(1)
    flops = sum(op.matrix_flops for op in graph.ops if not op.layer.startswith("masks."))
    assert flops == pytest.approx(2 * 134.38e9, rel=1e-4)
    masks = graph.flops() - flops
    one = 14 * 14 * (4 * 9 * 256 * 256 + 4 * 256 * 256) + 28 * 28 * 256 * 91
    assert masks == 128 * 2 * one


@pytest.mark.parametrize("frozen", [0, 1, 2])
def test_frozen_stages_of_mask_rcnn_have_neither_gradients_nor_updates(frozen):
    graph = load_model("mask-rcnn", {"frozen": frozen}).training(1)
    before = ("backbone.conv1.", *(f"backbone.layer{n + 1}." for n in range(frozen)))
    weights = {t.name for t in graph.tensors.values() if t.role is Role.WEIGHT}
    assert graph.frozen == {w for w in weights if frozen and w.startswith(before)}
    backward = {op.layer for op in graph.ops if op.pass_ is not Pass.FORWARD}
    assert any(f"{layer}.".startswith(before) for layer in backward) is not bool(frozen)
    assert any(layer.startswith("backbone.layer3.") for layer in backward)


def test_the_proposal_network_has_one_set_of_weights_for_all_levels():
    graph = load_model("mask-rcnn").training(1)
    readers = [op for op in graph.ops if "proposals.conv0.weight" in op.inputs]
    assert sum(op.pass_ is Pass.FORWARD for op in readers) == 5
    (update,) = [op for op in readers if op.pass_ is Pass.UPDATE]
    sums = [op for op in graph.ops if op.kind == "add" and op.outputs[0] in update.inputs]
    assert [op.pass_ for op in sums] == [Pass.WEIGHT_GRADIENT]


def test_anchors_are_matched_image_by_image_where_that_is_said():
    one, two = (load_model("ssd320").training(batch) for batch in (1, 2))
    left_out = load_model("ssd320", {"matching": 0}).training(1)
    found = [[op for op in graph.ops if op.layer == "matching"] for graph in (one, two, left_out)]
    assert [[op.kernels for op in ops] for ops in found] == [[105], [210], []]
    assert one.flops() == left_out.flops()
    assert one.parameters == left_out.parameters


@pytest.mark.parametrize("target", [7, 33])
def test_a_decoder_in_a_loop_has_its_kernels_for_every_token(target):
    fields = {"source": 9, "target": target}
    looped = load_model("gnmt", {**fields, "step_kernels": 309}).training(2)
    at_once = load_model("gnmt", fields).training(2)
    assert [replace(op, attrs=()) for op in looped.ops] == [
        replace(op, attrs=()) for op in at_once.ops
    ]
    inside = [op for op in looped.ops if op.kernels > 1]
    assert sum(op.kernels for op in inside) == pytest.approx(309 * target, rel=0.02)
    assert {op.pass_ for op in inside} == {Pass.FORWARD, Pass.INPUT_GRADIENT, Pass.WEIGHT_GRADIENT}
    assert all(op.layer.startswith("decoder") for op in inside)
    assert all(op.kernels == 1 for op in at_once.ops)


def test_fcn_dilates_instead_of_shrinking():
    graph = load_model("fcn").forward(1)
    dilations = {
        op.layer: (op.loops.dilation[0], op.loops.stride[0])
        for op in graph.ops
        if isinstance(op.loops, Conv)
    }
    assert dilations["backbone.layer2.0.conv2"] == (1, 2)
    assert dilations["backbone.layer3.0.conv2"] == (1, 1)
    assert dilations["backbone.layer3.5.conv2"] == (2, 1)
    assert dilations["backbone.layer4.0.conv2"] == (2, 1)
    assert dilations["backbone.layer4.2.conv2"] == (4, 1)


def test_recurrent_graphs_do_not_grow_with_time():
    short, long = (load_model("lstm-lm", {"sequence": n}).training(2) for n in (5, 500))
    assert len(short.ops) == len(long.ops)
    cells = [op for op in long.ops if op.kind == "lstm"]
    assert {("sequential", 1) in op.attrs for op in cells if op.loops.batch == 500} == {True}
    assert long.flops() == 100 * short.flops()


def test_lstm_flops_are_eight_hidden_squares_a_step_for_inputs_and_state():
    graph = load_model("lstm-lm").forward(3)
    layers, hidden, steps, vocabulary = 2, 1500, 35, 10_000
    each = 2 * 4 * hidden * hidden
    assert graph.flops() == 3 * steps * (layers * 2 * each + 2 * hidden * vocabulary)


def test_gnmt_layers():
    graph = load_model("gnmt").forward(4)
    widths = {op.layer: op.loops.k for op in graph.ops if isinstance(op.loops, Gemm)}
    assert widths["encoder.1.inputs"] == 2048  # both directions of the first layer
    assert {widths[f"decoder.{i}.inputs"] for i in (1, 2, 3)} == {2048}  # state and context
    assert widths["decoder.0.inputs"] == 1024
    assert graph.tensors["decoder.attention.scores.y"].shape == (4, 1, 50, 50)


def test_deep_speech_halves_time_once():
    rows = {r.name: r.output_shape for r in layer_table(load_model("deepspeech2").forward(2))}
    assert rows["columns"] == (2, 485, 672)
    assert rows["head"] == (2, 485, 29)


def test_recommenders_touch_only_the_rows_that_they_look_up():
    graph = load_model("dlrm").training(2048)
    table = next(op for op in graph.ops if op.kind == "embedding")
    assert graph.read_bytes(table) == 2048 * (8 + 128 * 4)
    update = next(op for op in graph.ops if op.name == "table1.weight.update")
    assert graph.read_bytes(update) == 2 * 2048 * 128 * 4
    assert graph.write_bytes(update) == 2048 * 128 * 4
    assert graph.tensors["table1.weight.grad"].shape == (2048, 128)
    assert graph.tensors["pairs.y"].shape == (2048, 27 * 26 // 2)
    pooled = sum(t.elements for t in graph.tensors.values() if t.role is Role.WEIGHT)
    assert pooled == graph.parameters > 24e9


def test_policy_and_value_share_a_tower():
    """Silver et al., Nature 550, 2017, Methods: 362 moves, values from -1 to 1."""
    graph = load_model("minigo").training(8)
    assert graph.tensors["policy.fc.y"].shape == (8, 362)
    assert graph.tensors["value.tanh.y"].shape == (8, 1)
    towers = [op for op in graph.ops if op.pass_ is Pass.FORWARD and op.layer.startswith("block")]
    assert sum(isinstance(op.loops, Conv) for op in towers) == 2 * 19


UNET = [layer.name for layer in load_model("unet").network.layers]


@pytest.mark.parametrize(
    ("name", "overrides", "message"),
    [
        (
            "unet",
            {f"layers.{UNET.index('concat4')}.beside": ["down5-relu2"]},
            "no layer before it is called 'down5-relu2'; did you mean 'down",
        ),
        ("amoebanet-d", {"layers": 7}, "multiple of 3"),
        ("dlrm", {"top": [4, 2]}, "one output, not 2"),
        ("dlrm", {"lookups": [1, 2]}, "2 lookups for 26 tables"),
        ("swin-tiny", {"image.height": 225}, "sides are multiples of 224"),
        ("swin-tiny", {"heads": [3, 6]}, "heads of 2 stages, depths of 4"),
        ("rnn-t", {"frames": 411}, "411 frames are no multiple of 2"),
        ("stable-diffusion-1", {"attends": [True]}, "4 levels, attends says 1"),
        ("stable-diffusion-1", {"image.width": 60}, "multiples of 8"),
        ("deepspeech2", {"length": 900}, "900 labels in 485 timesteps"),
        ("vgg116", {"layers.0.times": 9000}, "more than 10000 layers"),
        ("densenet121", {"layers.2.layers.0.join": "add"}, "adds shapes"),
        ("googlenet", {"segments": True}, "pixels have no auxiliary classifiers"),
    ],
)
def test_impossible_networks_are_explained(name, overrides, message):
    with pytest.raises(ConfigError, match=message):
        load_model(name, overrides)
