"""The door to `torch_trace`: says what is missing where PyTorch is not installed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal

from ridgeline.errors import RidgelineError
from ridgeline.workload.model import Model


def trace(
    module: Any,
    *example_inputs: Any,
    loss: str | Callable[..., Any] | None = None,
    optimizer: str = "adamw",
    batch_dim: int | Sequence[int | None] = 0,
    name: str | None = None,
    attention: Literal["separate", "flash"] | None = None,
    strict: bool = False,
    mask_share: float = 0.5,
    **keyword_inputs: Any,
) -> Model:
    """Return the model of a PyTorch module, for training steps of any batch and precision.

    The forward pass is recorded on fake tensors, without weights or arithmetic; the backward pass
    is derived from it. A module on the meta device works as well as one with real weights. A
    Hugging Face configuration stands for the model that it describes.

    Parameters
    ----------
    module
        A `torch.nn.Module`, or a `transformers` configuration.
    example_inputs, keyword_inputs
        What its forward takes; only shapes and types matter, also of tensors inside lists and
        dictionaries.
    loss
        What is minimised: "cross-entropy" (over the last axis, or axis 1 of images; the labels
        become an input), "mse", "bce", "smooth-l1"; a criterion such as `torch.nn.CrossEntropyLoss`
        of output and target; or a function of what forward returns. None: the scalar that forward
        returns, or its field "loss"; otherwise cross-entropy of each output (of those named
        logits, if there are any), added; bce where there is one class.
    optimizer
        Its name, as in a plan.
    batch_dim
        The axis of every input that is the mini-batch, or one for each tensor, None for a tensor
        without. Tensors whose axis has another size than the first one's do not grow.
    name
        Of the model; by default the module's class.
    attention
        Kernel of `scaled_dot_product_attention`: "separate" ops that store the scores, or one
        "flash" op, which does not; None: as the software does that runs the model.
    strict
        Refuse operations that are not known, rather than price them by the bytes that they move.

    mask_share
        Of masks whose values decide which rows are computed (``x[x > 0]``), the share of elements
        that are true; 1 gives an upper bound. A warning says where it mattered.

    Raises
    ------
    RidgelineError
        If PyTorch is not installed, the module cannot run on the inputs without data, or the loss
        depends on no weight.
    """
    try:
        from ridgeline.workload.trace import torch_trace
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] != "torch":
            raise
        raise RidgelineError(
            "tracing a module needs PyTorch: pip install 'ridgeline[trace]' (torch 2.13.0, CPU"
            " build, is enough)"
        ) from error
    if attention not in {"separate", "flash", None}:
        raise RidgelineError(f"unknown attention {attention!r} (known: separate, flash)")
    if not 0 <= mask_share <= 1:
        raise RidgelineError(f"mask_share is {mask_share!r}; allowed: 0 to 1")
    example = torch_trace.Example(
        torch_trace.built(module), example_inputs, keyword_inputs, batch_dim, mask_share
    )
    return example.model(loss, name, optimizer=optimizer, attention=attention, strict=strict)
