"""Steps of several networks and optimizers: FLOPs and memory are those that PyTorch counts."""

from __future__ import annotations

import copy
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed: make test-trace")

from torch import nn  # noqa: E402
from torch.nn import functional  # noqa: E402
from torch.profiler import ProfilerActivity, profile  # noqa: E402
from torch.utils.flop_counter import FlopCounterMode  # noqa: E402

import ridgeline as rl  # noqa: E402
from ridgeline.errors import RidgelineError  # noqa: E402
from ridgeline.workload.graph import Graph, Role  # noqa: E402
from ridgeline.workload.liveness import lifetimes, peak  # noqa: E402
from ridgeline.workload.network_parts import part_models  # noqa: E402
from ridgeline.workload.trace.native import graph_file  # noqa: E402
from ridgeline.workload.trace.network import TraceWarning  # noqa: E402

BATCH = 512
Step = Callable[..., Any]


def layers(*sizes: int) -> Any:
    parts = [p for k, n in pairwise(sizes) for p in (nn.Linear(k, n), nn.Tanh())]
    return nn.Sequential(*parts[:-1])


def gan() -> tuple[Step, tuple[Any, ...], dict[str, Any]]:
    g, d = layers(16, 64, 96), layers(96, 64, 1)
    of_g, of_d = torch.optim.Adam(g.parameters()), torch.optim.SGD(d.parameters(), 0.1, 0.9)

    def step(real: Any, noise: Any) -> float:
        fake = g(noise)
        of_d.zero_grad()
        loss = functional.softplus(-d(real)).mean() + functional.softplus(d(fake.detach())).mean()
        loss.backward()
        of_d.step()
        of_g.zero_grad()
        functional.softplus(-d(fake)).mean().backward()
        of_g.step()
        return float(loss.detach())

    return step, (torch.randn(BATCH, 96), torch.randn(BATCH, 16)), {"g": g, "d": d}


def two_losses_one_step() -> tuple[Step, tuple[Any, ...], dict[str, Any]]:
    """Gradients of two backward passes add up, as in DCGAN's discriminator."""
    d = layers(96, 64, 1)
    optimizer = torch.optim.AdamW(d.parameters())

    def step(real: Any, fake: Any) -> None:
        optimizer.zero_grad()
        functional.softplus(-d(real)).mean().backward()
        functional.softplus(d(fake)).mean().backward()
        optimizer.step()

    return step, (torch.randn(BATCH, 96), torch.randn(BATCH, 96)), {"d": d}


def critics() -> tuple[Step, tuple[Any, ...], dict[str, Any]]:
    """WGAN: the critic is trained twice a step; the generator's pass forms no gradients of it."""
    g, d = layers(16, 64, 96), layers(96, 64, 1)
    of_g, of_d = torch.optim.RMSprop(g.parameters()), torch.optim.RMSprop(d.parameters())

    def step(real: Any, noise: Any) -> None:
        for _ in range(2):
            d.zero_grad()
            with torch.no_grad():
                fake = g(noise)
            (d(fake).mean() - d(real).mean()).backward()
            of_d.step()
        d.requires_grad_(False)
        g.zero_grad()
        (-d(g(noise)).mean()).backward()
        of_g.step()
        d.requires_grad_(True)

    return step, (torch.randn(BATCH, 96), torch.randn(BATCH, 16)), {"g": g, "d": d}


class Distillation:
    """A step as a method: the teacher is in evaluation mode and takes no gradients."""

    def __init__(self) -> None:
        self.models = {"student": layers(32, 48, 10), "teacher": layers(32, 128, 128, 10).eval()}
        self.optimizer = torch.optim.AdamW(self.models["student"].parameters())
        self.scheduler = torch.optim.lr_scheduler.StepLR(self.optimizer, 5)

    def step(self, x: Any, labels: Any) -> Any:
        with torch.no_grad():
            wanted = self.models["teacher"](x)
        given = self.models["student"](x)
        loss = functional.cross_entropy(given, labels) + functional.kl_div(
            functional.log_softmax(given, -1), functional.softmax(wanted, -1), reduction="batchmean"
        )
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        self.scheduler.step()
        return loss


