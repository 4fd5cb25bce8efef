"""MaxText: configurations (YAML), and scripts that start its training with ``key=value``.

Facts from src/MaxText/configs/base.yml, its models/ and pyconfig.py.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from math import prod
from pathlib import Path
from typing import Any

from ridgeline.config import Document, parse_yaml, read_yaml
from ridgeline.errors import ConfigError
from ridgeline.study.launch import batch, huggingface, shape, tables
from ridgeline.study.launch.job import LaunchDraft, LaunchJob
from ridgeline.study.launch.launching import choices, chosen, launches
from ridgeline.study.launch.registry import reader
from ridgeline.study.launch.shell import follow, line_of
from ridgeline.study.launch.sources import PLACEHOLDER, LaunchSource, plain

_NAME = "maxtext"
_PROGRAM = (
    r"(?i:(?:\S*/)?max_?text\S*[./](?:\w+_)?train(?:_compile)?(?:\.py)?|max_?text\.trainers\.\S+)"
)
"""Programs of MaxText that train, as modules and as files."""
_AXES = (
    "data", "pipeline", "fsdp", "fsdp_transpose", "sequence", "context", "context_autoregressive",
    "tensor", "tensor_transpose", "tensor_sequence", "expert", "autoregressive", "diloco",
)  # fmt: skip
_SHARDS = ("fsdp", "fsdp_transpose")
_TENSOR = ("tensor", "tensor_transpose", "tensor_sequence")
_CONTEXT = ("context", "sequence")
_WHERE: batch.Where = {
    "global_batch": ("per_device_batch_size",),
    "expert": ("ici_expert_parallelism", "dcn_expert_parallelism"),
}
_REMAT: Mapping[str, tuple[str, str]] = {
    "full": ("full", ""),
    "none": ("none", ""),
    "minimal": ("projections", ""),
    "minimal_flash": ("products", ""),
    "minimal_with_context": ("products", ""),
    "minimal_offloaded": ("projections", "what it keeps waits in the host's memory there"),
    "minimal_with_context_and_quantization": ("products", "it also keeps quantised operands"),
    "save_dot_with_context_except_mlp": ("products", "it keeps less of feed-forward networks"),
    "save_dot_except_mlpwi": ("projections", "it keeps less of feed-forward networks"),
    "save_dot_except_mlp": ("projections", "it keeps less of feed-forward networks"),
    "save_dot_except_logits_ffw1": ("projections", "it keeps less of feed-forward networks"),
    "save_qkv_proj": ("full", "it also keeps queries, keys and values"),
    "save_out_proj": ("full", "it also keeps what attention gives"),
    "qkv_proj_offloaded": ("full", "queries, keys and values wait in the host's memory there"),
    "custom": ("full", "what it keeps is chosen tensor by tensor"),
}
_PRECISIONS = {
    "int8": "int8-mixed", "int8w": "int8-mixed", "fp8": "fp8-mixed", "nanoo_fp8": "fp8-mixed",
    "fp8_full": "fp8-mixed", "fp8_gpu": "fp8-mixed", "fp8_nanoo": "fp8-mixed",
    "te_fp8_delayedscaling": "fp8-mixed", "te_fp8_currentscaling": "fp8-dynamic",
    "te_mxfp8": "mxfp8-mixed", "te_nvfp4": "nvfp4-mixed", "te_nvfp4_no_rht": "nvfp4-mixed",
}  # fmt: skip
_SERVING = (
    "inference_microbenchmark_prefill_lengths", "prefill_cache_axis_order", "ar_cache_axis_order",
    "ici_autoregressive_parallelism", "vllm_config_path", "vllm_additional_config",
)  # fmt: skip
"""Settings that only a server of MaxText's networks has."""
_SHAPE = (
    "base_emb_dim", "base_num_query_heads", "base_num_kv_heads", "base_mlp_dim",
    "base_num_decoder_layers", "head_dim", "vocab_size", "decoder_block", "num_experts",
    "global_parameter_scale", "base_moe_mlp_dim",
)  # fmt: skip


