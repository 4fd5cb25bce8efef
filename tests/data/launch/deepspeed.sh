#!/bin/bash
STAGE=$1
if [ "$STAGE" == "" ]; then
    STAGE=3
fi
MODEL=meta-llama/Llama-2-7b-hf
cat > ./settings.json << EOT
{
  "train_micro_batch_size_per_gpu": 2,
  "gradient_accumulation_steps": 4,
  "bf16": {"enabled": true},
  "zero_optimization": {"stage": $STAGE}
}
EOT
deepspeed --num_gpus 8 --num_nodes 2 finetune.py \
    --model_name_or_path $MODEL \
    --deepspeed ./settings.json \
    --per_device_train_batch_size 2 \
    --gradient_accumulation_steps 4 \
    --max_seq_length 2048 \
    --bf16 True \
    --gradient_checkpointing True \
    --learning_rate 2e-5 \
    --output_dir ./out
