#!/usr/bin/env bash
# RL of the built-in model on pipelines of four steps: the run that collapsed, and the same command as it is now.
#
#   experiments/pipelines_rl.sh [folder]
#
#   expect: a few minutes of one core a run (AMD EPYC, Zen 5), and six more the first time, for XLA; a run that was ended goes on,
#           and one that is done is not done again.
#
# Laid down before its runs: docs/results/pipelines. ARMS="new coupled" and SEEDS="0 1" run a part. The arm `old` is the same
# command in the code before fb3a891, which merged the steps of a completion into four segments.
set -euo pipefail
cd "$(dirname "$0")/.."
out=$(realpath -m "${1:-out/pipelines_rl}")
pipelines=$PWD/experiments/pipelines
python=$(realpath -s "$(command -v python)")
mkdir -p "$out"

settings=(--data "$pipelines/train-4.jsonl" --max-prompt-length 96 --learning-rate 3e-5 --prompts-per-step 4
    --num-generations 8 --gradient-accumulation-steps 2 --held-out-prompts 96 --evaluate-every 6 --save-every 3
    --max-steps 12)

train() { # the folder of the code, the folder of the run, and further options
    local code=$1 run=$2
    shift 2
    (cd "$code" && "$python" -m jax_lm grpo --config recipes/grpo_builtin.yaml "${settings[@]}" --out "$run" "$@")
}

python experiments/pipelines_rl.py "$out/counts.json" --run start
for seed in ${SEEDS:-0 1 2}; do
    for arm in ${ARMS:-old new coupled shuffled sft}; do
        run="$out/$arm-$seed"
        if [ ! -e "$run/trained" ]; then
            case $arm in
                old)
                    mkdir -p "$out/code"
                    git archive fb3a891^ | tar -x -C "$out/code"
                    train "$out/code" "$run" --seed "$seed"
                    ;;
                new) train . "$run" --seed "$seed" ;;
                shuffled) train . "$run" --seed "$seed" --shuffle-rewards ;;
                sft)
                    python experiments/demo_rl_sft.py "$pipelines/train-4.jsonl" "$run" --seed "$seed" --steps 12 \
                        --rate 3e-5 --row-count 32 --max-prompt 96 --held-out 96
                    ;;
                *) train . "$run" --seed "$seed" --estimator "$arm" ;;
            esac
            touch "$run/trained"
        fi
        python experiments/pipelines_rl.py "$out/counts.json" --run "$arm-$seed" --model "$run/model"
    done
done
