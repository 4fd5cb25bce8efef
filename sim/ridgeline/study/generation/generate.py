"""Generate tokens with a network on a cluster: throughput, latency, energy, room of the cache."""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from ridgeline.errors import ConfigError, RidgelineError
from ridgeline.hardware.cluster import Cluster
from ridgeline.network.framework_all_reduce import frameworks
from ridgeline.network.resolve import load_cluster
from ridgeline.parallel.plan.default_precision import default_precision
from ridgeline.parallel.plan.plan import Plan
from ridgeline.parallel.plan.stack_choice import BOUND, check_stack, choose_stack
from ridgeline.software.stack import Stack
from ridgeline.study.generation.batching import (
    MOST_PREFILLED,
    MOST_SEQUENCES,
    BatchingRules,
    EngineRun,
    EngineStep,
    StepPricer,
    run_engine,
)
from ridgeline.study.generation.kv_capacity import PAGE_TOKENS, KvLayout
from ridgeline.study.generation.lengths import (
    GenerationRequest,
    RequestLengths,
    parse_lengths,
)
from ridgeline.study.generation.step_prices import StepPrices, check_generation_plan
from ridgeline.units import show
from ridgeline.workload import formats
from ridgeline.workload.execution import Execution
from ridgeline.workload.files import load_model
from ridgeline.workload.generation import learned_positions
from ridgeline.workload.model import Model

MEMORY_SHARE = 0.9
"""Of a device's memory that an engine takes (vLLM, `--gpu-memory-utilization`, its default)."""
PRECISION = "bf16-true"


@dataclass(frozen=True)
class EngineOptions:
    """How an engine generates.

    Attributes
    ----------
    kv_format
        Number format of the cache.
    page_tokens
        Positions of a page of the cache.
    most_sequences, most_prefilled, chunk, reserve
        As of `BatchingRules`; sequences of one data-parallel rank.
    memory_share
        Share of a device's memory that weights, activations and cache may take.
    two_batches
        As of `StepPrices`.
    """

    kv_format: str = "bf16"
    page_tokens: int = PAGE_TOKENS
    most_sequences: int = MOST_SEQUENCES
    most_prefilled: int = MOST_PREFILLED
    chunk: int = 0
    memory_share: float = MEMORY_SHARE
    reserve: bool = False
    two_batches: bool = False

    def check(self) -> None:
        """Refuse options that mean nothing.

        Raises
        ------
        ConfigError
            With the field.
        """
        formats.find(self.kv_format)
        for name in ("page_tokens", "most_sequences", "most_prefilled"):
            if getattr(self, name) < 1:
                raise ConfigError(
                    f"must be at least 1, found {getattr(self, name)}", field=_option(name)
                )
        if self.chunk < 0:
            raise ConfigError(f"must not be negative, found {self.chunk}", field=_option("chunk"))
        if not 0 < self.memory_share <= 1:
            raise ConfigError(
                f"a share above 0 and at most 1, found {self.memory_share:g}",
                field=_option("memory_share"),
            )


def _option(name: str) -> str:
    return "--" + name.replace("_", "-")


@dataclass(frozen=True)
class GenerationEngine:
    """One replica of a network that generates, with what its cache has room for.

    Attributes
    ----------
    room_bytes
        Of the cache, on each device.
    weight_bytes, workspace_bytes
        Of a device: weights, and what the largest step holds besides.
    """

    prices: StepPrices
    layout: KvLayout
    options: EngineOptions
    room_bytes: float
    weight_bytes: int
    workspace_bytes: int

    @property
    def devices(self) -> int:
        """Devices of the replica."""
        return self.prices.plan.devices

    @property
    def ranks(self) -> int:
        """Data-parallel ranks, each with sequences and a cache of its own."""
        return self.prices.ranks

    def rules(self) -> BatchingRules:
        """Return how the ranks' steps are made up: all ranks have a share of all sequences."""
        options, ranks = self.options, self.ranks
        return BatchingRules(
            self.room_bytes * ranks,
            self.layout,
            options.most_sequences * ranks,
            options.most_prefilled * ranks,
            options.chunk * ranks,
            options.reserve,
        )

    def run(
        self, requests: Sequence[GenerationRequest], pricer: StepPricer | None = None
    ) -> EngineRun:
        """Generate requests.

        Raises
        ------
        RidgelineError
            If one does not fit into the cache of a rank.
        """
        longest = self.layout.longest(self.room_bytes)
        limit = learned_positions(self.prices.model)
        for number, request in enumerate(requests):
            if limit and request.prompt + request.output > limit:
                raise RidgelineError(
                    f"request {number} has {request.prompt} + {request.output} tokens, but"
                    f" {self.prices.model.name} has learned positions for {limit}"
                )
            if request.prompt + request.output > longest:
                raise RidgelineError(
                    f"request {number} has {request.prompt} + {request.output} tokens, but the"
                    f" cache of {show(self.room_bytes, 'B')} has room for a sequence of {longest};"
                    " more devices for each replica (tensor, pipeline), a narrower --kv-format or"
                    " shorter sequences help"
                )
        return run_engine(requests, pricer or self.prices, self.rules())


