#!/usr/bin/env bash
# What relays and channels gain between two hosts: network namespaces joined by a veth pair, as slow as asked for.
# Prints the rows of slip bench for all_to_all, directly and through relays, and all_reduce by one ring and by one
# for each rank of a host. Needs root.
# usage: bench/collectives/relays.sh   EACH=4 ranks of a host, RATE=200mbit (as tc says it; none if not given),
#        BEGIN=256 and END=262144 bytes; BUILD=build/cuda names another build folder
set -euo pipefail
slip=$(readlink -f "${BUILD:-build/release}/slip")
each=${EACH:-4}
hosts=("slip-$$-a" "slip-$$-b")
if ! ip netns add "${hosts[0]}" 2>/dev/null; then
  echo "relays.sh: network namespaces are not permitted here: nothing measured"
  exit 0
fi
remove() {
  local host
  for host in "${hosts[@]}"; do ip netns del "$host" 2>/dev/null || true; done
}
trap remove EXIT
ip netns add "${hosts[1]}"
ip -n "${hosts[0]}" link add wire type veth peer name wire netns "${hosts[1]}"
for i in 0 1; do
  ip -n "${hosts[i]}" addr add "10.78.0.$((i + 1))/24" dev wire
  ip -n "${hosts[i]}" link set lo up
  ip -n "${hosts[i]}" link set wire up
  if [[ -n ${RATE:-} ]]; then
    ip netns exec "${hosts[i]}" tc qdisc add dev wire root tbf rate "$RATE" burst 64kb limit 16mb
  fi
done

# job PORT ARGUMENT...: the ranks of both hosts; the first one prints.
job() {
  local port=$1 rank started=()
  shift
  for ((rank = 2 * each - 1; rank >= 0; --rank)); do
    SLIP_ID="10.78.0.1:$port" SLIP_RANK=$rank SLIP_NRANKS=$((2 * each)) \
      timeout 60 ip netns exec "${hosts[rank / each]}" "$slip" bench "$@" &
    started+=($!)
  done
  wait "${started[@]}"
}
sizes=(-b "${BEGIN:-256}" -e "${END:-262144}" -f 4 --each)
job 7701 all_to_all --algorithm direct "${sizes[@]}"
job 7702 all_to_all --algorithm relay "${sizes[@]}"
sizes=(-b 1048576 -e 4194304 -f 4 --each --iters 10 -w 2)
SLIP_MAX_CHANNELS=1 job 7703 all_reduce --algorithm ring "${sizes[@]}"
SLIP_MIN_CHANNELS=$each job 7704 all_reduce --algorithm ring "${sizes[@]}"
