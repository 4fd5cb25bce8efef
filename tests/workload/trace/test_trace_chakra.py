"""Chakra execution traces: out and in without loss, compared with an obvious decoder."""

from __future__ import annotations

import dataclasses
import json
import struct
from contextlib import suppress

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import ridgeline as rl
from ridgeline.workload.execution import COLLECTIVES, FORMATS, Execution, TaskKind
from ridgeline.workload.trace import chakra, chakra_files, chakra_writer
from ridgeline.workload.trace import chakra_wire as wire
from stacked import stacked
from thoroughly import sample_of
from trace_files import HEAD, node

NAN = float("nan")


def plain_varint(raw, at):
    value = shift = 0
    while True:
        byte = raw[at]
        value |= (byte & 127) << shift
        shift, at = shift + 7, at + 1
        if byte < 128:
            return value, at


def plain_fields(raw):
    """Decode a protobuf message the slow way: (field, wire type, value)."""
    at, found = 0, []
    while at < len(raw):
        key, at = plain_varint(raw, at)
        if key & 7 == 0:
            value, at = plain_varint(raw, at)
        elif key & 7 == 2:
            size, at = plain_varint(raw, at)
            value, at = raw[at : at + size], at + size
        else:
            size = 8 if key & 7 == 1 else 4
            value, at = raw[at : at + size], at + size
        found.append((key >> 3, key & 7, value))
    return found


def plain_nodes(raw):
    at, messages = 0, []
    while at < len(raw):
        size, at = plain_varint(raw, at)
        messages.append(raw[at : at + size])
        at += size
    nodes = []
    for message in messages[1:]:
        node = {"id": 0, "deps": [], "attr": {}}
        for field, _, value in plain_fields(message):
            if field == 1:
                node["id"] = value
            elif field == 2:
                node["name"] = value.decode()
            elif field == 3:
                node["type"] = value
            elif field in {4, 5}:
                place = 0
                while place < len(value):
                    dep, place = plain_varint(value, place)
                    node["deps"].append(dep)
            elif field == 10:
                parts = plain_fields(value)
                name = next(v for f, _, v in parts if f == 1).decode()
                (kind, _, number), *_ = (p for p in parts if p[0] > 2)
                if kind == 3:
                    number = struct.unpack("<d", number)[0]
                node["attr"][name] = number
        nodes.append(node)
    return nodes


@st.composite
def executions(draw):
    """A few ranks with tasks of all kinds; dependencies on earlier tasks."""
    world = draw(st.integers(1, 4))
    columns = {name: [] for name in ("id", "kind", "stream", "label", "start_s", "duration_s",
                                     "flops", "size_bytes", "format", "op", "group", "peer",
                                     "tag")}  # fmt: skip
    groups = [sorted(draw(st.sets(st.integers(0, world - 1), min_size=1))) for _ in range(2)]
    ptr, dep_ptr, deps = [0], [0], []
    numbers = st.one_of(st.just(NAN), st.integers(0, 2**40).map(float), st.floats(0, 1e9))
    for _ in range(world):
        count = draw(st.integers(0, 5))
        ids = draw(st.lists(st.integers(0, 2**62), min_size=count, max_size=count, unique=True))
        for i in range(count):
            kind = draw(st.sampled_from(list(TaskKind)))
            comm = kind in {TaskKind.COLLECTIVE, TaskKind.SEND, TaskKind.RECEIVE}
            message = kind in {TaskKind.SEND, TaskKind.RECEIVE}
            collective = kind is TaskKind.COLLECTIVE
            op = draw(st.integers(0, len(COLLECTIVES) - 1)) if collective else -1
            group = draw(st.integers(-1, 1)) if collective else -1
            members = world if group < 0 else len(groups[group])
            size = float(draw(st.integers(0, 2**40)) * members) if comm else draw(numbers)
            host = kind in {TaskKind.HOST}
            row = {
                "id": ids[i], "kind": kind, "stream": draw(st.integers(0, 6)),
                "label": draw(st.integers(0, 2)), "start_s": draw(numbers),
                "duration_s": draw(numbers.filter(lambda x: not np.isnan(x)) if host else numbers),
                "flops": draw(numbers), "size_bytes": size,
                "format": draw(st.integers(-1, len(FORMATS) - 1)), "op": op, "group": group,
                "peer": draw(st.integers(0, world - 1)) if message else -1,
                "tag": draw(st.integers(-5, 2**31 - 1)) if message else 0,
            }  # fmt: skip
            for name, value in row.items():
                columns[name].append(value)
            if i:
                deps += [ptr[-1] + d for d in draw(st.sets(st.integers(0, i - 1)))]
            dep_ptr.append(len(deps))
        ptr.append(ptr[-1] + count)
    types = {"id": np.int64, "kind": np.uint8, "format": np.int8, "op": np.int8}
    real = {"start_s", "duration_s", "flops", "size_bytes"}
    return Execution(
        name="x", ranks=np.arange(world, dtype=np.int32), world=world,
        task_ptr=np.array(ptr, np.int64),
        **{n: np.array(v, np.float64 if n in real else types.get(n, np.int32))
           for n, v in columns.items()},
        dep_ptr=np.array(dep_ptr, np.int64), dep_index=np.array(deps, np.int32),
        group_ptr=np.cumsum([0, *map(len, groups)]).astype(np.int64),
        group_rank=np.array([r for g in groups for r in g], np.int32), group_names=("a", "b"),
        stream_names=(*chakra.STREAMS, "stream 7"), label_names=("un", "deux", "größer"),
    )  # fmt: skip


