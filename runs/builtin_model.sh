#!/usr/bin/env bash
# Rebuild the built-in model from nothing, and measure it.
#
#   expect: EXPECTED_TIME (the card, jax_lm/assets/builtin/README.md, has the times), and the numbers that the card
#           states; the same command continues a run that was ended
#
# Takes an output folder, and options of the recipe; to ship the result, copy its files over jax_lm/assets/builtin.
set -euo pipefail
out=${1:-out/builtin}
time python -m recipes.builtin.train --out "$out" "${@:2}"
diffucoder eval builtin --model "$out" --limit 300 --out "$out/evaluation" | tee "$out/evaluation.txt"
python -m recipes.builtin.measure --model "$out" --out "$out/measured.json" | tee "$out/measured.txt"
python -m recipes.builtin.overlap | tee "$out/overlap.txt"
