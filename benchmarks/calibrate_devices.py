"""Achievable shares of a device's peak rates, from published kernel microbenchmarks.

    python benchmarks/calibrate_devices.py v100-sxm2-16gb

prints the ``achievable:`` block of ``hwconfigs/devices/v100-sxm2-16gb.yaml``. The pricing is that
of `ridgeline.kernels`: time = latency + max(arithmetic / fraction, traffic at each level),
where tile and wave quantisation is part of the arithmetic.
One fraction is estimated per class (engine, format, op, pass, filter): the median, weighted by
FLOP, of

    achieved = (arithmetic at the peak) / (measured time - launch latency)

over the kernels of the class that do more than `LARGE` FLOP and whose traffic alone does not
explain the measured time. With it the weighted median of predicted over measured time is 1.
Weighted by FLOP, because a training step is dominated by its large products; a median, because some
kernels of every class run far below the rest.

A convolution is more than one kernel (offsets are computed first, sums cleared, parts added up):
the fixed time of each pass is the one that leaves the smallest mean error (of logarithms) with the
fractions that follow from it.

Filters of 3 x 3 at stride 1 are priced in two ways: as one kind of kernels, or as Winograd's, which
fill blocks of outputs, beside direct ones at the share of direct filters (`kernels.filtering`).
Where the share exceeds the peak, the way that leaves the smaller mean error (of logarithms) over
all kernels of the class is printed. A third way has the products of transformed tiles, too, by
kernels of their own; where it leaves the least error, both shares are printed.
"""

from __future__ import annotations

import argparse
import bisect
import itertools
import math
import statistics
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from published_kernels import (
    BLOCK,
    SOURCES,
    Kernel,
    class_lines,
    products_alone,
    read_kernels,
)
from ridgeline.hardware import load_device

MOST_FIXED = 61  # microseconds
FILTERS = ("1x1", "3x3", "transformed", "larger", "direct")
_ROUNDS = 12
LEAST_SUMS = tuple(2**power for power in range(7, 15))
MIN_ROWS = 3  # a class with fewer rows falls back to the class of any pass


@dataclass(frozen=True)
class Fraction:
    """The result for one class; errors are of predicted over measured time, less one.

    Attributes
    ----------
    mean_error
        Mean of the logarithms' absolute values, over all kernels of the class.
    blocked
        Whether the share is of Winograd's kernels.
    more_s
        Fixed time besides the launch.
    """

    engine: str
    format: str
    op: str
    pass_: str | None
    filter: str | None
    value: float
    n_rows: int
    n_counted: int
    median_error: float
    median_abs_error: float
    p10_error: float
    p90_error: float
    mean_error: float
    blocked: bool = False
    more_s: float | None = None


def weighted_median(values: Iterable[tuple[float, float]]) -> float:
    """Return the value at which half of the weight is reached; `values` are (value, weight)."""
    ascending = sorted(values)
    reached = list(itertools.accumulate(weight for _, weight in ascending))
    return ascending[bisect.bisect_left(reached, reached[-1] / 2)][0]


def calibrate(device_name: str) -> list[Fraction]:
    """Estimate every class of a device, the specific before the general."""
    return list(_fractions(read_kernels(device_name)))


def _fractions(kernels: Sequence[Kernel]) -> Iterator[Fraction]:
    for engine, format_ in sorted({(kernel.engine, kernel.format) for kernel in kernels}):
        same = [k for k in kernels if (k.engine, k.format) == (engine, format_)]
        gemms = [kernel for kernel in same if kernel.op == "gemm"]
        if any(kernel.counts for kernel in gemms):
            yield _fraction(gemms, None, None)
        convs = [kernel for kernel in same if kernel.op == "conv2d"]
        for pass_ in ("forward", "input-gradient", "weight-gradient"):
            yield from _fixed_and_proportional([k for k in convs if k.pass_ == pass_])
        if any(kernel.counts for kernel in convs):
            yield _fraction(convs, None, None)


def _fixed_and_proportional(convs: Sequence[Kernel]) -> list[Fraction]:
    """Return the shares of one pass, with the fixed time that leaves the smallest mean error."""
    found: list[tuple[float, list[Fraction]]] = []
    known = 0
    for microseconds in range(MOST_FIXED):
        more_s = microseconds * 1e-6
        later = [kernel.later(more_s) for kernel in convs]
        classes = _by_filter(later)
        kinds = {str(row.filter).replace("transformed", "3x3") for row in classes}
        if classes and (not found or len(kinds) == known):  # enough kernels of each
            known = len(kinds)
            rows = [
                row for row in classes if row.filter != "transformed" or len(kinds) == len(classes)
            ]
            size = statistics.fmean(row.mean_error for row in rows for _ in range(row.n_rows))
            found.append((size, [replace(row, more_s=more_s) for row in classes]))
    return min(found, key=lambda one: one[0])[1] if found else []


