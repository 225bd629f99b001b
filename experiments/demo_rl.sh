#!/usr/bin/env bash
# Does coupled-GRPO learn? The built-in model on its own corpus: three seeds, three estimators, two controls.
#
#   experiments/demo_rl.sh [folder]
#
#   expect: some 22 minutes of one core a run (50 s an update, most of it the update itself, then the measures), so five
#           to six hours of one core for all; each part that is done is not done again, and a part that was ended goes on.
#           One core each, arms and seeds may run beside each other in one folder once the start is measured: ARMS=trace
#           SEEDS=0, and so on.
#
# Laid down before any run that counts (docs/results/coupled_grpo, the third experiment; it names the checkpoint that it
# starts from): the measures are pass@1 sampled at the temperature of training, 8 samples of each of 300 held-out tasks,
# and greedy pass@1; seeds 0, 1 and 2; the settings of recipes/grpo_builtin.yaml, but for the rate. Arms: trace (scores along the decoding),
# shuffled (rewards handed out at random within a rollout: must not improve), coupled (complementary masks, the paper's
# method), full_mask (the fully masked copy alone), sft (fine-tuning on solutions of the same prompts). START is another
# checkpoint to begin from, LEARNING_RATE and MAX_STEPS other updates, PRESET and NUM_STEPS another decoding, the same
# wherever one decodes (NUM_STEPS empty: as many as the preset takes), SHUFFLED the estimator of that control, ARMS and
# SEEDS a part of all. A null result is a result: START of the third experiment gains 14 to 18 points, the weights that
# ship, from which it starts if nothing is said, gain nothing (the fourth).
set -euo pipefail
cd "$(dirname "$0")/.."
out=${1:-out/demo_rl}
problems=${PROBLEMS:-300}
rate=${LEARNING_RATE:-5e-5}
steps=${MAX_STEPS:-20}
tried=${TRIED:-4000}
start=(${START:+--model "$START"})
preset=${PRESET:-fast}
num_steps=${NUM_STEPS-12}
shuffled=${SHUFFLED:-trace}
decoding=(--preset "$preset" ${num_steps:+--num-steps "$num_steps"})
sampling=("${decoding[@]}" --max-new-tokens 96 --batch-size 16)

settings="START=${START:-} PRESET=$preset NUM_STEPS=$num_steps PROBLEMS=$problems TRIED=$tried"
settings+=" LEARNING_RATE=$rate MAX_STEPS=$steps SHUFFLED=$shuffled"
mkdir -p "$out"
if [ -e "$out/settings" ] && [ "$(cat "$out/settings")" != "$settings" ]; then
    echo "error: $out holds $(cat "$out/settings"), not $settings" >&2
    exit 2
fi
echo "$settings" >"$out/settings"

measure() { # the folder of a run, and options that name the model
    local run=$1
    shift
    [ -s "$run/sampled/report.md" ] || diffucoder eval builtin --limit "$problems" "${sampling[@]}" \
        --temperature 1 --n 8 --seed 0 --out "$run/sampled" "$@"
    [ -s "$run/greedy/report.md" ] || diffucoder eval builtin --limit "$problems" "${sampling[@]}" \
        --temperature 0 --out "$run/greedy" "$@"
}

[ -s "$out/prompts.jsonl" ] || python experiments/demo_rl_prompts.py "$out/prompts.jsonl" --tasks "$tried" "${decoding[@]}" "${start[@]}"
measure "$out/start" "${start[@]}"
for seed in ${SEEDS:-0 1 2}; do
    for arm in ${ARMS:-trace shuffled coupled full_mask sft}; do
        run="$out/$arm-$seed"
        case $arm in
            shuffled) options=(--estimator "$shuffled" --shuffle-rewards) ;;
            sft) options=() ;;
            *) options=(--estimator "$arm") ;;
        esac
        if [ ! -e "$run/trained" ]; then
            if [ "$arm" = sft ]; then
                python experiments/demo_rl_sft.py "$out/prompts.jsonl" "$run" --seed "$seed" --steps "$steps" \
                    --rate "$rate" "${start[@]}"
            else
                diffucoder grpo --config recipes/grpo_builtin.yaml --data "$out/prompts.jsonl" --max-steps "$steps" \
                    --learning-rate "$rate" --seed "$seed" --out "$run" "${decoding[@]}" "${start[@]}" "${options[@]}"
            fi
            touch "$run/trained"
        fi
        measure "$run" --model "$run/model"
    done
done
python experiments/demo_rl_table.py "$out"
