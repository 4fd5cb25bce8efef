"""Hoefler's twelve ways to mislead with the performance of deep learning, H1 to H12."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from ridgeline.report.honesty.evidence import (
    Evidence,
    Row,
    Statement,
    differing,
    is_stated,
    number,
    sizes,
    truth,
)
from ridgeline.report.honesty.hardware_facts import HardwareFacts, hardware_facts
from ridgeline.report.honesty.rules import HOEFLER, Found, rule
from ridgeline.report.honesty.series import scaling_series

_UNMODELLED = (
    r"accuracy[^.;\n]{0,30}\b(?:un|not |isn't |never )(?:modelled|modeled|measured|considered|known"
    r"|reported|evaluated)|\bthroughput (?:scaling|only)|scaling of (?:the )?throughput"
    r"|no (?:statement|claim) (?:on|about|of) accuracy|accuracy (?:is )?(?:out of scope|left out)"
    r"|says nothing (?:of|about|on) accuracy|\bnot time[- ]to[- ]accuracy"
)
_FASTER = r"speed-?\s?ups?\b|\bfaster\b|\bscal(?:es|ing|able|ability)\b|\d\s?(?:x|×|times)\b"
_TRAINING = (
    r"\btrain(?:s|ing|ed)?\b|end[- ]to[- ]end|neural network|whole (?:step|model|run)|\bmodels?\b"
    r"|time[- ]to[- ](?:train|accuracy|solution)|deep[- ]learning|application|\bdnns?\b|\bllms?\b"
)
_END_TO_END = (
    r"end[- ]to[- ]end|time[- ]to[- ](?:train|accuracy|solution)|total training|whole (?:run"
    r"|training)"
    r"|complete training|full training|training (?:takes|time|run)|trains? (?:\S+ ){0,6}in \d"
    r"|wall[- ]?clock"
)  # fmt: skip


def has_accuracy(evidence: Evidence) -> bool:
    """Tell whether accuracy, or what leads to it (epochs to a target), is stated anywhere."""
    return bool(
        evidence.stated("accuracy", "epochs")
        or any(one.meaning.split == "test" for one in evidence.stated("loss"))
        or (evidence.stated("time_to_target") and evidence.stated("threshold", "target_metric"))
        or any("accuracy" in one.meaning.words for one in evidence.stated("time_to_target"))
    )


def disclaims_accuracy(evidence: Evidence) -> bool:
    """Tell whether a file says that accuracy is not known, as ridgeline's manifests do."""
    if (
        evidence.simulated
        and not evidence.says(r"accura|to train|converge|training speed-?\s?up|faster training")
        and not list(evidence.all("speedup"))
    ):
        return True
    said = [str(one.value).lower() for one in evidence.stated("accuracy_modelled", "accuracy")]
    return evidence.says(_UNMODELLED) or any(
        re.search(r"unmodel|not model|false|unmeasured|not measured", text) for text in said
    )


def claims_speed(evidence: Evidence) -> bool:
    """Tell whether a file has a speed-up, or says in words that something is faster."""
    return bool(
        list(evidence.all("speedup", "efficiency", "time_to_target")) or evidence.says(_FASTER)
    )


@rule(
    "H1",
    "Accuracy is ignored when scaling up",
    source=HOEFLER,
    severity="refuse",
    say='call it "throughput scaling (accuracy unmodelled)", or give time to a stated accuracy',
    covers=("H11", "P3"),
    trigger=(
        "A series over devices in which the batch over all devices, staleness or compression "
        'changes, with speed but without accuracy or epochs, and without the words "accuracy '
        'unmodelled".'
    ),
)
def accuracy_when_scaling(evidence: Evidence) -> Found | None:
    """Check for H1: accuracy is ignored when scaling up."""
    series = scaling_series(evidence)
    if series is None or has_accuracy(evidence) or disclaims_accuracy(evidence):
        return None
    if not (claims_speed(evidence) or evidence.stated("throughput", "time", "ops_rate")):
        return None
    changed = [name for name in ("staleness", "compression") if differing(evidence.column(name))]
    if series.mode in {"weak", "other"} and series.batches is not None:
        few, many = series.batches
        changed.insert(0, f"the batch (from {few:g} to {many:g})")
    if not changed:
        return None
    low, high = series.devices
    return Found(
        f"from {low:g} to {high:g} devices {' and '.join(changed)} changes, which changes what is"
        " learned, and no accuracy is given"
    )


