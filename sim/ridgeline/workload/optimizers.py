"""Optimizers: what an update computes and keeps for every weight."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from fractions import Fraction
from typing import Any, Literal, NamedTuple

from ridgeline.errors import RidgelineError, nearest
from ridgeline.registry import Registry
from ridgeline.workload import formats

Side = Literal["rows", "columns", "small", "large"]
"""A side of a matrix; small and large: the shorter and the longer one."""
STATE_FORMATS = ("fp32", "bf16", "fp16", "fp8-e4m3", "fp8-e5m2", "int8-block")
"""Formats that the state of an optimizer is kept in: Megatron-Core's ``--exp-avg-dtype`` and
``--exp-avg-sq-dtype`` (core/optimizer/optimizer_config.py: fp32, fp16, bf16, and 8 bits with a
scale), and blocks of 8 bits (Dettmers et al., 8-bit optimizers via block-wise quantization, ICLR
2022, arXiv:2110.02861)."""
_LEAST_NARROW = 4096
"""Numbers of a tensor whose state is narrow at least: bitsandbytes' ``min_8bit_size``."""
_NARROWED = 5
"""FLOPs for each number of a state in 8 bits: a lookup and its scale; magnitude, its maximum, and
the conversion back."""


class MatrixProduct(NamedTuple):
    """A product that an update does with a whole matrix, one after the other so often.

    Attributes
    ----------
    rows, columns, inner
        Its sizes, as sides of the weight.
    times
        How often it is done.
    side
        The side whose state it needs; "": none. It is left out where that side has none.
    """

    rows: Side
    columns: Side
    inner: Side
    times: int
    side: Literal["", "rows", "columns"] = ""


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
    products
        What is computed with each whole matrix of weights, in the format of products: then this
        rule is for matrices between embedding and classifier, stacks of them (experts) included;
        all else has the rule `otherwise`.
    update_flops
        Of rules with products, arithmetic per weight to apply what these have made.
    side_states
        Square matrices that are kept for either side of a matrix.
    longest_side
        Sides that are longer have neither these nor their products; 0: there is no limit.
    side_flops
        FLOPs in a step for the cube of each side: of decompositions, which come every so many
        steps. They count as work of vectors, whose rates they seldom exceed.
    state_format
        Format of state; "": that of the weights. Small tensors' is not narrower than theirs.
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
    products: tuple[MatrixProduct, ...] = ()
    otherwise: str = "adamw"
    update_flops: int = 0
    side_states: tuple[str, ...] = ()
    longest_side: int = 0
    side_flops: Fraction = Fraction(0)
    state_format: str = ""

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

    def sides(self, rows: int, columns: int) -> dict[str, int]:
        """Lengths of the sides of a matrix that have state of their own, by name."""
        both = {"rows": rows, "columns": columns} if self.side_states else {}
        return {
            name: size
            for name, size in both.items()
            if not self.longest_side or size <= self.longest_side
        }

    def format_of(self, elements: int, weight_format: str) -> str:
        """Return the format of the state of a weight tensor."""
        narrow = self.state_format and not (
            elements < _LEAST_NARROW and formats.bytes_of(self.state_format) == 1
        )
        return self.state_format if narrow else weight_format

    def flops(self, elements: int) -> int:
        """Return the arithmetic of updating a tensor of weights element by element."""
        narrow = self.format_of(elements, "fp32")
        more = _NARROWED * len(self.states) if formats.bytes_of(narrow) == 1 else 0
        return (self.flops_per_weight + more) * elements


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