def generation_engine(
    model: Model | str,
    cluster: Cluster | str,
    plan: Plan,
    *,
    software: Stack | str | None = None,
    options: EngineOptions | None = None,
) -> GenerationEngine:
    """Return a replica of a network that generates.

    Parameters
    ----------
    plan
        Of one replica: `tensor`, `pipeline`, and as many `data` ranks as `expert`.

    Raises
    ------
    RidgelineError
        If the network cannot generate, the plan is none of a replica, or its weights do not fit.
    """
    options = options or EngineOptions()
    options.check()
    loaded = load_model(model) if isinstance(model, str) else model
    if isinstance(loaded, Execution):
        raise RidgelineError(f"{loaded.name} is an execution: it generates nothing")
    cluster = load_cluster(cluster) if isinstance(cluster, str) else cluster
    check_generation_plan(plan)
    if plan.devices > cluster.max_devices:
        raise RidgelineError(
            f"the plan needs {plan.devices} devices, but {cluster.name} has {cluster.max_devices}"
        )
    stack, _ = choose_stack(software or BOUND, loaded, cluster, plan)
    check_stack(stack, loaded, cluster, plan)
    library = stack.name if stack.name in frameworks() else ""
    precision = plan.precision or default_precision(PRECISION, cluster.device)
    plan = plan.model_copy(update={"precision": precision, "forward_only": True})
    prices = StepPrices(
        loaded, cluster, plan, stack, options.kv_format, library, options.two_batches
    )
    layout = KvLayout(
        prices.cached_layers(precision), plan.tensor, plan.pipeline, options.page_tokens
    )
    prices.rows(options.most_sequences, decodes=True)
    prices.rows(options.chunk or options.most_prefilled, decodes=False)
    held = prices.memory_bytes
    capacity = cluster.device.capacity_bytes * options.memory_share
    workspace = held["activations"] + held["workspace"] + int(stack.memory.runtime)
    room_bytes = capacity - held["weights"] - workspace
    if room_bytes <= 0:
        raise RidgelineError(
            f"{loaded.name} in {precision} takes {show(held['weights'], 'B')} of weights and"
            f" {show(workspace, 'B')} besides on each device, of which {show(capacity, 'B')} may be"
            " taken: nothing is left for keys and values; give tensor or pipeline, or a narrower"
            " precision"
        )
    return GenerationEngine(prices, layout, options, room_bytes, held["weights"], workspace)


@dataclass(frozen=True)
class GenerationResult:
    """What came of generating requests on all replicas.

    Attributes
    ----------
    engine
        Of each replica.
    runs
        Of each replica.
    """

    engine: GenerationEngine
    runs: tuple[EngineRun, ...]
    lengths: str = ""
    seed: int = 0
    replicas: int = field(default=1)

    @property
    def makespan_s(self) -> float:
        """When the last token of all was there."""
        return max(run.makespan_s for run in self.runs)

    @property
    def devices(self) -> int:
        """Devices of all replicas."""
        return self.engine.devices * self.replicas

    @property
    def energy_j(self) -> float:
        """Of all devices until the last token: events of all steps, and idle power throughout."""
        events = math.fsum(step.energy_j for run in self.runs for step in run.steps)
        idle_w = self.engine.prices.cluster.device.idle_power.value * self.devices
        return events + idle_w * self.makespan_s

    def to_dict(self) -> dict[str, Any]:
        """Return the result as plain values; times in seconds, sizes in bytes."""
        records = [record for run in self.runs for record in run.records]
        steps = [step for run in self.runs for step in run.steps]
        generated = sum(record.generated for record in records)
        prefilled = sum(record.prefilled for record in records)
        first = [record.first_s - record.request.arrival_s for record in records]
        each = [
            (record.finish_s - record.first_s) / (record.generated - 1)
            for record in records
            if record.generated > 1
        ]
        wait = [record.finish_s - record.request.arrival_s for record in records]
        total_s, busy_s = self.makespan_s, math.fsum(s.end_s - s.start_s for s in steps)
        room = self.engine.room_bytes * self.engine.ranks
        engine, prices = self.engine, self.engine.prices
        return {
            "model": prices.model.name,
            "cluster": prices.cluster.name,
            "software": prices.stack.name,
            "library": prices.library,
            "precision": prices.plan.precision,
            "kv_format": prices.kv_format,
            "lengths": self.lengths,
            "seed": self.seed,
            "replicas": self.replicas,
            "devices": self.devices,
            "requests": len(records),
            "makespan_s": total_s,
            "output_tokens": generated,
            "prompt_tokens": sum(record.request.prompt for record in records),
            "prefilled_tokens": prefilled,
            "recomputed_tokens": sum(record.recomputed for record in records),
            "preemptions": sum(record.preempted for record in records),
            "output_tokens_per_s": generated / total_s,
            "output_tokens_per_s_per_device": generated / total_s / self.devices,
            "total_tokens_per_s": (generated + prefilled) / total_s,
            "requests_per_s": len(records) / total_s,
            "time_to_first_token_s": quantiles(first),
            "time_per_output_token_s": quantiles(each),
            "latency_s": quantiles(wait),
            "mean_in_system": math.fsum(wait) / total_s,
            "utilisation": busy_s / (total_s * self.replicas),
            "energy_j": self.energy_j,
            "energy_j_per_output_token": self.energy_j / generated,
            "steps": len(steps),
            "mean_running": _over_time(steps, "running", total_s),
            "kv": {
                "bytes_per_token": engine.layout.token_bytes,
                "state_bytes_per_sequence": engine.layout.state_bytes,
                "room_bytes": engine.room_bytes,
                "longest_sequence": engine.layout.longest(engine.room_bytes),
                "peak_share": max((s.kv_bytes for s in steps), default=0.0) / room,
                "mean_share": _over_time(steps, "kv_bytes", total_s) / room / self.replicas,
            },
            "memory_bytes": {
                "weights": engine.weight_bytes,
                "workspace": engine.workspace_bytes,
                "cache": engine.room_bytes,
                "capacity": int(prices.cluster.device.capacity_bytes),
            },
        }

    def to_json(self) -> str:
        """Return the result as JSON."""
        return json.dumps(self.to_dict(), indent=2)

    def write_steps(self, path: str) -> None:
        """Write every step of every replica as a row of a CSV file."""
        with Path(path).open("w", encoding="utf-8", newline="") as file:
            rows = csv.writer(file)
            rows.writerow(("replica", *EngineStep._fields))
            for number, run in enumerate(self.runs):
                rows.writerows((number, *step) for step in run.steps)

    def __repr__(self) -> str:
        found = self.to_dict()
        return (
            f"<GenerationResult {found['model']} on {found['devices']} x"
            f" {found['cluster']}: {found['output_tokens_per_s']:.6g} tokens/s>"
        )


