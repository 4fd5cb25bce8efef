"""PyTorch modules: against the zoo, PyTorch's own FLOP counter, and what its autograd saves."""

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed: make test-trace")

from torch import nn
from torch.nn import functional
from torch.utils.flop_counter import FlopCounterMode

import ridgeline as rl
from ridgeline.errors import RidgelineError
from ridgeline.parallel.partition.pipeline_partition import partition
from ridgeline.parallel.plan.programmed import programmed
from ridgeline.workload import Pass, Role
from ridgeline.workload.trace.network import TraceWarning
from stacked import PLAIN
from workload.trace import torch_networks, torch_oddities


def ids(*shape):
    return torch.empty(shape, dtype=torch.int64, device="meta")


def images(batch, size=224):
    return torch.empty(batch, 3, size, size, device="meta")


ZOO = {
    "resnet50": (torch_networks.ResNet50, (images(2),), {}),
    "vgg16": (torch_networks.Vgg16, (images(2),), {}),
    "bert-base": (torch_networks.Bert, (ids(2, 512), ids(2, 512), ids(2, 80)), {}),
    "gpt2": (torch_networks.Gpt2, (ids(2, 1024),), {}),
    "llama3-8b": (torch_networks.Llama, (ids(2, 8192),), {}),
    "lstm-lm": (torch_networks.LstmLm, (ids(2, 35),), {"bias": "two"}),  # nn.LSTM has two
}


def on_meta(make):
    with torch.device("meta"):
        return make()


@pytest.mark.parametrize("name", ZOO)
@pytest.mark.parametrize("precision", ["fp32", "bf16-mixed"])
def test_a_module_agrees_with_the_zoo(name, precision):
    make, inputs, overrides = ZOO[name]
    traced = rl.trace(on_meta(make), *inputs).training(4, precision)
    zoo = rl.load_model(name, overrides).training(4, precision)
    assert traced.parameters == zoo.parameters
    for part in (Pass.FORWARD, Pass.INPUT_GRADIENT, Pass.WEIGHT_GRADIENT):
        assert traced.flops(part) == pytest.approx(zoo.flops(part), rel=0.005)
    assert traced.activation_bytes == pytest.approx(zoo.activation_bytes, rel=0.02)
    assert traced.tokens_per_sample == zoo.tokens_per_sample


def test_a_traced_step_takes_as_long_as_that_of_the_zoo():
    plan = rl.Plan(data=8, global_batch=512, precision="fp16-mixed")
    traced = rl.trace(on_meta(torch_networks.ResNet50), images(2))
    ours = rl.simulate(traced, "dgx1-v100", plan, software=PLAIN)
    zoo = rl.simulate("resnet50", "dgx1-v100", plan, software=PLAIN)
    assert ours.step_time_s == pytest.approx(zoo.step_time_s, rel=0.02)
    # the shortcut is computed after the branch here, before it in the zoo
    assert ours.memory_bytes["total"] == pytest.approx(zoo.memory_bytes["total"], rel=0.05)
    assert "stages.3.main.0" in {op.layer for op in traced.forward(1).ops}


@pytest.mark.parametrize(
    "degrees",
    [{"tensor": 2, "data": 4}, {"tensor": 4, "sequence": 4}, {"pipeline": 2, "micro_batch": 1},
     {"data": 8, "zero_stage": 3}, {"data": 8, "recompute": "full"}],
    ids=str,
)  # fmt: skip
def test_every_plan_costs_what_it_costs_the_zoo(degrees):
    plan = rl.Plan(global_batch=16, precision="bf16-mixed", **degrees)
    traced = rl.trace(on_meta(lambda: torch_networks.Gpt2(layers=2)), ids(2, 1024))
    ours = rl.simulate(traced, "dgx-a100", plan, software=PLAIN)
    layers = {"layers": 2}
    zoo = rl.simulate(rl.load_model("gpt2", layers), "dgx-a100", plan, software=PLAIN)
    assert ours.step_time_s == pytest.approx(zoo.step_time_s, rel=0.02)
    assert ours.memory_bytes["total"] == pytest.approx(zoo.memory_bytes["total"], rel=0.03)


