#!/usr/bin/env bash
# torch.distributed on cpu tensors: our backend against Gloo. Skips where the extension was not built.
# usage: bench/torch/run.sh OUT.json [--quick]    BUILD=build/other names another build folder
set -euo pipefail
export PYTHONPATH="${BUILD:-build/release}/python"
for python in python3 /usr/bin/python3; do   # Debian's torch belongs to the latter
  if "$python" -c 'import slipstream.distributed' 2>/dev/null; then
    exec "$python" -B bench/torch/distributed.py "$@"
  fi
done
echo "BAR torch all - - - - skipped (no torch, or slipstream.distributed is not built)"
