#!/usr/bin/env bash
# with_machines.sh K COMMAND...: creates K machines, runs COMMAND beside them, and removes the machines again.
#
# A machine is a network namespace. The names are tutti-PID-n0 to tutti-PID-n<K-1>. Each machine has one interface
# eth0 (10.77.0.<i+1>/24 and fd00::<i+1>/64). Its cable is a veth pair to the switch, which is a bridge in the
# namespace of COMMAND. COMMAND gets the names in the variable MACHINES, for `ip netns exec`. cable<i> is the
# switch's end of machine i's cable. The script needs root, or a kernel that lets users create namespaces. Exit
# status: that of COMMAND; 77 if namespaces cannot be created.
#
# All of this is removed even if any process is killed. The namespaces, their names and all processes run in a mount,
# network and process namespace of this run. The kernel removes it when its first process ends, and that process ends
# with this script. The machines cannot be seen from outside.
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
  # Do not use exec: unshare ignores SIGTERM while it waits. It cannot ignore the signal that the kernel sends at the
  # end of this script.
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

# Runs as the first process of the new namespaces.
inside() {
  local pid=$1 count=$2 i
  shift 2
  mount -t tmpfs tmpfs /run # ip keeps the names of namespaces here; this copy is private
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
