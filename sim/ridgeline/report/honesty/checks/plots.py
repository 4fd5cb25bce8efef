"""Misleading presentation, P1 to P6."""

from __future__ import annotations

import re

from ridgeline.report.honesty.evidence import Evidence, Statement, number, truth
from ridgeline.report.honesty.rules import BENCHMARKS, Found, rule
from ridgeline.report.honesty.vocabulary import meaning

_TIME_IN_TEXT = (
    r"\d[\d.,]*\s?(?:ns|us|µs|ms|s|sec|seconds?|min|minutes?|h|hours?|days?)\b"
    r"|\d[\d.,]*\s?(?:images?|img|samples?"
    r"|tokens?)\s?(?:/|per )\s?s"
)
_RANGE = (
    r"±|\+/-|\bp0?5\b|\bp95\b|5 (?:to|and|-) 95|\b95 ?%|\bci\b|confidence|std"
    r"|standard deviation|error bars?"
    r"|\biqr\b|quartile|interval|uncertain|range of|spread|\bbands?\b|min(?:imum)? (?:and"
    r"|to) max|percentile"
    r"|a bound|deterministic"
)
_IDEAL = r"\bideal\b|\blinear\b|perfect scaling|\bperfect\b|y ?= ?x|proportional"


def _scale(evidence: Evidence, axis: str) -> str:
    """Return "log" or "linear", or "" where nothing is said of an axis."""
    for one in evidence.stated(f"{axis}_scale"):
        text = str(one.value).lower()
        if "log" in text or (truth(one.value) is True and "log" in one.name.lower()):
            return "log"
        if "lin" in text or (truth(one.value) is False and "log" in one.name.lower()):
            return "linear"
    return ""


def _drawn(evidence: Evidence) -> str:
    """Return the concept that the vertical axis shows; of several labels the first with one."""
    for one in evidence.stated("y_label"):
        found = meaning(str(one.value)).concept
        if found:
            return found
    return ""


def _is_relative(evidence: Evidence) -> bool:
    return _drawn(evidence) in {"speedup", "efficiency"} or (
        not evidence.stated("y_label") and bool(list(evidence.all("speedup")))
    )


@rule(
    "P1",
    "Speed-up on a logarithmic axis",
    source=BENCHMARKS,
    severity="refuse",
    say="draw the ideal line, and the same curves on linear axes from zero beside or in the figure",
    trigger=(
        "A figure whose vertical axis is logarithmic and shows speed-up, efficiency or "
        "throughput over devices, without both an ideal line and a frame with linear axes."
    ),
)
def logarithmic_speedup(evidence: Evidence) -> Found | None:
    """Check for P1: speed-up on a logarithmic axis."""
    if _scale(evidence, "y") != "log":
        return None
    drawn = _drawn(evidence)
    over_devices = any(
        meaning(str(one.value)).concept == "devices" for one in evidence.stated("x_label")
    ) or bool(evidence.stated("devices"))
    if not (_is_relative(evidence) or (drawn == "throughput" and over_devices)):
        return None
    ideal = evidence.flag("ideal_line")
    if ideal is None:
        words = [*evidence.texts, *(str(one.value) for one in evidence.stated("ideal_line"))]
        ideal = any(re.search(_IDEAL, text.lower()) for text in words)
    inset = evidence.flag("linear_inset")
    if inset is None:
        inset = bool(evidence.stated("linear_inset"))
    if ideal and inset:
        return None
    missing = " and ".join(
        name for name, there in (("ideal line", ideal), ("linear frame", inset)) if not there
    )
    return Found(f"the vertical axis is logarithmic, without {missing}")


