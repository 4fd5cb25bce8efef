"""Searcher: the plans of one search, their bounds, and the engine's answer for one of them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np

from ridgeline.engine.timeline import Timeline
from ridgeline.errors import ConfigError, RidgelineError
from ridgeline.hardware.cluster import Cluster
from ridgeline.hardware.device import Device
from ridgeline.network.resolve import load_cluster
from ridgeline.parallel.checkpointing.mode_text import RecomputeMode
from ridgeline.parallel.lower import Lowered
from ridgeline.parallel.partition.partition_dp import Pace
from ridgeline.parallel.plan.plan import MOST_SAMPLES, RECOMPUTE_MODES, Plan
from ridgeline.parallel.plan.resolved import ALTERNATING
from ridgeline.parallel.plan.stack_choice import choose_stack
from ridgeline.parallel.schedule import SCHEDULES
from ridgeline.report.accounting import EXPOSED, critical_rank, energy_account, time_account
from ridgeline.simulation import fullest_memory, play_step
from ridgeline.software.stack import Stack
from ridgeline.study.planner.bounds import (
    ROUNDING,
    TOTALS,
    Bound,
    RankShares,
    StageBounds,
    least_bound,
    screen,
    spread,
    staged,
    stretched,
    totals,
)
from ridgeline.study.planner.objectives import Objective, ObjectiveWeights, Prices, weights_of
from ridgeline.study.planner.plan_class import (
    ACCUMULATE,
    BEST,
    Bools,
    Floats,
    GroupKey,
    Ints,
    PlacedOps,
    PlanClass,
)
from ridgeline.study.planner.pricer import PlanPricer
from ridgeline.study.planner.result import SimulatedPlan
from ridgeline.study.planner.settings import PlanSettings, running
from ridgeline.study.planner.space import (
    SCHEDULE_NAMES,
    Limits,
    PlanSpace,
    divisors,
    enumerate_plans,
)
from ridgeline.study.planner.steering import FixedField, restricted
from ridgeline.workload.files import load_network
from ridgeline.workload.graph import Pass
from ridgeline.workload.model import Model

Messages = dict[tuple[int, int], tuple[float, float]]
"""Latency and seconds a byte of a message from one stage to another."""
LONG = 16384
"""Tokens of a sequence from which on its positions are shared, too, if nothing else is said."""


Placed = tuple[PlacedOps, ...]
CutKey = tuple[GroupKey, int, int, int, bool, int, int]
"""Group of a plan, its schedule, stages, chunks, whether ranks are unlike, micro-batches, ZeRO."""


@dataclass
class Searcher:
    """One search; see `search`."""

    runs: PlanSettings
    objective: Objective
    space: PlanSpace
    groups: PlanPricer
    weights: ObjectiveWeights
    fixes: tuple[FixedField, ...] = ()
    prices: Prices = field(default_factory=Prices)
    cuts: dict[tuple[GroupKey, int, int, int, bool, bytes], StageBounds] = field(
        default_factory=dict
    )
    where: dict[CutKey, tuple[StageBounds, ...]] = field(default_factory=dict)
    messages: dict[tuple[int, bool], Messages] = field(default_factory=dict)

    @property
    def model(self) -> Model:
        """The model as it is described."""
        return self.runs.model

    @property
    def cluster(self) -> Cluster:
        """Where it is trained."""
        return self.runs.cluster

    @property
    def devices(self) -> int:
        """How many devices plans use."""
        return self.runs.devices

    def on(self, devices: int) -> Searcher:
        """Return the same search on another number of devices."""
        return searcher(
            self.model, self.cluster, devices, self.space.global_batch,
            objective=self.objective, precision=self.groups.precision,
            context=bool((self.space.context > 1).any()) or None, like=self,
            grids=bool((self.space.tensor_rows > 1).any()),
            spatial=bool((self.space.spatial > 1).any()),
            software=self.runs.stack, fix=self.fixes, memory_margin=self.runs.memory_margin,
            prices=self.prices,
        )  # fmt: skip

    def only(self, dimension: str) -> Searcher:
        """Return the search of plans that use this dimension alone (`PlanSpace.only`).

        What either of both prices the other need not price again.
        """
        return replace(self, space=self.space.only(dimension))

    def replay(self, plan: Plan, bound_s: float = 0.0) -> SimulatedPlan:
        """Play one plan on the engine, as `simulate` does it under the same stack."""
        groups = self.groups
        if plan.precision is None:
            plan = plan.model_copy(update={"precision": groups.precision})
        stack = self.runs.stack
        step = play_step(self.model, self.cluster, plan, stack, topology=groups.topology)
        step_s = step.timeline.makespan_s
        idle_w = self.runs.idle_w / plan.devices
        energy = energy_account(step.timeline, idle_w, plan.devices)
        memory, capacity, fits = fullest_memory(step.lowered, step.timeline, self.cluster.device)
        fits = fits and memory["total"] <= self.runs.may_use(capacity)
        value = self.value(step_s, energy["total"])
        said = self.runs.said(plan)
        spent = spent_s(step.lowered, step.timeline, self.cluster.device)
        return SimulatedPlan(
            plan, step_s, energy["total"], memory["total"], fits, bound_s, value, said, spent
        )

    def least_step_s(self) -> float:
        """Return the least seconds of a step by the products' arithmetic, shared by all devices."""
        if not len(self.space):
            return float("inf")
        key = self.key(0)
        parts = key.tensor * key.context * math.prod(key.images)
        of_sample = float(self.groups.least_at_peak(key).sum()) * parts / key.micro_batch
        return of_sample * self.space.global_batch / self.devices

    def value(self, time_s: float, energy_j: float) -> float:
        """Return the objective of a step that takes so long and so much energy."""
        return self.weights.per_second * time_s + self.weights.per_joule * energy_j

    def bound_values(self, time_s: Floats, energy_j: Floats, at: Ints) -> Floats:
        """Return the least objective of plans of which only bounds are known."""
        per_second, per_joule = self.weights
        ranks = self.space.replicas[at] * self.space.tensor[at]
        least: Floats = energy_j * ranks + self.runs.idle_w * time_s
        return per_second * time_s + per_joule * least if per_joule else per_second * time_s

    def key(self, i: int) -> GroupKey:
        """Return the group of a plan."""
        s = self.space
        recompute = s.modes[int(s.recompute[i])]
        kind = self.runs.slowest_kind if s.pipeline[i] == 1 else BEST
        return GroupKey(
            int(s.micro_batch[i]), int(s.tensor[i]), bool(s.sequence[i]), recompute,
            int(s.expert[i]), int(s.context[i]), bool(s.ring[i]), s.grid(i), s.images(i),
            kind,
        )  # fmt: skip

    @cached_property
    def spread(self) -> Floats:
        """[P] how the micro-batches in flight are spread over the stages of every plan."""
        s = self.space
        rows = np.stack((s.schedule, s.pipeline, s.micro_batches, s.chunks), axis=1)
        unique, of = np.unique(rows, axis=0, return_inverse=True)
        each = [spread(SCHEDULE_NAMES[name], *more) for name, *more in unique.tolist()]
        return np.array(each)[of.ravel()]

    @cached_property
    def byte_s(self) -> Floats:
        """[P] what a byte between all replicas of a plan takes at least.

        Of weights that devices which share images, or rows of a grid, sum up among them and with
        their replicas, and of those that they do not: what takes less.
        """
        s = self.space
        all_ = np.stack((s.holders, s.tensor // s.tensor_rows), axis=1)
        apart = np.stack((s.data * s.context, s.tensor * s.spatial), axis=1)
        unique, of = np.unique(np.concatenate((all_, apart)), axis=0, return_inverse=True)
        each = [self.groups.between.crossing_byte_s(*row) for row in unique.tolist()]
        least: Floats = np.array(each)[of.ravel()].reshape(2, -1).min(axis=0)
        least[self.folded | self.in_slices] = 0.0
        return least

    @cached_property
    def folded(self) -> Bools:
        """[P] whether ranks that share experts lie across dimensions by the stack's default."""
        s = self.space
        if self.runs.stack.plan.expert_tensor_parallel is None:
            return np.zeros(len(s), np.bool_)
        return np.array([self.runs.folds(self.key(i)) > 0 for i in range(len(s))], np.bool_)

    @cached_property
    def in_slices(self) -> Bools:
        """[P] whether weights may be shared within parts of the replicas."""
        return self.runs.shares_in_slices & (self.space.sharding >= 2)

    @cached_property
    def holders(self) -> Ints:
        """[P] most ranks that hold the same weights; `PlanSpace.holders` if none fold."""
        s = self.space
        return np.where(self.folded, s.holders * s.tensor, s.holders)

    def screened(
        self, at: Ints, which: Ints, known: Floats, placed: Sequence[Placed] = ()
    ) -> Floats:
        """Bound plans by the compiled closed form: [P, 3].

        Parameters
        ----------
        at
            [P] plans.
        which
            [P] row of `known` of each.
        known
            [G, 17] sums of each group (`totals`).
        placed
            Of each row of `known`, the collectives that groups take unlike long for; (): of none.
        """
        s = self.space
        longer = self._longer(at, which, known, placed)
        out = np.empty((len(at), 3))
        if s.offload != "none":
            known = known.copy()
            known[:, [TOTALS.index("kept"), TOTALS.index("beside")]] = 0.0
        if not self.runs.keeps_sums:
            known = known.copy()
            known[:, [TOTALS.index("gradient"), TOTALS.index("expert_gradient")]] = 0.0
        names = [SCHEDULES[name] for name in SCHEDULE_NAMES]
        drains = np.array([not (one.splits_backward or one.interleaves) for one in names])
        splits = np.array([one.splits_backward for one in names])
        screen(
            which, known, s.micro_batches[at], s.pipeline[at], self.holders[at], s.expert[at],
            s.sharding[at], drains[s.schedule[at]], splits[s.schedule[at]], self.spread[at],
            longer, self.byte_s[at], out,
        )  # fmt: skip
        out[:, :2] *= 1 - ROUNDING
        return out

    def _longer(self, at: Ints, which: Ints, known: Floats, placed: Sequence[Placed]) -> Floats:
        """Return [P] how much longer the mean stage of plans takes for where its groups lie."""
        longer = np.ones(len(at))
        some = np.array([bool(one) for one in placed], np.bool_)
        if not some.any():
            return longer
        rows = np.flatnonzero(some[which])
        pairs = np.stack((which[rows], self.space.pipeline[at[rows]]), axis=1)
        unique, of = np.unique(pairs, axis=0, return_inverse=True)
        each = []
        for row, stages in unique.tolist():
            column = self._column(placed[row], stages)
            if column is None:
                return longer
            kinds = [
                self.groups.between.of_stages(one.members, one.apart, stages, column)
                for one in placed[row]
            ]
            each.append(stretched(float(known[row, :ACCUMULATE].sum()), placed[row], kinds))
        longer[rows] = np.array(each)[of.ravel()]
        return longer

    def _column(self, placed: Placed, stages: int) -> int | None:
        """Return the place of stages whose ranks bound plans; see `CommBounds.column`."""
        inside = tuple((one.members, one.apart) for one in placed)
        return self.groups.between.column(stages, inside, ())

    def may_fit(self, key: GroupKey) -> Floats:
        """Return the sums of a group as `totals` that bound its memory, without pricing it.

        No device of a group that divides the ops has less than its share of anything.
        """
        least = self.groups.held_undivided(key.micro_batch, key.recompute, key.expert)
        parts = key.tensor * key.context * math.prod(key.images)
        return np.concatenate((np.zeros(len(TOTALS) - len(least)), least / parts))

    def tightened(self, group: PlanClass, i: int, *, wired: bool = True) -> Bound:
        """Bound one plan, its stages known, and (`wired`) what moves between its replicas.

        The latter is left out where weights of one plan are summed along several dimensions.
        """
        known = self._knows_cut(i) and self._knows_order(i)
        cuts = self._cuts(group, i) if known else ()
        if not cuts:
            time_s, energy_j, _ = self._coarse(group, i)
            return Bound(time_s, energy_j, self.memory_bytes(group, i))
        shares, m = self._shares(i), int(self.space.micro_batches[i])
        if not (wired and self._knows_sums(i)):
            return least_bound(cut.bound(m, shares, None) for cut in cuts)
        plan, between = self.space.plan(i), self.groups.between
        every = shares.data * plan.tensor  # ranks of a stage
        apart_of = {"data": plan.tensor, "beyond": plan.tensor * shares.expert}
        column = None
        alone = not between.folds(plan)
        if alone:
            inside = tuple((one.members, one.apart) for one in group.placed)
            across = tuple((every // apart, apart) for apart in apart_of.values())
            column = between.column(plan.pipeline, inside, across)

        def time_of(op: str, along: str, stage: int, size_bytes: float) -> float:
            apart = apart_of[along]
            if column is None:
                return between.time_s(op, every // apart, apart, size_bytes, plan)
            return between.rank_s(op, every // apart, apart, size_bytes, stage * every + column)

        return least_bound(cut.bound(m, shares, time_of, alone=alone) for cut in cuts)

    def memory_bytes(self, group: PlanClass, i: int) -> float:
        """Return the least bytes of the fullest rank of a plan, its stages known.

        Infinite where it cannot be cut so.
        """
        if not self._knows_cut(i):
            return self._coarse(group, i)[2]
        try:
            cuts = self._cuts(group, i)
        except RidgelineError:  # of these ops there are fewer layers than stages
            return float("inf")
        m, shares = int(self.space.micro_batches[i]), self._shares(i)
        known = [cut.memory_bytes(m, shares) for cut in cuts]
        return min(known) if known else self._coarse(group, i)[2]

    def _coarse(self, group: PlanClass, i: int) -> tuple[float, float, float]:
        """Return the screen's bounds of one plan."""
        time_s, energy_j, held = self.screened(
            np.array([i]), np.array([0]), totals(group)[None, :], [group.placed]
        )[0].tolist()
        return time_s, energy_j, held

    def _knows_cut(self, i: int) -> bool:
        return self.runs.knows_cuts or bool(self.space.pipeline[i] == 1)

    def _cut_key(self, i: int) -> CutKey:
        """Return by what a plan is cut."""
        s, unlike = self.space, bool(self.folded[i] or self.in_slices[i])
        of = self.key(i), int(s.schedule[i]), int(s.pipeline[i]), int(s.chunks[i])
        return (*of, unlike, int(s.micro_batches[i]), int(s.sharding[i]))

    def _knows_order(self, i: int) -> bool:
        """Whether the blocks of a stage are played one after the other."""
        alternates = SCHEDULE_NAMES[int(self.space.schedule[i])] in ALTERNATING
        return not (self.runs.pairs_passes and self.space.expert[i] > 1 and alternates)

    def _knows_sums(self, i: int) -> bool:
        """Whether it is known what moves between replicas."""
        s = self.space
        alike = s.spatial[i] == s.tensor_rows[i] == 1
        return bool(alike and self.runs.knows_sums and not (self.folded[i] or self.in_slices[i]))

    def _shares(self, i: int) -> RankShares:
        s, stack = self.space, self.runs.stack
        return RankShares(
            int(self.holders[i]), int(s.expert[i]), int(s.sharding[i]),
            bucket=self.runs.bucket_bytes(int(s.data[i])),
            again=stack.zero.reshard_after_forward == "all",
            beside=stack.overlap.gradients is True,
            gathers_beside=stack.overlap.gradients is not False,
            keeps=self.runs.keeps_sums,
            offloads=s.offload != "none",
        )  # fmt: skip

    def _cuts(self, group: PlanClass, i: int) -> tuple[StageBounds, ...]:
        """Return the stages of every cut that the step may be of; none where they are not known."""
        known = self._cut_key(i)
        if known not in self.where:
            plan = self.space.plan(i)
            plan = self.runs.resolved(plan) if self.folded[i] or self.in_slices[i] else plan
            parts = plan.pipeline * plan.virtual_stages
            folds = self.groups.between.folds(plan)
            sent = self.messages.setdefault((plan.pipeline, folds), {})
            sends = PlanSends(self.groups, plan, self.key(i), sent, group.placed)
            found = []
            for where in group.cuts(parts, self._pace(plan)):
                cut = (*known[:-2], where.tobytes())
                if cut not in self.cuts:
                    of = group, plan.schedule, plan.pipeline, plan.virtual_stages
                    self.cuts[cut] = staged(*of, sends, where)
                found.append(self.cuts[cut])
            self.where[known] = tuple(found)
        return self.where[known]

    def _pace(self, plan: Plan) -> Pace | None:
        """Return what a plan's pipeline is cut by; None where messages do not matter."""
        return self.groups.between.pace(plan, self.runs.stack) if self.runs.cut == "even" else None


@dataclass(frozen=True)
class PlanSends:
    """What messages of a plan's pipeline take at least.

    `known` is what plans with as many stages, that are simulated alike, have found.
    """

    groups: PlanPricer
    plan: Plan
    key: GroupKey
    known: Messages
    placed: Placed

    def message(self, source: int, target: int) -> tuple[float, float]:
        """Return latency and seconds a byte of a message from one stage to another."""
        if (source, target) not in self.known:
            ranks = self.plan.devices // self.plan.pipeline
            found = self.groups.between.message(ranks, source, target, self.plan)
            self.known[source, target] = found
        return self.known[source, target]

    def in_parts(self, *, back: bool) -> bool:
        """Whether the ranks of an op send in parts what they have alike."""
        return self.groups.runs.in_parts(back=back)

    def gather_s(self, size_bytes: float) -> float:
        """Return in which time the ranks of an op gather what they got in parts."""
        return self.groups.group_s("all-gather", self.key.tensor, 1, size_bytes)

    def kinds(self, placed: PlacedOps) -> Ints | None:
        """Return [K] of which kind the groups of a stage are that are waited for; None: of any."""
        inside = tuple((one.members, one.apart) for one in self.placed)
        between, stages = self.groups.between, self.plan.pipeline
        column = between.column(stages, inside, ())
        if column is None:
            return None
        return between.of_stages(placed.members, placed.apart, stages, column)

    def contended_s(self, sent_bytes: Floats) -> float:
        """Return what the fullest link needs for [K, K] bytes from each rank of a stage to another.

        Where every rank is simulated.
        """
        ranks = self.plan.devices // self.plan.pipeline
        return self.groups.between.contended_s(ranks, sent_bytes)


def spent_s(lowered: Lowered, timeline: Timeline, device: Device) -> dict[str, float]:
    """Return on what the rank that finishes last spends the seconds of a step.

    Work is the ops of the passes that are not done again, with what memory adds to them.
    """
    account = time_account(lowered, timeline, device)
    program, parts = timeline.program, account.parts_s
    again = 0.0
    if Pass.RECOMPUTE.value in program.kind_names:
        of_rank = program.stream_rank[program.stream] == critical_rank(timeline)
        kind = program.kind == program.kind_names.index(Pass.RECOMPUTE.value)
        again = math.fsum(timeline.durations_s[of_rank & kind])
    work = parts["compute"] + parts["memory_stall"] - again
    found = {"work": work, "recomputation": again, "updates": parts["optimizer"]}
    found |= {k: v for k, v in account.limits_s.items() if k.startswith(EXPOSED)}
    return {**found, "bubble": parts["bubble"]}


def searcher(
    model: Model | str, cluster: Cluster | str, devices: int, global_batch: int, *,
    objective: Objective = "time", precision: str | None = None, context: bool | None = None,
    like: Searcher | None = None, grids: bool = False, spatial: bool = False,
    software: Stack | str | None = None, fix: Sequence[FixedField] = (),
    memory_margin: float = 0.0, prices: Prices | None = None,
) -> Searcher:  # fmt: skip
    """Prepare a search: list the plans; `context`, `grids` and `spatial` as in `search`.

    Parameters
    ----------
    like
        A search of the same model in the same precision on the same cluster under the same stack,
        whose prices count.
    fix
        Fields of plans that have these values (`steering`).
    memory_margin
        Share of each device's memory that a plan leaves free.
    prices
        Of devices and energy, for the objective cost-per-token.

    Raises
    ------
    RidgelineError
        If the cluster has too few devices, or no price for the objective cost, or if the stack
        cannot run the model there.
    """
    model = load_network(model) if isinstance(model, str) else model
    cluster = load_cluster(cluster) if isinstance(cluster, str) else cluster
    if not 1 <= devices <= cluster.max_devices:
        raise ConfigError(
            f"{cluster.name} has 1 to {cluster.max_devices} devices, found {devices}",
            field="--devices",
        )
    if not 1 <= global_batch <= MOST_SAMPLES:
        raise ConfigError(
            f"a step has 1 to {MOST_SAMPLES} samples, found {global_batch}", field="--batch"
        )
    if not 0.0 <= memory_margin < 1.0:
        raise ConfigError(f"from 0 to 1, found {memory_margin:g}", field="--memory-margin")
    prices = prices or Prices()
    tokens = float(global_batch * max(model.network.tokens_per_sample, 1))
    weights = weights_of(objective, cluster, devices, tokens, prices)
    asked = {one.name: one for one in fix}
    choice = choose_stack(software, model, cluster)
    runs, precision = running(choice, model, cluster, devices, precision, memory_margin)
    groups = PlanPricer(runs, precision, like.groups if like else None)
    if context is None:
        context = model.network.tokens_per_sample >= LONG or "context" in asked
    limits, able = groups.limits, runs.able
    tensors = divisors(devices) if able("tensor") else [1]
    space = enumerate_plans(
        devices,
        global_batch,
        tensors=[t for t in tensors if limits.divides(t)],
        max_stages=limits.max_stages if able("pipeline") else 1,
        sequences=model.network.tokens_per_sample > 0,
        experts=limits.expert_degrees() if able("expert") else [1],
        contexts=limits.contexts() if context and able("context") else [(1, 0)],
        recomputations=_modes(limits, asked.get("recompute")),
        grids=limits.grids() if (grids or "tensor_rows" in asked) and able("tensor") else (),
        images=limits.images() if (spatial or "spatial" in asked) and able("spatial") else [(1, 1)],
        precision=groups.precision,
    )
    if not able("data"):
        space = space.where(space.data == 1)
    if not runs.knows_sums:  # which no sharded state goes with
        space = space.where(space.sharding == 0)
    if "offload" in asked:
        space = replace(space, offload=asked["offload"].values[0])
    space = restricted(space, fix, f"{model.name} on {devices} devices of {cluster.name}")
    return Searcher(runs, objective, space, groups, weights, tuple(fix), prices)


def _modes(limits: Limits, fixed: FixedField | None) -> list[str]:
    """Return what the model can compute again, and what was asked for besides.

    Raises
    ------
    ConfigError
        If what is done again depends on all layers, and few of them tell of the network.
    """
    found: list[str] = [*limits.recomputations()]
    if fixed is None:
        return found
    more = [mode for mode in fixed.values if mode not in found]
    for text in more:
        mode = RecomputeMode.parse(text, RECOMPUTE_MODES)
        if limits.few.fewer and (mode.count or mode.name in _OF_ALL_LAYERS):
            raise ConfigError(
                f"recompute={text} depends on all layers of a network, which a search prices by a"
                " few of them; ridgeline run --plan takes it",
                field="--fix",
            )
    return [*found, *more]


_OF_ALL_LAYERS = frozenset({"alternate", "sqrt", "optimal", "budget"})
"""Modes of recomputation that treat equal layers differently."""
