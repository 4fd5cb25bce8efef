"""The search cuts pipelines where the step does: by the same messages, sums and updates."""

from __future__ import annotations

from typing import Any

import pytest

from ridgeline.parallel.partition import pipeline_partition
from ridgeline.parallel.plan.plan import Plan
from ridgeline.parallel.plan.resolved import NEUTRAL
from ridgeline.study.planner.searcher import searcher
from ridgeline.workload.files import load_model

EXPERTS = {"layers": 2, "sequence": 256, "mixture.experts": 8, "vocabulary": 4096}


@pytest.mark.parametrize(
    ("model", "machine", "fields"),
    [
        ("gpt2", "selene-a100", {"data": 2, "pipeline": 2, "zero_stage": 0}),
        ("gpt2", "selene-a100", {"data": 2, "pipeline": 2, "zero_stage": 1}),
        ("gpt2", "selene-a100", {"data": 2, "pipeline": 2, "zero_stage": 3}),
        ("resnet18", "dgx1-v100", {"data": 2, "pipeline": 2, "schedule": "zero-bubble"}),
        ("qwen3-30b-a3b", "superpod-h100", {"data": 2, "pipeline": 2, "expert": 2}),
    ],
)
def test_a_plan_is_cut_as_its_step_is(
    model: str, machine: str, fields: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    precision = "bf16-mixed" if machine != "dgx1-v100" else "fp16-mixed"
    wanted = Plan(precision=precision, global_batch=8, micro_batch=1, **fields)
    overrides = EXPERTS if "expert" in fields else {}
    one = searcher(
        load_model(model, overrides), machine, 4, 8, precision=precision, software=NEUTRAL
    )
    (i,) = (i for i in range(len(one.space)) if one.space.plan(i) == wanted)
    group = one.groups.group(one.key(i))
    assert group is not None
    found: list[list[int]] = []
    balance_step = pipeline_partition.balance_step

    def kept(*given: Any) -> Any:
        stages = balance_step(*given)
        found.append([0, *(stage.stop for stage in stages)])
        return stages

    monkeypatch.setattr(pipeline_partition, "balance_step", kept)
    cut = one._cuts(group, i)[0].cut.tolist()
    one.replay(wanted)
    assert found == [cut]