def _recognises(text: str, suffix: str) -> float:
    if suffix in {".yaml", ".yml"}:
        keys = set(re.findall(r"^(\w+)\s*:", text, re.MULTILINE))
        known = {
            "base_config", "per_device_batch_size", "max_target_length", "ici_fsdp_parallelism",
            "dcn_fsdp_parallelism", "dcn_data_parallelism", "remat_policy", "base_emb_dim",
            "base_num_decoder_layers", "decoder_block", "mesh_axes", "logical_axis_rules",
            "ici_tensor_parallelism", "use_iota_embed",
        }  # fmt: skip
        return 0.95 if len(keys & known) >= 2 else 0.2 if keys & known else 0.0
    if suffix in {".py", ".toml", ".json"}:
        return 0.0
    program = re.search(r"(?i)max_?text[./]\S+", text)
    setting = re.search(r"\b(per_device_batch_size|base_output_directory|run_name|ici_\w+)=", text)
    return 0.95 if program and setting else 0.0


@reader(_NAME, _recognises, lambda source: choices(source, _PROGRAM))
def read(source: LaunchSource) -> LaunchJob:
    """Read a configuration of MaxText, or a script that starts it."""
    draft = LaunchDraft(source, _NAME)
    if source.suffix in {".yaml", ".yml"}:
        tables.say_all(draft, source.yaml)
    else:
        _say_script(draft)
    for name, value in source.set_.items():
        if re.fullmatch(r"[a-z][a-z_]+", name) and name not in {"devices", "launch"}:
            draft.say(name, _plain_value(value))
    return fill(draft)


def fill(draft: LaunchDraft) -> LaunchJob:
    """Work out the job from settings of MaxText that a draft has."""
    _refuse(draft)
    whole = _network(draft)
    if not whole:
        draft.note(
            "the file describes a network alone: machine, batch and distribution must be given"
        )
        draft.model_fields.pop("sequence", None)
        if "opt_type" in draft:
            _optimizer(draft)
        tables.ignore_patterns(draft, tables.table(_NAME)["ignored"])
        return draft.job()
    hardware = tables.word(draft, "hardware", "software, {}") or "tpu"
    draft.software = "maxtext-tpu" if hardware == "tpu" else "maxtext-gpu"
    if hardware == "cpu":
        raise draft.error("training on processors is not modelled", "hardware")
    _precision(draft)
    _optimizer(draft)
    _recompute(draft)
    word = tables.word(draft, "attention", "software.kernels.attention: {}")
    if word == "dot_product":
        draft.software_settings["kernels.attention"] = "separate"
    elif word not in {None, "autoselected"}:
        draft.software_settings["kernels.attention"] = "flash"
    degrees = _degrees(draft)
    _distribution(draft, degrees)
    tables.ignore_patterns(draft, tables.table(_NAME)["ignored"])
    unknown = [name for name, said in draft.said.items() if not said.became and said.value == ""]
    draft.ignore(*unknown)
    return draft.job()


def _say_script(draft: LaunchDraft) -> None:
    source = draft.source
    script = follow(source)
    found = [
        each
        for each in launches(script, _PROGRAM)
        if any("=" in plain(word) for word in each.after)
    ]
    if not found:
        raise source.error("MaxText's training is not started here")
    words = chosen(source, found).after
    for word in words:
        text = plain(word)
        name, equals, _ = text.partition("=")
        if equals and re.fullmatch(r"[a-z]\w*", name):
            draft.say(name, _plain_value(word.partition("=")[2]), line_of(word))
        elif re.search(r"\.ya?ml$", text):
            _say_file(draft, PLACEHOLDER.sub("", text), line_of(word))
        elif not name.startswith("-"):
            draft.say(text, "", line_of(word))
            draft.ignore(text, became="no setting of the form key=value")


def _plain_value(text: str) -> Any:
    """Return a value of a command line as YAML has it."""
    if PLACEHOLDER.search(text):
        return text
    try:
        data = parse_yaml(f"v: {plain(text)}", "value").data
    except ConfigError:
        return plain(text)
    return data["v"] if isinstance(data["v"], str | int | float | bool) else plain(text)


def _say_file(draft: LaunchDraft, name: str, line: int) -> None:
    """Register what a configuration says that the command names, where it lies beside the file."""
    base = Path(name).name
    if base == "base.yml":
        return
    beside = Path(draft.source.file).parent / base
    if beside.is_file():
        document: Document = read_yaml(beside)
        tables.say_all(draft, document)
        return
    draft.say("configuration", base, line)


