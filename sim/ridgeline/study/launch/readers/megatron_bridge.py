"""Megatron-Bridge: recipes in Python, tables of workloads, overrides in YAML, and launch lines."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ridgeline.errors import nearest
from ridgeline.study.launch import launching, recipes, shape
from ridgeline.study.launch.job import LaunchDraft, LaunchJob
from ridgeline.study.launch.megatron import (
    Arguments,
    finish,
    fp8_precision,
    network,
    plan,
    software,
)
from ridgeline.study.launch.options import canonical, found_in, options
from ridgeline.study.launch.registry import reader
from ridgeline.study.launch.shell import follow, line_of
from ridgeline.study.launch.sources import PLACEHOLDER, LaunchSource, hole, leaves, plain

NAME = "megatron_bridge"
_PROGRAM = (
    r"(?:.*/)?(?:run_recipe|run_script|setup_experiment|custom_setup_experiment|finetune\w*"
    r"|pretrain\w*)\.py"
)
_GPUS: Mapping[str, str] = {
    "h100": "h100-sxm5-80gb", "h200": "h200-sxm", "b200": "b200", "b300": "b300",
    "gb200": "gb200", "gb300": "gb300", "a100": "a100-sxm4-80gb",
}  # fmt: skip
"""Devices of the catalogue by the names that recipes have for them."""
_UNKNOWN_GPUS = ("vr200", "r100")
_PRECISIONS: Mapping[str, str] = {
    "bf16": "bf16", "fp16": "fp16", "bf16_mixed": "bf16", "fp16_mixed": "fp16",
    "fp8_cs": "tensorwise", "fp8cs": "tensorwise",
    "bf16_with_fp8_current_scaling_mixed": "tensorwise",
    "nemotron_h_bf16_with_fp8_current_scaling_mixed": "tensorwise",
    "fp8_ds": "delayed", "fp8ds": "delayed", "fp8": "delayed",
    "bf16_with_fp8_delayed_scaling_mixed": "delayed",
    "fp8_mx": "mxfp8", "fp8mx": "mxfp8", "mxfp8": "mxfp8", "bf16_with_mxfp8_mixed": "mxfp8",
    "fp8_sc": "blockwise", "fp8sc": "blockwise",
    "bf16_with_fp8_subchannel_scaling_mixed": "blockwise",
    "nvfp4": "nvfp4", "bf16_with_nvfp4_mixed": "nvfp4",
}  # fmt: skip
"""How products are narrow, by the names that recipes have for precisions."""
_WORDS = "|".join(sorted((*_PRECISIONS, "fp8_current_scaling"), key=len, reverse=True))
_FUNCTION = re.compile(
    r"(?P<model>.+?)_(?P<task>pretrain|sft|peft|finetune|lora)\w*?"
    rf"(?:_(?P<count>\d+)gpu_(?P<gpu>[a-z]+\d+)_(?P<precision>{_WORDS})(?:_(?P<variant>\w+?))?)?_config",
)
_TABLE = re.compile(
    r"(?P<model>.+?)_(?P<task>PRETRAIN|SFT|PEFT|LORA|FINETUNE)\w*?_CONFIG_(?P<gpu>[A-Z]+\d+)"
    rf"(?:_(?P<precision>{_WORDS.upper()}))?(?:_(?P<variant>\w+))?",
)
_RENAMED: Mapping[str, str] = {
    "pp_layout": "pipeline_model_parallel_layout",
    "moe_a2a_overlap": "overlap_moe_expert_parallel_comm",
    "num_moe_experts": "num_experts",
    "moe_latent_size": "moe_latent_size",
    "cuda_graph_modules": "cuda_graph_modules",
    "tp": "tensor_model_parallel_size", "pp": "pipeline_model_parallel_size",
    "cp": "context_parallel_size", "vp": "virtual_pipeline_model_parallel_size",
    "ep": "expert_model_parallel_size", "etp": "expert_tensor_parallel_size",
    "mbs": "micro_batch_size", "gbs": "global_batch_size",
    "gated_linear_unit": "gated_linear_unit",
}  # fmt: skip
"""Names of Megatron's arguments where Megatron-Bridge has others."""
_SECTIONS = {"model", "train", "ddp", "comm_overlap", "optimizer", "mixed_precision", "dist"}
_OUTSIDE = {"logger", "checkpoint", "scheduler", "rng", "profiling", "validation", "env_vars",
            "rerun_state_machine", "tokenizer", "straggler", "nvrx_straggler"}  # fmt: skip


