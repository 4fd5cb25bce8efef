"""Meaning of the names that columns, keys and axis labels have in files of other people.

A name is cut into words (``gpuCount``, ``# of GPUs``, ``n_gpus`` have the same), and means the
concept that most of its words belong to. Concepts are the words of the rules (`checks`).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from importlib import resources
from types import MappingProxyType

from ridgeline.config import parse_yaml

_JOINED = (
    (r"speed[\s_-]*ups?", "speedup"),
    (r"mini[\s_-]*batch", "minibatch"),
    (r"micro[\s_-]*batch", "microbatch"),
    (r"data[\s_-]*sets?", "dataset"),
    (r"wall[\s_-]*clock", "wallclock"),
    (r"hyper[\s_-]*param(?:eter)?s?", "hyperparameter"),
    (r"through[\s_-]*put", "throughput"),
    (r"top[\s_-]*([15])\b", r"top\1"),
    (r"i\s*/\s*o\b", "io"),
    (r"mm(?:\^?2|²)", "mm2"),
    (r"end[\s_-]*(?:to|2)[\s_-]*end", "endtoend"),
    (r"log[\s_-]*(?:scaled?|axis)", "logscale"),
    (r"([a-z]*flop)s?\s*/\s*s(?:ec)?\b", r"\1s rate"),
    (r"([tpge]?)ops?\s*/\s*s(?:ec)?\b", r"\1ops"),
    (r"/\s*(?:\$|usd|dollar)", " per dollar"),
    (r"/\s*w(?:att)?s?\b", " per watt"),
    (r"/\s*mm2", " per mm2"),
    (r"/\s*(?:s|sec|second)\b", " per sec"),
    (r"\$", " dollar "),
    (r"%", " percent "),
    (r"#", " number "),
)  # fmt: skip
_WHOLE = frozenset({
    "loss", "less", "bs", "ops", "class", "process", "bias", "basis", "cross", "gas", "this", "was",
    "has", "is", "flops", "tflops", "gflops", "pflops", "eflops", "tops", "gops", "pops", "exaops",
    "axis", "status", "usd", "ms", "us", "ns", "tdps", "pass", "macs", "previous", "analysis",
    "hours", "minutes", "seconds", "days",
})  # fmt: skip
_SAME: Mapping[str, str] = MappingProxyType({
    "accel": "accelerator", "acc": "accuracy", "accuracie": "accuracy", "val": "validation",
    "valid": "validation", "eval": "evaluation", "sec": "seconds", "second": "seconds",
    "min": "min", "minute": "minutes", "hr": "hours", "hour": "hours", "h": "hours",
    "msec": "ms", "num": "number", "n": "number", "no": "number", "nr": "number", "count": "number",
    "procs": "process", "proc": "process", "processes": "process", "batchsize": "batch",
    "thruput": "throughput", "img": "image", "config": "option", "configuration": "option",
    "settings": "option", "setting": "option", "flag": "option", "opt": "option", "std": "stdev",
    "sd": "stdev", "sigma": "stdev", "stddev": "stdev", "perf": "performance",
    "training": "train", "testing": "test", "tuned": "tuning", "tune": "tuning",
    "watts": "watt", "w": "watt", "joule": "energy", "usd": "dollar", "euro": "dollar",
    "eur": "dollar", "res": "resolution", "pixel": "resolution", "seqlen": "sequence",
    "seq": "sequence", "iter": "iteration", "its": "iteration", "dtype": "precision",
    "format": "precision", "fmt": "precision", "criteria": "criterion", "validated": "validation",
    "rel": "relative", "ratio": "ratio", "sims": "simulated", "simulation": "simulated",
    "sim": "simulated", "cfg": "option", "hw": "hardware", "sku": "hardware", "err": "error",
    "tput": "throughput", "repetition": "run", "repeat": "run", "replicate": "run",
    "repeats": "run", "ngpu": "gpu", "ngpus": "gpu", "nproc": "process", "nprocs": "process",
    "lat": "latency", "flop": "flops", "tflop": "tflops", "gflop": "gflops", "pflop": "pflops",
    "eflop": "eflops", "crit": "criterion",
})  # fmt: skip

_SPLITS = {"train": "train", "validation": "test", "test": "test", "dev": "test",
           "heldout": "test", "holdout": "test", "evaluation": "test"}  # fmt: skip
_PERFORMANCE = frozenset({
    "performance", "speed", "time", "throughput", "timing", "speedup", "timed", "benchmark", "fast",
    "latency",
})  # fmt: skip
_QUALITY = frozenset({
    "accuracy", "quality", "convergence", "top1", "bleu", "loss", "validation", "converged",
})  # fmt: skip
_CHOICES = frozenset({
    "option", "global_batch", "local_batch", "precision", "learning_rate", "epochs", "devices",
    "microbatch", "compression",
})  # fmt: skip


@dataclass(frozen=True, slots=True)
class Meaning:
    """What a name means.

    Attributes
    ----------
    concept
        In the words of the rules; empty: unknown.
    words
        The name as words.
    split
        "train" or "test", where it says so.
    of
        "performance" or "accuracy": which of two measurements a choice belongs to.
    """

    concept: str
    words: frozenset[str]
    split: str = ""
    of: str = ""


def words_of(name: str) -> tuple[str, ...]:
    """Return a name's words, in lower case and the singular, with abbreviations written out."""
    text = re.sub(r"(?<=[a-z])(?=[A-Z])", " ", name).lower()
    for pattern, joined in _JOINED:
        text = re.sub(pattern, joined, text)
    text = re.sub(r"(?<=[a-z]{3})(?=\d+\b)(?<!top)(?<!ci)(?<!co)(?<!fp)", " ", text)
    found = []
    for word in re.findall(r"[a-z]+\d*|\d+(?:\.\d+)?", text):
        if word not in _WHOLE and word.endswith("s") and len(word) > 3 and not word.endswith("ss"):
            found.append(_SAME.get(word[:-1], word[:-1]))
        else:
            found.append(_SAME.get(word, word))
    return tuple(found)


