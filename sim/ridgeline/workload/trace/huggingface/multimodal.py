"""Decoders that see or hear: towers whose rows stand in the sequence, or are attended to.

One image, or one piece of sound, stands in every sequence; of the size that the configuration
names, or where it takes all sizes, of that which its table of positions has, or of `_SIDE` pixels.
Towers that no family can say are left out, and a warning names them.
"""

from __future__ import annotations

from ridgeline.workload.trace.huggingface.configuration import FUNCTIONS, GATES, Config
from ridgeline.workload.trace.huggingface.encoders import (
    blocks_of,
    clip_tower,
    image_rows,
    siglip_tower,
    sound_tower,
)
from ridgeline.workload.trace.huggingface.parts import attention, decoder, gated, windowed
from ridgeline.workload.trace.huggingface.registry import MODEL_TYPES, Fields, model_type

_SIDE = 672  # pixels: what the towers below that have no size of their own are given


def _text(c: Config, name: str = "text_config", usual: str = "") -> Fields:
    """Read the decoder of a configuration with parts, or one whose fields stand beside them."""
    if not c.given.get(name) and c.given.get("hidden_size"):
        flat = {k: v for k, v in c.given.items() if not k.endswith("_config")}
        inner = Config(flat, c.file, usual, c.prefix, c.notes)
    else:
        inner = c.part(name, usual)
    reader = MODEL_TYPES.get(inner.kind)
    if reader is None:
        raise inner.fail("model_type", f"the text's model type {inner.kind!r} is not known")
    fields = reader(inner)
    if c.found("tie_word_embeddings") is not None:  # the whole's word counts, not the text's
        fields["tied"] = c.flag("tie_word_embeddings")
    return fields


def _seen(c: Config, text: Fields, *towers: Fields) -> Fields:
    """Give a decoder its towers."""
    sizes = ", ".join(f"{tower.get('name', 'vision')} of {tower['rows']} rows" for tower in towers)
    c.note(f"every sequence is taken to have one input of each tower: {sizes}")
    return {**text, "towers": list(towers)}


def _without(c: Config, what: str, text: Fields) -> Fields:
    c.note(f"left out: {what}; the decoder of text alone is read")
    return text


def _mlp(hidden: int, bias: bool = True, *, width: int | None = None) -> list[Fields]:
    """Describe a projector of two linear layers with gelu between them."""
    first = {"width": width or hidden, "bias": bias, "function": "gelu"}
    return [first, {"width": hidden, "bias": bias}]


def _patches(c: Config, *, frames: int = 1, channels: str = "in_channels") -> int:
    """Numbers of a patch, of some frames."""
    return c.whole(channels, 3) * frames * c.whole("patch_size") ** 2


def _square(c: Config, patch: int, merge: int) -> int:
    """Patches of a square image of `_SIDE` pixels, in whole groups that are merged."""
    side = _SIDE // (patch * merge) * merge
    return side * side


# --- Qwen ---


def _qwen3_tower(c: Config) -> Fields:
    """Qwen3-VL's encoder: learned positions between which it interpolates, taps of layers."""
    hidden, merge = c.whole("hidden_size"), c.whole("spatial_merge_size", 2)
    join, out = merge * merge, c.whole("out_hidden_size")
    positions = c.whole("num_position_embeddings")
    inner = {"width": hidden * join, "function": "gelu"}
    tower: Fields = {
        "rows": positions // join * join,
        "features": _patches(c, frames=c.whole("temporal_patch_size", 2)),
        "positions": positions,
        "rotary": True,
        "layers": c.layers("depth"),
        "hidden": hidden,
        "attention": {"heads": c.whole("num_heads")},
        "feed_forward": {
            "width": c.whole("intermediate_size"),
            "activation": c.one_of("hidden_act", FUNCTIONS, "gelu"),
        },
        "stack_norm": None,
        "projector": [{"norm": "layer-norm", "join": join, **inner}, {"width": out}],
    }
    if taps := c.numbers("deepstack_visual_indexes"):
        tower["taps"] = taps
        steps = [{"join": join}, {"norm": "layer-norm", **inner}, {"width": out}]
        tower["tap_projector"] = steps
    return tower


