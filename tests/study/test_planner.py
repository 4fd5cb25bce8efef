"""The planner: its bounds against the engine, and its answer against replaying everything."""

from __future__ import annotations

import functools
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import strategies as st

from ridgeline.errors import ConfigError, RidgelineError
from ridgeline.hardware.load import load_cluster
from ridgeline.study.planner.bounds import totals
from ridgeline.study.planner.extrapolation import ReducedModel
from ridgeline.study.planner.plan_class import BACKWARD, FORWARD, GroupKey, Ints
from ridgeline.study.planner.result import Objective, SimulatedPlan, pareto
from ridgeline.study.planner.searcher import Searcher
from ridgeline.study.planner.space import GRID_MODES, RECOMPUTE_NAMES
from ridgeline.workload.files import load_model
from ridgeline.workload.model import Model
from stacked import plain_search as search
from stacked import plain_searcher as searcher
from thoroughly import further, sample_of

CASES = (
    ("gpt2", "selene-a100", 8, 24),
    ("resnet18", "dgx1-v100", 8, 48),
    ("mlp", "dgx1-v100", 4, 64),
    ("t5-small", "superpod-h100", 16, 32),
)
FAR = (("gpt2", "selene-a100", 96, 192), ("resnet18", "dgx1-v100-edr", 120, 240))
LAYER = """
kind: model
name: small
family: decoder
title: Mixture
citation: made for tests
vocabulary: 512
sequence: 128
hidden: 512
attention: {heads: 8, bias: false, output_bias: false}
feed_forward: {width: 1024, activation: swiglu, bias: false}
norm: rms-norm
positions: rotary
tied: false
"""
MIXTURES = {
    "alone": "layers: 7\nmixture: {experts: 12, top_k: 2, width: 1024}\n",
    "small": "layers: 1\nmixture: {experts: 6, top_k: 2, width: 4096}\n",
    "beside": "layers: 3\nmixture: {experts: 8, top_k: 3, width: 256, shared: 1}\n",
    "dense first": "layers: 9\nmixture: {experts: 4, top_k: 2, width: 256, first_dense: 2}\n",
}
WIDER: tuple[tuple[str, str, int, int, dict[str, bool]], ...] = (
    ("decoder", "tpu-v4-pod", 8, 8, {"grids": True}),
    ("lenet5", "selene-a100", 16, 16, {"spatial": True}),
)
SHARED = (("separate", "superpod-h100", 16, 16), ("flash", "dgx1-v100", 8, 16))
MIXED = (
    ("alone", "superpod-h100", 24, 48),
    ("beside", "dgx1-v100", 8, 16),
    ("alone", "selene-a100", 16, 32),
)


@functools.cache
def prepared(case: int) -> Searcher:
    return searcher(*CASES[case])


@functools.cache
def far(case: int) -> Searcher:
    return searcher(*FAR[case])


@functools.cache
def mixture(name: str) -> Model:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"{name}.yaml"
        path.write_text(LAYER + MIXTURES[name])
        return load_model(str(path))


@functools.cache
def long(case: int) -> Searcher:
    """Devices may share the positions of a small decoder's sequences, in a ring where it can."""
    kernel, *more = SHARED[case]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "long.yaml"
        heads = "attention: {heads: 8,"
        path.write_text(LAYER.replace(heads, f"{heads} kernel: {kernel},") + "layers: 6\n")
        model = load_model(str(path))
    return searcher(model, *more, precision="fp16-mixed", context=True)  # type: ignore[arg-type]


@functools.cache
def mixed(case: int) -> Searcher:
    name, *more = MIXED[case]
    return searcher(mixture(name), *more, precision="fp16-mixed")  # type: ignore[arg-type]


@functools.cache
def decoder() -> Model:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "decoder.yaml"
        path.write_text(LAYER + "layers: 6\n")
        return load_model(str(path))


@functools.cache
def wider(case: int) -> Searcher:
    name, *more, kinds = WIDER[case]
    return searcher(decoder() if name == "decoder" else name, *more, **kinds)  # type: ignore[arg-type]


@sample_of(7, 25, st.integers(0, len(CASES) - 1), st.data())
def test_no_bound_is_above_the_engine(case: int, data: st.DataObject) -> None:
    check_bounds(prepared(case), data)