def test_example_sizes_do_not_matter():
    module = torch_oddities.VisionTransformer()
    small, large = (rl.trace(module, torch.empty(n, 3, 64, 64)) for n in (8, 16))
    assert small.network.fingerprint == large.network.fingerprint
    assert small.training(5) == large.training(5)


@pytest.mark.parametrize("case", torch_oddities.CASES, ids=lambda case: case.make.__name__)
@pytest.mark.filterwarnings("ignore::ridgeline.workload.trace.network.TraceWarning")
def test_forward_flops_equal_those_that_pytorch_counts(case):
    module = case.make()
    traced = rl.trace(module, *case.example(3), **case.options)
    batch = 5 if traced.network.smallest_batch == 1 else traced.network.smallest_batch
    with FlopCounterMode(display=False) as counter:
        module(*case.example(batch))
    graph = traced.training(batch)
    assert graph.flops(Pass.FORWARD) == counter.get_total_flops()
    assert graph.parameters == sum(p.numel() for p in module.parameters())
    plan = rl.Plan(data=2, global_batch=2 * batch, precision="fp16-mixed")
    assert rl.simulate(traced, "dgx1-v100", plan).step_time_s > 0


@pytest.mark.parametrize("case", torch_oddities.TRAINED, ids=lambda case: case.make.__name__)
def test_backward_flops_equal_those_that_pytorch_counts(case):
    """PyTorch's counter has one number for both gradients; recomputation is in neither."""
    module, batch = case.make(), 4
    graph = rl.trace(module, *case.example(3), **case.options).training(batch)
    with FlopCounterMode(display=False) as counter:
        module(*case.example(batch)).square().mean().backward()
    assert graph.flops() == counter.get_total_flops()


SAVED = {
    "exp": torch.exp, "log": torch.log, "sqrt": torch.sqrt, "rsqrt": torch.rsqrt,
    "square": torch.square, "sin": torch.sin, "tanh": torch.tanh, "sigmoid": torch.sigmoid,
    "relu": torch.relu, "gelu": functional.gelu, "silu": functional.silu, "abs": torch.abs,
    "elu": functional.elu, "leaky_relu": functional.leaky_relu, "softplus": functional.softplus,
    "hardswish": functional.hardswish, "mish": functional.mish, "erf": torch.erf,
    "reciprocal": torch.reciprocal, "neg": torch.neg, "log1p": torch.log1p,
    "softmax": lambda x: x.softmax(-1), "log_softmax": lambda x: x.log_softmax(-1),
    "cumsum": lambda x: x.cumsum(-1), "roll": lambda x: x.roll(1, -1), "flip": lambda x: x.flip(-1),
    "power": lambda x: x**3, "scale": lambda x: 3 * x, "tril": lambda x: x.tril(),
    "logsumexp": lambda x: x.logsumexp(-1, keepdim=True) + x, "clamp": lambda x: x.clamp(-1, 1),
    "var": lambda x: x + x.var(-1, keepdim=True), "mean": lambda x: x - x.mean(-1, keepdim=True),
}  # fmt: skip