@model_type("qwen3_vl", "qwen3_vl_moe", "qwen3_5", "qwen3_5_moe")
def qwen3_vl(c: Config) -> Fields:
    """Qwen3-VL and Qwen3.5."""
    return _seen(c, _text(c), _qwen3_tower(c.part("vision_config")))


def _qwen2_tower(c: Config, *, second: bool) -> Fields:
    """Qwen2-VL's encoder; in version 2.5 with gates, and windows in most layers."""
    hidden = c.first("hidden_size" if second else "embed_dim")
    merge, patch = c.whole("spatial_merge_size", 2), c.whole("patch_size")
    join = merge * merge
    out = c.whole("out_hidden_size") if second else c.whole("hidden_size")
    norm = "rms-norm" if second else "layer-norm"
    tower: Fields = {
        "rows": _square(c, patch, merge),
        "features": _patches(
            c,
            frames=c.whole("temporal_patch_size", 2),
            channels="in_chans" if c.given.get("in_chans") else "in_channels",
        ),
        "stem_bias": False,
        "rotary": True,
        "layers": c.layers("depth"),
        "hidden": hidden,
        "attention": {"heads": c.whole("num_heads")},
        "norm": norm,
        "stack_norm": None,
        "projector": [
            {"norm": norm, "join": join, "width": hidden * join, "function": "gelu"},
            {"width": out},
        ],
    }
    if second:
        tower["feed_forward"] = {
            "width": c.whole("intermediate_size"),
            "activation": c.one_of("hidden_act", GATES, "silu"),
        }
        side = c.whole("window_size", 112) // patch
        tower["local"] = side * side
        tower["full_every"] = c.numbers("fullatt_block_indexes")
    else:
        width = int(hidden * c.number("mlp_ratio", 4))
        tower["feed_forward"] = {"width": width, "activation": "silu"}  # quick gelu
    return tower


@model_type("qwen2_vl", "qwen2_5_vl")
def qwen2_vl(c: Config) -> Fields:
    """Qwen2-VL and Qwen2.5-VL."""
    second = c.kind == "qwen2_5_vl"
    text = _text(c, usual=f"{c.kind}_text")
    return _seen(c, text, _qwen2_tower(c.part("vision_config"), second=second))


@model_type("qwen2_audio")
def qwen2_audio(c: Config) -> Fields:
    """Qwen2-Audio: Whisper's encoder, whose rows become half as many."""
    text = _text(c, usual="qwen2")
    tower = sound_tower(c.part("audio_config"))
    tower |= {"pool_before_norm": 2, "projector": [{"width": text["hidden"]}]}
    return _seen(c, text, tower)


@model_type("qwen2_5_omni", "qwen2_5_omni_thinker")
def qwen2_5_omni(c: Config) -> Fields:
    """Qwen2.5-Omni: the part that sees, hears and writes."""
    inner = c.part("thinker_config") if c.kind == "qwen2_5_omni" else c
    if c.kind == "qwen2_5_omni":
        c.note("left out: what speaks (talker and token2wav)")
    text = _text(inner, usual="qwen2_5_omni_text")
    sound = sound_tower(inner.part("audio_config"))
    out = inner.part("audio_config").whole("output_dim", text["hidden"])
    sound |= {
        "positions": 0,  # they are waves, which have no weights
        "pool_before_norm": 2,
        "projector": [{"width": out}],
        "unread": 2 * out,  # vectors for the ends of a piece of sound
    }
    image = _qwen2_tower(inner.part("vision_config"), second=True)
    return _seen(c, text, image, sound)


@model_type("qwen3_omni_moe", "qwen3_omni_moe_thinker")
def qwen3_omni(c: Config) -> Fields:
    """Qwen3-Omni: the part that sees, hears and writes."""
    inner = c.part("thinker_config") if c.kind == "qwen3_omni_moe" else c
    if c.kind == "qwen3_omni_moe":
        c.note("left out: what speaks (talker and code2wav)")
    text = _text(inner, usual="qwen3_omni_moe_text")
    image = _qwen3_tower(inner.part("vision_config"))
    return _seen(c, text, image, _spectrum_tower(inner.part("audio_config")))


