#!/usr/bin/env bash
# What `make run` shows: a model run with all of its weights in memory, then in a third of what they take.
# usage: scripts/demo.sh   (needs build/release/slip; everything it writes is in build/demo)
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

The first row of the table had all weights in memory, the second a third of that; both computed the same bits.
$demo/run.html shows the run, and under it what was predicted, op by op. To try next:

  $slip lab weights --device sim:h200    the idea in four additions, on a simulated H200
  $slip lab                              all experiments: what overlaps, what blocks, what it costs
  $slip bench weights $model    less and less memory, side by side
END
