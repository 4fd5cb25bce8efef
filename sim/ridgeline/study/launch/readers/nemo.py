"""NeMo: YAML configurations of its Megatron models, of its launcher and of cloud recipes."""

from __future__ import annotations

import re
from collections.abc import Mapping

from ridgeline.study.launch import shape
from ridgeline.study.launch.interpolation import resolved
from ridgeline.study.launch.job import LaunchDraft, LaunchJob
from ridgeline.study.launch.megatron import (
    Arguments,
    encoder_network,
    finish,
    network,
    plan,
    software,
)
from ridgeline.study.launch.options import found_in
from ridgeline.study.launch.registry import reader
from ridgeline.study.launch.sources import LaunchSource, leaves

NAME = "nemo"
_ROOTS = ("training", "peft", "fine_tuning", "conversion")
_NAMES: Mapping[str, str] = {
    "model.encoder_seq_length": "seq_length",
    "model.activations_checkpoint_granularity": "recompute_granularity",
    "model.activations_checkpoint_method": "recompute_method",
    "model.activations_checkpoint_num_layers": "recompute_num_layers",
    "model.rotary_percentage": "rotary_percent",
    "model.bias": "add_bias_linear",
    "model.num_moe_experts": "num_experts",
    "model.moe_router_topk": "moe_router_topk",
    "model.ub_tp_comm_overlap": "tp_comm_overlap",
    "model.use_flash_attention": "use_flash_attn",
    "model.optim.overlap_grad_sync": "overlap_grad_reduce",
    "model.optim.overlap_param_sync": "overlap_param_gather",
    "model.optim.bucket_cap_mb": "bucket_cap_mb",
    "model.tokenizer.type": "tokenizer_type",
    "model.tokenizer.model": "tokenizer_model",
    "model.tokenizer.vocab_file": "vocab_file",
    "model.tokenizer.num_sentinel_tokens": "vocab_extra_ids",
    "model.optim.name": "optimizer",
    "model.optim.ddp_bucket_size": "ddp_bucket_size",
    "model.override_vocab_size": "padded_vocab_size",
}
"""Names of Megatron's arguments by the paths that NeMo has them under."""


def recognises(text: str, suffix: str) -> float:
    """Tell how sure it is that a file configures NeMo."""
    if suffix not in {".yaml", ".yml"}:
        return 0.0
    trainer = re.search(r"^trainer:", text, re.M) is not None
    model = re.search(r"^model:", text, re.M) is not None
    megatron = "tensor_model_parallel_size" in text or "micro_batch_size" in text
    own = any(
        word in text
        for word in ("exp_manager:", "megatron_amp_O2", "mcore_gpt", "encoder_seq_length")
    )
    return (
        0.85
        if trainer and model and megatron and own
        else 0.4
        if trainer and model and own
        else 0.0
    )


@reader(NAME, recognises)
def read(source: LaunchSource) -> LaunchJob:
    """Read a configuration of NeMo."""
    draft = LaunchDraft(source, NAME)
    args = Arguments(draft, tables=("nemo", "megatron"))
    document = source.yaml
    if not isinstance(document.data, dict):
        raise document.error("expected a mapping of trainer and model")
    for location, raw in leaves(document.data):
        value = resolved(document.data, location, raw, _ROOTS)
        if isinstance(value, list):
            value = " ".join(str(each) for each in value)
        path = ".".join(str(part) for part in location)
        if value is None:
            value = "null"
        canonical = _NAMES.get(path, "")
        if not canonical:
            parts = path.split(".")
            canonical = parts[1] if len(parts) == 2 and parts[0] == "model" else path
        args.say(canonical, path, value, document.where(location)[0])
    for canonical in [name for name in args.names if _null(args, name)]:
        args.draft.said[args.names.pop(canonical)].became = "the default"
    _refused(args)
    _machine(args)
    args.given()
    _precision(args)
    _network(args)
    _sharding(args)
    plan(args)
    base = _base(args)
    if draft.plan.get("precision") == "fp32":
        draft.plan["precision"] = base
    draft.software_settings.clear()
    software(args, "nemo")
    _sync(args)
    args.flag("megatron_amp_O2", "software nemo")
    finish(args, ["trainer.num_nodes", "trainer.devices"])
    _rest(args)
    return draft.job()


