"""Results of operators that do not run on fake tensors.

They are those whose shape depends on values, and those that look into the data. Sequences that
are packed by their lengths are taken to have the full length.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

from ridgeline.errors import RidgelineError


def _grouped_product(a: Any, b: Any, *_: Any, **__: Any) -> Any:
    """Rows of groups [rows, k] with a matrix for each group [groups, k, n]."""
    if b.ndim == 2:
        raise RidgelineError("products of groups of columns are not modelled")
    return torch.empty((*a.shape[:-1], b.shape[-1]), dtype=a.dtype)


def _packed(x: Any, lengths: Any, batch_first: bool) -> Any:
    """Rows of all timesteps [time x sequences, ...], and how many each step has [time]."""
    time = x.shape[1 if batch_first else 0]
    rows = x.shape[0] * x.shape[1]
    return torch.empty((rows, *x.shape[2:]), dtype=x.dtype), torch.empty(time, dtype=torch.int64)


def _unpacked(x: Any, sizes: Any, batch_first: bool, padding: Any, total: int = 0) -> Any:
    """Sequences of one length, and their lengths."""
    time = sizes.shape[0]
    n = x.shape[0] // time
    lead = (n, max(time, total)) if batch_first else (max(time, total), n)
    return torch.empty((*lead, *x.shape[1:]), dtype=x.dtype), torch.empty(n, dtype=torch.int64)


def _recurrence(states: int) -> Callable[..., Any]:
    """Return the shapes of a recurrent network on packed rows: outputs and last states."""

    def shape(x: Any, sizes: Any, hx: Any, params: Any, bias: bool, layers: int, dropout: float,
              train: bool, bidirectional: bool, *_: Any) -> Any:  # fmt: skip
        given = hx if isinstance(hx, list | tuple) else [hx]
        width = given[0].shape[-1] * (2 if bidirectional else 1)
        out = torch.empty((x.shape[0], width), dtype=x.dtype)
        return (out, *(torch.empty(h.shape, dtype=h.dtype) for h in given[:states]))

    return shape


def _ctc(log_probs: Any, targets: Any, lengths: Any, of_targets: Any, blank: int = 0,
         reduction: int = 1, *_: Any) -> Any:  # fmt: skip
    return torch.empty(log_probs.shape[1:2] if reduction == 0 else (), dtype=log_probs.dtype)


def _flex(query: Any, key: Any, value: Any, *_: Any) -> Any:
    lead = query.shape[:-1]
    rows = torch.empty(lead, dtype=torch.float32)
    out = torch.empty((*lead, value.shape[-1]), dtype=query.dtype)
    return out, rows, torch.empty(lead, dtype=torch.float32)


SHAPES: Mapping[str, Callable[..., Any]] = {
    "_grouped_mm": _grouped_product,
    "_pack_padded_sequence": _packed,
    "_pad_packed_sequence": _unpacked,
    "lstm.data": _recurrence(2),
    **dict.fromkeys(["gru.data", "rnn_tanh.data", "rnn_relu.data"], _recurrence(1)),
    "ctc_loss": _ctc,
    "flex_attention": _flex,
}
"""By the operator, or the operator and its overload."""