def _refuse(draft: LaunchDraft) -> None:
    for name, what in (
        ("use_dpo", "training by preferences (DPO)"),
        ("use_grpo", "training by rewards (GRPO)"),
        ("use_multimodal", "networks of images and text"),
        ("optimizer_memory_host_offload", "optimizer state in the host's memory"),
        ("parameter_memory_host_offload", "weights in the host's memory"),
        ("use_sparse_indexer", "sparse attention of DeepSeek-V3.2"),
        ("moba", "attention to blocks (MoBA)"),
        ("enable_rampup_batch_size", "a batch that grows"),
    ):
        if draft.flag(name, "off"):
            raise draft.error(f"{what} is not modelled", name)
    base = tables.word(draft, "base_config") or ""
    draft.ignore("base_config")
    called = tables.word(draft, "model_call_mode") == "inference"
    served = next((name for name in _SERVING if name in draft), None)
    if called or served or re.search("inference|vllm|jetstream", base):
        named = served or ("model_call_mode" if called else "base_config")
        raise draft.error("inference is not modelled", named)


def _network(draft: LaunchDraft) -> bool:
    """Find the network; tell whether the file also describes a launch."""
    launched = {
        "per_device_batch_size", "remat_policy", "hardware", "max_target_length", "steps",
        *(f"{kind}_{axis}_parallelism" for kind in ("ici", "dcn") for axis in _AXES),
    } & draft.said.keys()  # fmt: skip
    name = tables.word(draft, "model_name", "model {}")
    known = tables.table(_NAME)
    missing = draft.text("configuration", "a configuration that is not here: {}")
    shaped = [each for each in _SHAPE if each in draft]
    if name in {None, "default"}:
        if missing is not None and not shaped:
            raise draft.error(
                f"network and batch are in {missing}, which does not lie beside this file",
                "configuration",
            )
        if not shaped and not launched:
            raise draft.error(
                "the file has neither a network nor a launch (model_name, steps, ...)"
            )
        scripted = draft.source.suffix not in {".yaml", ".yml"}
        if not shaped and name is None and not scripted:
            raise draft.error(
                "the file names no network: MaxText has it from its command line; give it:"
                " --set model_name=..."
            )
        _described(draft)
    else:
        assert name is not None
        found = known["networks"].get(name) or shape.named(name)
        if found is None:
            raise draft.error(f"there is no description of MaxText's network {name}", "model_name")
        draft.model = found
        draft.ignore(
            *shaped, "mlp_activations", "logits_via_embedding", became="as the network has it"
        )
        if shaped and not draft.flag("override_model_config", "model"):
            draft.note(f"{', '.join(shaped)}: as MaxText's {name} has them")
    if missing is not None:
        draft.note(f"{missing} does not lie beside this file: what else it says is not known")
    length = tables.count(draft, "max_target_length", "model sequence={}")
    if launched:
        draft.model_fields["sequence"] = length or known["defaults"]["max_target_length"]
    factor = draft.number("capacity_factor", "model mixture.capacity_factor={}")
    if (
        factor is not None
        and factor >= 1
        and "mixture.experts" in shape.shapes().get(draft.model, {})
    ):
        draft.model_fields["mixture.capacity_factor"] = factor
    return bool(launched)