def _null(args: Arguments, canonical: str) -> bool:
    return str(args.draft.said[args.names[canonical]].value) in {"null", "None"}


def _refused(args: Arguments) -> None:
    text = args.draft.source.text
    for sign, reason in (
        (r"^\s+(?:mm_cfg|vision_encoder|video)\b", "a network of images and text: no description"),
        (r"^\s+(?:unet_config|diffusion)\b", "a diffusion network: not read from NeMo files"),
        (r"^\s+(?:speech|audio|asr_model|preprocessor)\b", "a network of speech: no description"),
        (
            r"^\s+(?:reward_model|ppo|dpo|rlhf)\b",
            "learning from preferences, which is not described",
        ),
    ):
        found = re.search(sign, text, re.M)
        if found is not None:
            raise args.draft.source.error(reason, text[: found.start()].count("\n") + 1)
    scheme = args.draft.said.get("model.peft.peft_scheme")
    if scheme is not None and str(scheme.value) not in {"null", "none", "None", "lora"}:
        raise args.draft.error(
            f"training by {scheme.value} is not described", "model.peft.peft_scheme"
        )


def _machine(args: Arguments) -> None:
    each = args.integer("trainer.devices", "devices")
    nodes = args.integer("trainer.num_nodes", "devices")
    if each is not None and nodes is not None:
        args.draft.devices = each * nodes
    elif each is not None:
        args.draft.note(f"{each} devices a node; the file does not say how many nodes")


def _precision(args: Arguments) -> None:
    """Let 8 bits count only where they are switched on."""
    on = args.flag("fp8", "plan.precision: fp8={}")
    args.names.pop("fp8", None)
    args.flag("fp8_e4m3", "plan.precision, with fp8")
    args.flag("fp8_hybrid", "plan.precision, with fp8")
    if on:
        args.say("fp8_format", "model.fp8", "hybrid", args.draft.said["model.fp8"].line)


def _base(args: Arguments) -> str:
    word = args.text(args.first("trainer.precision", "precision"), "plan.precision={}") or "32"
    args.ignore("precision", "trainer.precision", became="plan.precision")
    known = {"bf16": "bf16-mixed", "16": "fp16-mixed", "32": "fp32", "bf16-mixed": "bf16-mixed",
             "16-mixed": "fp16-mixed", "fp16": "fp16-mixed"}  # fmt: skip
    if word not in known:
        raise args.error(
            f"unknown precision {word!r}", args.first("trainer.precision", "precision")
        )
    return known[word]


def _network(args: Arguments) -> None:
    if "model.patch_dim" in args or "patch_dim" in args:
        _vision(args)
        return
    if "model.encoder.num_layers" in args or "model.encoder.num_layers" in args.draft.said:
        _t5(args)
        return
    like = _fine_tuned(args)
    if not like and "data.seq_length" in args:
        args.ignore("data.seq_length", became="model.sequence")
    network(args, like)
    if like:
        _adapters(args)
    for name in ("model.data.seq_length",):
        args.draft.ignore(name, became="model.sequence")


def _fine_tuned(args: Arguments) -> str:
    """Return the network whose weights are adapted; "" where the file describes one."""
    if "num_layers" in args:
        return ""
    for path in ("run.model_train_name", "restore_from_path"):
        name = args.text(path, "model")
        found = shape.named(name.rpartition("/")[2].removesuffix(".nemo")) if name else None
        if found:
            length = "model.data.train_ds.max_seq_length"
            if length in args.draft.said:
                args.names["seq_length"] = length
            args.draft.note("sequences are of the greatest length: shorter ones are padded")
            return found
        if name and path == "run.model_train_name":
            raise args.error(shape.unknown_name(name), path)
    raise args.draft.error("the file does not give num_layers, nor a network that it starts from")


