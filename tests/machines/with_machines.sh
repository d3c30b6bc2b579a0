#!/usr/bin/env bash
# with_machines.sh K COMMAND...: runs COMMAND with K machines beside it, and takes them down again.
#
# A machine is a network namespace, tutti-PID-n0 to tutti-PID-n<K-1>, with one interface eth0 (10.77.0.<i+1>/24 and
# fd00::<i+1>/64) whose cable, a veth pair, leads to the switch, a bridge in the namespace that COMMAND runs in. COMMAND
# finds the names in MACHINES (`ip netns exec` takes them), and cable<i> is the switch's end of machine i's cable.
# Needs root, or a kernel that lets users make namespaces. Status: COMMAND's; 77 where namespaces cannot be made.
#
# Nothing is left behind, whoever is killed and how: the namespaces, their names and all processes started here live in
# a mount, network and process namespace of this run, which the kernel takes down with its first process, and that one
# dies with this script. Nothing of it can be seen outside.
set -eu

main() {
  local count=$1
  shift
  for tool in ip unshare setpriv; do
    command -v "$tool" >/dev/null || skip "$tool (of iproute2, util-linux) is not installed"
  done
  local flags=(--mount --net --pid --fork --kill-child --mount-proc)
  [ "$(id -u)" = 0 ] || flags+=(--user --map-root-user)
  local why
  why=$(unshare "${flags[@]}" bash "${BASH_SOURCE[0]}" --inside "$$" 1 true 2>&1) || skip "$why"
  # Not exec: unshare is deaf to SIGTERM while it waits. The signal it cannot miss is the end of this script.
  setpriv --pdeathsig KILL unshare "${flags[@]}" bash "${BASH_SOURCE[0]}" --inside "$$" "$count" "$@" <&0 &
  local child=$!
  trap 'kill -KILL $child; exit 130' INT
  trap 'kill -KILL $child; exit 143' TERM HUP
  local status=0
  wait "$child" || status=$?
  exit "$status"
}

skip() {
  echo "skipped: network namespaces cannot be made here: $*"
  exit 77
}

# The first process of the new namespaces.
inside() {
  local pid=$1 count=$2 i
  shift 2
  mount -t tmpfs tmpfs /run # where ip keeps the names: ours alone
  ip link set lo up
  ip link add switch type bridge forward_delay 0
  ip link set switch up
  MACHINES=
  for ((i = 0; i < count; ++i)); do
    local name="tutti-$pid-n$i"
    ip netns add "$name"
    ip link add "cable$i" type veth peer name eth0 netns "$name"
    ip link set "cable$i" master switch up
    ip -n "$name" addr add "10.77.0.$((i + 1))/24" dev eth0
    ip -n "$name" addr add "fd00::$((i + 1))/64" dev eth0 nodad
    ip -n "$name" link set eth0 up
    ip -n "$name" link set lo up
    MACHINES+="$name "
  done
  export MACHINES
  local status=0
  "$@" || status=$?
  exit "$status"
}

if [ "$1" = --inside ]; then
  shift
  inside "$@"
else
  main "$@"
fi
