"""Continuous batching as a plain loop over a clock, without events and without arrays.

Written apart from `ridgeline.study.generation.batching`, to be obvious rather than quick.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ridgeline.study.generation.batching import BatchingRules, GenerationWork, StepPricer
from ridgeline.study.generation.lengths import GenerationRequest


@dataclass
class Slow:
    """One request and all that has happened to it."""

    request: GenerationRequest
    done: int = 0  # positions in the cache
    to_prefill: int = 0
    out: int = 0
    pages_for: int = 0  # positions that it has pages for
    prefilled: int = 0
    first_s: float = -1.0
    finish_s: float = -1.0
    preempted: int = 0


def generate_slowly(
    requests: list[GenerationRequest], pricer: StepPricer, rules: BatchingRules
) -> tuple[list[Slow], float]:
    """Return what became of every request, and the integral of requests in the system."""
    every = [Slow(request, to_prefill=request.prompt) for request in requests]
    coming, queue, inside = list(every), [], []
    now = present = 0.0

    def taken() -> float:
        return sum(rules.layout.sequence_bytes(s.pages_for) for s in inside)

    def fits(extra: float) -> bool:
        return taken() + extra <= rules.room_bytes * (1 + 1e-12)

    while coming or queue or inside:
        if not queue and not inside:
            now = max(now, coming[0].request.arrival_s)
        while coming and coming[0].request.arrival_s <= now:
            queue.append(coming.pop(0))
        while queue and len(inside) < rules.most_sequences:
            s = queue[0]
            want = s.to_prefill + 1
            if rules.reserve:
                want = s.request.prompt + s.request.output
            if not fits(rules.layout.sequence_bytes(want)):
                break
            inside.append(queue.pop(0))
            s.pages_for = want
        parts: list[tuple[Slow, int]] = []
        ready = [s for s in inside if s.done >= s.to_prefill]
        budget = rules.most_prefilled
        if rules.chunk:
            budget = max(1, rules.chunk - len(ready))
        for s in inside:
            missing = s.to_prefill - s.done
            if missing <= 0:
                continue
            if budget <= 0 or (not rules.chunk and parts and missing > budget):
                break
            parts.append((s, min(missing, budget)))
            budget -= min(missing, budget)
        decoding: list[Slow] = []
        if not parts or rules.chunk:
            for s in ready:
                if s not in inside:
                    continue
                if rules.reserve:
                    decoding.append(s)
                    continue
                alive = True
                while True:
                    more = rules.layout.sequence_bytes(s.done + 2)
                    more -= rules.layout.sequence_bytes(s.pages_for)
                    if fits(more):
                        break
                    victim = inside.pop()
                    victim.done, victim.pages_for = 0, 0
                    victim.to_prefill = victim.request.prompt + victim.out
                    victim.preempted += 1
                    queue.insert(0, victim)
                    if victim is s:
                        alive = False
                        break
                if alive:
                    s.pages_for = s.done + 2
                    decoding.append(s)
        parts = [(s, n) for s, n in parts if any(s is t for t in inside)]
        step = GenerationWork(
            np.array([s.done for s in decoding], np.int64),
            tuple((n, s.done) for s, n in parts),
        )
        end = now + pricer.price(step).time_s
        for s in every:
            if s.finish_s < 0 and s.request.arrival_s < end:
                present += end - max(now, s.request.arrival_s)
        now = end
        for s, n in parts:
            s.done += n
            s.prefilled += n
        for s in decoding:
            s.done += 1
        for s in [*(s for s, _ in parts if s.done >= s.to_prefill), *decoding]:
            s.out += 1
            if s.out == 1:
                s.first_s = now
            if s.out == s.request.output:
                s.finish_s = now
                inside.remove(s)
                s.pages_for = 0
    return every, present
