#!/usr/bin/env bash
# Two ranks on one GPU: ours against NCCL and Gloo in PyTorch. Skips where there is no GPU.
# usage: bench/gpu_ranks/run.sh OUT.json [--quick]    BUILD=build/cuda names another build folder
set -euo pipefail
if ! { command -v nvidia-smi >/dev/null && nvidia-smi -L >/dev/null 2>&1; }; then
  echo "BAR gpu_ranks all - - - - skipped (no GPU)"
  exit 0
fi
build=${BUILD:-build/release}
status=0
python3 bench/gpu_ranks/compare.py "$build/slip" "$@" || status=$?
shift
python3 bench/gpu_ranks/ddp.py "$build/slip" "$build/slipstream/libnccl.so.2" "$@" || status=$?
exit "$status"
