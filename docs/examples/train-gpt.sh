#!/bin/bash
# Megatron-LM: GPT-3 1.3B on two nodes of eight GPUs.
GPUS_PER_NODE=8
NODES=${NODES:-2}

MODEL=(
    --num-layers 24
    --hidden-size 2048
    --num-attention-heads 16
    --seq-length 2048
    --max-position-embeddings 2048
    --tokenizer-type GPT2BPETokenizer
)
PLAN=(
    --tensor-model-parallel-size 4
    --sequence-parallel
    --use-distributed-optimizer
    --overlap-grad-reduce
    --overlap-param-gather
)

torchrun --nproc_per_node $GPUS_PER_NODE --nnodes $NODES pretrain_gpt.py "${MODEL[@]}" "${PLAN[@]}" \
    --micro-batch-size 4 --global-batch-size $((GPUS_PER_NODE * NODES * 4)) --bf16 --use-flash-attn --lr 1e-4