def distillation() -> tuple[Step, tuple[Any, ...], dict[str, Any]]:
    made = Distillation()
    return made.step, (torch.randn(BATCH, 32), torch.zeros(BATCH, dtype=torch.long)), made.models


class Decoder(nn.Module):  # type: ignore[misc]
    def __init__(self, outputs: int = 50) -> None:
        super().__init__()
        self.table, self.norm = nn.Embedding(50, 32), nn.LayerNorm(32)
        self.up, self.down, self.head = nn.Linear(32, 64), nn.Linear(64, 32), nn.Linear(32, outputs)

    def forward(self, tokens: Any) -> Any:
        x = self.table(tokens)
        y = self.norm(x)
        x = x + functional.scaled_dot_product_attention(y, y, y, is_causal=True)
        return self.head(x + self.down(functional.gelu(self.up(x))))


def chances(model: Any, tokens: Any) -> Any:
    taken = torch.log_softmax(model(tokens), -1).gather(-1, tokens[..., None])
    return taken.squeeze(-1).sum(-1)


def preference() -> tuple[Step, tuple[Any, ...], dict[str, Any]]:
    """DPO (Rafailov et al., arXiv:2305.18290): a policy and the reference that it began as."""
    policy = Decoder()
    reference = copy.deepcopy(policy).requires_grad_(False)
    optimizer = torch.optim.AdamW(policy.parameters())

    def step(chosen: Any, rejected: Any) -> None:
        with torch.no_grad():
            before = chances(reference, chosen) - chances(reference, rejected)
        now = chances(policy, chosen) - chances(policy, rejected)
        (-functional.logsigmoid(0.1 * (now - before))).mean().backward()
        optimizer.step()
        optimizer.zero_grad()

    tokens = torch.zeros(8, 12, dtype=torch.long)
    return step, (tokens, tokens.clone()), {"policy": policy, "reference": reference}


def policy_optimisation() -> tuple[Step, tuple[Any, ...], dict[str, Any]]:
    """PPO (Ouyang et al., arXiv:2203.02155): actor and critic, reference and reward."""
    models = {
        "actor": Decoder(),
        "critic": Decoder(1),
        "reference": Decoder(),
        "reward": Decoder(1),
    }
    actor = torch.optim.AdamW(models["actor"].parameters())
    critic = torch.optim.Adam(models["critic"].parameters())

    def step(tokens: Any) -> None:
        with torch.no_grad():
            reference = chances(models["reference"], tokens)
            old = chances(models["actor"], tokens)
            reward = models["reward"](tokens)[:, -1, 0] - 0.1 * (old - reference)
            value = models["critic"](tokens).mean((1, 2))
        for _ in range(2):  # epochs over the same samples
            actor.zero_grad()
            critic.zero_grad()
            ratio = torch.exp(chances(models["actor"], tokens) - old)
            gain = reward - value
            loss = -torch.minimum(ratio * gain, ratio.clamp(0.8, 1.2) * gain).mean()
            loss.backward()
            actor.step()
            functional.mse_loss(models["critic"](tokens).mean((1, 2)), reward).backward()
            critic.step()

    return step, (torch.zeros(8, 12, dtype=torch.long),), models


STEPS = (gan, two_losses_one_step, critics, distillation, preference, policy_optimisation)


def graph_of(step: Step, inputs: tuple[Any, ...]) -> Graph:
    return rl.trace(step, *inputs).training(inputs[0].shape[0])


