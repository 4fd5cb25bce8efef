"""Optimizers: what an update computes and keeps for every weight."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

from ridgeline.errors import RidgelineError
from ridgeline.registry import Registry


@dataclass(frozen=True, slots=True)
class Optimizer:
    """An update rule, applied to each weight separately.

    Attributes
    ----------
    states
        The fp32 tensors kept for every weight tensor, by name.
    flops_per_weight
        Arithmetic per weight in FLOP; division and square root count as one.
    rule
        What `flops_per_weight` counts (g gradient, w weight).
    source
        Where the rule is defined.
    weight_passes, gradient_passes
        How often the weight and its gradient are read: again, once norms over the tensor are known.
    weight_writes
        How often a tensor of the weight's size is written: a second time where the update is
        stored until its norm is known.
    factored
        Of a matrix, only the sums of the rows and of the columns of each state are kept.
    kernels
        Where the update is written op by op: how many tensors of the weight's size each kernel
        reads and writes, that which zeroes the gradient for the next step included; empty: it is
        one kernel. Those of `torch.optim` in PyTorch 1.4 (torch/optim/sgd.py, adam.py, adamw.py,
        rmsprop.py and zero_grad in optimizer.py), where loops over tensors call them one by one;
        of lamb those of NVIDIA DeepLearningExamples (PyTorch/LanguageModeling/Transformer-XL,
        pytorch/lamb.py, JITLamb), whose elementwise parts TorchScript fuses between two norms.
    graph_kernels
        The same as ops of TensorFlow's graph, which has one for the update of a weight by the
        usual rules (core/kernels/training_ops_gpu.cu.cc) and adds decay to the loss, a sum of
        squares of each weight (tensorflow/benchmarks, benchmark_cnn.py, l2_loss); of adamw the
        steps of google-research/bert, optimization.py, of lamb those of NVIDIA
        DeepLearningExamples (TensorFlow/LanguageModeling/Transformer-XL), tf/lamb.py. Assignments
        are left out: they take over what nothing else reads.
    """

    name: str
    states: tuple[str, ...]
    flops_per_weight: int
    rule: str
    source: str
    weight_passes: int = 1
    gradient_passes: int = 1
    weight_writes: int = 1
    factored: bool = False
    kernels: tuple[tuple[int, int], ...] = ()
    graph_kernels: tuple[tuple[int, int], ...] = ()

    @property
    def by_element(self) -> bool:
        """Whether each weight is updated by itself, without norms over its tensor."""
        return self.gradient_passes == 1

    def state_shapes(self, shape: tuple[int, ...]) -> dict[str, tuple[int, ...]]:
        """Names and shapes of the tensors kept for a weight tensor."""
        if not self.factored or len(shape) < 2:
            return dict.fromkeys(self.states, shape)
        *lead, rows, columns = shape
        return {
            f"{state}.{part}": (*lead, size)
            for state in self.states
            for part, size in (("rows", rows), ("columns", columns))
        }


_ADAM = (  # m *= b1; m += g; v *= b2; v += g g; root, its division, + eps; w += m / root
    (1, 1), (2, 1), (1, 1), (2, 1), (1, 1), (1, 1), (1, 1), (3, 1),
)  # fmt: skip
_DECAYED, _ZEROED = (2, 1), (0, 1)  # g += decay w; g = 0
_IN_THE_LOSS = ((1, 0), (1, 1), (2, 1))  # sum of w w; its gradient; the sum of gradients
_ADAM_OF_GRAPH = (  # m b1, g (1 - b1), their sum; v b2, g g, times 1 - b2, their sum
    (1, 1), (1, 1), (2, 1), (1, 1), (1, 1), (1, 1), (2, 1),
)  # fmt: skip
_ROOT_AND_DECAY = ((1, 1), (1, 1), (2, 1), (1, 1), (2, 1))  # root, + eps, m / it; w decay, + it
_SQUARED = ((1, 1), (1, 0))  # squares and their sum
_RATE = ((1, 1), (2, 1))  # u rate; w - it

OPTIMIZERS: Registry[str, Optimizer] = Registry("optimizer", __name__, Optimizer)
"""All optimizers by name."""


def optimizer(name: str, **properties: Any) -> Optimizer:
    """Register an optimizer. It is data alone, so that no function stands below.

    Parameters
    ----------
    name
        What ``optimizer=`` of a plan, and ``optimizer:`` of a model file, call it.
    properties
        The attributes of `Optimizer`.

    Raises
    ------
    RidgelineError
        If the name is taken, or a property is missing or unknown.
    """
    try:
        made = Optimizer(name, **properties)
    except TypeError as error:
        said = str(error).partition("__init__() ")[2]
        known = ", ".join(one.name for one in fields(Optimizer))
        raise RidgelineError(f"optimizer {name!r}: {said} (properties: {known})") from error
    return OPTIMIZERS.register(name)(made)


optimizer(
    "sgd",
    states=(),
    flops_per_weight=4,
    rule="g += decay w; w -= rate g",
    source="Robbins and Monro, A stochastic approximation method, Ann. Math. Statist. 22,"
    " 1951; with weight decay",
    kernels=(_DECAYED, (2, 1), _ZEROED),
    graph_kernels=(*_IN_THE_LOSS, (2, 1)),
)
optimizer(
    "sgd-momentum",
    states=("momentum",),
    flops_per_weight=6,
    rule="g += decay w; m = mu m + g; w -= rate m",
    source="Sutskever et al., On the importance of initialization and momentum in deep"
    " learning, ICML 2013; in the form of torch.optim.SGD, with weight decay",
    kernels=(_DECAYED, (1, 1), (2, 1), (2, 1), _ZEROED),
    graph_kernels=(*_IN_THE_LOSS, (3, 2)),
)
optimizer(
    "adam",
    states=("first-moment", "second-moment"),
    flops_per_weight=14,
    rule="m = b1 m + (1 - b1) g (3); v = b2 v + (1 - b2) g g (4); m / c1, v / c2 (2);"
    " w -= rate m / (sqrt(v) + eps) (5)",
    source="Kingma and Ba, Adam, ICLR 2015, arXiv:1412.6980, Algorithm 1",
    kernels=(*_ADAM, _ZEROED),
)
optimizer(
    "adamw",
    states=("first-moment", "second-moment"),
    flops_per_weight=16,
    rule="as adam (14); w -= rate decay w (2)",
    source="Loshchilov and Hutter, Decoupled weight decay regularization, ICLR 2019,"
    " arXiv:1711.05101, Algorithm 2",
    kernels=((1, 1), *_ADAM, _ZEROED),
    graph_kernels=(*_ADAM_OF_GRAPH, *_ROOT_AND_DECAY, *_RATE),
)
optimizer(
    "rmsprop",
    states=("mean-square", "momentum"),
    flops_per_weight=11,
    rule="v = d v + (1 - d) g g (4); m = mu m + rate g / sqrt(v + eps) (6); w -= m (1)",
    source="Tieleman and Hinton, Neural networks for machine learning, lecture 6.5, 2012; with"
    " momentum, in the form of TensorFlow's RMSPropOptimizer",
    kernels=(_DECAYED, (1, 1), (2, 1), (1, 1), (1, 1), (1, 1), (3, 1), (2, 1), _ZEROED),
)
optimizer(
    "adagrad",
    states=("sum-of-squares",),
    flops_per_weight=6,
    rule="v += g g (2); w -= rate g / (sqrt(v) + eps) (4)",
    source="Duchi, Hazan and Singer, Adaptive subgradient methods for online learning and"
    " stochastic optimization, JMLR 12, 2011, Figure 1",
    kernels=((2, 1), (1, 1), (1, 1), (3, 1), _ZEROED),
)
optimizer(
    "lars",
    states=("momentum",),
    flops_per_weight=10,
    rule="norms of w and g (4); g += decay w (2); m = mu m + rate trust g (3); w -= m (1)",
    source="You, Gitman and Ginsburg, Large batch training of convolutional networks, 2017,"
    " arXiv:1708.03888, Algorithm 1",
    weight_passes=2,
    gradient_passes=2,
)
optimizer(
    "lamb",
    states=("first-moment", "second-moment"),
    flops_per_weight=20,
    rule="m (3), v (4), m / c1, v / c2 (2) as adam; u = m / (sqrt(v) + eps) + decay w (5);"
    " norms of w and u (4); w -= rate trust u (2)",
    source="You et al., Large batch optimization for deep learning: training BERT in 76"
    " minutes, ICLR 2020, arXiv:1904.00962, Algorithm 2; u is stored in the gradient's"
    " place between two kernels, as in NVIDIA apex's FusedLAMB",
    weight_passes=2,
    gradient_passes=2,
    weight_writes=2,
    kernels=((4, 3), (1, 0), (0, 0), (1, 0), (0, 0), (2, 1), _ZEROED),
    graph_kernels=(
        *_ADAM_OF_GRAPH,
        *_ROOT_AND_DECAY,
        *_SQUARED,
        *_SQUARED,
        *_RATE,
    ),
)
optimizer(
    "adafactor",
    states=("second-moment",),
    flops_per_weight=14,
    rule="g g + eps added to sums of rows and columns (4); u = g / sqrt(row column) (3);"
    " root mean squares of u and w (4); w -= rate u / clip (3)",
    source="Shazeer and Stern, Adafactor, ICML 2018, arXiv:1804.04235, Algorithms 4 and 5,"
    " without first moment",
    weight_passes=2,
    gradient_passes=3,
    factored=True,
)


def find(name: str) -> Optimizer:
    """Return an optimizer by name.

    Raises
    ------
    RidgelineError
        If it is unknown.
    """
    return OPTIMIZERS[name]
