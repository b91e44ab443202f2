#!/usr/bin/env bash
# run.sh - builds every bench program here and measures all libraries in one run, interleaved: stages of operations and
# sizes, in each stage every configuration in turn, and all stages again, in the other order, while there is time. So a
# noisy period of the machine does not fall on one library only.
#
#   ./run.sh                          what the bars need, begun within LIMIT_S seconds (15 minutes)
#   QUICK=1 ./run.sh                  few sizes, no large ones: about 90 seconds
#   STAGES=tables ./run.sh            every operation and configuration, also those that never win: about an hour
#   CONFIGS='gloo|limit' ./run.sh     configurations whose name (openmpi.shm.2: the last is the ranks) matches
#   OPS=allreduce,bcast ./run.sh      some operations
#   BUSY=1 ./run.sh                   the same beside one busy process per core, which it starts and ends
#
# Environment: STAGES RANKS BUDGET_MS LIMIT_S REPS OPS CONFIGS BUSY OUT, EXTRA=1: configurations that never win, too,
# CEIL=1: what memory, locks and sockets of the machine allow
# Needs (Debian 12): g++ libgloo-dev openmpi-bin libopenmpi-dev mpich libmpich-dev python3. A library that is missing is
# left out, and named.
#
# To add a library: write <lib>_bench.cpp like limit_bench.cpp (it needs a list of OpImpl; see bench_common.h), build it
# below, and add a `cfg` line.
set -u
here=$(cd "$(dirname "$0")" && pwd)
OUT=${OUT:-$here/../../build/bench/peers}
# A busy process keeps a core for up to 4 ms at a time: within 10 ms a configuration meets one such slice, or none.
if [ -n "${BUSY:-}" ]; then : "${BUDGET_MS:=100}"; [ -z "${QUICK:-}" ] || : "${LIMIT_S:=300}"; fi
if [ -n "${QUICK:-}" ]; then
  : "${BUDGET_MS:=10}" "${LIMIT_S:=75}" "${STAGES:=quick-reduce quick-move quick-tcp}" "${REPS:=3}"
fi
if [ "${STAGES:-}" = tables ]; then : "${LIMIT_S:=7200}" "${REPS:=3}" "${LAUNCH_S:=400}" "${CEIL:=1}" "${BUDGET_MS:=100}" "${EXTRA:=1}"; fi
# Small sizes vary more and take less: twice in a round.
smalls="small-reduce small-move small-tcp"
STAGES=${STAGES:-$smalls large-reduce large-move $smalls large-tcp}
RANKS=${RANKS:-2 4} BUDGET_MS=${BUDGET_MS:-40} LIMIT_S=${LIMIT_S:-900} REPS=${REPS:-5}
OPS=${OPS:-} CONFIGS=${CONFIGS:-.} CEIL=${CEIL:-0}
LAUNCH_S=${LAUNCH_S:-90}   # one launch at most
GRACE_S=${GRACE_S:-120}
bin=$OUT/bin; mkdir -p "$bin"; OUT=$(cd "$OUT" && pwd); bin=$OUT/bin
res=$OUT/results.tsv; ceil=$OUT/ceilings.tsv; log=$OUT/log.txt
: >"$res"; : >"$ceil"; : >"$log"