@rule(
    "H2",
    "Test accuracy is not reported",
    source=HOEFLER,
    severity="refuse",
    say='label it "training accuracy: no evidence of generalisation", and give test or validation'
    " accuracy",
    trigger=(
        "Accuracy or loss of the training set (by its name, or by a field ``split``), or a loss"
        " of no stated set, and none of a test or validation set."
    ),
)
def test_accuracy(evidence: Evidence) -> Found | None:
    """Check for H2: test accuracy is not reported."""
    measured = evidence.stated("accuracy", "loss")
    splits = [str(one.value).lower() for one in evidence.stated("split")]
    metrics = [str(one.value).lower() for one in evidence.stated("target_metric")]
    tested = r"\b(?:test|val|valid|validation|held[- _]?out|hold[- _]?out|dev|eval)"
    if evidence.says(r"no evidence of generali[sz]ation|not evidence of generali[sz]ation"):
        return None
    if any(one.meaning.split == "test" for one in measured):
        return None
    words = [*splits, *metrics]
    if any(re.search(tested, text) for text in words):
        return None
    trained = [one.name for one in measured if one.meaning.split == "train"]
    trained += [text for text in words if re.search(r"\btrain", text.replace("_", " "))]
    if not trained and measured and evidence.says(r"training (?:set )?(?:accuracy|error|loss)"):
        trained = ["training accuracy in the text"]
    if not trained and measured and all(one.meaning.concept == "loss" for one in measured):
        trained = [f"{measured[0].name}, of which set is not said,"]
    if not trained or (not measured and not splits and not metrics):
        return None
    return Found(f"only {trained[0]} is given, and nothing of a test or validation set")


@rule(
    "H3",
    "Tuning runs are hidden",
    source=HOEFLER,
    severity="warn",
    say="give the total cost of all runs beside that of the final one, their number, and the median"
    " and quartiles of their results",
    covers=("C2",),
    trigger=(
        "Runs that tuned hyper-parameters or searched a design are counted above 0, or said to "
        "be unknown, and no cost or time of all runs is given."
    ),
)
def tuning_runs(evidence: Evidence) -> Found | None:
    """Check for H3: tuning runs are hidden."""
    told = list(evidence.all("tuning_runs"))
    if not told or evidence.stated("tuning_cost"):
        return None
    if evidence.says(
        r"(?:includ\w+|with|counting|plus)\s+(?:\S+\s+){0,4}(?:tuning|search|all runs|trials)"
    ):
        return None
    counts = [x for one in told if (x := one.number) is not None]
    if counts:
        most = max(counts)
        if most <= 0:
            return None
        return Found(
            f"{most:g} tuning runs or candidates stand behind one result, and no total cost"
        )
    hidden = [one for one in told if not one.is_stated or truth(one.value) is True]
    words = [one for one in told if isinstance(one.value, str) and truth(one.value) is None]
    if hidden or words:
        return Found(f"{told[0].name} is {told[0].value!r}: how many runs there were is not said")
    return None


