"""A step of a network whose parts have plans, and devices, of their own.

Every part is a network with ends (`workload.network_parts`), lowered by its plan on its devices as
any step is. The programs are played as one: what a part takes over waits for messages from the
replicas that have the same samples, and so do gradients on their way back. Messages go from device
to device over the routed fabric; of rows that all devices of a replica have alike each sends, and
each gets, a part, which is gathered.

Parts with devices of their own form a pipeline whose stages have unlike plans. A part that is
trained does as many micro-batches ahead as the order of the part behind it asks for; one that is
not passes forward alone. *Colocated* parts are on the devices of the rest: they pass forward over
all samples of the step first, and backward after the rest of the network has done all of it, with
all devices (decoupled encoders: Kimi K2.5, 2026, arXiv:2602.02276, Section 4.3; disaggregated ones:
DistTrain, 2024, arXiv:2408.04275).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from ridgeline.engine.builder import ProgramBuilder
from ridgeline.engine.contention import Demand, contended
from ridgeline.engine.executor import run as play
from ridgeline.engine.merged_programs import Merged, divided_on, merged, with_dependencies
from ridgeline.engine.program import Ints, Program
from ridgeline.engine.timeline import Timeline
from ridgeline.errors import ConfigError, RidgelineError
from ridgeline.hardware.cluster import Cluster
from ridgeline.network.placement import seen_by
from ridgeline.network.resolve import load_cluster
from ridgeline.network.topology import Topology
from ridgeline.parallel.comm.comm_cost import FarMemory, Talk, Wires
from ridgeline.parallel.comm.contention import demand_of
from ridgeline.parallel.emit.host_launches import ISSUE
from ridgeline.parallel.emit.rank_group import COLLECTIVE
from ridgeline.parallel.op_pricer import OpPricer
from ridgeline.parallel.plan.mesh import Mesh
from ridgeline.parallel.plan.plan import Plan
from ridgeline.parallel.plan.resolved import ResolvedPlan, resolved
from ridgeline.parallel.plan.stack_choice import choose_stack
from ridgeline.parallel.plan.text import make_plan
from ridgeline.parallel.schedule import SCHEDULES
from ridgeline.simulation import SimulatedStep, play_step, shared_topology
from ridgeline.software.stack import Stack
from ridgeline.study.parts.part_plans import PartPlan
from ridgeline.study.parts.sample_rounds import SampleRounds, forwards_before, pieces
from ridgeline.workload.files import load_model
from ridgeline.workload.model import Model
from ridgeline.workload.network_parts import (
    REST,
    Boundary,
    NetworkParts,
    PartModel,
    divided,
    handed_to,
    part_models,
    taken_from,
)
from ridgeline.workload.ops.part_boundary import give_back_name

_Task = tuple[int | None, int]
"""Part, None of messages, and number of a task there."""
MOST_MESSAGES = 400_000
"""Messages between parts in a step: some seconds, and some hundred megabytes."""
MOST_UNFOLDED = 64
"""Devices of a part up to which each is simulated where its replicas get gradients one after the
other; beyond, the last of them stands for all."""
FOR_THE_NEXT, BACK = "rows", "gradients"


class InTransit(NamedTuple):
    """Bytes that a device holds for another part: until they are sent, or since they have come.

    Attributes
    ----------
    rank
        The device, as a rank of the fabric.
    since, until
        Tasks whose last end is when they are there, and those whose start or, of messages, end is
        when they are gone.
    """

    rank: int
    size_bytes: int
    since: tuple[_Task, ...]
    until: tuple[_Task, ...]


@dataclass(frozen=True, eq=False)
class PlayedPart:
    """One part of a network in a played step.

    Attributes
    ----------
    name, plan
        What it is, and how it is distributed.
    ranks
        Its devices, as ranks of the whole fabric, in the order of its own ranks.
    step
        As it is played alone, without waiting for others.
    timeline
        Of its tasks, in the step of all parts.
    rounds
        How it goes through samples.
    trained
        Whether a gradient comes to it.
    """

    name: str
    plan: PartPlan
    ranks: tuple[int, ...]
    cluster: Cluster
    step: SimulatedStep
    rounds: SampleRounds
    trained: bool
    timeline: Timeline

    @property
    def mesh(self) -> Mesh:
        """Where its ranks are in its plan."""
        return Mesh.of(self.step.run.widest())


@dataclass(frozen=True, eq=False)
class PlayedParts:
    """A step of all parts.

    Attributes
    ----------
    parts
        In the order in which they compute; the rest of the network is the last.
    sent
        Of the messages between them.
    in_transit, message_bytes
        What devices hold of these messages, and bytes of all of them, without what a replica then
        gathers.
    """

    model: Model
    cluster: Cluster
    global_batch: int
    parts: tuple[PlayedPart, ...]
    sent: Timeline
    divided: NetworkParts
    in_transit: tuple[InTransit, ...]
    message_bytes: float
    chosen_by: str

    @property
    def step_time_s(self) -> float:
        """When all parts have updated their weights."""
        ends = [part.timeline.makespan_s for part in self.parts]
        return max(*ends, self.sent.makespan_s)

    @property
    def devices(self) -> int:
        """Devices in use; colocated parts share theirs."""
        return len({rank for part in self.parts for rank in part.ranks})


def play_parts(
    model: Model | str,
    cluster: Cluster | str,
    plan: Plan,
    parts: Mapping[str, PartPlan],
    *,
    software: Stack | str | None = None,
    fold: bool = True,
) -> PlayedParts:
    """Play one step of a network with parts.

    Parameters
    ----------
    plan
        Of the rest of the network; its ``global_batch`` is the samples of the step.
    parts
        Plan of each part; of the rest (`REST`) whether it is frozen.
    fold
        Simulate one of each class of equivalent ranks (True), or every rank, in which case messages
        between parts and what parts send inside share the links that they have in common.

    Raises
    ------
    RidgelineError
        If a part does not exist, or its plan cannot be.
    """
    found = load_model(model) if isinstance(model, str) else model
    if not isinstance(found, Model):
        raise RidgelineError(f"{found.name} is an execution, which has no parts")
    cluster = load_cluster(cluster) if isinstance(cluster, str) else cluster
    setting = _setting(found, cluster, plan, parts, software)
    return _Player(setting, fold).play()


class _Lowered(NamedTuple):
    """A part before it is played with others: its place, its plan as it is run, its samples."""

    name: str
    plan: PartPlan
    model: PartModel
    run: ResolvedPlan
    ranks: tuple[int, ...]
    rounds: SampleRounds
    trained: bool


@dataclass(frozen=True, eq=False)
class _Setting:
    """What is played: parts, in the order in which they compute, and where they are."""

    model: Model
    cluster: Cluster
    topology: Topology
    plan: Plan
    parts: list[_Lowered]
    divided: NetworkParts
    chosen_by: str


def _setting(
    model: Model,
    cluster: Cluster,
    plan: Plan,
    asked: Mapping[str, PartPlan],
    software: Stack | str | None,
) -> _Setting:
    if cluster.faults:
        raise ConfigError("faults are not modelled for parts", field="cluster.faults")
    if plan.forward_only or plan.replicas:
        what = "forward_only" if plan.forward_only else "replicas"
        raise ConfigError("is not modelled for a network with parts", field=f"plan.{what}")
    names = [name for name in asked if name != REST]
    if not names:
        raise ConfigError("no part is given besides the rest of the network", field="parts")
    frozen = [name for name, part in asked.items() if part.frozen]
    models = part_models(model, names, frozen)
    found = divided(models[0].whole(1), names)
    if not found.trained[-1]:
        raise ConfigError(
            f"{model.name}: all parts are frozen, so nothing is trained", field="parts"
        )
    plans = {name: _plan_of(name, asked[name], plan) for name in names}
    shared = plan.devices
    first = shared
    places: dict[str, tuple[int, ...]] = {REST: tuple(range(shared))}
    for name in found.names[:-1]:
        part = asked[name]
        if part.colocated:
            if plans[name].devices != shared:
                raise ConfigError(
                    f"a colocated part is on the {shared} devices of the rest, and its plan has"
                    f" {plans[name].devices}",
                    field=f"parts.{name}",
                )
            places[name] = places[REST]
            continue
        start = first if part.first_device is None else part.first_device
        places[name] = tuple(range(start, start + plans[name].devices))
        first = max(first, start + plans[name].devices)
    _check_places(places, asked, cluster)
    topology = shared_topology(cluster, 1 + max(max(ranks) for ranks in places.values()))
    choice = choose_stack(software, model, cluster, plan)
    if choice.stack.gradients.update_interval != 1:
        raise ConfigError(
            f"{choice.stack.name} does not update in every step, which parts do not model",
            field="software.gradients.update_interval",
        )
    lowered: list[_Lowered] = []
    for one, name in zip(models, found.names, strict=True):
        number = len(lowered)
        own_plan = plan if name == REST else plans[name]
        seen = cluster.seen_from(places[name])
        if not found.trained[number]:
            own_plan = _forward_only(own_plan)
        run = resolved(own_plan, choice.stack, seen, one)
        wide = run.widest()
        rounds = SampleRounds(wide.data, wide.micro_batch_size, wide.micro_batches)
        _check_order(name, run, found.trained[number], last=name == REST)
        part = asked.get(name, PartPlan())
        lowered.append(_Lowered(name, part, one, run, places[name], rounds, found.trained[number]))
    return _Setting(model, cluster, topology, plan, lowered, found, choice.text)


def _plan_of(name: str, part: PartPlan, plan: Plan) -> Plan:
    """Return the plan of a part; what is trained is trained alike, unless it says otherwise."""
    fields: dict[str, Any] = {
        key: getattr(plan, key)
        for key in ("precision", "optimizer", "optimizer_state")
        if getattr(plan, key) is not None
    }
    fields |= {**part.fields, "global_batch": plan.global_batch}
    try:
        own = make_plan({**fields, "micro_batch": fields.get("micro_batch", 1)})
        if part.colocated and "data" not in part.fields:
            share = own.devices // own.data
            if plan.devices % share:
                raise ConfigError(f"{plan.devices} devices are no whole number of {share}")
            fields["data"] = plan.devices // share
            own = make_plan({**fields, "micro_batch": fields.get("micro_batch", 1)})
        if "micro_batch" not in part.fields:
            size = _usual_micro_batch(own, plan)
            own = make_plan({**fields, "data": own.data, "micro_batch": size})
    except ConfigError as error:
        raise ConfigError(
            error.message, field=_below(f"parts.{name}", error.field or "")
        ) from error
    return own


def _below(name: str, field_: str) -> str:
    rest = field_.removeprefix("plan").removeprefix(".")
    return f"{name}.{rest}" if rest else name


def _usual_micro_batch(own: Plan, plan: Plan) -> int:
    """Return samples of a replica in a round that is that of the rest, or the nearest below."""
    most = max(1, plan.data * plan.micro_batch_size // own.data)
    return next(size for size in range(most, 0, -1) if own.rank_batch % size == 0)


def _forward_only(plan: Plan) -> Plan:
    """Return the plan of a part that no gradient comes to."""
    fields = plan.model_dump(exclude_unset=True)
    for name in ("zero_stage", "recompute", "optimizer", "optimizer_state", "offload"):
        fields.pop(name, None)
    fields.pop("tensor_rows", None)
    fields |= {"tensor_rows": plan.tensor_rows, "forward_only": True}
    return make_plan(fields)


def _check_places(
    places: Mapping[str, tuple[int, ...]], asked: Mapping[str, PartPlan], cluster: Cluster
) -> None:
    taken: dict[int, str] = {}
    for name, ranks in places.items():
        if name != REST and asked[name].colocated:
            continue
        for rank in ranks:
            if rank in taken:
                raise ConfigError(
                    f"device {rank} is of {taken[rank]!r}, too; parts that share devices are"
                    " colocated",
                    field=f"parts.{name}.first_device",
                )
            taken[rank] = name
    last = max(taken)
    if last >= cluster.max_devices:
        raise RidgelineError(
            f"the parts need {last + 1} devices, but {cluster.name} has {cluster.max_devices}"
        )


def _check_order(name: str, run: ResolvedPlan, trained: bool, *, last: bool) -> None:
    schedule = SCHEDULES[run.schedule]
    field_ = "plan.schedule" if last else f"parts.{name}.schedule"
    if not schedule.flushes or run.schedule == "gpipe" or schedule.carried(
        0, run.pipeline, run.micro_batches, 1
    ):  # fmt: skip
        raise ConfigError(f"{run.schedule} is not modelled for a network with parts", field=field_)
    if trained and not last and run.schedule != "1f1b":
        raise ConfigError(
            f"a trained part that others follow has 1f1b, found {run.schedule}", field=field_
        )


class _Place(NamedTuple):
    """Where a boundary is in a part: simulated ranks, real ranks by replica, tasks by round.

    Attributes
    ----------
    simulated
        [replicas, devices] the simulated rank that stands for each device of each replica.
    ranks
        [replicas, devices] the device, as a rank of the fabric.
    tasks
        By simulated rank, the task of each round.
    """

    simulated: Ints
    ranks: Ints
    tasks: dict[int, Ints]


@dataclass
class _Player:
    """Lowers parts from the last to the first, and plays them together."""

    setting: _Setting
    fold: bool
    steps: dict[int, SimulatedStep] = field(default_factory=dict)
    needs: dict[int, list[int]] = field(default_factory=dict)
    """By part, how many rounds forward it does before it gives back gradients of each round."""

    def play(self) -> PlayedParts:
        """Play the step."""
        setting = self.setting
        count = len(setting.parts)
        for number in reversed(range(count)):
            self.steps[number] = self._lowered(number)
            if number and any(self._trained(b) for b in self._coming(number)):
                self.needs[number] = self._order(number)
        transfers = _Transfers(setting, self.steps, self._place)
        for boundary in setting.divided.boundaries:
            transfers.add(boundary, FOR_THE_NEXT)
            if self._trained(boundary):
                transfers.add(boundary, BACK)
        programs = [self.steps[i].lowered.program for i in range(count)]
        sent = transfers.builder.build().with_private_resources()
        names = [*(part.name for part in setting.parts), "between parts"]
        common: set[str] = set()
        if not self.fold:
            topology = setting.topology
            common = {topology.link_name(link) for link in range(topology.n_links)}
            programs = [divided_on(p, common, common) for p in programs]
            sent = divided_on(sent, common, common)
        whole = merged([*programs, sent], names, common)
        waits = self._waits(whole, transfers)
        program = with_dependencies(whole.program, *waits)
        timeline = play(program)
        timeline = self._contended(whole, timeline)
        played = tuple(
            PlayedPart(
                part.name, part.plan, part.ranks, setting.cluster.seen_from(part.ranks),
                self.steps[i], part.rounds, part.trained, whole.part(timeline, i),
            )
            for i, part in enumerate(setting.parts)
        )  # fmt: skip
        return PlayedParts(
            setting.model, setting.cluster, setting.plan.global_batch, played,
            whole.part(timeline, count), setting.divided, tuple(transfers.held),
            transfers.message_bytes,
            setting.chosen_by,
        )  # fmt: skip

    def _trained(self, boundary: Boundary) -> bool:
        return self.setting.divided.trained[boundary.source]

    def _coming(self, number: int) -> list[Boundary]:
        return [b for b in self.setting.divided.boundaries if b.target == number]

    def _lowered(self, number: int) -> SimulatedStep:
        """Lower a part; a trained one with as many micro-batches ahead as others need."""
        part = self.setting.parts[number]
        run = part.run
        fold = self.fold
        if part.trained and number < len(self.setting.parts) - 1:
            if part.plan.colocated:
                ahead = part.rounds.rounds
            else:
                more = 1 if part.plan.ahead is None else part.plan.ahead
                ahead = more + self._least_ahead(number)
                fold = fold and (self._in_step(number) or len(part.ranks) > MOST_UNFOLDED)
            run = run.model_copy(update={"ahead": min(ahead, part.rounds.rounds)})
        elif part.plan.ahead is not None:
            raise ConfigError(
                "a part without gradients does not wait for any: it is as far ahead as it can be",
                field=f"parts.{part.name}.ahead",
            )
        seen = seen_by(self.setting.topology, part.ranks)
        cluster = self.setting.cluster.seen_from(part.ranks)
        try:
            return play_step(part.model, cluster, run, run.stack, topology=seen, fold=fold)
        except RidgelineError as error:
            raise RidgelineError(f"part {part.name}: {error}") from error

    def _in_step(self, number: int) -> bool:
        """Tell whether the replicas of a part get gradients together.

        Where the rounds of the part behind it have other samples, some replicas get theirs before
        others, so that one does not stand for all.
        """
        own = self.setting.parts[number].rounds.samples
        ends = (b.target for b in self.setting.divided.boundaries if b.source == number)
        return all(self.setting.parts[end].rounds.samples % own == 0 for end in ends)

    def _least_ahead(self, number: int) -> int:
        """Return how many rounds more than its own pipeline a part has to be ahead."""
        own, most = self.setting.parts[number].rounds, 0
        for boundary in self.setting.divided.boundaries:
            if boundary.source != number or not self._trained(boundary):
                continue
            behind = self.setting.parts[boundary.target].rounds
            before = forwards_before(own, behind, self.needs[boundary.target])
            most = max(most, *(n - j - 1 for j, n in enumerate(before)))
        return most

    def _order(self, number: int) -> list[int]:
        """Return how many rounds forward a part has begun before each gradient that it gives."""
        program = self.steps[number].lowered.program
        most = [0] * self.setting.parts[number].rounds.rounds
        for boundary in self._coming(number):
            if not self._trained(boundary):
                continue
            layer = taken_from(self.setting.divided.names[boundary.source])
            taken, given = _tasks(program, layer), _tasks(program, give_back_name(layer))
            for rank, tasks in taken.items():
                before = np.searchsorted(tasks, given[rank])
                most = [max(a, int(b)) for a, b in zip(most, before, strict=True)]
        return most

    def _place(self, number: int, label: str) -> _Place:
        """Find where an op of a part is."""
        part, step = self.setting.parts[number], self.steps[number]
        tasks = _tasks(step.lowered.program, label)
        rank_of = {
            rank: simulated for simulated in tasks for rank in step.lowered.classes[simulated]
        }
        wide = step.run.widest()
        mesh = Mesh.of(wide)
        stage = next(k for k in range(wide.pipeline) if int(mesh.stage(k)[0]) in rank_of)
        own = np.stack([mesh.replica(stage, d) for d in range(wide.data)])
        own = np.sort(own, axis=1)
        simulated = np.vectorize(rank_of.__getitem__, otypes=[np.int64])(own)
        return _Place(simulated, np.array(part.ranks, np.int64)[own], tasks)

    def _waits(self, whole: Merged, transfers: _Transfers) -> tuple[Ints, Ints]:
        """Return which tasks of the whole program wait for which, besides those of each part."""
        first = whole.first_task
        last = len(self.setting.parts)
        tasks, on = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)]
        for (part, task), (of_part, other) in transfers.waits:
            tasks.append(np.array([first[last if part is None else part] + task]))
            on.append(np.array([first[last if of_part is None else of_part] + other]))
        phases = [i for i, part in enumerate(self.setting.parts) if part.plan.colocated]
        phases.append(last - 1)
        for before, after in pairwise(phases):
            # forward: the next begins when all rounds have been handed over; backward: the other
            # way round, when the next has done all of its work
            ends = np.concatenate([t[-1:] for t in self._handed(before)]) + first[before]
            roots = _roots(self.steps[after].lowered.program) + first[after]
            tasks.append(np.repeat(roots, len(ends)))
            on.append(np.tile(ends, len(roots)))
            if self.setting.parts[before].trained:
                sinks = _sinks(self.steps[after].lowered.program) + first[after]
                begin = np.concatenate([t[:1] for t in self._gradients(before)]) + first[before]
                tasks.append(np.repeat(begin, len(sinks)))
                on.append(np.tile(sinks, len(begin)))
        return np.concatenate(tasks), np.concatenate(on)

    def _handed(self, number: int) -> list[Ints]:
        return self._ends(number, "{}")

    def _gradients(self, number: int) -> list[Ints]:
        return self._ends(number, _GRADIENT)

    def _ends(self, number: int, label: str) -> list[Ints]:
        parts, program = self.setting.divided, self.steps[number].lowered.program
        names = [parts.names[b.target] for b in parts.boundaries if b.source == number]
        found = (_tasks(program, label.format(handed_to(name))) for name in names)
        return [tasks for by_rank in found for tasks in by_rank.values()]

    def _contended(self, whole: Merged, timeline: Timeline) -> Timeline:
        """Slow what shares a device's memory and processors with what is sent, part by part."""
        taken = np.zeros(len(timeline.start_s))
        bound, used = taken.astype(np.bool_), taken.copy()
        for i, part in enumerate(self.setting.parts):
            lowered, device = self.steps[i].lowered, self.setting.cluster.seen_from(part.ranks)
            if not lowered.talks:
                continue
            own = slice(whole.first_task[i], whole.first_task[i + 1])
            channels = part.run.stack.overlap.contention
            mine = replace(whole.part(timeline, i), program=lowered.program)
            demand = demand_of(mine, lowered, device.device, channels=channels)
            if demand is not None:
                taken[own], bound[own], used[own] = demand
        return contended(timeline, Demand(taken, bound, used)) if used.any() else timeline