def recognises(text: str, suffix: str) -> float:
    """Tell how sure it is that a file is of Megatron-Bridge."""
    if suffix == ".py":
        own = "megatron.bridge" in text or "WorkloadBaseConfig" in text
        return 0.95 if own else 0.3 if "ConfigContainer" in text else 0.0
    if suffix in {".yaml", ".yml"}:
        if "perf_matrix:" in text or "ConfigContainer:" in text:
            return 0.95
        sections = sum(
            bool(re.search(rf"^{name}:", text, re.M)) for name in (*_SECTIONS, *_OUTSIDE)
        )
        return 0.6 if sections >= 3 and "trainer:" not in text and "modules:" not in text else 0.0
    if suffix in {".json", ".toml"}:
        return 0.0
    words = ("run_recipe.py", "Megatron-Bridge", "model_recipe_name", "megatron.bridge")
    return 0.95 if any(word in text for word in words) and "--recipe" + "_" not in text else 0.0


def choices(source: LaunchSource) -> tuple[str, ...]:
    """Return what chooses each of several recipes in a file."""
    if source.suffix == ".py":
        found = _recipes(source)
    elif source.suffix in {".yaml", ".yml"}:
        found = list(_matrix(source))
    else:
        return launching.choices(source, _PROGRAM)
    return tuple(f"recipe={name}" for name in found) if len(found) > 1 else ()


@reader(NAME, recognises, choices)
def read(source: LaunchSource) -> LaunchJob:
    """Read a file of Megatron-Bridge."""
    draft = LaunchDraft(source, NAME)
    args = Arguments(draft, tables=(NAME, "megatron"), uneven_stages=True)
    if source.suffix == ".py":
        _from_python(source, args)
    elif source.suffix in {".yaml", ".yml"}:
        _from_yaml(source, args)
    else:
        _from_shell(source, args)
    return draft.job()


# ---- Python ------------------------------------------------------------------------------------


def _recipes(source: LaunchSource) -> list[str]:
    module = recipes.tree(source)
    table = recipes.replaced(module, "WorkloadBaseConfig")
    if table:
        public = [name for name in recipes.exported(module) if name in table]
        return public or [name for name in table if _TABLE.fullmatch(name)]
    return [
        name
        for name in recipes.functions(module)
        if not name.startswith("_") and _FUNCTION.fullmatch(name)
    ]


def _from_python(source: LaunchSource, args: Arguments) -> None:
    known = _recipes(source)
    if not known:
        raise source.error("no recipe of a training is in this file")
    name = _chosen(source, known)
    module = recipes.tree(source)
    table = recipes.replaced(module, "WorkloadBaseConfig")
    if name in table:
        recipe = table[name]
        found = _TABLE.fullmatch(name)
        _from_table(args, recipe)
    else:
        recipe = recipes.followed(module, name)
        found = _FUNCTION.fullmatch(name)
        _from_recipe(args, recipe)
    assert found is not None
    args.draft.say("recipe", name, recipe.line)
    parts = {key: value.lower() for key, value in found.groupdict().items() if value}
    _finished(args, parts, recipe)


def _chosen(source: LaunchSource, known: list[str]) -> str:
    asked = source.set_.get("recipe")
    if asked is None and len(known) == 1:
        return known[0]
    if asked is None:
        few = ", ".join(known[:12]) + (", ..." if len(known) > 12 else "")
        raise source.error(
            f"the file has {len(known)} recipes; choose one: --set recipe=NAME ({few})"
        )
    if asked not in known:
        raise source.error(f"the file has no recipe {asked!r}{nearest(asked, known)}")
    return asked


