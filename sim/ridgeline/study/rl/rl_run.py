"""One iteration of reinforcement learning, phase by phase, and the run of many of them.

Rollouts are runs of continuous batching (`study.generation`), on as many replicas as the devices
have room for. What they generate is packed into rows of equal length; the reference, the critic and
the reward network pass over them forward, the actor and the critic are trained on them. New weights
of the actor are then copied into the format and division of the rollout replicas.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

from ridgeline.errors import ConfigError, RidgelineError
from ridgeline.hardware.cluster import Cluster
from ridgeline.network.collectives import collective
from ridgeline.network.resolve import load_cluster
from ridgeline.parallel.plan.text import make_plan
from ridgeline.simulation import simulate
from ridgeline.study.generation.batching import EngineRun
from ridgeline.study.generation.generate import EngineOptions, GenerationEngine, generation_engine
from ridgeline.study.generation.lengths import RequestLengths, parse_lengths
from ridgeline.study.rl.iteration_pipeline import (
    IterationSpan,
    IterationTimes,
    play_iterations,
)
from ridgeline.study.rl.rl_file import RlFile
from ridgeline.workload.files import load_model
from ridgeline.workload.model import Model


class RolloutBatch(NamedTuple):
    """What the rollout of one iteration gave.

    Attributes
    ----------
    ends_s
        When each replica had its last token.
    tokens, generated
        Of all sequences, prompts included, and those that were generated.
    """

    runs: tuple[EngineRun, ...]
    ends_s: tuple[float, ...]
    tokens: int
    generated: int
    energy_j: float

    @property
    def time_s(self) -> float:
        """Until the last token of the slowest replica."""
        return max(self.ends_s)


class TrainTimes(NamedTuple):
    """What scoring and training of one batch take, by network."""

    scored_s: Mapping[str, float]
    trained_s: Mapping[str, float]
    energy_j: float

    @property
    def time_s(self) -> float:
        """All of it, one network after the other."""
        return math.fsum((*self.scored_s.values(), *self.trained_s.values()))


@dataclass
class RlPhases:
    """Prices of the phases of a run, each found once for a number of devices."""

    file: RlFile
    cluster: Cluster
    _batches: dict[tuple[int, int], RolloutBatch] = field(default_factory=dict)
    _steps: dict[tuple[str, int, int, bool], tuple[float, float]] = field(default_factory=dict)

    @cached_property
    def actor(self) -> Model:
        """The network that generates and is trained."""
        return _network(self.file.actor)

    @cached_property
    def lengths(self) -> RequestLengths:
        """Of prompts and outputs."""
        return parse_lengths(self.file.lengths)

    @cached_property
    def engine(self) -> GenerationEngine:
        """One replica of the actor that generates."""
        rollout = self.file.rollout
        fields = {"precision": rollout.precision, **rollout.plan}
        plan = make_plan({"global_batch": fields.get("data", 1), **fields})
        options = EngineOptions(kv_format=rollout.kv_format, **_options(rollout.options))
        return generation_engine(
            self.actor, self.cluster, plan, software=rollout.software, options=options
        )

    @cached_property
    def train_plan(self) -> dict[str, Any]:
        """Fields of the plan that networks are trained with, without replicas and batch."""
        train = self.file.train
        return {**train.plan, "precision": train.precision, "micro_batch": train.micro_batch}

    @cached_property
    def train_replica(self) -> int:
        """Devices of one replica in training."""
        plan = make_plan({**self.train_plan, "global_batch": train_batch(self.train_plan)})
        return plan.tensor * plan.pipeline * plan.context

    def rollout(self, devices: int, iteration: int) -> RolloutBatch:
        """Generate the batch of an iteration on so many devices."""
        key = (devices, iteration)
        if key not in self._batches:
            file, engine = self.file, self.engine
            replicas = devices // engine.devices
            drawn = self.lengths.requests(
                file.prompts, rate=None, samples=file.samples, seed=file.seed + iteration
            )
            shares = [share for i in range(replicas) if (share := drawn[i::replicas])]
            runs = tuple(engine.run(share) for share in shares)
            records = [record for run in runs for record in run.records]
            ends = [run.makespan_s for run in runs] + [0.0] * (replicas - len(runs))
            self._batches[key] = RolloutBatch(
                runs,
                tuple(ends),
                sum(r.request.prompt + r.generated for r in records),
                sum(r.generated for r in records),
                math.fsum(step.energy_j for run in runs for step in run.steps),
            )
        return self._batches[key]

    def rows(self, tokens: int, devices: int) -> int:
        """Rows that tokens are packed into, filled up so that all replicas have equally many."""
        train = self.file.train
        share = devices // self.train_replica * train.micro_batch * train.updates
        packed = math.ceil(tokens / train.pack)
        return math.ceil(packed / share) * share

    def training(self, tokens: int, devices: int) -> TrainTimes:
        """Score and train a batch of so many tokens on so many devices."""
        file, rows = self.file, self.rows(tokens, devices)
        updates = file.train.updates
        scorers = {"reference": file.actor}
        trained = {"actor": file.actor}
        if file.reward:
            scorers["reward"] = file.reward
        if file.algorithm == "ppo":
            scorers["critic"] = trained["critic"] = file.critic or file.actor
        scored = {n: self._step(of, rows, devices, forward=True) for n, of in scorers.items()}
        steps = {n: self._step(of, rows // updates, devices) for n, of in trained.items()}
        energy = math.fsum(e for _, e in scored.values())
        energy += updates * math.fsum(e for _, e in steps.values())
        return TrainTimes(
            {name: time_s for name, (time_s, _) in scored.items()},
            {name: updates * time_s for name, (time_s, _) in steps.items()},
            energy,
        )

    def _step(
        self, name: str, rows: int, devices: int, *, forward: bool = False
    ) -> tuple[float, float]:
        """Return time and energy of a pass over so many rows, or of a training step."""
        key = (name, rows, devices, forward)
        if key not in self._steps:
            data = devices // self.train_replica
            fields = {**self.train_plan, "data": data, "global_batch": rows}
            if forward:
                fields = {k: v for k, v in fields.items() if k not in _OF_TRAINING}
                fields["forward_only"] = True
            model = _network(name, {"sequence": self.file.train.pack})
            result = simulate(
                model, self.cluster, make_plan(fields), software=self.file.train.software,
                most_micro_batches=8,
            )  # fmt: skip
            idle_j = result.energy_j["static"]
            self._steps[key] = (result.step_time_s, result.energy_j["total"] - idle_j)
        return self._steps[key]

    def copy_s(self, rollout_devices: int, train_devices: int, *, shared: bool) -> float:
        """Return the time of new weights on their way to the rollout replicas.

        Every rollout device needs its own part of the weights. On shared devices those that hold
        parts of a part gather it among them (`all-gather`); else it is sent through the machine
        from one of those that train to one device of each replica (`broadcast`), for all parts at
        the same time.
        """
        plan = self.engine.prices.plan
        part = float(self.engine.weight_bytes)
        if shared:
            split = self.train_replica
            if int(self.train_plan.get("zero_stage", 0)) == 3:
                split = train_devices
            ranks = max(1, split // (plan.tensor * plan.pipeline))
            far = self.cluster.device.memory[self.cluster.device.far_memory].bandwidth
            assert far is not None
            moved_s = 2 * part / far.value  # read as trained, written as multiplied
            if ranks == 1:
                return moved_s
            return moved_s + collective("all-gather", part, self.cluster, ranks=ranks).time_s
        replicas = rollout_devices // self.engine.devices
        node_devices = self.cluster.nodes.count
        per_node = max(1, node_devices // self.engine.devices)
        ranks = replicas + 1
        if ranks <= per_node or self.cluster.max_devices <= node_devices:
            return float(collective("broadcast", part, self.cluster, ranks=ranks).time_s)
        nodes = -(-ranks // per_node)
        return float(
            collective(
                "broadcast", part, self.cluster, ranks=nodes * per_node, ranks_per_node=per_node
            ).time_s
        )


_OF_TRAINING = frozenset({"zero_stage", "recompute", "optimizer", "optimizer_state", "offload"})


def train_batch(fields: Mapping[str, Any]) -> int:
    """Return a batch that a plan of these degrees can be read with."""
    return int(fields.get("data", 1)) * int(fields.get("micro_batch", 1))


def _network(name: str, overrides: Mapping[str, Any] | None = None) -> Model:
    loaded = load_model(name, overrides)
    if not isinstance(loaded, Model):
        raise RidgelineError(f"{name} is an execution, not a network that is trained")
    return loaded


def _options(fields: Mapping[str, Any]) -> dict[str, Any]:
    known = EngineOptions.__dataclass_fields__
    for name in fields:
        if name not in known or name == "kv_format":
            allowed = ", ".join(key for key in known if key != "kv_format")
            raise ConfigError(
                f"there is no {name!r} (allowed: {allowed})", field=f"rollout.options.{name}"
            )
    return dict(fields)


@dataclass(frozen=True)
class RlRun:
    """A run of reinforcement learning, played.

    Attributes
    ----------
    rollout_devices, train_devices
        Of the pools; of a colocated run all devices each.
    batches, training, copies_s, spans
        Of every iteration.
    """

    phases: RlPhases
    rollout_devices: int
    train_devices: int
    batches: tuple[RolloutBatch, ...]
    training: tuple[TrainTimes, ...]
    copies_s: tuple[float, ...]
    spans: tuple[IterationSpan, ...]

    @property
    def makespan_s(self) -> float:
        """When the weights of the last iteration were there."""
        return self.spans[-1].copied_s

    @property
    def iteration_s(self) -> float:
        """Time of an iteration: between the ends of the first and the last, or of the only one."""
        if len(self.spans) == 1:
            return self.makespan_s
        return (self.spans[-1].copied_s - self.spans[0].copied_s) / (len(self.spans) - 1)

    def pool_s(self) -> dict[str, dict[str, float]]:
        """Return device-seconds of each pool by what its devices did, which add up to `total`.

        Busy with its phases; waiting for the longest rollout of the batch; for new weights (until
        training has made them, and while they are copied); for rollouts (training alone).
        """
        whole_s = self.makespan_s
        rollout = {"busy": 0.0, "longest rollout": 0.0, "training": 0.0, "weights": 0.0}
        train = {"busy": 0.0, "rollouts": 0.0, "weights": 0.0}
        shared = self.phases.file.arrangement == "colocated"
        replica = self.phases.engine.devices
        for batch, step, copy_s in zip(self.batches, self.training, self.copies_s, strict=True):
            rollout["busy"] += replica * math.fsum(batch.ends_s)
            rollout["longest rollout"] += replica * math.fsum(
                batch.time_s - e for e in batch.ends_s
            )
            left = self.rollout_devices - replica * len(batch.ends_s)
            rollout["longest rollout"] += left * batch.time_s
            train["busy"] += self.train_devices * step.time_s
            train["weights"] += self.train_devices * copy_s
        if shared:
            rollout["busy"] += train["busy"]
            rollout["weights"] = train["weights"]
            del rollout["training"]
            rollout["total"] = self.rollout_devices * whole_s
            return {"all": rollout}
        rollout["weights"] = self.rollout_devices * math.fsum(self._copies_taken())
        spent = math.fsum(rollout.values())
        rollout["training"] = self.rollout_devices * whole_s - spent
        train["rollouts"] = self.train_devices * whole_s - train["busy"] - train["weights"]
        rollout["total"] = self.rollout_devices * whole_s
        train["total"] = self.train_devices * whole_s
        return {"rollout": rollout, "train": train}

    def _copies_taken(self) -> Sequence[float]:
        """Return the copies that the rollout pool takes part in: those before a rollout."""
        stale = staleness_of(self.phases.file)
        if stale:
            return self.copies_s[: max(0, len(self.copies_s) - 1 - stale)]
        return self.copies_s

    def to_dict(self) -> dict[str, Any]:
        """Return the run as plain values; times in seconds."""
        file, pools = self.phases.file, self.pool_s()
        generated = sum(batch.generated for batch in self.batches)
        idle_w = self.phases.cluster.device.idle_power.value * file.devices
        energy = math.fsum(b.energy_j for b in self.batches)
        energy += math.fsum(t.energy_j for t in self.training) + idle_w * self.makespan_s
        return {
            "name": file.name,
            "algorithm": file.algorithm,
            "arrangement": file.arrangement,
            "staleness": staleness_of(file),
            "cluster": self.phases.cluster.name,
            "devices": file.devices,
            "rollout_devices": self.rollout_devices,
            "train_devices": self.train_devices,
            "iterations": len(self.spans),
            "iteration_s": self.iteration_s,
            "makespan_s": self.makespan_s,
            "rollout_s": [batch.time_s for batch in self.batches],
            "scored_s": {
                name: math.fsum(t.scored_s[name] for t in self.training) / len(self.training)
                for name in self.training[0].scored_s
            },
            "trained_s": {
                name: math.fsum(t.trained_s[name] for t in self.training) / len(self.training)
                for name in self.training[0].trained_s
            },
            "copy_s": self.copies_s[0],
            "generated_tokens": generated,
            "trained_tokens": generated,
            "generated_tokens_per_s": generated / self.makespan_s,
            "energy_j": energy,
            "utilisation": {name: pool["busy"] / pool["total"] for name, pool in pools.items()},
            "shares": {
                name: {why: value / pool["total"] for why, value in pool.items() if why != "total"}
                for name, pool in pools.items()
            },
        }


def staleness_of(file: RlFile) -> int:
    """Return how many iterations the weights of a rollout may be behind."""
    return file.staleness if file.arrangement == "asynchronous" else 0


def run_rl(file: RlFile, rollout_devices: int | None = None) -> RlRun:
    """Play a run of reinforcement learning.

    Parameters
    ----------
    rollout_devices
        Of the pool that generates; None: as the file says, or the best split.

    Raises
    ------
    RidgelineError
        If a phase does not fit on its devices.
    """
    phases = RlPhases(file, load_cluster(file.cluster))
    chosen = rollout_devices or file.rollout_devices
    if file.arrangement != "colocated" and chosen is None:
        return min(splits(file, phases), key=lambda run: (run.iteration_s, run.rollout_devices))
    return play_split(phases, chosen or file.devices)


def splits(file: RlFile, phases: RlPhases | None = None) -> list[RlRun]:
    """Play every split of the devices into pools, and return the runs that are possible."""
    phases = phases or RlPhases(file, load_cluster(file.cluster))
    step = phases.engine.devices
    found = [
        play_split(phases, devices)
        for devices in range(step, file.devices, step)
        if (file.devices - devices) % phases.train_replica == 0
    ]
    if not found:
        raise RidgelineError(
            f"{file.devices} devices are not replicas of {phases.engine.devices} that generate and"
            f" of {phases.train_replica} that train"
        )
    return found


def play_split(phases: RlPhases, rollout_devices: int) -> RlRun:
    """Play a run with so many devices that generate."""
    file = phases.file
    shared = file.arrangement == "colocated"
    train_devices = file.devices if shared else file.devices - rollout_devices
    for devices, each, what in (
        (rollout_devices, phases.engine.devices, "generates"),
        (train_devices, phases.train_replica, "trains"),
    ):
        if devices < each or devices % each:
            raise RidgelineError(
                f"{devices} devices are no whole replicas of {each}, which is what {what}"
            )
    if file.devices > phases.cluster.max_devices:
        raise RidgelineError(f"{phases.cluster.name} has {phases.cluster.max_devices} devices")
    numbers = range(file.iterations)
    batches = tuple(phases.rollout(rollout_devices, i) for i in numbers)
    training = tuple(phases.training(batch.tokens, train_devices) for batch in batches)
    copy_s = phases.copy_s(rollout_devices, train_devices, shared=shared)
    times = [
        IterationTimes(batch.time_s, step.time_s, copy_s)
        for batch, step in zip(batches, training, strict=True)
    ]
    spans = play_iterations(times, staleness_of(file))
    return RlRun(
        phases, rollout_devices, train_devices, batches, training, (copy_s,) * len(times),
        tuple(spans),
    )  # fmt: skip