@rule(
    "H4",
    "Outdated hardware is compared with special-purpose hardware",
    source=HOEFLER,
    severity="warn",
    say="print year, process node, power, price and number format of both, and the ratio at equal"
    " power, area and node; compare machines of one generation",
    trigger=(
        "Two machines whose years are more than 2 apart, process nodes more than one "
        "generation, or number formats, power (2x) or price (2x) differ, without a normalised "
        "ratio (per watt, per mm2, per dollar, node-normalised); 4 years or more are refused."
    ),
)
def outdated_hardware(evidence: Evidence) -> Found | None:
    """Check for H4: outdated hardware is compared with special-purpose hardware."""
    sides = hardware_facts(evidence)
    if len(sides) < 2:
        return None
    if evidence.simulated and evidence.kind in {"table", "study"} and not evidence.says(_WINS):
        return None  # rows with power and area, of which nobody has said which is better
    old, new = min(sides, key=_year), max(sides, key=_year)
    gap = _year(new) - _year(old) if old.year and new.year else 0
    apart = (
        f"{old.label} ({old.year:g}) and {new.label} ({new.year:g}) are {gap:g} years apart"
        if old.year and new.year
        else ""
    )
    historical = evidence.says(r"histor|generations apart|over the years|across generations")
    if gap >= _REFUSED_YEARS and not historical:
        return Found(apart, "refuse")
    normalised = evidence.stated("per_watt", "per_area", "per_dollar", "node_normalised")
    if normalised or historical:
        return None
    if gap > _WARNED_YEARS:
        return Found(apart)
    return _classes(evidence, sides)


_WINS = r"faster|beats|better|outperform|speed-?\s?up|\bvs\b|versus|superior|wins"
_REFUSED_YEARS, _WARNED_YEARS, _CLASS = 4, 2, 2.0
_NODES_NM = (90, 65, 45, 40, 32, 28, 22, 20, 16, 14, 12, 10, 8, 7, 6, 5, 4, 3, 2)
_GENERATIONS = (
    {90}, {65}, {45, 40}, {32, 28}, {22, 20}, {16, 14, 12}, {10, 8}, {7, 6}, {5, 4}, {3}, {2},
)  # fmt: skip


def _year(side: HardwareFacts) -> float:
    return side.year or 0.0


def _generation(node_nm: float) -> int:
    nearest = min(_NODES_NM, key=lambda known: abs(known - node_nm))
    return next(i for i, nodes in enumerate(_GENERATIONS) if nearest in nodes)


def _classes(evidence: Evidence, sides: list[HardwareFacts]) -> Found | None:
    """Compare nodes, formats, power and price of machines of like years."""
    nodes = [side.node_nm for side in sides if side.node_nm]
    if len(nodes) > 1 and _generation(min(nodes)) - _generation(max(nodes)) > 1:
        return Found(f"process nodes of {max(nodes):g} and {min(nodes):g} nm are compared")
    formats = {side.precision for side in sides if side.precision}
    if len({side.label for side in sides}) > 1 < len(formats) and len(
        evidence.stated("accuracy")
    ) < len(sides):
        return Found(
            f"number formats differ ({', '.join(sorted(formats))}) and accuracy is not given"
            f" for each"
        )
    for what, values in (
        ("power", [side.tdp_w for side in sides if side.tdp_w]),
        ("price", [side.price for side in sides if side.price]),
    ):
        if len(values) > 1 and max(values) > _CLASS * min(values):
            return Found(f"{what} of {min(values):g} and {max(values):g} is compared")
    return None