def _write(execution, folder):
    for index, rank in enumerate(execution.ranks.tolist()):
        (folder / f"x.{rank}.et").write_bytes(chakra_writer.rank_bytes(execution, index))
    (folder / f"x{chakra_files.GROUPS_SUFFIX}").write_text(chakra_writer.groups_text(execution))
    return folder / "x.0.et"


def _rows(e):
    """Every task in words, whatever the numbers of names."""
    names = ("id", "kind", "start_s", "duration_s", "flops", "size_bytes", "format", "op", "group",
             "peer", "tag")  # fmt: skip
    rank = e.rank_of_task()
    for task in range(e.n_tasks):
        row = [repr(getattr(e, name)[task].item()) for name in names]
        deps = e.dep_index[e.dep_ptr[task] : e.dep_ptr[task + 1]]
        yield (int(rank[task]), e.label_names[e.label[task]], e.stream_names[e.stream[task]],
               sorted(e.id[deps].tolist()), row)  # fmt: skip


@sample_of(10, 40, executions())
def test_an_execution_survives_the_way_through_files(tmp_path_factory, execution):
    path = _write(execution, tmp_path_factory.mktemp("et"))
    if execution.n_tasks == 0:
        with pytest.raises(rl.ConfigError, match="no nodes"):
            chakra.load(path)
        return
    again = chakra.load(path)
    assert list(_rows(again)) == list(_rows(execution))
    assert np.array_equal(again.group_rank, execution.group_rank)


@given(executions())
@settings(max_examples=20, deadline=None)
def test_the_compiled_reader_reads_what_an_obvious_one_does(execution):
    for index in range(len(execution.ranks)):
        raw = chakra_writer.rank_bytes(execution, index)
        read, problem, _ = wire.parse(np.frombuffer(raw, np.uint8), np.array([len(raw)]))
        assert problem == 0
        for i, one in enumerate(plain_nodes(raw)):
            assert read.nodes[wire.ID, i] == one["id"]
            assert read.nodes[wire.TYPE, i] == one["type"]
            assert read.deps[read.dep_ptr[i] : read.dep_ptr[i + 1]].tolist() == one["deps"]
            for name, value in one["attr"].items():
                if name in wire.NUMBERS and name != "comm_tag":
                    assert read.numbers[wire.NUMBERS.index(name), i] == float(value)


def _file(folder, *nodes, rank=0):
    (folder / f"t.{rank}.et").write_bytes(HEAD + b"".join(nodes))
    return folder / "t.0.et"


