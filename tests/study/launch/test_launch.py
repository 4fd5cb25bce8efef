from pathlib import Path

import pytest

from ridgeline.errors import ConfigError
from ridgeline.study.launch import LaunchDraft, Setting, frameworks, launch_choices, read_launch
from ridgeline.study.launch.interpolation import resolved
from ridgeline.study.launch.options import Option, found_in, options
from ridgeline.study.launch.sources import PLACEHOLDER, LaunchSource, hole, leaves, open_source

DATA = Path(__file__).parents[2] / "data" / "launch"


def draft(**plan: object) -> LaunchDraft:
    made = LaunchDraft(LaunchSource("job.sh", ""), "any", model="gpt2", plan=dict(plan))
    made.say("--tensor", "4", 3)
    return made


def test_settings_that_nobody_takes_are_unread() -> None:
    made = draft()
    made.say("--why", True, 4)
    assert made.integer("--tensor", "plan.tensor={}") == 4
    job = made.job()
    assert job.settings[0] == Setting("--tensor", "4", 3, "plan.tensor=4")
    assert job.unread == (Setting("--why", "true", 4, ""),)


@pytest.mark.parametrize(
    ("value", "number"), [("8", 8), ("1_000", 1000), ("1e3", 1000), ("none", None), (8, 8)]
)
def test_whole_numbers(value: object, number: int | None) -> None:
    made = draft()
    made.say("n", value, 1)
    assert made.integer("n", "x") == number


@pytest.mark.parametrize(
    ("value", "on"), [(True, True), ("true", True), ("1", True), ("False", False), ("null", False)]
)
def test_switches(value: object, on: bool) -> None:
    made = draft()
    made.say("s", value, 1)
    assert made.flag("s", "x") is on
    assert made.flag("other", "x") is False


def test_values_of_the_wrong_type_are_refused_with_their_line() -> None:
    made = draft()
    made.say("n", "many", 7)
    for take in (made.integer, made.number, made.flag):
        with pytest.raises(ConfigError) as error:
            take("n", "x")
        assert (error.value.file, error.value.line, error.value.field) == ("job.sh", 7, "n")


def test_a_placeholder_is_refused_only_where_the_value_is_needed() -> None:
    made = draft()
    made.say("--data", hole("$1"), 5)
    made.ignore("--data")
    assert made.job().settings[-1].value == "$1"
    with pytest.raises(ConfigError, match=r"needs \$1, .* --set 1="):
        made.text("--data", "x")


def test_a_file_without_a_network_is_refused() -> None:
    with pytest.raises(ConfigError, match="which network"):
        LaunchDraft(LaunchSource("job.sh", ""), "any").job()


def test_data_parallelism_is_what_devices_leave() -> None:
    made = draft(tensor=4, pipeline=2, global_batch=64, micro_batch=1)
    made.devices = 32
    made.check()
    assert made.plan["data"] == 4


@pytest.mark.parametrize(
    ("plan", "devices", "message"),
    [
        ({"tensor": 4, "pipeline": 3}, 32, "32 devices cannot be divided by tensor 4 x pipeline 3"),
        ({"tensor": 4, "data": 3}, 8, "data 3 x tensor 4 is not 8 devices"),
        ({"global_batch": 30, "micro_batch": 4}, 8, "global batch 30 cannot be divided"),
        ({"global_batch": 30, "micro_batch": 4}, None, "global batch 30 cannot be divided"),
        ({"expert": 3}, 8, "expert 3 does not divide the 8 ranks"),
        ({"expert": 16, "tensor": 2, "expert_tensor_parallel": 2}, 8, "expert 16 does not divide"),
    ],
)
def test_contradictions_are_refused(plan: dict, devices: int | None, message: str) -> None:
    made = draft(**plan)
    made.devices = devices
    with pytest.raises(ConfigError, match=message) as error:
        made.check({"devices": ["--tensor"], "global_batch": ["--tensor"], "expert": ["--tensor"]})
    if "data 3" not in message:
        assert error.value.line == 3


def test_a_job_on_other_devices() -> None:
    made = draft(tensor=4, micro_batch=2)
    job = made.job().on(16)
    assert (job.devices, job.plan["data"], job.plan["global_batch"]) == (16, 4, 8)
    assert job.on(8).plan["data"] == 2
    with pytest.raises(ConfigError, match="6 devices cannot be divided by tensor 4"):
        job.on(6)


