#!/usr/bin/env bash
# Adapt Qwen2.5-Coder-0.5B-Instruct to blocks of four, and measure it on the way.
#
#   experiments/adaptation.sh MODEL HumanEval.jsonl.gz FOLDER UPDATES …
#
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
python=$(command -v python)

measure() { # name, and options of the model
    "$python" experiments/adaptation.py measure "$folder" --tests "$tests" --name "$@"
}

[ -e "$folder/start-4" ] || "$python" experiments/adaptation.py start "$folder" --model "$model"
measure base --model "$model"
measure 0 --model "$folder/start-4"
for updates in "$@"; do
    "$python" -m jax_lm sft --data "$folder/answers.jsonl" --out "$folder/run" --model "$folder/start-4" \
        --lora-rank 32 --packed --max-length 512 --batch-size 1 --no-remat --held-out-share 0.05 \
        --weighting plain --high-levels --learning-rate 2e-4 --warmup-steps 10 --min-lr-ratio 1 \
        --max-steps 100000 --stop-after "$updates" --save-every 25 --evaluate-every 50 --log-every 5
    cp -r "$folder/run/adapter" "$folder/adapter-$updates"
    measure "$updates" --model "$folder/start-4" --adapter "$folder/adapter-$updates"
done
