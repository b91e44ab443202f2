#!/usr/bin/env bash
# Our bars, then the peers: Open MPI, MPICH and gloo beside what the machine allows, as tables. A peer that is not
# installed is left out and named; nothing else needs them.
# usage: bench/collectives/run.sh OUT.json [ARGUMENT...]   arguments go to our program; with --quick the peers take
#        minutes, not three quarters of an hour. PEERS=0: without them. BUILD=build/cuda names another build folder;
#        RANKS, OPS, ONLY, MAX and others: see bench/peers/run.sh.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
out=$1
shift
status=0
"${BUILD:-build/release}/bench_collectives" --json "$out" "$@" || status=$?   # 1: a bar is short; the peers say by how much
if [[ ${PEERS:-1} == 0 || $status -gt 1 ]]; then exit "$status"; fi

for argument in "$@"; do
  if [[ $argument == --quick ]]; then export QUICK=1; fi
done
OUT=$(dirname "$out")/peers bash "$here/../peers/run.sh"
exit "$status"
