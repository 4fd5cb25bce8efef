"""Golden results of plans with every field that describes software, to refactor against.

    python benchmarks/golden_software.py record OUT.json.gz
    python benchmarks/golden_software.py check FILE.json.gz [--rows N]
    python benchmarks/golden_software.py renew FILE.json.gz MACHINE [MACHINE ...]

``record`` draws cases by a fixed seed (network x machine x plan), keeps those that simulate, and
writes what came out: seconds, joules, bytes and utilisations of the step. Plans have the fields of
when software was part of a `Plan`; only that code can record. Every value of every field is drawn
for itself until it is in `LEAST` cases, and, where it is not the default, until `MOVED` of them
came out otherwise without it; values that are in fewer cases are printed with a "!".

``check`` runs the cases again (N of them, evenly spaced) with the code that is on the path, and
prints those that differ by more than 1e-12 of themselves, parts of the time by as much of the step.
"""

from __future__ import annotations

import argparse
import gzip
import importlib.util
import json
import math
import random
import sys
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache, lru_cache, partial
from pathlib import Path
from types import ModuleType
from typing import Any

from ridgeline import Plan, load_cluster, load_model, simulate
from ridgeline.errors import RidgelineError

Case = dict[str, Any]
"""model, overrides, cluster, cluster_overrides, plan."""
Found = dict[str, Any]

SEED = 20
LEAST, MOVED = 6, 4
ATTEMPTS = 90
"""Of a value of a field, at most, after which it stays as it is."""
PLAIN, MIXED = 80, 160
"""Further cases without fields of software, and with many at once."""
TOLERANCE = 1e-12
TOY = "toy"
"""The node of tests/machines.py, four devices in a ring."""

# ---------------------------------------------------------------------------------------------
# Cases as they are run


def _simulate(case: Case) -> Found:
    """Run a case and return what is compared. All that depends on the version of the code is here.

    Software of a case is that of its plan, beside a stack without settings; devices are all alike
    unless the plan says ``spread``.
    """
    plan, cluster = case["plan"], case["cluster"]
    known = case.get("cluster_overrides", {})
    machine = _cluster(cluster, _key(known), alike="spread" not in plan)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        model = _model(case["model"], _key(case["overrides"]))
        result = simulate(model, machine, Plan(**plan), **_software())
    return {
        "step_time_s": result.step_time_s,
        "energy_j": result.energy_j["total"],
        "memory_bytes": result.memory_bytes["total"],
        "mfu": result.mfu,
        "hfu": result.hfu,
        "time_s": dict(result.time_s),
    }


@cache
def _software() -> dict[str, Any]:
    """Return the argument for a stack without settings; nothing where there are no stacks."""
    if importlib.util.find_spec("ridgeline.software") is None:
        return {}
    from ridgeline.software import Stack

    return {"software": Stack(name="neutral")}


def _key(overrides: Mapping[str, Any]) -> str:
    return json.dumps(overrides, sort_keys=True)


@lru_cache(maxsize=64)
def _model(name: str, overrides: str) -> Any:
    return load_model(name, json.loads(overrides))


@lru_cache(maxsize=64)
def _cluster(name: str, overrides: str, *, alike: bool) -> Any:
    given = json.loads(overrides)
    place = str(_toy()) if name == TOY else name
    if alike:
        try:
            return load_cluster(place, {**given, "device_speed_std": 0})
        except RidgelineError:  # the field came with stacks
            pass
    return load_cluster(place, given)


@cache
def _toy() -> Path:
    path = Path(__file__).parents[1] / "tests" / "machines.py"
    spec = importlib.util.spec_from_file_location("golden_machines", path)
    assert spec is not None
    assert spec.loader is not None
    module: ModuleType = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    node: Path = module.write_machine(Path(tempfile.mkdtemp(prefix="golden-")))
    return node


# ---------------------------------------------------------------------------------------------
# Records


def read(path: str | Path) -> list[Case]:
    """Return the cases of a record, each with what was ``found``."""
    with gzip.open(path, "rt", encoding="utf-8") as file:
        cases: list[Case] = json.load(file)["cases"]
    return cases


def write(path: str | Path, cases: Sequence[Case]) -> None:
    """Write a record, the same bytes for the same cases."""
    text = json.dumps({"seed": SEED, "cases": cases}, separators=(",", ":"))
    Path(path).write_bytes(gzip.compress(text.encode(), mtime=0))