@pytest.mark.parametrize("name", SAVED)
def test_what_is_kept_is_what_pytorch_saves(name):
    """Between two linear layers: the bytes that autograd saves, each storage once."""

    class Between(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = nn.Linear(64, 256, bias=False), nn.Linear(256, 8, bias=False)

        def forward(self, x):
            return self.b(SAVED[name](self.a(x))).square().sum()

    module, batch, saved = Between(), 32, {}

    def pack(tensor):
        saved[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda x: x):
        loss = module(torch.rand(batch, 64))
    weights = {p.untyped_storage().data_ptr() for p in module.parameters()}
    expected = sum(size for where, size in saved.items() if where not in weights)
    graph = rl.trace(module, torch.empty(4, 64)).training(batch)
    assert loss.ndim == 0
    # rows' statistics (one number of 256) may differ
    assert graph.activation_bytes == pytest.approx(expected, rel=0.02)


def test_losses_and_criteria():
    module = nn.Linear(6, 4)
    x = torch.empty(3, 6)
    kinds = {}
    for loss in (None, "mse", "bce", "smooth-l1", nn.CrossEntropyLoss(), nn.MSELoss(),
                 lambda y: (y**2).mean()):  # fmt: skip
        graph = rl.trace(module, x, loss=loss).training(2)
        kinds[str(loss)[:8]] = [op.kind for op in graph.ops if graph.loss in op.outputs]
    assert list(kinds.values()) == [
        ["loss"], ["mse-loss"], ["bce-loss"], ["smooth-l1-loss"], ["loss"], ["mse-loss"], ["mean"],
    ]  # fmt: skip
    with pytest.raises(RidgelineError, match="unknown loss 'hinge'"):
        rl.trace(module, x, loss="hinge")
    with pytest.raises(RidgelineError, match="does not return a scalar"):
        rl.trace(module, x, loss=lambda y: y)


def test_shared_frozen_and_unused_parameters():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b, self.unused = nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 8)
            self.b.weight = self.a.weight
            self.a.bias.requires_grad_(False)

        def forward(self, x):
            return self.b(self.a(x))

    graph = rl.trace(Net(), torch.empty(2, 8)).training(2)
    updated = [op.inputs[0] for op in graph.ops if op.kind == "optimizer"]
    assert updated == ["a.weight", "b.bias"]
    assert graph.tensors["a.bias"].role is Role.WEIGHT  # frozen: held, and not updated
    assert graph.parameters == 64 + 2 * 8 + 64 + 8  # as many as the module has


def test_writes_into_views_are_followed():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = nn.Linear(8, 8), nn.Linear(8, 8)

        def forward(self, x):
            y = self.a(x)
            out = torch.zeros_like(y)
            out[:, :4] = 2 * y[:, :4]
            out[:, 4:].add_(y[:, 4:])
            return self.b(out)

    graph = rl.trace(Net(), torch.empty(2, 8)).training(2)
    updated = [op.inputs[0] for op in graph.ops if op.kind == "optimizer"]
    assert sum(graph.tensors[name].elements for name in updated) == 2 * (64 + 8)


@pytest.mark.parametrize("layer", [nn.Dropout, nn.Dropout2d])
def test_dropout_in_place_is_dropout(layer):
    def ops(in_place):
        net = nn.Sequential(nn.Conv2d(3, 4, 3), layer(0.2, inplace=in_place), nn.Conv2d(4, 5, 3))
        return [op.kind for op in rl.trace(net, torch.empty(2, 3, 9, 9)).training(2, "fp32").ops]

    assert ops(True) == ops(False)
    assert {"dropout", "broadcast-multiply"} & set(ops(True))


def test_a_module_that_looks_at_values_is_refused_with_the_place():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.gate = nn.Linear(8, 8)

        def forward(self, x):
            y = self.gate(x)
            return y if y.sum() > 0 else -y

    with pytest.raises(RidgelineError, match="the values of a tensor decide what is computed next"):
        rl.trace(Net(), torch.empty(2, 8))
    with pytest.raises(RidgelineError, match="fails in 'gate' on example inputs of batch 2"):
        rl.trace(Net(), torch.empty(2, 9))


def test_unknown_operators_warn_or_are_refused():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.a = nn.Linear(16, 16)

        def forward(self, x):
            return torch.linalg.matrix_exp(self.a(x))

    with pytest.warns(TraceWarning, match=r"aten\.linalg_matrix_exp \(1 x, .*%"):
        rl.trace(Net(), torch.empty(2, 16, 16))
    with pytest.raises(RidgelineError, match="unknown operations"):
        rl.trace(Net(), torch.empty(2, 16, 16), strict=True)


