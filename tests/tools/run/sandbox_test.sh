#!/usr/bin/env bash
# Tests of jobs in sandboxes and with low limits. Each function with the name of a promise is one test:
# sandbox_test.sh TUTTI PROMISE
set -u
tutti=$1
promise=$2
# shellcheck source=tests/support/script.sh
. "$(dirname "$0")/../../support/script.sh"
# shellcheck source=tests/support/patience.sh
. "$(dirname "$0")/../../support/patience.sh" "$tutti"
# shellcheck source=tests/support/ports.sh
. "$(dirname "$0")/../../support/ports.sh"
export TUTTI_RECORD=0

# without CALL ERRNO COMMAND...: runs the command with a system call that fails. Writes $here/out and $here/err, and
# sets $status.
without() {
  timeout "$(scaled 40)" python3 "$(dirname "$0")/../../support/deny_call.py" "$@" >"$here/out" 2>"$here/err"
  status=$?
}
small=(perf all_reduce -b 8 -e 4096 -f 8 -n 2 -w 1)
expect_good() { # expect_good NAME
  [ "$status" = 0 ] || fail "$1 ends with status $status"
  grep -q '^# Out of bounds values : 0 OK$' "$here/out" || fail "$1 does not report that all results are right"
}

without_memfd_processes_talk_tcp() {
  local error
  for error in EPERM ENOSYS EACCES; do
    without memfd_create $error "$tutti" "${small[@]}" --ranks 3
    expect_good "a job without memfd_create ($error)"
    grep -q 'warn.*memfd_create.*TCP' "$here/err" || fail "$error: no warning says that TCP is used, and why"
  done
}

without_memfd_shared_memory_alone_is_refused_with_the_cause() {
  TUTTI_TRANSPORT=shm without memfd_create EPERM "$tutti" "${small[@]}" --ranks 2
  [ "$status" = 1 ] || fail "status $status"
  grep -q 'memfd_create.*not permitted.*TUTTI_TRANSPORT=auto' "$here/err" || fail 'the cause and the remedy are missing'
  if grep -q ulimit "$here/err"; then fail 'names a limit that is not the cause'; fi
}

without_memfd_threads_share_memory() {
  without memfd_create EPERM "$tutti" "${small[@]}" --threads --ranks 3
  expect_good 'a job of threads'
  if grep -q warn "$here/err"; then fail 'threads of one process need no memfd'; fi
  without memfd_create EPERM "$tutti" "${small[@]}" --threads --ranks 3 --memory registered
  expect_good 'a job of threads with registered memory'
}

# The other ranks may call memfd_create. They share memory with each other, and use TCP to this rank.
a_rank_without_memfd_joins_the_others() {
  local rank pids=() port
  port=$(free_port)
  for rank in 0 1 2; do
    local filter=()
    [ $rank = 1 ] && filter=(python3 "$(dirname "$0")/../../support/deny_call.py" memfd_create ENOSYS)
    TUTTI_RANK=$rank TUTTI_WORLD_SIZE=3 TUTTI_ROOT=127.0.0.1:$port TUTTI_LOG=info \
      timeout "$(scaled 40)" "${filter[@]}" "$tutti" "${small[@]}" >"$here/out$rank" 2>"$here/err$rank" &
    pids+=($!)
  done
  for rank in 0 1 2; do
    wait "${pids[$rank]}"
    status=$?
    cp "$here/err$rank" "$here/err"
    cp "$here/out0" "$here/out"
    expect_good "rank $rank"
  done
  grep -q 'on this machine: 2 of the 3 ranks' "$here/err0" || fail 'the others do not share memory'
  grep -q 'on this machine: 1 of the 3 ranks' "$here/err1" || fail 'the rank in the sandbox shares memory'
}

# Each rank may open 75 files, but 40 ranks need more to share memory. The set-up before that needs about 50 files on
# rank 0.
too_few_descriptors_are_told_with_the_limit() {
  timeout "$(scaled 40)" "$tutti" run -n 40 -- bash -c 'ulimit -n 75; exec "$0" "$@"' "$tutti" "${small[@]}" \
    >"$here/out" 2>"$here/err"
  status=$?
  [ "$status" = 1 ] || fail "status $status"
  grep -qE 'with 40 ranks on this machine each process needs [0-9]+ file descriptors, and the limit is 75: raise' \
    "$here/err" || fail 'the message does not give the limit'
}

"$promise"