@rule(
    "H5",
    "Kernels or subsets stand for the whole",
    source=HOEFLER,
    severity="refuse",
    say='say "covers x % of the step", and give the bound on the whole step by Amdahl\'s law',
    covers=("H1", "H6", "H11"),
    trigger=(
        "A scope below a training step (kernel, layer, communication only), or a coverage below"
        " 95 %, under words or columns that speak of training or the network."
    ),
)
def kernels_only(evidence: Evidence) -> Found | None:
    """Check for H5: kernels or subsets stand for the whole."""
    if evidence.stated("amdahl") or evidence.says(
        r"amdahl|covers? (?:only )?\d|\d+\s?% of (?:the|a) "
    ):
        return None
    shares = [x / 100 if x > 1 else x for x in evidence.numbers("coverage")]
    if shares and min(shares) < _COVERED:
        return Found(
            f"{min(shares):.0%} of the step are covered, and no bound on the whole is given"
        )
    scopes = [str(one.value).lower() for one in evidence.stated("scope")]
    part = next((text for text in scopes if _is_part(text)), "")
    if not part and not scopes:
        units = [one for one in evidence.stated("unit_of_work") if isinstance(one.value, str)]
        part = f"{units[0].name} {units[0].value!r}" if units else ""
    if not part:
        return None
    claim = f"{evidence.text}\n{evidence.names}"
    honest = r"\b(?:kernel|layer|micro-?benchmark|op(?:erator)?|gemm|all-?reduce|conv\w*)s?\b"
    if evidence.has_claim and re.search(honest, evidence.text):
        whole = re.search(
            r"end[- ]to[- ]end|whole|time[- ]to|training (?:is|runs|time|speed)", claim
        )
        if not whole:
            return None
    if re.search(_TRAINING, claim):
        return Found(f"{part} was measured, and the statement is of training")
    return None


_COVERED = 0.95


def _is_part(text: str) -> bool:
    if re.search(r"\b(?:one |a |full |whole |training )?(?:step|iteration|run|epoch|end)\b", text):
        return False
    return bool(
        re.search(
            r"kernel|layer|\bops?\b|operator|gemm|matmul|conv|subset|collective|all-?reduce"
            r"|communicat|forward|attention|block|primitive|micro-?bench|isolat|partial|inference"
            r"|module|backward only|loop|compute only",
            text,
        )
    )


@rule(
    "H6",
    "Input and output are not considered",
    source=HOEFLER,
    severity="warn",
    say="give the bytes a second that the input needs and the storage's rate, and the time of a"
    ' cold run; do not say "end to end"',
    trigger=(
        'Input is said to be left out, synthetic or staged in memory, or words say "end to end"'
        " of a result whose input is not modelled (then refused), or the input needs more than "
        "the storage has."
    ),
)
def input_output(evidence: Evidence) -> Found | None:
    """Check for H6: input and output are not considered."""
    need, room = evidence.one_number("required_bandwidth"), evidence.one_number("storage_bandwidth")
    if need is None:
        size, rate = evidence.one_number("sample_bytes"), evidence.numbers("throughput")
        need = None if size is None or not rate else size * max(rate)
    if need is not None and room is not None and need > room:
        return Found(f"the input needs {need:g} and the storage gives {room:g}, in the file's unit")
    told = [one for one in evidence.stated("io") if not isinstance(one.value, int | float)
            or isinstance(one.value, bool)]  # fmt: skip
    left = next((one for one in told if _leaves_io_out(one)), None)
    if left is None and not (
        evidence.simulated and any(truth(one.value) is False for one in evidence.all("io"))
    ):
        return None
    whole = re.search(_END_TO_END, evidence.text) or any(evidence.all("time_to_target"))
    shown = "the input is not modelled" if left is None else f"{left.name} is {left.value!r}"
    if whole:
        return Found(f"{shown}, and the statement is of the whole run", "refuse")
    if left is None or evidence.simulated:
        return None
    if evidence.says(
        r"synthetic|without (?:i/?o|input|data loading)|excluding (?:i/?o|input|data)|i/?o (?:is )?"
        r"(?:not|un)|input (?:is )?(?:not|un|excluded|left out)|no i/?o"
    ):
        return None
    return Found(shown)


def _leaves_io_out(one: Statement) -> bool:
    if truth(one.value) is False:
        return True
    return isinstance(one.value, str) and bool(
        re.search(
            r"synthetic|in[- ]?memory|\bram\b|staged|excluded|not (?:model|measur|includ|consider)"
            r"|ignored|preload|cached|random|dummy|left out|host memory|\bnone\b|omitted|fake|warm",
            one.value.lower(),
        )
    )


