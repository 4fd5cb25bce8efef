"""Diffusion transformers, by the configurations of diffusers and of Wan's own code.

Sizes of images, videos and texts are not in such a file; each reader says which it takes.
"""

from __future__ import annotations

import math

from ridgeline.workload.trace.huggingface.configuration import Config
from ridgeline.workload.trace.huggingface.registry import Fields, model_type

_VIDEO = "81 frames of 832 x 480 pixels and texts of 512 tokens"
_VIDEO_PATCHES = 21 * 30 * 52  # of a quarter of the frames and an eighth of the pixels, two by two


def _sized(c: Config, patches: int, text: int, what: str) -> Fields:
    c.note(f"{what} are taken, as its configuration names none (set patches, text)")
    return {"patches": patches, "text": text, "dataset": "imagenet"}


def _heads(c: Config) -> Fields:
    heads = c.whole("num_attention_heads")
    return {"heads": heads, "head_size": c.whole("attention_head_dim")}


def _hidden(c: Config) -> int:
    return c.whole("num_attention_heads") * c.whole("attention_head_dim")


def _area(c: Config) -> int:
    """Pixels of a patch, in all frames that it has."""
    size = c.found("patch_size")
    if isinstance(size, list):
        sizes = c.numbers("patch_size")
        if len(sizes) != 3 or min(sizes) < 1:
            raise c.fail("patch_size", f"expected three numbers above 0, found {sizes!r:.60}")
        return math.prod(sizes)
    return c.whole("patch_size_t", 1) * c.whole("patch_size") ** 2


def _wan(c: Config, *, native: bool) -> Fields:
    """Wan's blocks, under the names of diffusers or of its own code."""
    hidden = c.whole("dim") if native else _hidden(c)
    heads = c.whole("num_heads") if native else c.whole("num_attention_heads")
    area = 4 if native else _area(c)
    into = c.whole("in_dim" if native else "in_channels")
    if not native:
        c.only("qk_norm", "rms_norm_across_heads")
    mixer = {"heads": heads, "head_norm": "whole", "fused": False}
    fields: Fields = {
        "family": "cross-diffusion",
        "channels": into * area,
        "channels_out": c.whole("out_dim" if native else "out_channels", into) * area,
        "text_features": c.whole("text_dim", 4096),
        "layers": c.layers("num_layers"),
        "hidden": hidden,
        "attention": mixer,
        "cross": mixer,
        "feed_forward": {"width": c.whole("ffn_dim"), "activation": "gelu"},
        "cross_norm": c.flag("cross_attn_norm", True),
        **_sized(c, _VIDEO_PATCHES, 512, _VIDEO),
    }
    if c.found("image_dim"):
        rows = c.found("pos_embed_seq_len")
        fields["image"] = {
            "rows": rows or 257,
            "features": c.whole("image_dim"),
            "positions": bool(rows),
        }
    return fields


@model_type("WanTransformer3DModel", "WanVACETransformer3DModel")
def wan(c: Config) -> Fields:
    """Wan, and VACE, whose control video has blocks of its own."""
    fields = _wan(c, native=False)
    if c.kind.startswith("WanVACE"):
        fields["control_layers"] = c.numbers("vace_layers")
        fields["control_channels"] = c.whole("vace_in_channels", 96) * _area(c)
    return fields


@model_type("WanModel", "wan")
def wan_native(c: Config) -> Fields:
    """Wan in the names of its own code."""
    kind = c.found("model_type")
    if kind in {"i2v", "flf2v", "vace"}:
        raise c.fail("model_type", f"{kind!r} is not modelled under these names; use diffusers'")
    if c.found("has_image_input") in {True, "true"}:
        raise c.fail("has_image_input", "an encoder of images is not modelled under these names")
    return _wan(c, native=True)


@model_type("WanAnimateTransformer3DModel")
def wan_animate(c: Config) -> Fields:
    """Wan-Animate, which no family says."""
    raise c.fail(
        "motion_encoder_size",
        "encoders of motion and faces inside a transformer are not modelled; trace the module",
    )


@model_type("FluxTransformer2DModel", "FluxModel", "flux")
def flux(c: Config) -> Fields:
    """FLUX.1."""
    c.only("patch_size", 1)
    channels = c.whole("in_channels", 64)
    return {
        "family": "flux",
        "channels": channels,
        "channels_out": c.whole("out_channels", channels),
        "text_features": c.whole("joint_attention_dim", 4096),
        "vector": c.whole("pooled_projection_dim", 768),
        "guidance": c.flag("guidance_embeds"),
        "double_layers": c.layers("num_layers"),
        "single_layers": c.count("num_single_layers"),
        "hidden": _hidden(c),
        "attention": _heads(c),
        **_sized(c, 4096, 512, "images of 1024 x 1024 pixels and texts of 512 tokens"),
    }


@model_type("QwenImageTransformer2DModel")
def qwen_image(c: Config) -> Fields:
    """Qwen-Image: blocks of two streams alone."""
    c.only("guidance_embeds", False)
    c.only("use_additional_t_cond", False)
    c.only("zero_cond_t", False)
    patch, hidden = c.whole("patch_size", 2), _hidden(c)
    square = hidden * (hidden + 1)  # of a linear layer and its bias
    return {
        "family": "flux",
        "last_text": False,
        "unread": 4 * square + square + 2 * 4 * hidden * hidden + 5 * hidden,
        "channels": c.whole("in_channels", 64),
        "channels_out": c.whole("out_channels", 16) * patch * patch,
        "text_features": c.whole("joint_attention_dim", 3584),
        "text_norm": True,
        "vector": None,
        "double_layers": c.layers("num_layers"),
        "single_layers": 0,
        "hidden": _hidden(c),
        "attention": _heads(c),
        **_sized(c, 4096, 512, "images of 1024 x 1024 pixels and texts of 512 tokens"),
    }


