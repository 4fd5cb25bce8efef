"""What programs feed networks with, and what they compute on the host in the middle of a step."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ridgeline.study.import_rows import steps
from ridgeline.study.import_rows.rules import rule, section
from ridgeline.study.validate.normalised_rows import NormalRow
from ridgeline.study.validate.rows import MeasuredRow
from ridgeline.workload.files import load_model

EXAMPLES = "github:NVIDIA/DeepLearningExamples@729963d"
GNMT = f"{EXAMPLES} PyTorch/Translation/GNMT/README.md L1"
COLUMNS = f"{EXAMPLES} TensorFlow/Recommendation/WideAndDeep/README.md L1"


def row(**fields: str) -> MeasuredRow:
    values = dict.fromkeys((*steps.READS, "system", "nodes", "grad_accum", "seq_len", "xla"), "")
    values |= {
        "framework": "PyTorch", "model": "GNMT", "accelerator": "V100-SXM2-16GB", "n_accel": "1",
        "batch_per_accel": "128", "precision": "fp32", "throughput": "1", "unit": "tokens/s",
        "source": GNMT,
    }  # fmt: skip
    return MeasuredRow("table.csv", 2, {**values, **fields})


def test_every_program_feeds_fields_that_its_network_has() -> None:
    for one in section("fed"):
        for network in one["networks"]:
            load_model(network, one["fields"])
            facts = {"network": network, "variant": one.get("variants", "")}
            assert rule("fed", {**facts, "source": one["in_source"]})["fields"] == one["fields"]
            assert not rule("fed", {**facts, "source": "another place"})
        assert 0 < one.get("filled", 1.0) <= 1


def test_tokens_a_second_are_those_that_are_no_padding() -> None:
    made, pairs = normal(row()), normal(row(unit="sequences/s"))
    assert made.model_fields == "source=33;target=33"
    filled = rule("fed", {"network": "gnmt", "source": GNMT})["filled"]
    assert made.predict() == pytest.approx(pairs.predict() * 66 * filled)
    assert normal(row(source="a paper")).model_fields == ""


def normal(read: MeasuredRow) -> NormalRow:
    return NormalRow.of(MeasuredRow("t.csv", 2, {**read.values, **steps.normal(read)}))


def test_sizes_that_a_table_states_come_first() -> None:
    assert normal(row(seq_len="20")).model_fields == "source=20;target=20"


def test_what_hosts_do_in_the_middle_of_a_step_prolongs_it() -> None:
    values = {
        "framework": "TensorFlow", "model": "WideAndDeep", "unit": "samples/s", "source": COLUMNS,
    }  # fmt: skip
    made = normal(row(**values))
    result, wait_s = made.simulate(), waiting_s(128, 1)
    assert result.time_s["input"] == pytest.approx(wait_s)
    assert wait_s > 0
    bare = replace(made, overrides=";".join(
        part for part in made.overrides.split(";") if "step_wait" not in part
    ))  # fmt: skip
    assert 128 / made.predict() == pytest.approx(128 / bare.predict() + wait_s)


def waiting_s(samples: int, devices: int, **fields: str) -> float:
    values = {"framework": "TensorFlow", "model": "WideAndDeep", "source": COLUMNS, **fields}
    counts = {"batch_per_accel": str(samples), "n_accel": str(devices)}
    return float(steps.step_of(row(**values, **counts)).settings["host.step_wait"])


def test_rows_that_all_devices_name_are_looked_for_by_each() -> None:
    own, gathered = 0.51e-6, 0.17e-6
    assert waiting_s(1024, 8) == pytest.approx(1024 * (own + 8 * gathered))
    assert waiting_s(2048, 8) == pytest.approx(2 * waiting_s(1024, 8))
    assert waiting_s(1024, 8, model="resnet50") == 0.0
    assert waiting_s(1024, 8, source="elsewhere") == 0.0