@rule(
    "P2",
    "The vertical axis is cut off",
    source=BENCHMARKS,
    severity="warn",
    say="begin the axis at zero, or say in the figure where it begins and that it is cut",
    trigger=(
        "A linear vertical axis that does not hold zero: of bars, or beginning above half of "
        "its end."
    ),
)
def cut_axis(evidence: Evidence) -> Found | None:  # noqa: PLR0911 - a sign each
    """Check for P2: the vertical axis is cut off."""
    if _scale(evidence, "y") == "log" or evidence.says(
        r"(?:axis|scale)[^.\n]{0,40}(?:cut|truncat|broken|does not (?:start|begin)|begins? at"
        r"|starts? at"
        r"|not from zero)|zoomed|close[- ]?up"
    ):
        return None
    if evidence.flag("zero_based") is True:
        return None
    low = evidence.one_number("y_min")
    high = evidence.one_number("y_max")
    for one in evidence.stated("y_limits"):
        ends = one.value if isinstance(one.value, list | tuple) else re.split(
            r"\s*(?:,|;|\.\.+|–|—|\bto\b|(?<=\d)\s*-\s*)\s*", str(one.value).strip("[]() ")
        )  # fmt: skip
        known = [x for end in ends if (x := number(end)) is not None]
        if len(known) == 2:
            low, high = min(known), max(known)
    bars = any("bar" in str(one.value).lower() for one in evidence.stated("plot_kind"))
    if evidence.flag("zero_based") is False:
        return Found("the vertical axis does not hold zero")
    if low is None or low <= 0:
        return None
    if high is None:
        if not bars and low < _HALF * max(evidence.numbers("accuracy", "speedup"), default=0.0):
            return None
        return Found(f"the vertical axis begins at {low:g}")
    if bars or low > _HALF * high:
        return Found(f"the vertical axis goes from {low:g} to {high:g}")
    return None


_HALF = 0.5


@rule(
    "P3",
    "Speed-up without a time",
    source=BENCHMARKS,
    severity="warn",
    say="give the time (or throughput) of the baseline in the figure",
    trigger=(
        "A figure, or a table whose only results are ratios, shows speed-up or efficiency and "
        "nowhere an absolute time or throughput."
    ),
)
def speedup_alone(evidence: Evidence) -> Found | None:
    """Check for P3: speed-up without a time."""
    if not _is_relative(evidence):
        return None
    if evidence.stated("time", "throughput", "time_to_target", "absolute"):
        return None
    text = "\n".join([evidence.text, *(str(one.value) for one in evidence.all("baseline"))]).lower()
    if re.search(_TIME_IN_TEXT, text):
        return None
    return Found("speed-up is shown, and no time or throughput of anything")


@rule(
    "P4",
    "No uncertainty",
    source=BENCHMARKS,
    severity="warn",
    say="draw 5 and 95 % (or the spread of the runs and their number), or say why there is none",
    trigger=("A figure of results without error bars, a band, or words on their spread."),
)
def no_uncertainty(evidence: Evidence) -> Found | None:
    """Check for P4: no uncertainty."""
    if not evidence.is_figure:
        return None
    shown = evidence.flag("error_bars")
    if shown is None and (evidence.stated("error_bars", "spread") or evidence.says(_RANGE)):
        return None
    if shown or (shown is False and (evidence.stated("spread") or evidence.says(_RANGE))):
        return None
    if shown is None and not _shows_results(evidence):
        return None
    return Found("no error bars, no band and no word on the spread of the values")


def _shows_results(evidence: Evidence) -> bool:
    """Tell whether the vertical axis shows something that a run or a simulation gives."""
    results = {"speedup", "efficiency", "time", "throughput", "accuracy", "loss", "time_to_target",
               "energy", "power", "ops_rate", "per_watt", "per_dollar", "per_area"}  # fmt: skip
    drawn = _drawn(evidence)
    return drawn in results or (not evidence.stated("y_label") and bool(evidence.stated(*results)))