def quantiles(values: Sequence[float]) -> Mapping[str, float | None]:
    """Return mean, median and 95th percentile of some values; None of none."""
    if not values:
        return {"mean": None, "median": None, "p95": None}
    return {
        "mean": math.fsum(values) / len(values),
        "median": float(np.quantile(values, 0.5)),
        "p95": float(np.quantile(values, 0.95)),
    }


def _over_time(steps: Sequence[Any], name: str, total_s: float) -> float:
    return math.fsum(getattr(s, name) * (s.end_s - s.start_s) for s in steps) / total_s


def generate(
    model: Model | str,
    cluster: Cluster | str,
    plan: Plan | None = None,
    *,
    lengths: RequestLengths | str = "512/128",
    requests: int | None = None,
    samples: int = 1,
    rate: float | None = None,
    seed: int = 0,
    software: Stack | str | None = None,
    options: EngineOptions | None = None,
) -> GenerationResult:
    """Generate tokens by continuous batching.

    Parameters
    ----------
    plan
        Degrees: `tensor`, `pipeline` and `expert` of a replica; `data` beyond `expert` are replicas
        of their own, which get every so many-th request. Its batch is not read.
    lengths
        ``PROMPT/OUTPUT`` or a trace (`lengths.parse_lengths`).
    requests
        How many; None: 256, or all of a trace.
    samples
        Outputs for each prompt.
    rate
        Requests in a second, which arrive by a Poisson process; None: all are there at once.
    seed
        Of what is drawn: the same gives the same, to the last byte.
    software
        ``vllm``, ``sglang`` or ``trtllm``, another stack, or None: the bound ``ideal``.

    Raises
    ------
    RidgelineError
        If the network, the plan or a request does not fit.
    """
    plan = plan or Plan(global_batch=1)
    found = parse_lengths(lengths) if isinstance(lengths, str) else lengths
    for name, value in (("requests", requests), ("samples", samples)):
        if value is not None and value < 1:
            raise ConfigError(f"must be at least 1, found {value}", field=f"--{name}")
    if rate is not None and not 0 < rate < math.inf:
        raise ConfigError(f"must be positive, found {rate:g}", field="--rate")
    if plan.data % plan.expert:
        check_generation_plan(plan)
    replicas = plan.data // plan.expert
    one = plan.model_copy(update={"data": plan.expert})
    engine = generation_engine(model, cluster, one, software=software, options=options)
    limit = engine.prices.cluster.max_devices
    if plan.devices > limit:
        raise RidgelineError(
            f"the plan needs {plan.devices} devices, but {engine.prices.cluster.name} has {limit}"
        )
    count = requests if requests is not None or found.trace else 256
    drawn = found.requests(count, rate=rate, samples=samples, seed=seed)
    shares = [drawn[i::replicas] for i in range(replicas)]
    runs = tuple(engine.run(share) for share in shares if share)
    return GenerationResult(engine, runs, found.text, seed, replicas)
