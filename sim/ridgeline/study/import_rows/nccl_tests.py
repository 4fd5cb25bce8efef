"""nccl-tests logs: what ``all_reduce_perf`` and the others print, as rows of measured collectives.

A log has one line for each size, with the time out of place and in place; its header names the
devices and, in newer versions, the operation. Older ones are named by the file. Times are those out
of place, where there are any.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from ridgeline.bounded_files import read_text
from ridgeline.errors import ConfigError, RidgelineError
from ridgeline.network.algorithm import ALGORITHMS
from ridgeline.network.operations import operation_named

SUFFIXES = frozenset({".log", ".txt", ".out"})
"""Of files that are read as logs."""
_MAX_BYTES = 16 * 2**20
_RANK = re.compile(
    r"#\s*Rank\s+\d+.*?\bon\s+(?P<host>\S+)\s+device\s+\d+\s+\[[^\]]*\]\s+(?P<device>.+?)\s*$"
)
_STARTING = re.compile(r"#\s*Collective test starting:\s*(?P<name>\w+)")
_LINE = re.compile(
    r"^\s*(?P<bytes>\d+)\s+(?P<count>\d+)\s+(?P<type>[a-z]\w*)\s+(?:(?P<op>[a-z]+)\s+)?"
    r"(?:(?P<root>-?\d+)\s+)?(?P<us>\d+(?:\.\d+)?|N/A)\s+[\d.]+\s+(?P<bus>[\d.]+)\s+\S+"
    r"(?:\s+(?P<in_us>\d+(?:\.\d+)?)\s+[\d.]+\s+(?P<in_bus>[\d.]+)\s+\S+)?"
)
_NAME = re.compile(r"(all_?reduce|all_?gather|reduce_?scatter|all_?to_?all|send_?recv|broadcast|"
                   r"gather|scatter|reduce)", re.IGNORECASE)  # fmt: skip


def is_log(path: Path) -> bool:
    """Tell whether a file is read as a log of nccl-tests, by the end of its name."""
    return path.suffix.lower() in SUFFIXES


def read_nccl_tests(path: Path) -> list[tuple[int, dict[str, str]]]:
    """Return the rows of a log, each with its line, in the columns of measured collectives.

    Raises
    ------
    ConfigError
        If the log has no sizes, names no devices, or neither it nor its name tells the operation.
    """
    file = str(path)
    lines = read_text(path, _MAX_BYTES).splitlines()
    hosts, device = [], ""
    name = found.group(1) if (found := _NAME.search(path.stem)) else ""
    for line in lines:
        if rank := _RANK.match(line):
            hosts.append(rank["host"])
            device = rank["device"]
        elif starting := _STARTING.match(line):
            name = starting["name"]
    rows = list(_measured(lines))
    if not rows:
        raise ConfigError("no line of sizes and times, as nccl-tests prints them", file=file)
    if not hosts:
        raise ConfigError("no line '#  Rank ... on HOST device ...' names the devices", file=file)
    if not name:
        raise ConfigError(
            "the log does not say which operation it is of; name the file after it, such as "
            "all_reduce.log",
            file=file,
        )
    try:
        op = operation_named(name, {known for known, _ in ALGORITHMS})
    except RidgelineError as error:
        raise ConfigError(str(error), file=file) from error
    nodes = len(set(hosts))
    same = {
        "system": "",
        "device": device,
        "device_key": device,
        "library": "NCCL",
        "framework": "nccl-tests",
        "op": op,
        "ranks": str(len(hosts)),
        "ranks_per_node": str(len(hosts) // nodes),
        "nodes": str(nodes),
        "source": path.name,
    }
    return [(number, {"id": f"{path.stem}-{number}", **same, **row}) for number, row in rows]


def _measured(lines: list[str]) -> Iterator[tuple[int, dict[str, str]]]:
    """Yield the sizes of a log with their times and bus bandwidths."""
    for number, line in enumerate(lines, 1):
        found = _LINE.match(line)
        if found is None or not int(found["bytes"]):
            continue
        out = found["us"] != "N/A"
        time_us, bus = ("us", "bus") if out else ("in_us", "in_bus")
        if found[time_us] is None or not float(found[time_us]):
            continue
        yield (
            number,
            {
                "dtype": found["type"],
                "bytes": found["bytes"],
                "time_us": found[time_us],
                "busbw_GBps": found[bus],
            },
        )