@rule(
    "H7",
    "The highest number of operations, whatever that means",
    source=HOEFLER,
    severity="refuse",
    say="count useful FLOPs of the algorithm (1 MAC = 2 FLOP, dense, format named) on both sides,"
    " and give time or operations to the solution",
    trigger=(
        "A rate of operations without saying what one is, with definitions that differ between "
        "sides, or with zeros, structured sparsity, bits or transistors counted."
    ),
)
def highest_operations(evidence: Evidence) -> Found | None:  # noqa: PLR0911 - a sign each
    """Check for H7: the highest number of operations, whatever that means."""
    rates = list(evidence.all("ops_rate"))
    if not rates:
        return None
    definitions = [str(one.value).lower() for one in evidence.stated("ops_definition")]
    if differing(definitions):
        return Found(f"operations are counted differently: {'; '.join(dict.fromkeys(definitions))}")
    counted = _inflated(" ".join(definitions))
    if not counted and not re.search(r"dense[- ]equivalent|without sparsity|dense", evidence.text):
        counted = _inflated(f"{evidence.text}\n{' '.join(one.name.lower() for one in rates)}")
    if counted:
        return Found(f"{counted} count as operations")
    if definitions or evidence.simulated:
        return None
    flops = all("op" not in one.meaning.words and _is_flops(one) for one in rates)
    useful = evidence.stated("time", "throughput", "time_to_target", "ops_total")
    if flops and useful and evidence.stated("precision"):
        return None
    if evidence.says(
        r"1 mac ?(?:=|is) ?2|2 flops? (?:per|a) mac|useful flops|multiply-?adds? count"
    ):
        return None
    return Found(f"{rates[0].name} does not say what an operation is")


def _is_flops(one: Statement) -> bool:
    return any(word.endswith("flops") for word in one.meaning.words)


def _inflated(text: str) -> str:
    found = re.search(
        r"transistor\w*|sparse\w*|sparsity|2:4|zeros?\b|bit[- ]?(?:flips?|ops?)|binary"
        r"|structured|toggl\w*"
        r"|switch(?:es|ing)|int[148]\b|1-bit|4-bit|low[- ]bit|skipped|comparisons?|gates?\b|aiops?"
        r"|logic ops?",
        text,
    )
    return found[0] if found else ""


@rule(
    "H8",
    "Performance with one set of options, accuracy with another",
    source=HOEFLER,
    severity="refuse",
    say="give time and accuracy of one and the same set of options, and show it",
    trigger=(
        "The options, batch, precision or learning rate of the speed differ from those of the "
        "accuracy: in two columns, in two blocks, or because no row has both."
    ),
)
def other_options(evidence: Evidence) -> Found | None:
    """Check for H8: performance with one set of options, accuracy with another."""
    by: dict[str, dict[str, list[Any]]] = {}
    for row in (evidence.facts, *evidence.rows):
        for one in row:
            if one.meaning.of and one.is_stated:
                sides = by.setdefault(one.meaning.concept, {"performance": [], "accuracy": []})
                sides[one.meaning.of].append(one.value)
    for concept, sides in by.items():
        fast, good = (sorted({_plain(v) for v in sides[of]}) for of in ("performance", "accuracy"))
        if not good and fast:
            good = sorted({_plain(v) for v in _unqualified(evidence, concept)})
        if not fast and good:
            fast = sorted({_plain(v) for v in _unqualified(evidence, concept)})
        if fast and good and fast != good:
            what = concept.replace("_", " ")
            return Found(f"{what} of the speed is {fast[0]}, that of the accuracy {good[0]}")
    return _rows_apart(evidence)


def _plain(value: Any) -> str:
    read = number(value) if not isinstance(value, dict) else None
    return f"{read:g}" if read is not None and not isinstance(value, str) else str(value).strip()


def _unqualified(evidence: Evidence, concept: str) -> Iterable[Any]:
    return [one.value for one in evidence.stated(concept) if not one.meaning.of]