@model_type("SD3Transformer2DModel")
def sd3(c: Config) -> Fields:
    """Stable Diffusion 3."""
    if c.found("dual_attention_layers"):
        raise c.fail("dual_attention_layers", "layers that attend twice are not modelled")
    c.only("qk_norm", None, "rms_norm")
    hidden, patch = _hidden(c), c.whole("patch_size", 2)
    c.only("caption_projection_dim", hidden)
    area = patch * patch
    side = c.whole("sample_size", 128) // patch
    channels = c.whole("in_channels", 16)
    return {
        "family": "flux",
        "channels": channels * area,
        "channels_out": c.whole("out_channels", channels) * area,
        "text_features": c.whole("joint_attention_dim", 4096),
        "vector": c.whole("pooled_projection_dim", 2048),
        "double_layers": c.layers("num_layers"),
        "single_layers": 0,
        "last_text": False,
        "head_norm": c.found("qk_norm") is not None,
        "hidden": hidden,
        "attention": _heads(c),
        **_sized(c, side * side, 333, "texts of 333 tokens"),
    }


@model_type("HunyuanVideoTransformer3DModel")
def hunyuan_video(c: Config) -> Fields:
    """HunyuanVideo: a text that is refined first, then FLUX's blocks."""
    c.only("qk_norm", "rms_norm")
    area, ratio = _area(c), c.number("mlp_ratio", 4.0)
    if ratio != int(ratio):
        raise c.fail("mlp_ratio", f"expected a whole number, found {ratio}")
    channels = c.whole("in_channels", 16)
    what = "129 frames of 1280 x 720 pixels and texts of 256 tokens"
    return {
        "family": "flux",
        "channels": channels * area,
        "channels_out": c.whole("out_channels", 16) * area,
        "text_features": c.whole("text_embed_dim", 4096),
        "vector": c.whole("pooled_projection_dim", 768),
        "guidance": c.flag("guidance_embeds"),
        "refiner_layers": c.count("num_refiner_layers"),
        "double_layers": c.layers("num_layers"),
        "single_layers": c.count("num_single_layers"),
        "hidden": _hidden(c),
        "attention": _heads(c),
        "expansion": int(ratio),
        **_sized(c, 33 * 45 * 80, 256, what),
    }


@model_type("PixArtTransformer2DModel", "LTXVideoTransformer3DModel")
def pixart(c: Config) -> Fields:
    """PixArt and LTX-Video."""
    hidden, video = _hidden(c), c.kind.startswith("LTX")
    area = c.whole("patch_size", 1 if video else 2) ** 2 * c.whole("patch_size_t", 1)
    channels = c.whole("in_channels", 128 if video else 4)
    bias = c.flag("attention_bias", True)
    mixer: Fields = {"heads": c.whole("num_attention_heads"), "bias": bias, "fused": False}
    if video:
        c.only("qk_norm", "rms_norm_across_heads")
        mixer["head_norm"] = "whole"
    features = c.found("caption_channels")
    fields: Fields = {
        "family": "cross-diffusion",
        "channels": channels * area,
        "channels_out": c.whole("out_channels", channels) * area,
        "text_features": features or c.whole("cross_attention_dim"),
        "text_projection": bool(features),
        "layers": c.layers("num_layers"),
        "hidden": hidden,
        "attention": mixer,
        "cross": mixer,
        "feed_forward": {"width": 4 * hidden, "activation": "gelu"},
        "rotary": video,
    }
    if video:
        return {**fields, **_sized(c, 16 * 24 * 16, 128, "121 frames of 768 x 512 pixels")}
    side = c.whole("sample_size", 128) // c.whole("patch_size", 2)
    extra = c.found("use_additional_conditions")
    wide = c.whole("sample_size", 128) == 128 if extra is None else bool(extra)
    fields["sizes"] = 3 if wide else 0
    return {**fields, **_sized(c, side * side, 120, "texts of 120 tokens")}


@model_type("DiTTransformer2DModel")
def dit(c: Config) -> Fields:
    """DiT; the library keeps a copy of the embeddings of time and class in every block."""
    c.only("norm_type", "ada_norm_zero")
    c.only("attention_bias", True)
    side, channels = c.whole("sample_size", 32), c.whole("in_channels", 4)
    out = c.whole("out_channels", channels)
    if out not in {channels, 2 * channels}:
        raise c.fail("out_channels", f"expected {channels} or {2 * channels}, found {out}")
    c.note("one embedding of time and class is shared by all blocks, as it is trained")
    hidden = _hidden(c)
    return {
        "family": "diffusion-transformer",
        "image": {"channels": channels, "height": side, "width": side},
        "classes": c.whole("num_embeds_ada_norm", 1000),
        "patch": c.whole("patch_size", 2),
        "layers": c.layers("num_layers"),
        "hidden": hidden,
        "attention": _heads(c),
        "feed_forward": {"width": 4 * hidden, "activation": "gelu"},
        "variance": out == 2 * channels,
        "dataset": "imagenet",
    }
