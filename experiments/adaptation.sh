#!/usr/bin/env bash
# Adapt Qwen2.5-Coder-0.5B-Instruct to blocks, and measure it on the way.
#
#   experiments/adaptation.sh MODEL HumanEval.jsonl.gz FOLDER UPDATES …
#   ATTENTION=causal BLOCK=8 experiments/adaptation.sh MODEL HumanEval.jsonl.gz FOLDER UPDATES …
#   FROM=ADAPTER ATTENTION=causal experiments/adaptation.sh MODEL HumanEval.jsonl.gz FOLDER UPDATES …
#
#   By default blocks of four, with attention to whole blocks. FROM goes on with the adapters of a run
#   with causal blocks, on masks alone, as drafts that the base verifies.
#   expect: half a minute of a core an update, minutes a measure, 8 GB of memory. A run that was ended goes on.
#
# Laid down before its run: docs/results/adaptation. The answers that it learns from are made before:
#
#   python experiments/adaptation.py prompts FOLDER --model MODEL --tests HumanEval.jsonl.gz mbpp.jsonl
#   python experiments/adaptation.py answers FOLDER --model MODEL    # ends at Ctrl-C
set -euo pipefail
cd "$(dirname "$0")/.."
model=$1 tests=$2 folder=$3
shift 3
attention=${ATTENTION:-blocks} block=${BLOCK:-4}
start="$folder/start-$block"
[ "$attention" = blocks ] || start+="-$attention"
run="$folder/run-$block-$attention${FROM:+-drafts}"
trained=(--lora-rank 32 --high-levels) measured=()
[ -z "${FROM:-}" ] || trained=(--adapter "$FROM" --lora-on-masks --minimum-level 0.97) \
    measured=(--draft $((block - 1)))
python=$(command -v python)

measure() { # name, and options of the model
    "$python" experiments/adaptation.py measure "$folder" --tests "$tests" --name "$@"
}

[ -e "$start" ] || "$python" experiments/adaptation.py start "$folder" --model "$model" \
    --block-length "$block" --attention "$attention"
[ -n "${FROM:-}" ] || { measure base --model "$model"; measure "$block-$attention-0" --model "$start"; }
for updates in "$@"; do
    "$python" -m jax_lm sft --data "$folder/answers.jsonl" --out "$run" --model "$start" \
        "${trained[@]}" --packed --max-length 512 --batch-size 1 --no-remat --held-out-share 0.05 \
        --weighting plain --learning-rate 2e-4 --warmup-steps 10 --min-lr-ratio 1 \
        --max-steps 100000 --stop-after "$updates" --save-every 25 --evaluate-every 50 --log-every 5
    cp -r "$run/adapter" "$run/adapter-$updates"
    measure "$(basename "$run")-$updates" --model "$start" --adapter "$run/adapter-$updates" "${measured[@]}"
done
