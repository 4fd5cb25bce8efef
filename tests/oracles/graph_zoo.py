"""The shipped networks with few blocks, so that whole training graphs stay cheap to check."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

from ridgeline import catalog
from ridgeline.config import read_yaml
from ridgeline.workload import Model, load_model
from thoroughly import further

NAMES = catalog.names("models")


@cache
def one_of_each() -> Sequence[Any]:
    """Return the shipped networks for `pytest.mark.parametrize`; like ones are further cases.

    Networks of one family whose files set the same fields are alike. Lists of layers
    (``sequential``) are not.
    """
    known: set[tuple[object, ...]] = set()
    cases: list[Any] = []
    for name in NAMES:
        fields = read_yaml(catalog.find("models", name)).data
        listed = (name,) if fields["family"] == "sequential" else ()
        kind = (fields["family"], frozenset(fields), *listed)
        cases += further(name) if kind in known else [name]
        known.add(kind)
    return cases


_SHALLOW: dict[str, dict[str, Any]] = {
    "amoebanet": {"layers": 3},
    "bert": {"layers": 2},
    "decoder": {"layers": 2},
    "encoder-decoder": {"encoder_layers": 2, "decoder_layers": 2},
    "vision-transformer": {"layers": 2},
    "transformer-xl": {"layers": 2},
    "electra": {"generator.layers": 2, "discriminator.layers": 2},
    "diffusion-transformer": {"layers": 2},
    "flux": {"double_layers": 2, "single_layers": 2},
    "swin": {"depths": [2, 2, 2, 2]},
    "efficientdet": {"cells": 2, "backbone.depth": 0.5},
}


@cache
def shallow(name: str) -> Model:
    """A network with all its kinds of layers, but few of each where blocks repeat."""
    model = load_model(name)
    overrides = dict(_SHALLOW.get(model.network.family, {}))
    mixture = getattr(model.network, "mixture", None)
    if mixture is not None:
        overrides["layers"] = mixture.first_dense + 2
    if getattr(model.network, "pattern", ""):
        overrides["layers"] = 10  # until the first attention, and further
    return load_model(name, overrides) if overrides else model


_DIFFUSION = {
    "image": {"channels": 2, "height": 4, "width": 4},
    "width": 4,
    "levels": [1, 2],
    "attends": [True, False],
    "blocks": 1,
    "text": 3,
    "text_features": 5,
}

TINY: dict[str, tuple[str, dict[str, Any]]] = {
    "alexnet": (
        "alexnet-two-tower",
        {
            "image": {"height": 67, "width": 67},
            **{f"layers.{i}.filters": 4 for i in (0, 4, 8, 10, 12)},
            **{f"layers.{i}.features": 5 for i in (16, 19, 22)},
        },
    ),
    "amoebanet": ("amoebanet-d", {"layers": 3, "filters": 16, "image.height": 32, "classes": 3}),
    "bert": (
        "bert-base",
        {
            "vocabulary": 5,
            "sequence": 4,
            "masked": 2,
            "layers": 2,
            "hidden": 8,
            "attention.heads": 2,
            "feed_forward.width": 6,
            "max_positions": 5,
        },
    ),
    "gpt": (
        "gpt2",
        {
            "vocabulary": 5,
            "sequence": 4,
            "layers": 2,
            "hidden": 8,
            "attention.heads": 2,
            "feed_forward.width": 6,
        },
    ),
    "llama": (
        "llama3-8b",
        {
            "vocabulary": 5,
            "sequence": 4,
            "layers": 2,
            "hidden": 8,
            "attention.heads": 4,
            "attention.kv_heads": 2,
            "feed_forward.width": 6,
        },
    ),
    "llama-unfused": (
        "llama3-8b",
        {
            "vocabulary": 5,
            "sequence": 4,
            "layers": 1,
            "hidden": 8,
            "attention.heads": 4,
            "attention.kv_heads": 2,
            "attention.fused": False,
            "attention.kernel": "flash",
            "feed_forward.width": 6,
            "feed_forward.fused": False,
        },
    ),
    "mixtral": (
        "mixtral-8x7b",
        {
            "vocabulary": 5,
            "sequence": 4,
            "layers": 1,
            "hidden": 8,
            "attention.heads": 2,
            "attention.kv_heads": 1,
            "mixture": {"experts": 4, "top_k": 2, "width": 3, "capacity_factor": 1.5},
        },
    ),
    **{
        name: (
            name,
            {
                "vocabulary": 5,
                "sequence": 3,
                "layers": 2,
                "hidden": 8,
                "latent_attention.heads": 2,
                "latent_attention.rank": 3,
                "latent_attention.plain_size": 2,
                "latent_attention.rotary_size": 2,
                "latent_attention.value_size": 3,
                "feed_forward.width": 5,
                "mixture.experts": 4,
                "mixture.top_k": 2,
                "mixture.width": 2,
                "mixture.first_dense": 1,
            },
        )
        for name in ("deepseek-v2", "deepseek-v3")
    },
    "nemotron-3": (
        "nemotron-3-super",
        {
            "vocabulary": 5,
            "sequence": 5,
            "layers": 4,
            "pattern": "ME*-",
            "hidden": 8,
            "attention.heads": 4,
            "attention.kv_heads": 2,
            "attention.head_size": 3,
            "state_space": {"heads": 4, "head_size": 2, "groups": 2, "state": 3, "chunk": 2},
            "feed_forward.width": 6,
            "mixture.experts": 4,
            "mixture.top_k": 2,
            "mixture.width": 3,
            "mixture.shared_width": 5,
            "mixture.latent": 3,
            "further_tokens": 1,
        },
    ),
    "decoder-variants": (
        "nemotron-3-super",
        {
            "vocabulary": 5,
            "sequence": 5,
            "layers": 7,
            "pattern": "ABCDFGH",
            "hidden": 8,
            "attention": None,
            "state_space": None,
            "feed_forward": None,
            "mixture": None,
            "further_tokens": 0,
            "further_pattern": "",
            "positions": "rotary",
            "variants": [
                {
                    "letter": "A",
                    "attention": {
                        "heads": 4,
                        "kv_heads": 2,
                        "head_size": 2,
                        "value_size": 3,
                        "kernel": "flash",
                        "window": 2,
                        "sinks": True,
                        "gate": "features",
                        "head_norm": "whole",
                    },
                    "feed_forward": {"width": 3, "activation": "swiglu"},
                },
                {
                    "letter": "B",
                    "linear_attention": {
                        "rule": "gated-delta",
                        "heads": 4,
                        "head_size": 2,
                        "key_heads": 2,
                        "key_size": 3,
                        "taps": 2,
                        "chunk": 2,
                    },
                    "mixture": {
                        "experts": 4,
                        "top_k": 2,
                        "width": 2,
                        "shared": 1,
                        "shared_gate": True,
                        "router_bias": True,
                        "expert_bias": True,
                    },
                },
                {
                    "letter": "C",
                    "linear_attention": {"rule": "kimi-delta", "heads": 2, "head_size": 2},
                },
                {
                    "letter": "D",
                    "selective_scan": {"inner": 4, "state": 2, "step_rank": 3, "norms": True},
                },
                {
                    "letter": "F",
                    "short_filter": {"bias": True},
                    "attention": {"heads": 2, "kernel": "flash", "chunk": 2},
                    "feed_forward": {"width": 3, "activation": "gelu"},
                },
                {
                    "letter": "H",
                    "attention": {"heads": 2, "sinks": True},
                },
                {
                    "letter": "G",
                    "linear_attention": {"rule": "lightning", "heads": 2, "head_size": 4},
                    "feed_forward": {"width": 3, "activation": "relu-squared"},
                },
            ],
        },
    ),
    "transformer": (
        "transformer-base",
        {
            "vocabulary": 5,
            "source": 4,
            "target": 3,
            "encoder_layers": 1,
            "decoder_layers": 1,
            "hidden": 8,
            "attention.heads": 2,
            "feed_forward.width": 6,
        },
    ),
    "encoder-decoder-padded": (
        "transformer-multi30k",
        {
            "vocabulary": 5,
            "source": 4,
            "target": 3,
            "encoder_layers": 1,
            "decoder_layers": 1,
            "hidden": 4,
            "attention.heads": 2,
            "feed_forward.width": 6,
        },
    ),
    "t5": (
        "t5-base",
        {
            "vocabulary": 5,
            "source": 4,
            "target": 3,
            "encoder_layers": 2,
            "decoder_layers": 1,
            "hidden": 8,
            "attention.heads": 2,
            "attention.head_size": 3,
            "feed_forward.width": 6,
            "ranges": 8,
            "distance": 3,
        },
    ),
    "vit": (
        "vit-b16",
        {
            "image.height": 8,
            "image.width": 4,
            "patch": 4,
            "classes": 3,
            "layers": 1,
            "hidden": 8,
            "attention.heads": 2,
            "feed_forward.width": 6,
        },
    ),
    "lstm": ("lstm-lm", {"vocabulary": 5, "sequence": 3, "hidden": 3, "tied": True}),
    "gnmt": ("gnmt", {"vocabulary": 5, "source": 4, "target": 3, "hidden": 4}),
    "gnmt-eager": (
        "gnmt",
        {"vocabulary": 5, "source": 4, "target": 3, "hidden": 4, "kernel": "eager"},
    ),
    "deep-speech": (
        "deepspeech2",
        {
            "frequencies": 7,
            "frames": 9,
            "length": 2,
            "characters": 4,
            "layers": 2,
            "hidden": 3,
            "convolutions": [
                {"filters": 2, "kernel": [3, 2], "stride": [2, 1], "padding": [1, 0]},
                {"filters": 2, "kernel": [2, 2], "stride": 1},
            ],
        },
    ),
    "dlrm": ("dlrm", {"bottom": [4, 3], "tables": [4, 3, 5], "top": [3, 1]}),
    "ncf": ("ncf", {"users": 4, "items": 3, "factors": 2, "widths": [6, 4, 3]}),
    "minigo": ("minigo", {"board": 4, "blocks": 1, "filters": 3, "value_width": 4, "planes": 2}),
    "fcn": (
        "fcn",
        {
            "image": {"height": 32, "width": 40},
            "classes": 3,
            "backbone": {
                "block": "bottleneck",
                "depths": [1, 1, 2, 2],
                "width": 2,
                "width_per_group": 64,
            },
        },
    ),
    "mask-rcnn": (
        "mask-rcnn",
        {
            "image": {"height": 64, "width": 64},
            "classes": 3,
            "backbone": {"block": "basic", "depths": [1, 1, 1, 1], "width": 2},
            "pyramid": 3,
            "box_width": 4,
            "regions": 3,
            "masks": 2,
        },
    ),
    "efficientnet": (
        "efficientnet-widese-b0",
        {"image": {"height": 32, "width": 32}, "classes": 3, "width": 0.01, "depth": 0.2},
    ),
    "se-resnet": (
        "se-resnext101-32x4d",
        {
            "image": {"height": 32, "width": 32},
            "classes": 3,
            "depths": [1, 1],
            "groups": 2,
            "width_per_group": 1,
            "squeeze": 4,
        },
    ),
    "jasper": (
        "jasper",
        {
            "features": 3,
            "frames": 12,
            "length": 2,
            "characters": 3,
            "blocks": [
                {"filters": 2, "kernel": 3, "stride": 2},
                {"filters": 3, "kernel": 3, "inner": 2, "blocks": 2, "residual": True},
                {"filters": 4, "kernel": 3, "dilation": 2, "separable": True, "dropout": 0.2},
            ],
        },
    ),
    "u-net": ("nnunet-2d", {"size": [8, 12], "channels": 2, "levels": [[2, 3], [4]]}),
    "bart": (
        "bart-large",
        {
            "vocabulary": 5,
            "source": 4,
            "target": 3,
            "encoder_layers": 1,
            "decoder_layers": 1,
            "hidden": 8,
            "attention": {"heads": 2, "kernel": "eager"},
            "feed_forward.width": 6,
            "max_positions": 5,
        },
    ),
    "gemma": (
        "gemma3-1b",
        {
            "vocabulary": 5,
            "sequence": 3,
            "layers": 1,
            "hidden": 4,
            "attention": {"heads": 2, "kv_heads": 1, "head_size": 2, "head_norm": True},
            "feed_forward.width": 3,
            "further_tokens": 1,
        },
    ),
    "palm": (
        "palm-8b",
        {
            "vocabulary": 5,
            "sequence": 3,
            "layers": 1,
            "hidden": 4,
            "attention": {"heads": 2, "kv_heads": 1},
            "feed_forward": {"width": 3, "activation": "relu-squared"},
            "embedding_norm": True,
        },
    ),
    "latent-experts": (
        "mixtral-8x7b",
        {
            "vocabulary": 5,
            "sequence": 3,
            "layers": 1,
            "hidden": 4,
            "attention": {"heads": 2},
            "parallel": "two-norms",
            "mixture": {
                "experts": 2,
                "top_k": 1,
                "width": 3,
                "latent": 2,
                "shared": 1,
                "shared_width": 4,
                "activation": "relu-squared",
                "capacity_factor": 2.0,
            },
        },
    ),
    "channels": (
        "shufflenet-v2-0.5",
        {
            "image": {"height": 6, "width": 6},
            "layers": [
                {"layer": "conv-bn-relu", "filters": 4, "kernel": 3, "function": "hard-swish"},
                {
                    "layer": "branches",
                    "join": "concat",
                    "branches": [
                        [{"layer": "channels", "count": 2}, {"layer": "prelu"}],
                        [
                            {"layer": "channels", "first": 2, "count": 2},
                            {"layer": "excite", "features": 2, "gate": "hard-sigmoid"},
                        ],
                    ],
                },
                {"layer": "leaky-relu"},
                {"layer": "shuffle"},
                {"layer": "global-avg-pool"},
                {"layer": "linear", "features": 3},
            ],
        },
    ),
    "v-net": (
        "v-net",
        {"size": [4, 4], "filters": 2, "down": [1, 1], "up": [1], "classes": 2, "kernel": 3},
    ),
    "chain": (
        "convnext-tiny",
        {
            "image": {"height": 4, "width": 4},
            "layers": [
                {"layer": "conv", "filters": 4, "kernel": 2, "stride": 2},
                {"layer": "layer-norm"},
                {"layer": "layer-scale"},
                {"layer": "nearest"},
                {"layer": "instance-norm"},
                {"layer": "group-norm", "groups": 2},
                {"layer": "scale", "factor": 0.5},
                {"layer": "global-avg-pool"},
                {"layer": "linear", "features": 3},
            ],
        },
    ),
    "swin": (
        "swin-tiny",
        {
            "image": {"channels": 1, "height": 8, "width": 8},
            "classes": 3,
            "patch": 1,
            "depths": [2, 1],
            "heads": [1, 2],
            "width": 2,
            "window": 2,
            "expansion": 2,
        },
    ),
    "efficientdet": (
        "efficientdet-d0",
        {
            "image": {"height": 128, "width": 128},
            "classes": 2,
            "backbone": {"width": 0.01, "depth": 0.2},
            "pyramid": 2,
            "cells": 1,
            "depth": 1,
            "anchors": 1,
        },
    ),
    "transducer": (
        "rnn-t",
        {
            "features": 3,
            "frames": 4,
            "length": 2,
            "labels": 3,
            "encoder": 3,
            "before": 1,
            "after": 1,
            "predictor": 2,
            "predictor_layers": 1,
            "joint": 3,
        },
    ),
    "ssd-resnet": (
        "ssd-resnet34",
        {
            "classes": 2,
            "width": 1,
            "backbone": {"block": "basic", "depths": [1, 1, 1], "width": 2},
        },
    ),
    "dlrm-dcnv2": (
        "dlrm-dcnv2",
        {
            "bottom": [4, 3],
            "tables": [4, 3, 5],
            "lookups": [2, 1, 3],
            "cross": {"layers": 2, "rank": 2},
            "top": [3, 1],
        },
    ),
    "diffusion-u-net": (
        "stable-diffusion-1",
        {**_DIFFUSION, "attention": {"heads": 2, "bias": False, "fused": False}},
    ),
    "diffusion-u-net-heads": (
        "stable-diffusion-2",
        {**_DIFFUSION, "attention": {"heads": 1, "head_size": 2, "bias": False, "fused": False}},
    ),
    "dit": (
        "dit-s2",
        {
            "image": {"channels": 1, "height": 4, "width": 4},
            "classes": 3,
            "layers": 1,
            "hidden": 4,
            "attention.heads": 2,
            "feed_forward.width": 6,
        },
    ),
    "flux": (
        "flux1-schnell",
        {
            "patches": 3,
            "channels": 2,
            "text": 2,
            "text_features": 3,
            "vector": 2,
            "double_layers": 1,
            "single_layers": 1,
            "hidden": 4,
            "attention.heads": 2,
            "expansion": 2,
        },
    ),
    "wide-and-deep": (
        "wide-and-deep",
        {
            "tables": [{"rows": 3, "features": 2}, {"rows": 4, "features": 3}],
            "numbers": 2,
            "widths": [4, 3],
            "sparse": False,
        },
    ),
    "electra": (
        "electra-base",
        {
            "vocabulary": 5,
            "sequence": 4,
            "masked": 2,
            "max_positions": 4,
            "generator": {
                "layers": 1,
                "hidden": 4,
                "attention": {"heads": 1},
                "feed_forward": {"width": 3, "activation": "gelu"},
            },
            "discriminator": {
                "layers": 1,
                "hidden": 8,
                "attention": {"heads": 2},
                "feed_forward": {"width": 3, "activation": "gelu"},
            },
        },
    ),
    "retinanet": (
        "ssd320",
        {
            "image": {"height": 64, "width": 64},
            "classes": 2,
            "backbone": {"block": "basic", "depths": [1, 1, 1, 1], "width": 2},
            "pyramid": 2,
            "depth": 1,
            "anchors": 1,
        },
    ),
    "arcface": (
        "arcface-r100",
        {
            "image": {"height": 8, "width": 8},
            "identities": 3,
            "depths": [2, 1],
            "width": 2,
            "features": 3,
        },
    ),
    "autoencoder": ("vae-cf", {"items": 4, "widths": [3, 2]}),
    "ssd": ("ssd300", {"classes": 2, "width": 1}),
    "cifar": ("resnet-cifar-20", {"depths": [1, 2], "width": 2, "image.height": 8}),
}
"""Networks of every family, small enough to be computed: file and overrides."""


@cache
def tiny(name: str) -> Model:
    """One of `TINY`."""
    of, overrides = TINY[name]
    return load_model(of, overrides)
