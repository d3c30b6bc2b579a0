#!/usr/bin/env bash
# faults_test.sh TUTTI TRANSPORT CASE: what ranks say when their network or a peer fails over RDMA. Runs in a guest of
# scripts/rdma-vm, once for each of two ranks at the ends of a cable (`link`), or once (`kill`). Exit status 0: as
# promised.
set -euo pipefail
tutti=$1 transport=$2 what=$3
export TUTTI_TRANSPORT=$transport TUTTI_RDMA_DEVICES=$RDMA_VM_DEVICES
export TUTTI_TIMEOUT_MS=90000 # a dead link may keep the guest's kernel busy for 30 s
export TUTTI_RDMA_TIMEOUT=15 TUTTI_RDMA_RETRIES=4 # 0.13 s, four times: the default's 4 s are long for a test
export UCX_RC_RETRY_COUNT=4
text=$(mktemp)
trap 'rm -f "$text"' EXIT

fail() {
  echo "faults_test: rank ${RANK:-}: $*; what was said:" >&2
  cat "$text" >&2
  exit 1
}

# says WORDS: the output has a line with them.
says() { grep -qE -- "$1" "$text" || fail "nobody said '$1'"; }

# in_the_middle: waits until the ranks have met, and a little more.
in_the_middle() {
  local tries=0
  until grep -q '# tutti' "$text"; do
    tries=$((tries + 1))
    [ "$tries" -lt 600 ] || fail 'the ranks have not met'
    sleep 0.1
  done
  sleep 2
}

# From the unplugging to the end of each rank: the tries of a packet last 0.7 s, but a dead link may keep the guest's
# kernel busy for 47 s. The deadline, which is no such end, is 90 s.
bound_s=60
unplugged=$(dirname "$(mktemp -u)")/unplugged # of the guest's: both ranks see it

# In the middle of a long all-reduce the cable is unplugged. TCP, which carries no message here, goes on.
link() {
  local status=0 watch='' ended_s took_s
  # It would take the other end of the cable, too; and UCX 1.13 aborts the process when the queue pair of its datagrams
  # fails (ud_verbs.c, "Fatal: receive completion"), as it may here: its wire-up goes over loopback.
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
  [ "$status" != 0 ] || fail 'it went well'
  local other=$((1 - RANK)) device=$RDMA_VM_DEVICES
  says 'peer lost: '
  says "rank $other"
  if [ "$transport" = verbs ]; then
    says "$device port 1, queue pair [1-9][0-9]* \(to queue pair [1-9][0-9]* of rxe_[a-z]*0 port 1 at rank $other\)"
  else
    says "$device port 1"
  fi
  took_s=$((ended_s - $(cat "$unplugged")))
  [ "$took_s" -le "$bound_s" ] || fail "it took $took_s s, more than $bound_s"
  echo "rank $RANK after $took_s s: $(grep -m 1 "$device" "$text")"
  nothing_is_left
}

# One of three processes is killed in the middle of a call.
kill_one() {
  local status=0
  export -f in_the_middle fail
  export text
  # shellcheck disable=SC2016
  "$tutti" run -n 3 -- bash -c '"$0" perf all_reduce -b 64K -e 64K -n 1000000 -w 1 & program=$!
    if [ "$TUTTI_RANK" = 1 ]; then in_the_middle; kill -9 $program; fi
    wait $program' "$tutti" >"$text" 2>&1 || status=$?
  [ "$status" != 0 ] || fail 'it went well'
  says 'rank 1 is gone: its process has ended'
  nothing_is_left
}

# Of what the kernel keeps for RDMA nothing is left but its own.
nothing_is_left() {
  local tries=0
  while rdma resource show qp 2>/dev/null | grep -E 'comm tutti|pid' >/dev/null; do
    tries=$((tries + 1))
    [ "$tries" -lt 100 ] || fail "queue pairs are left: $(rdma resource show qp)"
    sleep 0.1
  done
}

case $what in
  link) link ;;
  kill) kill_one ;;
  *) fail "no case '$what'" ;;
esac