_SPEED = ("time", "throughput", "speedup", "time_to_target", "ops_rate")
_CHOSEN = ("option", "global_batch", "local_batch", "precision", "learning_rate")


def _rows_apart(evidence: Evidence) -> Found | None:
    """Find rows with speed alone and rows with accuracy alone, of other options."""
    fast: list[Row] = []
    good: list[Row] = []
    for row in evidence.rows:
        has = {one.meaning.concept for one in row if one.is_stated}
        long = [one for one in row if one.meaning.concept == "target_metric" and one.is_stated]
        about = str(long[0].value).lower() if long else ""
        is_good = "accuracy" in has or "loss" in has
        is_fast = bool(has & set(_SPEED))
        if about:
            is_good = bool(re.search(r"acc|top-?1|error|bleu|quality|loss", about))
            is_fast = bool(re.search(r"speed|time|throughput|/s|per sec", about))
        if is_good and is_fast:
            return None
        (good if is_good else fast if is_fast else []).append(row)
    if not fast or not good:
        return None
    for concept in _CHOSEN:
        ours, theirs = (
            {_plain(one.value) for row in rows for one in row
             if one.meaning.concept == concept and one.is_stated}
            for rows in (fast, good)
        )  # fmt: skip
        if ours and theirs and not ours & theirs:
            what = concept.replace("_", " ")
            return Found(
                f"rows with speed have {what} {', '.join(sorted(ours))}, rows with accuracy"
                f" {', '.join(sorted(theirs))}"
            )
    return None


@rule(
    "H9",
    "Unreasonably large inputs",
    source=HOEFLER,
    severity="warn",
    say="report at the input size that the data set is usually trained with, too, and give FLOPs a"
    " sample at both",
    trigger=(
        "Inputs have more than 4 times the pixels or tokens that are usual for the data set "
        "(stated, or known of it), or FLOPs a sample are more than 4 times the reference, and "
        "no row has the usual."
    ),
)
def large_inputs(evidence: Evidence) -> Found | None:
    """Check for H9: unreasonably large inputs."""
    work, usual_work = evidence.numbers("flops_per_sample"), evidence.one_number("reference_flops")
    if work and usual_work and min(work) > _LARGER * usual_work:
        return Found(f"FLOPs a sample are {min(work) / usual_work:.3g} times the reference")
    found = [one for one in evidence.stated("input_size") if sizes(one.value)]
    if not found:
        return None
    stated = next((sizes(one.value) for one in evidence.stated("canonical_input")), None)
    for one in found:
        tokens = bool({"sequence", "context", "length", "token"} & one.meaning.words)
        usual = _elements(stated, tokens=tokens) if stated else _usual(evidence, tokens=tokens)
        if usual is None:
            return None
        if _elements(sizes(one.value), tokens=tokens) <= _LARGER * usual:
            return None  # a row at the usual size stands beside the others
    one = found[0]
    tokens = bool({"sequence", "context", "length", "token"} & one.meaning.words)
    usual = _elements(stated, tokens=tokens) if stated else _usual(evidence, tokens=tokens)
    assert usual is not None
    ratio = _elements(sizes(one.value), tokens=tokens) / usual
    unit = "tokens" if tokens else "pixels"
    return Found(f"{one.name} {one.value} has {ratio:.3g} times the usual {unit}")


_LARGER = 4.0
_USUAL = {
    # side in pixels that each is usually trained with: torchvision's references for ImageNet; the
    # native sizes of the sets otherwise (Krizhevsky 2009; LeCun 1998; Netzer 2011; Le, Yang 2015)
    "tiny imagenet": 64, "imagenet": 224, "ilsvrc": 224, "cifar": 32, "mnist": 28, "svhn": 32,
    "coco": 800, "resnet": 224, "vgg": 224, "googlenet": 224, "alexnet": 227, "inception": 299,
    "mobilenet": 224,
}  # fmt: skip
_USUAL_TOKENS = {
    # longest sequences that each is trained with: BERT and its scripts for SQuAD and GLUE
    # (arXiv:1810.04805); GPT-2 (Radford et al. 2019); GPT-3 (arXiv:2005.14165, Table 2.1);
    # tensor2tensor's transformer on WMT
    "bert": 512, "squad": 384, "glue": 128, "gpt-2": 1024, "gpt2": 1024, "gpt-3": 2048,
    "gpt3": 2048, "wmt": 256,
}  # fmt: skip