def test_experts_may_be_on_neighbours_among_all_ranks() -> None:
    made = draft(tensor=2, expert=8, expert_tensor_parallel=1)
    made.devices = 8
    made.check()
    assert made.plan["data"] == 4


def test_the_framework_is_known_by_the_content(tmp_path) -> None:
    for name, framework in (
        ("megatron.sh", "megatron"), ("megatron.yaml", "megatron"), ("nemo.yaml", "nemo"),
        ("megatron_deepspeed.slurm", "megatron_deepspeed"), ("primus.yaml", "primus"),
        ("megatron_bridge_table.py", "megatron_bridge"), ("megatron_bridge.sh", "megatron_bridge"),
        ("megatron_bridge_llama3_70b.yaml", "megatron_bridge"),
    ):  # fmt: skip
        choice = launch_choices(DATA / name)
        set_ = dict([choice[0].split("=")]) if choice else {}
        assert read_launch(DATA / name, set_=set_).framework == framework
    assert "nemo" in frameworks()
    other = tmp_path / "x.yaml"
    other.write_text("a: 1\n")
    with pytest.raises(ConfigError, match="not known as a launch file"):
        read_launch(other)
    with pytest.raises(ConfigError, match="unknown framework 'nemmo'; did you mean 'nemo'"):
        read_launch(other, framework="nemmo")


def test_files_are_read_bounded_and_as_text(tmp_path) -> None:
    empty = tmp_path / "empty.sh"
    empty.write_text(" \n")
    with pytest.raises(ConfigError, match="empty"):
        open_source(empty)
    (tmp_path / "big.sh").write_bytes(b"#" * (4 * 2**20 + 1))
    with pytest.raises(ConfigError, match="larger than"):
        open_source(tmp_path / "big.sh")
    (tmp_path / "private.sh").write_text("a\ue002b\r\n")
    assert open_source(tmp_path / "private.sh").text == "a b\n"


def test_sources_of_other_formats() -> None:
    assert LaunchSource("a.json", '{"a": 1}').json == {"a": 1}
    assert LaunchSource("a.toml", "[b]\na = 1\n").toml == {"b": {"a": 1}}
    assert LaunchSource("a.toml", "a = 1\n[b]\na = 2\n").line_of("a", "b") == 3
    for broken in (LaunchSource("a.json", "{"), LaunchSource("a.toml", "a =")):
        with pytest.raises(ConfigError, match="not "):
            getattr(broken, broken.suffix[1:])
    assert list(leaves({"a": {"b": 1, "c": []}})) == [(("a", "b"), 1), (("a", "c"), [])]


def test_options_with_many_values_or_none() -> None:
    words = ["a", "--b", "1", "2", "--c=3", "--d", "-1", "--e", hole("X")]
    assert list(options(words)) == [
        Option("--b", "1 2", 0), Option("--c", "3", 0), Option("--d", "-1", 0),
        Option("--e", hole("X"), 0),
    ]  # fmt: skip


def test_tables_of_arguments() -> None:
    assert found_in("save_interval", ["megatron"]) == "no effect on a step"
    assert found_in("hidden_size", ["megatron"]) == ""


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("${b.c}", 3), ("${.c}", 3), ("x${.c}y", "x3y"), ("${root.b.c}", 3),
        ("${multiply:4, ${.c}}", 12), ("${divide_floor:${.c}, 2}", 1), ("${sum:1,2}", 3),
        ("${V:null}", None), ("${V:7}", "7"), ("${oc.env:V,8}", "8"),
    ],
)  # fmt: skip
def test_references_between_values(text: str, value: object) -> None:
    data = {"b": {"c": 3, "d": text}}
    assert resolved(data, ("b", "d"), text, ["root"]) == value


@pytest.mark.parametrize("text", ["${gone}", "${oc.env:V}", "${.d}", "${multiply:a,2}"])
def test_references_that_lead_nowhere_are_placeholders(text: str) -> None:
    assert PLACEHOLDER.search(resolved({"b": {"d": text}}, ("b", "d"), text))
