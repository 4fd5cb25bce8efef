"""Common cheats of benchmarks, C1 to C6."""

from __future__ import annotations

import re

from ridgeline.report.honesty.evidence import Evidence, Statement, is_stated
from ridgeline.report.honesty.rules import BENCHMARKS, Found, rule

_SLACK = 0.2
_NORMALISED = ("per_watt", "per_dollar", "per_area", "per_device")
_RAW = ("throughput", "time", "time_to_target", "speedup", "ops_rate")
_LESS = frozenset({"time", "time_to_target"})
_BEST = frozenset({"best", "fastest", "peak", "minimum", "maximum", "max", "highest", "lowest"})
_BEST_WORDS = (
    r"\bbest\b|\bfastest\b|\bpeak\b|\bminimum\b|\bmaximum\b|\bmin\b|\bmax\b|\bhighest\b|\blowest\b"
    r"|\btop\b|\bquickest\b|\bluckiest\b"
)


@rule(
    "C1",
    "A threshold that the rival cannot reach, or just about",
    source=BENCHMARKS,
    severity="warn",
    say="sweep the threshold, and show time (or throughput) of both over it",
    trigger=(
        "One threshold (accuracy, error or latency), and what one side can reach at best is "
        "within 20 % of it or beyond: of the error, where it is an accuracy."
    ),
)
def threshold_without_slack(evidence: Evidence) -> Found | None:
    """Check for C1: a threshold that the rival cannot reach, or just about."""
    limits = set(evidence.numbers("threshold"))
    if len(limits) != 1 or evidence.says(
        r"threshold (?:is |was )?(?:swept|varied)|sweep of thresholds"
    ):
        return None
    limit = limits.pop()
    told = evidence.stated("threshold")[0]
    floors = [(one, x) for one in evidence.stated("floor") if (x := one.number) is not None]
    if not floors:
        return None
    is_accuracy = not {"error", "latency", "time", "ms", "slo", "sla", "deadline", "loss"} & (
        told.meaning.words
    ) and not any({"error", "latency", "ms"} & one.meaning.words for one, _ in floors)  # fmt: skip
    full = 100.0 if max(limit, *(x for _, x in floors)) > 1.0 else 1.0
    for one, reached in floors:
        room = full - limit if is_accuracy else limit
        slack = reached - limit if is_accuracy else limit - reached
        if room <= 0:
            continue
        if slack <= _SLACK * room:
            return Found(
                f"{told.name} is {limit:g}, and {one.name} of one side {reached:g}: "
                f"{'out of reach' if slack < 0 else 'hardly any slack'}"
            )
    return None


@rule(
    "C2",
    "The best of several runs",
    source=BENCHMARKS,
    severity="warn",
    say="give the median of all runs, their number, and 5 and 95 %",
    trigger=(
        "The reported value is the best, fastest or peak of several runs, and no mean or median"
        " is given."
    ),
)
def best_of_runs(evidence: Evidence) -> Found | None:
    """Check for C2: the best of several runs."""
    if _has_middle(evidence):
        return None
    runs = max(evidence.numbers("n_runs"), default=0.0)
    words = [str(one.value).lower() for one in evidence.stated("statistic")]
    picked = next((text for text in words if re.search(_BEST_WORDS, text)), "")
    phrase = re.search(
        r"(?:best|fastest|max\w*|min\w*|quickest|peak|highest)[- ](?:result |run |time "
        r"|value )?(?:of|out of"
        r"|over|from|among)[- ](?:the )?(?:\d+|several|many|ten|twenty|all|five"
        r"|three)[- ]?(?!.*config)",
        f"{evidence.text}\n{evidence.names}",
    )
    named = [one.name for one in evidence.stated("best", *_RAW, "accuracy", "loss")
             if one.meaning.concept == "best" or one.meaning.words & _BEST]  # fmt: skip
    if picked and (runs > 1 or re.search(r"of \d|run|repeat|trial", picked)):
        number_ = f"{runs:g} runs" if runs > 1 else "its runs"
        return Found(f"the {picked} of {number_} is reported")
    if phrase:
        return Found(f'"{phrase[0].strip()}" is reported')
    if named and runs > 1:
        return Found(f"{named[0]} of {runs:g} runs is reported")
    reported = evidence.one_number("reported_runs")
    if reported is not None and runs > reported:
        return Found(f"{reported:g} of {runs:g} runs is reported")
    return None


def _has_middle(evidence: Evidence) -> bool:
    """Tell whether a mean, a median or the spread of all runs is given."""
    words = " ".join(str(one.value).lower() for one in evidence.stated("statistic"))
    middle = r"\b(?:mean|median|average|avg|geomean|iqr|all runs|every run)\b"
    return bool(
        evidence.stated("median", "spread")
        or re.search(middle, words)
        or (re.search(middle, evidence.text) and not evidence.says(r"not the (?:mean|median)"))
        or re.search(r"\b(?:median|mean|avg|average)\b", evidence.names)
    )