def _described(draft: LaunchDraft) -> None:
    """Describe the network that the widths of the file make, or those of base.yml."""
    known = tables.table(_NAME)
    block = tables.word(draft, "decoder_block", "model, blocks as of {}") or "llama2"
    if block in known["refused"]:
        raise draft.error(known["refused"][block], "decoder_block")
    if block not in known["blocks"]:
        raise draft.error(f"blocks as of {block} are not described", "decoder_block")

    def width(name: str) -> int:
        return tables.count(draft, name, f"model, {name}={{}}") or int(known["defaults"][name])

    heads_by, width_by, features_by, layers_by = _scales(draft)
    further = draft.integer("mtp_num_layers", "model further_tokens={}")
    latent = tables.word(draft, "attention_type", "model, attention {}") == "mla"
    window = tables.count(draft, "sliding_window_size", "attention is dense here")
    if block == "gpt_oss" or window:
        draft.note("windows of attention are not modelled: attention is dense here")
        draft.ignore("attention_type", "attention_sink")
    hidden = width("base_emb_dim") * features_by
    heads = width("base_num_query_heads") * heads_by
    differs = known["blocks"][block]
    description: dict[str, Any] = {
        "vocabulary": width("vocab_size"),
        "sequence": tables.count(draft, "max_target_length", "model sequence={}") or 2048,
        "layers": width("base_num_decoder_layers") * layers_by * differs.get("layers_of_one", 1),
        "hidden": hidden,
        "feed_forward": {
            "width": width("base_mlp_dim") * width_by, "activation": "swiglu",
            "bias": draft.flag("mlp_bias", "model feed_forward.bias={}"),
            **differs.get("feed_forward", {}),
        },
        "norm": differs.get("norm", "rms-norm"),
        "norms": differs.get("norms", "before"),
        "positions": differs.get("positions", "rotary"),
        "tied": draft.flag(
            "logits_via_embedding", "model tied={}", default=differs.get("tied", False)
        ),
    }  # fmt: skip
    if further:
        description["further_tokens"] = further
    if latent:
        description["latent_attention"] = _latent(draft, heads)
        draft.ignore("base_num_kv_heads", became="model")
    else:
        bias = draft.flag("attention_bias", "model attention.bias={}")
        description["attention"] = {
            "heads": heads, "kv_heads": width("base_num_kv_heads") * heads_by,
            "head_size": width("head_dim"), "bias": bias, "output_bias": False,
            "head_norm": draft.flag("use_qk_norm", "model attention.head_norm={}"),
            **differs.get("attention", {}),
        }  # fmt: skip
    experts = tables.count(draft, "num_experts", "model mixture.experts={}") or 1
    if experts > 1:
        description["mixture"] = _mixture(draft, experts, width_by, block)
    gates = draft.value("mlp_activations")
    if gates is not None and description["feed_forward"]["activation"] == "swiglu":
        words = [str(each).lower() for each in gates] if isinstance(gates, list) else []
        if "linear" not in words:
            description["feed_forward"]["activation"] = words[0] if words else "gelu"
        elif "gelu" in words:
            description["feed_forward"]["activation"] = "geglu"
    draft.ignore("mlp_activations", became="model feed_forward.activation")
    match = shape.match(description)
    draft.model, draft.model_fields = match.model, dict(match.fields)
    for note in match.notes:
        draft.note(note)


def _scales(draft: LaunchDraft) -> tuple[int, int, int, int]:
    """Return factors of heads, inner widths, features and layers for the scale of a network."""
    scale = tables.count(draft, "global_parameter_scale", "model, {} times as many weights") or 1
    power = scale.bit_length() - 1
    if 2**power != scale:
        raise draft.error("allowed: powers of two", "global_parameter_scale")
    base, rest = divmod(power, 3)
    heads = 2 ** (base + (rest > 0))
    return heads, heads, 2 ** (base + (rest > 1)), 2**base


def _latent(draft: LaunchDraft, heads: int) -> dict[str, Any]:
    def size(name: str, default: int) -> int:
        return tables.count(draft, name, f"model latent_attention, {name}={{}}") or default

    rank = draft.integer("q_lora_rank", "model latent_attention.query_rank={}")
    return {
        "heads": heads, "query_rank": rank or None, "rank": size("kv_lora_rank", 512),
        "plain_size": size("qk_nope_head_dim", 128), "rotary_size": size("qk_rope_head_dim", 64),
        "value_size": size("v_head_dim", 128),
    }  # fmt: skip


def _mixture(draft: LaunchDraft, experts: int, width_by: int, block: str) -> dict[str, Any]:
    inner = tables.count(draft, "base_moe_mlp_dim", "model mixture.width={}")
    inner = inner or tables.count(draft, "base_mlp_dim", "model mixture.width={}") or 7168
    shared = draft.integer("shared_experts", "model mixture.shared={}") or 0
    sigmoid = tables.word(draft, "routed_score_func", "model mixture.scores: {}") == "sigmoid"
    scores = "softmax" if block == "deepseek" else "softmax-of-chosen"
    return {
        "experts": experts,
        "top_k": tables.count(draft, "num_experts_per_tok", "model mixture.top_k={}") or 1,
        "width": inner * width_by,
        "shared": shared if block == "deepseek" else 0,
        "scores": "shared-sigmoid" if sigmoid else scores,
        "scale": draft.number("routed_scaling_factor", "model mixture.scale={}") or 1.0,
        "first_dense": draft.integer("first_num_dense_layers", "model mixture.first_dense={}") or 0,
    }


def _precision(draft: LaunchDraft) -> None:
    wide = tables.word(draft, "dtype", "plan.precision: {}") == "float32"
    narrow = tables.word(draft, "quantization", "plan.precision: {}")
    draft.plan["precision"] = "fp32" if wide else "bf16-mixed"
    if narrow is not None:
        if narrow not in _PRECISIONS:
            raise draft.error(f"quantization {narrow} is not modelled", "quantization")
        draft.plan["precision"] = _PRECISIONS[narrow]
        if narrow == "fp8_full":
            draft.note("fixed scales of FP8 are counted as those of steps before")
    if tables.word(draft, "weight_dtype", "plan.precision, weights {}") == "bfloat16":
        huggingface.narrow_weights(draft)
    for name in ("grad_dtype", "mu_dtype"):
        halved = tables.word(draft, name, "formats, {}") == "bfloat16"
        if halved and not draft.plan["precision"].endswith("-true"):
            draft.note(f"{name}=bfloat16: it counts 32 bits here; memory is an upper bound")


