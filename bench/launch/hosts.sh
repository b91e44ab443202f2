#!/usr/bin/env bash
# Hosts to try `slip launch --hosts` on one machine: network namespaces on one bridge, each with an sshd. Keys and
# configuration are in FOLDER; nothing else of the machine is changed. Needs root, ip, sshd and ssh.
# usage: bench/launch/hosts.sh start FOLDER COUNT   makes host 1 to COUNT, 10.79.0.1 to 10.79.0.COUNT. FOLDER/login COMMAND
#                                                   then runs a command on a login node beside them, 10.79.0.250
#        bench/launch/hosts.sh stop FOLDER          removes them
# Status 77: this machine lacks what is needed; the reason is printed.
set -euo pipefail
usage() { sed -n 's/^# usage: /usage: /p; s/^#        /       /p' "$0" >&2; exit 2; }
lacks() { echo "hosts.sh: $1"; exit 77; }
[[ $# -ge 2 ]] || usage
folder=$2

stop() {
  local space
  if [[ -f $folder/servers ]]; then xargs -r kill -9 <"$folder/servers" 2>/dev/null || true; fi
  if [[ -f $folder/spaces ]]; then
    while read -r space; do ip netns del "$space" 2>/dev/null || true; done <"$folder/spaces"
  fi
  rm -rf "$folder"
}

# add_space NAME ADDRESS: a namespace with an interface on the bridge.
add_space() {
  ip netns add "$1"
  echo "$1" >>"$folder/spaces"
  ip -n "$1" link set lo up
  if [[ $1 == "$login" ]]; then
    ip -n "$1" link add bridge0 type bridge
    ip -n "$1" addr add "$2/24" dev bridge0
    ip -n "$1" link set bridge0 up
  else
    ip -n "$1" link add eth0 type veth peer name "port${2##*.}" netns "$login"
    ip -n "$1" addr add "$2/24" dev eth0
    ip -n "$1" link set eth0 up
    ip -n "$login" link set "port${2##*.}" master bridge0 up
  fi
}

start() {
  local count=$1 name="slip-$$" host key
  login="$name-login"
  for tool in /usr/sbin/sshd ssh ssh-keygen ip unshare; do
    command -v "$tool" >/dev/null ||
      lacks "$tool is missing (Debian: openssh-server, openssh-client, iproute2, util-linux)"
  done
  mkdir -m 700 "$folder"
  ip netns add "$login-probe" 2>/dev/null || { rm -rf "$folder"; lacks "network namespaces are not permitted here"; }
  ip netns del "$login-probe"
  trap stop ERR
  ssh-keygen -q -t ed25519 -N '' -C slip -f "$folder/host_key"
  ssh-keygen -q -t ed25519 -N '' -C slip -f "$folder/user_key"
  key=$(cat "$folder/host_key.pub")
  cat >"$folder/ssh_config" <<END
UserKnownHostsFile $folder/known_hosts
GlobalKnownHostsFile none
IdentityFile $folder/user_key
IdentitiesOnly yes
IdentityAgent none
END
  cat >"$folder/sshd_config" <<END
HostKey $folder/host_key
AuthorizedKeysFile $folder/user_key.pub
PidFile none
UsePAM no
StrictModes no
PasswordAuthentication no
KbdInteractiveAuthentication no
PermitRootLogin yes
END
  add_space "$login" 10.79.0.250
  for ((host = 1; host <= count; ++host)); do
    add_space "$name-$host" "10.79.0.$host"
    echo "10.79.0.$host $key" >>"$folder/known_hosts"
    # sshd wants /run/sshd; it gets one in a mount namespace of its own. There, logins also read no ~/.bashrc: what the
    # user of this machine starts in it can take longer than ssh itself.
    ip netns exec "$name-$host" unshare -m sh -c "mount -t tmpfs none /run && mkdir -m 755 /run/sshd &&
      if [ -f ~/.bashrc ]; then mount --bind /dev/null ~/.bashrc; fi &&
      exec /usr/sbin/sshd -D -e -f '$folder/sshd_config'" </dev/null >>"$folder/sshd.log" 2>&1 &
    echo $! >>"$folder/servers"
  done
  printf '#!/bin/sh\nexec ip netns exec %s "$@"\n' "$login" >"$folder/login"
  chmod 700 "$folder/login"
  for ((host = 1; host <= count; ++host)); do
    for ((turn = 0; turn < 500; ++turn)); do
      if "$folder/login" bash -c ": </dev/tcp/10.79.0.$host/22" 2>/dev/null; then continue 2; fi
      sleep 0.02
    done
    cat "$folder/sshd.log" >&2
    stop
    lacks "sshd does not start"
  done
}

case $1 in
  start) [[ $# -eq 3 && $3 =~ ^[0-9]+$ && $3 -ge 1 && $3 -le 200 ]] || usage; start "$3" ;;
  stop) stop ;;
  *) usage ;;
esac
