"""Balanced stages, against trying every partition."""

from itertools import combinations, pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ridgeline.errors import RidgelineError
from ridgeline.hardware import load_device
from ridgeline.kernels import price
from ridgeline.parallel.partition.chain import units
from ridgeline.parallel.partition.partition_dp import (
    StageLayers,
    balance,
    balance_given,
    balance_replicated,
)
from ridgeline.workload import Pass, Role, load_model

times = st.lists(st.integers(1, 9), min_size=1, max_size=8)


def partitions(n, stages):
    for cuts in combinations(range(1, n), stages - 1):
        bounds = [0, *cuts, n]
        yield list(pairwise(bounds))


@settings(max_examples=150, deadline=None)
@given(st.data(), times)
def test_no_partition_is_faster_and_none_as_fast_is_more_even(data, time):
    n = len(time)
    stages = data.draw(st.integers(1, n))
    tried = [[sum(time[i:j]) for i, j in parts] for parts in partitions(n, stages)]
    least = min(map(max, tried))
    even = min(sum(t * t for t in each) for each in tried if max(each) == least)
    found = balance(time, stages)
    assert [stage.first for stage in found] == [0, *(stage.stop for stage in found[:-1])]
    each = [sum(time[stage.first : stage.stop]) for stage in found]
    assert (len(each), found[-1].stop) == (stages, n)
    assert max(each) == least
    assert sum(t * t for t in each) == even


def test_more_stages_than_layers_are_refused():
    with pytest.raises(RidgelineError, match="2 layers cannot be cut into 3"):
        balance([1, 1], 3)


def every_pipeline(first, n, devices):
    """All ways to put layers first:n on exactly so many devices."""
    for stop in range(first + 1, n + 1):
        for replicas in range(1, devices + 1):
            stage = StageLayers(first, stop, replicas)
            if stop == n and replicas == devices:
                yield [stage]
            elif stop < n:
                for rest in every_pipeline(stop, n, devices - replicas):
                    yield [stage, *rest]


def pipeline_time(stages, time, send, sync, overlap=True):
    slowest = 0.0
    for stage in stages:
        part = slice(stage.first, stage.stop)
        equal = sum(row[stage.replicas - 1] for row in sync[part])
        both = max(sum(time[part]), equal) if overlap else sum(time[part]) + equal
        slowest = max(slowest, both / stage.replicas)
        if stage.stop < len(time):
            slowest = max(slowest, send[stage.stop - 1])
    return slowest


@settings(max_examples=80, deadline=None)
@given(
    st.data(), st.lists(st.integers(1, 9), min_size=1, max_size=5), st.integers(1, 5), st.booleans()
)
def test_replicated_stages_equal_exhaustive_search(data, time, devices, overlap):
    n = len(time)
    send = data.draw(st.lists(st.integers(0, 9), min_size=n, max_size=n))
    weights = data.draw(st.lists(st.integers(0, 9), min_size=n, max_size=n))
    sync = [[4 * w * (r - 1) / r for r in range(1, devices + 1)] for w in weights]
    found, time_s = balance_replicated(time, devices, send_s=send, sync_s=sync, overlap=overlap)
    every = every_pipeline(0, n, devices)
    least = min(pipeline_time(p, time, send, sync, overlap) for p in every)
    assert time_s == pytest.approx(least, rel=1e-9)
    assert pipeline_time(found, time, send, sync, overlap) == pytest.approx(least, rel=1e-9)
    assert sum(stage.replicas for stage in found) == devices
    assert [found[0].first, found[-1].stop] == [0, n]
    assert all(a.stop == b.first for a, b in pairwise(found))


def test_light_convolutions_are_replicated_and_heavy_layers_are_not():
    """What PipeDream finds for VGG-like networks: work in front, weights behind."""
    time, send = [10, 10, 10, 1, 1], [1, 1, 0.1, 0.1, 0]
    sync = [[w * (r - 1) for r in range(1, 9)] for w in (0.1, 0.1, 0.1, 30, 30)]
    found, _ = balance_replicated(time, 8, send_s=send, sync_s=sync)
    assert found == (StageLayers(0, 3, 7), StageLayers(3, 5, 1))


