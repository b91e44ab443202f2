#!/usr/bin/env bash
# Prints the source files of the tree, separated by NUL: files that git tracks, and new files that it does not ignore.
# usage: scripts/list_sources.sh ROOT cpp|text     cpp: C++ and CUDA; text: also scripts, CMake and web files
set -euo pipefail
cd "$1"

case "$2" in
  cpp) patterns=('*.cpp' '*.hpp' '*.cu' '*.cuh' '*.h') ;;
  text) patterns=('*.cpp' '*.hpp' '*.cu' '*.cuh' '*.h' '*.py' '*.sh' '*.cmake' '*.js' '*.css' '*.html'
                  'CMakeLists.txt' 'run') ;;
  *) echo "usage: $0 ROOT cpp|text" >&2; exit 2 ;;
esac

find_names=()
for pattern in "${patterns[@]}"; do find_names+=(-o -name "$pattern"); done

if [[ -e .git ]] && git ls-files >/dev/null 2>&1; then
  specs=()
  for pattern in "${patterns[@]}"; do specs+=(":(glob)**/$pattern"); done
  git ls-files -z --cached --others --exclude-standard -- "${specs[@]}"
else
  find . \( -name build -o -name .git -o -name node_modules \) -prune -o -type f \( "${find_names[@]:1}" \) -printf '%P\0'
fi | sort -zu | while IFS= read -r -d '' file; do
  if [[ -f $file ]]; then printf '%s\0' "$file"; fi   # tracked, but deleted in the working tree: not listed
done
