#!/usr/bin/env bash
# Training on two nodes of four GPUs: one process per node. JAX reads the cluster from Slurm's variables.
#SBATCH --job-name=diffucoder-train
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=4
#SBATCH --time=24:00:00
#SBATCH --signal=TERM@120
#SBATCH --requeue
set -euo pipefail

# A virtual environment on a file system that all nodes see, with `pip install . 'jax[cuda13]'` of a checkout, from whose
# folder the job is submitted. OUT is on such a file system too: all processes write one run, and a job that was ended
# continues from its newest checkpoint.
source "${VENV:?set VENV to the virtual environment}/bin/activate"
export HF_HUB_OFFLINE=1 # fetched before, so that nodes without network find it in the cache

srun --kill-on-bad-exit=1 diffucoder sft --multi-host --config recipes/sft_h100x8.yaml \
    --model "${MODEL:-apple/DiffuCoder-7B-Base}" --data "${DATA:?set DATA to the samples}" \
    --out "${OUT:?set OUT to a folder that all nodes see}"
