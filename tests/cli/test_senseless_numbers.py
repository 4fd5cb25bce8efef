"""Numbers that cannot be are refused with the option's name, and status 2."""

from __future__ import annotations

import shlex

import pytest

from ridgeline.cli import execute
from ridgeline.errors import ConfigError
from ridgeline.units import parse

RING = '"Ring(8, 50 GB/s, 1 us)"'
RUN = "run resnet18-cifar a100-sxm4-80gb --batch 8 --set cluster.device."


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("formats --normal 1 --scale 0", "--scale. Must be > 0"),
        ("formats --normal 1 --scale=-2", "--scale. Must be > 0"),
        ("formats --normal 1 --scale nan", "expected a number, found 'nan'"),
        ("formats --normal 1 --step 0", "--step. Must be > 0"),
        ("formats --scale 2", "--scale: is for values"),
        ("formats --step 2", "--step: is for values"),
        (f"collective all-reduce 1e30GB {RING}", "at most 1.15e+18 B"),
        (f"collective all-reduce -- -1MB {RING}", "at least 0 B"),
        ('collective all-reduce 1GB "Ring(8, 1e-300 B/s, 1 us)"', "out of range"),
        ('collective all-reduce 1GB "Ring(8, 50 GB/s, 1e300 s)"', "out of range"),
        ('topology dgx-h100 --load "all-reduce 1e30GB"', "at most 1.15e+18 B"),
        ("memory resnet18-cifar --batch 8 --budget 0B", "--budget: must be more than 0 B"),
        ("memory resnet18-cifar --batch 8 --budget=-1GB", "--budget: must be more than 0 B"),
        ("plan mlp dgx-h100 --devices 8 --batch 99999999999999", "1 to 2147483648 samples"),
        (f'{RUN}memory.hbm.bandwidth="1e-300 B/s"', "out of range"),
        (f"{RUN}achievable_from.scale=-1", "greater than 0"),
        (
            "run mlp dgx-h100 --batch 8 --plan data=8 --set cluster.node.host.issue=0",
            "host.issue: Input should be greater than 0; found 0",
        ),
        (
            "run mlp dgx-h100 --batch 8 --plan data=8 --set cluster.node.host.cores=-1",
            "greater than or equal to 1",
        ),
        (
            "run mlp dgx-h100 --batch 8 --set device.tdp=1",
            "model., cluster., plan. or software. and goes",
        ),
    ],
)
def test_a_senseless_number_is_refused(
    line: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    line = line.replace("a100-sxm4-80gb", "a100-sxm4-40gb")  # which takes over shares of another
    assert execute(shlex.split(line)) == 2
    out, err = capsys.readouterr()
    assert message in err
    assert not out


@pytest.mark.parametrize("text", ["1e41 B", "1e-41 s", "-1e60 W", "1e38 GB"])
def test_no_quantity_is_so_large_or_small(text: str) -> None:
    with pytest.raises(ConfigError, match="out of range"):
        parse(text, text.split()[1])
