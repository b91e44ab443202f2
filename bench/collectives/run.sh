#!/usr/bin/env bash
# All must-reach lines of the collectives: our own bars, then ours beside the peers (Open MPI, MPICH and gloo) and what
# the machine allows, interleaved, and the lines that compare them. A peer that is not installed is left out and named.
# usage: bench/collectives/run.sh OUT.json [ARGUMENT...]   arguments go to our program. At most 20 minutes on 2 cores;
#        with --quick or QUICK=1 two, with fewer sizes. PEERS=0: without them. BUSY=1: the comparison with peers alone,
#        beside one busy process per core. BUILD=build/cuda names another build
#        folder; RANKS, OPS, STAGES and others: see bench/peers/run.sh. Also written: OUT-peers.json, with BUSY OUT-busy.json.
set -euo pipefail
peers=$(cd "$(dirname "$0")/../peers" && pwd)
out=$1
shift
for argument in "$@"; do
  if [[ $argument == --quick ]]; then export QUICK=1; fi
done
if [[ -n ${QUICK:-} && " $* " != *" --quick "* ]]; then set -- --quick "$@"; fi

if [[ -n ${BUSY:-} ]]; then
  folder=$(dirname "$out")/peers-busy
  OUT=$folder bash "$peers/run.sh"
  exec python3 "$peers/bars.py" "$folder" "${out%.json}-busy.json"
fi
status=0
"${BUILD:-build/release}/bench_collectives" --json "$out" "$@" || status=$?   # 1: a bar is missed; the others are shown, too
if [[ ${PEERS:-1} == 0 || $status -gt 1 ]]; then exit "$status"; fi
folder=$(dirname "$out")/peers
OUT=$folder bash "$peers/run.sh"
python3 "$peers/report.py" "$folder" >"$folder/report.md"
python3 "$peers/bars.py" "$folder" "${out%.json}-peers.json" || status=$?
exit "$status"