def _from_table(args: Arguments, recipe: recipes.Recipe) -> None:
    defaults = {
        "tensor_model_parallel_size": 1, "pipeline_model_parallel_size": 1,
        "context_parallel_size": 1, "expert_model_parallel_size": 1, "global_batch_size": 1,
        "micro_batch_size": 1,
    }  # fmt: skip
    for name, value in defaults.items():
        if name not in recipe.values:
            recipe.values[name] = recipes.RecipeValue(value, recipe.line)
    for path, given in recipe.values.items():
        _say(args, path, given.value, given.line)
    if int(recipe.values["tensor_model_parallel_size"].value or 1) > 1:
        args.draft.plan["sequence"] = True
    count = recipe.values.get("recompute_num_layers")
    if count is not None and count.value:
        _say(args, "recompute_granularity", "full", count.line)
        _say(args, "recompute_method", "block", count.line)
    modules = recipe.values.get("recompute_modules")
    if modules is not None and modules.value and not (count is not None and count.value):
        _say(args, "recompute_granularity", "selective", modules.line)
    offloaded = recipe.values.get("cpu_offloading_num_layers")
    if offloaded is not None and offloaded.value:
        _say(args, "cpu_offloading", True, offloaded.line)


def _from_recipe(args: Arguments, recipe: recipes.Recipe) -> None:
    for path, given in recipe.values.items():
        _say(args, path, given.value, given.line)
    for name, arguments, line in recipe.calls:
        head, _, callee = name.rpartition("=")
        if callee in {"_perf_precision", "get_mixed_precision_config"} and arguments:
            _say(args, "mixed_precision", arguments[0], line)
        elif callee == "set_cuda_graph_modules" and len(arguments) > 1:
            _say(args, "model.cuda_graph_modules", arguments[1], line)
        elif callee == "to_megatron_provider" or head == "model":
            args.draft.say(f"{head}={callee}", ", ".join(map(str, arguments)), line)
            args.draft.ignore(f"{head}={callee}", became="model")
        elif "muon" in callee:
            _say(args, "optimizer", "dist_muon" if "distributed" in callee else "muon", line)
            args.draft.say(callee, "", line)
            args.draft.ignore(callee, became="plan.optimizer=muon; what has no effect")
        elif callee == "_benchmark_common":
            args.draft.say(callee, "", line)
            args.draft.ignore(callee, became="gradients.main_grads=narrow; what has no effect")
            if not any(path.endswith("grad_reduce_in_fp32") for path in recipe.values):
                _say(args, "ddp.grad_reduce_in_fp32", False, line)
    if "recompute_modules" in args and "recompute_granularity" not in args:
        _say(args, "recompute_granularity", "selective", 0)  # as the recipes that these change have


# ---- YAML --------------------------------------------------------------------------------------


def _matrix(source: LaunchSource) -> dict[str, dict[str, tuple[Any, int]]]:
    """Return the settings of every run of a performance matrix, by its name."""
    document = source.yaml
    data = document.data.get("perf_matrix") if isinstance(document.data, dict) else None
    found: dict[str, dict[str, tuple[Any, int]]] = {}
    for gpu, sizes in (data or {}).items() if isinstance(data, dict) else ():
        for size, runs in sizes.items() if isinstance(sizes, dict) else ():
            if not isinstance(runs, dict):
                continue
            for precision, own in runs.items():
                if precision == "common" or not isinstance(own, dict):
                    continue
                values: dict[str, tuple[Any, int]] = {}
                for part in ("common", precision):
                    for key, value in (runs.get(part) or {}).items():
                        at = document.where(("perf_matrix", gpu, size, part, key))[0]
                        values[str(key)] = (value, at)
                count = re.search(r"(\d+)$", str(size))
                line = document.where(("perf_matrix", gpu, size))[0]
                if count:
                    values["num_gpus"] = (int(count[1]), line)
                values["gpu"] = (str(gpu), line)
                values["compute_dtype"] = (str(precision), line)
                found[f"{gpu}-{count[1] if count else size}-{precision}"] = values
    return found


