"""A table of workloads of our own, in the style of Megatron-Bridge."""

from dataclasses import replace

from utils.utils import WorkloadBaseConfig

BASE_DEEPSEEK_V3_CONFIG = WorkloadBaseConfig(expert_tensor_parallel_size=1)
DEEPSEEK_V3_PRETRAIN_CONFIG_B200_BF16_V1 = replace(
    BASE_DEEPSEEK_V3_CONFIG,
    num_gpus=256,
    global_batch_size=2048,
    pipeline_model_parallel_size=16,
    expert_model_parallel_size=8,
    recompute_modules=["mla_up_proj"],
)
DEEPSEEK_V3_PRETRAIN_CONFIG_B200_FP8_CS_V1 = DEEPSEEK_V3_PRETRAIN_CONFIG_B200_BF16_V1

__all__ = [
    "DEEPSEEK_V3_PRETRAIN_CONFIG_B200_BF16_V1",
    "DEEPSEEK_V3_PRETRAIN_CONFIG_B200_FP8_CS_V1",
]