def _optimizer(draft: LaunchDraft) -> None:
    word = tables.word(draft, "opt_type", "plan.optimizer={}") or "adamw"
    known = {"adamw": "adamw", "adam_pax": "adamw", "sgd": "sgd", "adafactor": "adafactor"}
    if word not in known:
        raise draft.error(f"the optimizer {word} is not modelled", "opt_type")
    draft.plan["optimizer"] = known[word]


def _recompute(draft: LaunchDraft) -> None:
    known = tables.table(_NAME)["defaults"]["remat_policy"]
    word = draft.text("remat_policy", "plan.recompute: {}") or known
    if word not in _REMAT:
        raise draft.error(f"the policy {word} is not modelled", "remat_policy")
    draft.plan["recompute"], note = _REMAT[word]
    if note:
        draft.note(f"remat_policy {word}, taken as recompute={draft.plan['recompute']}: {note}")
    if word == "custom":
        for name in list(draft.said):
            if str(draft.said[name].value) in {"device", "offload", "remat"}:
                draft.ignore(name, became="not modelled")


def _degrees(draft: LaunchDraft) -> dict[str, dict[str, int | None]]:
    """Return the degrees within and across slices by axis; None: what is over."""
    found: dict[str, dict[str, int | None]] = {}
    for kind in ("ici", "dcn"):
        own: dict[str, int | None] = dict.fromkeys(_AXES, 1)
        open_ = "fsdp" if kind == "ici" else "data"
        said = [axis for axis in _AXES if f"{kind}_{axis}_parallelism" in draft]
        if open_ not in said:
            own[open_] = None
        for axis in said:
            name = f"{kind}_{axis}_parallelism"
            count = draft.integer(name, f"{kind}, {axis} {{}}")
            if count == 0 or count is None or count < -1:
                raise draft.error("expected a whole number above 0, or -1", name)
            own[axis] = None if count == -1 else count
        if sum(count is None for count in own.values()) > 1:
            explicit = [axis for axis in said if own[axis] is None]
            if open_ not in said and explicit:
                own[open_] = 1
            else:
                raise draft.error("only one axis may be -1", f"{kind}_{explicit[-1]}_parallelism")
        found[kind] = own
    return found


def _distribution(draft: LaunchDraft, degrees: dict[str, dict[str, int | None]]) -> None:
    _sizes(draft, degrees)
    total: dict[str, int | None] = {}
    for axis in _AXES:
        within, across = degrees["ici"][axis], degrees["dcn"][axis]
        total[axis] = None if within is None or across is None else within * across

    def of(*axes: str) -> int | None:
        counts = [total[axis] for axis in axes]
        return None if None in counts else prod(count for count in counts if count)

    plan = draft.plan
    for field, axes in (("tensor", _TENSOR), ("context", _CONTEXT), ("pipeline", ("pipeline",))):
        degree = of(*axes)
        if degree is not None and degree > 1:
            plan[field] = degree
    if plan.get("context", 1) > 1:
        plan["cp_comm_type"] = "all-gather"
    if (total["tensor_sequence"] or 1) > 1:
        plan["sequence"] = True
    if (total["expert"] or 1) > 1:
        plan["expert"] = total["expert"]
    _zero(draft, total, of)
    everything = of(*_AXES)
    if everything is not None:
        draft.devices = everything
    per_device = draft.number("per_device_batch_size", "plan.micro_batch, {} a device")
    if per_device is None:
        per_device = float(tables.table(_NAME)["defaults"]["per_device_batch_size"])
        draft.note(f"per_device_batch_size is not given: {per_device:g}, as base.yml has it")
    count = tables.count(draft, "gradient_accumulation_steps", "accumulation of {}") or 1
    model = prod(plan.get(part) or 1 for part in ("tensor", "context", "pipeline"))
    rank = per_device * model
    if rank != int(rank) or rank < 1:
        raise draft.error(
            f"{per_device:g} samples a device are {rank:g} for the {model} devices of a copy of the"
            " network: no whole number",
            "per_device_batch_size",
        )
    micro, count = _pipeline(draft, int(rank), count)
    batch.settle(draft, micro, count, _WHERE)


