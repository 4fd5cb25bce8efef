"""What programs feed networks with, and what they compute on the host in the middle of a step."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ridgeline.study.validate import steps
from ridgeline.study.validate.names import section
from ridgeline.study.validate.programs import between_s, fed
from ridgeline.study.validate.rows import Row
from ridgeline.workload.model import load_model

EXAMPLES = "github:NVIDIA/DeepLearningExamples@729963d"
GNMT = f"{EXAMPLES} PyTorch/Translation/GNMT/README.md L1"
COLUMNS = f"{EXAMPLES} TensorFlow/Recommendation/WideAndDeep/README.md L1"


def row(**fields: str) -> Row:
    values = dict.fromkeys((*steps.COLUMNS, "system", "nodes", "grad_accum", "seq_len", "xla"), "")
    values |= {
        "framework": "PyTorch", "model": "GNMT", "accelerator": "V100-SXM2-16GB", "n_accel": "1",
        "batch_per_accel": "128", "precision": "fp32", "throughput": "1", "unit": "tokens/s",
        "source": GNMT,
    }  # fmt: skip
    return Row("table.csv", 2, {**values, **fields})


def test_every_program_feeds_fields_that_its_network_has() -> None:
    for one in section("fed"):
        for network in one["networks"]:
            load_model(network, one["fields"])
            variant = one.get("variant", "")
            assert fed(network, one["in_source"], variant).fields == one["fields"]
            assert fed(network, "another place").fields == {}
        assert 0 < one.get("filled", 1.0) <= 1


def test_tokens_a_second_are_those_that_are_no_padding() -> None:
    read = row()
    wanted = steps.configuration(read)
    assert dict(wanted.fields) == {"source": 33, "target": 33}
    tokens, _ = steps.predicted_throughput(read, wanted)
    pairs, _ = steps.predicted_throughput(row(unit="sequences/s"), wanted)
    assert tokens == pytest.approx(pairs * 66 * fed("gnmt", GNMT).filled)
    elsewhere = row(source="a paper")
    assert steps.configuration(elsewhere).fields == ()


def test_sizes_that_a_table_states_come_first() -> None:
    assert dict(steps.configuration(row(seq_len="20")).fields) == {"source": 20, "target": 20}


def test_what_hosts_do_in_the_middle_of_a_step_prolongs_it() -> None:
    values = {
        "framework": "TensorFlow", "model": "WideAndDeep", "unit": "samples/s", "source": COLUMNS,
    }  # fmt: skip
    read = row(**values)
    wanted = steps.configuration(read)
    assert wanted.between_s == between_s("wide-and-deep", COLUMNS, 128, 1, 1) > 0
    with_it, _ = steps.predicted_throughput(read, wanted)
    without, _ = steps.predicted_throughput(read, replace(wanted, between_s=0.0))
    assert 128 / with_it == pytest.approx(128 / without + wanted.between_s)


def test_rows_that_all_devices_name_are_looked_for_by_each() -> None:
    def waiting(samples: int, devices: int) -> float:
        return between_s("wide-and-deep", COLUMNS, samples, 1, devices)

    own = waiting(1024, 1) - waiting(1024, 0)
    assert waiting(1024, 8) - waiting(1024, 0) == pytest.approx(8 * own)
    assert waiting(2048, 8) == pytest.approx(2 * waiting(1024, 8))
    assert between_s("resnet50", COLUMNS, 1024, 1, 8) == 0.0
    assert between_s("wide-and-deep", "elsewhere", 1024, 1, 8) == 0.0