_GRADIENT = "{}.input-gradient"


def _tasks(program: Program, label: str) -> dict[int, Ints]:
    """Return the compute tasks of a name, by simulated rank, in the order of rounds."""
    if label not in program.label_names:
        return {}
    kinds = np.array([name in (COLLECTIVE, ISSUE) for name in program.kind_names])
    mine = program.label == program.label_names.index(label)
    tasks = np.flatnonzero(mine & ~kinds[program.kind])
    rank = program.stream_rank[program.stream[tasks]]
    return {int(r): tasks[rank == r] for r in np.unique(rank)}


def _roots(program: Program) -> Ints:
    return np.flatnonzero(np.diff(program.dep_ptr) == 0)


def _sinks(program: Program) -> Ints:
    last = np.ones(program.n_tasks, np.bool_)
    last[program.dep_index] = False
    return np.flatnonzero(last)


class _Transfers:
    """Messages between parts, as a program of their own, and who waits for what."""

    def __init__(self, setting: _Setting, steps: Mapping[int, SimulatedStep], place: Any) -> None:
        self.setting, self.steps, self.place = setting, steps, place
        self.builder = ProgramBuilder()
        device = setting.cluster.device
        prices = OpPricer(device)
        prices.add_to(self.builder)
        far = FarMemory(prices.accounts[device.far_memory], prices.resources[device.far_memory])
        self.wires = Wires(self.builder, setting.topology, far)
        self.waits: list[tuple[_Task, _Task]] = []
        self.held: list[InTransit] = []
        self.message_bytes = 0.0
        self._ranks: dict[int, int] = {}
        self._streams: dict[tuple[str, int], int] = {}

    def add(self, boundary: Boundary, what: str) -> None:
        """Write the messages of a boundary: rows forward, or gradients back."""
        names, back = self.setting.divided.names, what == BACK
        source, target = boundary.source, boundary.target
        layer = taken_from(names[source])
        handed = handed_to(names[target])
        if back:
            source, target = target, source
        sender = self.place(source, give_back_name(layer) if back else handed)
        receiver = self.place(target, _GRADIENT.format(handed) if back else layer)
        rounds = [self.setting.parts[i].rounds for i in (source, target)]
        size = self._bytes_of_a_sample(boundary)
        found = pieces(rounds[0], rounds[1])
        width = receiver.ranks.shape[1]
        if len(found) * (width + 1) > MOST_MESSAGES:
            raise RidgelineError(
                f"{len(found) * (width + 1)} messages from {names[source]} to {names[target]};"
                f" at most {MOST_MESSAGES} are simulated: take larger micro-batches"
            )
        arrived: dict[tuple[int, int], list[list[int]]] = {}
        whole: dict[tuple[int, int], int] = {}
        for piece in found:
            cell = piece.target_round, piece.target
            of = arrived.setdefault(cell, [[] for _ in range(width)])
            whole[cell] = whole.get(cell, 0) + piece.samples * size
            ends = sender.ranks[piece.source], receiver.ranks[piece.target]
            for w in range(width):
                s = w % len(ends[0])
                made = int(sender.tasks[int(sender.simulated[piece.source, s])][piece.source_round])
                a, b = int(ends[0][s]), int(ends[1][w])
                if a == b:  # it is there already
                    message = None
                    of[w].append(-1 - made)
                    continue
                message = self._message(a, b, piece.samples * size / width, what)
                self.message_bytes += piece.samples * size / width
                self.waits.append(((None, message), (source, made)))
                of[w].append(message)
                share = -(-piece.samples * size // width)
                self.held.append(InTransit(a, share, ((source, made),), ((None, message),)))
        for cell, of in sorted(arrived.items()):
            round_, replica = cell
            ready: list[_Task] = []
            for tasks in of:
                ready += [(source, -1 - t) if t < 0 else (None, t) for t in tasks]
            came = tuple(ready)
            if width > 1:
                gather = self._gather(receiver.ranks[replica], whole[cell], what)
                self.waits += [((None, gather), one) for one in ready]
                ready = [(None, gather)]
            simulated = receiver.simulated[replica].tolist()
            takes = {r: (target, int(receiver.tasks[r][round_])) for r in set(simulated)}
            self.waits += [(take, one) for take in takes.values() for one in ready]
            self.held += [
                InTransit(rank, whole[cell], came, (takes[r],))
                for r, rank in zip(simulated, receiver.ranks[replica].tolist(), strict=True)
            ]

    def _bytes_of_a_sample(self, boundary: Boundary) -> int:
        """Return what passes of a sample, in the precision of the part that makes it."""
        one = self.setting.parts[boundary.source]
        graph = one.model.whole(1, self.steps[boundary.source].run.precision or "fp32")
        found = divided(graph, one.model.parts).between(boundary.source, boundary.target)
        return sum(tensor.bytes for tensor in found.tensors)

    def _message(self, source: int, target: int, size_bytes: float, what: str) -> int:
        pair = np.array([source]), np.array([target])
        row = self.wires.message(*pair, 0, size_bytes)
        label = f"send {what}"
        self.wires.talks[row, label] = Talk("send", size_bytes, 2)
        return self.builder.add_task(
            COLLECTIVE, label, cost=row, stream=self._stream(f"send {what}", source)
        )

    def _gather(self, ranks: Ints, size_bytes: int, what: str) -> int:
        row, _ = self.wires.collective("all-gather", ranks[None, :], 0, size_bytes, "tensor")
        streams = [self._stream(f"gather {what}", int(rank)) for rank in ranks]
        group = self.builder.add_group(streams)
        return self.builder.add_task(COLLECTIVE, f"gather {what}", cost=row, group=group)

    def _stream(self, name: str, rank: int) -> int:
        if (name, rank) not in self._streams:
            if rank not in self._ranks:
                self._ranks[rank] = self.builder.add_rank()
            self._streams[name, rank] = self.builder.add_stream(
                f"device{rank}/{name}", self._ranks[rank]
            )
        return self._streams[name, rank]
