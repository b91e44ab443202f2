#!/usr/bin/env bash
# Checks that every shell script names bash in its first line, and that bash can parse it (bash -n, which runs nothing).
# usage: scripts/check_shell.sh [ROOT]
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
cd "${1:-$here/..}"

failed=0
while IFS= read -r -d '' file; do
  [[ $file == *.sh ]] || continue
  if [[ $(head -n 1 "$file") != '#!/usr/bin/env bash' ]]; then
    echo "$file:1: does not begin with '#!/usr/bin/env bash'"
    failed=1
  fi
  bash -n "$file" || failed=1
done < <("$here/list_sources.sh" . text)
exit $failed
