#!/usr/bin/env bash
# run.sh - builds every bench program here and measures all libraries in one
# run, interleaved: repetition 1 of every configuration, then repetition 2, ...
# so that a noisy period of the machine does not fall on one library only.
#
#   ./run.sh                       everything (about 45 minutes on 2 cores)
#   QUICK=1 ./run.sh               1 repetition, short budgets, up to 16 MiB
#   ONLY='gloo|limit' ./run.sh     configurations whose name matches
#   OPS=allreduce,bcast ./run.sh   some operations
#
# Environment: REPS RANKS BUDGET_MS MIN MAX FACTOR OPS ONLY OUT CEIL(=0: skip)
# Needs (Debian 12): g++ libgloo-dev openmpi-bin libopenmpi-dev mpich
# libmpich-dev python3. A library that is missing is skipped.
#
# To add a library: write <lib>_bench.cpp like limit_bench.cpp (it needs a list
# of OpImpl; see bench_common.h), build it below, and add a `cfg` line.
set -u
here=$(cd "$(dirname "$0")" && pwd)
OUT=${OUT:-$here/../../build/bench/peers}
if [ -n "${QUICK:-}" ]; then : "${REPS:=1}" "${BUDGET_MS:=40}" "${MAX:=16M}"; fi
REPS=${REPS:-3} RANKS=${RANKS:-2 4} BUDGET_MS=${BUDGET_MS:-100}
MIN=${MIN:-8} MAX=${MAX:-256M} FACTOR=${FACTOR:-8} OPS=${OPS:-all} ONLY=${ONLY:-.} CEIL=${CEIL:-1}
LIMIT_S=${LIMIT_S:-400}   # seconds per launch
bin=$OUT/bin; mkdir -p "$bin"; OUT=$(cd "$OUT" && pwd); bin=$OUT/bin
res=$OUT/results.tsv; ceil=$OUT/ceilings.tsv; log=$OUT/log.txt
: >"$res"; : >"$ceil"; : >"$log"