@rule(
    "C3",
    "The metric is shopped for",
    source=BENCHMARKS,
    severity="warn",
    say="print every normalisation: per device, watt, mm2 and dollar, beside the raw time",
    trigger=(
        "Systems are compared by a normalised metric alone (per watt, dollar, mm2, ...), or "
        "words praise it for the side that loses in raw speed, which they do not mention."
    ),
)
def metric_shopping(evidence: Evidence) -> Found | None:  # noqa: PLR0911 - a sign each
    """Check for C3: the metric is shopped for."""
    normalised = [one for one in evidence.all(*_NORMALISED) if one.is_stated]
    if not normalised:
        return None
    raw = evidence.stated(*_RAW)
    if not raw:
        if len(evidence.rows) > 1 or evidence.has_claim or evidence.stated("baseline"):
            return Found(f"only {normalised[0].name} is given")
        return None
    if not evidence.has_claim:
        return None
    praised = evidence.says(
        r"per[- ](?:watt|dollar|mm|area|joule|euro|slot|rack|device|gpu)|/\s?(?:w|\$|mm)"
        r"|efficien|cost|cheap"
        r"|perf/"
    )
    admitted = evidence.says(
        r"slower|lower (?:raw|throughput)|los(?:es|t)|raw|absolute|while .* (?:behind|slower)"
        r"|at the price of"
    )
    if not praised or admitted:
        return None
    raw_best, normal_best = _winner(evidence, raw), _winner(evidence, normalised)
    if raw_best is not None and normal_best is not None and raw_best != normal_best:
        return Found(
            f"the winner by {normalised[0].name} loses by {raw[0].name}, which the words leave out"
        )
    return None


def _winner(evidence: Evidence, stated: list[Statement]) -> int | None:
    """Return the row that is best in the first of some statements; None: there is no comparison."""
    concept = stated[0].meaning.concept
    values = [
        next((x for s in row if s.name == stated[0].name and (x := s.number) is not None), None)
        for row in evidence.rows
    ]
    known = [(x, i) for i, x in enumerate(values) if x is not None]
    if len(known) < 2:
        return None
    least = concept in _LESS or "slowdown" in stated[0].name.lower()
    return min(known)[1] if least else max(known)[1]


@rule(
    "C4",
    "The first crossing of a threshold is picked",
    source=BENCHMARKS,
    severity="warn",
    say="count the time at which several evaluations in a row are above the threshold, give the"
    " interval between evaluations, and repeat over seeds",
    trigger=(
        "Time counts to the first evaluation above a threshold, with one evaluation enough or "
        "evaluations every few iterations; or a curve falls below its threshold again after it "
        "crossed it."
    ),
)
def first_crossing(evidence: Evidence) -> Found | None:
    """Check for C4: the first crossing of a threshold is picked."""
    enough = evidence.one_number("consecutive")
    if enough is not None:
        if enough > 1:
            return None
        return Found("one evaluation above the threshold is enough")
    words = " ".join(str(one.value).lower() for one in evidence.stated("criterion", "statistic"))
    first = re.search(
        r"first (?:crossing|time|evaluation|hit|touch|iteration|pass|check|accuracy|above|step"
        r"|epoch)"
        r"|as soon as|single (?:evaluation|crossing|hit)|touch(?:es|ed)|once above|first[- ]hit",
        f"{words}\n{evidence.text}",
    )
    if first:
        return Found(f'time counts to the "{first[0]}"')
    interval = evidence.stated("eval_interval")
    if interval and evidence.stated("threshold", "time_to_target"):
        one = interval[0]
        fine = one.number is not None and one.number <= _FINE
        if "iteration" in one.meaning.words or isinstance(one.value, str):
            text = f"{one.name} {one.value}".lower()
            if fine and re.search(r"iter|step|batch|update|minibatch", text):
                return Found(f"the threshold is checked every {one.number:g} iterations")
    return _falls_back(evidence)


_FINE = 100.0


def _falls_back(evidence: Evidence) -> Found | None:
    """Find an accuracy that falls below the threshold after it crossed it."""
    limit = evidence.one_number("threshold")
    order = evidence.column_numbers("iterations")
    if not any(order):
        order = evidence.column_numbers("epochs")
    values = evidence.column_numbers("accuracy")
    if limit is None or not evidence.stated("time_to_target", "iterations", "epochs"):
        return None
    curve = sorted((n, a) for n, a in zip(order, values, strict=True) if None not in (n, a))
    if len(curve) < 3:
        return None
    is_error = any("error" in one.meaning.words for one in evidence.stated("accuracy"))
    above = [(a <= limit) if is_error else (a >= limit) for _, a in curve]  # type: ignore[operator]
    if True in above and False in above[above.index(True) :]:
        at = curve[above.index(True)][0]
        return Found(f"the curve crosses {limit:g} at {at:g} and falls below it again")
    return None


