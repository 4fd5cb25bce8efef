"""Encoders, and encoders with decoders."""

from __future__ import annotations

from ridgeline.workload.trace.huggingface.configuration import FUNCTIONS, GATES, Config
from ridgeline.workload.trace.huggingface.parts import attention, gated, is_local
from ridgeline.workload.trace.huggingface.registry import Fields, model_type

MASKED_SHARE = 0.15  # of the tokens (Devlin et al., BERT, Section 3.1)


@model_type("bert", "roberta", "xlm-roberta", "camembert")
def bert(c: Config) -> Fields:
    """BERT; RoBERTa has no second head, and two rows for padding in its table of positions."""
    c.only("position_embedding_type", "absolute", None)
    c.only("is_decoder", False)
    rows = c.whole("max_position_embeddings")
    first = c.kind == "bert"
    longest = rows if first else rows - 2
    return {
        "family": "bert",
        "vocabulary": c.whole("vocab_size"),
        "sequence": longest,
        "masked": max(1, round(MASKED_SHARE * longest)),
        "layers": c.layers(),
        "hidden": c.whole("hidden_size"),
        "attention": {
            "heads": c.whole("num_attention_heads"),
            "fused": False,
            "dropout": c.share("attention_probs_dropout_prob", 0.1),
        },
        "feed_forward": {
            "width": c.whole("intermediate_size"),
            "activation": c.one_of("hidden_act", FUNCTIONS, "gelu"),
        },
        "max_positions": rows,
        "segments": c.whole("type_vocab_size", 2),
        "next_sentence": first,
        "dropout": c.share("hidden_dropout_prob", 0.1),
    }


def filled_in(c: Config, tower: Fields, **more: object) -> Fields:
    """Describe an encoder that fills in tokens."""
    masked = max(1, round(MASKED_SHARE * tower["rows"]))
    return {"family": "encoder", "tower": tower, "masked": masked, **more}


@model_type("distilbert")
def distilbert(c: Config) -> Fields:
    """DistilBERT: BERT without kinds of segments."""
    c.only("sinusoidal_pos_embds", False)
    hidden = c.whole("dim")
    rows = c.whole("max_position_embeddings")
    tower = {
        "name": "text",
        "vocabulary": c.whole("vocab_size"),
        "rows": rows,
        "positions": rows,
        "first_norm": "layer-norm",
        "layers": c.layers("n_layers"),
        "hidden": hidden,
        "attention": {
            "heads": c.whole("n_heads"),
            "fused": False,
            "dropout": c.share("attention_dropout", 0.1),
        },
        "feed_forward": {
            "width": c.whole("hidden_dim"),
            "activation": c.one_of("activation", FUNCTIONS, "gelu"),
        },
        "norms": "after-sum",
        "stack_norm": None,
    }
    return filled_in(c, tower)


@model_type("modernbert")
def modernbert(c: Config) -> Fields:
    """ModernBERT: rotations, gates, windows in two of three layers."""
    c.only("norm_bias", False)
    count, width = c.layers(), c.whole("intermediate_size")
    every = c.whole("global_attn_every_n_layers", 3)
    local = is_local(c, count, lambda i: i % every != 0)
    bias = c.flag("attention_bias")
    tower = {
        "name": "text",
        "vocabulary": c.whole("vocab_size"),
        "rows": c.whole("max_position_embeddings"),
        "first_norm": "unbiased-layer-norm",
        "rotary": True,
        "layers": count,
        "hidden": c.whole("hidden_size"),
        "attention": {
            "heads": c.whole("num_attention_heads"),
            "bias": bias,
            "output_bias": bias,
            "dropout": c.share("attention_dropout"),
        },
        "feed_forward": {
            "width": width,
            "activation": c.one_of("hidden_activation", GATES, "gelu"),
            "bias": c.flag("mlp_bias"),
        },
        "local": c.whole("local_attention"),
        "full_every": [i for i in range(count) if not local[i]],
        "norm": "unbiased-layer-norm",
        "first_layer_norm": False,
        "stack_norm": "unbiased-layer-norm",
    }
    c.note("windows around a token are taken as blocks of tokens of the window's length")
    return filled_in(c, tower, transform_bias=False, transform_norm="unbiased-layer-norm")