def _zero(draft: LaunchDraft, total: Mapping[str, int | None], of: Any) -> None:
    plan = draft.plan
    shards, copies = of(*_SHARDS), total["data"]
    if shards == 1:
        plan["zero_stage"] = (
            1 if draft.flag("shard_optimizer_over_data", "plan.zero_stage=1: {}") else 0
        )
    else:
        plan["zero_stage"] = 3
        draft.ignore("shard_optimizer_over_data", became="plan.zero_stage=3")
        plan["hybrid_shard_size"] = 0  # the stack shares within a slice unless told otherwise
        if copies is not None and copies > 1 and plan.get("expert", 1) > 1:
            draft.note("weights are shared by all data-parallel ranks here, there within a copy")
        elif shards is not None and copies is not None and copies > 1:
            plan["hybrid_shard_size"] = shards
    ranks = of("data", *_SHARDS, "expert")
    if ranks is not None:
        plan["data"] = ranks


def _sizes(draft: LaunchDraft, degrees: dict[str, dict[str, int | None]]) -> None:
    """Fill the axes that take what is over, from the machine that the file or the user names."""
    topology = tables.word(draft, "compile_topology", "device {}")
    slices = tables.count(draft, "compile_topology_num_slices", "{} slices")
    slices = slices or tables.count(draft, "num_slices", "{} slices")
    each = None
    if topology is not None and (found := re.fullmatch(r"(v\d\w*?)-(\d+)", topology)) is not None:
        each = int(found[2]) // (2 if found[1] in {"v2", "v3", "v4", "v5p"} else 1)
        kinds = {"v5e": "tpu-v5e", "v5p": "tpu-v5p", "v6e": "tpu-v6e", "v4": "tpu-v4"}
        draft.device = kinds.get(found[1])
        slices = slices or 1
    elif topology is not None:
        draft.note(f"the machine {topology} is not known by its size")
    given = tables.devices_given(draft)
    across, within = degrees["dcn"], degrees["ici"]
    if slices is None and None in across.values():
        known = prod(count for count in across.values() if count is not None)
        inside = None if None in within.values() else prod(c for c in within.values() if c)
        if given is not None and inside is not None and given % (inside * known) == 0:
            slices = given // inside
        else:
            slices = known
            what = f"{known} slices" if known > 1 else "one slice"
            draft.note(
                f"an axis across slices takes what is over; here there is no more than {what}"
            )
    _take_rest(draft, across, slices, "dcn", "slices")
    groups = prod(count for count in across.values() if count is not None)
    if given is not None and each is None and groups and given % groups == 0:
        each = given // groups
    _take_rest(draft, within, each, "ici", "devices of a slice")


def _take_rest(
    draft: LaunchDraft, axes: dict[str, int | None], count: int | None, kind: str, what: str
) -> None:
    known = prod(each for each in axes.values() if each is not None)
    open_ = next((axis for axis, each in axes.items() if each is None), None)
    named = draft.placed(f"{kind}_{axis}_parallelism" for axis in _AXES)
    if count is None:
        return
    if open_ is None:
        if known != count:
            raise draft.error(f"the axes make {known} {what}, the machine has {count}", named)
        return
    if count % known:
        raise draft.error(f"{count} {what} cannot be divided by {known}", named)
    axes[open_] = count // known


def _pipeline(draft: LaunchDraft, rank: int, count: int) -> tuple[int, int]:
    """Return the micro-batch and how many there are, of a pipeline folded over its stages."""
    stages = draft.plan.get("pipeline", 1)
    parts = tables.count(draft, "num_pipeline_microbatches", "{} micro-batches")
    repeats = tables.count(draft, "num_pipeline_repeats", "plan.virtual_stages={}")
    layers = tables.count(draft, "num_layers_per_pipeline_stage", "layers of a stage: {}")
    if stages == 1:
        return rank, count
    parts = parts or stages
    if rank % parts:
        raise draft.error(
            f"{rank} samples cannot be divided into {parts} micro-batches",
            "num_pipeline_microbatches",
        )
    if repeats is None and layers is not None:
        whole = shape.shapes().get(draft.model, {}).get("layers", 0)
        repeats = whole // (stages * layers) or None
    draft.plan["schedule"] = "interleaved" if (repeats or 1) > 1 else "gpipe"
    if (repeats or 1) > 1:
        draft.plan["virtual_stages"] = repeats
    return rank // parts, parts * count
