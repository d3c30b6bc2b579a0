#!/usr/bin/env bash
# Tests of the flight recorder, `tutti top` and `tutti doctor` (docs/recorder.md) with jobs of real processes. Each
# function with the name of a promise is one test: recorder_test.sh TUTTI RECORDED_JOB PROMISE
set -u
tutti=$1
program=$2
promise=$3
# shellcheck source=tests/support/script.sh
. "$(dirname "$0")/../../support/script.sh"
job=
trap 'end_job; rm -rf "$here"' EXIT
export TUTTI_RECORD_DIR=$here/records
# shellcheck source=tests/support/patience.sh
. "$(dirname "$0")/../../support/patience.sh" "$tutti"

end_job() {
  [ -n "$job" ] || return 0
  kill -KILL "$job" 2>/dev/null # its ranks are killed with it
  wait "$job" 2>/dev/null
  job=
}
expect_no() { # expect_no FILE REGEX
  ! grep -qE -- "$2" "$here/$1" || fail "a line of $1 matches '$2'"
}
start() { # start MODE: starts a job of 4 ranks, waits for its first calls, and sets $job to its process number
  "$tutti" run -n 4 --grace-ms 5000 -- "$program" "$1" "$here" >"$here/out" 2>"$here/err" &
  job=$!
  local rank
  for rank in 0 1 2 3; do wait_until [ -s "$here/ready-$rank" ] || fail "rank $rank never became ready"; done
}
finish() { # waits until the job ends by itself
  wait "$job"
  job=
}
doctor() { "$tutti" doctor "$@" >"$here/doctor" 2>&1 || fail "tutti doctor failed"; }
doctor_says() { doctor && grep -qE -- "$1" "$here/doctor"; }
until_doctor_says() { wait_until doctor_says "$1" || fail "doctor never says '$1'"; } # until_doctor_says REGEX
top_says() { "$tutti" top --once >"$here/top" 2>&1 && grep -qE -- "$1" "$here/top"; }

a_killed_rank_is_named() {
  start killed
  finish
  doctor
  expect_line doctor '^What happened: rank 2 \(pid [0-9]+\) died after all_reduce #5 '
  expect_line doctor '^To blame: rank 2$'
  expect_line doctor 'rank 2 .* dead '
  expect_line doctor 'rank 0 .* after a failed all_reduce #6 '
}

a_stopped_rank_is_named() {
  start stopped
  until_doctor_says '^What happened: rank 2 .* is stopped'
  expect_line doctor '^To blame: rank 2$'
  expect_line doctor '^What to do: let it go on: kill -CONT [0-9]+$'
  until_doctor_says 'ranks 0, 1, 3 are in all_reduce #6 '
  local pid
  pid=$(sed -nE 's/.*kill -CONT ([0-9]+)$/\1/p' "$here/doctor")
  kill -CONT "$pid" || fail "the process that doctor names does not exist"
  until_doctor_says '^What happened: no problem is visible'
}

a_rank_that_calls_something_else_is_named() {
  start other
  finish
  doctor
  expect_line doctor '^What happened: the ranks disagree in their call #6: '
  expect_line doctor ' ranks 0, 1, 3 passed collective all_reduce, rank 2 passed collective broadcast\.'
  expect_line doctor '^To blame: rank 2$'
}

a_rank_that_never_comes_is_named() {
  start never
  until_doctor_says '^What happened: rank 2 .* has not entered all_reduce #6 .*: it is sleeping, after all_reduce #5 '
  expect_line doctor '^To blame: rank 2$'
  expect_line doctor 'not entered by rank 2'
  expect_no doctor 'died|stopped \('
}

one_that_came_too_late_is_named_after_the_end() {
  TUTTI_TIMEOUT_MS=$(scaled 1500) start never
  finish
  doctor
  expect_line doctor '^What happened: rank 2 .* has not entered all_reduce #6 '
  expect_line doctor '^To blame: rank 2$'
  expect_line doctor '^What to do: its process has ended since'
}

a_rank_that_leaves_early_is_named() {
  start leaves
  finish
  doctor
  expect_line doctor '^What happened: rank 2 .* destroyed its communicator, after all_reduce #5 '
  expect_line doctor '^To blame: rank 2$'
}

a_killed_job_is_not_blamed_on_one() {
  start work
  end_job
  doctor
  expect_line doctor '^What happened: all 4 processes are gone, .*none recorded an error before'
  expect_no doctor '^To blame'
}