@given(st.binary(max_size=200), st.integers(0, 200))
@settings(max_examples=60, deadline=None)
def test_noise_is_an_error_or_a_trace_and_nothing_else(tmp_path_factory, noise, cut):
    folder = tmp_path_factory.mktemp("noise")
    good = HEAD + node(0, 4, num_ops=5) + node(1, 7, (0,), comm_type=0, comm_size=8)
    (folder / "t.0.et").write_bytes(good[:cut] + noise)
    with suppress(rl.RidgelineError):
        chakra.load(folder / "t.0.et")


@pytest.mark.parametrize(
    ("nodes", "message"),
    [
        ([node(1, 4)[:-2]], "byte 8: "),
        ([node(1, 99)], "type 99"),
        ([node(1, 4), node(1, 4)], "same id"),
        ([node(1, 7, comm_size=8)], "comm_type is missing"),
        ([node(1, 7, comm_type=0)], "comm_size, the bytes that it moves, is missing"),
        ([node(1, 6, comm_size=8)], "node 1: comm_src, the rank of the other side, is missing"),
        ([node(1, 7, comm_type=77, comm_size=8)], "comm_type 77"),
        ([node(1, 7, comm_type=0, comm_size=8, pg_name="mine")], "names the group 'mine'"),
        ([node(1, 5, comm_size=8, comm_dst=5)], r"comm_dst, .* is 5 \(ranks: the only"),
        ([node(1, 4, num_ops=-5)], "node 1: num_ops is -5, allowed is 0 or more"),
        ([node(1, 11)], r"type 11 is not known \(known: 0 to 10\)"),
        ([node(1, 4, ridgeline_format="fp3")], "fp3"),
    ],
)
def test_a_mistake_is_named_with_file_and_node(tmp_path, nodes, message):
    path = _file(tmp_path, *nodes)
    with pytest.raises(rl.ConfigError, match=message) as error:
        rl.load_model(path)
    assert str(error.value).startswith(str(path))


@given(st.integers(0, 10**6))
@settings(max_examples=30, deadline=None)
def test_what_waits_for_a_removed_node_waits_for_the_others(tmp_path_factory, seed):
    r = np.random.default_rng(seed)
    ids = r.choice(200, 20, replace=False)
    waits = {int(i): [int(j) for j in ids[:place] if r.random() < 0.3]
             for place, i in enumerate(ids)}  # fmt: skip
    kept = [i for i in waits if r.random() < 0.7] or [int(ids[0])]
    nodes = [node(i, int(r.choice((0, 1, 4))), waits[i], num_ops=1) for i in kept]
    execution = chakra.load(_file(tmp_path_factory.mktemp("et"), *nodes))
    removed = sum(dep not in kept for i in kept for dep in waits[i])
    for task, i in enumerate(kept):
        deps = execution.dep_index[execution.dep_ptr[task] : execution.dep_ptr[task + 1]]
        assert execution.id[deps].tolist() == [dep for dep in waits[i] if dep in kept]
    said = [note for note in execution.notes if "not in the trace" in note]
    assert [note.split()[0] for note in said] == ([str(removed)] if removed else [])


def test_nodes_without_a_type_take_no_time(tmp_path):
    work = node(2, 4, (1,), num_ops=10**12)
    with_one = chakra.load(_file(tmp_path, node(1, 0), work))
    assert with_one.kind.tolist() == [TaskKind.MARK, TaskKind.COMPUTE]
    assert with_one.notes == ("1 nodes of type 0 (INVALID_NODE) take no time",)
    alone = chakra.load(_file(tmp_path, node(2, 4, num_ops=10**12)))
    times = [rl.simulate(one, "dgx1-v100").step_time_s for one in (with_one, alone)]
    assert times[0] == times[1] > 0


def test_the_trace_of_a_host_alone_is_refused_with_what_to_do(tmp_path):
    path = tmp_path / "host.json"
    path.write_text('{"schema": "1.0.2-chakra.0.0.4", "version": 1, "nodes": [{"ctrl_deps": 1}]}')
    with pytest.raises(rl.ConfigError, match=r"host\.json:1: .*chakra_trace_link"):
        rl.load_model(path)


