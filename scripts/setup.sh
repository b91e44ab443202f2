#!/usr/bin/env bash
# Installs the packages that the build needs and that are missing.
#
# usage: scripts/setup.sh [build|test|tidy|bench]  build (default): packages to build and run the program. The other groups
#                                                  contain these, too. test: browser, shells and networks for the tests;
#                                                  tidy: clang and clang-tidy; bench: MPI and Gloo, for comparison. No
#                                                  other script installs the group bench
#        scripts/setup.sh --list                   prints the packages, and why each is needed
#
# On Debian, the script asks dpkg which packages are installed, and installs the others with apt-get, as root or with a sudo
# that needs no password. On other systems, and if nothing can be installed, it looks for the tools and headers themselves,
# and succeeds if the necessary ones exist. A stamp file in build/ makes the second call fast.
set -euo pipefail
cd "$(dirname "$0")/.."

# package | the tool, header, library or Python module that it contains | need: the build fails without it; want: the build
# leaves something out | why
build_packages=(
  'make|cmd:make|need|make run, make test'
  'g++|cmd:g++|need|the C++20 compiler'
  'cmake|cmd:cmake|need|configures the build; also ctest'
  'ninja-build|cmd:ninja|need|runs the build'
  'libfmt-dev|hdr:fmt/core.h|need|text formatting in the library'
  'libcli11-dev|hdr:CLI/CLI.hpp|need|command line of the slip program'
  'nlohmann-json3-dev|hdr:nlohmann/json.hpp|need|JSON: device descriptions, plans, traces'
  'libgtest-dev|hdr:gtest/gtest.h|need|the tests'
  'python3|cmd:python3|need|layer and size checks, run by the tests'
  'libhwloc-dev|hdr:hwloc.h|want|the machine as a graph'
  'libucx-dev|hdr:ucp/api/ucp.h|want|networks faster than TCP between hosts'
  'zlib1g-dev|hdr:zlib.h|want|traces compressed with gzip'
  'liburing-dev|hdr:liburing.h|want|many reads of weight files in flight'
  'libopenblas0-pthread|lib:libopenblas.so.0|want|matrix products on the cpu'
  'libtbb-dev|hdr:tbb/flow_graph.h|want|the peer that the stream benchmarks compare with'
  'clang-format|cmd:clang-format|want|the format check, run by the tests'
  'git|cmd:git|want|tells the checks which files are ours'
  'python3-dev|cmd:python3-config|want|the Python package: headers of the interpreter'
  'pybind11-dev|cmd:pybind11-config|want|the Python package: C++ for Python'
  'python3-numpy|py:numpy|want|arrays in the tests of the Python package'
  'pkg-config|cmd:pkg-config|want|the test of the installed pkg-config file'
)
test_packages=(
  'chromium|any:chromium|want|the tests of the timeline page'
  'nodejs|any:node|want|drives the browser in these tests'
  'libfabric-dev|hdr:rdma/fi_tagged.h|want|a network plug-in for the tests'
  'npm|any:npm|want|fetches playwright-core for these tests'
  'openmpi-bin|any:mpirun|want|starts ranks in the tests of launchers'
  'mpich|any:mpiexec.mpich|want|starts ranks in these tests, too'
  'openssh-client|any:ssh|want|reaches the hosts in the tests of slip launch --hosts'
  'openssh-server|any:sshd|want|runs on these hosts, which are network namespaces; see by_dpkg'
  'iproute2|any:ip|want|makes these hosts'
  'python3-torch|py:torch|want|the tests of the backend of torch.distributed'
  'libtorch-dev|hdr:torch/csrc/distributed/c10d/Work.hpp|want|builds that backend'
)
tidy_packages=(
  'clang|cmd:clang++|need|the compiler with thread-safety analysis, and of the builds with sanitizers'
  'clang-tidy|cmd:clang-tidy|need|naming and bug-pattern checks'
)
bench_packages=(
  'openmpi-bin|cmd:mpirun.openmpi|want|runs a peer of the collectives benchmark'
  'libopenmpi-dev|cmd:mpicxx.openmpi|want|builds it'
  'mpich|cmd:mpiexec.mpich|want|runs another one; both go side by side'
  'libmpich-dev|cmd:mpicxx.mpich|want|builds it'
  'libgloo-dev|hdr:gloo/allreduce.h|want|a third peer'
)

