#!/usr/bin/env bash
# DiffuCoder on a Cloud TPU VM (v5e, four chips). Ask `diffucoder plan` first: it needs no TPU.
set -euo pipefail
NAME=${NAME:-diffucoder} ZONE=${ZONE:?set ZONE, such as us-west4-a} TYPE=${TYPE:-v5litepod-4}

on_all() { gcloud compute tpus tpu-vm ssh "$NAME" --zone "$ZONE" --worker=all --command "$1"; }

gcloud compute tpus tpu-vm create "$NAME" --zone "$ZONE" --accelerator-type "$TYPE" --version v2-alpha-tpuv5-lite
trap 'gcloud compute tpus tpu-vm delete "$NAME" --zone "$ZONE" --quiet' EXIT
# From the checkout that this file lies in: there is no release on a package index yet.
gcloud compute tpus tpu-vm scp --recurse "$(dirname "$0")/.." "$NAME":source --zone "$ZONE" --worker=all
on_all "python3 -m venv venv && venv/bin/pip install -q ./source 'jax[tpu]'"
# --multi-host also holds for slices of one host.
on_all "venv/bin/diffucoder generate --multi-host --model apple/DiffuCoder-7B-Instruct --chat 'Reverse a linked list.'"