def _from_yaml(source: LaunchSource, args: Arguments) -> None:
    document = source.yaml
    matrix = _matrix(source)
    data = document.data
    if not isinstance(data, dict):
        raise document.error("expected a mapping")
    top: tuple[str, ...] = ("ConfigContainer",) if "ConfigContainer" in data else ()
    inner = data["ConfigContainer"] if top else data
    if not matrix:
        model = source.set_.get("recipe") or _name_in(str(data.get("recipe", "")))
        if not model and not isinstance(inner.get("recipe"), str):
            raise source.error(
                "overrides of a recipe only: which recipe they change, and so the network and its"
                " parallelism, is said elsewhere", 1,
            )  # fmt: skip
    for location, value in leaves(
        {key: each for key, each in inner.items() if key != "perf_matrix"}
    ):
        path = ".".join(str(part) for part in location)
        _say(args, path, value, document.where((*top, *location))[0])
    name = _chosen(source, list(matrix)) if matrix else str(source.set_.get("recipe", ""))
    values = matrix.get(name, {})
    parts: dict[str, str] = {}
    for key, (value, line) in values.items():
        if key == "gpu":
            parts["gpu"] = str(value)
        elif key == "compute_dtype":
            parts["precision"] = str(value)
        elif key == "cuda_graphs":
            _say(args, "enable_cuda_graph", value, line)
        else:
            _say(args, key, value, line)
    if values.get("recompute_num_layers", (None, 0))[0]:
        _say(args, "recompute_granularity", "full", values["recompute_num_layers"][1])
        _say(args, "recompute_method", "block", values["recompute_num_layers"][1])
    if values.get("cpu_offloading_num_layers", (None, 0))[0]:
        _say(args, "cpu_offloading", True, values["cpu_offloading_num_layers"][1])
    if matrix:
        parts["model"] = _model_of_file(source)
        if int(values.get("tp", (1, 0))[0] or 1) > 1:
            args.draft.plan["sequence"] = True
    else:
        found = _FUNCTION.fullmatch(name)
        parts = {k: v for k, v in (found.groupdict() if found else {}).items() if v} or {
            "model": name
        }
    args.draft.say("recipe", name, 0)
    _finished(args, parts, None)


def _model_of_file(source: LaunchSource) -> str:
    name = _name_in(Path(source.file).stem)
    if name:
        return name
    raise source.error("the file does not say which network is trained, nor does its name")


def _name_in(text: str) -> str:
    """Return the longest part of a name that is a network of the catalogue."""
    words = [word for word in re.split(r"[_\s]+", text) if word]
    for length in range(len(words), 0, -1):
        for start in range(len(words) - length + 1):
            part = "_".join(words[start : start + length])
            if shape.named(part):
                return part
    return ""


# ---- shell -------------------------------------------------------------------------------------


def _from_shell(source: LaunchSource, args: Arguments) -> None:
    script = follow(source)
    found = launching.launches(script, _PROGRAM)
    if not found:
        raise source.error(launching.why_nothing(script, ("--recipe", "model_recipe_name")), 0)
    launch = launching.chosen(source, found)
    parts: dict[str, str] = {}
    overrides = [word for word in launch.after if re.match(r"\+{0,2}[a-z_]+\.[\w.]+=", plain(word))]
    rest = [word for word in launch.after if word not in overrides]
    given: dict[str, str] = {}
    for option in options(rest):
        name = canonical(option.name)
        given[name] = option.value or "true"
        if name in _LAUNCHED:
            args.draft.say(option.name, option.value or "true", option.line)
            args.draft.ignore(option.name, became=_LAUNCHED[name])
        else:
            _say(
                args, name, True if option.value is None else option.value, option.line, option.name
            )
    for word in overrides:
        path, _, value = plain(word).lstrip("+").partition("=")
        _say(args, path, value, line_of(word))
    recipe = given.get("recipe") or given.get("recipe_name") or ""
    if recipe:
        named = _FUNCTION.fullmatch(recipe if recipe.endswith("_config") else f"{recipe}_config")
        if named is None:
            raise source.error(
                f"the recipe {_shown(recipe)!r} is not one of a name that says its network",
                launch.line,
            )
        parts = {key: value for key, value in named.groupdict().items() if value}
        parts["variant_of"] = recipe
    else:
        size = "_".join(given[key] for key in ("model_name", "model_size") if key in given)
        parts["model"] = given.get("model_recipe_name") or size or given.get("hf_path", "")
        parts["gpu"] = given.get("gpu", "")
        parts["precision"] = given.get("compute_dtype", "bf16")
        parts["task"] = given.get("task", "pretrain")
        parts["variant_of"] = f"the recipe of {parts['model']}"
        if given.get("domain", "llm") not in {"llm"}:
            raise source.error(f"a network of {given['domain']}: no description", launch.line)
    if not parts.get("model"):
        raise source.error("the launch does not say which network is trained", launch.line)
    before = list(options(launch.before))
    machine = launching.devices(script, before)
    for option in machine.said:
        args.draft.say(option.name, option.value, option.line)
        args.draft.ignore(option.name, became=f"devices={machine.count}")
    if "recompute_modules" in args and "recompute_granularity" not in args:
        _say(args, "recompute_granularity", "selective", 0)
    if "num_gpus" not in args:
        args.draft.devices = machine.count
    _finished(args, parts, None)


