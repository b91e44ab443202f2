#!/usr/bin/env bash
# Checks the first line of scripts, and that bash can parse the shell scripts (bash -n, which runs nothing). A shell script
# names bash. If another file begins with #!, the line is exact: the kernel does not run a script whose interpreter's path
# is damaged, and a formatter for C++ does that to it.
# usage: scripts/check_shell.sh [ROOT]
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
cd "${1:-$here/..}"

failed=0
while IFS= read -r -d '' file; do
  first=
  IFS= read -r first <"$file" || true   # false for a last line without an end; `first` is set nevertheless
  wanted='#!/usr/bin/env bash'
  [[ $file == *.py ]] && wanted='#!/usr/bin/env python3'
  if [[ $first != "$wanted" && ($file == *.sh || $first == '#!'*) ]]; then
    echo "$file:1: does not begin with '$wanted'"
    failed=1
  fi
  if [[ $file == *.sh ]]; then bash -n "$file" || failed=1; fi
done < <("$here/list_sources.sh" . text)
exit $failed
