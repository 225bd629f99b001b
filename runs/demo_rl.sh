#!/usr/bin/env bash
# Does coupled-GRPO learn? The built-in model on its own corpus, three seeds, next to two controls.
#
#   runs/demo_rl.sh [folder]
#
#   expect: not known yet: this has not been run to its end. Nine runs of MAX_STEPS updates; on two CPU cores plan a night.
#
# Arms: coupled (the method), full_mask (scores of the fully masked copy alone), shuffled (rewards handed out at random
# within a rollout: must not improve). Each starts from the built-in model, trains on 2,000 tasks of the training side with
# unit tests in the sandbox as rewards, and is measured on the same 300 held-out tasks, greedily. No arm sees those before.
# Started again, it continues where it was. The table, with errors, is in FOLDER/table.md; a null result is a result.
set -euo pipefail
cd "$(dirname "$0")/.."
out=${1:-out/demo_rl}
steps=${MAX_STEPS:-200}
problems=${PROBLEMS:-300}
mkdir -p "$out"

evaluate() { # folder of the model, file for the attempts
    [ -s "$2" ] || diffucoder eval builtin --model "$1" --limit "$problems" --out "$2"
}

evaluate jax_lm/assets/builtin "$out/start.jsonl"
for seed in 0 1 2; do
    for arm in coupled full_mask shuffled; do
        case $arm in
            shuffled) options=(--estimator coupled --shuffle-rewards True) ;;
            *) options=(--estimator "$arm") ;;
        esac
        run="$out/$arm-$seed"
        [ -d "$run/model" ] || diffucoder grpo --config runs/grpo_builtin.yaml --max-steps "$steps" --seed "$seed" \
            --out "$run" "${options[@]}"
        evaluate "$run/model" "$run/attempts.jsonl"
    done
done
python runs/demo_rl_table.py "$out" | tee "$out/table.md"