@sample_of(2, 4, st.integers(0, len(FAR) - 1), st.data())
def test_no_bound_of_many_devices_is_above_the_engine(case: int, data: st.DataObject) -> None:
    """One rank is simulated for all, and large messages count alone; some stages lie unlike."""
    one = far(case)
    some = np.flatnonzero(one.space.micro_batches * one.space.pipeline <= 32).tolist()
    check_bounds(one, data, some)


def test_what_is_done_again_early_is_not_waited_with() -> None:
    """A stretch of several units is done again before the first of them waits for a gradient."""
    one = searcher("vgg16", "selene-a100", 80, 160)
    s = one.space
    (i,) = np.flatnonzero(
        (s.data == 5) & (s.tensor == 4) & (s.sequence == 0) & (s.micro_batch == 32)
        & (s.sharding == 0) & (s.schedule == 0) & (s.recompute == RECOMPUTE_NAMES.index("sqrt"))
    )  # fmt: skip
    group = one.groups.group(one.key(int(i)))
    assert group is not None
    replay = one.replay(s.plan(int(i)))
    assert one.tightened(group, int(i)).time_s <= replay.step_time_s


@sample_of(3, 10, st.integers(0, len(MIXED) - 1), st.data())
def test_no_bound_of_shared_experts_is_above_the_engine(case: int, data: st.DataObject) -> None:
    check_bounds(mixed(case), data)


@sample_of(3, 10, st.integers(0, len(SHARED) - 1), st.data())
def test_no_bound_of_shared_positions_is_above_the_engine(case: int, data: st.DataObject) -> None:
    one = long(case)
    some = np.flatnonzero(one.space.context > 1).tolist()
    check_bounds(one, data, some)


def test_positions_are_shared_where_it_is_asked_for() -> None:
    assert set(long(0).space.context.tolist()) == {1, 2, 4, 8, 16}
    assert set(long(0).space.ring.tolist()) == {0}
    assert set(long(1).space.ring.tolist()) == {0, 1}
    assert (prepared(0).space.context == 1).all()
    assert (long(1).space.only("data").context == 1).all()


@sample_of(2, 4, st.integers(0, len(WIDER) - 1), st.data())
def test_no_bound_of_grids_or_shared_images_is_above_the_engine(
    case: int, data: st.DataObject
) -> None:
    one = wider(case)
    some = np.flatnonzero((one.space.tensor_rows > 1) | (one.space.spatial > 1)).tolist()
    check_bounds(one, data, some)


def test_grids_and_shared_images_are_searched_where_it_is_asked_for() -> None:
    grids = wider(0).space
    assert {str(grids.grid(i)) for i in range(len(grids))} == {
        *("None", "tensor=2x2", "tensor=2x4", "tensor=4x2")
    }
    assert set(grids.tensor_mode.tolist()) == {0, 1, 2}
    two = grids.tensor_rows > 1
    assert (grids.sequence[two] == 0).all()
    stays = grids.tensor_mode == GRID_MODES.index("stationary")
    assert not (grids.micro_batch % grids.tensor_rows)[two & ~stays].any()
    images = wider(1).space
    assert {images.images(i) for i in range(len(images))} > {(1, 1), (2, 1), (1, 2), (4, 4)}
    alone = images.only("spatial")
    assert (alone.spatial == 16).all()
    assert len(alone)
    assert (images.only("data").spatial == 1).all()
    for one in (prepared(0).space, prepared(1).space):
        assert (one.tensor_rows == 1).all()
        assert (one.spatial == 1).all()


@pytest.mark.parametrize(
    ("case", "objective", "kinds"),
    [
        (("lenet5", "dgx1-v100", 2, 2), "energy", "spatial"),
        *further((("mlp", "tpu-v4-pod", 4, 2), "time", "grids")),
    ],
)
def test_the_optimum_is_found_among_grids_and_shared_images(
    case: tuple[str, str, int, int], objective: Objective, kinds: str
) -> None:
    check_optimum(case, objective, **{kinds: True})


