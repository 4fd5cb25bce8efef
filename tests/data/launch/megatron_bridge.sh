#!/bin/bash
#SBATCH --nodes=2
#SBATCH --gpus-per-node=8
MODEL=gpt_oss_20b
IMAGE=""
if [ -z "$IMAGE" ]; then
    echo "set IMAGE"
    exit 1
fi
for SIZES in "2,4" "4,2"; do
    IFS=',' read -r TP PP <<< "$SIZES"
    CMD="python run_recipe.py --recipe ${MODEL}_pretrain_config"
    CMD="$CMD model.tensor_model_parallel_size=$TP model.pipeline_model_parallel_size=$PP"
    CMD="$CMD model.expert_model_parallel_size=2 train.global_batch_size=32 train.micro_batch_size=1"
    CMD="$CMD model.seq_length=2048 logger.log_interval=1"
    srun --mpi=pmix bash -c "$CMD"
done
