"""A step of a decoder as a published table gives it: model, degrees, batch, recomputation."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache

from ridgeline.hardware.cluster import Cluster
from ridgeline.hardware.load import load_cluster
from ridgeline.parallel.plan.plan import Plan
from ridgeline.report.result import Result
from ridgeline.simulation import simulate
from ridgeline.study.reproduce.programs import program
from ridgeline.workload.files import load_network
from ridgeline.workload.model import Model

_RECOMPUTE = {"full": "full", "attn_only": "selective", "none": "none"}
_22B = {"layers": 48, "attention.heads": 64, "title": "Megatron GPT 22 B"}
"""Korthikanti et al., 2022, Table 3, as a change of the 18.4 B of Narayanan et al."""


@lru_cache(maxsize=8)
def decoder(name: str) -> Model:
    """Load a model of the catalogue, or the 22 B one, which is a change of one."""
    return load_network("megatron-18b", _22B) if name == "megatron-22b" else load_network(name)


@lru_cache(maxsize=4)
def machine(name: str) -> Cluster:
    """Load a cluster once."""
    return load_cluster(name)


def step_plan(line: Mapping[str, str]) -> Plan:
    """Return the plan of a line with the columns of ``calculon.csv``."""
    chunks = int(line["chunks"])
    return Plan(
        global_batch=int(line["batch"]),
        data=int(line["data"]),
        tensor=int(line["tensor"]),
        pipeline=int(line["pipeline"]),
        virtual_stages=chunks,
        schedule="interleaved" if chunks > 1 else "1f1b",
        micro_batch=int(line["micro_batch"]),
        recompute=_RECOMPUTE[line["recompute"]],
        sequence=int(line["tensor"]) if line["sequence"] == "on" else 1,
        zero_stage=int(line.get("sharded") == "true"),
        precision="fp16-mixed",
    )


def step(line: Mapping[str, str], cluster: str, software: str | None = None) -> Result:
    """Simulate the step of a line."""
    stack = program(software)
    return simulate(decoder(line["model"]), machine(cluster), step_plan(line), software=stack)