def check_bounds(one: Searcher, data: st.DataObject, some: list[int] | None = None) -> None:
    i = data.draw(st.sampled_from(some) if some else st.integers(0, len(one.space) - 1))
    if one.space.micro_batches[i] * one.space.pipeline[i] > 64:
        return  # more of the same
    group = one.groups.group(one.key(i))
    if group is None:
        return
    try:
        replay = one.replay(one.space.plan(i))
    except RidgelineError:
        return
    sharp = one.tightened(group, i)
    coarse = one.screened(np.array([i]), np.array([0]), totals(group)[None, :])[0]
    less = one.groups.least(one.key(i)._replace(recompute="none"))
    again = one.groups.least_again(one.key(i))
    assert less is not None
    assert again is not None
    assert (less <= again).all(), replay.plan
    assert (again <= totals(group)[:7] * (1 + 1e-12)).all(), replay.plan
    values = one.bound_values(np.array([sharp.time_s]), np.array([sharp.energy_j]), np.array([i]))
    energy = sharp.energy_j * replay.plan.devices / replay.plan.pipeline
    assert one.tightened(group, i, wired=False).time_s <= sharp.time_s
    assert sharp.time_s <= replay.step_time_s, replay.plan
    assert coarse[0] <= replay.step_time_s, replay.plan
    assert energy <= replay.energy_j, replay.plan
    assert sharp.memory_bytes <= replay.memory_bytes, replay.plan
    unpriced = one.screened(np.array([i]), np.array([0]), one.may_fit(one.key(i))[None, :])[0]
    assert unpriced[2] <= replay.memory_bytes, replay.plan
    assert coarse[2] <= replay.memory_bytes, replay.plan
    assert values[0] <= replay.objective


@pytest.mark.parametrize(
    ("case", "objective"),
    [
        (("mlp", "selene-a100", 2, 2), "time"),
        (("mlp", "dgx1-v100", 2, 4), "energy"),
        (("mlp", "dgx1-v100", 2, 2), "cost"),
        *further((("mlp", "selene-a100", 64, 2), "time"), (("mlp", "dgx1-v100", 4, 4), "cost")),
    ],
)
def test_the_answer_is_the_optimum_of_all_replays(case, objective) -> None:  # type: ignore[no-untyped-def]
    check_optimum(case, objective)


def test_the_optimum_of_a_mixture_is_found_where_experts_may_be_shared() -> None:
    case = (mixture("small"), "superpod-h100", 2, 2)
    assert set(searcher(*case).space.expert.tolist()) == {1, 2}
    check_optimum(case, "time")


def check_optimum(case: Any, objective: Objective, **wider: bool) -> SimulatedPlan:
    one = searcher(*case, objective=objective, **wider)
    everything = []
    for i in range(len(one.space)):
        try:
            everything.append(one.replay(one.space.plan(i)))
        except RidgelineError:
            continue
    best = min(r.objective for r in everything if r.fits)
    found = search(*case, objective=objective, **wider)
    assert found.best.objective == best
    assert found.proven
    assert found.gap == 0.0
    front = pareto(tuple(everything))
    assert found.best.step_time_s in [r.step_time_s for r in front] or objective != "time"
    return found.best


def test_a_limit_leaves_a_gap_that_covers_the_optimum() -> None:
    case = ("mlp", "dgx1-v100", 4, 16)
    whole, cut = search(*case), search(*case, limit=1)
    assert not cut.proven or cut.best.objective == whole.best.objective
    assert whole.best.objective >= cut.best.objective * (1 - cut.gap) * (1 - 1e-12)


