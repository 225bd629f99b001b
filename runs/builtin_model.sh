#!/usr/bin/env bash
# Rebuild the built-in model from nothing, and measure it.
#
#   expect: about an hour on two CPU cores with nothing else running (exact times in the card,
#           jax_lm/assets/builtin/README.md), and the pass@1 that the card states
#
# Takes an output folder; to ship the result, copy its files over jax_lm/assets/builtin.
set -euo pipefail
out=${1:-out/builtin}
time python -m recipes.builtin.train --out "$out"
diffucoder eval builtin --model "$out" --limit 300 --out "$out/evaluation" | tee "$out/evaluation.txt"
