"""What the transformers and diffusers libraries say: defaults of configurations, and parameters.

Run by a Python that has them, it writes the data of `ridgeline.workload.trace.huggingface` and of
its tests:

    python tests/oracles/transformers_library.py defaults KIND... > .../huggingface/defaults.json
    python tests/oracles/transformers_library.py counts KIND... > tests/data/huggingface_counts.json
"""

from __future__ import annotations

import dataclasses
import json
import sys
from typing import Any

SKIPPED = (
    "transformers_version", "architectures", "output_", "return_dict", "dtype", "chunk_size_feed",
    "is_encoder_decoder", "id2label", "label2id", "problem_type", "initializer", "use_cache",
    "pad_", "bos_", "eos_", "sep_", "decoder_start", "keys_to", "num_logits_to_keep", "rope_param",
    "rope_theta", "rms_norm_eps", "layer_norm_eps", "norm_eps", "router_aux", "router_jitter",
    "classifier_drop", "time_step_", "rescale", "base_", "model_type", "image_token", "video_token",
    "audio_token", "vision_start", "vision_end", "suppress", "begin_suppress", "forced_",
    "apply_spec", "mask_time", "mask_feature", "ctc_", "attn_impl", "quantization", "tokenizer",
    "logit", "temper", "generation", "code", "talker", "position_id_per",
)  # fmt: skip
"""Beginnings of the names of fields that decide no shape."""
WHOLE = (
    "MODEL_FOR_PRETRAINING_MAPPING_NAMES",
    "MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES",
    "MODEL_FOR_CAUSAL_LM_MAPPING_NAMES",
    "MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES",
    "MODEL_FOR_MASKED_LM_MAPPING_NAMES",
    "MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING_NAMES",
    "MODEL_MAPPING_NAMES",
)
"""Tables of the library's classes of whole networks, the first that knows a type."""
CLASSES = {
    "clip": "CLIPModel",
    "siglip": "SiglipModel",
    "siglip2": "Siglip2Model",
    "whisper": "WhisperForConditionalGeneration",
    "gpt_neox": "GPTNeoXForCausalLM",
}
"""Classes of types whose table says a part of the network."""


def plain(value: object) -> bool:
    """Tell whether a value is one of JSON without objects."""
    if isinstance(value, bool | int | float | str) or value is None:
        return True
    return isinstance(value, list | tuple) and all(map(plain, value))


def kept(name: str) -> bool:
    """Tell whether a field may decide a shape."""
    return not name.startswith(SKIPPED) and not name.endswith(("_token_id", "_token_index"))


def defaults_of(schema: Any) -> dict[str, Any]:
    """Return the defaults of a configuration class, before it derives others from them."""
    return {
        f.name: (list(f.default) if isinstance(f.default, tuple) else f.default)
        for f in dataclasses.fields(schema)
        if f.default is not dataclasses.MISSING
        and f.default is not None
        and plain(f.default)
        and kept(f.name)
        and f.name not in schema.sub_configs
    }


def add_rows(schema: Any, rows: dict[str, Any]) -> None:
    """Add the defaults of a class and of its parts to a table."""
    from transformers import PreTrainedConfig

    kind = schema.model_type
    if not kind or kind in rows:
        return
    row = rows[kind] = {"defaults": defaults_of(schema)}
    if schema.attribute_map:
        row["names"] = dict(schema.attribute_map)
    parts: dict[str, Any] = {}
    for part, sub in schema.sub_configs.items():
        if isinstance(sub, type) and issubclass(sub, PreTrainedConfig) and sub.model_type:
            add_rows(sub, rows)
            parts[part] = {"model_type": sub.model_type}
    made = schema()
    for part in schema.sub_configs:
        inner = getattr(made, part, None)
        if isinstance(inner, PreTrainedConfig) and inner.model_type:
            add_rows(type(inner), rows)
            usual, names = defaults_of(type(inner)), {f.name for f in dataclasses.fields(inner)}
            parts[part] = {"model_type": inner.model_type} | {
                k: v
                for k, v in inner.to_dict().items()
                if plain(v) and v is not None and kept(k) and usual.get(k) != v and k in names
            }
    if parts:
        row["parts"] = parts


def defaults(kinds: list[str]) -> dict[str, Any]:
    """Return the table of defaults of some model types."""
    from transformers import CONFIG_MAPPING

    rows: dict[str, Any] = {}
    for kind in kinds:
        add_rows(CONFIG_MAPPING[kind], rows)
    return {kind: rows[kind] for kind in sorted(rows)}


def parameters(config: Any) -> int:
    """Return the parameters of the library's network of a configuration, which is not allocated."""
    import torch
    import transformers
    from transformers.models.auto import modeling_auto

    kind = config.model_type
    name = CLASSES.get(kind)
    for table in WHOLE:
        if name is None and kind in (names := getattr(modeling_auto, table)):
            name = names[kind] if isinstance(names[kind], str) else names[kind][0]
    with torch.device("meta"):
        network = getattr(transformers, name)(config)
    return sum(p.numel() for p in network.parameters())


def counts(kinds: list[str]) -> dict[str, int]:
    """Return the parameters of the default configurations of some model types."""
    from transformers import CONFIG_MAPPING

    found = {}
    for kind in kinds:
        try:
            found[kind] = parameters(CONFIG_MAPPING[kind]())
        except Exception as error:
            print(f"{kind}: {type(error).__name__}: {error}"[:150], file=sys.stderr)
    return found


if __name__ == "__main__":
    import transformers

    what, *given = sys.argv[1:]
    source = (
        "fields of the configuration classes" if what == "defaults" else "parameters of networks"
    ) + f" of transformers {transformers.__version__} (huggingface/transformers, Apache-2.0)"
    made: dict[str, Any] = defaults(given) if what == "defaults" else counts(given)
    rows_ = ",\n".join(f"{json.dumps(k)}: {json.dumps(v)}" for k, v in made.items())
    print(f'{{"source": {json.dumps(source)},\n"types": {{\n{rows_}\n}}}}')
