"""Calculon's predictions beside ours for the same plans: time, and memory by kind.

Calculon is no measurement, so its times carry no promise; where a step was measured, that time is
shown, too. Memory is counting, and has to agree: what differs is said row by row, and without it
the totals are within 5 %.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator, Mapping
from functools import lru_cache
from importlib import resources

from ridgeline.report.result import Result
from ridgeline.study.reproduce.decoder_steps import decoder, step, step_plan
from ridgeline.study.reproduce.programs import software_note
from ridgeline.study.reproduce.table import ReproducedFigure, Reproduction
from ridgeline.workload.families.decoder import Decoder
from ridgeline.workload.graph import Role

_CLUSTERS = {
    "a100_80g": "selene-a100",
    "a100_80e": "selene-a100",
    "h100_80g_nvl8": "superpod-h100",
}
_TOLERANCE = 0.05
_OURS, _THERE = 4, 2  # bytes of a parameter's gradient: fp32, in which it is summed, and fp16
_STATES = 8  # bytes of a parameter's mean and square in fp32
_SHARDED = ", the rest divided by the data-parallel ranks"
_GB = 1e9


def reproduce(software: str | None = None) -> Reproduction:
    """Simulate every plan."""
    return Reproduction(
        name="calculon",
        title="Calculon's predictions for decoders on A100 and H100, and ours for the same plans",
        source=(
            "M. Isaev et al., 'Calculon: a methodology and tool for high-level co-design of "
            "systems and large language models', SC 2023; its systems a100_80g, a100_80e, "
            "h100_80g_nvl8; measured: V. Korthikanti et al., 2022, arXiv:2205.05198, Table 5"
        ),
        rows=tuple(row for line in lines() for row in compare(line, software)),
        fits=(),
        notes=(
            software_note(software),
            "Ours are selene-a100 and superpod-h100, calibrated with microbenchmarks alone; "
            "Calculon's systems were tuned to the measured rows.",
            "Calculon counts the blocks alone. Here embedding and classifier are on the first and "
            "the last stage, in time and in memory.",
            "Gradients are summed in fp32 here (4 bytes a parameter), in Calculon they are kept in "
            "fp16 (2 bytes), and with a sharded optimizer divided by the data-parallel ranks.",
            "weights and optimizer together are 14 bytes a parameter in both: an fp16 copy, and "
            "weight, mean and square in fp32.",
        ),
    )


def lines() -> list[dict[str, str]]:
    """Return the predictions that are compared with."""
    text = resources.files(__package__).joinpath("calculon.csv").read_text("utf-8")
    return list(csv.DictReader(text.splitlines()))


def compare(line: Mapping[str, str], software: str | None = None) -> Iterator[ReproducedFigure]:
    """Set one prediction beside ours; memory only of A100s, since that of H100s is the same."""
    cluster = _CLUSTERS[line["system"]]
    result = step(line, cluster, software)
    devices = step_plan(line).devices
    group = f"{line['model']}, {line['mode']}, {devices} devices, {line['system']}"
    yield _row(group, "step time, Calculon's", "s", float(line["step_s"]), result.step_time_s)
    if line["measured_s"]:
        yield _row(
            group, "step time, measured", "s", float(line["measured_s"]), result.step_time_s, 0.1
        )
    if cluster == "selene-a100":
        yield from _memory(group, line, result)


def _memory(group: str, line: Mapping[str, str], result: Result) -> Iterator[ReproducedFigure]:
    there = {kind: float(line[f"{kind}_bytes"]) / _GB for kind in
             ("weights", "gradient", "optimizer", "activation", "total")}  # fmt: skip
    ours = {kind: size / _GB for kind, size in _largest(result).items()}
    own, blocks = _parameters(line, ours["optimizer"])
    states = ours["weights"] + ours["optimizer"]
    yield _row(
        group, "weights and optimizer", "GB", there["weights"] + there["optimizer"], states,
        note=f"{states * (1 - blocks / own):.2f} GB of the embedding, there not counted",
    )  # fmt: skip
    yield _row(
        group, "gradients", "GB", there["gradient"], ours["gradients"],
        note=f"{_OURS} B for each of {own:.3f} G parameters; there {_THERE} B for {blocks:.3f} G"
        " and as much again for one block" + _SHARDED * (line["sharded"] == "true"),
    )  # fmt: skip
    yield _row(
        group, "activations", "GB", there["activation"], ours["activations"],
        note=f"published formula {_formula(line) / _GB:.2f} GB",
    )  # fmt: skip
    total = result.memory_bytes["total"] / _GB
    sum_ = states + ours["gradients"] + ours["activations"]
    yield _row(
        group, "total", "GB", there["total"], total,
        note=f"{sum_ - total:.2f} GB less than the kinds, which are not largest at one moment",
    )  # fmt: skip
    alike = states * blocks / own + there["gradient"] + ours["activations"]
    reason = _reason(line)
    yield _row(
        group, "total of blocks, gradients as there", "GB", there["total"], alike,
        None if reason else _TOLERANCE, reason,
    )  # fmt: skip


def _reason(line: Mapping[str, str]) -> str:
    """Say why the activations are not Calculon's, or nothing."""
    if line["recompute"] == "attn_only" and line["sequence"] == "off":
        return "activations: there about 2 B an element and layer less than the published formula"
    if line["recompute"] == "full" and line["sequence"] == "on":
        return "inputs of blocks are kept in parts here, whole there"
    return ""