@model_type("qwen3_asr")
def qwen3_asr(c: Config) -> Fields:
    """Qwen3-ASR: sound to text."""
    inner = c.part("thinker_config") if c.given.get("thinker_config") else c
    text = _text(inner, usual="qwen3_asr_text")
    of_sound = inner.part("audio_config")
    return _seen(c, text, _spectrum_tower(of_sound))


def _spectrum_tower(c: Config) -> Fields:
    """Read an encoder of sound whose three convolutions slide along the spectrum, too."""
    hidden, mels = c.whole("d_model"), c.whole("num_mel_bins")
    inner = {"filters": c.whole("downsample_hidden_size", 480), "stride": 2}
    out = c.whole("output_dim", hidden)
    return {
        "name": "audio",
        "rows": 2 * c.whole("max_source_positions", 1500),
        "features": mels,
        "stem": [inner] * 3,
        "planes": 2,
        "stem_bias": False,
        "layers": c.layers("encoder_layers"),
        "hidden": hidden,
        "attention": {"heads": c.whole("encoder_attention_heads"), "fused": False},
        "feed_forward": {
            "width": c.whole("encoder_ffn_dim"),
            "activation": c.one_of("activation_function", FUNCTIONS, "gelu"),
        },
        "projector": [{"width": hidden, "function": "gelu"}, {"width": out}],
    }


# --- Gemma ---