_LAUNCHED: Mapping[str, str] = {
    "recipe": "model, plan", "recipe_name": "model, plan", "model_recipe_name": "model",
    "model_family_name": "model", "model_name": "model", "model_size": "model", "gpu": "device",
    "compute_dtype": "plan.precision", "fp8_recipe": "plan.precision", "task": "model",
    "gpus_per_node": "devices", "hf_path": "model", "domain": "model",
}  # fmt: skip


def _shown(text: str) -> str:
    return PLACEHOLDER.sub(lambda found: found["name"], text)


# ---- all ---------------------------------------------------------------------------------------


def _say(args: Arguments, path: str, value: Any, line: int, name: str = "") -> None:
    """Register a setting under the name that Megatron has for it."""
    section, _, last = path.rpartition(".")
    last = _RENAMED.get(last, last)
    if isinstance(value, list | tuple):
        value = " ".join(str(each) for each in value)
    if isinstance(value, dict):
        value = "; ".join(value)
    top = section.split(".")[0] if section else ""
    if value is None or value in {"None", "null"}:
        args.draft.say(name or path, "None", line)
        args.draft.ignore(name or path, became="the default")
        if not top or top in _SECTIONS:
            args.names.pop(last, None)
        return
    if top in _OUTSIDE or (top == "dataset" and last != "seq_length"):
        args.draft.say(name or path, value, line)
        args.draft.said[name or path].became = found_in(path, (NAME,))
        return
    if last == "pipeline_model_parallel_layout" and isinstance(value, str) and hole_in(value):
        args.draft.say(name or path, value, line)
        args.draft.ignore(name or path, became="plan.stage_balance (a function makes it)")
        return
    if path == "mixed_precision" or (top == "mixed_precision" and last != "grad_reduce_in_fp32"):
        last = path.replace(".", "_") if top else path
    if top == "dataset":
        last = "seq_length" if "seq_length" not in args else "dataset_seq_length"
    if top == "model" and last == "seq_length":
        args.names.pop("seq_length", None)
    args.say(last, name or path, value, line)


def hole_in(text: str) -> bool:
    """Tell whether a value has a part that the file does not give."""
    return PLACEHOLDER.search(text) is not None


def _finished(args: Arguments, parts: Mapping[str, str], recipe: recipes.Recipe | None) -> None:
    draft = args.draft
    model = _model(args, parts, recipe)
    _machine(args, parts)
    if "grad_reduce_in_fp32" not in args and not _OF_PERFORMANCE.search(draft.source.text):
        wide = "ddp.grad_reduce_in_fp32, as the library's recipes begin (bf16_mixed)"
        args.say("grad_reduce_in_fp32", wide, True, 0)
    args.given()
    _needed(args, parts, recipe, model)
    _defaults(args)
    if model or "num_layers" in args:
        network(args, model)
    if parts.get("task") in {"peft", "lora"} or "peft" in args:
        _adapters(args)
    _precision(args, parts)
    narrow = draft.plan.pop("precision")
    plan(args)
    draft.plan["precision"] = narrow
    software(args, "megatron-bridge")
    finish(args, ["num_gpus", "--num_gpus", "recipe"])
    _elsewhere(args, recipe)
    for path, said in draft.said.items():
        said.became = said.became or found_in(path, args.tables)


