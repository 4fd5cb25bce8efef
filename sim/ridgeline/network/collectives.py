"""Collectives: what one costs on a machine that has nothing else to do."""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import numpy.typing as npt

from ridgeline.errors import RidgelineError, nearest
from ridgeline.hardware.cluster import Cluster
from ridgeline.network import astrasim, nccl
from ridgeline.network.algorithm import ALGORITHMS, Algorithm, DoesNotApplyError
from ridgeline.network.collective_files import is_collective_file, read_collective
from ridgeline.network.framework_all_reduce import Launch, eager_time_s, framework_schedule
from ridgeline.network.levels import AT_FLOWS
from ridgeline.network.line_dimensions import with_shape
from ridgeline.network.node_constants import of_ranks
from ridgeline.network.operations import operation_named
from ridgeline.network.resolve import topology_of
from ridgeline.network.rings import check_ranks
from ridgeline.network.schedule import (
    CollectiveSchedule,
    SchedulePhase,
    check_size,
    closed_form_time_s,
)
from ridgeline.network.topology import Floats, Topology
from ridgeline.network.tuner import SUFFIXES as TUNER_SUFFIXES
from ridgeline.network.tuner import best_rows, tuned_schedule, tuner_text

if TYPE_CHECKING:
    from ridgeline.network.loggp_bsp_costs import Cost
    from ridgeline.network.sparse import Compression
    from ridgeline.network.transport import Transport

__all__ = [
    "ALGORITHMS",
    "CollectiveResult",
    "CollectiveSchedule",
    "SchedulePhase",
    "closed_form_time_s",
    "collective",
]

Compat = Literal["astrasim", "astrasim-aware"]
_ASTRASIM_BLOCKS = frozenset({"Ring", "Switch", "FullyConnected"})
_DIRECT = "direct"
_PASSES = {"all-reduce": 2, "reduce-scatter": 1, "all-gather": 1}
_OF_TORUS = ("torus", "multi-torus")
_WRITTEN = {"ring": "ring", "tree": "double-binary-tree", "send-receive": "direct"}
"""Algorithms whose messages are those of a library's, by its name without the protocol."""
_BUS_PASSES = {
    "all-reduce": (2, 2),
    "reduce-scatter": (1, 1),
    "all-gather": (1, 1),
    "all-to-all": (1, 1),
    "gather": (1, 1),
    "scatter": (1, 1),
    "broadcast": (1, 0),
    "reduce": (1, 0),
    "send": (1, 0),
    "send-recv": (1, 0),
    "barrier": (0, 0),
}
"""Bus bandwidth is algorithm bandwidth times (a - b/n) (nccl-tests, PERFORMANCE.md)."""


@dataclass(frozen=True, slots=True)
class CollectiveResult:
    """What a collective costs.

    Attributes
    ----------
    op, algorithm, n_ranks, size_bytes
        What was done.
    time_s
        From the start to the end on all ranks.
    algbw_bytes_per_s
        ``size_bytes / time_s``; None if no time passes.
    busbw_bytes_per_s
        What the links sustain per rank, as nccl-tests defines it: for an all-reduce of n ranks
        ``algbw * 2(n-1)/n``; None if no time passes.
    link_utilisation
        Per link that carries something, the share of the time that its bandwidth is in use.
    energy_j
        Of moving the bytes over the links.
    network
        The level at which the network was simulated, what is known of its error, and, of packets,
        what happened to them.
    """

    op: str
    algorithm: str
    n_ranks: int
    size_bytes: float
    time_s: float
    algbw_bytes_per_s: float | None
    busbw_bytes_per_s: float | None
    link_utilisation: dict[str, float]
    energy_j: float
    network: dict[str, Any] = field(default_factory=lambda: dict(AT_FLOWS))


