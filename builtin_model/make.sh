#!/usr/bin/env bash
# Train the built-in model from nothing, and measure it.
#
#   expect: 24,000 updates of 4,096 tokens, 1.2 s each on two cores where it was measured (an AMD EPYC of 2025): eight
#           hours; then an hour of measuring. The same command continues a run that was ended.
#
# Takes an output folder, and options of the recipe; to ship the result, copy its files over jax_lm/assets/builtin.
set -euo pipefail
out=${1:-out/builtin}
time python -m builtin_model.train --out "$out" "${@:2}"
diffucoder eval builtin --model "$out" --limit 300 --out "$out/evaluation" | tee "$out/evaluation.txt"
python -m builtin_model.measure --model "$out" --out "$out/measured.json" | tee "$out/measured.txt"
python -m builtin_model.overlap | tee "$out/overlap.txt"
