#!/usr/bin/env bash
# The demonstration of `make run`: runs a model with all of its weights in memory, then in a third of that memory.
# usage: scripts/demo.sh   (needs build/release/slip; writes only to build/demo)
set -euo pipefail
cd "$(dirname "$0")/.."
slip=build/release/slip
demo=build/demo
model=$demo/model

say() { printf '\n== %s\n' "$*"; }

mkdir -p "$demo"
if [[ ! -d $model ]]; then
  say "$slip model stack --blocks 8 -o $model   (once)"
  rm -rf "$model.part"   # of a call that was interrupted
  "$slip" model stack --blocks 8 -o "$model.part"
  mv "$model.part" "$model"
fi
weights=$(stat -c %s "$model"/*.safetensors | awk '{ sum += $1 } END { print sum }')
budget=$((weights / 3))

say "$slip run $model --budget $budget --check --html $demo/run.html   (a third of the weights)"
"$slip" run "$model" --budget "$budget" --check --html "$demo/run.html"

cat <<END

The first row of the table ran with all weights in memory, the second with a third of them. Both computed the same bits.
$demo/run.html shows the run and, below it, the predicted time of each op. To try next:

  $slip lab weights --device sim:h200    the same with four additions, on a simulated H200
  $slip lab                              runs all experiments
  $slip bench weights $model    compares runs with less and less memory
END