@pytest.mark.filterwarnings("ignore::ridgeline.workload.trace.network.TraceWarning")
@pytest.mark.parametrize("make", STEPS)
def test_flops_weights_and_states_are_those_of_the_step(make: Any) -> None:
    step, inputs, models = make()
    graph = graph_of(step, inputs)
    with FlopCounterMode(display=False) as counter:
        step(*inputs)
    assert graph.flops() == pytest.approx(counter.get_total_flops(), rel=0.02)
    held = sum(p.numel() for model in models.values() for p in model.parameters())
    assert graph.parameters == held
    optimizers = [o for o in vars_of(step) if isinstance(o, torch.optim.Optimizer)]
    trained = [p for o in optimizers for group in o.param_groups for p in group["params"]]
    weights = {t.name: t for t in graph.tensors.values() if t.role is Role.WEIGHT}
    mine = sum(t.elements for name, t in weights.items() if name not in graph.frozen)
    assert mine == sum(p.numel() for p in trained)
    state = sum(v.numel() for o in optimizers for s in o.state.values() for k, v in s.items()
                if k != "step" and v is not None)  # fmt: skip
    states = [t for t in graph.tensors.values() if t.role is Role.STATE]
    wide = 2 if make is critics else 1  # RMSprop here has momentum, too
    assert sum(t.elements for t in states) == wide * state


def vars_of(step: Step) -> list[Any]:
    if hasattr(step, "__self__"):
        return list(vars(step.__self__).values())
    return [cell.cell_contents for cell in step.__closure__ or ()]


@pytest.mark.filterwarnings("ignore::ridgeline.workload.trace.network.TraceWarning")
@pytest.mark.parametrize("make", [gan, two_losses_one_step, distillation])
def test_the_fullest_moment_is_that_of_pytorchs_allocations(make: Any) -> None:
    """Of what the step makes; weights, states and the mini-batch are there before."""
    step, inputs, models = make()
    step(*inputs)
    for model in models.values():
        model.zero_grad()
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        step(*inputs)
    now = most = 0
    for event in profiler.profiler.kineto_results.events():
        if event.name() == "[memory]":
            now += event.nbytes()
            most = max(most, now)
    graph = graph_of(step, inputs)
    there = {Role.WEIGHT, Role.STATE, Role.BUFFER, Role.INPUT}
    held = [0] * len(graph.ops)
    for name, (first, last) in lifetimes(graph).items():
        tensor = graph.tensors[name]
        for i in range(first, last + 1):
            held[i] += tensor.bytes * (tensor.role not in there)
    assert max(held) == pytest.approx(most, rel=0.05)
    assert peak(graph).total >= max(held)


@pytest.mark.filterwarnings("ignore::ridgeline.workload.trace.network.TraceWarning")
def test_optimizers_keep_their_rules_unless_the_plan_says_another() -> None:
    step, inputs, _ = gan()
    model = rl.trace(step, *inputs)

    def rules(graph: Graph) -> set[tuple[str, str]]:
        ops = (op for op in graph.ops if op.kind == "optimizer")
        return {(op.name[0], str(dict(op.attrs)["rule"])) for op in ops}

    assert rules(model.training(BATCH)) == {("g", "adam"), ("d", "sgd-momentum")}
    lion = rl.simulate(model, "dgx-h100", rl.Plan(global_batch=BATCH, optimizer="lion"))
    assert rules(lion.details.lowered.graph) == {("g", "lion"), ("d", "lion")}


@pytest.mark.thorough
@pytest.mark.filterwarnings("ignore::ridgeline.workload.trace.network.TraceWarning")
def test_plans_divide_a_step_of_several_passes() -> None:
    step, inputs, _ = gan()
    model = rl.trace(step, *inputs)
    alone = rl.simulate(model, "dgx-h100", rl.Plan(global_batch=4 * BATCH))
    for plan in ({"data": 4}, {"data": 4, "zero_stage": 3}, {"data": 2, "tensor": 2},
                 {"micro_batch": BATCH}):  # fmt: skip
        found = rl.simulate(model, "dgx-h100", rl.Plan(global_batch=4 * BATCH, **plan))
        assert found.flops_per_step == alone.flops_per_step
        assert found.memory_bytes["activations"] < alone.memory_bytes["activations"]