def test_a_missing_rank_is_named(tmp_path):
    _file(tmp_path, node(1, 4, num_ops=1))
    _file(tmp_path, node(1, 4, num_ops=1), rank=2)
    with pytest.raises(rl.ConfigError, match="rank 1 is missing"):
        rl.load_model(tmp_path / "t.0.et")


def test_nodes_that_wait_for_each_other_are_one_error(tmp_path):
    path = _file(tmp_path, node(1, 4, (2,), "egg", num_ops=1), node(2, 4, (1,), "hen", num_ops=1))
    with pytest.raises(rl.RidgelineError, match="in a circle: 'egg'"):
        rl.simulate(rl.load_model(path), "dgx1-v100")


def test_json_means_the_same(tmp_path):
    binary = _file(
        tmp_path,
        node(0, 4, name="a", num_ops=10**9, tensor_size=10**6, is_cpu_op=False),
        node(1, 7, (0,), name="b", comm_type=2, comm_size=1000),
    )
    nodes = [
        {"name": "a", "type": "COMP_NODE", "attr": [
            {"name": "num_ops", "int64Val": "1000000000"},
            {"name": "tensor_size", "uint64Val": "1000000"},
            {"name": "is_cpu_op", "boolVal": False}]},
        {"id": "1", "name": "b", "type": "COMM_COLL_NODE", "dataDeps": ["0"], "attr": [
            {"name": "comm_type", "int64Val": "2"}, {"name": "comm_size", "int64Val": 1000}]},
    ]  # fmt: skip
    path = tmp_path / "j.json"
    path.write_text('{"version": "0.0.4"}\n' + "\n".join(map(json.dumps, nodes)))
    assert rl.load_model(path).same(rl.load_model(binary))


def test_names_that_differ_in_a_few_letters_are_told_apart():
    """All names of a large network, and every pair of bytes in a long one."""
    names = {f"blocks.{i}.attention.{w}{j}" for i in range(200) for w in "abcd" for j in range(50)}
    names |= {"x" * i + a + "y" * (12 - i) + b for i in range(13) for a in "0123" for b in "0123"}
    assert len({wire.text_hash(name.encode()) for name in names}) == len(names)


PLANS = [
    {"data": 4, "micro_batch": 2},
    {"tensor": 2, "data": 2, "pipeline": 2, "micro_batch": 1, "sequence": 2},
    {"pipeline": 2, "virtual_stages": 3, "schedule": "interleaved", "micro_batch": 1},
    {"data": 4, "zero_stage": 3},
    {
        "context": 2,
        "pipeline": 2,
        "micro_batch": 2,
        "schedule": "zero-bubble",
        "host__launch_time": 1e-5,
    },
    {"data": 2, "offload": "all", "recompute": "full"},
]


@pytest.mark.parametrize("fields", PLANS, ids=str)
def test_a_simulated_step_replays_to_the_same_time(tmp_path, fields):
    from ridgeline.report.as_execution import as_execution

    model = rl.load_model("gpt2", {"layers": 6, "sequence": 64})
    plan = stacked(global_batch=8, precision="fp16-mixed", **fields)
    result = rl.simulate(model, "dgx-a100", plan, fold=False)
    execution = as_execution(result)
    again = chakra.load(_write(execution, tmp_path))
    named = [np.array(e.label_names)[e.label] for e in (again, execution)]
    assert (named[0] == named[1]).all()
    numbers = {"label": execution.label, "label_names": execution.label_names}
    assert dataclasses.replace(again, **numbers).same(execution)
    replayed = rl.simulate(again, "dgx-a100")
    assert replayed.manifest["times"] == "measured"
    assert replayed.step_time_s == pytest.approx(result.step_time_s, rel=1e-9)
    assert len(replayed.rank_time_s) == plan.devices
    sizes = [int((again.kind == kind).sum()) for kind in (5, 6)]
    assert sizes[0] == sizes[1] == (execution.peer >= 0).sum() // 2
    if plan.devices > 1 and plan.data > 1:
        folded = rl.simulate(model, "dgx-a100", plan)
        with pytest.raises(rl.RidgelineError, match="fold=False"):
            as_execution(folded)
