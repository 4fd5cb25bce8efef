"""Number formats: their bits, what they can hold, and how numbers are rounded to them.

===========  ====  ========  ========  ======  ===========  ===========================
format       bits  exponent  mantissa  shared  accumulated  source
===========  ====  ========  ========  ======  ===========  ===========================
fp64         64    11        52                fp64         IEEE 754-2019, binary64
fp32         32    8         23                fp32         IEEE 754-2019, binary32
tf32         32    8         10                fp32         NVIDIA A100 white paper, 2020
bf16         16    8         7                 fp32         Kalamkar et al., 2019
fp16         16    5         10                fp32         IEEE 754-2019, binary16
fp8-e4m3     8     4         3                 fp32         Micikevicius et al., 2022
fp8-e5m2     8     5         2                 fp32         Micikevicius et al., 2022
fp8-block    8     4         3                 fp32         DeepSeek-AI, 2024; 32 for each 128
mxfp8        8     4         3                 fp32         OCP, 2023; 8 for each 32
mxfp4        4     2         1                 fp32         OCP, 2023; 8 for each 32
nvfp4        4     2         1         32      fp32         NVIDIA, 2025; 8 for each 16
nf4          4     0         4                 none         Dettmers et al., 2023; see below
int8         8     0         7                 int32        Jacob et al., CVPR 2018
int8-block   8     0         7                 int32        Dettmers et al., 2022; 32 for each 256
int16        16    0         15                int32        Chen et al. (Eyeriss), JSSC 2017
flex16+5     16    0         15        5       fp32         Köster et al., NIPS 2017
===========  ====  ========  ========  ======  ===========  ===========================

"mantissa" is without the hidden bit of a float and without the sign. "shared" bits exist once for a
whole tensor; fp8-block has more for every 128 numbers, mxfp8 and mxfp4 for every 32, nvfp4 for
every 16, the scale of their block, and their range here is that of a number alone. tf32 uses 19 of
the 32 bits that it is stored in. int32 and int64 only index. A number of nf4 is the index of one of
16 levels, the quantiles of a normal distribution, and is never multiplied as it is: every 64
numbers share a scale of 8 bits, every 256 of these scales one of 32 (Dettmers et al., "QLoRA:
efficient finetuning of quantized LLMs", arXiv:2305.14314, Section 3, with double quantization).

**Stored in one format, multiplied in another.** "X-as-Y" is a format with the bits of X whose
numbers are converted to Y where they are multiplied: "fp16-as-fp32", what cuDNN calls its pseudo
half configuration; "fp32-as-bf16", what TPUs make of fp32 by default; "int8-as-bf16". Memory and
traffic are those of X, rate and sums those of Y. X and Y are any two of the table that do not only
index.

A float is rounded to nearest, ties to even, with gradual underflow, and beyond its largest number
becomes infinite; fp8-e4m3, fp8-block and mxfp8 have no infinity and give NaN there; mxfp4 and nvfp4
have neither and saturate. Integers and flex16+5 have a step, the same for a whole tensor, and
saturate.

Micikevicius et al., "FP8 formats for deep learning", arXiv:2209.05433; Kalamkar et al., "A study of
BFLOAT16 for deep learning training", arXiv:1905.12322; Jacob et al., "Quantization and training of
neural networks for efficient integer-arithmetic-only inference"; Köster et al., "Flexpoint: an
adaptive numerical format for efficient training of deep neural networks", arXiv:1711.02213; NVIDIA,
"Pretraining large language models with NVFP4", arXiv:2509.25149, Section 2; DeepSeek-AI,
"DeepSeek-V3 technical report", arXiv:2412.19437, Section 3.3.2; Open Compute Project,
"Microscaling formats (MX) specification", version 1.0, 2023.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from types import MappingProxyType
from typing import Literal

from ridgeline.errors import RidgelineError, nearest

Kind = Literal["float", "fixed", "index"]
AS = "-as-"
"""Between the format that numbers are stored in and the one that they are multiplied in."""


@dataclass(frozen=True, slots=True)
class Format:
    """How one number is stored, and what a whole tensor of them shares.

    Attributes
    ----------
    kind
        "float"; "fixed": an integer times a step that all numbers of a tensor share; "index": an
        integer that stands for itself, or for a level of a table.
    bits
        Of storage of one number.
    exponent_bits, mantissa_bits
        Of one number; the mantissa without sign and hidden bit.
    shared_bits
        Stored once for a tensor.
    arithmetic
        The name under which a device states its rate: both fp8 formats multiply at one.
    accumulator
        Format that products are summed in.
    kept
        What stands for no number: the largest exponent (IEEE 754), its last mantissa, or nothing.
    block, block_bits
        How many numbers have a scale of their own, of so many bits; 0: none has.
    stored
        The format that its numbers lie in memory as, if that is another.
    """

    name: str
    kind: Kind
    bits: int
    exponent_bits: int
    mantissa_bits: int
    shared_bits: int = 0
    arithmetic: str = ""
    accumulator: str = "fp32"
    kept: Literal["exponent", "code", "nothing"] = "exponent"
    block: int = 0
    block_bits: int = 0
    stored: str = ""

    @property
    def in_memory(self) -> str:
        """Format that its numbers lie in memory as: two of the same need no cast between them."""
        return self.stored or self.name

    @property
    def rate(self) -> str:
        """Name under which a device states how fast it multiplies numbers of this format."""
        return self.arithmetic or self.name

    @property
    def kernels(self) -> str:
        """Name of the kernels that multiply it: of its rate, or "X-as-Y" where they convert."""
        return self.name if AS in self.name else self.rate

    @property
    def bias(self) -> int:
        """Exponent of 1.0 in a float."""
        return int(2 ** (self.exponent_bits - 1)) - 1

    @property
    def largest(self) -> float:
        """Largest finite number; of a fixed format, in steps."""
        if self.kind != "float":
            return 2.0**self.mantissa_bits - 1
        last = 2 - 2.0**-self.mantissa_bits
        if self.kept == "exponent":
            return last * 2.0**self.bias
        if self.kept == "code":
            last -= 2.0**-self.mantissa_bits
        return last * 2.0 ** (self.bias + 1)

    @property
    def least_normal(self) -> float:
        """Least number with a full mantissa; of a fixed format 1 step."""
        return 2.0 ** (1 - self.bias) if self.kind == "float" else 1.0

    @property
    def least(self) -> float:
        """Least number above 0; of a fixed format 1 step."""
        return self.least_normal * 2.0**-self.mantissa_bits if self.kind == "float" else 1.0

    @property
    def epsilon(self) -> float:
        """Distance from 1 to the next number above it, of a float."""
        return 2.0**-self.mantissa_bits

    def tensor_bits(self, elements: int) -> int:
        """Bits of a tensor, with what its elements share."""
        scales = -(-elements // self.block) * self.block_bits if self.block else 0
        return elements * self.bits + scales + self.shared_bits


_ALL = (
    Format("fp64", "float", 64, 11, 52, accumulator="fp64"),
    Format("fp32", "float", 32, 8, 23),
    Format("tf32", "float", 32, 8, 10, stored="fp32"),
    Format("bf16", "float", 16, 8, 7),
    Format("fp16", "float", 16, 5, 10),
    Format("fp8-e4m3", "float", 8, 4, 3, arithmetic="fp8", kept="code"),
    Format("fp8-e5m2", "float", 8, 5, 2, arithmetic="fp8"),
    Format("fp8-block", "float", 8, 4, 3, 0, "fp8", kept="code", block=128, block_bits=32),
    Format("mxfp8", "float", 8, 4, 3, 0, "fp8", kept="code", block=32, block_bits=8),
    Format("mxfp4", "float", 4, 2, 1, 0, "fp4", kept="nothing", block=32, block_bits=8),
    Format("nvfp4", "float", 4, 2, 1, 32, arithmetic="fp4", kept="nothing", block=16, block_bits=8),
    Format("int8", "fixed", 8, 0, 7, accumulator="int32"),
    Format("int8-block", "fixed", 8, 0, 7, 0, "int8", "int32", block=256, block_bits=32),
    Format("int16", "fixed", 16, 0, 15, accumulator="int32"),
    Format("flex16+5", "fixed", 16, 0, 15, shared_bits=5),
    Format("nf4", "index", 4, 0, 4, block=64 * 256, block_bits=256 * 8 + 32),
    Format("int32", "index", 32, 0, 31, accumulator="int32"),
    Format("int64", "index", 64, 0, 63, accumulator="int64"),
)
FORMATS: Mapping[str, Format] = MappingProxyType({format_.name: format_ for format_ in _ALL})
ALIASES: Mapping[str, str] = MappingProxyType(
    {"fp8": "fp8-e4m3", "fp4": "nvfp4", "fp16-stored": f"fp16{AS}fp32"}
)
"""Other names. Those of rates: "fp8" alone is the one that weights and activations have."""


@cache
def find(name: str) -> Format:
    """Return a format by name, which may be "X-as-Y".

    Raises
    ------
    RidgelineError
        If it is unknown.
    """
    full = ALIASES.get(name, name)
    if full in FORMATS:
        return FORMATS[full]
    stored, as_, multiplied = full.partition(AS)
    if not (stored and as_ and multiplied):
        raise RidgelineError(
            f"unknown number format {name!r}{nearest(name, FORMATS)} (known: {', '.join(FORMATS)},"
            f" and X{AS}Y of two of them)"
        )
    return _converted(find(stored), find(multiplied))


def _converted(stored: Format, multiplied: Format) -> Format:
    """Return the format of numbers that are stored in one and multiplied in another."""
    name = f"{stored.name}{AS}{multiplied.name}"
    for one in (stored, multiplied):
        if one.kind == "index" or AS in one.name:
            what = "only indexes" if one.kind == "index" else "is itself converted"
            raise RidgelineError(f"there is no number format {name!r}: {one.name} {what}")
    return replace(
        stored,
        name=name,
        arithmetic=multiplied.rate,
        accumulator=multiplied.accumulator,
        stored=stored.in_memory,
    )


def bytes_of(name: str) -> float:
    """Bytes of one number in a format; an error if the format is unknown."""
    return find(name).bits / 8


def number_bytes(name: str) -> float:
    """Bytes of one number among many, with its part of the scale of its block."""
    many = 1 << 20
    return find(name).tensor_bits(many) / (8 * many)


FORMAT_BYTES: Mapping[str, float] = MappingProxyType(
    {name: bytes_of(name) for name in (*FORMATS, *ALIASES)}
)
"""Bytes of one number."""


def step_for(format_: Format, largest_magnitude: float) -> float:
    """Return the step of a fixed format that just holds numbers up to this magnitude.

    That of flex16+5 is a power of two, as its shared exponent says it; that of int8 is any number.
    """
    if largest_magnitude <= 0 or not math.isfinite(largest_magnitude):
        raise RidgelineError(
            f"{format_.name} needs a largest magnitude above 0, found {largest_magnitude!r}"
        )
    step = largest_magnitude / format_.largest
    if not format_.shared_bits:
        return step
    mantissa, exponent = math.frexp(step)
    return math.ldexp(1.0, exponent - 1 if mantissa == 0.5 else exponent)