@rule(
    "C5",
    "Seeds are picked",
    source=BENCHMARKS,
    severity="warn",
    say="run the same seeds on both sides, report all of them, and give the median and 5 and 95 %",
    covers=("C2",),
    trigger=(
        "More seeds were run than are reported, a seed was chosen by its result, or each side "
        "has a seed of its own."
    ),
)
def picked_seeds(evidence: Evidence) -> Found | None:
    """Check for C5: seeds are picked."""
    chosen = [str(one.value).lower() for one in evidence.stated("seed_selection")] + [
        str(one.value).lower() for one in evidence.stated("seed") if isinstance(one.value, str)
    ]
    picked = next(
        (
            t
            for t in chosen
            if re.search(_BEST_WORDS + r"|luck|select|chosen|picked|cherry|after", t)
        ),
        "",
    )
    if picked and not _has_middle(evidence):
        return Found(f"the seed is the {picked} one")
    if evidence.says(
        r"best (?:random )?seed|luck(?:y|iest) seed|seed (?:was )?(?:chosen|selected|picked)"
    ):
        return Found("the text says that a seed was chosen")
    tried = max(_counts(evidence, "seeds"), default=0.0)
    reported = max(_counts(evidence, "seed"), default=0.0) or evidence.one_number("reported_runs")
    if tried > 1 and reported and reported < tried and not _has_middle(evidence):
        return Found(f"{reported:g} of {tried:g} seeds is reported")
    sides = [v for v in evidence.column("seed") if is_stated(v)]
    per_side = len(evidence.rows) == len(sides) >= 2 and len({str(v) for v in sides}) == len(sides)
    named = evidence.column("system")
    alone = len({str(n) for n in named if is_stated(n)}) == len(sides)
    if per_side and alone and not _has_middle(evidence) and not _spreads_runs(evidence):
        return Found(f"each side has a seed of its own ({', '.join(str(v) for v in sides)})")
    return None


def _spreads_runs(evidence: Evidence) -> bool:
    return max(evidence.numbers("n_runs"), default=0.0) > 1


def _counts(evidence: Evidence, concept: str) -> list[float]:
    """Return how many seeds each statement speaks of: a list's length, a count, or one seed."""
    found = []
    for one in evidence.stated(concept):
        if isinstance(one.value, list):
            found.append(float(len(one.value)))
        elif concept == "seeds" and (x := one.number) is not None:
            text = str(one.value)
            found.append(
                float(len(re.split(r"[,;\s]+", text.strip()))) if re.search(r"[,;]", text) else x
            )
        elif concept == "seeds" and isinstance(one.value, str):
            found.append(float(len(re.split(r"[,;\s]+", one.value.strip()))))
        elif concept == "seed":
            found.append(1.0)
    return found


@rule(
    "C6",
    "Only one data set",
    source=BENCHMARKS,
    severity="warn",
    say='name the data set in the statement ("on ImageNet"), or show several',
    trigger=(
        "One data set or benchmark is stated, several methods or a general claim stand on it, "
        "and the words do not name it."
    ),
)
def one_data_set(evidence: Evidence) -> Found | None:
    """Check for C6: only one data set."""
    count = evidence.one_number("n_datasets")
    names = []
    listed = False
    for one in evidence.stated("dataset"):
        if isinstance(one.value, list):
            listed = True
            names += [str(v).lower() for v in one.value if is_stated(v)]
        elif isinstance(one.value, str):
            names.append(one.value.strip().lower())
    different = set(names)
    if (count is not None and count > 1) or len(different) > 1 or (not different and count is None):
        return None
    general = evidence.says(
        r"generali[sz]|in general|\ball (?:networks|models|data|tasks|workloads)"
        r"|any (?:network|model|data|task"
        r"|workload)|every(?:where| network| task| data| model)|across (?:tasks|data|the board"
        r"|workloads|domains)"
        r"|universal|always|broadly|deep learning|outperforms|superior|better than"
        r"|state[- ]of[- ]the[- ]art"
        r"|general[- ]purpose|wins|beats"
    )
    named = any(_short(name) in evidence.text for name in different)
    only = evidence.says(r"(?:one|single|only) (?:data ?set|benchmark|task)")
    if named or only:
        return None
    if general or listed or count == 1:
        what = next(iter(different), "one data set")
        return Found(f"all is shown on {what} alone")
    return None


def _short(name: str) -> str:
    return re.split(r"[-_\s]", name)[0]
