#!/usr/bin/env bash
# Runs the client as processes, with libnccl.so.2 preloaded by slip launch, and checks the variables of NCCL.
# usage: processes.sh SLIP CLIENT
set -eu
slip=$1
client=$2
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT

fail() {
  echo "$1"
  exit 1
}

for ranks in 2 4; do
  "$slip" launch -n "$ranks" --nccl --timeout 200 -- "$client" process "$folder/id.$ranks"
done

# The preloaded library is ours, and it says so.
output=$("$slip" launch -n 2 --nccl --timeout 100 --env NCCL_DEBUG=VERSION -- "$client" process "$folder/id.version" 2>&1)
grep -q 'NCCL version 2.28.9, by Slipstream' <<< "$output" || fail "no version in: $output"

# Ranks on two hosts: their data goes over TCP.
"$slip" launch -n 2 --nccl --timeout 200 --env NCCL_SOCKET_IFNAME=lo -- \
  sh -c "NCCL_HOSTID=host-\$SLIP_RANK exec '$client' process '$folder/id.hosts'"

# A rank that ends without a word: the others get an error that names it.
output=$("$slip" launch -n 3 --nccl --timeout 100 -- "$client" lost "$folder/id.lost" 2>&1)
[ "$(grep -c '^rank [01]: .*rank 2' <<< "$output")" = 2 ] || fail "no loss of rank 2 in: $output"

# Variables with wrong values are named.
if output=$(NCCL_SOCKET_IFNAME=nosuch "$client" threads 2 2>&1); then fail "NCCL_SOCKET_IFNAME=nosuch has no effect"; fi
grep -q 'nosuch' <<< "$output" || fail "no 'nosuch' in: $output"
if output=$(NCCL_TOPO_FILE=/nowhere.xml "$client" threads 2 2>&1); then fail "NCCL_TOPO_FILE has no effect"; fi
grep -q '/nowhere.xml' <<< "$output" || fail "no '/nowhere.xml' in: $output"