def collective(
    op: str,
    size_bytes: float,
    where: str | Cluster | Topology,
    *,
    ranks: int | Sequence[int] | None = None,
    algorithm: str = "auto",
    parts: Sequence[float] | Sequence[Sequence[float]] | None = None,
    compat: Compat | None = None,
    system: astrasim.AstraSimSystem | None = None,
    cost: Cost | None = None,
    compression: Compression | str | None = None,
    library: str = "nccl",
    launch: Launch = "queued",
    number_format: str | None = None,
    ranks_per_node: int | None = None,
    network: Literal["flows", "packets"] = "flows",
    transport: Transport | str | None = None,
) -> CollectiveResult:
    """Price a collective.

    Parameters
    ----------
    op
        ``all-reduce``, ``reduce-scatter``, ``all-gather``, ``all-to-all``, ``broadcast``,
        ``reduce``, ``gather``, ``scatter``, ``send`` (first rank to last), ``send-recv`` (each rank
        to the next) or ``barrier``; or their names in nccl-tests (``all_reduce``, ``alltoall``).
    size_bytes
        As nccl-tests counts it: the whole buffer, also of an all-gather and a reduce-scatter.
    where
        Name or path of a cluster, a cluster, a topology or the path of a file with one, or inline
        text such as ``"Ring(16, 50 GB/s, 500 ns)"``.
    ranks
        The ranks that take part, or how many from rank 0 on; all of them by default. The first is
        the root.
    algorithm
        Name of an algorithm, on a machine with NVLink also one of NCCL's with its protocol
        (``ring-ll128``, ``tree-simple``, ``nvls``), or a file with one: MSCCL's XML, MSCCL++'s
        JSON, custom collectives of ASTRA-sim (``.et``), or rounds in YAML, which are verified
        before they are priced; or a table of NCCL's tuner (``.conf``). "auto" takes the fastest
        that applies of all for an inline topology, which is an idealised network; what NCCL would
        choose (`ridgeline.network.nccl`) on a machine with NVLink; the fastest of the rings on any
        other machine, if the operation has one, and of those of a torus on one whose nodes are
        such.
    parts
        Sizes in bytes of the parts of an operation with uneven ones: one per rank, or of an
        all-to-all one row per rank. `size_bytes` remains what bandwidths are reckoned from.
    compat
        "astrasim" gives the time that ASTRA-sim 2 reports for a product of rings, switches and
        complete graphs (`ridgeline.network.astrasim`) with its congestion-unaware backend,
        "astrasim-aware" with the other one, which has one dimension; link loads and energy
        remain this package's.
    system
        What a system file says (`ridgeline.network.astrasim_files.read_system`), with `compat`;
        by default that of ASTRA-sim's examples. "auto" takes its algorithms.
    cost
        `loggp_bsp_costs.LogGP` or `BSP`: price messages by it instead of the links they
        share. "auto" then takes the fastest of all algorithms by that cost.

    compression
        `ridgeline.network.sparse.Compression`, or its fields as text, "density=0.01 value=32
        place=16": send values of another width, or only some of them with their places, and let
        sums fill in. "auto" takes the fastest of all algorithms but in-network reduction, whose
        switches add dense values.
    library
        ``nccl`` (or what the links name), or a serving framework whose own all-reduce kernels are
        taken (`ridgeline.network.framework_all_reduce`): ``vllm``, ``sglang``, ``trtllm``.
    launch
        ``queued``: the host is ahead of the device; ``stream``: calls of a benchmark such as
        nccl-tests, which take the node's ``collective_latency`` at least; ``eager``: launched call
        by call from PyTorch.
    number_format
        Of the values, where that matters: switches do not add up ``int8`` or ``fp8``.
    ranks_per_node
        With a number of ranks: so many on every node, on its first devices.
    network
        ``flows``: links divided fairly; ``packets``: messages are played packet by packet, round
        by round. "auto" then takes what it would take of flows.
    transport
        Of packets: routing, flow control and congestion control (`network.transport`), or a text
        that `transport_of` reads; by default the ways of the topology and queues without an end.

    Raises
    ------
    RidgelineError
        If `where`, `ranks`, `op` or `algorithm` is unknown or the size is impossible.
    """
    op = operation_named(op, {known for known, _ in ALGORITHMS})
    check_size(size_bytes)
    topology, group = _resolve(where, ranks, ranks_per_node)
    check_ranks(topology, group)
    topology = of_ranks(with_shape(topology), group)
    if isinstance(compression, str):
        from ridgeline.network.sparse import compression_of

        compression = compression_of(compression)
    if library != "nccl" or launch == "eager":
        if op != "all-reduce" and library != "nccl":
            raise RidgelineError(f"{library} has all-reduces of its own alone; found {op!r}")
        _check_alone(algorithm, parts, compat, cost, compression)
        return _called(op, size_bytes, topology, group, library, launch, number_format)
    if compat not in {None, "astrasim", "astrasim-aware"}:
        raise RidgelineError(
            f"a compatibility mode is 'astrasim' or 'astrasim-aware', found {compat!r}"
        )
    if compat is not None:
        settings = replace(system or astrasim.AstraSimSystem(), stores=compat == "astrasim-aware")
        return _compatible(op, algorithm, size_bytes, topology, group, settings)
    if system is not None:
        raise RidgelineError("a system file of ASTRA-sim needs its compatibility mode")
    uneven = None if parts is None else np.array(parts, dtype=np.float64)
    if network == "packets":
        if cost is not None or compression is not None:
            raise RidgelineError("packets have no other cost and no compression")
        return _by_packets(op, algorithm, topology, group, size_bytes, uneven, transport)
    if transport is not None:
        raise RidgelineError("a transport is of packets: network='packets' (--network packets)")
    every = sorted(name for known, name in ALGORITHMS if known == op)
    asked = every if algorithm == "auto" else [algorithm]
    if cost is not None and compression is not None:
        raise RidgelineError("a collective is priced by a cost or with a compression, not both")
    if cost is not None and len(group) > 1:
        return _by_cost(op, asked, topology, group, size_bytes, uneven, cost)
    if compression is not None:
        if algorithm == "auto":  # switches add dense values
            asked = [name for name in every if name != "in-network"]
        return _compressed(op, asked, topology, group, size_bytes, compression)
    if algorithm != "auto":
        schedule = _named(op, algorithm, topology, group, size_bytes, uneven)
    else:
        schedule = fastest_schedule(op, topology, group, size_bytes, uneven, number_format)
    time_s = None
    if launch == "stream" and len(group) > 1:
        first = topology.source == topology.devices[group[0]]
        hop_s = 2 * float(topology.latency_s[first].min(initial=math.inf)) if first.any() else 0.0
        least_s = topology.collective_latency_s + hop_s
        time_s = max(closed_form_time_s(schedule, topology), least_s)
    return _result(schedule, topology, time_s)