packages=("${build_packages[@]}")
case "${1:-build}" in
  build) group=build ;;
  test) group=test; packages+=("${test_packages[@]}") ;;
  tidy) group=tidy; packages+=("${tidy_packages[@]}") ;;
  bench) group=bench; packages+=("${bench_packages[@]}") ;;
  --list)
    for row in "${build_packages[@]}" "${test_packages[@]}" "${tidy_packages[@]}" "${bench_packages[@]}"; do
      IFS='|' read -r package _ _ why <<<"$row"
      printf '%-20s %s\n' "$package" "$why"
    done
    exit 0 ;;
  *) echo "usage: $0 [build|test|tidy|bench|--list]" >&2; exit 2 ;;
esac

stamp="build/.setup-$group-$(printf '%s\n' "${packages[@]}" | sha256sum | cut -c1-16)"
if [[ -e $stamp ]]; then
  exit 0
fi

is_debian() { [[ -r /etc/os-release ]] && (. /etc/os-release && [[ ${ID:-} == debian ]]) && command -v dpkg-query >/dev/null; }

installed() { [[ $(dpkg-query -W -f='${db:Status-Status}' "$1" 2>/dev/null) == installed ]]; }

# Whether the tool, header, library or module is usable, from whatever package it comes.
usable() {
  case "$1" in
    cmd:* | any:*) command -v "${1#*:}" >/dev/null ;;
    lib:*) [[ -n $(g++ -print-file-name="${1#lib:}" | grep /) ]] ;;
    py:*) /usr/bin/python3 -c "import ${1#py:}" >/dev/null 2>&1 ;;
    hdr:*) echo "#include <${1#hdr:}>" | g++ -std=c++20 -E -x c++ - >/dev/null 2>&1 ;;
  esac
}

# by_dpkg PACKAGE PROBE, by_probe PACKAGE PROBE: whether a package counts as installed. A tool from another source (any:) is
# not replaced by Debian's package; npm would replace node. Where systemd runs, the package of sshd would open the machine to
# logins, so it is not installed there.
by_dpkg() {
  case "$2" in
    any:sshd) usable "$2" || [[ -d /run/systemd/system ]] ;;
    any:npm) usable "$2" || { usable any:node && ! installed nodejs; } ;;
    any:*) installed "$1" || usable "$2" ;;
    *) installed "$1" ;;
  esac
}
by_probe() { usable "$2"; }
# find_missing TEST: sets missing and missing_needed to the packages for which TEST (by_dpkg or by_probe) fails.
find_missing() {
  missing=() missing_needed=()
  local row package probe level
  for row in "${packages[@]}"; do
    IFS='|' read -r package probe level _ <<<"$row"
    if ! "$1" "$package" "$probe"; then
      missing+=("$package")
      if [[ $level == need ]]; then missing_needed+=("$package"); fi
    fi
  done
}

finish() { mkdir -p build && touch "$stamp"; exit 0; }

if is_debian; then find_missing by_dpkg; else find_missing by_probe; fi
if [[ ${#missing[@]} -eq 0 ]]; then finish; fi

as_root=()
can_install=no
if command -v apt-get >/dev/null; then
  if [[ $(id -u) -eq 0 ]]; then
    can_install=yes
  elif command -v sudo >/dev/null && sudo -n true 2>/dev/null; then
    can_install=yes as_root=(sudo -n)
  fi
fi
# On a system that is not Debian, packages are installed only if the build would fail without them.
if ! is_debian && [[ ${#missing_needed[@]} -eq 0 ]]; then can_install=no; fi

if [[ $can_install == yes ]]; then
  echo "setup: installing ${missing[*]}"
  apt=("${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get)
  "${apt[@]}" update -qq || echo "setup: apt-get update failed; trying with the lists at hand" >&2
  install=("${apt[@]}" install -y -qq -o Dpkg::Use-Pty=0 --no-install-recommends)
  if "${install[@]}" "${missing[@]}" >/dev/null; then finish; fi
  echo "setup: apt-get could not install them all" >&2
  # If a package that is only wanted cannot be installed, those that are needed are still installed.
  if [[ ${#missing_needed[@]} -gt 0 ]]; then "${install[@]}" "${missing_needed[@]}" >/dev/null || true; fi
fi

find_missing by_probe
if [[ ${#missing_needed[@]} -eq 0 ]]; then
  if [[ ${#missing[@]} -gt 0 ]]; then
    echo "setup: going on without ${missing[*]}; what needs them is left out"
  fi
  finish
fi
echo "setup: this machine lacks ${missing_needed[*]}. On Debian or Ubuntu, install with:" >&2
echo "  sudo apt-get update && sudo apt-get install -y --no-install-recommends ${missing[*]}" >&2
exit 1
