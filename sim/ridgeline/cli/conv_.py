"""``ridgeline conv``: one pass over one convolution on one device."""

from __future__ import annotations

from typing import Annotated

from cyclopts import Parameter

from ridgeline.cli.ops import print_op
from ridgeline.cli.whole import Finite, Whole


def conv_(
    batch: Whole,
    c_in: Whole,
    height: Whole,
    width: Whole,
    c_out: Whole,
    filter: Whole,
    *,
    device: str,
    stride: Whole = 1,
    padding: Whole = 0,
    dilation: Whole = 1,
    groups: Whole = 1,
    pass_: Annotated[str, Parameter(name="--pass")] = "forward",
    format: str | None = None,
    sparsity: str | None = None,
    density: Finite | None = None,
    sparsity_kind: str | None = None,
    block: str | None = None,
    mapping: str | None = None,
    objective: str = "time",
    json: Annotated[bool, Parameter(negative="")] = False,
) -> None:
    """Price one pass over a convolution with a square filter on one device.

    Parameters
    ----------
    batch
        Images.
    c_in
        Channels of an image.
    height
        Height of an image.
    width
        Width of an image.
    c_out
        Channels of the output.
    filter
        Height and width of the filter.
    device
        Name or file of a device.
    stride
        Step of the filter.
    padding
        Zeros added on every side.
    dilation
        Distance of the filter's taps.
    groups
        Groups of channels.
    pass_
        forward, input-gradient or weight-gradient.
    format
        Number format; by default the fastest one of the device, of those with 16 bits or more.
    sparsity
        Zeros in the weights: 2:4, "unstructured 0.3", "block 32x32 0.1"; or "activation 0.5" in
        the images.
    density
        Share of non-zeros, instead of --sparsity.
    sparsity_kind
        Of that density: unstructured, block or activation.
    block
        Of the kind block: rows x columns, 32x32.
    mapping
        fast or optimal, how the best mapping is searched for; or a file that settles which loops
        run where, or a part of it.
    objective
        time or energy, what a mapping is searched for.
    json
        Print the answer as JSON.
    """
    from ridgeline.kernels.single import conv
    from ridgeline.workload.graph import Conv
    from ridgeline.workload.sparsity import parse

    strides, paddings, dilations = ((value, value) for value in (stride, padding, dilation))
    loops = Conv(
        batch, c_in, height, width, c_out, filter, filter, strides, paddings, dilations, groups
    )
    zeros = parse(sparsity, density, sparsity_kind, block)
    result = conv(
        loops, device, pass_=pass_, format=format, sparsity=zeros, mapping=mapping,
        objective=objective,
    )  # fmt: skip
    print_op(result, json)
