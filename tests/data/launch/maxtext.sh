#!/bin/bash
export EXECUTABLE="train"
for ARGUMENT in "$@"; do
    IFS='=' read -r KEY VALUE <<< "$ARGUMENT"
    export "$KEY"="$VALUE"
done
export LIBTPU_INIT_ARGS="--xla_enable_async_all_gather=true"
python3 -m MaxText.$EXECUTABLE MaxText/configs/base.yml run_name=$RUN_NAME \
    base_output_directory=$OUTPUT_PATH dataset_type=synthetic steps=5 \
    ici_fsdp_parallelism=32 ici_tensor_parallelism=4 per_device_batch_size=0.5 \
    remat_policy=full global_parameter_scale=16 attention='flash'