def _by_filter(convs: Sequence[Kernel]) -> list[Fraction]:
    found: dict[str, Fraction] = {}
    for filter_ in ("direct", "larger", "1x1", "3x3"):
        members = [kernel for kernel in convs if kernel.filter == filter_]
        if sum(kernel.counts for kernel in members) >= MIN_ROWS:
            found[filter_] = _fraction(members, members[0].pass_, filter_)
    if "3x3" in found and "direct" in found:
        members = [kernel for kernel in convs if kernel.filter == "3x3"]
        found["3x3"] = _in_the_better_way(members, found["3x3"], found["direct"])
        alone = _fraction(members, members[0].pass_, "3x3")
        transformed = _with_products(members, found["direct"]) if alone.value > 1 else []
        if transformed and transformed[0].mean_error < found["3x3"].mean_error:
            del found["3x3"]
            found |= {str(row.filter): row for row in transformed}
    return [found[name] for name in FILTERS if name in found]


def _with_products(members: Sequence[Kernel], direct: Fraction) -> list[Fraction]:
    """Return the shares of 3 x 3 filters where products between transforms are there, too.

    Kernels are parted into those that each way is the faster for, whose weighted median is the
    share of the way, until both agree. Gradients of filters have no kernels of blocks.
    """
    ways = ("transformed",) if members[0].pass_ == "weight-gradient" else ("blocked", "transformed")
    of = {way: [getattr(kernel, way) for kernel in members] for way in ways}
    if any(kernel is None for way in ways for kernel in of[way]):
        return []
    shares = {"blocked": 1.5, "transformed": 0.8}  # where the search begins
    for _ in range(_ROUNDS):
        times = {way: [kernel.predicted_s(shares[way]) for kernel in of[way]] for way in ways}
        fastest = [min(ways, key=lambda way, i=i: times[way][i]) for i in range(len(members))]
        counted = {
            way: [k for k, best in zip(of[way], fastest, strict=True) if best == way and k.counts]
            for way in ways
        }
        if any(len(kernels) < MIN_ROWS for kernels in counted.values()):
            return []
        shares |= {
            way: weighted_median([(k.achieved, k.flops) for k in kernels])
            for way, kernels in counted.items()
        }
    errors = [
        min(
            kernel.predicted_s(direct.value), *(of[way][i].predicted_s(shares[way]) for way in ways)
        )
        / kernel.measured_s
        - 1
        for i, kernel in enumerate(members)
    ]
    if shares["transformed"] > 1:
        return []  # products do not exceed the peak: there are no such kernels
    deciles, first = statistics.quantiles(errors, n=10, method="inclusive"), members[0]
    return [
        Fraction(
            engine=first.engine,
            format=first.format,
            op=first.op,
            pass_=first.pass_,
            filter="3x3" if way == "blocked" else way,
            value=shares[way],
            n_rows=len(members),
            n_counted=len(counted[way]),
            median_error=statistics.median(errors),
            median_abs_error=statistics.median(map(abs, errors)),
            p10_error=deciles[0],
            p90_error=deciles[-1],
            mean_error=_size(errors),
            blocked=way == "blocked",
        )
        for way in ways
    ]


def _in_the_better_way(members: Sequence[Kernel], alone: Fraction, direct: Fraction) -> Fraction:
    """Return the share of 3 x 3 filters as one kind of kernels, or as Winograd's beside direct."""
    blocks = [kernel.blocked for kernel in members if kernel.blocked is not None]
    counted = [kernel for kernel in blocks if kernel.counts]
    if alone.value <= 1 or len(counted) < MIN_ROWS:  # only Winograd's kernels exceed the peak
        return alone
    value = weighted_median([(kernel.achieved, kernel.flops) for kernel in counted])
    errors = [
        min(other.predicted_s(value), kernel.predicted_s(direct.value)) / kernel.measured_s - 1
        for kernel, other in zip(members, blocks, strict=True)
    ]
    if _size(errors) >= alone.mean_error:
        return alone
    deciles = statistics.quantiles(errors, n=10, method="inclusive")
    return replace(
        alone,
        value=value,
        n_counted=len(counted),
        median_error=statistics.median(errors),
        median_abs_error=statistics.median(map(abs, errors)),
        p10_error=deciles[0],
        p90_error=deciles[-1],
        mean_error=_size(errors),
        blocked=True,
    )


def _size(errors: Iterable[float]) -> float:
    return statistics.fmean(abs(math.log1p(error)) for error in errors)


def _fraction(members: Sequence[Kernel], pass_: str | None, filter_: str | None) -> Fraction:
    counted = [kernel for kernel in members if kernel.counts]
    value = weighted_median([(kernel.achieved, kernel.flops) for kernel in counted])
    errors = sorted(kernel.predicted_s(value) / kernel.measured_s - 1 for kernel in counted)
    deciles = statistics.quantiles(errors, n=10, method="inclusive")
    first = members[0]
    return Fraction(
        engine=first.engine,
        format=first.format,
        op=first.op,
        pass_=pass_,
        filter=filter_,
        value=value,
        n_rows=len(members),
        n_counted=len(counted),
        median_error=statistics.median(errors),
        median_abs_error=statistics.median(map(abs, errors)),
        p10_error=deciles[0],
        p90_error=deciles[-1],
        mean_error=_size(k.predicted_s(value) / k.measured_s - 1 for k in members),
    )


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


def table(fractions: Iterable[Fraction], kernels: Sequence[Kernel]) -> str:
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
        found = _fraction(products_alone(device_name, least_sum), None, None)
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
