"""Whole runs: from a run file to time, energy, cost and carbon at its target, over seeds.

A step is simulated once per distinct configuration; everything else is events (`training_loop`).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from ridgeline.config import Document
from ridgeline.errors import ConfigError, RidgelineError
from ridgeline.report.power import device_power_w, idle_node_power, node_power
from ridgeline.report.progress import Advance, progress_bar
from ridgeline.report.result import Result
from ridgeline.study.parallel_run import mapped
from ridgeline.study.point import Point
from ridgeline.study.validate.convergence import ConvergencePoint
from ridgeline.training import goodput
from ridgeline.training.checkpoint_interval import (
    daly_interval_s,
    expected_wall_time_s,
    young_interval_s,
)
from ridgeline.training.compressed_step import compressed_step_s
from ridgeline.training.elastic_job import smaller_jobs
from ridgeline.training.failures import FailureCause, between_failures_s
from ridgeline.training.final_accuracy import epochs_to_accuracy
from ridgeline.training.footprint import (
    RunFootprint,
    RunPower,
    carbon_intensity,
    footprint,
)
from ridgeline.training.input_epochs import InputSummary, read_by_epoch
from ridgeline.training.local_steps import local_round
from ridgeline.training.run_file import (
    Quality,
    RunFile,
    RunPhase,
    located,
    point_of,
    run_document,
    run_of,
)
from ridgeline.training.scaling_law import SCALING_LAWS
from ridgeline.training.statistical_efficiency import (
    TrainingAmount,
    amount_at,
    training_amount,
)
from ridgeline.training.steps import StepPhase, StepTimes, ramp_steps
from ridgeline.training.storage import CheckpointTimes, checkpoint_times
from ridgeline.training.training_loop import RunSpan, TrainingLoop
from ridgeline.training.training_result import RunOutcome, TrainingResult
from ridgeline.workload.dataset import load_dataset

MOST_SEEDS = 10_000


@dataclass(frozen=True)
class RunFacts:
    """Everything that a run's events follow from.

    Attributes
    ----------
    saving
        Times of a checkpoint, and steps between two.
    smaller
        Of an elastic job: missing nodes -> time of as many samples as a step has, over a step.
    amount
        What the target's quality takes, where it stands for an amount.
    notes
        What was assumed, for people.
    """

    run: RunFile
    steps: StepTimes
    nodes: int
    devices: int
    workers: int
    saving: tuple[CheckpointTimes, int] | None
    smaller: Mapping[int, float]
    power: RunPower
    pue: float
    amount: TrainingAmount | None
    input: InputSummary | None
    notes: tuple[str, ...]


def train(
    run: RunFile | str | Path,
    *,
    seeds: int = 1,
    processes: int = 1,
    cluster_address: str | None = None,
    overrides: Mapping[str, Any] | None = None,
    progress: bool = False,
) -> TrainingResult:
    """Simulate a whole training run to its target.

    Parameters
    ----------
    run
        A run file (docs/training.md), or its path.
    seeds
        Runs with other chances: seed, seed + 1 and so on.
    processes
        On this machine, that share the seeds.
    cluster_address
        Of a Dask scheduler, whose workers share them instead; the answer is the same.
    overrides
        Fields of the file that are replaced, by dotted path.
    progress
        Show a bar while seeds are played: in a notebook, or on standard error.

    Raises
    ------
    RidgelineError
        If the file has a mistake, or the target lies outside of what was measured.
    """
    if not 1 <= seeds <= MOST_SEEDS:
        raise ConfigError(f"must be from 1 to {MOST_SEEDS}, found {seeds}", field="seeds")
    if isinstance(run, RunFile):
        facts, step = run_facts(run)
    else:
        document = run_document(run, overrides)
        facts, step = run_facts(run_of(document), document)
    first = facts.run.seed
    bar = progress_bar(f"seeds of {facts.run.name}", seeds) if progress else _no_bar()
    with bar as advance:
        numbers = range(first, first + seeds)
        played = mapped(partial(_play, facts), numbers, processes, cluster_address, advance)
    return TrainingResult(
        name=facts.run.name,
        model=step.details.model.name,
        cluster=step.details.cluster.name,
        plan=str(step.details.plan),
        software=step.details.plan.stack.name,
        devices=facts.devices,
        nodes=facts.nodes,
        steps=facts.steps.count,
        step_time_s=facts.steps.time_s,
        samples_per_s=step.details.plan.global_batch / facts.steps.time_s,
        undisturbed_s=facts.steps.undisturbed_s,
        between_failures_s=between_failures_s(_stopping(facts.run), facts.nodes),
        daly_s=_daly_s(facts),
        checkpoint=None if facts.saving is None else facts.saving[0],
        steps_between_saves=None if facts.saving is None else facts.saving[1],
        amount=facts.amount,
        input=facts.input,
        facility=facts.run.facility,
        tuning_runs=facts.run.tuning_runs,
        outcomes=tuple(outcome for outcome, _ in played),
        spans=played[0][1],
        notes=facts.notes,
    )


@contextmanager
def _no_bar() -> Iterator[Advance]:
    yield lambda count: None


def run_facts(run: RunFile, document: Document | None = None) -> tuple[RunFacts, Result]:
    """Simulate the steps of a run, and find how many there are and when it saves.

    Parameters
    ----------
    document
        Where the run was read; mistakes name its lines.

    Raises
    ------
    RidgelineError
        If the file has a mistake, or the target lies outside of what was measured.
    """
    notes: list[str] = []
    amount: TrainingAmount | None = None
    if run.target.phases:
        steps = [_simulated(run, point_of(run, phase), document) for phase in run.target.phases]
        with located(document, "target"):
            times = StepTimes(
                tuple(
                    StepPhase(
                        _phase_steps(run, phase, step),
                        step.step_time_s,
                        step.time_s.get("input", 0.0),
                    )
                    for phase, step in zip(run.target.phases, steps, strict=True)
                )
            )
            if len({of.details.plan.devices for of in steps}) > 1:
                raise ConfigError("all phases use equally many devices", field="target.phases")
        of_phases = steps
        longest = max(range(len(steps)), key=lambda i: times.phases[i].count)
        step = steps[longest]
    else:
        point = point_of(run)
        step = _simulated(run, point, document)
        with located(document, "plan"):
            phase = StepPhase(1, *_step_time(run, point, step, notes))
        with located(document, "target"):
            amount, count = _steps(run, step, notes)
        phase = replace(phase, count=count)
        with located(document, "ramp"):
            times = StepTimes((phase,) if run.ramp is None else _ramped(run, point, step, phase))
        of_phases = [step] * len(times.phases)
    plan, cluster = step.details.plan, step.details.cluster
    feed: InputSummary | None = None
    with located(document, "input"):
        if run.input is not None:
            times, feed = _fed(run, times, of_phases)
            if run.input.spread and feed.nodes < len(cluster.nodes_of(plan.devices)):
                notes.append(
                    f"input of {feed.nodes} nodes is simulated: of all, the slowest takes longer"
                )
    if not step.fits:
        notes.append("a step does not fit in the memory of its devices")
    nodes = len(cluster.nodes_of(plan.devices))
    with located(document, "facility", "grid"):
        carbon_intensity(run.facility)  # refused before anything is played
    with located(document, "checkpoint"):
        facts = RunFacts(
            run=run,
            steps=times,
            nodes=nodes,
            devices=plan.devices,
            workers=plan.data,
            saving=_saving(run, step, times, nodes),
            smaller={},
            power=_power(run, step, nodes, notes),
            pue=cluster.pue.value if run.facility.pue is None else run.facility.pue,
            amount=amount,
            input=feed,
            notes=tuple(notes),
        )
        _check(facts)
    if run.recovery.elastic is not None:
        with located(document, "recovery", "elastic"):
            facts = replace(facts, smaller=smaller_jobs(point_of(run), step, run.recovery.elastic))
    return facts, step


def _simulated(run: RunFile, point: Point, document: Document | None) -> Result:
    """Simulate a step; mistakes name the field that they come from."""
    for root in ("model", "cluster"):
        with located(document, root):
            point.load(root)
    with located(document, "dataset"):
        if run.dataset:
            load_dataset(run.dataset)
    with located(document, "plan"):
        return point.simulate(_beside(run))


def _beside(run: RunFile) -> str | None:
    """Return the data set that a step is simulated with: none if its pipeline is played."""
    return run.dataset or None if run.input is None else None


def _fed(run: RunFile, times: StepTimes, steps: list[Result]) -> tuple[StepTimes, InputSummary]:
    """Return the steps of a run with what they wait for their input."""
    assert run.input is not None  # asked by the caller
    dataset = load_dataset(run.dataset)
    samples = run.dataset_samples
    if samples is None and dataset.samples is not None:
        samples = dataset.samples.value
    if run.input.format:
        dataset = dataset.kept_as(run.input.format)
    return read_by_epoch(times, run.input, dataset, steps, samples, run.seed)


def _step_time(run: RunFile, point: Point, step: Result, notes: list[str]) -> tuple[float, float]:
    """Return the time of a step, simulated or with what is known, and its wait for input."""
    simulated_s = step.step_time_s
    source = run.step.source or "no source"
    if run.step.time is not None:
        notes.append(
            f"a step takes {run.step.time:.4g} s as stated ({source}); simulated: "
            f"{simulated_s:.4g} s"
        )
        return run.step.time, 0.0
    input_s = step.time_s.get("input", 0.0)
    if run.local_steps is not None:
        local = local_round(point, step, run.local_steps)
        notes.append(
            f"local steps: {local.step_s:.4g} s each, an exchange of {local.exchange_s:.4g} s "
            f"once in {local.steps:,}; {local.sent_bytes / 1e9:.4g} GB a replica and exchange"
        )
        return local.mean_step_s, 0.0
    if run.gradients is not None:
        whole_s = simulated_s
        simulated_s = compressed_step_s(point, step, run.gradients)
        notes.append(
            f"gradients by {run.gradients.compression}: a step of {whole_s:.4g} s takes "
            f"{simulated_s:.4g} s"
        )
    if run.step.one_device is None:
        return simulated_s, min(input_s, simulated_s)
    plan = step.details.plan
    if plan.devices != plan.data:
        raise ConfigError(
            "a rate of one device is of data-parallel plans alone; give step.time",
            field="step.one_device",
        )
    share = plan.global_batch // plan.data
    one = replace(point, plan={**point.plan, "data": 1, "global_batch": share}).simulate()
    stated_s = share / run.step.one_device
    notes.append(
        f"one device trains {run.step.one_device:.4g} samples a second as stated ({source}); "
        f"simulated: {share / one.step_time_s:.4g}"
    )
    return stated_s + max(0.0, simulated_s - one.step_time_s), input_s


def _steps(run: RunFile, step: Result, notes: list[str]) -> tuple[TrainingAmount | None, int]:
    """Return the steps to a target, and the measured amount that they rest on."""
    target, batch = run.target, step.details.plan.global_batch
    if target.steps is not None:
        return None, target.steps
    amount: TrainingAmount | None = None
    count, unit = 0.0, ""
    for unit in ("samples", "tokens", "epochs"):
        if (given := getattr(target, unit)) is not None:
            count = float(given)
            break
    else:
        if target.quality is not None:
            amount = _amount(target.quality, batch)
            count, unit = amount.amount, amount.unit
        elif (of := target.accuracy) is not None:
            reached = epochs_to_accuracy(of.network, of.recipe, batch, of.top1)
            count, unit = float(reached.epochs), "epochs"
            notes.append(
                f"{reached.epochs} epochs reach {reached.top1_pct:.4g} % ({reached.source})"
            )
        else:
            assert target.loss is not None  # one of them is given
            parameters = float(step.details.graph.parameters)
            count = SCALING_LAWS[target.loss.law].tokens_to(target.loss.loss, parameters)
            unit = "tokens"
    if unit == "steps":
        return amount, math.ceil(count)
    if unit == "tokens":
        tokens = step.details.graph.tokens_per_sample
        if not tokens:
            raise ConfigError(
                f"{step.details.model.name} has no tokens: give samples, epochs or steps",
                field="target",
            )  # fmt: skip
        count /= tokens
    if unit == "epochs":
        count *= _epoch_samples(run)
    return amount, max(1, math.ceil(count / batch))


def _amount(quality: Quality, batch: int) -> TrainingAmount:
    if quality.points:
        points = [ConvergencePoint("stated", of.batch, of.amount) for of in quality.points]
        task = f"{quality.benchmark} to {quality.target}"
        return amount_at(points, quality.unit or "epochs", batch, task)
    return training_amount(quality.benchmark, quality.target, quality.unit, batch)


def _epoch_samples(run: RunFile) -> int:
    if run.dataset_samples is not None:
        return run.dataset_samples
    if run.dataset:
        dataset = load_dataset(run.dataset)
        if dataset.samples is not None:
            return dataset.samples.value
    raise ConfigError(
        "an epoch needs the samples of the data set: give dataset_samples, or a dataset that "
        "states them",
        field="dataset_samples",
    )


def _phase_steps(run: RunFile, phase: RunPhase, step: Result) -> int:
    """Return the steps of a phase."""
    if phase.steps is not None:
        return phase.steps
    samples = phase.samples
    if samples is None:
        assert phase.epochs is not None  # one of the three is given
        samples = phase.epochs * _epoch_samples(run)
    return max(1, round(samples / step.details.plan.global_batch))


def _ramped(run: RunFile, point: Point, step: Result, phase: StepPhase) -> tuple[StepPhase, ...]:
    """Return the phase in which the batch grows, and the rest of the steps.

    Targets in steps count those of the ramp, too; of others, the samples of the ramp count.
    """
    ramp, batch = run.ramp, step.details.plan.global_batch
    assert ramp is not None
    if ramp.start >= batch:
        raise ConfigError(
            f"a ramp starts below the batch of {batch:,}; found {ramp.start:,}",
            field="ramp.start",
        )
    small = replace(point, plan={**point.plan, "global_batch": ramp.start}).simulate(_beside(run))
    scale = phase.time_s / step.step_time_s  # of a stated time
    growing = ramp_steps(ramp.start, batch, ramp.samples)
    spared = growing if run.target.steps is not None else round(ramp.samples / batch)
    if spared >= phase.count:
        raise ConfigError(
            f"the ramp takes {growing:,} steps, and the run ends before it does",
            field="ramp.samples",
        )
    first_s = small.step_time_s * scale
    grows = replace(
        phase,
        count=growing,
        first_time_s=first_s,
        first_input_s=min(small.time_s.get("input", 0.0), first_s),
        start_share=ramp.start / batch,
    )
    return grows, replace(phase, count=phase.count - spared)


def _saving(
    run: RunFile, step: Result, times: StepTimes, nodes: int
) -> tuple[CheckpointTimes, int] | None:
    """Return the times of a checkpoint, and the steps between two."""
    if run.checkpoint is None:
        return None
    saved = checkpoint_times(run.checkpoint, step)
    every = run.checkpoint.every
    if isinstance(every, int):
        return saved, every
    if isinstance(every, str):
        between_s = between_failures_s(_stopping(run), nodes)
        if between_s == math.inf:
            raise ConfigError(
                f"{every} needs failures that stop the job; give a time or steps",
                field="checkpoint.every",
            )
        best = young_interval_s if every == "young" else daly_interval_s
        # A write that runs beside the steps ends before the next one begins.
        work_s = max(best(saved.stall_s, between_s), saved.write_s)
    else:
        work_s = every
    return saved, max(1, round(work_s / times.time_s))


def _stopping(run: RunFile) -> list[FailureCause]:
    return [cause for cause in run.failures.values() if cause.effect == "stop"]


def _daly_s(facts: RunFacts) -> float | None:
    """Return the time of the run that Daly's model expects, where it holds.

    It knows work, saves that stop training, exponential failures and their restarts alone.
    """
    run, causes = facts.run, _stopping(facts.run)
    if facts.saving is None or not causes or any(cause.shape != 1.0 for cause in causes):
        return None
    if any(cause.detection is not None for cause in causes):
        return None
    times, every = facts.saving
    restart_s = run.recovery.detection + run.recovery.restart + times.restore_s
    return expected_wall_time_s(
        facts.steps.undisturbed_s,
        every * facts.steps.time_s,
        times.stall_s,
        restart_s,
        between_failures_s(causes, facts.nodes),
    )


def _power(run: RunFile, step: Result, nodes: int, notes: list[str]) -> RunPower:
    """Return the power of the nodes; of machines that state no parts, of their devices alone."""
    node = step.details.cluster.nodes
    try:
        busy_w, idle_w = node_power(step).wall_w, idle_node_power(node).wall_w
    except RidgelineError:
        busy_w = node.count * device_power_w(step)
        idle_w = node.count * node.devices.idle_power.value
        notes.append(f"{node.name} states no parts: energy is that of the devices alone")
    if run.step.node_power is not None:
        busy_w = run.step.node_power
    return RunPower(nodes * busy_w, nodes * idle_w, run.recovery.spares * idle_w)


def _check(facts: RunFacts) -> None:
    """Refuse a run that never ends."""
    backups = facts.run.stragglers.backup_workers
    if backups >= facts.workers:
        raise ConfigError(
            f"{backups} backup workers of {facts.workers} replicas: a step needs one more",
            field="stragglers.backup_workers",
        )
    recovery, causes = facts.run.recovery, facts.run.failures.values()
    noticed_s = max((recovery.detection, *(of.detection or 0.0 for of in causes)))
    unsaved_s, restart_s = facts.steps.undisturbed_s, noticed_s + recovery.restart
    if facts.input is not None:
        restart_s += facts.input.fill_s
    save_s = 0.0
    if facts.saving is not None:
        times, every = facts.saving
        unsaved_s = min(unsaved_s, every * facts.steps.time_s + times.write_s)
        restart_s += times.restore_s
        save_s = times.write_s
    mean_s = between_failures_s(_stopping(facts.run), facts.nodes)
    if (unsaved_s + restart_s) / mean_s > _MOST_TRIES:
        raise ConfigError(
            f"{unsaved_s:.4g} s of work between saves, {restart_s:.4g} s to start again, and a "
            f"failure every {mean_s:.4g} s: the run would not get on",
            field="checkpoint",
        )
    stop_s = save_s + restart_s + facts.steps.time_s  # of a planned stop, and a step after it
    mean_s = between_failures_s(list(causes), facts.nodes)
    if stop_s / mean_s > _MOST_TRIES:
        raise ConfigError(
            f"a stop takes {stop_s:.4g} s, and there is one every {mean_s:.4g} s: the run would "
            "not get on",
            field="failures",
        )
    preemption = facts.run.preemption
    if preemption is not None:
        fits = facts.saving is not None and save_s <= preemption.notice
        needed_s = stop_s if fits else unsaved_s + restart_s
        if needed_s / preemption.every > _MOST_TRIES:
            raise ConfigError(
                f"{needed_s:.4g} s of work are needed to get on, and the job is pre-empted every "
                f"{preemption.every:.4g} s: the run would not get on",
                field="preemption.every",
            )
    maintenance = facts.run.maintenance
    lasting_s = stop_s if facts.saving is not None else facts.steps.undisturbed_s
    if maintenance is not None and lasting_s >= maintenance.every:
        raise ConfigError(
            f"work of {lasting_s:.4g} s does not fit between stops every {maintenance.every:.4g} s",
            field="maintenance.every",
        )


_MOST_TRIES = 12.0
"""Exponent of the tries that a stretch of work takes, exp(work / between failures): 160,000."""


def _play(facts: RunFacts, seed: int) -> tuple[RunOutcome, tuple[RunSpan, ...]]:
    """Play one run."""
    loop = TrainingLoop(
        facts.run,
        facts.steps,
        nodes=facts.nodes,
        workers=facts.workers,
        saving=facts.saving,
        smaller=facts.smaller,
        feed=facts.input,
        seed=seed,
    )
    loop.play()
    causes: Mapping[str, int] = Counter(failure.cause for failure in loop.failures)
    took: RunFootprint = footprint(
        loop.spans,
        facts.power,
        facts.run.facility,
        pue=facts.pue,
        devices=facts.devices,
        held_s=loop.wall_s - sum(loop.account.seconds[name] for name in goodput.AWAY),
    )
    outcome = RunOutcome(
        seed=seed,
        wall_s=loop.wall_s,
        time_s=loop.account.ordered(),
        failures={name: causes.get(name, 0) for name in facts.run.failures},
        restarts=loop.restarts,
        saves=loop.saves,
        lost_steps=loop.lost_steps,
        footprint=took,
    )
    return outcome, tuple(loop.spans)