@pytest.mark.filterwarnings("ignore::ridgeline.workload.trace.network.TraceWarning")
def test_several_passes_are_neither_cut_nor_divided_nor_written() -> None:
    step, inputs, _ = gan()
    model = rl.trace(step, *inputs)
    with pytest.raises(RidgelineError, match="2 backward passes a step, which are not divided"):
        part_models(model, ["g"])
    with pytest.raises(RidgelineError, match="2 backward passes a step, which are not cut"):
        rl.simulate(model, "dgx-h100", rl.Plan(global_batch=BATCH, pipeline=2))
    with pytest.raises(RidgelineError, match="no word for the 2 backward passes"):
        graph_file(model.forward(BATCH))


def test_what_is_not_part_of_a_step_is_said_with_its_line() -> None:
    net = layers(8, 8)
    mean = copy.deepcopy(net)
    optimizer = torch.optim.ASGD(net.parameters())
    scaler = torch.amp.GradScaler("cpu")

    def step(x: Any) -> None:
        scaler.scale(net(x).square().mean()).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        with torch.no_grad():
            for old, new in zip(mean.parameters(), net.parameters(), strict=True):
                old.mul_(0.99).add_(new, alpha=0.01)

    with pytest.warns(TraceWarning) as found:
        graph = rl.trace(step, torch.empty(4, 8)).training(4)
    said = [str(warning.message) for warning in found]
    for what in ("gradients are read at", "optimizer ASGD at", "a parameter is written at"):
        (line,) = [text for text in said if what in text]
        assert "test_torch_step.py:" in line
    assert graph.frozen == {f"mean.0.{part}" for part in ("weight", "bias")}


def test_weights_that_are_updated_twice_are_said() -> None:
    step, inputs, _ = critics()
    with pytest.warns(TraceWarning, match="4 weights are updated more than once a step"):
        rl.trace(step, *inputs)


def test_steps_that_are_none_are_one_line() -> None:
    net = layers(8, 8)
    other = torch.optim.SGD(layers(8, 8).parameters())
    optimizer = torch.optim.SGD(net.parameters())

    def no_backward(x: Any) -> Any:
        return net(x).sum()

    def no_step(x: Any) -> None:
        net(x).sum().backward()

    def early(x: Any) -> None:
        optimizer.step()
        net(x).sum().backward()

    def no_scalar(x: Any) -> None:
        net(x).backward(torch.ones(4, 8))

    def strange(x: Any) -> None:
        net(x).sum().backward()
        other.step()

    def alone(x: Any) -> Any:
        return x.sum()

    for step, says in (
        (no_backward, "calls no backward"), (no_step, "calls no optimizer.step"),
        (early, "before any backward pass"), (no_scalar, "is no scalar"),
        (strange, "2 parameters of no network"), (alone, "reads no torch.nn.Module"),
        (7, "expected a torch.nn.Module, a step function"),
    ):  # fmt: skip
        with pytest.raises(RidgelineError, match=says) as error:
            rl.trace(step, torch.empty(4, 8))
        assert "\n" not in str(error.value)


def test_pytorch_is_left_as_it_was() -> None:
    names = ((torch.Tensor, "backward"), (torch.optim.SGD, "step"), (nn.Module, "zero_grad"),
             (torch.optim.Optimizer, "zero_grad"), (torch.autograd, "backward"))  # fmt: skip
    before = [getattr(owner, name) for owner, name in names]
    step, inputs, models = two_losses_one_step()
    values = [p.detach().clone() for p in models["d"].parameters()]
    rl.trace(step, *inputs)
    assert [getattr(owner, name) for owner, name in names] == before
    assert all(torch.equal(p, v) for p, v in zip(models["d"].parameters(), values, strict=True))
    assert all(p.grad is None for p in models["d"].parameters())