def image_rows(c: Config, size: str = "image_size", patch: str = "patch_size") -> int:
    """Patches of an image of the size that a configuration names."""
    return (c.whole(size) // c.whole(patch)) ** 2


def blocks_of(
    c: Config, *, heads: str = "num_attention_heads", width: str = "intermediate_size"
) -> Fields:
    """Blocks of most encoders of images: layer norms before branches, biases everywhere."""
    return {
        "layers": c.layers(),
        "hidden": c.whole("hidden_size"),
        "attention": {
            "heads": c.whole(heads),
            "fused": False,
            "dropout": c.share("attention_dropout"),
        },
        "feed_forward": {
            "width": c.whole(width),
            "activation": c.one_of("hidden_act", FUNCTIONS, "gelu"),
        },
    }


def clip_tower(c: Config) -> Fields:
    """CLIP's encoder of images: a leading row, a norm before the blocks."""
    rows = image_rows(c)
    return {
        **blocks_of(c),
        "rows": rows,
        "features": c.whole("num_channels", 3) * c.whole("patch_size") ** 2,
        "stem_bias": False,
        "leading": 1,
        "positions": rows + 1,
        "first_norm": "layer-norm",
        "stack_norm": "layer-norm",
    }


def siglip_tower(c: Config) -> Fields:
    """SigLIP's encoder of images."""
    patch = c.whole("patch_size")
    rows = c.whole("num_patches") if c.found("num_patches") else image_rows(c)
    return {
        **blocks_of(c),
        "rows": rows,
        "features": c.whole("num_channels", 3) * patch**2,
        "positions": rows,
    }


def _text_tower(c: Config) -> Fields:
    """Read the encoder of text of a pair; its mask changes nothing of what separate ops cost."""
    rows = c.whole("max_position_embeddings")
    return {
        **blocks_of(c),
        "name": "text",
        "vocabulary": c.whole("vocab_size"),
        "rows": rows,
        "positions": rows,
        "pool": "last",
    }


@model_type("clip")
def clip(c: Config) -> Fields:
    """CLIP."""
    image, text = c.part("vision_config"), c.part("text_config")
    step = [{"width": c.whole("projection_dim"), "bias": False}]
    return {
        "family": "encoder-pair",
        "image": {**clip_tower(image), "pool": "first", "projector": step},
        "text": {**_text_tower(text), "projector": step},
        "dataset": "imagenet",
    }


@model_type("siglip", "siglip2")
def siglip(c: Config) -> Fields:
    """SigLIP: images through a trained row that attends, text through its last row."""
    image, text = c.part("vision_config"), c.part("text_config")
    width = text.whole("projection_size", text.whole("hidden_size"))
    head = {"pool": "probe"} if image.flag("vision_use_head", True) else {"pool": "mean"}
    return {
        "family": "encoder-pair",
        "image": {**siglip_tower(image), **head},
        "text": {**_text_tower(text), "projector": [{"width": width}]},
        "loss": "sigmoid",
        "dataset": "imagenet",
    }


def _classes(c: Config) -> int:
    labels = c.found("id2label")
    return len(labels) if isinstance(labels, dict) and labels else c.whole("num_labels", 2)


@model_type("siglip_vision_model", "siglip2_vision_model", "clip_vision_model")
def image_alone(c: Config) -> Fields:
    """Read an encoder of a pair alone, with a head that tells classes apart."""
    tower = clip_tower(c) if c.kind.startswith("clip") else siglip_tower(c)
    tower["pool"] = "mean" if c.kind.startswith("clip") else "probe"
    return {"family": "encoder", "tower": tower, "classes": _classes(c), "dataset": "imagenet"}


@model_type("vit")
def vit(c: Config) -> Fields:
    """ViT."""
    c.only("qkv_bias", True)
    size = c.whole("image_size")
    return {
        "family": "vision-transformer",
        "image": {"channels": c.whole("num_channels", 3), "height": size, "width": size},
        "classes": _classes(c),
        "patch": c.whole("patch_size"),
        "layers": c.layers(),
        "hidden": c.whole("hidden_size"),
        "attention": {
            "heads": c.whole("num_attention_heads"),
            "fused": False,
            "dropout": c.share("attention_probs_dropout_prob"),
        },
        "feed_forward": {
            "width": c.whole("intermediate_size"),
            "activation": c.one_of("hidden_act", FUNCTIONS, "gelu"),
        },
        "dropout": c.share("hidden_dropout_prob"),
        "dataset": "imagenet",
    }


@model_type("dinov2")
def dinov2(c: Config) -> Fields:
    """DINOv2: scaled branches; the head reads the leading row and the mean of the others."""
    c.only("qkv_bias", True)
    rows, hidden = image_rows(c), c.whole("hidden_size")
    width = int(hidden * c.number("mlp_ratio", 4))
    forward: Fields = {"width": width, "activation": c.one_of("hidden_act", FUNCTIONS, "gelu")}
    if c.flag("use_swiglu_ffn"):
        width = (int(width * 2 / 3) + 7) // 8 * 8
        forward = {"width": width, "activation": "swiglu"}
    tower = {
        "rows": rows,
        "features": c.whole("num_channels", 3) * c.whole("patch_size") ** 2,
        "leading": 1,
        "positions": rows + 1,
        "layers": c.layers(),
        "hidden": hidden,
        "attention": {"heads": c.whole("num_attention_heads"), "fused": False},
        "feed_forward": forward,
        "layer_scale": True,
        "pool": "first-and-mean",
        "unread": hidden if c.flag("use_mask_token", True) else 0,
    }
    return {"family": "encoder", "tower": tower, "classes": _classes(c), "dataset": "imagenet"}


@model_type("dinov3_vit")
def dinov3(c: Config) -> Fields:
    """DINOv3: rotations, registers; a student of a teacher, without a head."""
    c.only("query_bias", True)
    c.only("value_bias", True)
    hidden, leading = c.whole("hidden_size"), 1 + c.count("num_register_tokens")
    gated = c.flag("use_gated_mlp")
    bias = c.flag("mlp_bias", True)
    names = GATES if gated else FUNCTIONS
    tower = {
        "rows": image_rows(c),
        "features": c.whole("num_channels", 3) * c.whole("patch_size") ** 2,
        "leading": leading,
        "rotary": True,
        "layers": c.layers(),
        "hidden": hidden,
        "attention": {
            "heads": c.whole("num_attention_heads"),
            "bias": True if c.flag("key_bias") else "no-key",
            "output_bias": c.flag("proj_bias", True),
            "fused": False,
        },
        "feed_forward": {
            "width": c.whole("intermediate_size"),
            "activation": c.one_of("hidden_act", names, "gelu"),
            "bias": bias,
        },
        "layer_scale": True,
        "unread": hidden,
    }
    return {"family": "encoder", "tower": tower, "dataset": "imagenet"}


def sound_tower(c: Config) -> Fields:
    """Whisper's encoder: two convolutions over frames; products for keys have no bias."""
    hidden, rows = c.whole("d_model"), c.whole("max_source_positions")
    return {
        "name": "audio",
        "rows": 2 * rows,
        "features": c.whole("num_mel_bins"),
        "stem": [{"filters": hidden}, {"filters": hidden, "stride": 2}],
        "positions": rows,
        "layers": c.layers("encoder_layers"),
        "hidden": hidden,
        "attention": {
            "heads": c.whole("encoder_attention_heads"),
            "bias": "no-key",
            "fused": False,
            "dropout": c.share("attention_dropout"),
        },
        "feed_forward": {
            "width": c.whole("encoder_ffn_dim"),
            "activation": c.one_of("activation_function", FUNCTIONS, "gelu"),
        },
    }


@model_type("whisper")
def whisper(c: Config) -> Fields:
    """Whisper: an encoder of sound, and a decoder whose layers attend to it."""
    heads = c.whole("decoder_attention_heads")
    mixer = {
        "heads": heads,
        "bias": "no-key",
        "fused": False,
        "dropout": c.share("attention_dropout"),
    }
    layer = {
        "letter": "A",
        "attention": mixer,
        "cross_attention": mixer,
        "feed_forward": {
            "width": c.whole("decoder_ffn_dim"),
            "activation": c.one_of("activation_function", FUNCTIONS, "gelu"),
        },
    }
    count, rows = c.layers("decoder_layers"), c.whole("max_target_positions")
    return {
        "family": "decoder",
        "vocabulary": c.whole("vocab_size"),
        "sequence": rows,
        "layers": count,
        "pattern": "A" * count,
        "variants": [layer],
        "hidden": c.whole("d_model"),
        "norm": "layer-norm",
        "towers": [sound_tower(c)],
        "tied": c.flag("tie_word_embeddings", True),
        "dropout": c.share("dropout"),
    }


@model_type("t5", "mt5")
def t5(c: Config) -> Fields:
    """T5."""
    kind = c.found("feed_forward_proj") or "relu"
    gated = isinstance(kind, str) and kind.startswith("gated-")
    names = {f"gated-{key}": value for key, value in GATES.items()} if gated else FUNCTIONS
    drop = c.share("dropout_rate", 0.1)
    layers = c.layers("num_layers")
    length = c.whole("n_positions", 512)
    return {
        "family": "encoder-decoder",
        "vocabulary": c.whole("vocab_size"),
        "source": length,
        "target": 114 if length == 512 else max(1, round(length * 114 / 512)),
        "encoder_layers": layers,
        "decoder_layers": c.whole("num_decoder_layers", layers),
        "hidden": c.whole("d_model"),
        "attention": {
            "heads": c.whole("num_heads"),
            "head_size": c.whole("d_kv"),
            "bias": False,
            "output_bias": False,
            "fused": False,
            "scaled": False,
            "dropout": drop,
        },
        "feed_forward": {
            "width": c.whole("d_ff"),
            "activation": c.one_of("feed_forward_proj", names, "relu"),
            "bias": False,
            "fused": False,
            "dropout": drop,
        },
        "norm": "rms-norm",
        "norm_first": True,
        "positions": "relative",
        "ranges": c.whole("relative_attention_num_buckets", 32),
        "distance": c.whole("relative_attention_max_distance", 128),
        "tied": c.flag("tie_word_embeddings", True),
        "dropout": drop,
    }


@model_type("t5gemma")
def t5gemma(c: Config) -> Fields:
    """T5Gemma: Gemma 2's blocks as an encoder, and as a decoder whose layers attend to it."""
    one, two = c.part("encoder", "t5gemma_module"), c.part("decoder", "t5gemma_module")
    mixer = attention(two)
    layer = {
        "letter": "A",
        "attention": mixer,
        "cross_attention": mixer,
        "feed_forward": gated(two, act="hidden_activation"),
    }
    if one.whole("hidden_size") != two.whole("hidden_size"):
        raise c.fail("encoder.hidden_size", "an encoder of another width is not modelled")
    rows = one.whole("max_position_embeddings")
    tower = {
        "name": "encoder",
        "vocabulary": one.whole("vocab_size"),
        "rows": rows,
        "rotary": True,
        "layers": one.layers(),
        "hidden": one.whole("hidden_size"),
        "attention": attention(one),
        "feed_forward": gated(one, act="hidden_activation"),
        "norm": "rms-norm",
        "norms": "around",
        "stack_norm": "rms-norm",
    }
    c.note("the windows of every other layer are taken as dense")
    count = two.layers()
    return {
        "family": "decoder",
        "vocabulary": two.whole("vocab_size"),
        "sequence": two.whole("max_position_embeddings"),
        "layers": count,
        "pattern": "A" * count,
        "variants": [layer],
        "hidden": two.whole("hidden_size"),
        "norm": "rms-norm",
        "norms": "around",
        "positions": "rotary",
        "towers": [tower],
        "tied": c.flag("tie_word_embeddings", True),
    }