def collective_files(
    op: str,
    size_bytes: float,
    where: str | Cluster | Topology,
    path: str,
    *,
    ranks: int | Sequence[int] | None = None,
    ranks_per_node: int | None = None,
    algorithm: str = "auto",
) -> dict[str, bytes]:
    """Return the files of a collective for other programs, by path (`written_schedules`, `tuner`).

    Parameters
    ----------
    path
        ``.goal``, ``.et`` or ``.xml``: the messages of the algorithm, of those that have some the
        fastest for "auto". ``.conf`` or ``.csv``: a table of NCCL's tuner, up to the size.

    Raises
    ------
    RidgelineError
        As `collective`, or if such a file cannot hold the algorithm.
    """
    from ridgeline.network.written_schedules import written_files

    op = operation_named(op, {known for known, _ in ALGORITHMS})
    check_size(size_bytes)
    topology, group = _resolve(where, ranks, ranks_per_node)
    topology = with_shape(topology)
    if Path(path).suffix in TUNER_SUFFIXES:
        return {path: tuner_text(best_rows([op], topology, group, size_bytes)).encode()}
    if algorithm == "auto":
        found: list[tuple[float, str]] = []
        for name in _algorithms(op):
            with suppress(DoesNotApplyError):
                one = ALGORITHMS[op, name](topology, group, size_bytes)
                found.append((closed_form_time_s(one, topology), name))
        algorithm = min(found)[1]
    script = ALGORITHMS[op, algorithm].script(topology, group, size_bytes)
    return written_files(path, op, algorithm, script, len(group))


def _check_alone(algorithm: str, *others: object) -> None:
    """Refuse what a framework's own collective cannot have beside it."""
    if algorithm != "auto" or any(other is not None for other in others):
        raise RidgelineError(
            "a framework's library, or an eager launch, decides on its own algorithm: leave out "
            "algorithm, parts, compat, cost and compression"
        )


def _called(
    op: str,
    size_bytes: float,
    topology: Topology,
    group: tuple[int, ...],
    library: str,
    launch: Launch,
    number_format: str | None,
) -> CollectiveResult:
    """Return a collective as a framework calls it."""
    if library == "nccl":
        schedule = fastest_schedule(op, topology, group, size_bytes, None, number_format)
    else:
        schedule = framework_schedule(library, topology, group, size_bytes, number_format)
    if launch != "eager":
        return _result(schedule, topology)
    time_s = eager_time_s(schedule, topology, is_framework=library != "nccl")
    return _result(schedule, topology, time_s)


