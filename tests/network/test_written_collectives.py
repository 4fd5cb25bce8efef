"""Collectives for other programs: written, read again, and what they move verified on the way."""

from __future__ import annotations

import json
import re
from collections import Counter
from itertools import pairwise
from pathlib import Path

import pytest

from ridgeline.errors import ConfigError, RidgelineError
from ridgeline.network import collective
from ridgeline.network.algorithm import ALGORITHMS
from ridgeline.network.collective_files import read_collective
from ridgeline.network.collectives import collective_files
from ridgeline.network.resolve import topology_of
from ridgeline.network.tuner import best_rows, read_tuner
from ridgeline.network.verification import WrongCollectiveError
from ridgeline.workload.files import load_model

WHERE = "Ring(8, 50 GB/s, 1 us)"
SIZE = 8e6
IN_ROUNDS = ("direct", "halving-doubling", "recursive-doubling", "ring", "parameter-server")


def written(folder: Path, suffix: str, op: str, algorithm: str, where: str = WHERE) -> str:
    """Write the files of a collective and return what names them."""
    path = str(folder / f"{algorithm}{suffix}")
    for name, content in collective_files(op, SIZE, where, path, algorithm=algorithm).items():
        Path(name).write_bytes(content)
    return path


@pytest.mark.parametrize("suffix", [".xml", ".et"])
@pytest.mark.parametrize("op", ["all-reduce", "all-gather", "reduce-scatter"])
def test_what_is_written_moves_the_same(suffix: str, op: str, tmp_path: Path) -> None:
    """Every algorithm that such a file can hold; reading it plays and verifies it."""
    topology, held = topology_of(WHERE, None), 0
    for known, name in sorted(ALGORITHMS):
        if known != op or name in {"in-network", "multi-torus"}:
            continue
        try:
            script = ALGORITHMS[op, name].script(topology, tuple(range(8)), SIZE)
            path = written(tmp_path, suffix, op, name)
        except RidgelineError:
            continue
        held += 1
        found = read_collective(path)
        assert (found.op, found.n_ranks, found.name) == (op, 8, name)
        sent = sum(
            float(script.slot_bytes[0]) * int(step.count.sum()) * step.repeat
            for step in script.steps
        )
        moved = sum(one.chunks for one in found.messages) * found.chunk_share * SIZE
        assert moved == pytest.approx(sent)
        if name in IN_ROUNDS:
            again = collective(op, SIZE, WHERE, algorithm=path)
            assert again.time_s == pytest.approx(collective(op, SIZE, WHERE, algorithm=name).time_s)
    assert held >= 3


def test_goal_has_every_message_twice_and_no_cycle(tmp_path: Path) -> None:
    text = Path(written(tmp_path, ".goal", "all-to-all", "bruck")).read_text(encoding="utf-8")
    assert text.startswith("num_ranks 8\n")
    sends: Counter[tuple[str, ...]] = Counter()
    receives: Counter[tuple[str, ...]] = Counter()
    for rank, body in re.findall(r"rank (\d+) \{\n(.*?)\}", text, re.S):
        said = re.findall(r"l(\d+): (send|recv) (\d+)b (?:to|from) (\d+) tag (\d+)", body)
        assert [int(label) for label, *_ in said] == list(range(1, len(said) + 1))
        for _, kind, size, peer, tag in said:
            ends = (rank, peer) if kind == "send" else (peer, rank)
            (sends if kind == "send" else receives)[*ends, size, tag] += 1
        for later, earlier in re.findall(r"l(\d+) requires l(\d+)", body):
            assert said[int(later) - 1][1] == "send"
            assert said[int(earlier) - 1][1] == "recv"
            assert int(said[int(earlier) - 1][4]) < int(said[int(later) - 1][4])  # earlier rounds
    assert sends == receives
    assert sum(int(key[2]) * n for key, n in sends.items()) == pytest.approx(8 * 3 * SIZE / 2)


