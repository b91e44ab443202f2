#!/usr/bin/env bash
# Runs a script of this folder with node; the first time, fetches what it needs. Status 77: it cannot run here.
# usage: tests/page/run.sh SCRIPT.js [ARGUMENT...]
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)

skip() { echo "skipped: $1"; exit 77; }

command -v node >/dev/null || skip "no node here (Debian: apt-get install nodejs npm)"
wanted=$(sha256sum "$here/package-lock.json" | cut -c1-64)
stamp="$here/node_modules/.slip-lock"
if [[ ! -f $stamp || $(<"$stamp") != "$wanted" ]]; then
  command -v npm >/dev/null || skip "no npm here (Debian: apt-get install npm)"
  # Two programs at once would fetch into one folder.
  exec 9>"$here/.npm-lock"
  flock 9
  if [[ ! -f $stamp || $(<"$stamp") != "$wanted" ]]; then
    said=$(cd "$here" && npm ci --ignore-scripts --no-audit --no-fund 2>&1) ||
      skip "npm ci in tests/page failed: $(grep -m1 'error' <<<"$said" || tail -n 1 <<<"$said")"
    printf '%s' "$wanted" >"$stamp"
  fi
  exec 9>&-
fi
script=$1
shift
exec node "$here/$script" "$@"
