"""Configurations of Hugging Face: parameters as the transformers library counts them."""

import json
import warnings
from importlib.resources import files
from pathlib import Path

import pytest

import ridgeline as rl
from oracles import transformers_library
from ridgeline.workload.trace import huggingface
from ridgeline.workload.trace.huggingface.registry import MODEL_TYPES
from ridgeline.workload.trace.network import TraceWarning
from thoroughly import further

COUNTS = json.loads(Path("tests/data/huggingface_counts.json").read_text(encoding="utf-8"))["types"]
"""Parameters of the default configurations of model types."""


def parameters(folder, fields):
    path = folder / "config.json"
    path.write_text(json.dumps(fields))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", TraceWarning)
        return rl.load_model(path).forward(1).parameters


def _every(count, start):
    return list(COUNTS)[start::count]


@pytest.mark.parametrize("kinds", [_every(5, 0), *further(*(_every(5, i) for i in range(1, 5)))])
def test_parameters_are_those_of_the_library(tmp_path, kinds):
    """Many types in one test: each takes a tenth of a second."""
    found = {kind: parameters(tmp_path, {"model_type": kind}) for kind in kinds}
    assert found == {kind: COUNTS[kind] for kind in kinds}


# From the networks' own papers and pages; the first four have more than one kind of layer.
PUBLISHED = {
    "qwen3_next": ({}, 79_674_391_296),
    "gpt_oss": ({}, 116_829_156_672),
    "whisper": ({}, 37_760_640),  # tiny
    "clip": ({}, 151_277_313),  # ViT-B/32
}


@pytest.mark.parametrize("kind", PUBLISHED)
def test_parameters_are_the_published_ones(tmp_path, kind):
    fields, expected = PUBLISHED[kind]
    assert parameters(tmp_path, {"model_type": kind, **fields}) == expected


WAN = {
    "_class_name": "WanTransformer3DModel", "num_attention_heads": 12, "attention_head_dim": 128,
    "in_channels": 16, "out_channels": 16, "num_layers": 30, "ffn_dim": 8960, "text_dim": 4096,
    "patch_size": [1, 2, 2], "qk_norm": "rms_norm_across_heads", "cross_attn_norm": True,
}  # fmt: skip
FLUX = {
    "_class_name": "FluxTransformer2DModel", "num_attention_heads": 24, "attention_head_dim": 128,
    "in_channels": 64, "num_layers": 19, "num_single_layers": 38, "joint_attention_dim": 4096,
    "pooled_projection_dim": 768, "guidance_embeds": True, "patch_size": 1,
}  # fmt: skip
DIFFUSERS = {  # counted by diffusers 0.42.1
    "wan-1.3b": (WAN, 1_418_996_800),
    "wan-vace-1.3b": (
        {
            **WAN,
            "_class_name": "WanVACETransformer3DModel",
            "vace_layers": list(range(0, 30, 2)),
            "vace_in_channels": 96,
        },
        2_153_972_032,
    ),
    "flux-dev": (FLUX, 11_901_408_320),
    "qwen-image": (
        {
            "_class_name": "QwenImageTransformer2DModel", "num_attention_heads": 24,
            "attention_head_dim": 128, "in_channels": 64, "out_channels": 16, "num_layers": 60,
            "joint_attention_dim": 3584, "patch_size": 2,
        },
        20_430_401_088,
    ),
    "hunyuan-video": (
        {
            "_class_name": "HunyuanVideoTransformer3DModel", "num_attention_heads": 24,
            "attention_head_dim": 128, "in_channels": 16, "out_channels": 16, "num_layers": 20,
            "num_single_layers": 40, "num_refiner_layers": 2, "patch_size": 2, "patch_size_t": 1,
            "guidance_embeds": True, "qk_norm": "rms_norm", "text_embed_dim": 4096,
            "pooled_projection_dim": 768,
        },
        12_821_012_544,
    ),
    "sd3": ({"_class_name": "SD3Transformer2DModel", "num_attention_heads": 18,
             "attention_head_dim": 64, "num_layers": 18, "caption_projection_dim": 1152},
            856_159_552),
    "pixart": ({"_class_name": "PixArtTransformer2DModel", "num_attention_heads": 16,
                "attention_head_dim": 72, "num_layers": 28, "in_channels": 4, "out_channels": 8,
                "caption_channels": None, "cross_attention_dim": 1152}, 605_301_152),
    "ltx": ({"_class_name": "LTXVideoTransformer3DModel", "num_attention_heads": 32,
             "attention_head_dim": 64, "num_layers": 28, "in_channels": 128,
             "qk_norm": "rms_norm_across_heads", "caption_channels": 4096}, 1_923_385_472),
}  # fmt: skip


