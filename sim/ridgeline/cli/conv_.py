"""``ridgeline conv``: one pass over one convolution on one device."""

from __future__ import annotations

from typing import Annotated

from cyclopts import Parameter

from ridgeline.cli.names import DeviceOnly
from ridgeline.cli.number_options import Finite, Whole, pair
from ridgeline.cli.ops import DeviceFields, device_with, print_op
from ridgeline.cli.output import print_quantity


def conv_(
    batch: Whole,
    c_in: Whole,
    height: Whole,
    width: Whole,
    c_out: Whole,
    filter: str,
    *,
    device: DeviceOnly,
    stride: str = "1",
    padding: str = "0",
    dilation: str = "1",
    groups: Whole = 1,
    pass_: Annotated[str, Parameter(name="--pass")] = "forward",
    format: str | None = None,
    sparsity: str | None = None,
    density: Finite | None = None,
    sparsity_kind: str | None = None,
    block: str | None = None,
    mapping: str | None = None,
    objective: str = "time",
    set_: DeviceFields = (),
    quantity: str | None = None,
    json: Annotated[bool, Parameter(negative="")] = False,
) -> None:
    """Price one pass over a convolution on one device.

    Parameters
    ----------
    batch
        Number of images.
    c_in
        Channels of an image.
    height
        Height of an image.
    width
        Width of an image.
    c_out
        Channels of the output.
    filter
        Height and width of the filter: 3, or 5x20.
    device
        Name or file of a device.
    stride
        Stride of the filter, down and across: 2, or 2x1.
    padding
        Zeros added on every side: 1; or above and below, left and right: 2x0.
    dilation
        Dilation of the filter: 2, or 2x1.
    groups
        Groups of channels.
    pass_
        forward, input-gradient or weight-gradient.
    format
        Number format; by default the device's fastest one of 16 bits or more.
    sparsity
        Zeros in the weights: 2:4, "unstructured 0.3", "block 32x32 0.1"; or "activation 0.5" in
        the images.
    density
        Share of non-zeros; in place of --sparsity.
    sparsity_kind
        With --density: unstructured, block or activation.
    block
        With --sparsity-kind block: rows x columns, 32x32.
    mapping
        How to search for the mapping, fast or optimal; or a mapping file, which fixes all loops or
        some of them.
    objective
        What the mapping minimises: time, energy or edp (energy times delay).
    set_
        Replace one field of the device: "device.tdp=300 W". Repeat it for more fields.
    quantity
        Print one number alone: time_s, or another field of the JSON by its dotted path.
    json
        Print the answer as JSON.
    """
    from ridgeline.kernels.single_op import conv
    from ridgeline.workload.sparsity import parse

    sides, strides, paddings, dilations = map(pair, (filter, stride, padding, dilation))
    zeros = parse(sparsity, density, sparsity_kind, block)
    machine = device_with(device, set_)
    result = conv(
        batch, c_in, height, width, c_out, sides, machine, stride=strides, padding=paddings,
        dilation=dilations, groups=groups, pass_=pass_, format=format, sparsity=zeros,
        mapping=mapping, objective=objective,
    )  # fmt: skip
    if quantity is not None:
        print_quantity(result, quantity, json=json)
        return
    print_op(result, json)