def _elements(shape: list[float], *, tokens: bool) -> float:
    """Return tokens, or pixels: the product of the two longest sides; one side is of a square."""
    longest = sorted(shape)[-2:]
    if tokens or not longest:
        return longest[-1] if longest else 0.0
    return longest[-1] * longest[0] if len(longest) > 1 else longest[0] ** 2


def _usual(evidence: Evidence, *, tokens: bool) -> float | None:
    words = " ".join(str(one.value).lower() for one in evidence.stated("dataset", "system"))
    words = f"{words} {evidence.text}"
    for name, length in (_USUAL_TOKENS if tokens else _USUAL).items():
        if re.search(rf"(?<![a-z]){name}", words):
            return float(length if tokens else length**2)
    return None


@rule(
    "H10",
    "Training runs just for the right time",
    source=HOEFLER,
    severity="refuse",
    say="run to a fixed target, and give iterations and time to it; more FLOP/s in the same time"
    " are no speed-up of the application",
    covers=("H1", "H11", "P3", "H7"),
    trigger=(
        "Runs end after a fixed time or number of epochs, or all take the same time, while the "
        "number of devices grows, and no target is reached."
    ),
)
def right_time(evidence: Evidence) -> Found | None:
    """Check for H10: training runs just for the right time."""
    if evidence.stated("accuracy") and evidence.stated("threshold"):
        return None
    series = scaling_series(evidence)
    words = " ".join(
        str(one.value).lower() for one in evidence.stated("criterion", "target_metric")
    )
    fixed = re.search(
        r"(?:fixed|same|equal|constant)[- _](?:wall|time|hour|epoch|duration|budget|run"
        r"|number)|budget"
        r"|wall[- _]?(?:clock|time)|time[- _]?(?:limit|out|budget|box)|after \d+ ?(?:h|min"
        r"|hour|epoch)"
        r"|^\s*\d+ ?(?:h|hours?|min\w*|epochs?)\b|fixed[- _]epochs|\btime\b(?! to)|\bepochs?\b",
        words,
    )
    text = evidence.says(
        r"(?:fixed|same|equal|constant)[- ](?:wall|time|hour|training time|duration"
        r"|number of epochs)"
        r"|for (?:exactly )?\d+ (?:h|hours?|min\w*|days?)\b[^.\n]*(?:each|every|all)"
    )
    limited = bool(evidence.stated("budget"))
    scales = series is not None or evidence.says(_FASTER) or bool(list(evidence.all("speedup")))
    if (fixed or text or limited) and scales and not evidence.stated("accuracy"):
        what = words if fixed else "a fixed time" if text else _shown(evidence.stated("budget")[0])
        return Found(f"runs end by {what}, not at a target, while the devices grow")
    if (
        (fixed or text or limited)
        and series is not None
        and (fixed is None or "epoch" not in words)
    ):
        return Found("runs end after a fixed time while the devices grow, each at another accuracy")
    times = [x for x in evidence.column_numbers("time") if x]
    work = evidence.stated("ops_rate", "ops_total", "iterations", "epochs", "throughput")
    if series is not None and len(times) > 2 and work and max(times) <= 1.01 * min(times):
        names = {one.name for one in evidence.stated("time")}
        if not any(re.search(r"step|iter|batch", name.lower()) for name in names):
            return Found(f"every run takes {times[0]:g}, from {series.devices[0]:g} to"
                         f" {series.devices[1]:g} devices")  # fmt: skip
    return None


