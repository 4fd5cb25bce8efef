"""Plans: fields of a command line, arithmetic, and mistakes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ridgeline.errors import ConfigError
from ridgeline.parallel.plan.plan import Plan
from ridgeline.parallel.plan.text import make_plan, plan_fields


def read(text: str, **more: object) -> Plan:
    return make_plan(plan_fields(text, more))


def test_fields_of_a_command_line() -> None:
    plan = read("data=8, micro_batch=64, zero_stage=1", global_batch=2048)
    assert (plan.data, plan.rank_batch, plan.micro_batches) == (8, 256, 4)
    assert plan.zero_stage == 1
    assert plan.devices == 8
    assert read("batch=32").micro_batch_size == 32
    assert read("micro_batch=none,batch=32").micro_batch is None


def test_defaults_follow_from_other_fields() -> None:
    assert read("pipeline=4,batch=32").micro_batch_size == 1
    assert read("tensor=4,sequence=on,batch=8").sequence == 4
    assert read("tensor=4,sequence=off,batch=8").sequence == 1
    plan = read("data=2,tensor=4,pipeline=3,micro_batch=2,batch=32")
    assert (plan.devices, plan.micro_batches) == (24, 8)


def test_rules_for_layers_use_all_devices() -> None:
    plan = read("data=16,batch=64,layers=[fc8: data=4,tensor=4; fc*: data=2]")
    assert plan.layers == "fc8:tensor=4;fc*:tensor=8"
    wide = plan.widest()
    assert (wide.devices, wide.data, wide.tensor, wide.micro_batch_size) == (16, 2, 8, 32)
    assert wide.micro_batches == plan.micro_batches
    assert read(str(plan)) == plan
    assert read("tensor=8,data=2,batch=64,layers=conv*:data=16").widest().data == 2
    assert read("data=2,batch=64").widest().layers == ""


def test_a_plan_in_a_file(tmp_path: Path) -> None:
    file = tmp_path / "plan.yaml"
    file.write_text("data: 16\nsequence: off\nlayers:\n  fc8: {tensor: 4}\n  'fc*': data=2\n")
    assert read(str(file), global_batch=64).layers == "fc8:tensor=4;fc*:tensor=8"
    with pytest.raises(ConfigError, match="'data' is given twice"):
        read(str(file), data=4)
    file.write_text("data: 16\nlayer: {}\n")
    with pytest.raises(ConfigError, match=r"plan.yaml:2:1: layer: unknown .* mean 'layers'"):
        read(str(file), global_batch=64)
    file.write_text("- data\n")
    with pytest.raises(ConfigError, match=r"expected fields of a plan"):
        read(str(file), global_batch=64)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("data=8", "batch size is missing: give --batch"),
        ("data=3,batch=8", "cannot be shared evenly by data=3 ranks; .* 6 or 9"),
        ("data=x,batch=8", "plan.data: expected a whole number, found 'x'"),
        ("dat=8,batch=8", "unknown field 'dat'; did you mean 'data'"),
        ("data=8,data=8", "given twice"),
        ("expert=2,batch=8", "expert=2 must divide data=1"),
        ("tensor=4,sequence=2,batch=8", "must be 1 .off. or the degree of tensor, 4"),
        ("virtual_stages=2,batch=8", "needs schedule=interleaved"),
        ("schedule=interleaved,virtual_stages=2,batch=8", "pipeline of at least 2"),
        ("schedule=interleaved,virtual_stages=2,pipeline=3,batch=8", "multiple of the 3 stages"),
        ("order=tensor-data,batch=8", "must name each of"),
        ("batch=0", "greater than or equal to 1"),
        ("batch=8,micro_batch=3", "does not divide the 8 samples"),
        ("batch", "expected field=value"),
        ("batch=8,recompute=foo", "allowed: none, full, selective, .*, sqrt, optimal"),
        ("batch=8,stage_balance=layer", "plan.stage_balance: allowed: .*mean .layers"),
        ("batch=99999999999", "less than or equal"),
        ("batch=8,data=8,layers=fc*:tensor=3", "'fc.' uses data=2 x tensor=3 devices, .* the 8"),
        ("batch=8,data=8,layers=[fc*: data=1,tensor=4]", "allowed: degrees whose product is 8"),
        ("batch=8,data=8,layers=fc*:tensr=4", "'tensr'; did you mean 'tensor'"),
        ("batch=8,data=8,layers=fc*", "expected PATTERN: data=D,tensor=T, found 'fc.'"),
        ("batch=8,data=8,layers=fc*:tensor=x", "tensor=x; allowed: a whole number"),
        ("batch=8,data=8,layers=[fc*: data=4,data=2]", "gives 'data' twice"),
        ("batch=8,data=8,layers=fc*:", "gives no degree"),
        ("batch=24,data=24,layers=a:tensor=4;b:tensor=6", "divide each other, .* 4 and 6"),
        ("batch=8,data=8,expert=3,layers=fc*:tensor=4", "expert=3 must divide the 8 devices"),
    ],
)
def test_mistakes_are_explained(text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        read(text)


@pytest.mark.parametrize(
    ("name", "value", "path", "read_as"),
    [
        ("bucket", "10 MB", "software.gradients.bucket", "10 MB"),
        ("overlap", "false", "software.overlap.gradients", False),
        ("adding", "products", "software.gradients.accumulation_fusion", True),
        ("updates", "apart", "software.optimizer.impl", "per-tensor"),
        ("keep_outputs", "true", "software.pipeline.deallocate_outputs", False),
        ("issue", "15 us", "software.host.launch_time", "15 us"),
        ("spread", "0.015", "cluster.device_speed_std", 0.015),
        ("imbalance", "1.5", "model.expert_load_factor", 1.5),
    ],
)
def test_fields_that_moved_are_read_with_a_note(
    name: str, value: str, path: str, read_as: Any
) -> None:
    with pytest.warns(FutureWarning, match=f"plan.{name} is now {path}"):
        plan = read(f"batch=8,{name}={value}")
    assert plan.moved == {path: read_as}


def test_renamed_fields_are_read_with_a_note() -> None:
    with pytest.warns(FutureWarning, match=r"plan\.sharding is now plan\.zero_stage"):
        assert read("batch=8,data=2,sharding=1").zero_stage == 1
    with pytest.raises(ConfigError, match="zero_stage now"), pytest.warns(FutureWarning):
        read("batch=8,data=2,sharding=1,zero_stage=1")
    with (
        pytest.raises(ConfigError, match="allowed: kernels, products"),
        pytest.warns(FutureWarning),
    ):
        read("batch=8,adding=product")
