"""Rows of memory tables: what each quantity means, against closed forms."""

from __future__ import annotations

import pytest

from ridgeline.study.import_rows import imported
from ridgeline.study.validate.memory import predict
from ridgeline.study.validate.outcome import Outcome, Skipped
from ridgeline.study.validate.rows import MeasuredRow

L, H, A, S, B = 8, 1024, 16, 512, 4
SHAPE = {
    "id": "row", "model": "GPT", "n_layers": str(L), "hidden": str(H), "heads": str(A),
    "seq_len": str(S), "micro_batch": str(B), "accelerator": "A100-80GB", "n_accel": "8",
    "tp": "8", "pp": "1", "technique": "any", "source": "a table", "unit": "GiB", "value": "1",
}  # fmt: skip


def predicted(**fields: str) -> Outcome | Skipped:
    return next(iter(predict(imported("memory", [MeasuredRow("t", 2, {**SHAPE, **fields})]))))


def outcome(**fields: str) -> Outcome:
    made = predicted(**fields)
    assert isinstance(made, Outcome)
    return made


@pytest.mark.parametrize(
    ("technique", "per_feature"),
    [
        ("tensor parallel baseline (no recompute)", 10 + (24 + 5 * A * S / H) / 8),
        ("sequence parallel", (34 + 5 * A * S / H) / 8),
        ("selective recompute", 10 + 24 / 8),
        ("sequence parallel + selective recompute", 34 / 8),
        ("full recompute", 2.0),
    ],
)
def test_layers_add_what_the_closed_forms_say(technique: str, per_feature: float) -> None:
    """Korthikanti et al., arXiv:2205.05198, Table 2: between two depths, as ends are the same."""
    fields = {"quantity": "activations, first pipeline stage", "technique": technique}
    deep, flat = (outcome(**fields, n_layers=n).predicted for n in ("16", "8"))
    assert deep - flat == pytest.approx(8 * S * B * H * per_feature, rel=0.01)


def test_a_share_is_of_the_step_without_savings() -> None:
    fields = {"quantity": "activation memory relative to TP baseline", "unit": "%"}
    made = outcome(**fields, technique="seqsel", value="20")
    parts = [
        outcome(quantity="activations, first pipeline stage", technique=words).predicted
        for words in ("sequence parallel + selective recompute", "none")
    ]
    assert made.predicted == pytest.approx(parts[0] / parts[1])
    assert made.measured == pytest.approx(0.2)
    baseline = predicted(**fields, technique="none", value="100")
    assert isinstance(baseline, Skipped)


@pytest.mark.parametrize(
    ("stage", "ranks", "bytes_each"),
    [("P_os", 4, 4 + 12 / 4), ("P_os+g", 4, 2 + 14 / 4), ("P_os+g+p", 64, 16 / 64)],
)
def test_states_are_the_table_of_zero(stage: str, ranks: int, bytes_each: float) -> None:
    """arXiv:1910.02054, section 3.1; a transformer's norms have no copies of 16 bits."""
    made = outcome(
        model="7.5B", technique=f"ZeRO {stage}", n_accel=str(ranks), unit="GB (1e9)",
        quantity="model-state memory per device",
    )  # fmt: skip
    assert made.predicted == pytest.approx(bytes_each * 7.5e9, rel=0.01)


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"unit": "words"}, "unknown unit words"),
        ({"quantity": "model-state memory", "technique": "ZeRO 9", "model": "7B"}, "the stage"),
        ({"quantity": "model-state memory", "technique": "ZeRO P_os", "model": "x"}, "parameters"),
    ],
)
def test_what_is_not_said_is_a_reason(fields: dict[str, str], why: str) -> None:
    made = predicted(**{"quantity": "peak memory", **fields})
    assert isinstance(made, Skipped)
    assert why in made.reason


def test_gigabytes_of_programs_are_thousands_of_mebibytes() -> None:
    made = outcome(quantity="peak memory", unit="GB", value="30")
    assert made.measured == 30 * 1000 * 2**20
    assert made.verdict is True


def test_communicators_are_in_what_the_device_shows() -> None:
    """Of nvidia-smi, for programs whose communicators are known; not of what is allocated."""
    words = {"technique": "Megatron-DeepSpeed full recompute fp16", "n_accel": "16"}
    shown = outcome(**words, quantity="max GPU memory").predicted
    held = outcome(**words, quantity="peak memory").predicted
    across = 3 * 12 * 2**20 * (16 + 4)  # all devices; two in different nodes
    inside = 3 * 12 * 2**20 * 24
    assert shown - held == pytest.approx(1.3e9 + across + inside, rel=0.1)