cxx="-O3 -mcpu=native -std=c++17 -w"
[ "$(uname -m)" = x86_64 ] && cxx="-O3 -march=native -std=c++17 -w"
# build NAME SOURCE COMPILER [OPTION...]: unless it is newer than all sources.
build() {
  local name=$1 source=$2; shift 2
  [ -x "$bin/$name" ] && [ -z "$(find "$here" -name '*.h' -newer "$bin/$name")" ] && [ "$bin/$name" -nt "$here/$source" ] && return
  echo "build $name" >&2
  "$1" $cxx "$here/$source" -o "$bin/$name" "${@:2}" >>"$log" 2>&1 || { echo "  failed: see $log" >&2; rm -f "$bin/$name"; }
}
has_header() { echo "#include <$1>" | g++ -E -x c++ - >/dev/null 2>&1; }
# A library removed since must not be measured.
lacks() { rm -f "$bin/$1"; echo "$2 is left out: install $3 (scripts/setup.sh bench)" | tee -a "$log" >&2; }
build limit limit_bench.cpp g++ -pthread
[ "$CEIL" = 1 ] && build ceilings ceilings.cpp g++ -pthread
if has_header gloo/allreduce.h; then build gloo gloo_bench.cpp g++ -lgloo -pthread; else lacks gloo gloo libgloo-dev; fi
if command -v mpicxx.openmpi >/dev/null && command -v mpirun.openmpi >/dev/null; then build openmpi mpi_bench.cpp mpicxx.openmpi
else lacks openmpi 'Open MPI' 'openmpi-bin libopenmpi-dev'; fi
if command -v mpicxx.mpich >/dev/null && command -v mpiexec.mpich >/dev/null; then build mpich mpi_bench.cpp mpicxx.mpich
else lacks mpich MPICH 'mpich libmpich-dev'; fi
slip=${BUILD:-$here/../../build/release}/bench_peers_slip
[ -x "$slip" ] || lacks slip Slipstream "it: cmake --build build/release --target bench_peers_slip"

export BENCH_CTL=/dev/shm/peers_ctl.$$
store=$OUT/store.$$
cleanup() { rm -rf "$BENCH_CTL" "$store"; }
busy=()
end_busy() { [ ${#busy[@]} -eq 0 ] || kill "${busy[@]}" 2>/dev/null; }
trap 'end_busy; cleanup' EXIT
# One process per core that this one may use, pinned to it, at the same priority; each ends with this script, however that ends.
if [ -n "${BUSY:-}" ]; then
  cores=$(python3 -c 'import os; print(*sorted(os.sched_getaffinity(0)))')
  for core in $cores; do
    taskset -c "$core" bash -c "while kill -0 $$ 2>/dev/null; do for ((i = 0; i < 1000000; ++i)); do :; done; done" &
    busy+=($!)
  done
fi

# The operations and sizes of a stage, and over what: only configurations of that kind take part.
stage() {
  local reduce=allreduce_ip,reduce_scatter move=bcast,allgather,alltoall,sendrecv
  min_samples=3
  case $1 in
    small-reduce) kind=shm ops=$reduce sizes=8,512,4K,32K,256K,2M min_samples=5 ;;
    small-move)   kind=shm ops=$move sizes=4K,32K,256K,2M min_samples=5 ;;
    small-tcp)    kind=tcp ops=$reduce,$move sizes=4K,32K,256K,2M min_samples=5 ;;
    large-reduce) kind=shm ops=$reduce sizes=16M,256M ;;
    large-move)   kind=shm ops=$move sizes=16M,256M ;;
    large-tcp)    kind=tcp ops=$reduce,$move sizes=16M,128M ;;
    quick-reduce) kind=shm ops=$reduce sizes=8,512,32K,2M ;;
    quick-move)   kind=shm ops=$move sizes=4K,256K ;;
    quick-tcp)    kind=tcp ops=$reduce,$move sizes=4K,256K ;;
    tables)       kind='shm|tcp' ops=all sizes=8,64,512,4K,32K,256K,2M,16M,128M,256M min_samples=5 ;;
    *) echo "STAGES: there is no stage $1" >&2; exit 2 ;;
  esac
  ops=${OPS:-$ops}
}

