"""Draw the sample of measured kernels that ships, from the whole tables.

    python benchmarks/sample_measured.py FOLDER [--rows 24]

FOLDER holds the tables as they were collected (``gemm_llm.csv``, ``moe_fused.csv``, ...; plain or
gzipped). Of every table, device, format and kind of work (and of rows with power apart) up to
``--rows`` rows are drawn: they are put in the order of their sizes and taken at even distances, so
that small and large calls are there alike. Nothing is random: the same tables give the same sample.
Columns and cells are those of the tables.
"""

from __future__ import annotations

import argparse
import csv
import gzip
import io
import math
from collections.abc import Mapping, Sequence
from pathlib import Path

from ridgeline.study.csv_file import read_csv

LIMIT = 64 * 2**20
TARGET = Path(__file__).parents[1] / "sim/ridgeline/study/validate/data/measured"
TABLES: Mapping[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "gemm_llm": (("format",), ("m", "n", "k")),
    "gemm_fp32": (("op", "set"), ("batch", "m", "n", "k")),
    "conv_fp32": (("kernel_size",), ("batch", "c_in", "c_out", "input_size")),
    "attention_prefill": (("format", "window"), ("batch", "heads", "seq_q")),
    "attention_encoder": (("format", "head_dim"), ("batch", "heads", "seq_q")),
    "attention_decode": (("format", "window"), ("batch", "kv_heads", "seq_kv")),
    "moe_fused": (("format", "distribution"), ("tokens", "hidden", "inter")),
    "elementwise_norm_softmax": (("op", "set"), ("rows", "cols")),
    "linear_attention": (("op_name", "phase", "kernel"), ("batch", "seq")),
    "quantize_cast": (("format",), ("m", "k")),
    "expert_all_to_all": (("library", "phase", "nodes"), ("tokens", "hidden")),
    "collectives": (("system", "op", "ranks", "library"), ("bytes",)),
    "model_latency": (("model", "mode", "parallelism"), ("batch", "seq")),
    "tpu_v6e_layers": (("op",), ("m", "seq_kv")),
}
"""Of every table: the columns that make a kind of work beside the device, and those of its size."""
SHARES = {"gemm_llm": 3.0, "gemm_fp32": 1.5, "conv_fp32": 4.0, "elementwise_norm_softmax": 0.7,
          "attention_prefill": 0.6, "attention_encoder": 0.5, "attention_decode": 0.35,
          "moe_fused": 0.8, "linear_attention": 0.7, "expert_all_to_all": 0.6, "quantize_cast": 1.5,
          "collectives": 0.25, "model_latency": 1.0}  # fmt: skip
"""Of `--rows`: tables with few kinds have more rows of each."""


def spread(rows: Sequence[Mapping[str, str]], sizes: Sequence[str], count: int) -> list[int]:
    """Return the places of rows at even distances in the order of their sizes."""

    def size(place: int) -> tuple[float, str]:
        numbers = [float(rows[place][name] or 1) for name in sizes]
        return math.fsum(math.log(max(number, 1e-9)) for number in numbers), rows[place]["id"]

    order = sorted(range(len(rows)), key=size)
    if len(order) <= count:
        return order
    if count == 1:
        return [order[len(order) // 2]]
    return [order[round(i * (len(order) - 1) / (count - 1))] for i in range(count)]


def sample(name: str, rows: Sequence[Mapping[str, str]], count: int) -> list[Mapping[str, str]]:
    """Return the rows of a table that ship, in the table's order."""
    kinds, sizes = TABLES[name]
    most = max(2, round(count * SHARES.get(name, 1.0)))
    strata: dict[tuple[str, ...], list[int]] = {}
    for place, row in enumerate(rows):
        powered = "power" if row.get("power_w") else ""
        key = (row.get("device_key", ""), *(row[kind] for kind in kinds), powered)
        strata.setdefault(key, []).append(place)
    drawn: set[int] = set()
    for places in strata.values():
        drawn |= {places[i] for i in spread([rows[p] for p in places], sizes, most)}
    return [rows[place] for place in sorted(drawn)]


def packed(rows: Sequence[Mapping[str, str]]) -> bytes:
    """Return a table as gzip, which says nothing of when and as what it was written."""
    text = io.StringIO()
    writer = csv.DictWriter(text, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return gzip.compress(text.getvalue().encode(), compresslevel=9, mtime=0)


def stated_by_neusight(rows: Sequence[Mapping[str, str]]) -> list[dict[str, str]]:
    """Return the errors that NeuSight states of itself."""
    columns = ("table", "device_key", "model", "batch", "mode", "what", "error_percent", "source",
               "licence")  # fmt: skip
    return [{name: row[name] for name in columns} for row in rows if row["method"] == "NeuSight"]


def main() -> None:
    """Write the sample, and print what it holds."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--rows", type=int, default=24)
    options = parser.parse_args()
    TARGET.mkdir(exist_ok=True)
    total = 0
    for name in TABLES:
        found = [
            p for end in (".csv", ".csv.gz") if (p := options.folder / f"{name}{end}").exists()
        ]
        if not found:
            print(f"{name}: not in {options.folder}")
            continue
        rows = [row for _, row in read_csv(found[0], LIMIT)]
        drawn = sample(name, rows, options.rows)
        made = packed(drawn)
        (TARGET / f"{name}.csv.gz").write_bytes(made)
        total += len(made)
        print(f"{name}: {len(drawn)} of {len(rows)} rows, {len(made)} bytes")
    anchors = options.folder / "anchors_neusight.csv"
    if anchors.exists():
        kept = stated_by_neusight([row for _, row in read_csv(anchors, LIMIT)])
        text = io.StringIO()
        writer = csv.DictWriter(text, list(kept[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(kept)
        (TARGET / "neusight_stated.csv").write_text(text.getvalue(), encoding="utf-8")
        total += len(text.getvalue())
        print(f"neusight_stated: {len(kept)} rows")
    print(f"{total} bytes in all")


if __name__ == "__main__":
    main()