@lru_cache(maxsize=1)
def _phrases() -> tuple[tuple[str, frozenset[str]], ...]:
    """Return the phrases of ``vocabulary.yaml`` as words, in its order."""
    file = resources.files(__package__).joinpath("vocabulary.yaml")
    concepts = parse_yaml(file.read_text("utf-8"), "vocabulary.yaml").data
    return tuple(
        (concept, frozenset(words_of(phrase)))
        for concept, phrases in concepts.items()
        for phrase in phrases.split(";")
    )


_SPREAD = frozenset({
    "stdev", "ci", "ci95", "p05", "p95", "p5", "iqr", "variance", "q1", "q3", "sem", "p25", "p75",
    "p10", "p90", "uncertainty", "yerr", "whisker", "quantile", "percentile",
})  # fmt: skip
_TIME_UNITS = frozenset({"ms", "us", "ns", "s", "seconds", "minutes", "hours", "days"})
_AGAINST = re.compile(r"(?<=.)\b(?:vs\.?|versus|over|relative to|compared (?:to|with)|against)\b.*")


@lru_cache(maxsize=4096)
def meaning(name: str) -> Meaning:
    """Return what the name of a column, key or axis means; of a path, parents come before dots."""
    *parents, last = name.split(".")
    last = _AGAINST.sub("", last.replace("_", " ")) or last
    words, own = frozenset(words_of(" ".join([*parents, last]))), frozenset(words_of(last))
    concept, most = _best(words, own, _phrases())
    if not concept and parents:
        concept, most = _best(own, own, _phrases())
    if concept not in _CHOICES and own & (_PERFORMANCE | _QUALITY):
        chosen, phrase = _best(own, own, _choices())
        if chosen and len(phrase) >= len(most):
            concept, most = chosen, phrase
    if concept in {"", "baseline", "system", "best"} and own & _TIME_UNITS:
        concept = concept if concept == "best" else "time"
    if own & _SPREAD and concept not in {"error_bars", "statistic"}:
        concept = "spread"
    split = _split(own) or _split(words)
    of = ""
    rest = words - most if concept in _CHOICES else frozenset[str]()
    if rest & _QUALITY:
        of = "accuracy"
    elif rest & _PERFORMANCE:
        of = "performance"
    return Meaning(concept, words, split, of)


def _split(words: frozenset[str]) -> str:
    found = {split for word, split in _SPLITS.items() if word in words}
    return "test" if "test" in found else next(iter(found), "")


def _best(
    words: frozenset[str], own: frozenset[str], phrases: Iterable[tuple[str, frozenset[str]]]
) -> tuple[str, frozenset[str]]:
    """Return the concept that most of a name's words belong to, one of its last part's at least."""
    best, most = "", frozenset[str]()
    for concept, phrase in phrases:
        if len(phrase) > len(most) and phrase <= words and phrase & own:
            best, most = concept, phrase
    return best, most


@lru_cache(maxsize=1)
def _choices() -> tuple[tuple[str, frozenset[str]], ...]:
    """Return the phrases of what is chosen for a measurement, so that it may differ between two."""
    return tuple((c, p) for c, p in _phrases() if c in _CHOICES and p - {"step", "number"})


def is_measurement(key: str) -> bool:
    """Tell whether a block is called after what was measured, and not after a system."""
    return bool(frozenset(words_of(str(key))) & (_PERFORMANCE | _QUALITY))