_OF_PERFORMANCE = re.compile(
    r"_benchmark_common|WorkloadBaseConfig|perf_matrix|scripts/performance|perf_recipes"
)
"""What files of Megatron-Bridge's performance recipes name, which sum gradients in bf16."""
_NEEDED = ("tensor_model_parallel_size", "pipeline_model_parallel_size", "global_batch_size",
           "micro_batch_size")  # fmt: skip


def _needed(
    args: Arguments, parts: Mapping[str, str], recipe: recipes.Recipe | None, model: str
) -> None:
    """Refuse where what a recipe begins with, in another file, decides parallelism or batch."""
    elsewhere = _bases(recipe) if recipe else [parts["variant_of"]] if "variant_of" in parts else []
    wanted = list(_NEEDED)
    if "mixture.experts" in shape.shapes().get(model, {}):
        wanted.append("expert_model_parallel_size")
        if elsewhere and "expert_tensor_parallel_size" not in args:
            args.say("expert_tensor_parallel_size", f"expert_tensor_parallel_size 1{_COMMON}", 1, 0)
    missing = [name for name in wanted if name not in args]
    if missing and elsewhere:
        raise args.draft.error(
            f"{', '.join(missing)}: set by {', '.join(elsewhere)}, which is in another file; give"
            f" what it sets: --set {missing[0]}=...",
            "recipe" if "recipe" in args.draft.said else None,
        )
    if recipe is not None and not elsewhere:  # as recipes.common of Megatron-Bridge begins
        for name, value in zip(_NEEDED, (1, 1, 32, 2), strict=True):
            if name in missing:
                args.say(name, f"{name}{_COMMON}", value, 0)


_COMMON = " (as all recipes begin)"


def _bases(recipe: recipes.Recipe) -> list[str]:
    """Return the functions of other files that a recipe begins with or calls."""
    names = [
        name.rpartition("=")[2]
        for name, _, _ in recipe.calls
        if not name.startswith(("model=", "optimizer=", "scheduler="))
    ]
    return [
        name
        for name in dict.fromkeys(names)
        if name not in _KNOWN and not name.startswith("distributed_")
    ]


_KNOWN = {"_benchmark_common", "_perf_precision", "_pretrain_common", "set_cuda_graph_modules",
          "get_mixed_precision_config", "to_megatron_provider", "CommOverlapConfig",
          "MixedPrecisionConfig", "getattr", "isinstance", "hasattr",
          "WorkloadBaseConfig"}  # fmt: skip


def _model(args: Arguments, parts: Mapping[str, str], recipe: recipes.Recipe | None) -> str:
    draft = args.draft
    text = parts.get("model", "")
    found = shape.named(text)
    for _, arguments, _ in recipe.calls if recipe else ():
        for each in arguments:
            if found is None and isinstance(each, str) and "/" in each:
                found = shape.named(each)
    draft.ignore("recipe", "model", became=f"model={found}")
    if found is None and "num_layers" not in args:
        raise draft.error(shape.unknown_name(text), "recipe" if "recipe" in draft.said else None)
    return found or ""


def _machine(args: Arguments, parts: Mapping[str, str]) -> None:
    draft = args.draft
    gpu = parts.get("gpu", "").lower()
    draft.device = _GPUS.get(gpu)
    if gpu and draft.device is None:
        draft.note(f"the catalogue has no device {gpu}")
    count = args.integer("num_gpus", "devices={}")
    if count is None and parts.get("count"):
        count = int(parts["count"])
    draft.devices = count if count is not None else draft.devices
    args.integer("num_gpus_per_node", "devices of a node: {}")


