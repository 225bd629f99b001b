#!/usr/bin/env bash
# DiffuCoder on two nodes: one process per node, all GPUs of each. JAX reads the cluster from Slurm's variables.
#SBATCH --job-name=diffucoder
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=4
#SBATCH --time=00:30:00
set -euo pipefail

# A virtual environment on a file system that all nodes see, with `pip install . 'jax[cuda13]'` of a checkout.
source "${VENV:?set VENV to the virtual environment}/bin/activate"
export HF_HUB_OFFLINE=1 # fetched before, so that nodes without network find it in the cache

srun diffucoder generate --multi-host --model "${MODEL:-apple/DiffuCoder-7B-Instruct}" --mesh data=2,tensor=4 \
    --chat "${PROMPT:-Reverse a linked list in Python.}"
