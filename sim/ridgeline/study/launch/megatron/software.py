"""The software stack that arguments of Megatron-LM describe."""

from __future__ import annotations

from ridgeline.study.launch.megatron.arguments import Arguments
from ridgeline.study.launch.megatron.layout import has_mixture

_CORE = {"megatron-core", "megatron-bridge", "primus"}
"""Stacks whose overlap is off unless an argument turns it on."""


def software(args: Arguments, stack: str) -> None:
    """Work out the software stack and its settings."""
    draft, s = args.draft, args.draft.software_settings
    draft.software = stack
    core = stack in _CORE
    beside = args.first("overlap_grad_reduce", "overlap_grad_sync")
    reduced = args.flag(beside, "overlap.gradients={}")
    if core or beside in args:
        s["overlap.gradients"] = reduced
    gathers = args.flag(
        args.first("overlap_param_gather", "overlap_param_sync"), "overlap.gradients"
    )
    args.ignore(
        "overlap_param_gather_with_optimizer_step", "delay_grad_reduce", "delay_param_gather",
        became="overlap.gradients",
    )  # fmt: skip
    if reduced and not gathers and draft.plan.get("zero_stage", 0) > 0:
        draft.note("gradients are reduced beside the passes; weights are gathered so, too, here")
    pieces = args.flag(args.first("tp_comm_overlap", "ub_tp_comm_overlap"), "overlap.tensor=pieces")
    if pieces and draft.plan.get("tensor", 1) > 1:
        s["overlap.tensor"] = "pieces"
    args.ignore(
        "overlap_p2p_comm", "overlap_p2p_communication", "no_overlap_p2p_communication",
        "overlap_p2p_communication_warmup_flush", "async_tensor_model_parallel_allreduce",
        "no_async_tensor_model_parallel_allreduce", "defer_embedding_wgrad_compute",
        became=f"software {stack}",
    )  # fmt: skip
    fused = args.switch(
        "gradient_accumulation_fusion", "gradients.accumulation_fusion={}", default=True
    )
    if core or "gradient_accumulation_fusion" in args or not fused:
        s["gradients.accumulation_fusion"] = fused
    narrow = args.flag("grad_reduce_in_bf16", "gradients.main_grads=narrow")
    if "grad_reduce_in_fp32" in args:
        narrow = not args.flag("grad_reduce_in_fp32", "gradients.main_grads", default=True)
    wide = args.flag("accumulate_allreduce_grads_in_fp32", "gradients.main_grads=wide")
    if wide and narrow:
        raise args.error("gradients are to be summed in fp32, and in bf16", "grad_reduce_in_bf16")
    if narrow:
        s["gradients.main_grads"] = "narrow"
    elif wide or "grad_reduce_in_fp32" in args:
        s["gradients.main_grads"] = "wide"
    bucket = args.integer("ddp_bucket_size", "gradients.bucket")
    if bucket:
        s["gradients.bucket"] = f"{bucket * (2 if narrow else 4)} B"
    megabytes = args.number("grad_allreduce_chunk_size_mb", "gradients.bucket={} MiB")
    megabytes = args.number("bucket_cap_mb", "gradients.bucket={} MiB") or megabytes
    if megabytes:
        s["gradients.bucket"] = f"{megabytes:g} MiB"
    if "cross_entropy_loss_fusion" in args:
        merged = args.flag("cross_entropy_loss_fusion", "kernels.cross_entropy=fused")
        s["kernels.cross_entropy"] = "fused" if merged else "separate"
    _attention_kernel(args)
    if has_mixture(draft):
        _moe(args)
    _graphs(args)
    args.ignore(
        "use_mcore_models", "use_legacy_models", "transformer_impl", "transformer_engine",
        "mcore_gpt", "main_grads_dtype", "main_params_dtype", "ddp_impl", "DDP_impl",
        "num_distributed_optimizer_instances", became=f"software {stack}",
    )  # fmt: skip


def _attention_kernel(args: Arguments) -> None:
    s = args.draft.software_settings
    flash = args.flag(
        next(
            (
                n
                for n in ("use_flash_attn", "use_flash_attn_v2", "use_flash_attention")
                if n in args
            ),
            "use_flash_attn",
        ),
        "kernels.attention=flash",
    )
    backend = args.text("attention_backend", "kernels.attention: {}")
    backend = None if backend is None else backend.rpartition(".")[2]
    if flash or backend in {"flash", "fused"}:
        s["kernels.attention"] = "flash"
    elif backend in {"unfused", "local"}:
        s["kernels.attention"] = "separate"


def _moe(args: Arguments) -> None:
    s = args.draft.software_settings
    kind = args.text("moe_token_dispatcher_type", "moe.dispatch: {}")
    backend = args.text("moe_flex_dispatcher_backend", "moe.dispatch: {}")
    deep = args.flag("moe_enable_deepep", "moe.dispatch=node-limited")
    if deep or (kind == "flex") or (backend is not None and kind is None):
        s["moe.dispatch"] = "node-limited"
    elif kind in {"alltoall", "alltoall_seq"}:
        s["moe.dispatch"] = "per-expert"
    elif kind is not None:
        args.draft.note(
            "tokens are gathered by all ranks of experts; here they are sent to their own"
        )
        s["moe.dispatch"] = "per-expert"
    if "moe_grouped_gemm" in args:
        s["moe.grouped_gemm"] = args.flag("moe_grouped_gemm", "moe.grouped_gemm={}")
    elif args.flag("use_turbo_grouped_gemm", "moe.grouped_gemm=true"):
        s["moe.grouped_gemm"] = True
    if "moe_permute_fusion" in args:
        fused = args.flag("moe_permute_fusion", "moe.combine=gathered")
        s["moe.combine"] = "gathered" if fused else "atomic"
    overlap = args.first("overlap_moe_expert_parallel_comm", "moe_a2a_overlap")
    if overlap in args:
        s["overlap.moe_a2a"] = args.flag(overlap, "overlap.moe_a2a={}")
    args.ignore("delay_wgrad_compute", became="overlap.moe_a2a")
    args.unmodelled(
        "moe_shared_expert_overlap",
        "shared experts beside the exchange of tokens are not modelled",
    )


def _graphs(args: Arguments) -> None:
    s = args.draft.software_settings
    kind = args.text("cuda_graph_impl", "host.launch_time")
    scope = args.text(args.first("cuda_graph_modules", "cuda_graph_scope"), "host.launch_time")
    on = args.flag(args.first("enable_cuda_graph", "external_cuda_graph"), "host.launch_time=0")
    if kind in {None, "none"} and not on:
        return
    parts = (scope or "").strip("[]\"' ")
    if kind == "full_iteration" or parts in {"", "full", "full_iteration"}:
        s["host.launch_time"] = "0 s"
    else:
        args.draft.note(f"CUDA graphs of parts of a block ({parts}) are not modelled")
