import pytest

from ridgeline import catalog
from ridgeline.config import read_yaml
from ridgeline.study.launch.shape import match, named, shapes, unknown_name
from ridgeline.workload.files import load_model

LLAMA = {
    "layers": 32, "hidden": 4096, "sequence": 4096, "vocabulary": 32000, "norm": "rms-norm",
    "positions": "rotary", "tied": False,
    "attention": {"heads": 32, "bias": False, "output_bias": False},
    "feed_forward": {"width": 11008, "activation": "swiglu", "bias": False},
}  # fmt: skip


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("deepseek_v3", "deepseek-v3"),
        ("llama3_70b", "llama3-70b"),
        ("Qwen3-235B-A22B", "qwen3-235b-a22b"),
        ("meta-llama/Llama-3.1-70B", "llama3-70b"),
        ("meta-llama/Meta-Llama-3-8B-Instruct", "llama3-8b"),
        ("meta-llama/Llama-2-7b-hf", "llama2-7b"),
        ("mixtral_8x22B_v0.1.yaml", "mixtral-8x22b"),
        ("gpt_oss_120b", "gpt-oss-120b"),
        ("moonshotai/Kimi-K2-Instruct", "kimi-k2"),
        ("nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-BF16", "nemotron-3-nano"),
        ("qwen3_next_80b_a3b", "qwen3-next-80b-a3b"),
        ("deepseek_v4_flash", None),
        ("qwen3_vl_30b_a3b", None),
        ("", None),
    ],
)
def test_names_of_others(text: str, name: str | None) -> None:
    assert named(text) == name


def test_an_unknown_name_is_answered_with_the_nearest() -> None:
    assert "did you mean 'deepseek-" in unknown_name("deepseek_v9")


@pytest.mark.parametrize("name", ["gpt3-175b", "deepseek-v3", "nemotron-3-super", "qwen3-30b-a3b"])
def test_every_network_is_its_own_match(name: str) -> None:
    found = match(read_yaml(catalog.find("models", name)).data, name)
    assert (found.model, dict(found.fields), found.exact) == (name, {}, True)


def test_what_a_run_may_choose_is_an_override() -> None:
    found = match({**LLAMA, "dropout": 0.1, "vocabulary": 32768})
    assert found.model == "llama2-7b"
    assert found.fields == {"dropout": 0.1, "vocabulary": 32768}
    assert match({**LLAMA, "sequence": 2048}).model == "llama-7b"
    found = match({**LLAMA, "sequence": 2048}, "llama2-7b")
    assert (found.model, found.fields) == ("llama2-7b", {"sequence": 2048})


def test_without_a_vocabulary_the_widths_decide() -> None:
    wanted = {key: value for key, value in LLAMA.items() if key != "vocabulary"}
    assert match(wanted).model == "llama2-7b"
    with pytest.raises(LookupError, match="vocabulary"):
        match({**wanted, "layers": 33})


@pytest.mark.parametrize(
    "more",
    [
        {"layers": 16},
        {"attention": {"heads": 16, "kv_heads": 4}},
        {"mixture": {"experts": 4, "top_k": 1, "width": 1024}},
        {"positions": "learned", "norm": "layer-norm"},
        {"embedding_norm": True},
    ],
)
def test_other_widths_take_the_nearest_network(more: dict) -> None:
    found = match({**LLAMA, **more})
    assert not found.exact
    assert "no network of the catalogue has these widths" in found.notes[0]
    network = load_model(found.model, dict(found.fields)).network
    for key, value in more.items():
        if isinstance(value, dict):
            assert {name: getattr(getattr(network, key), name) for name in value} == value
        else:
            assert getattr(network, key) == value
    assert (network.hidden, network.vocabulary) == (4096, 32000)
    assert network.citation == "read from a launch file"


def test_adapted_networks_are_no_shapes() -> None:
    assert "llama2-70b-lora" not in shapes()
