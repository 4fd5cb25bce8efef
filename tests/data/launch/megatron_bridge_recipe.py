"""Recipes of our own, in the style of Megatron-Bridge; nobody imports them."""

from megatron.bridge.perf_recipes.common import _benchmark_common, _perf_precision
from megatron.bridge.recipes.llama import llama3_8b_pretrain_config


def _ours(cfg, tensor):
    cfg.model.tensor_model_parallel_size = tensor
    if tensor == 1:
        cfg.model.sequence_parallel = False
    else:
        cfg.model.sequence_parallel = True
    cfg.model.pipeline_model_parallel_size = 1
    cfg.model.context_parallel_size = 1


def llama3_8b_pretrain_16gpu_h100_bf16_config():
    cfg = llama3_8b_pretrain_config()
    cfg.mixed_precision = _perf_precision("bf16")
    _ours(cfg, 2)
    cfg.train.global_batch_size = 64 * 2
    cfg.train.micro_batch_size = 1
    cfg.model.cuda_graph_impl = "none"
    cfg.comm_overlap.tp_comm_overlap = True
    _benchmark_common(cfg)
    cfg.env_vars = {"CUDA_DEVICE_MAX_CONNECTIONS": 1}
    return cfg


def llama3_8b_pretrain_16gpu_h100_fp8cs_config():
    cfg = llama3_8b_pretrain_16gpu_h100_bf16_config()
    cfg.mixed_precision = _perf_precision("fp8_cs")
    return cfg


def llama3_8b_pretrain_8gpu_h100_bf16_config():
    cfg = llama3_8b_pretrain_config()
    cfg.train.global_batch_size = 64
    return cfg
