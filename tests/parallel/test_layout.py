"""Images whose channels come first: copies around the convolutions of tensor cores."""

import pytest

from ridgeline import load_model, simulate
from ridgeline.hardware.load import load_device
from ridgeline.parallel.passes.layout import copied_formats, with_blocks, with_copies, with_heads
from ridgeline.report.op_times import op_times
from ridgeline.workload.graph import Conv, Pass, Role
from stacked import changed, stacked

IMAGES = {Role.INPUT, Role.ACTIVATION, Role.ACTIVATION_GRADIENT}


@pytest.fixture(scope="module")
def training():
    return load_model("efficientnet-b0", {"image": {"height": 64, "width": 64}}).training(
        2, "fp16-mixed"
    )


def test_every_convolution_of_a_tensor_core_copies_its_images_and_nothing_else(training):
    copied = with_copies(training, frozenset({"fp16"}))
    copies = [op for op in copied.ops if op.kind == "layout"]
    convs = [op for op in training.ops if isinstance(op.loops, Conv)]
    dense = [op for op in convs if op.loops.groups == 1]
    assert 0 < len(dense) < len(convs)  # depthwise ones have kernels for either order
    images = [
        name
        for op in dense
        for name in (*op.inputs, *op.outputs)
        if training.tensors[name].role in IMAGES
    ]
    assert len(copies) == len(images)
    bytes_ = sum(training.tensors[name].bytes for name in images)
    assert sum(copied.read_bytes(op) + copied.write_bytes(op) for op in copies) == 2 * bytes_
    assert copied.flops() == training.flops()
    assert len({op.name for op in copied.ops}) == len(copied.ops)


def test_what_a_convolution_reads_was_copied_before_and_what_it_writes_is_copied_back(training):
    copied = with_copies(training, frozenset({"fp16"}))
    made = {
        name
        for name, t in copied.tensors.items()
        if t.role in {Role.INPUT, Role.WEIGHT, Role.BUFFER}
    } | {name for name, t in training.tensors.items() if t.role is Role.STATE}
    for op in copied.ops:
        assert made.issuperset(op.inputs), op.name
        made |= set(op.outputs)
    assert made >= {name for op in training.ops for name in op.outputs}


def test_other_formats_stay_as_they_are(training):
    assert with_copies(training, frozenset()) is training
    assert with_copies(training, frozenset({"tf32"})).ops == training.ops


def test_only_tensor_cores_want_channels_last():
    assert "fp16" in copied_formats(load_device("v100-sxm2-16gb"))
    assert "fp32" not in copied_formats(load_device("v100-sxm2-16gb"))
    assert copied_formats(load_device("titan-xp")) == frozenset()


@pytest.mark.parametrize(
    ("device", "precision", "slower"),
    [
        ("a100-sxm4-80gb", "tf32", (1.25, 1.6)),
        ("v100-sxm2-16gb", "fp16-mixed", (1.25, 1.6)),
        ("v100-sxm2-16gb", "fp32", (1.0, 1.0)),
        ("titan-xp", "fp32", (1.0, 1.0)),
    ],
)
def test_a_step_is_longer_where_the_channels_come_first(device, precision, slower):
    """NGC PyTorch's ResNet-50 on a V100: 1,200 images a second, and 803 with channels first."""
    times = [
        simulate(
            "resnet50",
            device,
            stacked(global_batch=64, precision=precision, kernels__layout=layout),
        ).step_time_s
        for layout in ("channels-last", "channels-first")
    ]
    least, most = slower
    assert least * times[0] <= times[1] <= most * times[0]


def test_the_library_and_not_the_host_issues_the_copies():
    """A step of nothing but issuing is as long with copies as without."""
    plan = stacked(
        global_batch=1,
        precision="fp16-mixed",
        host__launch_time="1 ms",
        kernels__layout="channels-first",
    )
    first = simulate("resnet-cifar-20", "v100-sxm2-16gb", plan)
    last = simulate(
        "resnet-cifar-20",
        "v100-sxm2-16gb",
        changed(plan, kernels__layout="channels-last"),
    )
    assert first.step_time_s == pytest.approx(last.step_time_s, rel=5e-3)


