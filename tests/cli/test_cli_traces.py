"""Traces on the command line: what it prints, what it writes, and how it fails."""

from __future__ import annotations

import json

import pytest

from ridgeline.cli import execute
from trace_files import HEAD, node


def _run(capsys, *arguments):
    status = execute([str(a) for a in arguments])
    printed = capsys.readouterr()
    return status, printed.out, printed.err


@pytest.fixture
def execution(tmp_path):
    for rank in range(2):
        nodes = [node(0, 4, num_ops=10**9, tensor_size=10**6),
                 node(1, 7, (0,), comm_type=0, comm_size=10**6, pg_name="pair")]  # fmt: skip
        (tmp_path / f"t.{rank}.et").write_bytes(HEAD + b"".join(nodes))
    (tmp_path / "mine.json").write_text('{"pair": [0, 1]}')
    return tmp_path / "t.0.et"


def test_a_network_is_written_read_and_run(capsys, tmp_path):
    path = tmp_path / "net.json"
    assert _run(capsys, "trace", "export", "lenet5", "--output", path)[0] == 0
    status, out, _ = _run(capsys, "trace", "import", path, "--json")
    assert status == 0
    assert json.loads(out)["parameters"] == 61_706
    plan = ("dgx1-v100", "--plan", "data=2", "--batch", "64", "--json")
    _, of_file, _ = _run(capsys, "run", path, *plan)
    _, of_name, _ = _run(capsys, "run", "lenet5", *plan)
    assert json.loads(of_file)["step_time_s"] == json.loads(of_name)["step_time_s"]


def test_a_step_is_written_as_chakra_traces_and_replayed(capsys, tmp_path):
    plan = ("dgx1-v100", "--plan", "data=2", "--batch", "64")
    out = tmp_path / "step.et"
    assert _run(capsys, "trace", "export", "lenet5", *plan, "--output", out)[0] == 0
    assert sorted(p.name for p in tmp_path.iterdir()) == ["step.0.et", "step.1.et"]
    _, replay, _ = _run(capsys, "run", tmp_path / "step.0.et", "dgx1-v100", "--json")
    _, step, _ = _run(capsys, "run", "lenet5", *plan, "--json")
    replay, step = json.loads(replay), json.loads(step)
    assert replay["step_time_s"] == pytest.approx(step["step_time_s"], rel=1e-12)
    assert replay["manifest"]["times"] == "measured"


def test_an_execution_runs_with_its_groups(capsys, execution):
    groups = f"model.groups={execution.parent / 'mine.json'}"
    status, out, _ = _run(capsys, "run", execution, "dgx1-v100", "--set", groups)
    assert status == 0
    assert "exposed communication" in out
    status, _, err = _run(capsys, "run", execution, "dgx1-v100")
    assert status == 2
    assert "'pair'" in err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ("run", "{et}", "dgx1-v100", "--batch", "8", "--set", "model.groups={mine}"),
            "distributed",
        ),
        (("run", "{et}", "dgx1-v100", "--set", "model.grups={mine}"), "did you mean 'groups'"),
        (("run", "lenet5", "dgx1-v100", "--batch", "8", "--times", "measured"), "is a network"),
        (("run", "nothing.0.et", "dgx1-v100"), "no such trace"),
        (("run", "nothing.json", "dgx1-v100", "--batch", "8"), "cannot be read"),
        (("run", "weights.pt", "dgx1-v100", "--batch", "8"), "pickle"),
        (("roofline", "v100-sxm2-16gb", "--model", "{et}"), "is an execution|pair"),
        (("trace", "export", "lenet5"), "--output"),
        (("trace", "export", "lenet5", "--output", "a.txt"), ".json"),
        (("trace", "import", "pyproject.toml"), "toml|model"),
    ],
)
def test_a_mistake_is_one_line_and_status_2(capsys, execution, arguments, message):
    import re

    mine = str(execution.parent / "mine.json")
    words = [a.replace("{et}", str(execution)).replace("{mine}", mine) for a in arguments]
    status, _, err = _run(capsys, *words)
    assert status == 2
    assert re.search(message, err)
    assert len(err.strip().splitlines()) <= 3


@pytest.mark.parametrize("suffix", [".et", ".json", ".csv", ".json.gz"])
@pytest.mark.parametrize("content", [b"", b"\x00\xff" * 50, b"{" * 5000, b"a,b\n1,2\n"])
def test_a_damaged_file_of_any_kind_is_one_line(capsys, tmp_path, suffix, content):
    path = tmp_path / f"x{suffix}"
    path.write_bytes(content)
    status, _, err = _run(capsys, "run", path, "dgx1-v100", "--batch", "8")
    assert status == 2
    assert err.startswith("ridgeline: ")
    assert "x" in err
    assert "Traceback" not in err