def test_a_trace_that_does_something_else_is_refused(tmp_path: Path) -> None:
    path = written(tmp_path, ".et", "all-reduce", "ring")
    assert load_model(path).world == 8  # type: ignore[union-attr]
    (tmp_path / "ring.7.et").unlink()
    read_collective(path)  # the others still hold the algorithm
    one = tmp_path / "ring.3.et"
    whole = one.read_bytes()
    one.write_bytes(whole.replace(b"SEND_NODE_0_3", b"SEND_NODE_0_4"))  # a name says nothing
    read_collective(path)
    one.write_bytes((tmp_path / "ring.4.et").read_bytes())
    with pytest.raises(ConfigError, match=r"ring\.3\.et: rank 3 sends to rank 4 0 times"):
        read_collective(path)
    one.write_bytes(whole[:-20])
    with pytest.raises(ConfigError, match=r"ring\.3\.et.*the file ends in the middle"):
        read_collective(path)
    one.write_bytes(whole.replace(b"input_file", b"other_file"))
    with pytest.raises(ConfigError, match="not of which chunk"):
        read_collective(path)
    one.write_bytes(whole.replace(b'type="rrc"', b'type="r"  ', 1))
    with pytest.raises(ConfigError, match="another one than in"):
        read_collective(path)


def test_what_a_file_cannot_hold_is_said(tmp_path: Path) -> None:
    for op, name, suffix, says in (
        ("all-to-all", "direct", ".xml", "as .goal it is"),
        ("all-gather", "bidirectional-ring", ".xml", "not in the order of ranks"),
        ("all-reduce", "ring", ".txt", "a schedule is written as"),
    ):
        with pytest.raises(ConfigError, match=re.escape(says)):
            written(tmp_path, suffix, op, name)


def pair(ops: list[list[dict[str, object]]], protocol: str = "Simple") -> dict[str, object]:
    """Return an MSCCL++ all-reduce of two GPUs in place, each with one threadblock."""
    return {
        "name": "pair",
        "collective": "allreduce",
        "protocol": protocol,
        "inplace": True,
        "gpus": [
            {
                "id": rank,
                "input_chunks": 2,
                "output_chunks": 2,
                "scratch_chunks": 2,
                "channels": [{"channel_type": "memory", "connected_to": [1 - rank]}],
                "remote_buffers": [
                    {"rank": 1 - rank, "type": "i", "access_channel_types": ["memory"]},
                    {"rank": 1 - rank, "type": "s", "access_channel_types": ["memory"]},
                ],
                "semaphores": [],
                "threadblocks": [
                    {
                        "id": 0,
                        "channels": [{"channel_type": "memory", "channel_ids": [0]}],
                        "remote_buffer_refs": [
                            {"access_channel_type": "memory", "remote_buffer_ids": [0, 1]}
                        ],
                        "ops": ops[rank],
                    }
                ],
            }
            for rank in range(2)
        ],
    }


def exchanged(rank: int) -> list[dict[str, object]]:
    """Put the other's half into its scratch, add up one's own, and put the sum back."""
    other = 1 - rank
    mine, far = {"type": "i", "index": rank, "size": 1}, {"buffer_id": 0, "index": rank, "size": 1}
    sign = {"channel_ids": [0], "channel_type": "memory"}
    return [
        {"name": "put", "src_buff": [{"type": "i", "index": other, "size": 1}],
         "dst_buff": [{"buffer_id": 1, "index": 0, "size": 1}]},
        {"name": "signal", **sign},
        {"name": "wait", **sign},
        {"name": "res", "src_buff": [mine, {"type": "s", "index": 0, "size": 1}],
         "dst_buff": [mine, far], "reduce_op": "sum"},
        {"name": "signal", **sign},
        {"name": "wait", **sign},
    ]  # fmt: skip


def test_a_plan_of_mscclpp(tmp_path: Path) -> None:
    file = tmp_path / "pair.json"
    file.write_text(json.dumps(pair([exchanged(0), exchanged(1)])))
    found = read_collective(file)
    assert (found.op, found.n_ranks, found.chunk_share) == ("all-reduce", 2, 0.5)
    assert sorted(found.messages) == [(0, 0, 1, 1), (0, 1, 0, 1), (1, 0, 1, 1), (1, 1, 0, 1)]
    where = "Ring(2, 50 GB/s, 1 us)"
    by_ring = collective("all-reduce", SIZE, where, algorithm="ring").time_s
    assert collective("all-reduce", SIZE, where, algorithm=str(file)).time_s == pytest.approx(
        by_ring
    )