@pytest.mark.parametrize("name", ["resnet50", "gpt2", "vgg16", "unet", "t5-small", "dlrm"])
def test_units_hold_every_op_once_and_send_what_crosses(name):
    graph = load_model(name).training(2, "fp16-mixed")
    parts = units(graph)
    assert sorted(i for part in parts for i in part.ops) == list(range(len(graph.ops)))
    assert len(parts) >= 4
    assert parts[-1].send_bytes == 0
    home = {i: k for k, part in enumerate(parts) for i in part.ops}
    forward = [i for i, op in enumerate(graph.ops) if op.pass_ is Pass.FORWARD]
    assert [home[i] for i in forward] == sorted(home[i] for i in forward)
    for cut, part in enumerate(parts[:-1]):
        made = {n for i in forward if home[i] <= cut for n in graph.ops[i].outputs}
        read = {n for i in forward if home[i] > cut for n in graph.ops[i].inputs}
        crosses = [graph.tensors[n] for n in made & read]
        assert part.send_bytes == sum(t.bytes for t in crosses if t.role.value == "activation")


def test_pipedream_puts_seven_of_eight_devices_on_the_convolutions_of_vgg16():
    """SOSP 2019, table 1, 8 machines: 7-1.

    Priced on its Titan X, with 32 images a device and the effective bandwidth that its data
    parallel speed-up of 2.35 leaves: compute and synchronisation one after the other.
    """
    graph, device = load_model("vgg16").training(32, "fp32"), load_device("titan-x-maxwell")
    step = [op.pass_ is not Pass.UPDATE for op in graph.ops]
    prices = [price(op, graph, device).time_s(device) for op in graph.ops]
    parts = units(graph)
    time_s = [sum(prices[i] for i in part.ops if step[i]) for part in parts]
    of_layer = weight_bytes(graph)
    size = [sum(of_layer.get(name, 0) for name in layers(graph, part)) for part in parts]
    once = 2 * 7 / 8 * sum(size)  # bytes that a ring all-reduce of eight sends
    bandwidth = once / (sum(time_s) * (8 / 2.35 - 1))
    sync = [[2 * (r - 1) / r * s / bandwidth for r in range(1, 9)] for s in size]
    send = [2 * part.send_bytes / bandwidth for part in parts]
    found, _ = balance_replicated(time_s, 8, send_s=send, sync_s=sync)
    assert [stage.replicas for stage in found] == [7, 1]
    last = {name for part in parts[found[1].first :] for name in layers(graph, part)}
    assert "fc6" in last
    assert "conv3-3" not in last


def weight_bytes(graph):
    read = {n: op.layer for op in graph.ops for n in op.inputs if op.pass_ is Pass.FORWARD}
    size = {}
    for t in graph.tensors.values():
        if t.role is Role.WEIGHT:
            size[read[t.name]] = size.get(read[t.name], 0) + t.bytes
    return size


def layers(graph, part):
    return {graph.ops[i].layer for i in part.ops}


def test_equal_blocks_are_shared_evenly():
    assert [s.stop - s.first for s in balance([1.0] * 13, 4)] in [
        [4, 3, 3, 3],
        [3, 4, 3, 3],
        [3, 3, 4, 3],
        [3, 3, 3, 4],
    ]


def test_a_thousand_layers_are_cut_quickly():
    rng = np.random.default_rng(1)
    time = rng.random(400)
    found = balance(list(time), 64)
    assert len(found) == 64
    assert max(time[s.first : s.stop].sum() for s in found) < 2 * time.sum() / 64


@settings(max_examples=80, deadline=None)
@given(st.lists(st.floats(0.0, 9.0), min_size=1, max_size=40), st.data())
def test_the_compiled_program_is_the_general_one(time_s: list[float], data: st.DataObject) -> None:
    stages = data.draw(st.integers(1, len(time_s)))
    none = np.zeros((len(time_s), stages))
    general = balance_given(time_s, (1,) * stages, send_s=none[:, 1:], sync_s=none)
    assert balance(time_s, stages) == general