cxx="-O3 -mcpu=native -std=c++17 -w"
[ "$(uname -m)" = x86_64 ] && cxx="-O3 -march=native -std=c++17 -w"
build() { echo "build $1" >&2; shift; "$@" >>"$log" 2>&1 || echo "  failed: see $log" >&2; }
has_header() { echo "#include <$1>" | g++ -E -x c++ - >/dev/null 2>&1; }
lacks() { echo "$1 is left out: install $2 (scripts/setup.sh bench)" | tee -a "$log" >&2; }
rm -f "$bin"/*   # a library removed since must not be measured
build limit    g++ $cxx "$here/limit_bench.cpp" -o "$bin/limit" -pthread
build ceilings g++ $cxx "$here/ceilings.cpp" -o "$bin/ceilings" -pthread
if has_header gloo/allreduce.h; then
  build gloo     g++ $cxx "$here/gloo_bench.cpp" -o "$bin/gloo" -lgloo -pthread
else lacks gloo libgloo-dev; fi
if command -v mpicxx.openmpi mpirun.openmpi >/dev/null; then
  build openmpi  mpicxx.openmpi $cxx "$here/mpi_bench.cpp" -o "$bin/openmpi"
else lacks 'Open MPI' 'openmpi-bin libopenmpi-dev'; fi
if command -v mpicxx.mpich mpiexec.mpich >/dev/null; then
  build mpich    mpicxx.mpich $cxx "$here/mpi_bench.cpp" -o "$bin/mpich"
else lacks MPICH 'mpich libmpich-dev'; fi

slip=${BUILD:-$here/../../build/release}/bench_peers_slip
[ -x "$slip" ] || lacks Slipstream "it: cmake --build build/release --target bench_peers_slip"

export BENCH_CTL=/dev/shm/peers_ctl.$$
store=$OUT/store.$$
cleanup() { rm -rf "$BENCH_CTL" "$store"; }
trap cleanup EXIT

# cfg NAME OPS command...: one launch. The common options are appended.
cfg() {
  local name=$1 ops=$2; shift 2
  [[ $name.$n =~ $ONLY ]] || return 0
  [ "$OPS" != all ] && ops=$OPS
  cleanup
  local t0=$SECONDS
  timeout -k 5 "$LIMIT_S" "$@" --ops "$ops" --min "$MIN" --max "$MAX" --factor "$FACTOR" \
      --budget-ms "$BUDGET_MS" 2>>"$log" | sed -n "s/^ROW\t/$rep\t/p" >>"$res"
  echo "rep $rep ranks $n $name rc=${PIPESTATUS[0]} $((SECONDS - t0))s load $(cut -d' ' -f1 /proc/loadavg)" | tee -a "$log" >&2
}
ompi="mpirun.openmpi --allow-run-as-root --oversubscribe --bind-to none --mca btl_base_warn_component_unused 0"
ob1="--mca pml ob1"
ucx="--mca pml ucx --mca pml_ucx_tls any --mca pml_ucx_devices any"
mpich="mpiexec.mpich -launcher fork -bind-to none"
# Both MPIs malloc a temporary buffer in every large reducing call; above 32 MiB
# glibc maps and unmaps it each time, and page faults take most of the time.
# "keep": malloc keeps the memory. Not a default, but a fair strong peer.
keep="env MALLOC_MMAP_THRESHOLD_=4294967296 MALLOC_TRIM_THRESHOLD_=17179869184"
keepx="-x MALLOC_MMAP_THRESHOLD_ -x MALLOC_TRIM_THRESHOLD_"
coll=allreduce,allreduce_ip,bcast,allgather,reduce_scatter,alltoall

all_configs() {  # uses $n
  # What the machine allows.
  [ -x "$bin/limit" ] && {
    cfg limit.shm  all "$bin/limit" --kind shm  --ranks $n --lib limit --transport shm
    cfg limit.copy all "$bin/limit" --kind copy --stage 524288 --ranks $n --lib limit --transport shm-copy
    cfg limit.tcp  all "$bin/limit" --kind tcp  --ranks $n --lib limit --transport tcp
  }
  # Open MPI: shared memory with kernel copies (CMA, its default), without, and
  # through UCX; shared memory collectives; TCP on loopback, own and UCX's.
  [ -x "$bin/openmpi" ] && {
    m="$bin/openmpi --lib openmpi"
    cfg openmpi.shm       all $ompi -np $n $ob1 --mca btl self,vader $m --transport shm
    cfg openmpi.shm-nocma all $ompi -np $n $ob1 --mca btl self,vader --mca btl_vader_single_copy_mechanism none \
        $m --transport shm --variant nocma
    cfg openmpi.shm-ucx   all $ompi -np $n $ucx -x UCX_TLS=self,sm $m --transport shm --variant ucx
    cfg openmpi.shm-sm    allreduce,bcast,barrier $ompi -np $n $ob1 --mca btl self,vader --mca coll_sm_priority 100 \
        $m --transport shm --variant coll_sm
    cfg openmpi.shm-tuned "$coll" $keep $ompi -np $n $keepx $ob1 --mca btl self,vader --mca btl_vader_single_copy_mechanism none \
        $m --transport shm --variant nocma+keep
    cfg openmpi.tcp-tuned "$coll" $keep $ompi -np $n $keepx $ob1 --mca btl self,tcp --mca btl_tcp_if_include lo \
        $m --transport tcp --variant keep
    cfg openmpi.tcp       all $ompi -np $n $ob1 --mca btl self,tcp --mca btl_tcp_if_include lo $m --transport tcp
    cfg openmpi.tcp-ucx   all $ompi -np $n $ucx -x UCX_TLS=self,tcp -x UCX_NET_DEVICES=lo $m --transport tcp --variant ucx
  }
  # MPICH (Debian: ch4:ucx): its own shared memory; UCX shared memory; UCX TCP.
  [ -x "$bin/mpich" ] && {
    m="$bin/mpich --lib mpich"
    cfg mpich.shm     all $mpich -n $n $m --transport shm
    cfg mpich.shm-ucx all env MPIR_CVAR_NOLOCAL=1 UCX_TLS=self,sm $mpich -n $n $m --transport shm --variant ucx
    # Never yields: with more ranks than cores every step costs a 4 ms time slice.
    [ $n -le $(nproc) ] && {
      cfg mpich.shm-tuned "$coll" $keep $mpich -n $n $m --transport shm --variant keep
      cfg mpich.tcp-tuned "$coll" $keep MPIR_CVAR_NOLOCAL=1 UCX_TLS=self,tcp UCX_NET_DEVICES=lo $mpich -n $n \
          $m --transport tcp --variant keep
    }
    cfg mpich.tcp     all env MPIR_CVAR_NOLOCAL=1 UCX_TLS=self,tcp UCX_NET_DEVICES=lo $mpich -n $n $m --transport tcp
  }
  # gloo over TCP. Pinning hurts its async mode (device thread and caller on
  # one core), so that one runs unpinned.
  [ -x "$bin/gloo" ] && {
    g="$bin/gloo --ranks $n --lib gloo --transport tcp --store $store"
    cfg gloo.async    all $g --mode async --pin 0 --variant async
    cfg gloo.sync     all $g --mode sync --pin $((n <= $(nproc))) --variant sync
    cfg gloo.busypoll all $g --mode busypoll --variant busypoll
  }
  # Slipstream: buffers private, where the other ranks can reach them, and over TCP.
  [ -x "$slip" ] && {
    cfg slip.shm all "$slip" --ranks $n --lib slip --transport shm
    cfg slip.registered all "$slip" --registered --ranks $n --lib slip --transport shm --variant registered
    cfg slip.tcp all env SLIP_TRANSPORT=net "$slip" --ranks $n --lib slip --transport tcp
  }
  # Add a new library here.
}

{
  echo "# $(uname -srm), $(nproc) cores, $(lscpu | sed -n 's/^Model name: *//p')"
  echo "# $(mpirun.openmpi --version 2>/dev/null | head -1); \
$(mpichversion 2>/dev/null | sed -n 's/^MPICH Version:[ \t]*/MPICH /p;s/^MPICH Device:[ \t]*//p' | xargs); \
gloo $(dpkg-query -W -f='${Version}' libgloo-dev 2>/dev/null)"
  echo "# reps $REPS, budget $BUDGET_MS ms per point, started $(date -u +%FT%TZ), load $(cut -d' ' -f1-3 /proc/loadavg)"
} | tee "$OUT/header.txt" >&2

for rep in $(seq "$REPS"); do
  if [ "$CEIL" = 1 ] && [ -x "$bin/ceilings" ]; then
    "$bin/ceilings" ${QUICK:+--quick} | sed "s/^CEIL\t/$rep\t/" >>"$ceil"
    echo "rep $rep ceilings done" >&2
  fi
  for n in $RANKS; do all_configs; done
done
python3 "$here/report.py" "$OUT" | tee "$OUT/report.md"