def sample(cases: Sequence[Case], rows: int) -> list[tuple[int, Case]]:
    """Return so many evenly spaced cases, with their places."""
    rows = min(rows, len(cases))
    return [(place := i * len(cases) // rows, cases[place]) for i in range(rows)]


def differences(case: Case) -> list[str]:
    """Run a case and say what differs from what was found; nothing where all is as it was."""
    try:
        now = _simulate(case)
    except (RidgelineError, TypeError) as error:
        return [f"{type(error).__name__}: {error}"]
    return list(_differences(case["found"], now))


def _differences(then: Found, now: Found) -> Iterator[str]:
    for name in ("step_time_s", "energy_j", "memory_bytes", "mfu", "hfu"):
        if not math.isclose(then[name], now[name], rel_tol=TOLERANCE, abs_tol=0.0):
            yield f"{name} {then[name]!r} -> {now[name]!r}"
    room = TOLERANCE * then["step_time_s"]
    for part in sorted({*then["time_s"], *now["time_s"]}):
        old, new = then["time_s"].get(part), now["time_s"].get(part)
        if old is None or new is None or abs(old - new) > room:
            yield f"time_s[{part}] {old!r} -> {new!r}"


def named(case: Case) -> bool:
    """Whether decision 0111 names why a case differs: sums that stay narrow where products add."""
    plan = case["plan"]
    return plan.get("adding") == "products" and plan.get("gradients") in {"narrow", "flat"}


def described(case: Case) -> str:
    """One line of a case."""
    fields = (case["model"], case["overrides"], case["cluster"], case.get("cluster_overrides", {}))
    return " ".join(str(field) for field in fields if field) + f" Plan(**{case['plan']})"


def check(path: str, rows: int | None) -> int:
    """Compare and print; the exit status."""
    cases, begun, wrong, other = read(path), time.perf_counter(), 0, 0
    chosen = sample(cases, rows or len(cases))
    for place, case in chosen:
        if found := differences(case):
            if named(case):
                other += 1
                continue
            wrong += 1
            print(f"{place}: {described(case)}\n    " + "\n    ".join(found))
    took = time.perf_counter() - begun
    same = len(chosen) - wrong - other
    print(
        f"{same} of {len(chosen)} cases as recorded, {other} differ as decision 0111 says,"
        f" {wrong} differ; {took:.0f} s"
    )
    return int(wrong > 0)


def renew(path: str, machines: Sequence[str]) -> int:
    """Run the cases of some machines again and write what they come out as now; the exit status.

    For a decision that changes a model on purpose: its text says which machines it concerns.
    """
    cases = read(path)
    for case in cases:
        if case["cluster"] in machines and not named(case):
            case["found"] = _simulate(case)
    write(path, cases)
    return 0


# ---------------------------------------------------------------------------------------------
# Networks and machines

_SHORT = {"layers": 4, "sequence": 512}
NETWORKS: dict[str, list[tuple[str, dict[str, Any]]]] = {
    "cnn": [
        ("resnet50", {}), ("resnet18", {}), ("resnet-cifar-20", {}), ("alexnet", {}),
        ("vgg-a", {}), ("mobilenet", {}), ("googlenet", {}), ("vgg16", {}),
    ],
    "unet": [("unet", {}), ("nnunet-2d", {}), ("unet-3d", {})],
    "rnn": [
        ("lstm-lm", {}), ("gnmt", {"layers": 3}), ("gnmt", {"layers": 3, "kernel": "eager"}),
        ("deepspeech2", {"layers": 2}),
    ],
    "bert": [
        ("bert-base", {"layers": 4, "sequence": 128, "masked": 20}),
        ("bert-large", {"layers": 4}),
        ("bert-base", {"layers": 2, "attention.kernel": "flash"}),
        ("bert-base", {"layers": 2, "attention.kernel": "eager", "separate_loss": "log-softmax"}),
    ],
    "decoder": [
        ("gpt2", {"layers": 4}), ("gpt3-350m", _SHORT), ("llama2-7b", _SHORT),
        ("llama3.2-1b", _SHORT), ("gpt3-1.3b", {"layers": 8, "sequence": 1024}),
        ("gpt2", {"layers": 4, "separate_loss": True, "tables": "computed"}),
        ("gpt3-1.3b", {**_SHORT, "attention.kernel": "flash"}),
        ("llama2-7b", {**_SHORT, "attention.kernel": "flash", "separate_loss": True}),
    ],
    "mixture": [
        ("mixtral-8x7b", _SHORT), ("qwen3-30b-a3b", _SHORT),
        ("mixtral-8x7b", {**_SHORT, "attention.kernel": "flash", "separate_loss": True}),
        ("qwen3-30b-a3b", {"layers": 2, "sequence": 1024, "attention.kernel": "flash"}),
    ],
    "latent": [
        ("deepseek-v3", {**_SHORT, "mixture.first_dense": 1, "mixture.experts": 32}),
        ("deepseek-v2-lite", _SHORT),
        ("deepseek-v3", {"layers": 4, "sequence": 1024, "latent_attention.kernel": "flash"}),
    ],
    "vision": [("vit-b16", {"layers": 4}), ("dit-s2", {"layers": 4}), ("swin-tiny", {})],
    "pairs": [
        ("t5-small", {"encoder_layers": 2, "decoder_layers": 2}),
        ("transformer-base", {"encoder_layers": 2, "decoder_layers": 2}),
        ("transformer-xl-base", {"layers": 3}),
        ("transformer-xl-base", {"layers": 3, "kernel": "eager"}),
    ],
    "tables": [
        ("dlrm", {"tables": [100000, 39043, 17289, 7420, 3, 1543]}), ("ncf", {}),
        ("wide-and-deep", {}),
    ],
    "mlp": [("mlp", {}), ("recoder-ml20m", {})],
}  # fmt: skip
KINDS = tuple(NETWORKS)
IMAGES = ("cnn", "unet")
TOKENS = ("bert", "decoder", "mixture", "latent", "pairs")
EXPERTS = ("mixture", "latent")
BLOCKS = ("bert", "decoder", "vision", "pairs")

FLEX = {
    "node.devices_forward": True,
    "device.engines.matrix.rates": {
        "fp32": "10 TFLOP/s", "fp16": "40 TFLOP/s", "flex16+5": "40 TFLOP/s",
    },
    "device.engines.matrix.energy": {
        "fp32": "flop.fp32", "fp16": "flop.fp16", "flex16+5": "flop.fp16",
    },
    "device.engines.vector.rates": {"fp32": "1 TFLOP/s", "flex16+5": "2 TFLOP/s"},
    "device.engines.vector.energy": {"fp32": "flop.fp32", "flex16+5": "flop.fp16"},
}  # fmt: skip
"""A toy that computes in the format which no device that ships has, and passes messages on."""
MACHINES: list[tuple[str, dict[str, Any], int]] = [
    ("dgx1-v100", {}, 8), ("dgx1-v100-edr", {}, 32), ("dgx2-edr", {}, 64),
    ("selene-a100", {}, 64), ("perlmutter", {}, 16), ("aws-p4d-efa", {}, 32),
    ("superpod-h100", {}, 64), ("h100-roce-pod", {}, 64), ("hgx-b200-ndr", {}, 32),
    ("gb200-nvl72-ndr", {}, 64), ("mi300x-roce", {}, 32), ("frontier", {}, 32),
    ("tpu-v3-pod", {}, 32), ("tpu-v4-pod", {}, 64), ("tpu-v5p-pod", {}, 64),
    ("tpu-v5e-pod", {}, 64), ("tpu-v5e-slices", {}, 64), ("hls-gaudi2-roce", {}, 16),
    ("hls-1h-roce", {}, 16), ("pcie3-8gpu-10gbe", {"node.device": "k80"}, 32),
    ("pcie3-8gpu", {}, 8), ("big-basin-p100-50gbe", {}, 32), ("titan-gemini", {}, 32),
    ("stampede2-skx-opa", {}, 16), ("trn1-32xlarge", {}, 16), ("k80", {}, 1), ("m40", {}, 1),
    ("v100-sxm2-32gb", {}, 1), ("a100-sxm4-80gb", {}, 1), (TOY, {}, 4), (TOY, FLEX, 4),
]  # fmt: skip
OLD = ("k80", "m40", "pcie3-8gpu", "pcie3-8gpu-10gbe", "titan-gemini", "big-basin-p100-50gbe")
CORES = ("dgx1-v100", "dgx1-v100-edr", "selene-a100", "superpod-h100", "v100-sxm2-32gb")
BEYOND = ("dgx1-v100-edr", "superpod-h100", "selene-a100", "hgx-b200-ndr", "mi300x-roce")
FORMATS = ("fp16-mixed", "bf16-mixed")

# ---------------------------------------------------------------------------------------------
# Plans: what values each field has, and what there must be besides

OVERRIDES: dict[str, tuple[tuple[Any, ...], Sequence[str]]] = {
    "attention.kernel": (
        ("separate", "eager", "flash", "flash-1"), ("decoder", "mixture", "bert"),
    ),
    "latent_attention.kernel": (("separate", "flash"), ("latent",)),
    "separate_loss": ((False, True, "log-softmax"), TOKENS),
    "tables": (("master", "computed"), ("decoder",)),
}  # fmt: skip
"""Fields of networks that state software, their default first, and kinds of these networks."""

MICRO = {"micro": 1, "batches": (4, 8)}
DATA = {"data": (4, 8)}
ZERO3 = {"data": (4, 8), "sharding": 3}
STAGES = {"pipeline": (2, 4), "batches": (4, 8), "micro": 1}
DEEP = {"pipeline": 4, "batches": 8, "micro": 1}
BOTH = {"tensor": (2, 4), "pipeline": (2, 4), "batches": (4,), "micro": 1}
SHARED = {"tensor": (2, 4), "sequence": "on"}
RANKS = {"data": (4, 8, 16), "expert": (2, 4, 8)}

Need = dict[str, Any]
FIELDS: dict[str, tuple[tuple[Any, ...], Sequence[str], Need]] = {
    # field: values, kinds of networks, what else the plan has ("on": machines)
    "issue": ((0.0, 2e-6, "8 us", 30e-6), KINDS, {}),
    "issue_ahead": ((True, False), KINDS, {"issue": (5e-6, 2e-5)}),
    "overlap": ((True, False, "gathers"), KINDS, {**DATA, "sharding": (0, 2, 3)}),
    "contention": ((False, True), (*IMAGES, *TOKENS), {**DATA, "bucket": (1e6, "25 MiB")}),
    "overlap_tensor": ((False, True, "gathers", "pieces"), (*TOKENS, "vision"), SHARED),
    "bucket": ((1e5, "1 MB", 26214400, "40 MB", "2 GB"), KINDS, DATA),
    "bucket_per_rank": ((0.0, 1e5, "4 MB", "64 MB"), KINDS, {**DATA, "bucket": (1e5, "1 MB")}),
    "bucket_copies": ((False, True), KINDS, DATA),
    "reduction": (("", "bf16", "fp16"), KINDS, DATA),
    "gradient_passes": ((0, 1, 3, 5), KINDS, {}),
    "update_passes": ((0, 1, 2, 4), KINDS, {"sharding": (0, 1)}),
    "checks": ((False, True), KINDS, {"precision": (None, "fp16-mixed")}),
    "cycle": ((0.0, 1e-3, "5 ms"), KINDS, {**DATA, "bucket": ("1 MB", "64 MB")}),
    "expert_products": (("together", "apart"), EXPERTS, {"issue": (5e-6, 2e-5)}),
    "layout": (
        ("channels-last", "channels-first"), IMAGES,
        {"precision": (*FORMATS, None), "on": CORES},
    ),
    "workspace": ((None, 0, "8 MB", "64 MB", 4e9), IMAGES, {"on": OLD}),
    "library": ((None, "cudnn2", "cudnn4", "cudnn5", "caffe", "torch7"), IMAGES, {"on": OLD}),
    "norms": (("shared", "by-channel", "fused"), ("cnn", "unet"), {}),
    "heads": (("strided", "copied"), (*TOKENS, "vision"), {}),
    "functions": (("fused", "primitive", "eager", "routed"), (*TOKENS, "vision", "cnn"), {}),
    "data_gradients": ((False, True), (*IMAGES, "rnn", "mlp", "tables", "vision"), {}),
    "spread": ((0.0, 0.01, 0.03, 0.1), KINDS, DATA),
    "unequal": ((0.0, 0.05, 0.3), KINDS, DATA),
    "gradients": (
        ("wide", "narrow", "flat", "both"), (*IMAGES, *TOKENS),
        {**MICRO, "precision": FORMATS, "data": (1, 2, 4), "sharding": (0, 1)},
    ),
    "updates": (
        ("together", "chunks", "apart", "graph"), KINDS,
        {"optimizer": ("adam", "sgd-momentum", None), "issue": (0.0, 5e-6)},
    ),
    "adding": (("kernels", "products"), KINDS, MICRO),
    "pieces": (("both", "forward", "none"), (*TOKENS, "vision"), BOTH),
    "keep_outputs": ((False, True), (*TOKENS, *IMAGES), STAGES),
    "buffers": ((0, 4, 5, 8, 9), (*TOKENS, *IMAGES, "vision"), DEEP),
    "reserved": ((0.0, "1 GB", 3.5e9), KINDS, {}),
    "allocator": (("exact", "caching"), KINDS, {"pipeline": (1, 1, 2)}),
    "regather": (("all", "blocks"), BLOCKS, ZERO3),
    "gather_copies": ((False, True), KINDS, ZERO3),
    "sharding": ((0, 1, 2, 3), KINDS, DATA),
    "sharding_ranks": ((0, 2, 4), (*IMAGES, *BLOCKS), {"data": (8, 16), "sharding": (2, 3)}),
    "statistics": (("own", "shared"), ("cnn",), {"spatial": ("2", "4", "2x2")}),
    "imbalance": ((1.0, 1.2, 2.0), EXPERTS, RANKS),
    "dispatch": (
        ("choices", "nodes"), EXPERTS, {"data": 16, "expert": 16, "on": BEYOND},
    ),
    "row_sums": (("gathered", "atomic"), EXPERTS, {"expert": (1, 2)}),
    "overlap_expert": (
        (False, True), EXPERTS,
        {"data": (2, 4), "expert": 2, "micro": 1, "batches": 8, "pipeline": (2, 2, 4)},
    ),
    "expert_tensor": (
        (0, 1, 2), EXPERTS, {"tensor": 2, "sequence": "on", "data": (2, 4, 8), "expert": (2, 4)},
    ),
    "context_mode": (("gather", "ring"), ("decoder", "mixture", "vision"), {"context": (2, 4)}),
    "chunks": (
        (1, 2, 4), BLOCKS,
        {"pipeline": 2, "batches": (4, 8), "micro": 1, "schedule": "interleaved"},
    ),
    "cut": (("even", "layers", "ends"), ("bert", "decoder", "mixture", "latent"), STAGES),
    "global_batch": ((8, 32, 64), KINDS, {"batches": 0}),
    "data": ((1, 2, 4, 16), KINDS, {}),
    "tensor": ((1, 2, 4, 8), (*TOKENS, "mlp", "vision"), {}),
    "tensor_rows": ((1, 2), ("bert", "decoder", "vision", "mlp"), {"tensor": 4}),
    "tensor_mode": (
        ("gather", "summa", "stationary"), ("bert", "decoder", "vision"),
        {"tensor": (4, 8), "tensor_rows": 2},
    ),
    "sequence": (("on", "off", 1), (*TOKENS, "vision"), {"tensor": (2, 4)}),
    "context": ((1, 2, 4), ("decoder", "mixture", "vision", "bert"), {}),
    "spatial": (("1", "2", "4", "2x2"), ("cnn",), {}),
    "pipeline": ((1, 2, 4), (*TOKENS, *IMAGES, "mlp"), {"batches": (4, 8), "micro": 1}),
    "replicas": (
        ("", "2-1", "3-1", "2-1-1"), ("cnn", "mlp", "decoder", "bert"),
        {"batches": 12, "micro": 1},
    ),
    "expert": ((1, 2, 4, 8), EXPERTS, {"data": (8, 16)}),
    "micro_batch": ((None, 1, 2), KINDS, {"batches": 0}),
    "precision": (
        (None, "fp32", "tf32", "fp16-mixed", "bf16-mixed", "fp16-autocast", "bf16-autocast",
         "fp8-mixed", "fp8-dynamic", "nvfp4-mixed", "int8-mixed", "flex16+5", "bf16-as-fp32",
         "fp16-as-fp32"),
        (*TOKENS, *IMAGES, "mlp"), {},
    ),
    "optimizer": (
        (None, "sgd", "sgd-momentum", "adam", "adamw", "rmsprop", "adagrad", "lars", "lamb",
         "adafactor"),
        KINDS, {},
    ),
    "schedule": (
        ("1f1b", "gpipe", "interleaved", "zero-bubble", "zero-bubble-h2", "zero-bubble-v",
         "pipedream", "continuous"),
        (*BLOCKS, "mlp", "cnn"), {"pipeline": (2, 4), "batches": 8, "micro": 1},
    ),
    "recompute": (
        ("none", "full", "selective", "alternate", "products", "projections", "sqrt", "optimal"),
        (*TOKENS, "cnn", "vision"), {},
    ),
    "offload": (("none", "all", "conv"), (*IMAGES, "decoder"), {}),
    "layers": (
        ("", "fc*:tensor=4", "fc*:tensor=2;*:tensor=1"), ("cnn", "mlp"),
        {"tensor": 4, "batches": 8},
    ),
    "order": (
        ("tensor-context-data-pipeline", "data-tensor-context-pipeline",
         "pipeline-tensor-context-data", "tensor-data-context-pipeline"),
        TOKENS, {"tensor": 2, "pipeline": 2, "data": (2, 4), "batches": 4, "micro": 1},
    ),
}  # fmt: skip
STRUCTURE = (
    "global_batch", "data", "tensor", "tensor_rows", "tensor_mode", "sequence", "context",
    "spatial", "pipeline", "replicas", "chunks", "expert", "expert_tensor", "micro_batch",
    "precision", "optimizer", "schedule", "sharding", "sharding_ranks", "recompute", "offload",
    "layers", "order", "imbalance", "context_mode",
)  # fmt: skip
"""Fields that describe the distribution, which are not drawn besides others."""
SOFTWARE = tuple(name for name in FIELDS if name not in STRUCTURE)
ALSO: dict[tuple[str, Any], Need] = {  # what values need beyond what their field does
    ("overlap_tensor", "pieces"): {"precision": (*FORMATS, None)},
    ("functions", "routed"): {"kinds": EXPERTS},
    ("norms", "fused"): {"kinds": ("cnn",)},
    ("offload", "conv"): {"kinds": IMAGES},
    ("layers", "fc*:tensor=4"): {"network": ("alexnet", "vgg-a", "vgg16", "mlp")},
    ("layers", "fc*:tensor=2;*:tensor=1"): {"network": ("alexnet", "vgg-a", "vgg16", "mlp")},
    ("chunks", 1): {"schedule": ("1f1b", "gpipe")},
    ("schedule", "interleaved"): {"chunks": 2},
    ("precision", "tf32"): {"on": ("selene-a100", "superpod-h100", "hgx-b200-ndr")},
    ("precision", "fp8-mixed"): {
        "on": ("superpod-h100", "hgx-b200-ndr", "mi300x-roce", "hls-gaudi2-roce"),
    },
    ("precision", "fp8-dynamic"): {"on": ("superpod-h100", "hgx-b200-ndr", "mi300x-roce")},
    ("precision", "nvfp4-mixed"): {"on": ("hgx-b200-ndr", "gb200-nvl72-ndr")},
    ("precision", "int8-mixed"): {
        "on": ("tpu-v5e-pod", "superpod-h100", "selene-a100", "tpu-v5p-pod"),
    },
    ("precision", "bf16-as-fp32"): {"on": OLD},
    ("precision", "fp16-as-fp32"): {"on": OLD},
    ("precision", "flex16+5"): {"on": (TOY,)},
    ("order", "tensor-data-context-pipeline"): {"context": 2, "kinds": ("decoder", "mixture")},
    ("sequence", 1): {"tensor": (1, 2)},
    ("recompute", "selective"): {"kinds": TOKENS},
    ("replicas", "2-1"): {"schedule": ("1f1b", "pipedream", "gpipe")},
    ("global_batch", 8): {"data": (1, 2, 4)},
}  # fmt: skip


SAME: dict[str, tuple[Any, ...]] = {
    "sequence": ("off",), "workspace": (4e9,), "library": ("cudnn5",), "expert_tensor": (2,),
    "global_batch": (8, 32, 64),
}  # fmt: skip
"""Values that do as much as the default does, or nothing of their own."""


def _draw(rng: random.Random, value: Any) -> Any:
    return rng.choice(value) if isinstance(value, tuple) else value


def _number(value: Any, default: int = 1) -> int:
    return value if isinstance(value, int) and value else default


def _machine(rng: random.Random, devices: int, on: Sequence[str]) -> tuple[str, dict[str, Any]]:
    fitting = [m for m in MACHINES if m[2] >= devices and (not on or m[0] in on)]
    if not fitting:
        most = max(m[2] for m in MACHINES)
        fitting = [m for m in MACHINES if m[2] >= min(devices, most)]
    name, overrides, _ = rng.choice(fitting)
    return name, overrides


def _network(rng: random.Random, kind: str, names: Sequence[str]) -> tuple[str, dict[str, Any]]:
    if names:
        of = [n for k in KINDS for n in NETWORKS[k] if n[0] in names]
        return rng.choice(of)
    return rng.choice(NETWORKS[kind])


def _background(rng: random.Random, kind: str) -> Need:
    """Draw a distribution that suits most networks of a kind."""
    devices = rng.random()
    found: Need = {"data": rng.choice((1, 1, 2, 4, 8))}
    if kind in {*TOKENS, "vision"} and devices < 0.4:
        found |= {"tensor": rng.choice((2, 2, 4)), "sequence": rng.choice(("on", "off"))}
    if kind not in {"rnn", "tables"} and 0.3 < devices < 0.55:
        found |= {"pipeline": rng.choice((2, 2, 4)), "micro": 1, "batches": rng.choice((4, 8))}
    if kind in EXPERTS and found["data"] > 1 and rng.random() < 0.7:
        found["expert"] = 2
    if rng.random() < 0.2:
        found["sharding"] = rng.choice((1, 2, 3))
    if rng.random() < 0.15:
        found["recompute"] = rng.choice(("full", "selective", "alternate"))
    if rng.random() < 0.6:
        found["precision"] = rng.choice((*FORMATS, "fp16-mixed"))
    return found


def _case(rng: random.Random, kinds: Sequence[str], need: Need, fields: Mapping[str, Any]) -> Case:
    """Draw a case of a network of some kind whose plan has what is needed, and these fields."""
    kind = rng.choice(tuple(need.get("kinds", kinds)))
    model, overrides = _network(rng, kind, need.get("network", ()))
    plan = _background(rng, kind) if rng.random() < 0.5 else {}
    said = {k: _draw(rng, v) for k, v in need.items() if k not in {"kinds", "network", "on"}}
    plan = {**plan, **said, **fields}
    batches = _number(plan.pop("batches", None), rng.choice((1, 1, 2, 4)))
    micro = plan.pop("micro", None)
    if micro is not None and "micro_batch" not in plan:
        plan["micro_batch"] = micro
    if plan.get("replicas"):
        plan.pop("data", None)
        plan.pop("pipeline", None)
    if "global_batch" not in plan:
        of_rank = batches * _number(plan.get("micro_batch"), rng.choice((1, 1, 4)))
        plan["global_batch"] = _number(plan.get("data")) * of_rank
    devices = math.prod(
        _number(plan.get(name)) for name in ("data", "tensor", "context", "pipeline")
    ) * math.prod(int(n) for n in plan.get("spatial", "1").split("x"))
    devices *= sum(int(n) for n in plan.get("replicas", "").split("-") if n) or 1
    cluster, known = _machine(rng, devices, need.get("on", ()))
    unset = ("data", "tensor", "context", "pipeline", "expert")
    plan = {k: v for k, v in plan.items() if k in fields or k not in unset or v != 1}
    case: Case = {"model": model, "overrides": dict(overrides), "cluster": cluster}
    if known:
        case["cluster_overrides"] = known
    return {**case, "plan": plan}


def _value(rng: random.Random, field: str) -> Any:
    return rng.choice(FIELDS[field][0])


def _besides(rng: random.Random, field: str) -> dict[str, Any]:
    """Draw further fields of software: none, some or many."""
    count = rng.choice((0, 0, 1, 2, 3, 6))
    others = [name for name in SOFTWARE if name not in {field, "buffers"}]
    return {name: _value(rng, name) for name in rng.sample(others, count)}


# ---------------------------------------------------------------------------------------------
# Recording


class Recorder:
    """Cases that simulate, and how often each value of each field is in them."""

    def __init__(self) -> None:
        self.cases: list[Case] = []
        self.seen: set[str] = set()
        self.given: Counter[tuple[str, str]] = Counter()
        self.moved: Counter[tuple[str, str]] = Counter()
        self.failed: Counter[str] = Counter()

    def add(self, case: Case) -> Case | None:
        """Run a case and keep it, or None if it does not simulate, or is there already."""
        text = json.dumps(case, sort_keys=True)
        if text in self.seen:
            return None
        self.seen.add(text)
        begun = time.perf_counter()
        try:
            found = _simulate(case)
        except RidgelineError as error:
            self.failed[str(error)[:60]] += 1
            return None
        except Exception as error:  # a mistake of the code, which is not what is recorded here
            self.failed[f"{type(error).__name__}: {error}"] += 1
            print(f"{type(error).__name__}: {described(case)}", file=sys.stderr)
            return None
        if time.perf_counter() - begun > 5:
            print(f"slow: {described(case)}", file=sys.stderr)
        kept = {**case, "found": found}
        self.cases.append(kept)
        for name, value in (*case["plan"].items(), *case["overrides"].items()):
            self.given[name, repr(value)] += 1
        return kept

    def matters(self, case: Case, part: str, field: str) -> bool:
        """Tell whether a kept case comes out otherwise, or fails, without one of its fields."""
        fields = {name: value for name, value in case[part].items() if name != field}
        try:
            without = _simulate({**case, part: fields})
        except RidgelineError:
            return True
        return bool(without != case["found"])

    def reach(
        self, field: str, value: Any, part: str, draw: Callable[[], Case], *, moves: bool
    ) -> None:
        """Draw cases until a value is in enough of them, and has moved enough of them."""
        key = (field, repr(value))
        for _ in range(ATTEMPTS):
            if self.given[key] >= LEAST and (not moves or self.moved[key] >= MOVED):
                return
            kept = self.add(draw())
            if kept and moves and field in kept[part] and self.matters(kept, part, field):
                self.moved[key] += 1


def _with_field(rng: random.Random, field: str, value: Any) -> Case:
    _, kinds, need = FIELDS[field]
    more: Need = ALSO.get((field, value), {})
    besides = _besides(rng, field) if rng.random() < 0.5 else {}
    return _case(rng, kinds, {**need, **more}, {**besides, field: value})


def _with_override(rng: random.Random, field: str, value: Any) -> Case:
    case = _case(rng, OVERRIDES[field][1], {}, _besides(rng, ""))
    case["overrides"][field] = value
    return case


def _plain(recorder: Recorder) -> None:
    rng, kept = random.Random(SEED), len(recorder.cases)
    while len(recorder.cases) < kept + PLAIN:
        kind = rng.choice(KINDS)
        recorder.add(_case(rng, [kind], _background(rng, kind), {}))


def _mixed(recorder: Recorder) -> None:
    rng, kept = random.Random(f"{SEED} mixed"), len(recorder.cases)
    while len(recorder.cases) < kept + MIXED:
        kind = rng.choice(KINDS)
        fields = {name: _value(rng, name) for name in rng.sample(SOFTWARE, rng.randint(6, 20))}
        recorder.add(_case(rng, [kind], _background(rng, kind), fields))


def _cases() -> Recorder:
    recorder = Recorder()
    missing = set(Plan.model_fields) ^ set(FIELDS)
    if missing:
        raise SystemExit(f"fields of Plan are not those of here: {', '.join(sorted(missing))}")
    _plain(recorder)
    for field, (values, *_) in FIELDS.items():
        default = Plan.model_fields[field].default
        for value in values:
            rng = random.Random(f"{SEED} {field} {value!r}")
            draw = partial(_with_field, rng, field, value)
            moves = value not in {default, *SAME.get(field, ())}
            recorder.reach(field, value, "plan", draw, moves=moves)
    for field, (values, _) in OVERRIDES.items():
        for value in values:
            rng = random.Random(f"{SEED} {field} {value!r}")
            draw = partial(_with_override, rng, field, value)
            recorder.reach(field, value, "overrides", draw, moves=value != values[0])
    _mixed(recorder)
    return recorder


def _coverage(recorder: Recorder) -> Iterator[str]:
    for field, (values, *_) in (*FIELDS.items(), *OVERRIDES.items()):
        parts = []
        for value in values:
            key = (field, repr(value))
            few = "!" if recorder.given[key] < LEAST - 1 else ""
            parts.append(f"{value!r}: {recorder.given[key]}/{recorder.moved[key]}{few}")
        yield f"{field}: {', '.join(parts)}"


def _steady(cases: Sequence[Case]) -> list[Case]:
    """Return the cases that come out the same after others, in two orders, as when recorded."""
    kept = [case for case in cases if not differences(case)]
    steady = [case for case in reversed(kept) if not differences(case)][::-1]
    for case in cases:
        if case not in steady:
            print(f"  left out, depends on what ran before: {described(case)}")
    return steady


def record(path: str) -> int:
    """Write a record, and print how often each value is in it / was seen to move its result."""
    begun = time.perf_counter()
    recorder = _cases()
    for line in _coverage(recorder):
        print(line)
    for text, count in recorder.failed.most_common(25):
        print(f"  left out {count}: {text}")
    random.Random(SEED).shuffle(recorder.cases)
    write(path, _steady(recorder.cases))
    took, size = time.perf_counter() - begun, Path(path).stat().st_size
    print(f"{len(read(path))} cases, {size / 1000:.0f} kB, {took:.0f} s")
    return 0


def main() -> int:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    verbs = parser.add_subparsers(dest="verb", required=True)
    verbs.add_parser("record").add_argument("path")
    checking = verbs.add_parser("check")
    checking.add_argument("path")
    checking.add_argument("--rows", type=int)
    renewing = verbs.add_parser("renew")
    renewing.add_argument("path")
    renewing.add_argument("machines", nargs="+")
    given = parser.parse_args()
    if given.verb == "renew":
        return renew(given.path, given.machines)
    return record(given.path) if given.verb == "record" else check(given.path, given.rows)


if __name__ == "__main__":
    sys.exit(main())
