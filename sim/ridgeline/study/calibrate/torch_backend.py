"""PyTorch's kernels as a training step runs them: eager, through modules and autograd."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import torch
from torch import nn
from torch.nn import functional

from ridgeline.errors import RidgelineError
from ridgeline.study.calibrate.clock import Run, Stopwatch, cpu_watch
from ridgeline.study.calibrate.machine import Cache, MeasuredProcessor, processor
from ridgeline.study.calibrate.probes import Shape
from ridgeline.workload.graph import Conv, Gemm

_TYPES = {
    "fp32": torch.float32,
    "bf16": torch.bfloat16,
    "fp16": torch.float16,
    "fp64": torch.float64,
}
_FORMATS = {"cpu": ("fp32", "bf16", "fp64"), "cuda": ("fp32", "fp16", "bf16", "fp64")}
_OPTIMIZERS: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "sgd": lambda tensors: torch.optim.SGD(tensors, lr=1e-3),
    "sgd-momentum": lambda tensors: torch.optim.SGD(tensors, lr=1e-3, momentum=0.9),
    "adam": lambda tensors: torch.optim.Adam(tensors, lr=1e-3),
    "adamw": lambda tensors: torch.optim.AdamW(tensors, lr=1e-3),
}
Function = Callable[..., torch.Tensor]


class _Gelu(nn.Module):  # type: ignore[misc]
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return functional.gelu(x, approximate="tanh")


_MODULES: Mapping[str, Callable[[Shape], nn.Module]] = {
    "relu": lambda shape: nn.ReLU(),
    "sigmoid": lambda shape: nn.Sigmoid(),
    "tanh": lambda shape: nn.Tanh(),
    "gelu": lambda shape: _Gelu(),
    "silu": lambda shape: nn.SiLU(),
    "dropout": lambda shape: nn.Dropout(0.1),
    "softmax": lambda shape: nn.Softmax(dim=-1),
    "layer-norm": lambda shape: nn.LayerNorm(shape[-1]),
    "batch-norm": lambda shape: nn.BatchNorm2d(shape[1]),
    "max-pool": lambda shape: nn.MaxPool2d(2),
    "avg-pool": lambda shape: nn.AvgPool2d(2),
    "adaptive-avg-pool": lambda shape: nn.AdaptiveAvgPool2d(1),
}
_PAIRS: Mapping[str, Function] = {
    "add": torch.add,
    "multiply": torch.mul,
    "concat": lambda x, y: torch.cat([x, y], dim=-1),
}


class TorchBackend:
    """PyTorch on a processor, or on an accelerator, whose work is waited for."""

    name = "torch"

    def __init__(self, device: str, threads: int, seed: int) -> None:
        if device == "cuda" and not torch.cuda.is_available():
            raise RidgelineError(
                "this PyTorch finds no CUDA device (torch.cuda.is_available() is False); "
                "say --device cpu"
            )
        self.device: Literal["cpu", "cuda"] = "cuda" if device == "cuda" else "cpu"
        self.threads, self.formats = threads, _FORMATS[self.device]
        torch.manual_seed(seed)
        if self.device == "cuda":
            self.watch = Stopwatch(cpu_watch(0).now, torch.cuda.synchronize)
            built = f"CUDA {torch.version.cuda}, {torch.cuda.get_device_name()}"
        else:
            torch.set_num_threads(threads)
            self.watch = cpu_watch(threads)
            built = f"CPU capability {torch.backends.cpu.get_cpu_capability()}"
        self.versions = f"PyTorch {torch.__version__} ({built})"

    def _tensor(self, *shape: int, format_: str = "fp32", grad: bool = False) -> torch.Tensor:
        made = torch.randn(*shape, device=self.device).to(_TYPES[format_])
        return made.requires_grad_(grad)

    def _back(self, y: torch.Tensor, wanted: Sequence[torch.Tensor]) -> Run:
        seed = torch.ones_like(y)
        return lambda: torch.autograd.grad(y, wanted, seed, retain_graph=True)

    def described(self) -> MeasuredProcessor:
        """Describe this machine's processor, or the accelerator as its driver does."""
        if self.device == "cpu":
            return processor()
        found = torch.cuda.get_device_properties(0)
        units = found.multi_processor_count
        return MeasuredProcessor(
            model=found.name,
            cores=units,
            caches=(Cache(2, found.L2_cache_size, units),),
            memory_bytes=found.total_memory,
            register_bytes=4 * found.regs_per_multiprocessor,
        )

    def product(self, gemm: Gemm, pass_: str, format_: str) -> Run | None:
        """Run a linear layer, or the product of two batches of matrices."""
        if gemm.batch > 1:
            return self._batched(gemm, pass_, format_)
        sizes = {  # of the layer: rows, features in, features out
            "forward": (gemm.m, gemm.k, gemm.n),
            "input-gradient": (gemm.m, gemm.n, gemm.k),
            "weight-gradient": (gemm.k, gemm.n, gemm.m),
        }
        rows, fan_in, fan_out = sizes[pass_]
        layer = nn.Linear(fan_in, fan_out, bias=False, device=self.device, dtype=_TYPES[format_])
        x = self._tensor(rows, fan_in, format_=format_, grad=pass_ == "input-gradient")
        if pass_ == "forward":
            return lambda: layer(x)
        return self._back(layer(x), [x if pass_ == "input-gradient" else layer.weight])

    def _batched(self, gemm: Gemm, pass_: str, format_: str) -> Run | None:
        if pass_ == "weight-gradient":
            return None
        # The backward pass of [m, n] x [n, k] is [m, k] x [k, n]: it has the sizes of `gemm`.
        n, k = (gemm.n, gemm.k) if pass_ == "forward" else (gemm.k, gemm.n)
        a = self._tensor(gemm.batch, gemm.m, k, format_=format_, grad=True)
        b = self._tensor(gemm.batch, n, k, format_=format_)
        if pass_ == "forward":
            return lambda: torch.matmul(a, b.transpose(-2, -1))
        return self._back(torch.matmul(a, b.transpose(-2, -1)), [a])

    def convolution(self, conv: Conv, pass_: str, format_: str) -> Run | None:
        """Run a convolution without bias."""
        layer = nn.Conv2d(
            conv.c_in, conv.c_out, (conv.r, conv.s), conv.stride, conv.padding, conv.dilation,
            conv.groups, bias=False, device=self.device, dtype=_TYPES[format_],
        )  # fmt: skip
        shape = (conv.batch, conv.c_in, conv.h_in, conv.w_in)
        x = self._tensor(*shape, format_=format_, grad=pass_ == "input-gradient")
        if pass_ == "forward":
            return lambda: layer(x)
        return self._back(layer(x), [x if pass_ == "input-gradient" else layer.weight])

    def stream(self, name: str, shape: Shape) -> Mapping[str, Run]:
        """Run a module, and go back through it."""
        x = self._tensor(*shape, grad=True)
        if name in _MODULES:
            module = _MODULES[name](shape).to(self.device)
            return self._both(lambda: module(x), [x, *module.parameters()])
        if name in _PAIRS:
            other, pair = self._tensor(*shape, grad=True), _PAIRS[name]
            return self._both(lambda: pair(x, other), [x, other])
        return self._special(name, shape, x)

    def _both(self, forward: Run, wanted: Sequence[torch.Tensor]) -> dict[str, Run]:
        y = forward()
        assert isinstance(y, torch.Tensor)
        return {"forward": forward, "input-gradient": self._back(y, wanted)}

    def _special(self, name: str, shape: Shape, x: torch.Tensor) -> Mapping[str, Run]:
        rows, width = shape[0], shape[-1]
        if name == "loss":
            labels = torch.randint(width, (rows,), device=self.device)
            criterion: nn.Module = nn.CrossEntropyLoss()
            return self._both(lambda: criterion(x, labels), [x])
        if name == "mse-loss":
            wanted, squares = self._tensor(*shape), nn.MSELoss()
            return self._both(lambda: squares(x, wanted), [x])
        if name == "embedding":
            table = nn.Embedding(rows, width, device=self.device)
            indices = torch.randint(rows, (rows,), device=self.device)
            back = self._both(lambda: table(indices), [table.weight])
            return {"forward": back["forward"], "weight-gradient": back["input-gradient"]}
        if name == "bias":  # the library adds it to the result of a product; its gradient is a sum
            bias, y = self._tensor(width), x.detach()
            return {"forward": lambda: y.add_(bias), "weight-gradient": lambda: y.sum(0)}
        return {}

    def recurrence(self, batch: int, hidden: int, steps: int) -> Mapping[str, Run]:
        """Run an LSTM layer."""
        layer = nn.LSTM(hidden, hidden, batch_first=True, device=self.device)
        x = self._tensor(batch, steps, hidden, grad=True)
        return self._both(lambda: layer(x)[0], [x, *layer.parameters()])

    def update(self, rule: str, tensors: int, elements: int) -> Run | None:
        """Step an optimizer over weights with gradients."""
        if rule not in _OPTIMIZERS:
            return None
        weights = [self._tensor(elements, grad=True) for _ in range(tensors)]
        for weight in weights:
            weight.grad = torch.zeros_like(weight)
        optimizer = _OPTIMIZERS[rule](weights)
        run: Callable[[], Any] = optimizer.step
        return run

    def add(self, elements: int) -> Run:
        """Add without a graph, into memory that is there."""
        a, b, c = (torch.ones(elements, device=self.device) for _ in range(3))
        return lambda: torch.add(a, b, out=c)

    def backward_chain(self, depth: int) -> Run | None:
        """Go back through activations of a few elements."""
        x = self._tensor(4, 4, grad=True)
        y = x
        for _ in range(depth):
            y = torch.relu(y)
        return self._back(y, [x])