@pytest.mark.parametrize("plans", [12, *further(40)])
def test_no_plan_that_fits_is_dropped(plans: int) -> None:
    one = searcher("gpt2", "dgx1-v100", 4, 256, precision="fp16-mixed")
    found = 0
    for i in range(0, len(one.space), max(1, len(one.space) // plans)):
        group = one.groups.group(one.key(i))
        if group is None or one.space.micro_batches[i] > 16:
            continue
        bound = one.tightened(group, i)
        if bound.memory_bytes <= one.cluster.device.capacity_bytes or np.isinf(bound.time_s):
            continue
        try:
            replay = one.replay(one.space.plan(i))
        except RidgelineError:
            continue
        found += 1
        assert not replay.fits
    assert found > 0


def _kinds_of(one: Searcher, key: GroupKey, at: Ints) -> list[str]:
    """Return the kind of the op of every event; "": none runs."""
    ops = one.groups._ops_of(key)
    assert ops is not None
    return ["" if i < 0 else ops.told.graph.ops[i].kind for i in at.tolist()]


@pytest.mark.parametrize(
    "case",
    [
        ("dense first", "selene-a100", 8, 8),
        *further((("gpt2", "selene-a100", 4, 8),), (("alone", "selene-a100", 8, 8),)),
    ],
)
def test_few_layers_price_the_whole(case) -> None:  # type: ignore[no-untyped-def]
    name, *more = case
    model = mixture(name) if name in MIXTURES else name
    few, whole = searcher(model, *more), searcher(model, *more)
    assert few.groups.few.fewer
    whole.groups.few = ReducedModel(whole.model, ())
    keys = sorted({few.key(i) for i in range(len(few.space))})
    for key in [*keys[3::24], next(key for key in keys if key.tensor == 4)]:
        a, b = few.groups.group(key), whole.groups.group(key)
        assert a is not None
        assert b is not None
        assert not any(model == few.model for _, model, _ in few.groups.made.sharded)
        np.testing.assert_allclose(a.work, b.work, rtol=1e-12)
        np.testing.assert_array_equal(a.held, b.held)
        np.testing.assert_allclose(a.around, b.around, rtol=1e-12)
        np.testing.assert_allclose(a.once_s, b.once_s, rtol=1e-12)
        for one, other in zip(a.played, b.played, strict=True):
            for name, mine, theirs in zip(one._fields, one, other, strict=True):
                if name == "op":  # by its place in a graph of fewer layers: of the same kind
                    kinds = [_kinds_of(of, key, at) for of, at in ((few, mine), (whole, theirs))]
                    assert kinds[0] == kinds[1]
                    continue
                np.testing.assert_allclose(mine, theirs, rtol=1e-12, err_msg=name)
        known = (key.micro_batch, key.recompute, key.expert)
        held = [one.groups.held_undivided(*known) for one in (few, whole)]
        np.testing.assert_allclose(*held, rtol=1e-12)


def test_experts_are_shared_by_ranks_that_divide_them_and_the_data() -> None:
    space = mixed(0).space
    assert set(space.expert.tolist()) == {1, 2, 3, 4, 6, 12}
    assert not (space.data % space.expert).any()
    for dimension in ("data", "tensor", "pipeline"):
        assert (space.only(dimension).expert == 1).all()
    assert (prepared(0).space.expert == 1).all()


def test_a_stage_waits_for_what_no_op_runs_beside() -> None:
    """Experts on other nodes: all-to-alls longer than what hides them count in the bound."""
    one = mixed(0)
    whole = GroupKey(1, 1, False, "none", 1)
    alone, shared = one.groups.group(whole), one.groups.group(whole._replace(expert=12))
    assert alone is not None
    assert shared is not None
    assert shared.work[:, FORWARD].sum() > alone.work[:, FORWARD].sum()
    assert shared.work[:, BACKWARD].sum() > alone.work[:, BACKWARD].sum()


def test_the_screen_takes_a_hundred_thousand_plans_a_second() -> None:
    import time

    one = prepared(0)
    group = one.groups.group(one.key(0))
    assert group is not None
    known = totals(group)[None, :]
    at = np.tile(np.arange(len(one.space)), 1 + 200_000 // len(one.space))
    which = np.zeros(len(at), np.int64)
    one.screened(at[:8], which[:8], known)
    start = time.process_time()
    one.screened(at, which, known)
    assert len(at) / (time.process_time() - start) > 1e5


def test_what_may_be_computed_again_is_what_there_is() -> None:
    of_case = {case[0]: prepared(k).groups.limits.recomputations() for k, case in enumerate(CASES)}
    assert of_case["gpt2"] == ["none", "selective", "full"]
    assert of_case["t5-small"] == ["none", "selective", "full", "sqrt"]  # two kinds of layers
    assert of_case["resnet18"] == ["none", "full", "sqrt"]  # no attention


def test_mistakes_are_said() -> None:
    with pytest.raises(ConfigError, match="1 to 8 devices"):
        search("mlp", "dgx1-v100", 16, 16)
    with pytest.raises(ConfigError, match="price"):
        search("mlp", "pcie3-8gpu", 2, 16, objective="cost")
    assert search("mlp", "dgx1-v100", 1, 8, objective="cost").best.objective > 0


def test_what_it_would_take_is_said_where_nothing_fits() -> None:
    cluster = load_cluster("selene-a100", {"device.memory.hbm.capacity": "1 GB"})
    found = search("gpt2", cluster, 1, 4)
    assert not found.replays
    assert found.needs is not None
    assert found.needs.least.memory_bytes > found.needs.capacity_bytes
    devices = found.needs.devices
    assert devices is not None
    with pytest.raises(RidgelineError, match=f"1 GB a device; {devices} devices would do"):
        _ = found.best
    assert search("gpt2", cluster, devices, 4, limit=1).best.memory_bytes <= 1e9
    cut = search("gpt2", cluster, 1, 4, limit=1, advise=False)
    with pytest.raises(RidgelineError, match="fit"):
        _ = cut.best
