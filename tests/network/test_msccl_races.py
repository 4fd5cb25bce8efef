"""MSCCL files whose threadblocks race: refused where, and only where, some order goes wrong."""

from __future__ import annotations

import random
import re
from collections import Counter, defaultdict, deque
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from ridgeline.cli import execute
from ridgeline.network.msccl import parse_msccl
from ridgeline.network.verification import WrongCollectiveError

Content = Counter[tuple[int, int]]  # contributions: of which rank, to which chunk
DEPENDS = re.compile(r'depid="(\d+)" deps="(\d+)"')
PLACED = re.compile(r'(srcoff|dstoff)="(\d+)"')


def is_right(text: str, rng: random.Random) -> bool:
    """Run an all-reduce in place, any threadblock that can go on next, and look at its outcome."""
    root = ElementTree.fromstring(text)
    n, chunks = int(root.get("ngpus", 0)), int(root.get("nchunksperloop", 0))
    memory: dict[Any, Content] = {
        (gpu, chunk): Counter([(gpu, chunk)]) for gpu in range(n) for chunk in range(chunks)
    }
    blocks = {
        (int(gpu.get("id", 0)), int(tb.get("id", 0))): tb
        for gpu in root.iter("gpu")
        for tb in gpu.iter("tb")
    }
    steps = {key: list(tb.iter("step")) for key, tb in blocks.items()}
    done = dict.fromkeys(blocks, 0)
    sent: dict[Any, deque[list[Content]]] = defaultdict(deque)
    eager = {key: rng.random() ** 4 + 1e-6 for key in blocks}  # some are always late

    def queue(key: tuple[int, int], *, to: bool) -> deque[list[Content]]:
        tb, gpu = blocks[key], key[0]
        ends = (gpu, tb.get("send")) if to else (int(tb.get("recv", 0)), str(gpu))
        return sent[(*ends, tb.get("chan"))]

    def ready(key: tuple[int, int]) -> bool:
        if done[key] == len(steps[key]):
            return False
        step = steps[key][done[key]]
        before = int(step.get("depid", 0))
        if before >= 0 and done[key[0], before] <= int(step.get("deps", 0)):
            return False
        return "r" not in step.get("type", "") or bool(queue(key, to=False))

    while able := [key for key in blocks if ready(key)]:
        (key,) = rng.choices(able, [eager[k] for k in able])
        step, gpu = steps[key][done[key]], key[0]
        kind, n_chunks = step.get("type", ""), int(step.get("cnt", 0))
        source, target = (int(step.get(name, 0)) for name in ("srcoff", "dstoff"))
        there = [Counter(memory[gpu, source + k]) for k in range(n_chunks)]
        if kind == "s":
            queue(key, to=True).append(there)
        elif kind != "nop":
            came = queue(key, to=False).popleft()
            for k, value in enumerate(came):
                memory[gpu, target + k] = value + (there[k] if kind == "rrc" else Counter())
        done[key] += 1
    ends = all(done[key] == len(steps[key]) for key in blocks)
    return ends and all(
        held == Counter((gpu, chunk) for gpu in range(n)) for (_, chunk), held in memory.items()
    )


def mutants(text: str, rng: random.Random) -> Iterator[str]:
    """Yield files without one dependency, and files with another chunk somewhere."""
    for found in DEPENDS.finditer(text):
        yield f'{text[: found.start()]}depid="-1" deps="-1"{text[found.end() :]}'
    for found in rng.sample(list(PLACED.finditer(text)), 12):
        moved = f'{found[1]}="{(int(found[2]) + 1) % 3}"'
        yield text[: found.start()] + moved + text[found.end() :]


def test_a_file_is_refused_where_some_order_of_its_threadblocks_is_wrong(tmp_path: Path) -> None:
    file, rng = tmp_path / "ring.xml", random.Random(3)
    words = ["collective", "all_reduce", "1MB", "Ring(3, 50 GB/s, 500 ns)", "--algorithm", "ring"]
    assert execute([*words, "--output", str(file)]) == 0
    text = file.read_text()
    parse_msccl(text, "ring.xml")
    refused = 0
    for mutant in mutants(text, rng):
        try:
            parse_msccl(mutant, "mutant.xml")
            tries = (is_right(mutant, rng) for _ in range(20))
            assert all(tries)
        except WrongCollectiveError:
            refused += 1
            assert not all(is_right(mutant, rng) for _ in range(400))
    assert refused > 5


def test_a_race_is_named(tmp_path: Path) -> None:
    file = tmp_path / "ring.xml"
    words = ["collective", "all_reduce", "1MB", "Ring(3, 50 GB/s, 500 ns)", "--algorithm", "ring"]
    assert execute([*words, "--output", str(file)]) == 0
    text = DEPENDS.sub('depid="-1" deps="-1"', file.read_text())
    with pytest.raises(WrongCollectiveError, match="threadblock"):
        parse_msccl(text, "ring.xml")
