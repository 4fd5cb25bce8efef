#!/bin/bash
# A sweep or search on a Slurm cluster: a scheduler on the first node, a worker for each task.
#
#     sbatch --nodes 4 --ntasks-per-node 16 slurm.sh sweep STUDY.yaml --output ROWS.csv
#
# Submit it from a folder that all nodes see, which holds the study and the files that it names. If
# the job runs into its time limit, submit the same line again: finished points are kept beside ROWS.csv.
#SBATCH --job-name ridgeline
#SBATCH --cpus-per-task 1
#SBATCH --time 04:00:00
set -eu

contact=$PWD/dask-$SLURM_JOB_ID.json # where workers and the sweep find the scheduler
dask scheduler --scheduler-file "$contact" --port 0 --no-dashboard &
scheduler=$!
trap 'kill "$scheduler" 2>/dev/null; rm -f "$contact"' EXIT

# One thread a worker: a point keeps one core busy. A worker that dies is started again.
srun dask worker --scheduler-file "$contact" --nthreads 1 --no-dashboard &
until [ -s "$contact" ]; do
    kill -0 "$scheduler"
    sleep 1
done
ridgeline "$@" --cluster-address "$contact"
