"""Stage deduplication: of stage parts that differ in names alone one is emitted, others copied.

What a stage plays follows from the shapes, formats and order of its ops. So two parts of a network
of equal layers give the same tasks, but for their labels, the queues and the links of their team.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from ridgeline.parallel.emit.block_emitter import BlockEmitter
from ridgeline.parallel.emit.microbatch_instances import Blocks
from ridgeline.parallel.emit.rank_group import EmittedBlock, RankGroup, TeamBlock
from ridgeline.parallel.partition.pipeline_partition import Receipt, StagePart
from ridgeline.parallel.sharding.axes import base


@dataclass(frozen=True)
class Look:
    """A part of a network as it is written.

    Attributes
    ----------
    key
        All that its tasks follow from; equal for parts that differ in names alone.
    tensors, ops
        Names in the order in which the parts' ops name them.
    """

    key: tuple[object, ...]
    tensors: tuple[str, ...]
    ops: tuple[str, ...]

    def names(self, other: Look) -> dict[str, str] | None:
        """Return what everything here is called in a part of the same look; None: not one name."""
        found = dict(zip(self.tensors, other.tensors, strict=True))
        for mine, its in zip(self.ops, other.ops, strict=True):
            if found.setdefault(mine, its) != its:
                return None
        return found


def look_of(
    part: StagePart,
    kept: Collection[str],
    sent: Collection[str],
    gathered: Collection[str],
    n_ties: int,
    experts: Mapping[str, int],
) -> Look:
    """Look at a part.

    Parameters
    ----------
    kept
        Tensors that are held until the backward pass begins.
    sent
        Tensors that other parts get of its backward pass.
    gathered
        Of what it receives, that which comes in parts.
    n_ties
        Weights that it shares with other parts.
    experts
        Ops that the host issues for each of so many experts, which their layers say.
    """
    graph, number = part.graph, dict[str, int]()
    ops: list[tuple[object, ...]] = []
    for op in graph.ops:
        every = [number.setdefault(name, len(number)) for name in (*op.inputs, *op.outputs)]
        # gradients that one op makes are put into buckets by name
        by_name = sorted(range(len(op.outputs)), key=op.outputs.__getitem__)
        ops.append(
            (
                op.kind, op.pass_, op.loops, op.vector_flops, op.recomputed_flops, op.attrs,
                op.input_passes, op.output_passes, op.in_place, experts.get(op.name, 1),
                len(op.inputs), *every, *by_name,
            )
        )  # fmt: skip
    tensors = []
    for name in number:
        of = graph.tensors[name]
        tensors.append((of.shape, of.format, of.role, of.sparsity, number.get(base(name))))
    came = [
        (one.forward, *((number[name], name in gathered) for name in one.tensors))
        for one in part.receipts
    ]
    held, goes = (sorted(number[name] for name in of if name in number) for of in (kept, sent))
    key = tuple(ops), tuple(tensors), tuple(came), tuple(held), tuple(goes), n_ties
    return Look(key, tuple(number), tuple(op.name for op in graph.ops))


def again(
    writer: BlockEmitter, blocks: Blocks, of: RankGroup, team: RankGroup, part: StagePart,
    receipts: dict[int, list[Receipt]], names: Mapping[str, str],
) -> Blocks:  # fmt: skip
    """Return the blocks of a part that looks as the one that was written for some team.

    Parameters
    ----------
    of
        The team that `blocks` are of.
    names
        What everything there is called here (`Look.names`).
    """
    labels = writer.builder.labels
    pieces = {}
    for key, piece in blocks.pieces.items():
        made = {names[name]: places for name, places in piece.made.items() if name in names}
        block = _on_queues_of(team, of, piece.block)
        text = _relabel(writer, block, labels, names)
        _send(writer, block, team, text)
        pieces[key] = EmittedBlock(block, made, piece.tail, piece.waits)
    return replace(
        blocks,
        part=part,
        pieces=pieces,
        receipts=receipts,
        begun=[tuple(names[name] for name in every) for every in blocks.begun],
        buckets={
            along: tuple(
                replace(bucket, tensors=tuple(names[name] for name in bucket.tensors))
                for bucket in buckets
            )
            for along, buckets in blocks.buckets.items()
        },
    )


def _on_queues_of(team: RankGroup, of: RankGroup, block: TeamBlock) -> TeamBlock:
    """Copy a block for ranks that have other queues."""
    if of is team:
        return TeamBlock(list(block.tasks), block.deps, block.memory, block.sent)
    stream = {number: team.stream(*queue) for queue, number in of.queues.items()}
    rank = dict(zip(of.ranks, team.ranks, strict=True))
    tasks = [(kind, label, stream[queue], *more) for kind, label, queue, *more in block.tasks]
    memory = [
        tuple((rank[r], kind, start, end) for r, kind, start, end in entries)
        for entries in block.memory
    ]
    return TeamBlock(tasks, block.deps, memory, block.sent)


def _relabel(
    writer: BlockEmitter, block: TeamBlock, labels: Sequence[str], names: Mapping[str, str]
) -> list[str]:
    """Label the tasks of a block by the names here; return the labels of all."""
    found: dict[int, tuple[int, str]] = {}
    texts = []
    for place, (kind, label, *more) in enumerate(block.tasks):
        if label not in found:
            text = _renamed(labels[label], names)
            found[label] = writer.builder.label(text), text
        here, text = found[label]
        block.tasks[place] = (kind, here, *more)
        texts.append(text)
    return texts


def _renamed(label: str, names: Mapping[str, str]) -> str:
    """Return a label that is a name here, or one with a word before or endings behind it."""
    for head in ("", label[: label.find(" ") + 1]):
        stem = label[len(head) :]
        while stem:
            if stem in names:
                return f"{head}{names[stem]}{label[len(head) + len(stem) :]}"
            stem = stem.rpartition(".")[0]
    return label


def _send(writer: BlockEmitter, block: TeamBlock, team: RankGroup, texts: Sequence[str]) -> None:
    """Give collectives the cost rows and the queues of their team."""
    for sent in block.sent:
        for place, (_, queued) in zip(sent.places, writer.queued(team, sent), strict=True):
            kind, label, *_, priority, _ = block.tasks[place]
            block.tasks[place] = (
                kind, label, queued.stream, queued.group, queued.row, priority,
                queued.multiplicity,
            )  # fmt: skip
            writer.wires.talks[queued.row, texts[place]] = queued.talk