top_shows_a_running_job() {
  start work
  "$tutti" top --once >"$here/top" 2>&1 || fail "tutti top failed"
  expect_line top '^job [0-9a-f]{8}, "recorded_job", 4 of 4 ranks on '
  expect_line top '^ +0 +[0-9]+ (sleeping|running|blocked) +[0-9]+ +[0-9]+ +[0-9.]+  (in|after) all_reduce #[0-9]+ '
  [ "$(grep -cE '^ +[0-3] +[0-9]+ ' "$here/top")" = 4 ] || fail 'not all ranks are shown'
  local number
  number=$(sed -nE 's/^job ([0-9a-f]{8}).*/\1/p' "$here/top")
  "$tutti" top --once --job "$number" >"$here/top" || fail 'the job is not found by its number'
  "$tutti" top --once --job 00000000 >"$here/top" && fail 'a job that is not there is shown'
  end_job
  "$tutti" top --once >"$here/top" && fail 'a dead job is shown'
  expect_line top 'no job runs here'
}

top_says_who_waits_for_whom() {
  start stopped
  wait_until top_says '^ +0 .* in all_reduce #6 .* waits for rank 2: not entered yet$' ||
    fail 'top does not show which rank is waited for'
  expect_line top '^ +2 +[0-9]+ stopped '
}

files_can_be_read_one_by_one() {
  start killed
  finish
  doctor "$here"/records/tutti-*-r0-*.rec "$here"/records/tutti-*-r2-*.rec
  expect_line doctor '^job [0-9a-f]{8}, 2 of 4 ranks'
  expect_line doctor 'no recording here: ranks 1, 3'
  expect_line doctor '^To blame: rank 2$'
  "$tutti" doctor "$here/out" >"$here/doctor" 2>&1 && fail 'a file that is not a recording is accepted'
  expect_line doctor 'out: the file is '
  "$tutti" doctor --job 00000000 "$here"/records/tutti-*-r0-*.rec >"$here/doctor" 2>&1 &&
    fail 'files of another job make an empty report'
  expect_line doctor 'none of the files is a recording of job 00000000'
}

files_are_their_owners_alone() {
  start work
  [ "$(stat -c %a "$TUTTI_RECORD_DIR")" = 700 ] || fail 'the folder is open to others'
  local modes
  modes=$(stat -c %a "$TUTTI_RECORD_DIR"/* | sort -u)
  [ "$modes" = 600 ] || fail "the files have the rights $modes"
  end_job
  chmod 777 "$TUTTI_RECORD_DIR"
  rm "$here"/ready-*
  start work
  wait_until grep -q 'warn: ' "$here/err"
  expect_line err 'warn: no flight recorder \(.*others may write to it.*TUTTI_RECORD_DIR'
}

without_room_the_job_runs() {
  export TUTTI_RECORD_DIR=/proc/nothing
  start dance
  finish
  [ "$(grep -c 'no flight recorder' "$here/err")" = 4 ] || fail 'not one line for each rank'
  rm "$here"/ready-*
  TUTTI_RECORD=0 start dance
  finish
  expect_no err 'flight recorder'
}

a_trace_is_written() {
  start dance
  finish
  doctor --trace "$here/trace.json"
  expect_line doctor '^What happened: no problem is visible'
  python3 - "$here/trace.json" <<'END' || fail 'the trace is not what Perfetto takes'
import json, sys
events = json.load(open(sys.argv[1]))["traceEvents"]
calls = [e for e in events if e["ph"] == "X"]
assert {e["pid"] for e in calls} == {0, 1, 2, 3}
assert sum(e["name"] == "all_reduce" for e in calls) == 4 * 10, len(calls)
assert sum(e["name"] == "send" for e in calls) == 10
assert all(e["dur"] >= 0 and e["ts"] >= 0 for e in calls)
named = {(e["pid"], e["tid"]) for e in events if e["ph"] == "M" and e["name"] == "thread_name"}
assert {(e["pid"], e["tid"]) for e in calls} == named, named
for track in named: # the events of one track must not overlap
    on = sorted((e["ts"], e["ts"] + e["dur"]) for e in calls if (e["pid"], e["tid"]) == track)
    assert all(a[1] <= b[0] + 1e-3 for a, b in zip(on, on[1:])), track
END
}

"$promise"
