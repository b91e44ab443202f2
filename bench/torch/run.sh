#!/usr/bin/env bash
# torch.distributed on cpu tensors: our backend against Gloo. Then slipstream.offload: on a GPU, and on cpu in a cgroup.
# Skips what cannot run here.
# usage: bench/torch/run.sh OUT.json [--quick]    BUILD=build/other names another build folder
set -euo pipefail
out=$1
shift
export PYTHONPATH="${BUILD:-build/release}/python"
failed=0
first() {   # the first python that can import all of these modules; Debian's torch belongs to /usr/bin/python3
  for python in python3 /usr/bin/python3; do
    if "$python" -c "import $1" 2>/dev/null; then echo "$python"; return; fi
  done
}
python=$(first slipstream.distributed)
if [[ -n $python ]]; then "$python" -B bench/torch/distributed.py "$out" "$@" || failed=1
else echo "BAR torch all - - - - skipped (no torch, or slipstream.distributed is not built)"; fi
python=$(first slipstream,torch)
if [[ -z $python ]]; then
  echo "BAR torch offload - - - - skipped (no torch)"
  exit $failed
fi
if "$python" -c 'import sys, torch; sys.exit(not torch.cuda.is_available())' && "$python" -c 'import transformers' 2>/dev/null; then
  "$python" -B bench/torch/offload.py "${out%.json}-offload.json" "$@" || failed=1
else
  echo "BAR torch offload_gpu - - - - skipped (no GPU, or no transformers)"
fi
"$python" -B bench/torch/offload_cpu.py "${out%.json}-offload-cpu.json" "$@" || failed=1
exit $failed
