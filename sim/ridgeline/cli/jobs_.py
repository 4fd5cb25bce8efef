"""``ridgeline jobs``: jobs that share a fabric, each alone and beside the others."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from ridgeline.cli.number_options import Whole
from ridgeline.cli.output import console, print_json
from ridgeline.errors import ConfigError

if TYPE_CHECKING:
    from ridgeline.study.jobs.neighbours import Neighbours

_LINKS = 8  # that are printed


def jobs_(
    file: str,
    *,
    placement: str = "",
    plot: str | None = None,
    processes: Whole = 1,
    cluster_address: str | None = None,
    json: Annotated[bool, Parameter(negative="")] = False,
) -> None:
    """Simulate jobs that share a fabric: steps, flow-completion times, fairness, shared links.

    Parameters
    ----------
    file
        A file of kind jobs (docs/neighbours.md).
    placement
        Placement of jobs that name no devices, in place of the file's: packed, striped, random, or
        several with commas between them.
    plot
        File for a figure of each job's slow-down: .png, .svg or .pdf.
    processes
        Processes on this machine. They lower jobs, and simulate jobs that share no link.
    cluster_address
        Address of a Dask scheduler whose workers take the place of the processes.
    json
        Print the answer as JSON; for several placements, one answer by the name of each.
    """
    from ridgeline.network.placement import check_placement
    from ridgeline.report.files import check_writable
    from ridgeline.study.jobs.job_file import read_jobs
    from ridgeline.study.jobs.neighbours import simulate_jobs

    if plot is not None:
        check_writable(plot)
    described = read_jobs(file)
    asked = list(dict.fromkeys(filter(None, (part.strip() for part in placement.split(",")))))
    for one in asked:
        check_placement(one)
    if processes < 1:
        raise ConfigError(f"must be at least 1, found {processes}", field="--processes")
    simulated = partial(
        simulate_jobs, described, processes=processes, cluster_address=cluster_address
    )
    found = {one: simulated(placement=one) for one in asked}
    if not found:
        found = {described.placement: simulated()}
    if plot is not None:
        from ridgeline.report.figures.result import save
        from ridgeline.study.jobs.figure import slowdowns

        save(slowdowns(found), plot)
    if json:
        answers = {name: of.to_dict() for name, of in found.items()}
        print_json(answers if len(answers) > 1 else next(iter(answers.values())))
        return
    for name, of in found.items():
        _print(name, of)
    if plot is not None:
        console().print(f"wrote {plot}", soft_wrap=True)


def _print(placement: str, found: Neighbours) -> None:
    from ridgeline.report.tables import plain_table
    from ridgeline.units import show

    screen = console()
    screen.print(f"{found.name} on {found.cluster}, {placement}", soft_wrap=True)
    columns = ("n", "alone", "step", "slow-down", "flows", "p50", "p95", "p99", "p99 alone")
    table = plain_table({"job": "left", **dict.fromkeys(columns, "right")})
    for job in found.jobs:
        done, alone = job.completion, job.completion_alone
        times = (done.p50_s, done.p95_s, done.p99_s, alone.p99_s)
        table.add_row(
            job.name,
            f"{len(job.devices)}",
            show(job.alone_s, "s", 4),
            show(job.step_time_s, "s", 4),
            f"{job.slowdown:.3f}",
            f"{done.flows:,}",
            *("-" if time_s is None else show(time_s, "s", 3) for time_s in times),
        )
    screen.print(table)
    for of in found.background:
        done = of.completion
        ended = "steady"
        if done.p50_s is not None and done.p99_s is not None:
            p50, p99 = show(done.p50_s, "s", 3), show(done.p99_s, "s", 3)
            ended = f"{done.flows:,} messages, p50 {p50}, p99 {p99}"
        rate = show(of.rate_bytes_per_s, "B/s", 4)
        screen.print(f"background {of.name}: {of.flows:,} flows, {rate}, {ended}", soft_wrap=True)
    screen.print(f"fairness (Jain) {found.fairness:.4f}; all end after {show(found.end_s, 's', 4)}")
    if not found.links:
        screen.print("no link was used by two at the same time")
        return
    links = plain_table({"link": "left", "shared": "right", "offered": "right", "by": "left"})
    for link in found.links[:_LINKS]:
        sizes = ", ".join(
            f"{name} {show(size, 'B', 3)}" for name, size in link.bytes_by_job.items()
        )
        links.add_row(link.name, show(link.shared_s, "s", 3), f"{link.offered:.0%}", sizes)
    screen.print(links)
    if len(found.links) > _LINKS:
        screen.print(f"and {len(found.links) - _LINKS} more links (--json has all)")
    screen.print(f"network: {found.level}", soft_wrap=True)
