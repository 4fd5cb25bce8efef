"""Training loop: a run as SimPy processes, from its first step to its last.

`TrainingLoop` trains, saves and recovers; a `FailureSource` strikes it, nodes are repaired beside
it, maintenance stops it, curtailed power slows it. The loop does not wake at every step: it
works through the steps until the next planned stop at once; an interruption finds out how far it
came.
Time is counted by category as it passes; what a failure undoes is moved to lost work, so that the
categories always sum to the clock.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import simpy

from ridgeline.engine.program import Floats
from ridgeline.training import goodput
from ridgeline.training.failures import DAY_S, Failure, FailureCause, FailureSource
from ridgeline.training.goodput import GoodputAccount
from ridgeline.training.input_epochs import InputSummary
from ridgeline.training.run_file import Curtailment, Preemption, RunFile
from ridgeline.training.steps import StepTimes
from ridgeline.training.storage import CheckpointTimes
from ridgeline.training.stragglers import waited_for

Process = Generator[simpy.Event, Any, None]
_MOST_DRAWN = 100_000
"""Steps that are drawn at a time."""


class RunSpan(NamedTuple):
    """A stretch of the run in one category, and the share of the usual power that it may draw.

    `waiting_share` is the part of it in which steps wait for their input.
    """

    start_s: float
    end_s: float
    category: str
    power_share: float = 1.0
    waiting_share: float = 0.0


class _Stopped(Exception):
    """Training stopped: a failure, or something planned."""


class _Struck(NamedTuple):
    """Reason of an interruption: a failure that stops the job."""

    failure: Failure
    cause: FailureCause


class _Planned(NamedTuple):
    """Reason of an interruption: a stop that is planned; steps so far are saved first if it can."""

    category: str
    duration_s: float
    saves: bool = True


class _Speed(NamedTuple):
    """What stretches steps: the slowest node, a building that draws less, nodes that are missing.

    `smaller` is the time in which a smaller job trains as many samples as a step has.
    """

    slow: float
    curtailed: float
    smaller: float
    power_share: float

    @property
    def factor(self) -> float:
        """Time of a step over its usual one."""
        return self.slow * self.curtailed * self.smaller


_SPEED = "speed"
"""Reason of an interruption: steps take another time from now on."""


@dataclass(frozen=True)
class _Saved:
    """A checkpoint: the steps that it holds, and the account of work at its moment."""

    step: int
    work: dict[str, float] = field(default_factory=dict)


class TrainingLoop:
    """One run: steps, saves, failures and recoveries until the last step is done.

    Parameters
    ----------
    workers
        Replicas that deliver gradients.
    saving
        Times of a checkpoint, and steps between two; None: nothing is saved.
    smaller
        Of an elastic job: missing nodes -> time of as many samples as a step has, over a step.
    feed
        Input pipeline, which is filled at every start; None: it never is empty.
    """

    def __init__(
        self,
        run: RunFile,
        steps: StepTimes,
        *,
        nodes: int,
        workers: int,
        saving: tuple[CheckpointTimes, int] | None,
        smaller: Mapping[int, float] | None = None,
        feed: InputSummary | None = None,
        seed: int,
    ) -> None:
        self.run, self.steps, self.nodes, self.workers = run, steps, nodes, workers
        self.saving, self.feed = saving, feed
        self._smaller = smaller or {}
        self._missing = 0  # nodes that the job goes on without
        self._is_away = False  # without nodes: their failures are none of the job's
        self._banked_s = 0.0  # waiting for input that full buffers spare
        self.environment = simpy.Environment()
        self.account = GoodputAccount()
        self.failures: list[Failure] = []
        self.spans: list[RunSpan] = []
        self.saves = self.restarts = self.lost_steps = 0
        self.done = 0
        self._saved = _Saved(0)
        self._written: simpy.Event | None = None
        self._generation = 0  # of the job: a write that began before a failure is void
        self._slow: dict[Failure, float] = {}  # slow-downs that nobody has found: their factors
        self._curtailed: Curtailment | None = None
        self._absent: set[int] = set()  # nodes that are replaced before the job starts again
        failing, self._random, preempting = (np.random.default_rng((seed, k)) for k in range(3))
        environment = self.environment
        self._spares = simpy.Container(environment, init=run.recovery.spares)
        self._process = environment.process(self._train())
        if run.failures:
            FailureSource(environment, run.failures, nodes, failing, self._strike)
        if run.maintenance is not None:
            environment.process(self._maintain())
        if run.preemption is not None:
            environment.process(self._preempt(run.preemption, preempting))
        if run.curtailment is not None:
            environment.process(self._curtail(run.curtailment))

    def play(self) -> None:
        """Run to the last step."""
        self.environment.run(until=self._process)

    @property
    def wall_s(self) -> float:
        """Clock of the run."""
        return float(self.environment.now)

    # The loop -----------------------------------------------------------------------------------

    def _train(self) -> Process:
        started = False
        while self.done < self.steps.count:
            try:
                if not started:
                    yield from self._spend(goodput.START_UP, self.run.start_up)
                    yield from self._fill()
                    started = True
                yield from self._until_next_stop()
            except _Stopped as stopped:
                yield from self._recover(stopped.args[0])

    def _until_next_stop(self) -> Process:
        """Train until a save, an evaluation or the end, and do what is due there."""
        evaluation = self.run.evaluation
        stops = [self.steps.count, self.done + _MOST_DRAWN]
        if self.saving is not None:
            stops.append(_next(self.done, self.saving[1]))
        if evaluation is not None:
            stops.append(_next(self.done, evaluation.every))
        last = min(stops)
        yield from self._work(last)
        if self.done == self.steps.count:
            return
        if evaluation is not None and self.done % evaluation.every == 0:
            yield from self._spend(goodput.EVALUATION, evaluation.time)
        if self.saving is not None and self.done % self.saving[1] == 0:
            yield from self._save(self.saving[0])

    def _work(self, last: int) -> Process:
        """Train to a step; steps that are done count, whatever interrupts the rest."""
        first = self.done
        base, input_s = self.steps.between(first, last)
        late = waited_for(self.run.stragglers, self.workers, last - first, self._random)
        trained = base - input_s
        # The pipeline works on while a straggler is waited for, and while the job stands still.
        input_s = np.maximum(0.0, input_s - trained * (late - 1.0))
        banked = np.minimum(np.cumsum(input_s), self._banked_s)
        input_s = input_s - np.diff(banked, prepend=0.0)
        drawn = trained * late + input_s
        work = np.stack((drawn, trained + input_s, input_s), axis=1)  # left: one row a step
        self._banked_s -= float(banked[-1]) if len(banked) else 0.0
        while len(work):
            speed, began = self._speed(), self.environment.now
            try:
                yield self.environment.timeout(float(work[:, 0].sum()) * speed.factor)
            except simpy.Interrupt as interruption:
                worked_s = (self.environment.now - began) / speed.factor
                ends = np.cumsum(work[:, 0])
                whole = int(np.searchsorted(ends, worked_s, side="right"))
                self._count(work[:whole].sum(axis=0), speed)
                self.done += whole
                begun = worked_s - (ends[whole - 1] if whole else 0.0)
                self._pass(began, goodput.PRODUCTIVE, speed.power_share, _waiting(work))
                if interruption.cause != _SPEED:  # the step that is cut off is of no use
                    self.account.add(goodput.LOST_WORK, float(begun) * speed.factor)
                    raise _Stopped(interruption.cause) from None
                work = work[whole:]
                if len(work):
                    part = begun / work[0, 0]
                    self._count(part * work[0], speed)
                    work = np.concatenate(((1.0 - part) * work[:1], work[1:]))
            else:
                self._count(work.sum(axis=0), speed)
                self._pass(began, goodput.PRODUCTIVE, speed.power_share, _waiting(work))
                break
        self.done = last

    def _count(self, work: Floats, speed: _Speed) -> None:
        """Count steps by what their time went to.

        Parameters
        ----------
        work
            Their time as drawn, undisturbed, and waiting for input, (3,).
        """
        drawn_s, base_s, input_s = (float(of) for of in work)
        add = self.account.add
        add(goodput.PRODUCTIVE, base_s - input_s)
        add(goodput.DATA_LOADING, input_s)
        add(goodput.STRAGGLERS, drawn_s - base_s)
        add(goodput.SLOWDOWN, drawn_s * (speed.slow - 1.0))
        add(goodput.CURTAILED, drawn_s * speed.slow * (speed.curtailed - 1.0))
        add(goodput.SMALLER, drawn_s * speed.slow * speed.curtailed * (speed.smaller - 1.0))

    def _speed(self) -> _Speed:
        """Return what stretches a step now."""
        now = self._curtailed
        curtailed, share = (1.0, 1.0) if now is None else (now.slower, now.power)
        share *= 1.0 - self._missing / self.nodes
        smaller = self._smaller[self._missing] if self._missing else 1.0
        return _Speed(max(self._slow.values(), default=1.0), curtailed, smaller, share)

    def _spend(self, category: str, time_s: float) -> Process:
        """Let time pass in one category."""
        left_s = time_s
        while left_s > 0:
            began = self.environment.now
            self._is_away = category in goodput.AWAY
            share = 0.0 if self._is_away else self._speed().power_share
            try:
                yield self.environment.timeout(left_s)
                left_s = 0.0
            except simpy.Interrupt as interruption:
                left_s -= self.environment.now - began
                if interruption.cause != _SPEED:
                    raise _Stopped(interruption.cause) from None
            finally:
                self._is_away = False
                passed_s = float(self.environment.now - began)
                self.account.add(category, passed_s)
                self._pass(began, category, share)
                if self.feed is not None:
                    self._banked_s = min(self.feed.banked_s, self._banked_s + passed_s)

    def _fill(self) -> Process:
        """Wait until the input pipeline has filled from the beginning."""
        if self.feed is not None:
            yield from self._spend(goodput.DATA_LOADING, self.feed.fill_s)
            self._banked_s = self.feed.begun_s

    def _pass(
        self, began_s: float, category: str, power_share: float, waiting_share: float = 0.0
    ) -> None:
        """Put the time since it began on the timeline."""
        if self.environment.now > began_s:
            now_s = float(self.environment.now)
            self.spans.append(RunSpan(began_s, now_s, category, power_share, waiting_share))

    # Checkpoints --------------------------------------------------------------------------------

    def _save(self, times: CheckpointTimes) -> Process:
        """Save: wait for the write before it, stop for the copy, and let the write go on."""
        yield from self._wait_for_write()
        taken = _Saved(self.done, {name: self.account.seconds[name] for name in goodput.OF_STEPS})
        yield from self._spend(goodput.SAVE, times.stall_s)
        self.saves += 1
        if times.write_s > times.stall_s:
            self._written = self.environment.event()
            self.environment.process(
                self._write(taken, times.write_s - times.stall_s, self._generation)
            )
        else:
            self._saved = taken

    def _write(self, taken: _Saved, time_s: float, generation: int) -> Process:
        """Write a copy beside the steps; it counts once it is whole."""
        written = self._written
        yield self.environment.timeout(time_s)
        if generation == self._generation:
            self._saved = taken
        if written is not None and not written.triggered:
            written.succeed()

    def _wait_for_write(self) -> Process:
        began, share = self.environment.now, self._speed().power_share
        while self._written is not None and not self._written.triggered:
            try:
                yield self._written
            except simpy.Interrupt as interruption:
                if interruption.cause != _SPEED:
                    raise _Stopped(interruption.cause) from None
            finally:
                self.account.add(goodput.SAVE, self.environment.now - began)
                self._pass(began, goodput.SAVE, share)
                began, share = self.environment.now, self._speed().power_share

    # Failures -----------------------------------------------------------------------------------

    def _strike(self, failure: Failure, cause: FailureCause) -> None:
        """Take a failure: stop the job, or slow it until it is found; absent nodes do not fail."""
        if not self._process.is_alive or self._is_away or failure.node in self._absent:
            return
        self.failures.append(failure)
        if cause.effect == "slow":
            found_s = self.run.recovery.detection if cause.detection is None else cause.detection
            self._slow[failure] = cause.factor
            self._process.interrupt(_SPEED)
            self.environment.process(self._find(failure, found_s, cause.replaces_node))
            return
        if cause.replaces_node:
            self._leave(failure.node)
        self._process.interrupt(_Struck(failure, cause))

    def _find(self, failure: Failure, time_s: float, replace: bool) -> Process:
        """Find a slow node after a while; take it out of the job, or mend it."""
        yield self.environment.timeout(time_s)
        if self._slow.pop(failure, None) is None or not self._process.is_alive:
            return
        if replace:
            for other in [of for of in self._slow if of.node == failure.node]:
                del self._slow[other]
            self._leave(failure.node)
        self._process.interrupt(_Planned(goodput.RECOVERY, self.run.recovery.restart))

    def _recover(self, reason: _Struck | _Planned) -> Process:
        """Go from a stop to the next step, however often that is interrupted."""
        while True:
            try:
                if isinstance(reason, _Planned):
                    yield from self._stop_as_planned(reason)
                else:
                    yield from self._start_again(reason)
                return
            except _Stopped as stopped:
                reason = stopped.args[0]

    def _stop_as_planned(self, planned: _Planned) -> Process:
        """Save, stand still, start again."""
        if planned.saves and self.saving is not None and self.done > self._saved.step:
            times = self.saving[0]
            taken = _Saved(
                self.done, {name: self.account.seconds[name] for name in goodput.OF_STEPS}
            )
            yield from self._spend(goodput.SAVE, times.write_s)
            self._saved = taken
        self._undo()
        yield from self._spend(planned.category, planned.duration_s)
        yield from self._replace_nodes()
        if planned.category != goodput.RECOVERY:
            yield from self._spend(goodput.RECOVERY, self.run.recovery.restart)
        yield from self._restore()

    def _start_again(self, struck: _Struck) -> Process:
        """Undo what no checkpoint holds, notice, replace, start, read."""
        self._undo()
        cause, recovery = struck.cause, self.run.recovery
        noticed_s = recovery.detection if cause.detection is None else cause.detection
        yield from self._spend(goodput.DETECTION, noticed_s)
        yield from self._spend(goodput.QUEUED, recovery.requeue)
        yield from self._replace_nodes()
        yield from self._spend(goodput.RECOVERY, recovery.restart)
        yield from self._restore()

    def _restore(self) -> Process:
        self.restarts += 1
        if self.saving is not None and self._saved.step:
            yield from self._spend(goodput.RESTORE, self.saving[0].restore_s)
        yield from self._fill()

    def _undo(self) -> None:
        """Go back to the last checkpoint; the work since then is lost."""
        self._generation += 1
        if self._written is not None and not self._written.triggered:
            self._written.succeed()
        for name in goodput.OF_STEPS:
            kept_s = self._saved.work.get(name, 0.0)
            self.account.move(name, goodput.LOST_WORK, self.account.seconds[name] - kept_s)
        self.lost_steps += self.done - self._saved.step
        self.done = self._saved.step

    def _leave(self, node: int) -> None:
        """Let a node leave the job; it is a spare once it is repaired."""
        if node not in self._absent:
            self._absent.add(node)
            self.environment.process(self._repair())

    def _repair(self) -> Process:
        yield self.environment.timeout(self.run.recovery.repair)
        yield self._spares.put(1)
        if self._missing and self._process.is_alive:
            self._process.interrupt(_Planned(goodput.RECOVERY, self.run.recovery.restart))

    def _replace_nodes(self) -> Process:
        """Take a spare for every node that left; else go on without, or wait for a repair."""
        self._missing = 0
        while self._absent:
            if self._spares.level == 0 and len(self._absent) in self._smaller:
                self._missing = len(self._absent)
                return
            began, share = self.environment.now, self._speed().power_share
            request = self._spares.get(1)
            try:
                yield request
            except simpy.Interrupt as interruption:
                if interruption.cause != _SPEED:
                    raise _Stopped(interruption.cause) from None
            finally:
                if request.triggered:
                    self._absent.pop()
                else:
                    request.cancel()
                self.account.add(goodput.SPARES, self.environment.now - began)
                self._pass(began, goodput.SPARES, share)

    # Plans --------------------------------------------------------------------------------------

    def _maintain(self) -> Process:
        maintenance = self.run.maintenance
        assert maintenance is not None
        while self._process.is_alive:
            yield self.environment.timeout(maintenance.every)
            if self._process.is_alive:
                self._process.interrupt(_Planned(goodput.MAINTENANCE, maintenance.time))
                yield self.environment.timeout(maintenance.time)

    def _preempt(self, preemption: Preemption, random: np.random.Generator) -> Process:
        fits = self.saving is not None and self.saving[0].write_s <= preemption.notice
        while self._process.is_alive:
            yield self.environment.timeout(random.exponential(preemption.every))
            if self._process.is_alive:
                self._process.interrupt(_Planned(goodput.PREEMPTED, preemption.time, fits))
                yield self.environment.timeout(preemption.time)

    def _curtail(self, curtailment: Curtailment) -> Process:
        hour_s = self.run.facility.start_hour * 3600.0
        yield self.environment.timeout((curtailment.start - hour_s) % DAY_S)
        while self._process.is_alive:
            self._curtailed = curtailment
            self._process.interrupt(_SPEED)
            yield self.environment.timeout(curtailment.duration)
            self._curtailed = None
            if self._process.is_alive:
                self._process.interrupt(_SPEED)
                yield self.environment.timeout(DAY_S - curtailment.duration)


def _waiting(work: Floats) -> float:
    """Return the share of the time of steps in which they wait for their input."""
    drawn_s, _, input_s = work.sum(axis=0)
    return float(input_s / drawn_s) if drawn_s else 0.0


def _next(done: int, every: int) -> int:
    """Return the next multiple of a number of steps."""
    return (done // every + 1) * every
