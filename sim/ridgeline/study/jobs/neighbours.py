"""Neighbours: jobs that share a fabric, each with what its step takes alone and beside the others.

The step of every job is lowered as `simulate` does it, rank by rank, on the devices that it has;
the steps of all jobs that share links, directly or by way of others, are then one program
(`engine.merged_programs`),
in which the links of the fabric are divided max-min fairly between whatever is
on them. Alone means: the same job on the same devices, and nothing else on the fabric.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ridgeline.errors import RidgelineError
from ridgeline.network.placement import check_placement
from ridgeline.study.jobs.components import (
    MOST_TASKS,
    JobRequest,
    OfComponent,
    OfJob,
    Passed,
    fabric_name,
    names_of,
    passed,
    play_component,
)
from ridgeline.study.jobs.job_file import JobFile, jobs_of, read_jobs
from ridgeline.study.jobs.results import Completion, JobResult, Neighbours, TrafficResult
from ridgeline.study.parallel_run import mapped
from ridgeline.study.point_files import NO_FILES, files_of
from ridgeline.version import __version__

__all__ = ["Completion", "JobResult", "Neighbours", "TrafficResult", "simulate_jobs"]


def simulate_jobs(
    file: JobFile | str | Path,
    *,
    placement: str | None = None,
    processes: int = 1,
    cluster_address: str | None = None,
) -> Neighbours:
    """Simulate the jobs of a file on one fabric, each also alone.

    Parameters
    ----------
    placement
        packed, striped or random, in the place of the file's, for jobs that name no devices.
    processes
        Processes on this machine that lower jobs, and play those that share no link.
    cluster_address
        Address of a Dask scheduler, whose workers do that instead. The answer is the same.

    Raises
    ------
    RidgelineError
        If the jobs need more devices than there are, or one of them cannot run.
    """
    file = file if isinstance(file, JobFile) else read_jobs(file)
    if placement is not None:
        check_placement(placement)
    asked = JobRequest.of(file, placement)
    names = names_of(asked)
    jobs = [OfJob(asked, number) for number in range(len(names))]
    files = NO_FILES
    if cluster_address is not None:
        files = files_of(job.point for job in jobs_of(file, placement))
    uses = mapped(passed, jobs, processes, cluster_address, files=files)
    background = bool(file.background)
    components = [tuple(range(len(names)))] if background else parted(uses)
    _check_size(file.name, [sum(uses[i].tasks for i in numbers) for numbers in components])
    wanted = [OfComponent(asked, numbers, background) for numbers in components]
    parts = mapped(play_component, wanted, processes, cluster_address, files=files)
    by_number = {
        number: job
        for of, part in zip(wanted, parts, strict=True)
        for number, job in zip(of.numbers, part.jobs, strict=True)
    }
    links = [link for part in parts for link in part.links]
    return Neighbours(
        name=file.name,
        cluster=fabric_name(asked),
        level="flows: links divided max-min fairly between the collectives and messages on them",
        jobs=tuple(by_number[number] for number in range(len(names))),
        background=tuple(one for part in parts for one in part.background),
        links=tuple(sorted(links, key=lambda one: (-one.wanted_s, one.name))),
        end_s=max(part.end_s for part in parts),
        manifest={
            "ridgeline": __version__,
            "placement": placement or file.placement,
            "jobs": file.model_dump(mode="json", by_alias=True, exclude_defaults=True),
        },
    )


def parted(uses: Sequence[Passed]) -> list[tuple[int, ...]]:
    """Return jobs that share links, directly or by way of others, together; in their order."""
    component = list(range(len(uses)))
    first: dict[str, int] = {}
    for number, use in enumerate(uses):
        for link in use.links:
            other, mine = component[first.setdefault(link, number)], component[number]
            if other != mine:
                low, high = sorted((other, mine))
                component = [low if one == high else one for one in component]
    found: dict[int, list[int]] = {}
    for number, one in enumerate(component):
        found.setdefault(one, []).append(number)
    return [tuple(numbers) for numbers in found.values()]


def _check_size(name: str, tasks: Sequence[int]) -> None:
    """Refuse jobs whose steps have too many tasks, before they are played."""
    most = max(tasks)
    if most > MOST_TASKS:
        raise RidgelineError(
            f"{name}: {most:,} tasks of all steps of jobs that share links; at most {MOST_TASKS:,}"
            " are played: fewer steps, or larger micro-batches"
        )