def _shown(one: Statement) -> str:
    return f"{one.name} {one.value}"


@rule(
    "H11",
    "Weak scaling, or none that is named",
    source=HOEFLER,
    severity="warn",
    say='label it "weak scaling (batch a device constant)" or "strong scaling (batch constant)",'
    " draw the other line, and keep the batch within the range in which accuracy was measured",
    trigger=(
        "A series over devices whose batch grows and that is not labelled weak scaling, that is"
        " labelled strong while its batch grows, or that speaks of scaling and states neither "
        "mode nor batch."
    ),
)
def weak_or_strong(evidence: Evidence) -> Found | None:
    """Check for H11: weak scaling, or none that is named."""
    series = scaling_series(evidence)
    if series is None:
        return None
    low, high = series.devices
    grows = series.mode in {"weak", "other"}
    if series.batches is not None and grows:
        few, many = series.batches
        growth = f"the batch goes from {few:g} to {many:g} on {low:g} to {high:g} devices"
        if not series.label:
            return Found(f"{growth}, and the scaling is not labelled")
        if series.label == "strong":
            return Found(f"{growth}, which is not strong scaling as the file says")
    spoken = claims_speed(evidence) and bool(list(evidence.all("speedup", "efficiency")))
    if (
        series.mode == "unknown"
        and not series.label
        and (spoken or evidence.says(r"\bscal(?:es|ing)"))
    ):
        if evidence.is_figure:
            return None  # what its axes leave out is the business of P1 to P4
        return Found(
            f"neither the batch nor the kind of scaling is given for {low:g} to {high:g} devices"
        )
    return None


@rule(
    "H12",
    "The comparison with the state of the art is selected",
    source=HOEFLER,
    severity="warn",
    say="give time and accuracy (and energy and cost) of both together, against everything on the"
    " Pareto front; say which axis is missing",
    trigger=(
        "Words or columns speak of the state of the art, a record or earlier work, and only one"
        " of time and accuracy is given, where one of the training set does not count; or the"
        " baseline is dominated; or a row contradicts what was published."
    ),
)
def state_of_the_art(evidence: Evidence) -> Found | None:
    """Check for H12: the comparison with the state of the art is selected."""
    if evidence.published:
        run = evidence.published[0]
        return Found(f"row {run.row} ({run.system}): {run.differs}")
    for one in evidence.stated("dominated"):
        positive = "dominated" in one.meaning.words and "non" not in one.meaning.words
        if truth(one.value) is positive:
            return Found(f"{one.name} is {one.value}: the baseline is not the best that is known")
    known = list(evidence.all("is_sota")) or evidence.says(
        r"state[- ]of[- ]the[- ]art|\bsota\b|\brecord\b|world'?s fastest|prior (?:work|art)"
        r"|previous"
        r" (?:best|work|record)|published (?:best|result|record)|best (?:published|known)"
        r"|fastest ever"
    )
    if not known:
        systems = evidence.column("system")
        known = any(
            re.search(
                r"sota|state[- ]of[- ]the[- ]art|prior|previous|published|record", str(s).lower()
            )
            for s in systems
            if is_stated(s)
        )
    if not known or disclaims_accuracy(evidence):
        return None
    speed = evidence.stated(*_SPEED)
    measured = evidence.stated("accuracy", "loss")
    splits = [str(one.value).lower() for one in evidence.stated("split")]
    trained = bool(splits) and all(re.search(r"\btrain", text) for text in splits)
    quality = [
        one for one in measured
        if one.meaning.split == "test" or not (one.meaning.split == "train" or trained)
    ]  # fmt: skip
    if speed and not quality:
        given = "is given of the training set alone" if measured else "is not given"
        return Found(f"time is compared with the state of the art, and accuracy {given}")
    if quality and not speed and not evidence.stated("energy", "cost"):
        return Found("accuracy is compared with the state of the art, and time is not given")
    return None