@model_type("gemma3")
def gemma3(c: Config) -> Fields:
    """Gemma 3: SigLIP's encoder, means of its rows, one product."""
    if not c.given.get("text_config"):
        c.note("its fields are those of its text alone; it has no encoder of images")
        return MODEL_TYPES["gemma3_text"](Config(c.given, c.file, "gemma3_text", c.prefix, c.notes))
    text = _text(c, usual="gemma3_text")
    image = c.part("vision_config", "siglip_vision_model")
    tower = siglip_tower(image)
    pool = max(1, tower["rows"] // c.whole("mm_tokens_per_image", 256))
    step = {"pool": pool}, {"norm": "rms-norm", "width": text["hidden"], "bias": False}
    return _seen(c, text, {**tower, "projector": list(step)})


@model_type("gemma4")
def gemma4(c: Config) -> Fields:
    """Gemma 4: an encoder with norms around branches; two tables of positions."""
    text = _text(c, usual="gemma4_text")
    image = c.part("vision_config", "gemma4_vision")
    if not c.found("vision_config") and not c.given.get("vision_config"):
        return _without(c, "its encoder of images, which the file does not describe", text)
    hidden, table = image.whole("hidden_size"), image.whole("position_embedding_size", 10240)
    pool = image.whole("pooling_kernel_size", 3) ** 2
    tower = {
        "rows": c.whole("vision_soft_tokens_per_image", 280) * pool,
        "features": 3 * image.whole("patch_size") ** 2,
        "stem_bias": False,
        "positions": table,
        "rotary": True,
        "layers": image.layers(),
        "hidden": hidden,
        "attention": {
            **attention(image, head_norm=True),
            "head_size": image.whole("head_dim", 64),
        },
        "feed_forward": gated(image, act="hidden_activation"),
        "norm": "rms-norm",
        "norms": "around",
        "stack_norm": None,
        "projector": [{"pool": pool}, {"width": text["hidden"], "bias": False}],
        "unread": table * hidden,  # positions of the other axis: rows are added twice
    }
    if c.given.get("audio_config"):
        c.note("left out: its encoder of sound (a conformer)")
    return _seen(c, text, tower)


@model_type("paligemma")
def paligemma(c: Config) -> Fields:
    """PaliGemma."""
    text = _text(c, usual="gemma")
    if "tie_word_embeddings" not in c.given:
        text["tied"] = True
    image = c.part("vision_config", "siglip_vision_model")
    steps = [{"width": c.whole("projection_dim", text["hidden"])}]
    return _seen(c, text, {**siglip_tower(image), "projector": steps})


# --- Llama ---


@model_type("llama4")
def llama4(c: Config) -> Fields:
    """Llama 4: an encoder with rotations, whose rows are joined by four."""
    text = _text(c, usual="llama4_text")
    if not c.given.get("vision_config"):  # the library's defaults are no encoder of a real network
        return _without(c, "its encoder of images, which the file does not describe", text)
    of = c.part("vision_config", "llama4_vision_model")
    rows, hidden = image_rows(of), of.whole("hidden_size")
    join = round(1 / of.number("pixel_shuffle_ratio", 0.5) ** 2)
    inner, out = of.whole("projector_input_dim", 4096), of.whole("projector_output_dim", 4096)
    tower = {
        **blocks_of(of),
        "rows": rows,
        "features": 3 * of.whole("patch_size") ** 2,
        "stem_bias": False,
        "leading": 1,
        "positions": rows + 1,
        "first_norm": "layer-norm",
        "rotary": True,
        "drop_leading": True,
        "projector": [
            {"join": join, "width": inner, "bias": False, "function": "gelu"},
            {"width": out, "bias": False, "function": "gelu"},
            {"width": text["hidden"], "bias": False},
        ],
    }
    width = hidden * join
    if of.whole("intermediate_size", width) != width:
        raise of.fail("intermediate_size", f"expected {join} x {hidden} features, as it joins")
    return _seen(c, text, tower)


@model_type("mllama")
def mllama(c: Config) -> Fields:
    """Llama 3.2 Vision: layers that attend to an encoder of images."""
    of = c.part("text_config", "mllama_text_model")
    crossed = set(of.numbers("cross_attention_layers"))
    plain_layer = {"attention": attention(of), "feed_forward": gated(of)}
    cross = {
        "cross_attention": {**attention(of, head_norm=True)},
        "feed_forward": gated(of),
        "branch_gates": True,
    }
    count = of.layers()
    text = decoder(of, [cross if i in crossed else plain_layer for i in range(count)])
    text["further_rows"] = 8
    return _seen(c, text, _mllama_tower(c.part("vision_config", "mllama_vision_model"), text))


def _mllama_tower(c: Config, text: Fields) -> Fields:
    """Local and global blocks over up to four tiles of an image, and the rows of five layers."""
    hidden, tiles = c.whole("hidden_size"), c.whole("max_num_tiles", 4)
    rows = image_rows(c)
    kept = len(c.numbers("intermediate_layers_indices"))
    ratios = 1 + c.whole("max_aspect_ratio_id", 8)
    tables = ratios * tiles * (rows + 1) * hidden + 2 * ratios * tiles * hidden + 3
    gates = 2 * c.whole("num_global_layers", 8)
    c.note("its rows of five layers beside the last are taken as copies of that")
    return {
        "rows": tiles * (rows + 1),
        "features": c.whole("num_channels", 3) * c.whole("patch_size") ** 2,
        "stem_bias": False,
        "positions": 0,
        "first_norm": "layer-norm",
        "layers": c.layers() + c.whole("num_global_layers", 8),
        "hidden": hidden,
        "attention": {
            "heads": c.whole("attention_heads"),
            "bias": False,
            "output_bias": False,
            "fused": False,
        },
        "feed_forward": {
            "width": c.whole("intermediate_size"),
            "activation": c.one_of("hidden_act", FUNCTIONS, "gelu"),
        },
        "copies": 1 + kept,
        "projector": [{"width": text["hidden"]}],
        "unread": tables + gates + hidden + (rows + 1) * hidden,
    }


# --- LLaVA and those like it ---


def _tower(c: Config, layer: object = -1) -> Fields:
    """Read an encoder of images by the model type of its configuration."""
    kind = c.kind
    if kind.startswith("clip"):
        tower = clip_tower(c)
    elif kind.startswith("siglip"):
        tower = siglip_tower(c)
    elif kind == "pixtral":
        return _pixtral(c)
    else:
        raise c.fail("model_type", f"an encoder of images of type {kind!r} is not known")
    return _until(tower, layer)


def _until(tower: Fields, layer: object) -> Fields:
    """Read the rows of an earlier layer; those behind it have weights that nothing reads."""
    if isinstance(layer, list):
        layer = layer[-1]
    behind = -1 - int(layer) if isinstance(layer, int) and layer < 0 else 0  # -2: one is unread
    if behind <= 0 and layer == -1:
        return {**tower, "stack_norm": None, "unread": 2 * tower["hidden"]}
    hidden, width = tower["hidden"], tower["feed_forward"]["width"]
    block = 4 * hidden * (hidden + 1) + 2 * hidden * width + width + hidden + 4 * hidden
    return {
        **tower,
        "layers": tower["layers"] - behind,
        "stack_norm": None,
        "unread": behind * block + 2 * hidden,
    }


def _pixtral(c: Config) -> Fields:
    """Pixtral's encoder: Llama's blocks over patches of an image of any size."""
    patch = c.whole("patch_size")
    return {
        "rows": _square(c, patch, 2),
        "features": c.whole("num_channels", 3) * patch**2,
        "stem_bias": False,
        "first_norm": "rms-norm",
        "rotary": True,
        "layers": c.layers(),
        "hidden": c.whole("hidden_size"),
        "attention": {
            "heads": c.whole("num_attention_heads"),
            "bias": False,
            "output_bias": False,
            "fused": False,
        },
        "feed_forward": gated(c),
        "norm": "rms-norm",
        "stack_norm": None,
    }


@model_type("llava", "llava_next", "llava_onevision", "llava_next_video")
def llava(c: Config) -> Fields:
    """LLaVA: an encoder of images and two linear layers."""
    text = _text(c)
    image = c.part("vision_config")
    tower = _tower(image, c.found("vision_feature_layer"))
    bias = c.flag("multimodal_projector_bias", True)
    tower["projector"] = _mlp(text["hidden"], bias)
    tower["drop_leading"] = c.found("vision_feature_select_strategy") != "full"
    if c.kind != "llava":
        tower["trained_rows"] = 1
    return _seen(c, text, tower)


@model_type("mistral3")
def mistral3(c: Config) -> Fields:
    """Mistral Small 3.1 and those after it: Pixtral's encoder, four rows joined."""
    text = _text(c)
    image = c.part("vision_config")
    tower, merge = _tower(image, c.found("vision_feature_layer")), c.whole("spatial_merge_size", 2)
    bias = c.flag("multimodal_projector_bias")
    first = {"norm": "rms-norm", "join": merge**2, "width": tower["hidden"], "bias": False}
    tower["projector"] = [first, *_mlp(text["hidden"], bias)]
    return _seen(c, text, tower)


@model_type("internvl")
def internvl(c: Config) -> Fields:
    """InternVL: scaled branches, four rows joined."""
    text = _text(c)
    of = c.part("vision_config", "internvl_vision")
    size, patch = of.found("image_size"), of.found("patch_size")
    side = [one[0] if isinstance(one, list) else one for one in (size, patch)]
    whole = Config({**of.data, "image_size": side[0], "patch_size": side[1]}, of.file, of.kind)
    rows, bias = image_rows(whole), of.flag("attention_bias")
    of.only("norm_type", "layer_norm")
    of.only("use_qk_norm", False)
    join = round(1 / c.number("downsample_ratio", 0.5) ** 2)
    tower = {
        **blocks_of(whole),
        "rows": rows,
        "features": 3 * whole.whole("patch_size") ** 2,
        "leading": 1,
        "positions": rows + 1,
        "layer_scale": True,
        "drop_leading": True,
        "stack_norm": None if of.flag("use_mean_pooling", True) else "layer-norm",
        "projector": [{"join": join}, {"norm": "layer-norm", "width": text["hidden"],
                                      "function": "gelu"}, {"width": text["hidden"]}],
        "unread": of.whole("hidden_size") if of.flag("use_mask_token") else 0,
    }  # fmt: skip
    tower["attention"] = {
        "heads": of.whole("num_attention_heads"),
        "bias": bias,
        "output_bias": True,
        "fused": False,
    }
    return _seen(c, text, tower)


@model_type("idefics3", "smolvlm")
def idefics3(c: Config) -> Fields:
    """Idefics3 and SmolVLM: SigLIP's encoder, rows joined, one product."""
    text = _text(c)
    if "tie_word_embeddings" not in c.given:
        text["tied"] = c.flag("tie_word_embeddings")
    tower = siglip_tower(c.part("vision_config"))
    join = c.whole("scale_factor", 2) ** 2
    tower["projector"] = [{"join": join, "width": text["hidden"], "bias": False}]
    return _seen(c, text, tower)


@model_type("glm4v", "glm4v_moe")
def glm4v(c: Config) -> Fields:
    """GLM-4V: norms of the stem and the stack, a gated projector."""
    text = _text(c, usual=f"{c.kind}_text")
    of = c.part("vision_config", f"{c.kind}_vision")
    merge = of.whole("spatial_merge_size", 2)
    hidden, out = of.whole("hidden_size"), of.whole("out_hidden_size")
    rows, bias = image_rows(of), of.flag("attention_bias")
    tower = {
        "rows": rows // merge**2 * merge**2,
        "features": _patches(of, frames=of.whole("temporal_patch_size", 2)),
        "first_norm": "rms-norm",
        "positions": rows,
        "rotary": True,
        "layers": of.layers("depth"),
        "hidden": hidden,
        "attention": {"heads": of.whole("num_heads"), "bias": bias, "output_bias": False},
        # the width of its blocks is the output's, and that of its projector is said
        "feed_forward": {"width": out, "activation": "swiglu", "bias": False},
        "norm": "rms-norm",
        "stack_norm": "rms-norm",
        "projector": [
            {"join": merge**2, "width": out},
            {"width": out, "bias": False, "norm_after": "layer-norm", "function": "gelu"},
            {"feed_forward": {
                "width": of.whole("intermediate_size"), "activation": "swiglu", "bias": False,
            }},
        ],
    }  # fmt: skip
    return _seen(c, text, tower)


@model_type("kimi_k25")
def kimi_k25(c: Config) -> Fields:
    """Kimi K2.5: MoonViT, four rows joined."""
    text = _text(c, usual="deepseek_v3")
    of = c.part("vision_config", "kimi_k25_vision")
    first = {k: of.first(*names) for k, names in _MOON.items()}
    hidden, table = first["hidden"], first["height"] * first["width"]
    join = 4
    tower = {
        "rows": table,
        "features": 3 * of.whole("patch_size", 14) ** 2,
        "positions": table,
        "rotary": True,
        "layers": first["layers"],
        "hidden": hidden,
        "attention": {"heads": first["heads"]},
        "feed_forward": {"width": first["wide"], "activation": "gelu"},
        "projector": [
            {"norm": "layer-norm", "join": join, "width": hidden * join, "function": "gelu"},
            {"width": text["hidden"]},
        ],
    }
    return _seen(c, text, tower)


_MOON = {
    "hidden": ("vt_hidden_size", "hidden_size"),
    "layers": ("vt_num_hidden_layers", "num_hidden_layers"),
    "heads": ("vt_num_attention_heads", "num_attention_heads"),
    "wide": ("vt_intermediate_size", "intermediate_size"),
    "height": ("init_pos_emb_height", "pos_emb_height"),
    "width": ("init_pos_emb_width", "pos_emb_width"),
}
"""Fields of MoonViT under their two names."""


@model_type("step3p7")
def step3p7(c: Config) -> Fields:
    """Step-3.7: its text; files that describe no encoder are read without one."""
    text = _text(c, usual="step3p7_text")
    return _without(c, "its encoder of images", text)


@model_type("minimax_m3", "minimax_m3_vl")
def minimax_m3(c: Config) -> Fields:
    """MiniMax-M3: its text."""
    return _without(c, "its encoder of images", _text(c, usual="minimax_m3_vl_text"))


@model_type("multi_modality")
def janus(c: Config) -> Fields:
    """Janus: SigLIP-L, two linear layers; what makes images is left out."""
    text = _text(c, "language_config", "llama")
    of = c.part("vision_config").part("params")
    size, patch = of.whole("image_size", 384), 16
    if "siglip_large" not in str(of.found("model_name")):
        return _without(c, f"its encoder of images {of.found('model_name')!r}", text)
    rows, hidden = (size // patch) ** 2, 1024
    tower = {
        "rows": rows,
        "features": 3 * patch**2,
        "positions": rows,
        "layers": 24,
        "hidden": hidden,
        "attention": {"heads": 16},
        "feed_forward": {"width": 4096, "activation": "gelu"},
        "projector": _mlp(text["hidden"]),
    }
    c.note("left out: what makes images (VQ-16, its aligner, head and table)")
    return _seen(c, text, tower)


@model_type("llava_llama", "llava_qwen2", "vila")
def vila(c: Config) -> Fields:
    """VILA: an encoder of images whose last layer but one is read, rows joined."""
    text = _text(c, "llm_cfg", "llama")
    of = c.part("vision_tower_cfg")
    tower = _tower(of, c.found("mm_vision_select_layer"))
    kind = str(c.part("mm_projector_cfg").found("mm_projector_type"))
    if kind == "mlp_downsample":
        side = round(tower["rows"] ** 0.5)
        tower["rows"] = (side - side % 2) ** 2
        tower["projector"] = [
            {"join": 4},
            {"norm": "layer-norm", "width": text["hidden"], "function": "gelu"},
            {"width": text["hidden"]},
        ]
        c.note("an odd row and column of its patches are left out, which it pads")
    elif kind in {"mlp2x_gelu", "linear"}:
        tower["projector"] = _mlp(text["hidden"])[: 2 if kind != "linear" else 1]
    else:
        return _without(c, f"its encoder of images, with a projector {kind!r}", text)
    return _seen(c, text, tower)


_SIGLIP = {
    "siglip_so400m_patch14_384": {
        "hidden_size": 1152, "num_hidden_layers": 27, "num_attention_heads": 16,
        "intermediate_size": 4304, "patch_size": 14, "image_size": 384, "num_channels": 3,
        "hidden_act": "gelu_pytorch_tanh", "model_type": "siglip_vision_model",
    },
}  # fmt: skip
"""Encoders that files only name (timm)."""


@model_type("deepseek_vl_v2")
def deepseek_vl2(c: Config) -> Fields:
    """DeepSeek-VL2: SigLIP, four rows joined."""
    text = _text(c, "language_config", "deepseek_v2")
    of = c.part("vision_config")
    known = _SIGLIP.get(str(of.found("model_name")))
    if known is None:
        return _without(c, f"its encoder of images {of.found('model_name')!r}", text)
    whole = Config(known, c.file, "siglip_vision_model", "vision_config.", c.notes)
    tower = siglip_tower(whole)
    side = round(tower["rows"] ** 0.5)
    tower["rows"] = (side - side % 2) ** 2
    out = text["hidden"]
    depth = c.part("projector_config").whole("depth", 2)
    if depth != 2:
        raise c.fail("projector_config.depth", f"{depth} is not modelled; modelled: 2")
    tower["projector"] = [
        {"join": 4, "width": out * 2, "function": "gelu"},
        {"width": out},
    ]
    c.note("left out: the head of its encoder, and the vectors that part views of an image")
    return _seen(c, text, tower)


@model_type("minicpmv")
def minicpmv(c: Config) -> Fields:
    """MiniCPM-V: its text; a resampler stands behind its encoder of images."""
    usual = "minicpm" if c.found("scale_emb") else "qwen2"
    return _without(c, "its encoder of images and resampler", _text(c, usual=usual))


@model_type("molmo")
def molmo(c: Config) -> Fields:
    """Molmo: its text, in the names of OLMo's own code."""
    heads = c.whole("num_attention_heads")
    fields = {
        "num_attention_heads": heads,
        "num_key_value_heads": c.whole("num_key_value_heads", heads),
    }
    mixer = attention(Config(fields, c.file, "", c.prefix), bias=c.flag("qkv_bias"))
    c.only("attention_layer_norm", False)
    c.only("norm_after", False)
    width = c.whole("intermediate_size") // 2  # both halves of the gate
    block = {"attention": mixer, "feed_forward": {"width": width, "activation": "swiglu",
                                                  "bias": False, "fused": True}}  # fmt: skip
    text = decoder(c, [block] * c.layers())
    return _without(c, "its encoder of images and 128 further rows of its embedding", text)


@model_type("phi4_multimodal", "phi4mm")
def phi4(c: Config) -> Fields:
    """Phi-4-multimodal: its text."""
    layers = [{**m, "feed_forward": {**gated(c), "fused": True}}
              for m in windowed(c, lambda i: True, fused=True)]  # fmt: skip
    tied = c.flag("tie_word_embeddings")
    return _without(
        c, "its encoders of images and sound, and their adapters", decoder(c, layers, tied=tied)
    )
