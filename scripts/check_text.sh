#!/usr/bin/env bash
# Checks the text of sources: no line over 140 characters, no tab, no space at the end of a line, no note about work that is
# left, and a newline at the end of the file.
# usage: scripts/check_text.sh [ROOT]
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
cd "${1:-$here/..}"
export LC_ALL=C.UTF-8

mapfile -d '' -t files < <("$here/list_sources.sh" . text)
if [[ ${#files[@]} -eq 0 ]]; then exit 0; fi

failed=0
# refuse PATTERN MESSAGE: prints file:line for each match.
refuse() {
  local hits
  if hits=$(grep -nHPo "$1" -- "${files[@]}"); then
    awk -F: -v message="$2" '{ print $1 ":" $2 ": " message }' <<<"$hits"
    failed=1
  fi
}
refuse '^.{141,}$' 'line over 140 characters'
refuse '\t' 'tab'
refuse '[ \r]+$' 'space or carriage return at the end of the line'
refuse '\b(TO''DO|FIX''ME)\b' 'note left in the source: do it, or open an issue'

for file in "${files[@]}"; do
  if [[ -s $file && -n $(tail -c 1 -- "$file") ]]; then
    echo "$file: no newline at the end"
    failed=1
  fi
done
exit "$failed"
