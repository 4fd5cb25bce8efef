#!/bin/bash
# A dense model of 24 layers on two nodes, for the tests of this repository.
GPUS_PER_NODE=8
NODES=${NODES:-2}
WORLD=$((GPUS_PER_NODE * NODES))
TP=4
DATA=$1

LAUNCHER=(--nproc_per_node $GPUS_PER_NODE --nnodes $NODES --master_port 6000)
MODEL=(
    --num-layers 24   # as GPT-3 1.3B
    --hidden-size 2048
    --num-attention-heads 16
    --seq-length 2048
    --max-position-embeddings 2048
    --tokenizer-type GPT2BPETokenizer
)
BATCH="--micro-batch-size 4 \
  --global-batch-size $((WORLD * 4))"
if [ -z "$PRECISION" ]; then
    FORMAT="--bf16"
else
    FORMAT="--fp16"
fi
PLAN=(--tensor-model-parallel-size ${TP} --sequence-parallel --use-distributed-optimizer)
PLAN+=(--overlap-grad-reduce --overlap-param-gather)

torchrun ${LAUNCHER[@]} pretrain_gpt.py "${MODEL[@]}" $BATCH $FORMAT ${PLAN[@]} \
    --data-path $DATA --lr 1e-4 --save-interval 100 --use-flash-attn --no-such-argument 3