def _defaults(args: Arguments) -> None:
    """Put in what all recipes of Megatron-Bridge begin with."""
    for name in ("use_distributed_optimizer", "overlap_grad_reduce", "overlap_param_gather"):
        if name not in args:
            args.say(name, f"{name}{_COMMON}", True, 0)
    if "cross_entropy_loss_fusion" not in args:
        args.say("cross_entropy_loss_fusion", f"cross_entropy_loss_fusion{_COMMON}", True, 0)
    fully = args.flag("use_megatron_fsdp", "plan.zero_stage=3")
    if fully and "data_parallel_sharding_strategy" in args:
        strategy = args.draft.said[args.name("data_parallel_sharding_strategy")]
        if strategy.value == "no_shard":
            raise args.error(
                "fully sharded, and not sharded at all", "data_parallel_sharding_strategy"
            )
    args.ignore("tp_comm_overlap_cfg", "num_gpus_per_node", became="kernels of the software stack")


def _precision(args: Arguments, parts: Mapping[str, str]) -> None:
    draft = args.draft
    text = args.text("mixed_precision", "plan.precision: {}") if not _opaque(args) else None
    args.ignore("mixed_precision", became="plan.precision")
    args.ignore(
        "mixed_precision_bf16", "mixed_precision_params_dtype", "mixed_precision_pipeline_dtype",
        "pipeline_dtype", "params_dtype", "mixed_precision_autocast_enabled",
        became="plan.precision",
    )  # fmt: skip
    args.ignore(
        "mixed_precision_num_layers_at_start_in_bf16", "mixed_precision_num_layers_at_end_in_bf16",
        "mixed_precision_first_last_layers_bf16", became="left out",
    )  # fmt: skip
    if "mixed_precision_fp8_recipe" in args:
        text = args.text("mixed_precision_fp8_recipe", "plan.precision: {}")
    word = (text or parts.get("precision") or "bf16").lower()
    kind = _PRECISIONS.get(word, word)
    if kind in {"bf16", "fp16"}:
        draft.plan["precision"] = f"{kind}-mixed"
    elif kind == "nvfp4":
        draft.plan["precision"] = "nvfp4-mixed"
    elif kind in {"tensorwise", "delayed", "mxfp8", "blockwise"}:
        draft.plan["precision"] = fp8_precision(draft, kind)
    else:
        raise draft.error(f"unknown precision {word!r}{nearest(word, _PRECISIONS)}")


def _opaque(args: Arguments) -> bool:
    said = args.draft.said.get(args.name("mixed_precision"))
    return said is not None and isinstance(said.value, str) and "\ue002" in said.value


def _adapters(args: Arguments) -> None:
    kind = args.text("peft", "model.adapters") or "lora"
    if kind.lower() in {"none", "null"}:
        return
    if kind.lower() not in {"lora", "true"}:
        raise args.error(f"training by {kind} is not described", "peft")
    rank = args.integer("dim", "model.adapters.rank={}") or 32
    args.draft.model_fields["adapters"] = {"rank": rank, "layers": ["*.attention.*"]}
    args.draft.note(
        f"adapters of rank {rank} beside the products of attention, and of no others here"
    )


def _elsewhere(args: Arguments, recipe: recipes.Recipe | None) -> None:
    """Name the functions of other files that a recipe begins with or calls."""
    names = _bases(recipe) if recipe else []
    if names:
        args.draft.note(
            f"what {', '.join(names)} of other files set, and the recipe does not set again, is not"
            " known"
        )
    if "seq_length" not in args:
        args.draft.note(
            f"the file does not say how long sequences are: {_sequence(args)} tokens, as the"
            " catalogue has it"
        )
    common = [name for name in args.draft.said if name.endswith(_COMMON)]
    for name in common:
        del args.draft.said[name]
    words = [name.removesuffix(_COMMON).replace("_", " ") for name in common]
    if words:
        args.draft.note(f"as all recipes of Megatron-Bridge begin: {', '.join(words)}")


def _sequence(args: Arguments) -> int:
    fields = args.draft.model_fields
    return int(fields.get("sequence") or shape.shapes()[args.draft.model]["sequence"])


__all__ = ["NAME", "choices", "hole", "read", "recognises"]
