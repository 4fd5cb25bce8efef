"""``--set`` of `gemm` and `conv`: fields of the device, and what is no field of one."""

from __future__ import annotations

import json

import pytest

from ridgeline.cli import execute


@pytest.mark.parametrize(
    "words", [["gemm", "512", "4096", "512"], ["conv", "8", "64", "56", "56", "64", "3"]]
)
def test_a_field_of_the_device_is_replaced(
    words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    times = {}
    for limit in ("60 W", "5 kW"):
        more = ["--device", "l4", "--format", "fp32", "--set", f"device.power_limit={limit}"]
        assert execute([*words, *more, "--json"]) == 0
        found = json.loads(capsys.readouterr().out)
        times[limit] = found["time_s"]
        if limit == "60 W":
            assert found["energy_j"]["total"] / found["time_s"] <= 60 * (1 + 1e-9)
    assert times["60 W"] > times["5 kW"]


@pytest.mark.parametrize(
    ("told", "words"),
    [
        ("tdp=70 W", "begin with 'device.'"),
        ("device.tpd=70 W", "tdp"),
        ("device.tdp=70", "write '70 W'"),
    ],
)
def test_what_is_no_field_of_a_device_is_refused(
    told: str, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert execute(["gemm", "64", "64", "64", "--device", "l4", "--set", told]) == 2
    assert words in capsys.readouterr().err
