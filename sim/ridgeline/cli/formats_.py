"""``ridgeline formats``: number formats, and what they lose of a distribution of values."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from ridgeline.cli.number_options import Positive
from ridgeline.cli.output import console, print_json
from ridgeline.errors import ConfigError

if TYPE_CHECKING:
    from rich.table import Table


def formats_(
    *,
    normal: str | None = None,
    lognormal: str | None = None,
    scale: Positive | None = None,
    step: Positive | None = None,
    json: Annotated[bool, Parameter(negative="")] = False,
) -> None:
    """Print the number formats, and which share of values each of them cannot hold.

    Parameters
    ----------
    normal
        Values around 0 with this standard deviation, or MEAN,DEVIATION.
    lognormal
        Magnitudes whose log2 is normal: MEAN,DEVIATION of the log2, such as -20,4 for gradients.
    scale
        Loss scale: values are multiplied by it before they are rounded; by default 1.
    step
        Step of the formats that have one step for a whole tensor (int8, int16, flex16+5).
    json
        Print it as JSON.
    """
    from ridgeline.workload.formats import FORMATS

    values = _distribution(normal, lognormal)
    if values is None and (scale is not None or step is not None):
        raise ConfigError(
            "is for values: give their distribution, --normal or --lognormal",
            field="--step" if scale is None else "--scale",
        )
    scale = scale or 1.0
    rows: list[dict[str, Any]] = []
    for format_ in FORMATS.values():
        if format_.kind == "index":
            continue
        row: dict[str, Any] = {
            "format": format_.name,
            "bits": format_.bits,
            "exponent_bits": format_.exponent_bits,
            "mantissa_bits": format_.mantissa_bits,
            "shared_bits": format_.shared_bits,
            "accumulator": format_.accumulator,
            "largest": format_.largest,
            "least_normal": format_.least_normal,
            "least": format_.least,
        }
        if values is not None and (format_.kind == "float" or step is not None):
            from ridgeline.workload.rounding import range_loss

            loss = range_loss(values, format_.name, scale=scale, step=step)
            row |= {name: getattr(loss, name) for name in ("overflow", "underflow", "subnormal")}
        rows.append(row)
    if json:
        print_json(rows)
        return
    table = _loss_table(rows) if values is not None else _bit_table(rows)
    screen = console()
    screen.print(table)
    stepped = _together([f.name for f in FORMATS.values() if f.kind not in {"float", "index"}])
    screen.print(f"largest and least of {stepped} are in steps, one step for a whole tensor")
    if values is not None:
        screen.print(f"shares of {values} x {scale:g}")
        if step is None:
            screen.print(f"{stepped} need --step")


def _together(names: list[str]) -> str:
    return f"{', '.join(names[:-1])} and {names[-1]}"


def _bit_table(rows: list[dict[str, Any]]) -> Table:
    from ridgeline.report.tables import plain_table

    names = ("bits", "exponent_bits", "mantissa_bits", "shared_bits", "accumulator")
    headings = ("format", "bits", "exponent", "mantissa", "shared", "sums in", "largest", "least")
    table = plain_table(dict.fromkeys(headings, "right") | {"format": "left"})
    for row in rows:
        values = (str(row[name]) for name in names)
        table.add_row(row["format"], *values, f"{row['largest']:.4g}", f"{row['least']:.3g}")
    return table


def _loss_table(rows: list[dict[str, Any]]) -> Table:
    from ridgeline.report.tables import plain_table

    lost = ("overflow", "underflow", "subnormal")
    table = plain_table(dict.fromkeys(("format", "largest", "least", *lost), "right"))
    for row in rows:
        shares = (f"{row[name]:.3g}" if name in row else "" for name in lost)
        table.add_row(row["format"], f"{row['largest']:.4g}", f"{row['least']:.3g}", *shares)
    return table


def _distribution(normal: str | None, lognormal: str | None) -> Any:
    from ridgeline.workload.rounding import LogNormal, Normal

    if normal is not None and lognormal is not None:
        raise ConfigError("give one distribution, --normal or --lognormal")
    if normal is not None:
        numbers = _numbers(normal, "--normal")
        if len(numbers) > 2:
            raise ConfigError("expected DEVIATION or MEAN,DEVIATION", field="--normal")
        return Normal(numbers[-1], numbers[0] if len(numbers) == 2 else 0.0)
    if lognormal is not None:
        numbers = _numbers(lognormal, "--lognormal")
        if len(numbers) != 2:
            raise ConfigError("expected MEAN,DEVIATION of the log2", field="--lognormal")
        return LogNormal(*numbers)
    return None


def _numbers(text: str, field: str) -> list[float]:
    try:
        numbers = [float(part) for part in text.split(",")]
    except ValueError as error:
        raise ConfigError(f"expected NUMBER,NUMBER; found {text!r}", field=field) from error
    if not all(map(math.isfinite, numbers)):
        raise ConfigError(f"expected finite numbers; found {text!r}", field=field)
    return numbers
