"""``ridgeline generate``: tokens by continuous batching, and what the cache has room for."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from ridgeline.cli.number_options import Finite, Whole
from ridgeline.cli.output import console, print_json
from ridgeline.cli.searched import ClusterName, Json, ModelName
from ridgeline.cli.software import Software

if TYPE_CHECKING:
    from ridgeline.study.generation.generate import GenerationResult


def generate_(
    model: ModelName,
    cluster: ClusterName,
    *,
    plan: str = "",
    lengths: str = "512/128",
    requests: Whole | None = None,
    samples: Whole = 1,
    rate: Finite | None = None,
    seed: Whole = 0,
    precision: str | None = None,
    kv_format: str = "bf16",
    page_tokens: Whole = 16,
    most_sequences: Whole = 256,
    most_prefilled: Whole = 8192,
    chunk: Whole = 0,
    memory_share: Finite = 0.9,
    reserve: Annotated[bool, Parameter(negative="")] = False,
    two_batches: Annotated[bool, Parameter(negative="")] = False,
    software: Software = None,
    steps: str | None = None,
    plot: str | None = None,
    json: Json = False,
) -> None:
    """Generate tokens by continuous batching: throughput, latency, energy, room of the cache.

    Examples: ``ridgeline generate llama3-70b dgx-h100 --plan tensor=8 --precision fp8-mixed
    --lengths lognormal:512:0.5/lognormal:1024:1:8192 --samples 8``; ``ridgeline generate
    deepseek-v3 hgx-h200-ndr --plan data=32,expert=32 --lengths 2048/512 --two-batches``. See
    docs/generation.md.

    Parameters
    ----------
    plan
        Degrees: tensor=8, pipeline=2, data=32,expert=32. Ranks of data beyond expert are replicas,
        each with every so many-th request.
    lengths
        PROMPT/OUTPUT in tokens, each a number, uniform:LOW:HIGH or lognormal:MEDIAN:SIGMA[:MOST];
        or a CSV file with the columns prompt, output and perhaps arrival_s.
    requests
        Prompts; by default 256, or all of a trace.
    samples
        Outputs of each prompt.
    rate
        Requests that arrive in a second, by a Poisson process; by default all are there at once.
    seed
        Of all that is drawn.
    precision
        fp8-mixed, bf16-true, ...: weights are stored as they are multiplied. By default bf16-true.
    kv_format
        Number format of cached keys and values: bf16, fp8-e4m3, ...
    page_tokens
        Positions of a page of the cache.
    most_sequences
        Maximum number of sequences in a step of each rank.
    most_prefilled
        Maximum number of tokens that a step prefills.
    chunk
        Tokens of a step that decodes and prefills parts of prompts beside it; 0: a step does one
        or the other.
    memory_share
        Share of a device's memory for weights, activations and cache.
    reserve
        Admit a request only when all that it will generate fits; else a sequence gives up its pages
        when none are left, and is computed again.
    two_batches
        Halves of a batch compute and communicate in turn (dual-batch overlap).
    software
        vllm, sglang or trtllm: kernels and all-reduces; or any stack. By default the bound ideal.
    steps
        File for every step, .csv: start, end, tokens, requests, bytes of the cache, energy.
    plot
        File for batch and cache over time: .png, .svg or .pdf.
    """
    from ridgeline.report.files import check_writable
    from ridgeline.study.generation.generate import EngineOptions, generate
    from ridgeline.study.generation.generation_plan import generation_plan

    for path in filter(None, (steps, plot)):
        check_writable(path)
    options = EngineOptions(
        kv_format, page_tokens, most_sequences, most_prefilled, chunk, memory_share, reserve,
        two_batches,
    )  # fmt: skip
    found = generate(
        model, cluster, generation_plan(plan, precision), lengths=lengths, requests=requests,
        samples=samples,
        rate=rate, seed=seed, software=software, options=options,
    )  # fmt: skip
    if steps is not None:
        found.write_steps(steps)
    if plot is not None:
        from ridgeline.report.figures.result import save
        from ridgeline.study.generation.figure import engine_over_time

        save(engine_over_time(found), plot)
    if json:
        print_json(found.to_dict())
        return
    _print(found)
    for path in filter(None, (steps, plot)):
        console().print(f"wrote {path}", soft_wrap=True)


def _print(result: GenerationResult) -> None:
    from ridgeline.report.tables import plain_table
    from ridgeline.units import show

    found, screen = result.to_dict(), console()
    library = f", kernels of {found['library']}" if found["library"] else ""
    each = f" in {found['replicas']} replicas" if found["replicas"] > 1 else ""
    screen.print(
        f"{found['model']} in {found['precision']}, cache in {found['kv_format']}, on"
        f" {found['devices']} of {found['cluster']}{each}; software: {found['software']}{library}",
        soft_wrap=True,
    )
    kv = found["kv"]
    table = plain_table({"": "left", " ": "right", "  ": "left"})
    rows = [
        ("output tokens", f"{found['output_tokens']:,}", f"of {found['requests']:,} requests"),
        ("throughput", f"{found['output_tokens_per_s']:,.1f} tokens/s",
         f"{found['output_tokens_per_s_per_device']:,.1f} a device"),
        ("until the last token", show(found["makespan_s"], "s", 4), f"{found['steps']:,} steps"),
        *(
            (words, show(found[name]["median"] or 0.0, "s", 4),
             f"95 of 100 within {show(found[name]['p95'] or 0.0, 's', 4)}")
            for name, words in (
                ("time_to_first_token_s", "first token after"),
                ("time_per_output_token_s", "each further token"),
                ("latency_s", "whole request"),
            )
        ),
        ("energy", f"{show(found['energy_j_per_output_token'], 'J', 4)} a token",
         f"{show(found['energy_j'], 'J', 4)} in all"),
        ("running requests", f"{found['mean_running']:,.1f}",
         f"on average; busy {found['utilisation']:.1%} of the time"),
        ("cache of a device", show(kv["room_bytes"], "B"),
         f"{show(kv['bytes_per_token'], 'B')} a token; full to {kv['mean_share']:.1%} on average,"
         f" {kv['peak_share']:.1%} at most"),
        ("longest sequence", f"{kv['longest_sequence']:,} tokens", "alone in the cache"),
        ("computed again", f"{found['recomputed_tokens']:,} tokens",
         f"{found['preemptions']:,} times a sequence gave up its pages"),
    ]  # fmt: skip
    for row in rows:
        table.add_row(*row)
    screen.print(table)
