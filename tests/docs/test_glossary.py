"""The glossary names modules that exist, and no two public classes share a name."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from pathlib import Path

import pytest

import ridgeline

PACKAGE = Path(ridgeline.__file__).parent
PAGE = Path(__file__).parents[2] / "docs" / "glossary.md"


def test_every_module_of_the_glossary_exists() -> None:
    named = re.findall(r"`([a-z_0-9/]+(?:\.py|/))`", PAGE.read_text("utf-8").split("##", 1)[1])
    assert len(named) > 80
    assert not [name for name in named if not (PACKAGE / name).exists()]


MECHANISMS = {
    # what a reader looks for: the file that the row with these words names, what is defined there
    "all-reduce choice": ("parallel/comm/collective_selection.py", "class|def"),
    "wave quantization": ("kernels/wave_quantization.py", "waves"),
    "1F1B": ("parallel/schedule/one_f_one_b.py", "def one_f_one_b"),
    "interleaved 1F1B": ("parallel/schedule/interleaved.py", "def interleaved"),
    "zero bubble": ("parallel/schedule/zero_bubble.py", "def zero_bubble"),
    "ZeRO": ("parallel/emit/zero.py", "gather"),
    "FSDP gathers": ("parallel/emit/zero.py", "gather"),
    "allocator, rounding": ("parallel/memory/allocator.py", "512"),
    "gradient buckets": ("parallel/emit/buckets.py", "bucket"),
    "sharding axes": ("workload/sharding_axes.py", "class OpAxes"),
    "op kind": ("workload/ops/", "op_kind"),
    "ring attention": ("parallel/sharding/ring_attention.py", "def"),
    "halo": ("parallel/sharding/halo.py", "def halo_rows"),
    "expert parallelism": ("parallel/sharding/experts.py", "def"),
    "expert all-to-all": ("network/expert_exchange.py", "dispatch"),
    "Revolve": ("parallel/checkpointing/revolve.py", "def"),
    "activation checkpointing": ("parallel/checkpointing/recompute.py", "def"),
    "offload": ("parallel/checkpointing/offload.py", "def"),
    "folding": ("parallel/comm/symmetry.py", "class"),
    "stragglers": ("parallel/comm/stragglers.py", "def"),
    "host launch time": ("parallel/emit/host_launches.py", "ISSUE"),
    "cache residency": ("kernels/cache_residency.py", "def"),
    "Winograd": ("kernels/winograd.py", "def"),
    "systolic array cycles": ("kernels/systolic/closed_form.py", "class FoldSchedule"),
    "mapping search": ("kernels/mapping/search.py", "def"),
    "layer fusion": ("kernels/fusion/schedule.py", "def fuse"),
    "LL128": ("network/nccl.py", "LL128"),
    "max-min fair sharing": ("engine/sharing.py", "def"),
    "DCQCN": ("network/transport.py", "dcqcn"),
    "critical path": ("engine/critical_path.py", "def"),
    "plan search": ("study/planner/frontier.py", "class"),
    "DVFS": ("kernels/power_capped_clock.py", "def"),
    "ECMP": ("network/routings/ecmp.py", "def"),
    "manifest": ("report/manifest.py", "def manifest"),
    "sliding-window attention": ("workload/ops/attention.py", "window: int"),
    "attention sinks": ("workload/ops/attention.py", "def softmax_with_sinks"),
    "latent attention": ("workload/families/blocks.py", "class LatentAttention"),
    "lightning indexer": ("workload/ops/sparse_attention.py", "def index_scores"),
    "gated delta rule": ("workload/ops/linear_attention.py", "def chunked_delta_rule"),
    "selective scan": ("workload/ops/selective_scan.py", "def selective_scan"),
    "Mamba-2": ("workload/ops/state_space.py", "def state_space"),
    "mixture of experts": ("workload/families/mixture.py", "class Mixture"),
    "LoRA": ("workload/adapters.py", "class Adapters"),
    "memory budget": ("parallel/checkpointing/keep_budget.py", "def keep_within"),
}


@pytest.mark.parametrize("words", MECHANISMS)
def test_a_mechanism_is_found_by_its_usual_words(words: str) -> None:
    """As a reader would: search the page for the words, open the file of the row."""
    file, defined = MECHANISMS[words]
    rows = [row for row in PAGE.read_text("utf-8").splitlines() if row.startswith("| ")]
    assert any(words.lower() in row.lower() and f"`{file}`" in row for row in rows)
    path = PACKAGE / file
    texts = [p.read_text("utf-8") for p in (path.glob("*.py") if path.is_dir() else [path])]
    assert any(re.search(defined, text) for text in texts)


def test_public_class_names_are_unique() -> None:
    """A reader who searches for a name lands in one place."""
    found: dict[str, list[str]] = defaultdict(list)
    for path in sorted(PACKAGE.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                found[node.name].append(f"{path.relative_to(PACKAGE)}:{node.lineno}")
    assert not {name: places for name, places in found.items() if len(places) > 1}
