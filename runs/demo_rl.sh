#!/usr/bin/env bash
# Does coupled-GRPO learn? The built-in model on its own corpus, three seeds, next to two controls.
#
#   runs/demo_rl.sh [folder]
#
#   expect: two hours on two CPU cores that do other work too; table and plot are in docs/results/coupled_grpo.
#
# Arms: coupled (the method), full_mask (scores of the fully masked copy alone), shuffled (rewards handed out at random
# within a rollout: must not improve). Each starts from the built-in model, trains on tasks of the training side that this
# model solves sometimes, with unit tests in the sandbox as rewards, and is measured on the same 300 held-out tasks,
# greedily. No arm sees those before. Started again, it continues where it was. A null result is a result.
set -euo pipefail
cd "$(dirname "$0")/.."
out=${1:-out/demo_rl}
steps=${MAX_STEPS:-40}
problems=${PROBLEMS:-300}

evaluate() { # folder for the report, and options that name the model
    [ -s "$1/report.md" ] || diffucoder eval builtin --limit "$problems" --preset turbo --out "$@"
}

[ -s "$out/prompts.jsonl" ] || python runs/demo_rl_prompts.py "$out/prompts.jsonl"
evaluate "$out/start"
for seed in 0 1 2; do
    for arm in coupled full_mask shuffled; do
        case $arm in
            shuffled) options=(--estimator coupled --shuffle-rewards) ;;
            *) options=(--estimator "$arm") ;;
        esac
        run="$out/$arm-$seed"
        [ -d "$run/model" ] || diffucoder grpo --config runs/grpo_builtin.yaml --data "$out/prompts.jsonl" \
            --max-steps "$steps" --seed "$seed" --out "$run" "${options[@]}"
        evaluate "$run/held_out" --model "$run/model"
    done
done
python runs/demo_rl_table.py "$out"