def _adapters(args: Arguments) -> None:
    scheme = args.text("model.peft.peft_scheme", "model.adapters")
    if scheme != "lora":
        return
    rank = args.integer("model.peft.lora_tuning.adapter_dim", "model.adapters.rank={}") or 32
    args.draft.model_fields["adapters"] = {"rank": rank}
    args.draft.note("adapters beside the product of queries, keys and values, as NeMo has them")


def _vision(args: Arguments) -> None:
    sizes = [args.integer(name, f"model.{name}") for name in ("num_layers", "hidden_size")]
    patch = args.integer("patch_dim", "model.patch={}")
    heights = args.integer("img_h", "model.image={}")
    args.ignore("img_w", "num_classes", "ffn_hidden_size", "num_attention_heads", "hidden_dropout",
                "attention_dropout", "seq_length", "max_position_embeddings", "num_channels",
                "normalization", became="model")  # fmt: skip
    from ridgeline import catalog
    from ridgeline.config import read_yaml

    for name in catalog.names("models"):
        if name.startswith("vit-"):
            data = read_yaml(catalog.find("models", name)).data
            same = [data["layers"], data["hidden"]] == sizes and data["patch"] == patch
            if same and data["image"]["height"] == heights:
                args.draft.model = name
                return
    raise args.error("no network of images in the catalogue has these widths", "num_layers")


def _t5(args: Arguments) -> None:
    for path in list(args.names.values()):
        side, _, name = path.removeprefix("model.").partition(".")
        if side not in {"encoder", "decoder"} or not path.startswith("model."):
            continue
        if name == "num_layers":
            args.names[f"{side}_num_layers"] = path
        elif side == "encoder":
            args.names.setdefault(name, path)
        else:
            other = args.draft.said.get(f"model.encoder.{name}")
            if other is not None and other.value != args.draft.said[path].value:
                args.draft.note(f"{path} differs from the encoder's, which both have here")
            args.draft.ignore(path, became="as the encoder")
    args.names["encoder_seq_length"] = args.name("seq_length")
    length = args.draft.said.get("model.data.seq_length_dec")
    if length is not None:
        args.names["decoder_seq_length"] = "model.data.seq_length_dec"
    encoder_network(args, "t5")
    granularity = args.draft.said.get("model.encoder.activations_checkpoint_granularity")
    layers = args.draft.said.get("model.encoder.activations_checkpoint_num_layers")
    if (
        granularity is not None
        and str(granularity.value) != "null"
        and str(layers and layers.value) != "0"
    ):
        args.names["recompute_granularity"] = "model.encoder.activations_checkpoint_granularity"


def _sharding(args: Arguments) -> None:
    name = str(args.text("optimizer", "plan.optimizer={}") or "")
    distributed = {"mcore_distributed_optim", "distributed_fused_adam"}
    if name in distributed:
        args.draft.plan["zero_stage"] = 1
    if args.flag("fsdp", "plan.zero_stage={}"):
        raise args.error("PyTorch's FSDP within NeMo is not read", "fsdp")


def _sync(args: Arguments) -> None:
    dtype = args.text("model.optim.grad_sync_dtype", "gradients.main_grads: {}")
    if dtype in {"bf16", "bfloat16", "16"}:
        args.draft.software_settings["gradients.main_grads"] = "narrow"


def _rest(args: Arguments) -> None:
    """Mark what has no effect by the last part of its path, too."""
    for path, said in args.draft.said.items():
        if said.became:
            continue
        head, _, last = path.rpartition(".")
        said.became = found_in(path, args.tables) or (
            found_in(last, args.tables) if head in {"model", "model.optim", "model.data"} else ""
        )
