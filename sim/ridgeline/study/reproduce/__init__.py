"""Published results computed anew: one module each, with the published figures beside it as data.

A reproduction is a module with a function ``reproduce() -> Reproduction``, or, of training steps,
``reproduce(software)``; the table below names it. Nothing of the published figures is in the code.
"""

from __future__ import annotations

from functools import cache
from importlib import import_module
from typing import Any

from ridgeline.errors import RidgelineError, nearest
from ridgeline.study.reproduce.table import FittedConstant, ReproducedFigure, Reproduction

REPRODUCTIONS = {
    "al-fares": "Strides on a tree and on a fat tree: Al-Fares et al., SIGCOMM 2008",
    "calculon": "Calculon's predictions for decoders, and ours: Isaev et al., SC 2023",
    "caterpillar": "Training on broadcast-grid cores: Li and Pedram, ASAP 2017",
    "das": "Data, model and hybrid parallelism on Xeon nodes: Das et al., 2016",
    "lee": "VGG-A on 128 Xeon nodes: Lee et al., HiPC 2017",
    "megatron": "Steps of Megatron-LM on 8 to 3,072 A100s: Narayanan et al., Korthikanti et al.",
    "gpipe": "Throughput by stages and micro-batches: Huang et al., NeurIPS 2019",
    "gpipe-memory": "Parameters and activations of AmoebaNet-D: Huang et al., NeurIPS 2019",
    "dark-memory": "What an access costs and a blocked product moves: Pedram et al., 2017",
    "recursive-checkpointing": "Steps reversed with few slots: Griewank and Walther, 2000",
    "recompute": "25 % more compute saves 80 % memory: Knowles, NIPS workshop 2017",
    "storage-depth": "Storage against depth, in step and pipelined: Pedram et al., 2018",
    "vdnn": "Training memory and offload of VGG networks: Rhu et al., MICRO 2016",
    "eyeriss": "AlexNet on a row-stationary array: Chen et al., JSSC 2017",
    "tpu-v1": "Six applications on TPU v1: Jouppi et al., ISCA 2017",
    "gemmini": "Matrix products on Gemmini's RTL",
    "gemm-accelerators": "Nine matrix-product machines at 45 nm: Pedram et al., IEEE TC 2012",
    "goyal": "ResNet-50 on 352 P100 over 50 Gb/s Ethernet: Goyal et al., 2017",
    "imagenet-records": "ImageNet by 1 to 2,048 devices: slide 43 of Pedram et al., DAWNBench",
    "asynchronous-sgd": "Waiting and staleness of SGD: order statistics and Little's law",
    "large-batches": "Accuracy over batch: Goyal et al., 2017; You et al., 2017",
    "deep-gradient-compression": "Bytes and speed-ups of sparse gradients: Lin et al., ICLR 2018",
    "dgx-1": "Links and rings of eight GPUs: NVIDIA DGX-1",
    "slips": "Twelve statements of documents and papers that do not agree with each other",
    "pipedream": "Configurations of VGG-16: Harlap et al., 2018",
    "goyal-crossover": "Ring against halving-doubling on 32 servers: Goyal et al., 2017",
    "nccl-all-reduce": "All-reduce on nodes of A100 and V100: nccl-tests, published with vTrain",
    "packet-vs-fluid": "Fluid flows beside htsim's packets on a fat tree of 128 hosts",
    "transport": "Hashes, pauses, marks and sprayed packets: ECMP, PFC, DCQCN, NDP",
}

__all__ = [
    "LONGEST", "REPRODUCTIONS", "FittedConstant", "ReproducedFigure", "Reproduction", "reproduce",
    "summary_of",
]  # fmt: skip


OF_RUNS = frozenset({"asynchronous-sgd", "deep-gradient-compression", "large-batches"})
"""Those of whole runs, in `ridgeline.training`, which this room does not know."""
LONGEST = frozenset({"imagenet-records", "calculon"})
"""Those that take longest, which several processes begin with."""
OF_STEPS = frozenset({"calculon", "das", "goyal", "gpipe", "lee"})
"""Those that simulate training steps, whose `reproduce` takes the name of a software stack."""


@cache
def reproduce(name: str, software: str | None = None) -> Reproduction:
    """Compute one published result anew, once in a process.

    Parameters
    ----------
    software
        Stack of its training steps, by name or path; None: as `programs.program`.

    Raises
    ------
    RidgelineError
        If there is no reproduction of this name, or it simulates no training step under a stack.
    """
    if name not in REPRODUCTIONS:
        raise RidgelineError(
            f"there is no reproduction {name!r}{nearest(name, REPRODUCTIONS)} "
            f"(there are: {', '.join(REPRODUCTIONS)})"
        )
    room = "ridgeline.training.reproductions" if name in OF_RUNS else __name__
    module = import_module(f"{room}.{name.replace('-', '_')}")
    if software is not None and name not in OF_STEPS:
        raise RidgelineError(
            f"the reproduction {name!r} has no training step to choose a stack for (these have:"
            f" {', '.join(sorted(OF_STEPS))})"
        )
    made = module.reproduce(software) if name in OF_STEPS else module.reproduce()
    assert isinstance(made, Reproduction)
    return made


def summary_of(name: str) -> dict[str, Any]:
    """Return what one line says of a reproduction (`Reproduction.summary`), in any process."""
    return reproduce(name).summary()