@pytest.mark.parametrize(
    ("rank", "without", "says"),
    [
        (0, 2, "buffer s of rank 0, which holds nothing"),
        (
            1,
            2,
            "may not have written yet: no signal orders them",
        ),  # the other's half may come later
        (0, 1, "waits for ever"),
        (0, 5, "may end before threadblock 0 of rank 1 has written its chunk 1"),
        (0, 3, "misses the contribution of rank 1"),
    ],
)
def test_a_wrong_plan_of_mscclpp_is_refused(
    rank: int, without: int, says: str, tmp_path: Path
) -> None:
    ops = [exchanged(0), exchanged(1)]
    del ops[rank][without]
    file = tmp_path / "wrong.json"
    file.write_text(json.dumps(pair(ops)))
    with pytest.raises(WrongCollectiveError, match=says):
        read_collective(file)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda plan: plan.update(collective="alltoallv"), "cannot be verified"),
        (lambda plan: plan["gpus"][1]["channels"][0].update(channel_type="switch"), "nvls"),
        (lambda plan: plan["gpus"][0]["threadblocks"][0]["ops"][0].update(name="putt"),
         r"gpus\.0\.threadblocks\.0\.ops\.0.*did you mean 'put'"),
        (lambda plan: plan["gpus"][0].pop("input_chunks"), r"gpus\.0\.input_chunks"),
        (lambda plan: plan["gpus"][0]["threadblocks"][0]["ops"][1].update(channel_ids=[4]),
         "channel 4 of 1"),
    ],
)  # fmt: skip
def test_a_plan_that_cannot_be_read_says_where(change, says: str, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    plan = pair([exchanged(0), exchanged(1)])
    change(plan)
    file = tmp_path / "bad.json"
    file.write_text(json.dumps(plan))
    with pytest.raises(ConfigError, match=says):
        read_collective(file)


def test_a_tuner_table_of_the_fastest(tmp_path: Path) -> None:
    path = tmp_path / "best.conf"
    (content,) = collective_files("all-reduce", 1e9, "dgx-h100", str(path)).values()
    path.write_bytes(content)
    rows = read_tuner(path)
    assert rows == best_rows(["all-reduce"], topology_of("dgx-h100", None), range(8), 1e9)
    assert len(rows) >= 2
    assert rows[0].least_bytes == 0
    for row, after in pairwise(rows):
        assert after.least_bytes == row.most_bytes + 1
        for size, one, other in ((row.most_bytes, row, after), (after.least_bytes, after, row)):
            times = [
                collective("all-reduce", size, "dgx-h100", algorithm=name.name).time_s
                for name in (one, other)
            ]
            assert times[0] <= times[1]
    tuned = collective("all-reduce", 1e9, "dgx-h100", algorithm=str(path))
    assert tuned.algorithm == rows[-1].name


def test_rows_of_a_tuner_table(tmp_path: Path) -> None:
    path = tmp_path / "own.conf"
    path.write_text("# mine\nallreduce,0,65536,tree,simple,2,1,-1,-1,1\nallreduce,65537,1048576,"
                    "ring,ll128,-1,4,32\n")  # fmt: skip
    assert collective("all-reduce", 4096, "dgx-h100", algorithm=str(path)).algorithm == (
        "tree-simple"
    )
    auto = collective("all-reduce", 1e6, "dgx-h100").algorithm
    assert collective("all-reduce", 1e6, "dgx-h100", algorithm=str(path)).algorithm == auto
    for text, says in (
        ("allreduce,0,65536,tree", "2: a row has 8 to 10 columns"),
        ("allreduce,0,65536,treee,simple,2,1,-1", "did you mean 'tree'"),
        ("allreduce,0,many,tree,simple,2,1,-1", "max_bytes: a whole number; found 'many'"),
    ):
        path.write_text(f"# mine\n{text}\n")
        with pytest.raises(ConfigError, match=re.escape(says)):
            read_tuner(path)
    path.write_text("allreduce,0,65536,pat,simple,2,1,-1\n")
    with pytest.raises(RidgelineError, match="pat-simple"):
        collective("all-reduce", 4096, "dgx-h100", algorithm=str(path))
    with pytest.raises(RidgelineError, match="is for machines that NCCL drives"):
        collective("all-reduce", 4096, WHERE, algorithm=str(path))
