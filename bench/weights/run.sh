#!/usr/bin/env bash
# Profiles in a process of its own, runs the Python peers where they are, then the bars.
# usage: bench/weights/run.sh OUT.json [ARGUMENT...]    BUILD=build/cuda names another build folder
set -euo pipefail
out=$1
shift
build=${BUILD:-build/release}
folder=$(dirname "$out")
mkdir -p "$folder"
if command -v nvidia-smi >/dev/null && nvidia-smi -L >/dev/null 2>&1; then
  "$build/bench_weights" --profile "$folder/weights-costs.json"
  if python3 -c 'import torch' 2>/dev/null; then
    python3 bench/weights/torch_peers.py "$folder/weights-torch.json"
  fi
fi
SLIP_BENCH_COSTS="$folder/weights-costs.json" SLIP_BENCH_TORCH="$folder/weights-torch.json" \
  "$build/bench_weights" --json "$out" "$@"