@rule(
    "P5",
    "Extrapolation is not marked",
    source=BENCHMARKS,
    severity="warn",
    say="hatch or dash what lies beyond the range that was calibrated or validated, and say where"
    " it ends",
    trigger=(
        "Points lie beyond the stated range of calibration or validation, or are extrapolated, "
        "and are not marked as that."
    ),
)
def unmarked_extrapolation(evidence: Evidence) -> Found | None:
    """Check for P5: extrapolation is not marked."""
    marks = evidence.column("extrapolated")
    told = evidence.stated("extrapolated")
    stated_marks = [truth(one.value) for one in told if re.search(
        r"hatch|mark|dash|style|shown|label", one.name.lower()
    )]  # fmt: skip
    if True in stated_marks or evidence.says(
        r"extrapolat|beyond (?:the )?(?:valid|calibrat|measur)"
    ):
        return None
    limits = [_end(one.value) for one in evidence.stated("validated_max")]
    known = [x for x in limits if x is not None]
    if known:
        limit = max(known)
        words = evidence.stated("validated_max")[0].meaning.words
        concept = next(
            (c for c in ("global_batch", "local_batch", "input_size") if _about(c, words)),
            "devices",
        )
        values = evidence.column_numbers(concept)
        if not any(v is not None for v in values):
            values = [one.number for one in evidence.stated(concept)]
            marks = [None] * len(values)
        beyond = [
            v for v, mark in zip(values, marks, strict=True)
            if v is not None and v > limit and truth(mark) is not True
        ]  # fmt: skip
        if beyond:
            return Found(
                f"{max(beyond):g} is beyond {limit:g}, the end of the validated range, and not"
                f" marked"
            )
        return None
    if False in stated_marks and any(truth(one.value) is True for one in told):
        return Found("extrapolated points are not marked")
    return None


def _about(concept: str, words: frozenset[str]) -> bool:
    return {"global_batch": "batch", "local_batch": "batch", "input_size": "resolution"}[
        concept
    ] in words


def _end(value: object) -> float | None:
    """Return the upper end of a range: 512, [1, 512], "1-512", "up to 512 GPUs"."""
    if isinstance(value, list | tuple):
        known = [x for part in value if (x := number(part)) is not None]
        return max(known, default=None)
    if isinstance(value, str):
        found = [number(text) for text in re.findall(r"\d[\d,_.]*k?", value)]
        return max((x for x in found if x is not None), default=None)
    return number(value)


@rule(
    "P6",
    "A simulation is presented as a measurement",
    source=BENCHMARKS,
    severity="refuse",
    say='write "simulated, not measured", with the simulator and its range of error',
    trigger=(
        "Numbers of a simulator or model under words that say measured, benchmarked, observed "
        'or "we ran"; or a figure of ridgeline without the word "simulated".'
    ),
)
def simulated_as_measured(evidence: Evidence) -> Found | None:
    """Check for P6: a simulation is presented as a measurement."""
    sources = evidence.stated("source")
    simulated = evidence.simulated or any(_is_model(one) for one in sources)
    if not simulated:
        return None
    text = re.sub(_NOT_MEASURED, "", evidence.text)
    said = re.search(
        r"\bmeasur\w+|benchmarked|\bobserved\b|\bwe ran\b|experiment(?:s|al|ally)?\b"
        r"|on real hardware|real runs?\b"
        r"|achieved on|recorded on|timed on|empirical",
        text,
    )
    admits = re.search(r"simulat|(?<!not )(?<!un)\bmodell?ed|predict|estimat|projected", text)
    if said:
        return Found(f'the numbers are simulated, and the words say "{said[0]}"')
    if evidence.kind == "figure" and not admits:
        return Found("the numbers are simulated, and the figure does not say so")
    return None


_NOT_MEASURED = (
    r"not (?:a )?measure\w*|never measured|nothing (?:was|is) measured|instead of measur\w*"
    r"|(?:errors? of|by|from|with|of) [\d,]+ measured|validated[^.\n]*measur\w*"
    r"|compared with measur\w*|measured (?:steps|rows)"
)
_MODEL = r"simulat|modell?ed|predict|analytic|estimat|roofline|projected|model\b"


def _is_model(one: Statement) -> bool:
    """Tell whether a source of numbers is a simulator or a model."""
    text = str(one.value).lower()
    if re.search(_MODEL, text) and not re.search(r"not (?:simul|model)", text):
        return True
    words = one.meaning.words
    return truth(one.value) is True and "simulated" in words and "measured" not in words