@pytest.mark.parametrize("name", DIFFUSERS)
def test_transformers_of_diffusers_have_its_parameters(tmp_path, name):
    fields, expected = DIFFUSERS[name]
    assert parameters(tmp_path, fields) == expected


GEMMA3 = {
    "model_type": "gemma3_text", "num_hidden_layers": 7, "max_position_embeddings": 64,
    "sliding_window": 8, "hidden_size": 16, "num_attention_heads": 2, "num_key_value_heads": 1,
    "head_dim": 8, "intermediate_size": 8, "vocab_size": 32,
}  # fmt: skip


def test_windows_are_where_the_configuration_has_them(tmp_path):
    path = tmp_path / "config.json"
    path.write_text(json.dumps(GEMMA3))
    network = rl.load_model(path).network
    letters = {v.letter: v.attention.window for v in network.variants}
    assert [letters[letter] for letter in network.pattern] == [8, 8, 8, 8, 8, 0, 8]
    kinds = ["full_attention", "sliding_attention"] * 3 + ["full_attention"]
    path.write_text(json.dumps({**GEMMA3, "layer_types": kinds}))
    network = rl.load_model(path).network
    letters = {v.letter: v.attention.window for v in network.variants}
    assert [letters[letter] for letter in network.pattern] == [0, 8, 0, 8, 0, 8, 0]


def test_what_is_left_out_is_said(tmp_path):
    path = tmp_path / "config.json"
    path.write_text(json.dumps({"model_type": "phi4_multimodal"}))
    with pytest.warns(TraceWarning, match="left out: its encoders of images and sound"):
        rl.load_model(path)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"model_type": "qwen3_moe_"}, "did you mean 'qwen3_moe'.*trace the module"),
        ({"model_type": "cohere", "use_qk_norm": True}, "use_qk_norm.*not modelled"),
        ({"_class_name": "WanAnimateTransformer3DModel"}, "motion_encoder_size.*not modelled"),
        ({**GEMMA3, "layer_types": ["full_attention"]}, "layer_types.*7 entries"),
        ({"model_type": "nemotron_h", "hybrid_override_pattern": "MX"}, "letters of M"),
    ],
)
def test_what_cannot_be_said_is_an_error(tmp_path, fields, message):
    with pytest.raises(rl.ConfigError, match=message):
        parameters(tmp_path, fields)


def test_all_defaults_belong_to_types_that_are_read():
    text = files(huggingface).joinpath("defaults.json").read_text(encoding="utf-8")
    parts = {p["model_type"] for row in json.loads(text)["types"].values()
             for p in row.get("parts", {}).values()}  # fmt: skip
    known = set(json.loads(text)["types"])
    assert set(COUNTS) <= MODEL_TYPES.keys() & known
    assert parts <= known


def test_the_library_still_says_the_same():
    pytest.importorskip("transformers", reason="transformers is not installed")
    kinds = ["qwen3_next", "gpt_oss", "gemma3_text", "llava", "falcon_h1"]
    assert transformers_library.counts(kinds) == {kind: COUNTS[kind] for kind in kinds}