def _norm_s(norms: str, device: str) -> dict[str, float]:
    model = load_model("efficientnet-b0", {"image": {"height": 64, "width": 64}})
    result = simulate(
        model, device, stacked(global_batch=64, precision="fp32", kernels__norm=norms)
    )
    return {t.op.name: t.time_s for t in op_times(result) if t.op.kind == "batch-norm"}


@pytest.mark.parametrize("device", ["v100-sxm2-16gb", "k80"])
def test_a_batch_norm_of_few_channels_leaves_multiprocessors_idle(device):
    last = _norm_s("shared", device)
    first = _norm_s("by-channel", device)
    processors = load_device(device).memory["registers"].instances.value
    launch_s = load_device(device).launch_latency.value
    channels = {
        f"stage{number}.0.project.bn": c
        for number, c in enumerate((16, 24, 40, 80, 112, 192, 320), start=1)
    }
    for layer, c in channels.items():
        (name,) = (n for n in first if n.startswith(layer) and "gradient" not in n)
        slower = max(1.0, processors / c)
        assert first[name] - launch_s == pytest.approx(slower * (last[name] - launch_s))
    assert all(first[name] >= last[name] for name in last)


def test_instance_norms_have_a_block_for_each_channel_of_each_image():
    graph = load_model("nnunet-3d", {"size": [32, 32, 32]}).training(3, "fp32")
    norms = [op for op in with_blocks(graph).ops if op.kind == "group-norm"]
    assert norms
    for op in norms:  # forward it writes the image, backward it reads its gradient and it
        image = op.outputs[0] if op.pass_ is Pass.FORWARD else op.inputs[1]
        assert op.blocks == 3 * graph.tensors[image].shape[1]


@pytest.fixture(scope="module")
def attending():
    return load_model("bert-base", {"layers": 2, "sequence": 16, "masked": 2}).training(
        2, "fp16-mixed"
    )


def test_heads_are_copied_once_on_each_side_of_the_products_of_attention(attending):
    copied = with_heads(attending)
    copies = [op for op in copied.ops if op.kind == "layout"]
    # Queries, keys, values and what comes out; their gradients: 8 in each of two layers.
    assert len(copies) == 2 * 8
    size = {
        attending.tensors[op.inputs[0]].bytes for op in copies if op.inputs[0] in attending.tensors
    }
    assert len(size) == 1
    moved = sum(copied.read_bytes(op) + copied.write_bytes(op) for op in copies)
    assert moved == 2 * len(copies) * size.pop()
    assert copied.flops() == attending.flops()
    assert len({op.name for op in copied.ops}) == len(copied.ops)


def test_what_a_product_of_attention_reads_was_copied_before(attending):
    copied = with_heads(attending)
    given = {Role.INPUT, Role.WEIGHT, Role.BUFFER, Role.STATE}
    made = {name for name, t in copied.tensors.items() if t.role in given}
    for op in copied.ops:
        assert made.issuperset(op.inputs), op.name
        made |= set(op.outputs)
    assert made >= {name for op in attending.ops for name in op.outputs}
    products = [op for op in copied.ops if op.kind in {"attention-scores", "attention-context"}]
    assert len(products) == 2 * 6
    for op in products:
        for name in (*op.inputs, *op.outputs):
            assert len(copied.tensors[name].shape) == 4 or name not in attending.tensors


def test_fused_attention_copies_no_heads():
    fused = load_model("bert-base", {"layers": 1, "attention.kernel": "flash"}).training(1, "fp32")
    assert with_heads(fused).ops == fused.ops


def test_a_step_with_copied_heads_is_longer_by_their_traffic():
    times = [
        simulate(
            "bert-base",
            "v100-sxm2-16gb",
            stacked(global_batch=8, precision="fp32", kernels__attention_transpose=heads),
        ).step_time_s
        for heads in (False, True)
    ]
    assert 1.005 < times[1] / times[0] < 1.06