class Loop(nn.Module):
    """A cell that runs for each step of time, and makes several tensors in one op."""

    def __init__(self):
        super().__init__()
        self.cell, self.head = nn.LSTMCell(8, 16), nn.Linear(16, 4)

    def forward(self, x):
        h = c = x.new_zeros(x.shape[0], 16)
        states = []
        for t in range(x.shape[1]):
            h, c = self.cell(x[:, t], (h, c))
            states.append(h)
        return self.head(torch.stack(states, 1))


class Twice(nn.Module):
    """Layers that run at the beginning and at the end."""

    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(8, 8), nn.Sequential(*[nn.Linear(8, 8) for _ in range(3)])

    def forward(self, x):
        return self.a(torch.relu(self.b(torch.relu(self.a(x)))))


@pytest.mark.parametrize(("make", "shape"), [(Loop, (4, 5, 8)), (Twice, (4, 8))])
@pytest.mark.parametrize("stages", [2, 3])
def test_a_pipeline_cuts_networks_whose_layers_run_again(make, shape, stages):
    model = rl.trace(make(), torch.empty(shape))
    graph = model.training(4, "fp16-mixed")
    parts = partition(graph, [float(op.matrix_flops) for op in graph.ops], stages).parts
    assert sum(part.graph.flops() for part in parts) == graph.flops()
    for number, part in enumerate(parts):
        assert all((r.source < number) == r.forward for r in part.receipts)
    plan = rl.Plan(pipeline=stages, micro_batch=4, global_batch=4 * stages, precision="fp16-mixed")
    result = rl.simulate(model, "dgx1-v100", plan)
    assert result.flops_per_step == stages * graph.flops()


def test_tracing_changes_nothing_about_the_module():
    module = torch_networks.ResNet50((1, 1, 1, 1)).eval()
    before = {name: value.clone() for name, value in module.state_dict().items()}
    rl.trace(module, torch.zeros(2, 3, 64, 64))
    assert not module.training
    assert all(torch.equal(before[name], value) for name, value in module.state_dict().items())


def test_gpt3_is_traced_quickly_in_little_memory():
    import resource
    import time

    def make():
        return torch_networks.Gpt2(layers=96, hidden=12288, heads=96, vocabulary=51200, length=2048)

    start = time.process_time()
    graph = rl.trace(on_meta(make), ids(1, 2048), batch_dim=0).forward(1)
    assert time.process_time() - start < 60
    assert graph.parameters == pytest.approx(175e9, rel=0.01)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss < 2e6  # KiB


def test_a_hugging_face_configuration_is_a_model():
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    config = transformers.GPT2Config(architectures=["GPT2LMHeadModel"])
    graph = rl.trace(config, ids(2, 1024)).training(2)
    zoo = rl.load_model("gpt2").training(2)
    assert graph.parameters == zoo.parameters
    assert graph.flops() == zoo.flops()
    assert graph.activation_bytes == pytest.approx(zoo.activation_bytes, rel=0.02)


def test_flash_attention_stores_no_scores():
    separate, flash = (
        rl.trace(torch_oddities.VisionTransformer(), images(2, 64), attention=kind).training(2)
        for kind in ("separate", "flash")
    )
    assert flash.flops(Pass.FORWARD) == separate.flops(Pass.FORWARD)
    assert flash.activation_bytes < separate.activation_bytes


@pytest.mark.parametrize(("asked", "stack", "stores_scores"), [
    (None, "pytorch-amp-2021", True), (None, "ideal", False),
    ("separate", "ideal", True), ("flash", "pytorch-amp-2021", False),
])  # fmt: skip
def test_software_computes_attention_unless_the_trace_says_how(asked, stack, stores_scores):
    traced = rl.trace(torch_oddities.VisionTransformer(), images(2, 64), attention=asked)
    graph = programmed(traced, rl.load_software(stack).kernels, 2020).training(2)
    assert any(op.kind == "softmax" for op in graph.ops) == stores_scores
