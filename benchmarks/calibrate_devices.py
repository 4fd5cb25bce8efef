"""Achievable shares of a device's peak rates, from published kernel microbenchmarks.

    python benchmarks/calibrate_devices.py v100-sxm2-16gb

prints the ``achievable:`` block of ``hwconfigs/devices/v100-sxm2-16gb.yaml``, as
`ridgeline.study.calibrate.kernel_shares` estimates it.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Iterable, Sequence

from published_kernels import SOURCES, class_lines, products_alone, read_kernels
from ridgeline.hardware import load_device
from ridgeline.study.calibrate.kernel_shares import (
    BLOCK,
    Fraction,
    KernelShare,
    class_share,
    fractions_of,
)

LEAST_SUMS = tuple(2**power for power in range(7, 15))


def calibrate(device_name: str) -> list[Fraction]:
    """Estimate every class of a device, the specific before the general."""
    return list(fractions_of(read_kernels(device_name)))


def yaml_block(fractions: Iterable[Fraction], launch_s: float) -> str:
    """Write the ``achievable:`` block of a device file."""
    lines, block = ["achievable:"], ", ".join(f"{name}: {value}" for name, value in BLOCK.items())
    for row in fractions:
        lines += [
            f"  - engine: {row.engine}",
            *class_lines(row.format),
            f"    op: {row.op}",
        ]
        lines += [f"    pass: {row.pass_}"] if row.pass_ else []
        lines += [f'    filter: "{row.filter}"'] if row.filter else []
        lines += [f"    block: {{{block}}}"] if row.blocked else []
        if row.more_s:
            fixed = f"{(launch_s + row.more_s) * 1e6:.2f} us"
            lines.append(f"    latency: {{value: {fixed}, source: deepbench, basis: measured}}")
        lines += [
            "    fraction:",
            f"      value: {row.value:.3f}",
            "      source: deepbench",
            "      basis: measured",
            "      note: >-",
            f"        {row.n_counted} of {row.n_rows} kernels count; the middle 80 % of them are",
            f"        predicted {row.p10_error:+.0%} to {row.p90_error:+.0%} "
            f"(median {row.median_error:+.0%})",
        ]
    return "\n".join(lines) + "\n"


def table(fractions: Iterable[Fraction], kernels: Sequence[KernelShare]) -> str:
    """Write the residuals for people: of the kernels that count, and of all."""
    lines = [
        f"{'class':58} {'fraction':>8} {'count':>5} {'med err':>8} {'med |err|':>9} "
        f"{'all':>5} {'med |err|':>9} {'by time':>8}"
    ]
    for row in fractions:
        members = [
            k
            for k in kernels
            if (k.engine, k.format, k.op) == (row.engine, row.format, row.op)
            and row.pass_ in (None, k.pass_)
            and row.filter in (None, k.filter)
        ]
        errors = [abs(k.predicted_s(row.value) / k.measured_s - 1) for k in members]
        total = sum(k.predicted_s(row.value) for k in members) / sum(k.measured_s for k in members)
        name = f"{row.engine}.{row.format} {row.op} {row.pass_ or ''} {row.filter or ''}"
        lines.append(
            f"{name:58} {row.value:8.3f} {row.n_counted:5d} {row.median_error:+8.1%} "
            f"{row.median_abs_error:9.1%} {row.n_rows:5d} {statistics.median(errors):9.1%} "
            f"{total - 1:+8.1%}"
        )
    return "\n".join(lines)


def sums(device_name: str) -> str:
    """Write how well the parts that a library splits sums into explain the products in fp32."""
    lines = [f"{'least_sum':>9} {'fraction':>8} {'mean |log|':>10}"]
    for least_sum in LEAST_SUMS:
        found = class_share(products_alone(device_name, least_sum), None, None)
        lines.append(f"{least_sum:9d} {found.value:8.3f} {found.mean_error:10.3f}")
    return "\n".join(lines)


def main() -> None:
    """Print the block, or the residuals."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("device", choices=sorted(SOURCES))
    parser.add_argument("--residuals", action="store_true", help="print a table instead of YAML")
    parser.add_argument("--sums", action="store_true", help="print errors by `Engine.least_sum`")
    arguments = parser.parse_args()
    if arguments.sums:
        print(sums(arguments.device))
        return
    fractions = calibrate(arguments.device)
    if arguments.residuals:
        print(table(fractions, read_kernels(arguments.device)))
    else:
        launch_s = load_device(arguments.device).launch_latency.value
        print(yaml_block(fractions, launch_s), end="")


if __name__ == "__main__":
    main()