# cfg NAME command...: one configuration of the stage; NAME is LIBRARY.shm or LIBRARY.tcp and a variant.
# extra NAME command...: one that never was the fastest of its kind here; only the tables have it.
configs=()
cfg() { if [[ $1 =~ \.($kind) && $1.$n =~ $CONFIGS ]]; then configs+=("$(printf '%q ' "$@")"); fi; }
extra() { if [ -n "${EXTRA:-}" ]; then cfg "$@"; fi; }
# large NAME command...: one that differs for large sizes only. Measured for all it would be a second chance of the other.
large() { if [ -n "${EXTRA:-}" ] || [[ $name_of_stage == large-* ]]; then cfg "$@"; fi; }
# small NAME command...: one that is slow for large sizes, minutes even, and never the fastest there.
small() { if [ -n "${EXTRA:-}" ] || [[ $name_of_stage != large-* ]]; then cfg "$@"; fi; }
launch() {
  local name=$1; shift
  cleanup
  local t0=$SECONDS left=$((LIMIT_S + GRACE_S - (SECONDS - begun)))
  if [ "$left" -le 0 ]; then return; fi
  timeout -k 5 "$((left < LAUNCH_S ? left : LAUNCH_S))" "$@" --ops "$ops" --sizes "$sizes" \
      --budget-ms "$BUDGET_MS" --min-samples "$min_samples" 2>>"$log" | sed -n "s/^ROW\t/$rep\t/p" >>"$res"
  local rc=${PIPESTATUS[0]}
  echo "rep $rep $name_of_stage ranks $n $name rc=$rc $((SECONDS - t0))s load $(cut -d' ' -f1 /proc/loadavg)" |
      tee -a "$log" >&2
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

all_configs() {  # uses $n
  configs=()
  # What the machine allows.
  [ -x "$bin/limit" ] && {
    cfg limit.shm      "$bin/limit" --kind shm  --ranks $n --lib limit --transport shm
    cfg limit.shm-copy "$bin/limit" --kind copy --stage 524288 --ranks $n --lib limit --transport shm-copy
    cfg limit.tcp      "$bin/limit" --kind tcp  --ranks $n --lib limit --transport tcp
  }
  # Open MPI: shared memory with kernel copies (CMA, its default), without, and
  # through UCX; shared memory collectives; TCP on loopback, own and UCX's.
  [ -x "$bin/openmpi" ] && {
    m="$bin/openmpi --lib openmpi"
    $([ $n -gt $(nproc) ] && echo small || echo cfg) openmpi.shm $ompi -np $n $ob1 --mca btl self,vader $m --transport shm
    cfg openmpi.shm-nocma $ompi -np $n $ob1 --mca btl self,vader --mca btl_vader_single_copy_mechanism none \
        $m --transport shm --variant nocma
    cfg openmpi.shm-ucx   $ompi -np $n $ucx -x UCX_TLS=self,sm $m --transport shm --variant ucx
    extra openmpi.shm-sm  $ompi -np $n $ob1 --mca btl self,vader --mca coll_sm_priority 100 \
        $m --transport shm --variant coll_sm
    large openmpi.shm-tuned $keep $ompi -np $n $keepx $ob1 --mca btl self,vader --mca btl_vader_single_copy_mechanism none \
        $m --transport shm --variant nocma+keep
    large openmpi.tcp-tuned $keep $ompi -np $n $keepx $ob1 --mca btl self,tcp --mca btl_tcp_if_include lo \
        $m --transport tcp --variant keep
    cfg openmpi.tcp       $ompi -np $n $ob1 --mca btl self,tcp --mca btl_tcp_if_include lo $m --transport tcp
    cfg openmpi.tcp-ucx   $ompi -np $n $ucx -x UCX_TLS=self,tcp -x UCX_NET_DEVICES=lo $m --transport tcp --variant ucx
  }
  [ -x "$slip" ] && cfg slip.shm "$slip" --ranks $n --lib slip --transport shm
  [ -x "$slip" ] && cfg slip.shm-registered "$slip" --registered --ranks $n --lib slip --transport shm --variant registered
  [ -x "$slip" ] && cfg slip.tcp env SLIP_TRANSPORT=net "$slip" --ranks $n --lib slip --transport tcp
  # MPICH (Debian: ch4:ucx): its own shared memory; UCX shared memory; UCX TCP.
  [ -x "$bin/mpich" ] && {
    m="$bin/mpich --lib mpich"
    # Never yields: with more ranks than cores every step costs a 4 ms time slice.
    local among=cfg tuned=large
    [ $n -gt $(nproc) ] && among=extra tuned=extra
    $among mpich.shm     $mpich -n $n $m --transport shm
    $among mpich.shm-ucx env MPIR_CVAR_NOLOCAL=1 UCX_TLS=self,sm $mpich -n $n $m --transport shm --variant ucx
    $among mpich.tcp     env MPIR_CVAR_NOLOCAL=1 UCX_TLS=self,tcp UCX_NET_DEVICES=lo $mpich -n $n $m --transport tcp
    $tuned mpich.shm-tuned $keep $mpich -n $n $m --transport shm --variant keep
    $tuned mpich.tcp-tuned $keep MPIR_CVAR_NOLOCAL=1 UCX_TLS=self,tcp UCX_NET_DEVICES=lo $mpich -n $n \
        $m --transport tcp --variant keep
  }
  # gloo over TCP. Pinning hurts its async mode (device thread and caller on
  # one core), so that one runs unpinned.
  [ -x "$bin/gloo" ] && {
    g="$bin/gloo --ranks $n --lib gloo --transport tcp --store $store"
    cfg gloo.tcp-async    $g --mode async --pin 0 --variant async
    small gloo.tcp-sync   $g --mode sync --pin $((n <= $(nproc))) --variant sync
    small gloo.tcp-busypoll $g --mode busypoll --variant busypoll
  }
  # Add a new library here.
}

{
  echo "# $(uname -srm), $(nproc) cores, $(lscpu | sed -n 's/^Model name: *//p')"
  echo "# $(mpirun.openmpi --version 2>/dev/null | head -1); \
$(mpichversion 2>/dev/null | sed -n 's/^MPICH Version:[ \t]*/MPICH /p;s/^MPICH Device:[ \t]*//p' | xargs); \
gloo $(dpkg-query -W -f='${Version}' libgloo-dev 2>/dev/null)"
  [ -n "${BUSY:-}" ] && echo "# beside ${#busy[@]} busy processes, one on each core"
  echo "# budget $BUDGET_MS ms per point, started $(date -u +%FT%TZ), load $(cut -d' ' -f1-3 /proc/loadavg)"
} | tee "$OUT/header.txt" >&2

# A stage that took longer than what is left is not begun again; one that is not through GRACE_S later does not
# count, for it would lack a peer.
begun=$SECONDS
declare -A took times
for rep in $(seq "$REPS"); do
  if [ "$CEIL" = 1 ] && [ -x "$bin/ceilings" ]; then
    "$bin/ceilings" ${QUICK:+--quick} | sed "s/^CEIL\t/$rep\t/" >>"$ceil"
  fi
  for name_of_stage in $STAGES; do
    stage "$name_of_stage"
    for n in $RANKS; do
      left=$((LIMIT_S - (SECONDS - begun)))
      if [ "$left" -le "${took[$name_of_stage.$n]:-0}" ]; then
        [ -z "${took[$name_of_stage.$n]:-}" ] && echo "no time for $name_of_stage, $n ranks" | tee -a "$log" >&2
        continue
      fi
      t0=$SECONDS rows=$(wc -l <"$res")
      all_configs
      times[$name_of_stage.$n]=$((${times[$name_of_stage.$n]:-0} + 1))
      for i in "${!configs[@]}"; do
        [ $((times[$name_of_stage.$n] % 2)) = 0 ] && i=$((${#configs[@]} - 1 - i))
        eval "launch ${configs[i]}"
      done
      took[$name_of_stage.$n]=$((SECONDS - t0))
      if [ $((SECONDS - begun)) -ge $((LIMIT_S + GRACE_S)) ]; then
        head -n "$rows" "$res" >"$res.whole" && mv "$res.whole" "$res"
        echo "no time to end $name_of_stage, $n ranks: left out" | tee -a "$log" >&2
      fi
    done
  done
done
echo "# $((SECONDS - begun)) s" | tee -a "$OUT/header.txt" >&2