optimizer(
    "lion",
    states=("momentum",),
    flops_per_weight=11,
    rule="c = b1 m + (1 - b1) g (3); sign (1); w -= rate (c + decay w) (4);"
    " m = b2 m + (1 - b2) g (3)",
    source="Chen et al., Symbolic discovery of optimization algorithms, NeurIPS 2023,"
    " arXiv:2302.06675, Algorithm 2",
)
optimizer(
    "adamw-8bit",
    states=("first-moment", "second-moment"),
    flops_per_weight=16,
    rule="as adamw (16); each state is looked up, scaled, and quantised again (5 each)",
    source="Dettmers et al., 8-bit optimizers via block-wise quantization, ICLR 2022,"
    " arXiv:2110.02861; blocks of 256 numbers with a scale in fp32, tensors of less than 4,096"
    " numbers in full, as in bitsandbytes' AdamW8bit (optim/optimizer.py: blocksize 256,"
    " min_8bit_size)",
    state_format="int8-block",
)
optimizer(
    "muon",
    states=("momentum",),
    flops_per_weight=7,
    rule="m = mu m + g (2); mu m + g (2); its conversion (1) and sum of squares (2); five times"
    " A = X X', B = b A + c A A, X = a X + B X; w -= rate (X scale + decay w) (4)",
    source="K. Jordan et al., Muon: An optimizer for hidden layers in neural networks, 2024,"
    " kellerjordan.github.io/posts/muon; Liu et al., Muon is scalable for LLM training, 2025,"
    " arXiv:2502.16982, Algorithm 1 (decay, scale by shape); Megatron-Core, core/optimizer/muon.py,"
    " TensorParallelMuon (num_ns_steps=5, mode 'duplicated')",
    products=(
        MatrixProduct("small", "small", "large", 5),
        MatrixProduct("small", "small", "small", 5),
        MatrixProduct("small", "large", "small", 5),
    ),
    update_flops=4,
)
optimizer(
    "soap",
    states=("first-moment", "second-moment"),
    flops_per_weight=7,
    rule="m (3); v (4) of g in the eigenvectors' coordinates; L += g g', R += g' g, g and m to"
    " these coordinates and m / (sqrt(v) + eps) back; every 10 steps a power iteration (2 s^3) and"
    " a QR decomposition (8/3 s^3, R and Q) of either side; w -= rate (u + decay w), u = m / root"
    " (7)",
    source="Vyas et al., SOAP: Improving and stabilizing Shampoo using Adam, ICLR 2025,"
    " arXiv:2409.11321, Algorithms 3 and 4 (frequency 10, max_precond_dim 10,000); Golub and"
    " Van Loan, Matrix computations, 4th ed., Section 5.2, for Householder QR",
    products=(
        MatrixProduct("rows", "rows", "columns", 1, "rows"),
        MatrixProduct("columns", "columns", "rows", 1, "columns"),
        MatrixProduct("rows", "columns", "rows", 3, "rows"),
        MatrixProduct("rows", "columns", "columns", 3, "columns"),
    ),
    update_flops=7,
    side_states=("covariance", "eigenvectors"),
    longest_side=10_000,
    side_flops=(2 + Fraction(8, 3)) / 10,
)
optimizer(
    "shampoo",
    states=("momentum", "grafted-moment"),
    flops_per_weight=7,
    rule="m (3); v of the grafted Adam (4); L += g g', R += g' g; u = L^-1/4 g R^-1/4; every 50"
    " steps the roots by an eigendecomposition of either side (9 s^3, and 2 s^3 for the root);"
    " w -= rate (u norm + decay w), norms of both updates (9)",
    source="Gupta et al., Shampoo, ICML 2018, arXiv:1802.09568; Shi et al., A distributed"
    " data-parallel PyTorch implementation of the distributed Shampoo optimizer, 2023,"
    " arXiv:2309.06497 (roots every 50 steps, blocks of at most 8,192, Adam grafting); Golub and"
    " Van Loan, Section 8.3, for the symmetric QR algorithm with eigenvectors",
    products=(
        MatrixProduct("rows", "rows", "columns", 1, "rows"),
        MatrixProduct("columns", "columns", "rows", 1, "columns"),
        MatrixProduct("rows", "columns", "rows", 1, "rows"),
        MatrixProduct("rows", "columns", "columns", 1, "columns"),
    ),
    update_flops=9,
    side_states=("factor", "inverse-root"),
    longest_side=8_192,
    side_flops=Fraction(11, 50),
)


def find(name: str, state_format: str | None = None) -> Optimizer:
    """Return an optimizer by name, with its state in another format if one is given.

    Raises
    ------
    RidgelineError
        If it or the format is unknown.
    """
    rule = OPTIMIZERS[name]
    return rule if state_format is None else with_state_format(rule, state_format)


def otherwise(rule: Optimizer) -> Optimizer:
    """Return the rule for weights that are no matrices: itself, if it takes no whole ones."""
    return find(rule.otherwise, rule.state_format or None) if rule.products else rule


def with_state_format(rule: Optimizer, state_format: str) -> Optimizer:
    """Return a rule whose state is kept in a format.

    Raises
    ------
    RidgelineError
        If no state is kept in that.
    """
    if state_format not in STATE_FORMATS:
        raise RidgelineError(
            f"optimizer state is not kept in {state_format!r}{nearest(state_format, STATE_FORMATS)}"
            f" (allowed: {', '.join(STATE_FORMATS)})"
        )
    return replace(rule, state_format=state_format)
