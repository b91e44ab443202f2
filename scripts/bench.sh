#!/usr/bin/env bash
# Runs the benchmarks and writes build/bench/<area>.json. If bench/<area>/run.sh exists, it runs that script with the file as
# its argument; otherwise build/release/bench_<area> --json FILE. Needs a built release preset (`make bench`).
# usage: scripts/bench.sh [AREA [ARGUMENT...]]     no area: all; arguments go to the programs
#        QUICK=1: --quick for all of them
set -euo pipefail
cd "$(dirname "$0")/.."
only=${1:-}
if [[ $# -gt 0 ]]; then shift; fi
if [[ -n ${QUICK:-} && " $* " != *" --quick "* ]]; then set -- --quick "$@"; fi
mkdir -p build/bench

ran=0
for folder in bench/*/; do
  area=$(basename "$folder")
  if [[ $area == support || $area == peers || ( -n $only && $area != "$only" ) ]]; then continue; fi
  out="build/bench/$area.json"
  if [[ -f bench/$area/run.sh ]]; then
    command=(bash "bench/$area/run.sh" "$out")
  elif [[ -x build/release/bench_$area ]]; then
    command=("build/release/bench_$area" --json "$out")
  else
    continue
  fi
  echo "== bench $area -> $out"
  "${command[@]}" "$@"
  ran=$((ran + 1))
done

if [[ $ran -eq 0 ]]; then
  echo "bench: nothing to run${only:+ for '$only'}; areas are: $(ls bench 2>/dev/null | tr '\n' ' ')" >&2
  exit 1
fi
