"""ATen operators that are a view, a constant, or one function: names only."""

from __future__ import annotations

VIEWS = frozenset(
    """
    view reshape _reshape_alias _unsafe_view permute transpose t numpy_T matrix_H mT mH adjoint
    squeeze unsqueeze flatten unflatten ravel movedim moveaxis swapaxes swapdims expand
    expand_as view_as reshape_as broadcast_to contiguous clone alias lift_fresh lift to _to_copy
    type_as float double half bfloat16 pixel_shuffle pixel_unshuffle channel_shuffle
    view_as_real view_as_complex resolve_conj resolve_neg positive real
    """.split()
)
"""They move no data."""

FACTORIES = frozenset(
    """
    empty zeros ones full arange linspace eye empty_like zeros_like ones_like full_like rand
    rand_like randn randn_like randint randperm new_empty new_zeros new_ones new_full bernoulli
    normal uniform exponential tril_indices triu_indices scalar_tensor empty_strided zero fill
    multinomial poisson
    """.split()
)
"""What they give depends on nothing that is computed."""

FUNCTIONS = {
    "exp": "exp", "expm1": "expm1", "exp2": "exp", "log": "log", "log2": "log", "log10": "log",
    "log1p": "log1p", "sqrt": "sqrt", "rsqrt": "rsqrt", "reciprocal": "reciprocal",
    "square": "square", "abs": "absolute", "neg": "negate", "sin": "sine", "cos": "cosine",
    "tan": "tangent", "sinh": "hyperbolic", "cosh": "hyperbolic", "asin": "arc", "acos": "arc",
    "atan": "arc", "asinh": "arc", "acosh": "arc", "atanh": "arc", "erf": "erf", "erfc": "erf",
    "softplus": "softplus", "log_sigmoid": "log-sigmoid", "elu": "elu", "celu": "elu",
    "selu": "elu", "leaky_relu": "leaky-relu", "rrelu": "leaky-relu", "clamp": "clamp",
    "clamp_min": "clamp", "clamp_max": "clamp", "hardtanh": "clamp", "relu6": "clamp",
    "hardshrink": "clamp", "softshrink": "clamp", "threshold": "clamp",
    "hardsigmoid": "hard-sigmoid", "hardswish": "hard-swish", "mish": "mish", "prelu": "prelu",
    "_prelu_kernel": "prelu", "relu": "relu", "sigmoid": "sigmoid", "tanh": "tanh", "gelu": "gelu",
    "silu": "silu", "floor": "step", "ceil": "step", "round": "step", "trunc": "step",
    "sign": "step", "frac": "shift", "heaviside": "step", "maximum": "extremum",
    "minimum": "extremum", "fmax": "extremum", "fmin": "extremum", "atan2": "atan2",
    "lerp": "interpolate-between", "logsumexp": "log-sum-exp", "cumsum": "running-sum",
    "logcumsumexp": "running-product", "cumprod": "running-product", "var": "variance",
    "std": "variance", "var_mean": "variance", "std_mean": "variance",
    "linalg_vector_norm": "length", "norm": "length", "prod": "product-of", "amax": "peaks",
    "amin": "peaks", "median": "peaks", "cummax": "peak", "cummin": "peak", "sum": "sum",
    "nansum": "sum", "mean": "mean", "argmax": "position", "argmin": "position",
    "argsort": "position", "nonzero": "position", "searchsorted": "position",
    "bucketize": "position", "any": "compare", "all": "compare", "eq": "compare", "ne": "compare",
    "lt": "compare", "le": "compare", "gt": "compare", "ge": "compare", "isnan": "compare",
    "isinf": "compare", "isfinite": "compare", "logical_and": "compare", "logical_or": "compare",
    "logical_not": "compare", "logical_xor": "compare", "bitwise_and": "compare",
    "bitwise_or": "compare", "bitwise_not": "compare", "bitwise_xor": "compare",
    "sort": "order", "topk": "order", "kthvalue": "order", "roll": "rearrange",
    "flip": "rearrange", "repeat": "rearrange", "tile": "rearrange", "unfold": "rearrange",
    "im2col": "rearrange", "as_strided": "rearrange", "repeat_interleave": "rearrange",
    "diagonal": "rearrange", "diag_embed": "scatter", "col2im": "scatter", "rot90": "rearrange",
    "gather": "gather-elements", "index_select": "gather-elements", "take": "gather-elements",
    "index": "gather-elements", "take_along_dim": "gather-elements", "scatter": "scatter",
    "masked_select": "gather-elements", "scatter_add": "scatter", "scatter_reduce": "scatter",
    "index_add": "scatter", "index_put": "scatter", "index_copy": "scatter",
    "slice_scatter": "scatter", "select_scatter": "scatter", "masked_scatter": "scatter",
    "tril": "triangle", "triu": "triangle", "glu": "glu", "where": "select",
    "masked_fill": "select", "grid_sampler": "sample-grid", "one_hot": "integer",
    "nan_to_num": "select", "remainder": "subtract", "fmod": "subtract", "histc": "position",
    "_fft_r2c": "fourier", "_fft_c2r": "fourier", "_fft_c2c": "fourier",
    "embedding_bag": "gather-elements", "bincount": "position", "floor_divide": "step",
}  # fmt: skip
"""Operator: function of `ridgeline.workload.ops.functions`."""
