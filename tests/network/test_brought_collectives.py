"""Collectives from files: what they do is verified before they are priced."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from ridgeline.errors import ConfigError, RidgelineError
from ridgeline.network import collective
from ridgeline.network.collective_files import read_collective
from ridgeline.network.verification import WrongCollectiveError

WHERE = "Ring(4, 50 GB/s, 1 us)"


def ring_xml(n: int, proto: str = "Simple") -> str:
    """Write an all-reduce in place on a ring as MSCCL does."""
    gpus = []
    for rank in range(n):
        kinds = ["s", *["rrs"] * (n - 2), "rrcs", *["rcs"] * (n - 2), "r"]
        steps = []
        for number, kind in enumerate(kinds):
            chunk = (rank - number) % n
            steps.append(
                f'<step s="{number}" type="{kind}" srcbuf="i" srcoff="{chunk}" dstbuf="i" '
                f'dstoff="{chunk}" cnt="1" depid="-1" deps="-1" hasdep="0"/>'
            )
        gpus.append(
            f'<gpu id="{rank}" i_chunks="{n}" o_chunks="0" s_chunks="0"><tb id="0" '
            f'send="{(rank + 1) % n}" recv="{(rank - 1) % n}" chan="0">{"".join(steps)}</tb></gpu>'
        )
    return (
        f'<algo name="mine" proto="{proto}" nchannels="1" nchunksperloop="{n}" ngpus="{n}" '
        f'coll="allreduce" inplace="1">{"".join(gpus)}</algo>'
    )


def ring_yaml(n: int, rounds: int) -> str:
    lines = ["kind: collective", "name: mine", "operation: all-reduce"]
    lines += [f"ranks: {n}", f"chunks: {n}", "rounds:"]
    for number in range(rounds):
        add = "true" if number < n - 1 else "false"
        for rank in range(n):
            head = "  - " if rank == 0 else "    "
            to, chunk = (rank + 1) % n, (rank - number) % n
            lines.append(f"{head}- {{from: {rank}, to: {to}, chunk: {chunk}, add: {add}}}")
    return "\n".join(lines) + "\n"


def test_a_ring_of_msccl_takes_what_a_ring_takes(tmp_path: Path) -> None:
    file = tmp_path / "ring.xml"
    file.write_text(ring_xml(4), encoding="utf-8")
    found = collective("all-reduce", 4e6, WHERE, algorithm=str(file))
    assert found.time_s == pytest.approx(
        collective("all-reduce", 4e6, WHERE, algorithm="ring").time_s
    )
    assert found.algorithm == "mine"
    file.write_text(ring_xml(4, "LL"), encoding="utf-8")
    flags = collective("all-reduce", 4e6, WHERE, algorithm=str(file))
    assert flags.time_s - 6e-6 == pytest.approx(2 * (found.time_s - 6e-6))


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ('type="rrcs"', 'type="rrs"', "rank 0, chunk 1: misses the contribution"),
        ('type="rrs"', 'type="rcs"', "misses the contribution of rank"),
        ('send="1"', 'send="2"', r"waits for a message from rank \d that is never sent"),
        ('depid="-1" deps="-1"', 'depid="5" deps="0"', "step 0 of threadblock 5, which is never"),
    ],
)
def test_a_wrong_one_is_refused(old: str, new: str, says: str, tmp_path: Path) -> None:
    file = tmp_path / "wrong.xml"
    file.write_text(ring_xml(4).replace(old, new, 1), encoding="utf-8")
    with pytest.raises(WrongCollectiveError, match=says):
        collective("all-reduce", 4e6, WHERE, algorithm=str(file))


def test_what_is_no_algorithm_is_said(tmp_path: Path) -> None:
    file = tmp_path / "bad.xml"
    for text, says in (("<algo", "not XML"), ("<other/>", "expected an <algo>"),
                       (ring_xml(4).replace("allreduce", "custom"), "promises nothing"),
                       (ring_xml(4).replace('"rrs"', '"xxx"', 1), "a step is one of")):  # fmt: skip
        file.write_text(text, encoding="utf-8")
        with pytest.raises(ConfigError, match=says):
            read_collective(file)
    file.write_text(ring_xml(4), encoding="utf-8")
    with pytest.raises(RidgelineError, match="of 4 ranks; the group has 3"):
        collective("all-reduce", 1e6, "Ring(3, 50 GB/s, 1 us)", algorithm=str(file))
    with pytest.raises(RidgelineError, match="is an all-reduce, not an all-gather"):
        collective("all-gather", 1e6, WHERE, algorithm=str(file))
    with pytest.raises(ConfigError, match="cannot be read"):
        collective("all-gather", 1e6, WHERE, algorithm=str(tmp_path / "none.xml"))


def test_rounds_in_yaml(tmp_path: Path) -> None:
    file = tmp_path / "ring.yaml"
    file.write_text(ring_yaml(4, 6), encoding="utf-8")
    found = collective("all-reduce", 4e6, WHERE, algorithm=str(file))
    assert found.time_s == pytest.approx(
        collective("all-reduce", 4e6, WHERE, algorithm="ring").time_s
    )
    file.write_text(ring_yaml(4, 5), encoding="utf-8")
    with pytest.raises(
        WrongCollectiveError, match=r"rank \d misses the contribution of rank \d in chunk"
    ):
        collective("all-reduce", 4e6, WHERE, algorithm=str(file))
    file.write_text(re.sub("to: 1", "to: 9", ring_yaml(4, 6), count=1), encoding="utf-8")
    with pytest.raises(ConfigError, match="ranks 0 to 3"):
        read_collective(file)
