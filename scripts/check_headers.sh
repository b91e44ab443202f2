#!/usr/bin/env bash
# check_headers.sh COMPILER: each public header compiles on its own. It names those that do not.
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
