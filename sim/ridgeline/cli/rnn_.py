"""``ridgeline rnn``: one pass over one recurrent layer on one device."""

from __future__ import annotations

from typing import Annotated

from cyclopts import Parameter

from ridgeline.cli.names import DeviceOnly
from ridgeline.cli.number_options import Whole
from ridgeline.cli.ops import DeviceFields, device_with
from ridgeline.cli.output import console, print_json, print_quantity


def rnn_(
    batch: Whole,
    hidden: Whole,
    steps: Whole,
    *,
    device: DeviceOnly,
    cell: str = "lstm",
    pass_: Annotated[str, Parameter(name="--pass")] = "forward",
    format: str = "fp32",
    set_: DeviceFields = (),
    quantity: str | None = None,
    json: Annotated[bool, Parameter(negative="")] = False,
) -> None:
    """Price one pass over a recurrent layer on one device, without its input products.

    Parameters
    ----------
    batch
        Number of sequences.
    hidden
        Size of the hidden state.
    steps
        Positions of a sequence.
    device
        Name or file of a device.
    cell
        lstm, gru, rnn-tanh or rnn-relu.
    pass_
        forward, input-gradient, weight-gradient, or backward for both gradients.
    format
        Number format of the matrix products.
    set_
        Replace one field of the device: "device.tdp=300 W". Repeat it for more fields.
    quantity
        Print one number alone: time_s, or another field of the JSON.
    json
        Print the answer as JSON.
    """
    from ridgeline.kernels.single_rnn_layer import rnn
    from ridgeline.report.tables import plain_table
    from ridgeline.units import show

    machine = device_with(device, set_)
    result = rnn(batch, hidden, steps, machine, cell=cell, pass_=pass_, format=format)
    if quantity is not None:
        print_quantity(result, quantity, json=json)
        return
    if json:
        print_json(result.to_dict())
        return
    screen = console()
    screen.print(f"{result.op}, {pass_}, on {result.device}, {result.format}")
    rows = plain_table({"": "left", " ": "right"}, headings=False)
    rows.add_row("time", show(result.time_s, "s", 4))
    rows.add_row("work", show(float(result.flops), "FLOP", 4))
    rows.add_row("rate", show(result.flops / result.time_s, "FLOP/s", 4))
    rows.add_row("compulsory", show(result.compulsory_bytes, "B", 4))
    screen.print(rows)
