"""Lengths of requests: distributions, traces, mistakes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from ridgeline.errors import ConfigError
from ridgeline.study.generation.lengths import LengthDistribution, parse_lengths


@pytest.mark.parametrize(
    "of",
    [
        LengthDistribution("fixed", 40),
        LengthDistribution("uniform", 10, 30),
        LengthDistribution("lognormal", 400, 0.6),
    ],
)
def test_draws_have_the_mean_of_their_distribution(of: LengthDistribution) -> None:
    drawn = of.draw(200_000, np.random.default_rng(0))
    assert np.mean(drawn) == pytest.approx(of.mean, rel=0.01)
    assert min(drawn) >= 1


def test_what_is_said_is_read() -> None:
    found = parse_lengths("uniform:3:9/lognormal:100:1:250")
    requests = found.requests(500, rate=None, samples=1, seed=1)
    assert {r.prompt for r in requests} == set(range(3, 10))
    assert max(r.output for r in requests) == 250
    assert all(r.arrival_s == 0 for r in requests)


def test_samples_share_a_prompt_and_arrivals_are_poisson() -> None:
    found = parse_lengths("uniform:1:1000/lognormal:100:1")
    requests = found.requests(2000, rate=50.0, samples=4, seed=2)
    assert len(requests) == 8000
    times = sorted({r.arrival_s for r in requests})
    assert len(times) == 2000
    gaps = np.diff(times)
    assert gaps.mean() == pytest.approx(1 / 50, rel=0.05)
    assert gaps.std() == pytest.approx(1 / 50, rel=0.1)


def test_a_trace_is_read(tmp_path: Path) -> None:
    path = tmp_path / "trace.csv"
    path.write_text("prompt,output,arrival_s\n5,6,0.5\n7,8,0.25\n")
    requests = parse_lengths(str(path)).requests(None, rate=None, samples=1, seed=0)
    assert [(r.prompt, r.output, r.arrival_s) for r in requests] == [(7, 8, 0.25), (5, 6, 0.5)]


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("512", "PROMPT/OUTPUT"),
        ("1/2/3", "PROMPT/OUTPUT"),
        ("0/5", "from 1 to"),
        ("5/x", "'x'"),
        ("lognorm:5:1/5", "did you mean 'lognormal'"),
        ("uniform:9:3/5", "LOW at most HIGH"),
        ("lognormal:5:-1/5", "SIGMA is a number"),
        ("lognormal:5/5", "MEDIAN:SIGMA"),
        ("none.csv", "none.csv"),
    ],
)
def test_mistakes_say_what_is_allowed(text: str, why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        parse_lengths(text)


@pytest.mark.parametrize(
    ("text", "line", "why"),
    [
        ("prompt,outputs\n1,2\n", 1, "no column 'output'; did you mean"),
        ("prompt,output,arival_s\n1,2,3\n", 1, "did you mean 'arrival_s'"),
        ("prompt,output\n1,2\n1,-2\n", 3, "found '-2'"),
        ("prompt,output,arrival_s\n1,2,nan\n", 2, "a time from 0"),
    ],
)
def test_mistakes_of_a_trace_name_the_line(text: str, line: int, why: str, tmp_path: Path) -> None:
    path = tmp_path / "trace.csv"
    path.write_text(text)
    with pytest.raises(ConfigError, match=why) as found:
        parse_lengths(str(path))
    assert f"trace.csv:{line}" in str(found.value)
