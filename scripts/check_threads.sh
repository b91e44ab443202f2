#!/usr/bin/env bash
# Checks the thread-safety annotations of src/ with clang: whoever uses a member that a mutex guards must hold the mutex.
# Compiles nothing; about 2 s of processor time a source. `make tidy` checks far more and takes far longer.
# usage: scripts/check_threads.sh
set -euo pipefail
cd "$(dirname "$0")/.."
scripts/setup.sh tidy

work=build/threads
mkdir -p "$work"
# The same headers as cmake/precompile.cmake, so that each source parses them once.
sed -n '/^set(slip_common_headers/,/)$/p' cmake/precompile.cmake | grep -oE '<[a-z_./]+>' | sed 's/^/#include /' > "$work/common.hpp"
flags=(-std=c++20 -DFMT_SHARED -Wno-unknown-warning-option)
clang++ "${flags[@]}" -x c++-header "$work/common.hpp" -o "$work/common.pch"
find src -name '*.cpp' -not -path '*/cuda/*' -not -path 'src/comm/reduce/*' -print0 |
  xargs -0 -P "$(nproc)" -n 8 clang++ "${flags[@]}" -include-pch "$work/common.pch" -Isrc -Iinclude \
    -DSLIP_VERSION='""' -fsyntax-only -Wthread-safety -Werror=thread-safety
echo "check_threads: ok"
