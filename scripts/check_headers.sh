#!/usr/bin/env bash
# Checks that each public header compiles on its own, and prints the names of those that do not.
# usage: scripts/check_headers.sh COMPILER
set -euo pipefail
cd "$(dirname "$0")/.."
export COMPILER=$1
check() {
  "$COMPILER" -std=c++20 -fsyntax-only -Wall -Wextra -Werror -Iinclude -include "$1" -x c++ /dev/null && return
  echo "$1 does not compile on its own"
  exit 1
}
export -f check
find include -name '*.hpp' | sort | xargs -P 2 -I{} bash -c 'check {}'