def _largest(result: Result) -> dict[str, int]:
    """Most bytes of each kind on the fullest rank, each at its own moment."""
    timeline = result.details.timeline
    ranks = timeline.memory()
    fullest = max(range(len(ranks)), key=lambda rank: ranks[rank].peak_bytes)
    _, held = timeline.memory_profile(fullest)
    kinds = timeline.program.memory_kinds
    moving = [kinds.index(kind) for kind in ("activations", "workspace") if kind in kinds]
    largest = dict(zip(kinds, held.max(axis=0).tolist(), strict=True))
    return {**largest, "activations": int(held[:, moving].sum(axis=1).max())}


def _formula(line: Mapping[str, str]) -> float:
    """Bytes of activations by Korthikanti et al., 2022, equations 1 to 4, tables 2 and 3.

    Of the first stage, which keeps as many micro-batches as there are stages, and with several
    chunks a stage 1 + (p - 1)/(p m) times as much.
    """
    network, plan = decoder(line["model"]).network, step_plan(line)
    assert isinstance(network, Decoder)
    assert network.attention is not None
    s, h, a, t = network.sequence, network.hidden, network.attention.heads, plan.tensor
    scores = 0.0 if plan.recompute == "selective" else 5 * a * s / h
    if plan.recompute == "full":
        each = 2.0 / plan.sequence
    elif plan.sequence > 1:
        each = (34 + scores) / t
    else:
        each = 10 + (24 + scores) / t
    p, m = plan.pipeline, plan.virtual_stages
    held = min(p, plan.micro_batches) * (1 + (p - 1) / (p * m) if m > 1 else 1)
    return float(s * plan.micro_batch_size * h * each * network.layers / p * held)


def _parameters(line: Mapping[str, str], optimizer: float) -> tuple[float, float]:
    """Return 10⁹ parameters of the fullest rank, and of its blocks alone."""
    plan = step_plan(line)
    in_blocks = _in_blocks(line["model"])
    own = optimizer / _STATES * (plan.data if plan.zero_stage else 1)
    return own, in_blocks / (plan.tensor * plan.pipeline) / _GB


@lru_cache(maxsize=8)
def _in_blocks(model: str) -> int:
    """Count the parameters of all blocks."""
    tensors = decoder(model).training(1, "fp16-mixed").tensors
    return sum(
        tensor.elements
        for name, tensor in tensors.items()
        if tensor.role is Role.WEIGHT and name.startswith("blocks.")
    )


def _row(
    group: str, quantity: str, unit: str, there: float, ours: float,
    tolerance: float | None = None, note: str = "",
) -> ReproducedFigure:  # fmt: skip
    return ReproducedFigure(
        group=group,
        quantity=quantity,
        unit=unit,
        published=(there, there),
        predicted=ours,
        unfitted=ours,
        tolerance=tolerance,
        note=note,
    )