def fastest_schedule(
    op: str,
    topology: Topology,
    group: tuple[int, ...],
    size_bytes: float,
    uneven: npt.NDArray[np.float64] | None = None,
    number_format: str | None = None,
) -> CollectiveSchedule:
    """Return what `collective` takes with ``algorithm="auto"``."""
    topology = of_ranks(topology, group)
    names = _algorithms(op)
    if not topology.single_channel and (op, "ring") in ALGORITHMS:
        own = len(topology.shape) > 2  # nodes on a torus of their own
        own = own or (topology.devices_forward and len(topology.shape) > 1)
        torus = _OF_TORUS if own else ()
        names = [name for name in names if name in ("ring", *torus)]
    if uneven is None and not topology.single_channel:
        chosen = nccl.choice(op, topology, group, size_bytes, number_format)
        if chosen is not None:
            return chosen
    best: CollectiveSchedule | None = None
    best_s = math.inf
    refused: DoesNotApplyError | None = None
    for name in sorted(names, key=lambda name: (name == _DIRECT, name)):
        if name == _DIRECT and _direct_bound_s(op, topology, len(group), size_bytes) > best_s:
            continue  # its messages are many: a thousand devices on a ring pass on 270 million
        try:
            schedule = ALGORITHMS[op, name](topology, group, size_bytes, uneven)
        except DoesNotApplyError as error:
            refused = error
            continue
        if len(names) == 1:
            return schedule
        time_s = closed_form_time_s(schedule, topology)
        if best is None or (time_s, name) < (best_s, best.algorithm):
            best, best_s = schedule, time_s
    if best is None:
        assert refused is not None
        raise refused  # the only one that always applies has too many messages
    return best


