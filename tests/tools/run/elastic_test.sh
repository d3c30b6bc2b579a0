#!/usr/bin/env bash
# Tests of `tutti run --elastic` (docs/elastic.md). Each function with the name of a promise is one test:
# elastic_test.sh TUTTI ELASTIC_SUM PROMISE
set -u
tutti=$1
program=$2
promise=$3
# shellcheck source=tests/support/script.sh
. "$(dirname "$0")/../../support/script.sh"
export TUTTI_RECORD_DIR=$here/records
# shellcheck source=tests/support/patience.sh
. "$(dirname "$0")/../../support/patience.sh" "$tutti"

begin() { # begin ARGS...: starts the job in the background and sets $launcher to its process number
  "$tutti" run --timeout-s "$(scaled 90)" "$@" >"$here/log" 2>&1 &
  launcher=$!
}
# are_there COUNT STATE: whether there are COUNT ranks, and the flight recorder shows for each that its last call
# matches STATE. In that case all ranks have joined, because no call begins earlier.
are_there() {
  local table child
  children=()
  read -r -a children 2>/dev/null <"/proc/$launcher/task/$launcher/children" || true # the file has no newline
  [ ${#children[@]} -eq "$1" ] || return 1
  table=$("$tutti" top --once 2>/dev/null)
  for child in "${children[@]}"; do
    grep -qE "^ +[0-9]+ +$child [a-z]+ .* $2 " <<<"$table" || return 1
  done
}
rank_pids() { # rank_pids COUNT [STATE]: waits for the ranks; sets $children, in the order of their start
  wait_until are_there "$1" "${2-(in|after) all_reduce #[0-9]+}" || fail "there are not $1 ranks at work"
}
are_gone() {
  local pid
  for pid in "$@"; do [ ! -e "/proc/$pid" ] || return 1; done
}
kill_ranks() { # kill_ranks PID...: returns when the launcher has noticed their end
  kill -9 "$@"
  wait_until are_gone "$@" || fail "killed ranks are still there: $*"
}
ends_with() { # ends_with STATUS
  wait "$launcher"
  local status=$?
  [ "$status" -eq "$1" ] || fail "status $status, not $1"
}
expect_lines() { # expect_lines COUNT REGEX
  local lines
  lines=$(grep -cE -- "$2" "$here/log")
  [ "$lines" -eq "$1" ] || fail "$lines lines match '$2', not $1"
}

dead_ranks_are_replaced() {
  begin --elastic 3:3 -- "$program" 600 4000
  rank_pids 3
  kill_ranks "${children[1]}"
  rank_pids 3
  kill_ranks "${children[0]}"
  ends_with 0
  expect_lines 1 'rank 1 was killed by signal 9 \(Killed\); replaced \(1 of 10 times\)'
  expect_lines 1 'rank 0 was killed by signal 9 \(Killed\); replaced \(2 of 10 times\)'
  expect_lines 3 '600 steps in 3 meetings, every sum right'
}

# Kills a rank when the last sum has been made. So the others have done all steps when the replacement joins without
# a state.
one_that_dies_at_the_end_is_replaced() {
  begin --elastic 3:3 -- "$program" 2 2000000
  rank_pids 3 'after all_reduce #3' # call #1, before the two sums, sends the saved state from one rank to all ranks
  kill_ranks "${children[0]}"
  ends_with 0
  expect_lines 1 'rank 0 was killed by signal 9 \(Killed\); replaced \(1 of 10 times\)'
  expect_lines 3 '2 steps in 2 meetings, every sum right'
}

# A rank fails after it has finished. No replacement could join, because every rank has done all steps and leaves.
# The failure must still be reported.
one_that_dies_behind_the_end_is_told() {
  local long_ms=${patience_s%.*}000
  # shellcheck disable=SC2016
  begin --elastic 3:3 --grace-ms "$long_ms" -- bash -c '"$0" 50 1000; [ "$TUTTI_RANK" != 1 ] || exit 5' "$program"
  ends_with 5
  expect_lines 3 '50 steps in 1 meetings, every sum right'
  expect_lines 1 '^tutti run: rank 1 ended with exit status 5$'
  expect_lines 1 '^tutti run: '
  # shellcheck disable=SC2016
  begin --elastic 2:3 --grace-ms "$long_ms" -- bash -c '"$0" 50 1000; [ "$TUTTI_RANK" != 2 ] || kill -9 $$' "$program"
  ends_with 137
  expect_lines 3 '50 steps in 1 meetings, every sum right'
  expect_lines 1 '^tutti run: rank 2 was killed by signal 9 \(Killed\)$'
  expect_lines 1 '^tutti run: '
}

it_goes_on_with_fewer() {
  begin --elastic 2:3 --max-restarts 0 -- "$program" 600 4000
  rank_pids 3
  kill_ranks "${children[0]}"
  ends_with 0
  expect_lines 1 'rank 0 was killed by signal 9 \(Killed\); the job goes on with 2'
  expect_lines 2 '600 steps in 2 meetings, every sum right'
}

too_few_are_an_end() {
  begin --elastic 3:3 --max-restarts 0 --grace-ms 200 -- "$program" 100000 4000
  rank_pids 3
  kill_ranks "${children[2]}"
  ends_with 137
  expect_lines 1 '2 rank\(s\) are left, 3 are needed'
}

a_stopped_rank_is_replaced() {
  TUTTI_TIMEOUT_MS=1500 begin --elastic 3:3 --rejoin-s 5 -- "$program" 600 4000
  rank_pids 3
  kill -STOP "${children[1]}"
  ends_with 0
  expect_lines 1 'rank 1 did not come within 5000 ms; ending it'
  expect_lines 1 'rank 1 was killed by signal 9 \(Killed\); replaced'
  expect_lines 3 'every sum right'
}

all_at_once_begin_anew() {
  begin --elastic 2:2 -- "$program" 600 4000
  rank_pids 2
  kill_ranks "${children[@]}"
  ends_with 0
  expect_lines 2 'replaced'
  expect_lines 2 '600 steps in [0-9]+ meetings, every sum right'
}

what_always_fails_ends() {
  begin --elastic 2:2 --max-restarts 5 -- bash -c 'exit 3'
  ends_with 3
  expect_lines 5 '; replaced '
}

command_line_is_checked() {
  local arguments
  for arguments in "--elastic 3:2" "--elastic 0:2" "--elastic 2" "--elastic 2:x" "--elastic 2:3:" "-n 2 --elastic 2:3" \
    '--elastic 1:5000' '--elastic 1:2 --max-restarts -1' '--elastic 1:2 --rejoin-s 0' ''; do
    # shellcheck disable=SC2086
    begin $arguments -- true
    ends_with 2
    [ -s "$here/log" ] || fail "'$arguments' is refused without an error message"
  done
}

without_a_launcher_it_is_an_ordinary_job() {
  "$tutti" run -n 2 -- "$program" 50 >"$here/log" 2>&1 || fail "an ordinary job: $?"
  expect_lines 2 '50 steps in 1 meetings, every sum right'
  TUTTI_ELASTIC_FD=0 "$program" 5 >"$here/log" 2>&1 </dev/null && fail 'a wrong descriptor is taken'
  expect_lines 1 'TUTTI_ELASTIC_FD=0 is not the launcher'
}

a_wrapper_that_closes_descriptors_is_told() {
  begin --elastic 2:2 --max-restarts 0 -- python3 -c 'import subprocess, sys; sys.exit(subprocess.call(sys.argv[1:]))' \
    "$program" 20
  ends_with 1
  grep -q 'TUTTI_ELASTIC_FD=[0-9]* .*has closed it.*pass_fds' "$here/log" || fail 'the cause is not told'
}

the_launchers_key_counts() {
  (umask 077 && head -c 32 /dev/urandom >"$here/key")
  begin --elastic 2:2 --max-restarts 0 -- "$(dirname "$program")/elastic_keyed" "$here/key"
  ends_with 0
  expect_lines 2 'the sum is 2'
}

"$promise"
