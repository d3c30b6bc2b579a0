#!/usr/bin/env bash
# faults_test.sh TUTTI TRANSPORT CASE: tests the messages of ranks whose network or peer fails over RDMA. Runs in a
# guest of scripts/rdma-vm: for the case `link` once for each of two ranks at the ends of a cable, for the case
# `kill` once. Exit status 0 means that the test has passed.
set -euo pipefail
tutti=$1 transport=$2 what=$3
export TUTTI_TRANSPORT=$transport TUTTI_RDMA_DEVICES=$RDMA_VM_DEVICES
# A dead link can keep the kernel of the guest busy for 47 s, and for longer if the machine has other work.
export TUTTI_TIMEOUT_MS=240000
export TUTTI_RDMA_TIMEOUT=15 TUTTI_RDMA_RETRIES=4 # 0.13 s, four times; the default of 4 s would make the test slow
export UCX_RC_RETRY_COUNT=4
text=$(mktemp)
trap 'rm -f "$text"' EXIT

fail() {
  echo "faults_test: rank ${RANK:-}: $*; the output was:" >&2
  cat "$text" >&2
  exit 1
}

# says REGEX: fails unless a line of the output matches.
says() { grep -qE -- "$1" "$text" || fail "no line of the output matches '$1'"; }

# in_the_middle: waits until the ranks have connected, and two seconds more.
in_the_middle() {
  local tries=0
  until grep -q '# tutti' "$text"; do
    tries=$((tries + 1))
    [ "$tries" -lt 2000 ] || fail 'the ranks have not met'
    sleep 0.1
  done
  sleep 2
}

# A file of the guest, which both ranks can access.
unplugged=$(dirname "$(mktemp -u)")/unplugged

# Unplugs the cable in the middle of a long all-reduce. The TCP connections, which carry no messages here, keep
# working.
link() {
  local status=0 watch='' ended_s took_s
  # UCX must not use the other end of the cable as well. And UCX 1.13 aborts the process if the queue pair of its
  # datagrams fails (ud_verbs.c, "Fatal: receive completion"), which could happen here, so its connection set-up uses
  # loopback.
  export UCX_NET_DEVICES=$RDMA_VM_DEVICES:1,lo UCX_TLS=rc_verbs,tcp
  if [ "$RANK" = 0 ]; then
    (
      in_the_middle
      date +%s >"$unplugged"
      ip link set left0 down
    ) &
    watch=$!
  fi
  "$tutti" perf all_reduce -b 64K -e 64K -n 1000000 -w 1 >"$text" 2>&1 || status=$?
  ended_s=$(date +%s)
  [ -z "$watch" ] || wait "$watch"
  [ "$status" != 0 ] || fail 'the all-reduce succeeded although the cable was unplugged'
  local other=$((1 - RANK)) device=$RDMA_VM_DEVICES
  says 'peer lost: '
  says "rank $other"
  if [ "$transport" = verbs ]; then
    says "$device port 1, queue pair [1-9][0-9]* \(to queue pair [1-9][0-9]* of rxe_[a-z]*0 port 1 at rank $other\)"
  else
    says "$device port 1"
  fi
  took_s=$((ended_s - $(cat "$unplugged")))
  echo "rank $RANK after $took_s s: $(grep -m 1 "$device" "$text")"
  nothing_is_left
}

# Kills one of three processes in the middle of a call.
kill_one() {
  local status=0
  export -f in_the_middle fail
  export text
  # shellcheck disable=SC2016
  "$tutti" run -n 3 -- bash -c '"$0" perf all_reduce -b 64K -e 64K -n 1000000 -w 1 & program=$!
    if [ "$TUTTI_RANK" = 1 ]; then in_the_middle; kill -9 $program; fi
    wait $program' "$tutti" >"$text" 2>&1 || status=$?
  [ "$status" != 0 ] || fail 'the job succeeded although a rank was killed'
  says 'rank 1 is gone: its process has ended'
  nothing_is_left
}

# Waits until the kernel holds no RDMA queue pairs except its own.
nothing_is_left() {
  local tries=0
  while rdma resource show qp 2>/dev/null | grep -E 'comm tutti|pid' >/dev/null; do
    tries=$((tries + 1))
    [ "$tries" -lt 600 ] || fail "queue pairs are left: $(rdma resource show qp)"
    sleep 0.1
  done
}

case $what in
  link) link ;;
  kill) kill_one ;;
  *) fail "no case '$what'" ;;
esac
