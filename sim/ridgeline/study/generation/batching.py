"""Continuous batching on SimPy: requests share the steps of one engine.

Iteration-level scheduling (Yu et al., Orca, OSDI 2022, Section 4.1) over a paged cache (Kwon et
al., PagedAttention, SOSP 2023, arXiv:2309.06180, Section 4.5): before every step waiting requests
are admitted, the first first, while their pages fit; a sequence whose next page does not fit makes
the one that was admitted last give up its pages: it is computed again later, from its prompt and
all that it has generated. Without chunks a step either prefills whole prompts or decodes one token
of every running sequence; with chunks it decodes, and fills up to a number of tokens with parts of
prompts (Agrawal et al., Sarathi-Serve, OSDI 2024, arXiv:2403.02310).

There is no routing and no admission control: a request waits until its pages fit.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Generator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

import numpy as np
import simpy
from numpy.typing import NDArray

from ridgeline.errors import RidgelineError
from ridgeline.study.generation.kv_capacity import KvLayout
from ridgeline.study.generation.lengths import GenerationRequest

Lengths = NDArray[np.int64]
Sizes = NDArray[np.float64]
_ROUNDING = 1e-12


class GenerationWork(NamedTuple):
    """What one step computes.

    Attributes
    ----------
    decoding
        Context of every sequence of which one token is decoded; [sequences].
    prefilled
        (new tokens, context before them) of every prompt or part of one.
    """

    decoding: Lengths
    prefilled: tuple[tuple[int, int], ...] = ()


class StepPrice(NamedTuple):
    """Time of a step, and the energy of its events on all devices of the engine."""

    time_s: float
    energy_j: float


class StepPricer(Protocol):
    """Prices the steps of an engine."""

    def price(self, work: GenerationWork) -> StepPrice:
        """Return time and energy of a step."""
        ...


MOST_SEQUENCES, MOST_PREFILLED = 256, 8192
"""Sequences, and tokens that are prefilled, of a step where nothing else is asked (assumed; vLLM
has them as `--max-num-seqs` and `--max-num-batched-tokens`)."""


@dataclass(frozen=True)
class BatchingRules:
    """How an engine makes up its steps.

    Attributes
    ----------
    room_bytes
        Of the cache, on each device.
    layout
        What sequences take of it.
    most_sequences
        Of a step.
    most_prefilled
        Tokens that a step prefills at most; a longer prompt has a step of its own, or several.
    chunk
        Tokens of a step that decodes and prefills at once; 0: steps do one or the other.
    reserve
        Whether a request is admitted only when all that it will generate fits, too, so that none
        ever gives up its pages (TensorRT-LLM, GUARANTEED_NO_EVICT); a program that knows no lengths
        cannot.
    """

    room_bytes: float
    layout: KvLayout
    most_sequences: int = MOST_SEQUENCES
    most_prefilled: int = MOST_PREFILLED
    chunk: int = 0
    reserve: bool = False


@dataclass(slots=True)
class SequenceRecord:
    """What became of a request.

    Attributes
    ----------
    first_s, finish_s
        When its first and its last token were there.
    prefilled
        Tokens that were prefilled for it, those that were computed again included.
    generated
        Tokens that were generated.
    preempted
        How often it gave up its pages.
    """

    request: GenerationRequest
    admitted_s: float = -1.0
    first_s: float = -1.0
    finish_s: float = -1.0
    prefilled: int = 0
    generated: int = 0
    preempted: int = 0

    @property
    def recomputed(self) -> int:
        """Tokens that were prefilled besides the prompt."""
        return self.prefilled - self.request.prompt


class EngineStep(NamedTuple):
    """One step of a run.

    Attributes
    ----------
    decoded, prefilled
        Tokens.
    running, waiting
        Requests during it.
    kv_bytes
        Taken of the cache on each device.
    """

    start_s: float
    end_s: float
    decoded: int
    prefilled: int
    running: int
    waiting: int
    kv_bytes: float
    energy_j: float


@dataclass
class EngineRun:
    """All requests and steps of a run."""

    records: list[SequenceRecord]
    steps: list[EngineStep] = field(default_factory=list)

    @property
    def makespan_s(self) -> float:
        """When the last token was there."""
        return max((record.finish_s for record in self.records), default=0.0)


def run_engine(
    requests: Sequence[GenerationRequest], pricer: StepPricer, rules: BatchingRules
) -> EngineRun:
    """Generate all requests on one engine.

    Parameters
    ----------
    requests
        In the order of their arrival.

    Raises
    ------
    RidgelineError
        If a request does not fit into the cache even alone.
    """
    longest = rules.layout.longest(rules.room_bytes)
    for number, request in enumerate(requests):
        if request.prompt + request.output > longest:
            raise RidgelineError(
                f"request {number} has {request.prompt} + {request.output} tokens, but the cache"
                f" has room for a sequence of {longest}; more devices for each replica (tensor,"
                " pipeline), a narrower --kv-format or shorter sequences help"
            )
    run = EngineRun([SequenceRecord(request) for request in requests])
    environment = simpy.Environment()
    engine = _Engine(environment, run, pricer, rules)
    environment.process(engine.arrive())
    environment.process(engine.work())
    environment.run()
    return run


class _Engine:
    """The engine's state; sequences are numbered as their requests."""

    def __init__(
        self,
        environment: simpy.Environment,
        run: EngineRun,
        pricer: StepPricer,
        rules: BatchingRules,
    ) -> None:
        self.environment, self.run = environment, run
        self.pricer, self.rules = pricer, rules
        requests = [record.request for record in run.records]
        count = len(requests)
        self.prompt = np.array([request.prompt for request in requests], np.int64)
        self.output = np.array([request.output for request in requests], np.int64)
        self.goal = self.prompt.copy()  # positions that are to be prefilled
        self.length = np.zeros(count, np.int64)  # positions in the cache
        self.generated = np.zeros(count, np.int64)
        self.held_bytes = np.zeros(count)
        self.waiting: deque[int] = deque()
        self.running: list[int] = []  # by admission
        self.numbers: Lengths | None = None  # the same as an array; None: to be made
        self.left = count
        self.arrived = environment.event()

    def arrive(self) -> Generator[Any, Any, None]:
        for number, record in enumerate(self.run.records):
            if (wait := record.request.arrival_s - self.environment.now) > 0:
                yield self.environment.timeout(wait)
            self.waiting.append(number)
            if not self.arrived.triggered:
                self.arrived.succeed()

    def work(self) -> Generator[Any, Any, None]:
        while self.left:
            if not (self.waiting or self.running):
                yield self.arrived
            self.arrived = self.environment.event()
            yield self.environment.timeout(0)  # all that arrive now take part
            self._admit()
            prefilled = self._prefills()
            decodes = not prefilled or self.rules.chunk
            decoding = self._decodes() if decodes else np.zeros(0, np.int64)
            if prefilled and decodes:
                held = set(self.running)  # some may have given up their pages
                prefilled = [(number, part) for number, part in prefilled if number in held]
            price = self.pricer.price(
                GenerationWork(
                    self.length[decoding],
                    tuple((part, int(self.length[number])) for number, part in prefilled),
                )
            )
            start_s, taken = self.environment.now, self._taken()
            running, waiting = len(self.running), len(self.waiting)
            yield self.environment.timeout(price.time_s)
            self.run.steps.append(
                EngineStep(
                    start_s,
                    self.environment.now,
                    len(decoding),
                    sum(part for _, part in prefilled),
                    running,
                    waiting,
                    taken,
                    price.energy_j,
                )
            )
            self._advance(decoding, prefilled)

    def _taken(self) -> float:
        return float(self.held_bytes.sum())

    def _numbers(self) -> Lengths:
        """Return the running sequences as an array, made anew only when others run."""
        if self.numbers is None:
            self.numbers = np.array(self.running, np.int64)
        return self.numbers

    def _bytes(self, lengths: Lengths) -> Sizes:
        return self.rules.layout.bytes_of(lengths)

    def _admit(self) -> None:
        """Admit requests in their order while pages for all that they prefill fit."""
        taken = self._taken()
        while self.waiting and len(self.running) < self.rules.most_sequences:
            first = self.waiting[0]
            needs = self.goal[first] + 1
            if self.rules.reserve:
                needs = self.prompt[first] + self.output[first]
            size = float(self._bytes(needs))
            if taken + size > self.rules.room_bytes * (1 + _ROUNDING):
                break
            self.waiting.popleft()
            taken += size
            self.held_bytes[first] = size
            self.running.append(first)
            self.numbers = None
            record = self.run.records[first]
            if record.admitted_s < 0:
                record.admitted_s = self.environment.now

    def _prefills(self) -> list[tuple[int, int]]:
        """Choose what the next step prefills: whole prompts, or parts of them."""
        rules = self.rules
        running = self._numbers()
        whole = self.goal[running] - self.length[running]
        decoding = int((whole <= 0).sum())
        left = max(rules.chunk - decoding, 1) if rules.chunk else rules.most_prefilled
        chosen: list[tuple[int, int]] = []
        for at in np.flatnonzero(whole > 0).tolist():
            if left <= 0 or (not rules.chunk and chosen and whole[at] > left):
                break
            part = min(int(whole[at]), left)
            chosen.append((int(running[at]), part))
            left -= part
        return chosen

    def _decodes(self) -> Lengths:
        """Return the sequences that decode, after those gave way whose pages others need."""
        running = self._numbers()
        able = running[self.length[running] >= self.goal[running]]
        if self.rules.reserve:
            return able
        needs = self._bytes(self.length[able] + 2)
        room = self.rules.room_bytes * (1 + _ROUNDING)
        if self._taken() + float((needs - self.held_bytes[able]).sum()) <= room:
            self.held_bytes[able] = needs
            return able
        decoding: list[int] = []
        given_up: set[int] = set()
        for number, size in zip(able.tolist(), needs.tolist(), strict=True):
            if number in given_up:
                continue
            while self._taken() + size - self.held_bytes[number] > room:
                last = self.running[-1]  # was admitted after all that decode already
                self._preempt(last)
                given_up.add(last)
                if last == number:
                    break
            else:
                self.held_bytes[number] = size
                decoding.append(number)
        return np.array(decoding, np.int64)

    def _preempt(self, number: int) -> None:
        """Take the pages of a sequence, which is computed again from all of its tokens."""
        self.running.remove(number)
        self.numbers = None
        self.held_bytes[number] = 0.0
        self.goal[number] = self.prompt[number] + self.generated[number]
        self.length[number] = 0
        self.run.records[number].preempted += 1
        self.waiting.appendleft(number)

    def _advance(self, decoding: Lengths, prefilled: list[tuple[int, int]]) -> None:
        done: list[int] = []
        for number, part in prefilled:
            self.length[number] += part
            self.run.records[number].prefilled += part
            if self.length[number] >= self.goal[number]:
                done.append(number)
        self.length[decoding] += 1
        got = np.concatenate([decoding, np.array(done, np.int64)])
        self.generated[got] += 1
        now = self.environment.now
        for number in got[self.generated[got] == 1].tolist():
            self.run.records[number].first_s = now
        for number in got[self.generated[got] == self.output[got]].tolist():
            record = self.run.records[number]
            record.finish_s, record.generated = now, int(self.generated[number])
            self.running.remove(number)
            self.numbers = None
            self.held_bytes[number] = 0.0
            self.left -= 1
