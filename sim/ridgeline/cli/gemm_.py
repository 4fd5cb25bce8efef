"""``ridgeline gemm``: one matrix product on one device, or on one systolic array."""

from __future__ import annotations

from typing import Annotated

from cyclopts import Parameter

from ridgeline.cli.names import DeviceIfAny
from ridgeline.cli.number_options import Finite, Whole
from ridgeline.cli.ops import DeviceFields


def gemm_(
    m: Whole,
    n: Whole,
    k: Whole,
    *,
    device: DeviceIfAny = None,
    array: str | None = None,
    batch: Whole = 1,
    format: str | None = None,
    dataflow: str = "ws",
    fold: str = "overlapped",
    edge: str = "exact",
    sparsity: str | None = None,
    density: Finite | None = None,
    sparsity_kind: str | None = None,
    block: str | None = None,
    break_even: Annotated[bool, Parameter(negative="")] = False,
    mapping: str | None = None,
    objective: str = "time",
    set_: DeviceFields = (),
    quantity: str | None = None,
    compat: str | None = None,
    json: Annotated[bool, Parameter(negative="")] = False,
) -> None:
    """Price C[m, n] = A[m, k] B[k, n] on one device, or count its cycles on one systolic array.

    Parameters
    ----------
    m
        Rows of A and C.
    n
        Columns of B and C.
    k
        Columns of A, rows of B.
    device
        Name or file of a device.
    array
        Rows x columns of a systolic array, 128x128, instead of a device.
    batch
        Number of equal products.
    format
        On a device: number format; by default its fastest one of 16 bits or more.
    dataflow
        On an array: os, ws or is (output, weight or input stationary).
    fold
        On an array: whether consecutive tiles are overlapped, pipelined or serial.
    edge
        On an array: whether tiles at the edge take their exact size or a full tile.
    sparsity
        Zeros in B: N:M, such as 2:4; on a device also "unstructured 0.3", "block 32x32 0.1", or
        "activation 0.5" in A.
    density
        On a device: share of non-zeros; in place of --sparsity.
    sparsity_kind
        With --density: unstructured, block or activation.
    block
        With --sparsity-kind block: rows x columns, 32x32.
    break_even
        With --density: also find the densities below which time, energy and traffic are less than
        those of a dense product.
    mapping
        On a device: how to search for the mapping, fast or optimal; or a mapping file, which fixes
        all loops or some of them.
    objective
        On a device: what the mapping minimises: time, energy or edp (energy times delay).
    set_
        On a device: replace one of its fields: "device.tdp=300 W". Repeat it for more fields.
    quantity
        On a device: print one number alone: time_s, or another field of the JSON by its dotted
        path.
    compat
        On an array: scalesim, the figures that SCALE-Sim 3.0.0 reports.
    json
        Print the answer as JSON.
    """
    from ridgeline.errors import ConfigError

    if (device is None) == (array is None):
        raise ConfigError("give either --device NAME or --array ROWSxCOLUMNS")
    if device is not None:
        from ridgeline.cli.ops import device_with, print_op
        from ridgeline.kernels.single_op import gemm
        from ridgeline.workload.sparsity import parse

        zeros = parse(sparsity, density, sparsity_kind, block)
        machine = device_with(device, set_)
        result = gemm(
            m, n, k, machine, batch=batch, format=format, sparsity=zeros, mapping=mapping,
            objective=objective,
        )  # fmt: skip
        if quantity is not None:
            from ridgeline.cli.output import print_quantity

            print_quantity(result, quantity, json=json)
            return
        found = None
        if break_even:
            from ridgeline.kernels.sparsity_break_even import break_even_of

            found = break_even_of(m, n, k, machine, zeros, batch=batch, format=format)
        print_op(result, json, found)
        return
    assert array is not None
    if set_:
        raise ConfigError("an array by itself has no fields; use --device", field="--set")
    if mapping is not None:
        raise ConfigError("an array by itself takes no mapping; use --device", field="--mapping")
    if quantity is not None:
        raise ConfigError("an array by itself has its JSON; use --device", field="--quantity")
    if density is not None or sparsity_kind is not None or block is not None or break_even:
        raise ConfigError("on an array zeros are N:M weights only; use --device", field="--density")
    from ridgeline.cli.arrays import print_array

    print_array((m, n, k), array, batch, (dataflow, fold, edge), sparsity, compat, json)