def _direct_bound_s(op: str, topology: Topology, n: int, size_bytes: float) -> float:
    """Return what a direct exchange takes at least: a part of the payload between any two ranks.

    Of n ranks, all that there are, n²/4 (or one less) pairs lie on both sides of the narrowest cut.
    """
    cut = topology.bisection_bytes_per_s
    if op not in _PASSES or n != topology.n_devices or cut is None or n < 2:
        return 0.0
    return _PASSES[op] * (n // 2) * (n - n // 2) * size_bytes / n / cut * (1 - 1e-9)


def _named(
    op: str,
    algorithm: str,
    topology: Topology,
    group: tuple[int, ...],
    size_bytes: float,
    uneven: Floats | None,
) -> CollectiveSchedule:
    """Return the schedule of an algorithm, of one of NCCL's with its protocol, or of a file's."""
    if Path(algorithm).suffix in TUNER_SUFFIXES:
        return tuned_schedule(algorithm, op, topology, group, size_bytes)
    if is_collective_file(algorithm):
        if uneven is not None:
            raise RidgelineError("a collective from a file has parts of one size")
        brought = read_collective(algorithm)
        if brought.op != op:
            raise RidgelineError(f"{algorithm} is an {brought.op}, not an {op}")
        return brought.schedule(topology, group, size_bytes)
    if (op, algorithm) not in ALGORITHMS and uneven is None and not topology.single_channel:
        for schedule in nccl.candidates(op, topology, group, size_bytes):
            if schedule.algorithm == algorithm:
                return schedule
    return ALGORITHMS[op, algorithm](topology, group, size_bytes, uneven)


def _by_cost(
    op: str,
    names: Sequence[str],
    topology: Topology,
    group: tuple[int, ...],
    size_bytes: float,
    parts: Floats | None,
    cost: Cost,
) -> CollectiveResult:
    """Return the fastest of some algorithms by a cost of messages."""
    from ridgeline.network.loggp_bsp_costs import priced

    found: list[tuple[float, str]] = []
    for name in names:
        with suppress(DoesNotApplyError) if len(names) > 1 else nullcontext():
            one = ALGORITHMS[op, name]
            found.append((priced(one, topology, group, size_bytes, cost, parts), name))
    time_s, name = min(found)
    return _result(ALGORITHMS[op, name](topology, group, size_bytes, parts), topology, time_s)


def written(op: str, algorithm: str) -> str:
    """Return the algorithm that has the messages of one of a library's, or its own name."""
    if (op, algorithm) in ALGORITHMS:
        return algorithm
    return _WRITTEN.get(algorithm, _WRITTEN.get(algorithm.partition("-")[0], algorithm))


def _by_packets(
    op: str,
    algorithm: str,
    topology: Topology,
    group: tuple[int, ...],
    size_bytes: float,
    parts: Floats | None,
    transport: Transport | str | None,
) -> CollectiveResult:
    """Return a collective that is played packet by packet."""
    from ridgeline.network.packet_collective import play_collective
    from ridgeline.network.transport import Transport, transport_of

    if isinstance(transport, str):
        transport = transport_of(transport)
    name, instead = algorithm, {}
    if name == "auto" and len(group) > 1:
        chosen = fastest_schedule(op, topology, group, size_bytes, parts).algorithm
        name = written(op, chosen)
        if (op, name) not in ALGORITHMS:
            name = _fastest_written(op, topology, group, size_bytes)
            instead = {
                "algorithm_note": f"the library takes {chosen} here, whose messages are not written"
                f" down: {name} is the fastest of its algorithms that packets can play"
            }
    schedule = _named(op, name, topology, group, size_bytes, parts)
    if len(group) < 2:
        return _result(schedule, topology)
    if not is_collective_file(name) and (op, name) not in ALGORITHMS:
        raise RidgelineError(f"{name!r} has no messages of its own: packets need an algorithm")
    one = read_collective(name) if is_collective_file(name) else ALGORITHMS[op, name]
    found = play_collective(one, topology, group, size_bytes, transport or Transport(), parts)
    result = _result(schedule, topology, found.time_s)
    return replace(result, network={**found.network, **instead})


def _fastest_written(op: str, topology: Topology, group: tuple[int, ...], size_bytes: float) -> str:
    """Return the fastest of the algorithms of a library whose messages are written down."""
    names = {
        name: closed_form_time_s(schedule, topology)
        for schedule in nccl.candidates(op, topology, group, size_bytes)
        if (op, name := written(op, schedule.algorithm)) in ALGORITHMS
    }
    return min(names, key=lambda name: names[name])


def _compressed(
    op: str,
    names: Sequence[str],
    topology: Topology,
    group: tuple[int, ...],
    size_bytes: float,
    compression: Compression,
) -> CollectiveResult:
    """Return the fastest of some algorithms with compressed messages."""
    from ridgeline.network.sparse import sparse_schedule

    schedules = []
    for name in names:
        with suppress(DoesNotApplyError) if len(names) > 1 else nullcontext():
            one = ALGORITHMS[op, name]
            schedules.append(sparse_schedule(one, topology, group, size_bytes, compression))
    best = min(schedules, key=lambda s: (closed_form_time_s(s, topology), s.algorithm))
    return _result(best, topology)


def _compatible(
    op: str,
    algorithm: str,
    size_bytes: float,
    topology: Topology,
    group: tuple[int, ...],
    system: astrasim.AstraSimSystem,
) -> CollectiveResult:
    """Return an algorithm's schedule with the time that ASTRA-sim reports for it."""
    blocks = [block for block in topology.blocks if block[1] > 1]
    known = bool(blocks) and all(name in _ASTRASIM_BLOCKS for name, _, _ in blocks)
    if not (known and size_bytes >= 1 and len(group) == topology.n_devices):
        raise RidgelineError(
            "the compatibility mode is for products of Ring, Switch and FullyConnected, such as "
            "'Ring(16, 50 GiB/s, 500 ns)', all of their ranks and at least one byte; found "
            f"{topology.name!r}, {size_bytes} B and {len(group)} ranks"
        )
    dimensions = [
        astrasim.Dimension(
            name,
            extent,
            link.bandwidth_bytes_per_s / astrasim.GIB,
            round(link.latency_s * 1e9, 6),
        )
        for name, extent, link in blocks
    ]
    default = "direct" if op == "all-to-all" else "ring"
    names = system.algorithms.get(op, ()) if algorithm == "auto" else ()
    if names and len(names) != len(topology.blocks):
        raise RidgelineError(
            f"the system file has {len(names)} algorithms for {op}, the network "
            f"{len(topology.blocks)} dimensions"
        )
    kept = [name for name, block in zip(names, topology.blocks, strict=False) if block[1] > 1]
    algorithms = kept or [default if algorithm == "auto" else algorithm] * len(dimensions)
    shard = topology.n_devices if op == "all-gather" else 1
    time_ns = astrasim.network_time_ns(
        op, algorithms, round(size_bytes / shard), dimensions, system
    )
    wire = algorithms[0] if len(dimensions) == 1 else "hierarchical"
    if (op, wire) not in ALGORITHMS:
        wire = default
    return _result(ALGORITHMS[op, wire](topology, group, size_bytes), topology, time_ns * 1e-9)


def _algorithms(op: str) -> list[str]:
    """Names of the algorithms of an operation that "auto" chooses from."""
    names = sorted(
        name
        for (known, name), one in ALGORITHMS.items()
        if known == op and _with_script(known, name, one).automatic
    )
    if not names:
        ops = sorted({known for known, _ in ALGORITHMS})
        raise RidgelineError(
            f"no collective is called {op!r}{nearest(op, ops)} (known: {', '.join(ops)})"
        )
    return names


def _with_script(op: str, name: str, one: object) -> Algorithm:
    """Return an algorithm that can be verified, or raise RidgelineError."""
    if not isinstance(one, Algorithm):
        raise RidgelineError(
            f"{op} algorithm {name!r} is registered without a script that can be verified; "
            "register a function with ridgeline.network.algorithm.algorithm"
        )
    return one


def _resolve(
    where: str | Cluster | Topology,
    ranks: int | Sequence[int] | None,
    ranks_per_node: int | None = None,
) -> tuple[Topology, tuple[int, ...]]:
    """Return the topology, just large enough if it can be chosen, and the group of ranks."""
    if ranks_per_node is not None:
        return _spread(where, ranks, ranks_per_node)
    group = (
        tuple(range(ranks)) if isinstance(ranks, int) else None if ranks is None else tuple(ranks)
    )
    if group is not None and (not group or min(group) < 0):
        raise RidgelineError(
            f"a collective needs at least one rank, and ranks are from 0 on; found {ranks!r}"
        )
    topology = topology_of(where, None if group is None else max(group) + 1)
    return topology, tuple(range(topology.n_devices)) if group is None else group


def _spread(
    where: str | Cluster | Topology, ranks: int | Sequence[int] | None, per_node: int
) -> tuple[Topology, tuple[int, ...]]:
    """Return the topology and a group of so many ranks on the first devices of every node."""
    if not isinstance(ranks, int) or ranks < 1 or per_node < 1 or ranks % per_node:
        raise RidgelineError(
            f"ranks_per_node needs a number of ranks that it divides; found {ranks!r} ranks and "
            f"{per_node!r} a node"
        )
    from ridgeline.network.resolve import network_of

    found = network_of(where) if isinstance(where, str) else where
    nodes = ranks // per_node
    if isinstance(found, Cluster):
        each = found.nodes.count
        found = topology_of(found, min(nodes * each, found.max_devices))
    node_of = found.node_of[found.devices]
    first = np.flatnonzero(np.diff(node_of, prepend=-1))
    sizes = np.diff(first, append=len(node_of))
    if len(first) < nodes or (sizes[:nodes] < per_node).any():
        raise RidgelineError(
            f"{found.name!r} has no {nodes} nodes with {per_node} devices each or more"
        )
    group = first[:nodes, None] + np.arange(per_node)
    return found, tuple(group.ravel().tolist())


def bus_bandwidth(op: str, n_ranks: int, size_bytes: float, time_s: float) -> float:
    """Return what the links sustain per rank, in bytes/s, as nccl-tests defines it."""
    passes, less = _BUS_PASSES[op]
    return size_bytes / time_s * (passes * n_ranks - less) / n_ranks


def _result(
    schedule: CollectiveSchedule, topology: Topology, time_s: float | None = None
) -> CollectiveResult:
    time_s = closed_form_time_s(schedule, topology) if time_s is None else time_s
    algbw = busbw = None
    if time_s > 0:
        algbw = schedule.size_bytes / time_s
        busbw = bus_bandwidth(schedule.op, schedule.n_ranks, schedule.size_bytes, time_s)
    wire = schedule.bytes_on_wire()
    return CollectiveResult(
        op=schedule.op,
        algorithm=schedule.algorithm,
        n_ranks=schedule.n_ranks,
        size_bytes=schedule.size_bytes,
        time_s=time_s,
        algbw_bytes_per_s=algbw,
        busbw_bytes_per_s=busbw,
        link_utilisation={
            topology.link_name(link): size / float(topology.bandwidth_bytes_per_s[link]) / time_s
            for link, size in wire.items()
            if time_s > 0
        },
        energy_j=sum(size * float(topology.energy_j_per_byte[link]) for link, size in wire.items()),
    )
