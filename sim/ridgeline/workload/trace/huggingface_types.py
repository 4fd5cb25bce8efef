"""Model types of Hugging Face: from their configurations to the fields of families."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from ridgeline.errors import ConfigError, nearest

Fields = dict[str, Any]
_GATES = {"silu": "swiglu", "swish": "swiglu", "gelu": "geglu", "gelu_new": "geglu",
          "gelu_pytorch_tanh": "geglu", "gelu_fast": "geglu"}  # fmt: skip
_FUNCTIONS = {"gelu": "gelu", "gelu_new": "gelu", "gelu_fast": "gelu", "gelu_pytorch_tanh": "gelu",
              "relu": "relu", "silu": "silu", "swish": "silu", "tanh": "tanh"}  # fmt: skip
_MASKED_SHARE = 0.15  # of the tokens (Devlin et al., BERT, Section 3.1)


class Config:
    """A configuration whose every value is asked for by name and type."""

    def __init__(self, data: Mapping[str, Any], file: str) -> None:
        self.data, self.file = data, file

    def fail(self, name: str, message: str) -> ConfigError:
        """Return an error that names the file and the field."""
        return ConfigError(message, file=self.file, field=name)

    def whole(self, name: str, default: int | None = None) -> int:
        """Return a whole number above 0; it is an error if it is missing and has no default."""
        value = self.data.get(name)
        if value is None and default is not None:
            return default
        if value is None:
            raise self.fail(name, f"the field {name!r} is missing{nearest(name, self.data)}")
        if type(value) is not int or value < 1:
            raise self.fail(name, f"expected a whole number above 0, found {value!r:.60}")
        return value

    def share(self, name: str, default: float = 0.0) -> float:
        """Return a probability."""
        value = self.data.get(name, default)
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1:
            raise self.fail(name, f"expected a number from 0 to below 1, found {value!r:.60}")
        return float(value)

    def flag(self, name: str, default: bool) -> bool:
        """Return a truth value."""
        value = self.data.get(name, default)
        if not isinstance(value, bool):
            raise self.fail(name, f"expected true or false, found {value!r:.60}")
        return value

    def one_of(self, name: str, allowed: Mapping[str, str], default: str) -> str:
        """Return what a text means, of those that are allowed."""
        value = self.data.get(name) or default
        if value not in allowed:
            near = nearest(value, allowed) if isinstance(value, str) else ""
            known = ", ".join(allowed)
            raise self.fail(name, f"found {value!r:.60}{near} (known: {known})")
        return allowed[value]

    def only(self, name: str, *allowed: Any) -> None:
        """Refuse a field whose other values make another network."""
        value = self.data.get(name, allowed[0])
        if value not in allowed:
            listed = " or ".join(repr(one) for one in allowed)
            raise self.fail(name, f"{value!r:.60} is not modelled; modelled: {listed}")


def _llama(c: Config) -> Fields:
    c.only("pretraining_tp", 1, 2, 4, 8, None)  # the same products, cut for inference
    bias = c.flag("attention_bias", False)
    return _llama_like(c, bias=bias, output_bias=bias, mlp_bias=c.flag("mlp_bias", False))


def _llama_like(
    c: Config, *, bias: bool = False, output_bias: bool = False, mlp_bias: bool = False
) -> Fields:
    heads = c.whole("num_attention_heads")
    attention: Fields = {
        "heads": heads,
        "kv_heads": c.whole("num_key_value_heads", heads),
        "bias": bias,
        "output_bias": output_bias,
        "fused": False,
        "dropout": c.share("attention_dropout"),
    }
    if c.data.get("head_dim") is not None:
        attention["head_size"] = c.whole("head_dim")
    return {
        "family": "decoder",
        "vocabulary": c.whole("vocab_size"),
        "sequence": c.whole("max_position_embeddings"),
        "layers": c.whole("num_hidden_layers"),
        "hidden": c.whole("hidden_size"),
        "attention": attention,
        "feed_forward": {
            "width": c.whole("intermediate_size"),
            "activation": c.one_of("hidden_act", _GATES, "silu"),
            "bias": mlp_bias,
            "fused": False,
        },
        "norm": "rms-norm",
        "positions": "rotary",
        "tied": c.flag("tie_word_embeddings", False),
    }


def _mistral(c: Config) -> Fields:
    window, longest = c.data.get("sliding_window"), c.whole("max_position_embeddings", 131072)
    fields = _llama_like(c)
    if isinstance(window, int) and window < longest:
        fields["sequence"] = window  # longer ones would attend to a window only
    return fields


def _mixtral(c: Config) -> Fields:
    fields = _mistral(c)
    fields["mixture"] = {
        "experts": c.whole("num_local_experts", 8),
        "top_k": c.whole("num_experts_per_tok", 2),
        "width": c.whole("intermediate_size"),
    }
    return fields


def _qwen2(c: Config) -> Fields:
    c.only("use_sliding_window", False)
    return _llama_like(c, bias=True)


def _gemma(c: Config) -> Fields:
    if c.data.get("hidden_act") is None or c.data.get("hidden_activation"):
        c = Config({**c.data, "hidden_act": c.data.get("hidden_activation") or "gelu"}, c.file)
    fields = _llama_like(c)
    fields["tied"] = c.flag("tie_word_embeddings", True)
    return fields


def _phi3(c: Config) -> Fields:
    fields = _llama_like(c)
    fields["attention"]["fused"] = fields["feed_forward"]["fused"] = True
    return fields


def _starcoder2(c: Config) -> Fields:
    bias = c.flag("use_bias", True)
    plain = Config({**c.data, "hidden_act": "gelu"}, c.file)
    fields = _llama_like(plain, bias=bias, output_bias=bias, mlp_bias=bias)
    function = c.one_of("hidden_act", _FUNCTIONS, "gelu_pytorch_tanh")
    fields["feed_forward"]["activation"] = function
    fields["norm"] = "layer-norm"
    fields["dropout"] = c.share("residual_dropout")
    fields["tied"] = c.flag("tie_word_embeddings", True)
    return fields


def _deepseek_moe(c: Config, scores: str) -> Fields:
    experts = c.whole("n_routed_experts")
    c.only("moe_layer_freq", 1)
    return {
        "experts": experts,
        "top_k": c.whole("num_experts_per_tok"),
        "width": c.whole("moe_intermediate_size"),
        "shared": c.data.get("n_shared_experts") or 0,
        "scores": scores,
        "scale": float(c.data.get("routed_scaling_factor") or 1.0),
        "first_dense": c.data.get("first_k_dense_replace") or 0,
    }


def _deepseek(c: Config) -> Fields:
    fields = _llama(c)
    fields["mixture"] = _deepseek_moe(c, "softmax")
    return fields


def _latent(c: Config, scores: str) -> Fields:
    c.only("attention_bias", False)
    fields = _llama_like(c)
    del fields["attention"]
    fields["latent_attention"] = {
        "heads": c.whole("num_attention_heads"),
        "rank": c.whole("kv_lora_rank"),
        "plain_size": c.whole("qk_nope_head_dim"),
        "rotary_size": c.whole("qk_rope_head_dim"),
        "value_size": c.whole("v_head_dim"),
    }
    if c.data.get("q_lora_rank") is not None:
        fields["latent_attention"]["query_rank"] = c.whole("q_lora_rank")
    fields["mixture"] = _deepseek_moe(c, scores)
    return fields


def _gpt2(c: Config) -> Fields:
    c.only("add_cross_attention", False)
    hidden, positions = c.whole("n_embd", 768), c.whole("n_positions", 1024)
    return {
        "family": "decoder",
        "vocabulary": c.whole("vocab_size", 50257),
        "sequence": positions,
        "layers": c.whole("n_layer", 12),
        "hidden": hidden,
        "attention": {"heads": c.whole("n_head", 12), "dropout": c.share("attn_pdrop", 0.1)},
        "feed_forward": {
            "width": c.whole("n_inner", 4 * hidden),
            "activation": c.one_of("activation_function", _FUNCTIONS, "gelu_new"),
        },
        "tied": c.flag("tie_word_embeddings", True),
        "dropout": c.share("resid_pdrop", 0.1),
    }


def _gpt_bigcode(c: Config) -> Fields:
    fields = _gpt2(c)
    if c.flag("multi_query", True):
        fields["attention"]["kv_heads"] = 1
    return fields


def _opt(c: Config) -> Fields:
    c.only("do_layer_norm_before", True)
    c.only("enable_bias", True)
    hidden = c.whole("hidden_size", 768)
    c.only("word_embed_proj_dim", hidden)
    positions = c.whole("max_position_embeddings", 2048)
    return {
        "family": "decoder",
        "vocabulary": c.whole("vocab_size", 50272),
        "sequence": positions,
        "max_positions": positions + 2,  # its table begins with two rows for padding
        "layers": c.whole("num_hidden_layers", 12),
        "hidden": hidden,
        "attention": {
            "heads": c.whole("num_attention_heads", 12),
            "fused": False,
            "dropout": c.share("attention_dropout"),
        },
        "feed_forward": {
            "width": c.whole("ffn_dim", 3072),
            "activation": c.one_of("activation_function", _FUNCTIONS, "relu"),
        },
        "tied": c.flag("tie_word_embeddings", True),
        "dropout": c.share("dropout", 0.1),
    }


def _bert(c: Config) -> Fields:
    c.only("position_embedding_type", "absolute")
    c.only("is_decoder", False)
    positions = c.whole("max_position_embeddings", 512)
    return {
        "family": "bert",
        "vocabulary": c.whole("vocab_size", 30522),
        "sequence": positions,
        "masked": max(1, round(_MASKED_SHARE * positions)),
        "layers": c.whole("num_hidden_layers", 12),
        "hidden": c.whole("hidden_size", 768),
        "attention": {
            "heads": c.whole("num_attention_heads", 12),
            "fused": False,
            "dropout": c.share("attention_probs_dropout_prob", 0.1),
        },
        "feed_forward": {
            "width": c.whole("intermediate_size", 3072),
            "activation": c.one_of("hidden_act", _FUNCTIONS, "gelu"),
        },
        "max_positions": positions,
        "segments": c.whole("type_vocab_size", 2),
        "dropout": c.share("hidden_dropout_prob", 0.1),
    }


def _t5(c: Config) -> Fields:
    kind = c.data.get("feed_forward_proj", "relu")
    gated = isinstance(kind, str) and kind.startswith("gated-")
    names = {f"gated-{key}": value for key, value in _GATES.items()} if gated else _FUNCTIONS
    drop = c.share("dropout_rate", 0.1)
    layers = c.whole("num_layers", 6)
    length = c.whole("n_positions", 512)
    return {
        "family": "encoder-decoder",
        "vocabulary": c.whole("vocab_size", 32128),
        "source": length,
        "target": 114 if length == 512 else max(1, round(length * 114 / 512)),
        "encoder_layers": layers,
        "decoder_layers": c.whole("num_decoder_layers", layers),
        "hidden": c.whole("d_model", 512),
        "attention": {
            "heads": c.whole("num_heads", 8),
            "head_size": c.whole("d_kv", 64),
            "bias": False,
            "output_bias": False,
            "fused": False,
            "scaled": False,
            "dropout": drop,
        },
        "feed_forward": {
            "width": c.whole("d_ff", 2048),
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


def _vit(c: Config) -> Fields:
    c.only("qkv_bias", True)
    labels = c.data.get("id2label")
    size = c.whole("image_size", 224)
    return {
        "family": "vision-transformer",
        "image": {
            "channels": c.whole("num_channels", 3),
            "height": size,
            "width": size,
        },
        "classes": len(labels) if isinstance(labels, dict) else c.whole("num_labels", 2),
        "patch": c.whole("patch_size", 16),
        "layers": c.whole("num_hidden_layers", 12),
        "hidden": c.whole("hidden_size", 768),
        "attention": {
            "heads": c.whole("num_attention_heads", 12),
            "fused": False,
            "dropout": c.share("attention_probs_dropout_prob"),
        },
        "feed_forward": {
            "width": c.whole("intermediate_size", 3072),
            "activation": c.one_of("hidden_act", _FUNCTIONS, "gelu"),
        },
        "dropout": c.share("hidden_dropout_prob"),
    }


MODEL_TYPES: Mapping[str, Callable[[Config], Fields]] = {
    "bert": _bert,
    "deepseek": _deepseek,
    "deepseek_v2": lambda c: _latent(c, "softmax"),
    "deepseek_v3": lambda c: _latent(c, "shared-sigmoid"),
    "gemma": _gemma,
    "gpt2": _gpt2,
    "gpt_bigcode": _gpt_bigcode,
    "llama": _llama,
    "mistral": _mistral,
    "mixtral": _mixtral,
    "mt5": _t5,
    "opt": _opt,
    "phi3": _phi3,
    "qwen2": _qwen2,
    "starcoder2": _starcoder2,
    "t5": _t5,
    "vit": _vit,
}
"""Model type -> the fields of a family."""
