#!/usr/bin/env bash
# Tests that the first job on a machine measures the choices inside the machine (docs/tune.md). Each function with the
# name of a promise is one test: first_job_test.sh TUTTI PROMISE
set -u
tutti=$1
promise=$2
# shellcheck source=tests/support/script.sh
. "$(dirname "$0")/../../support/script.sh"
# shellcheck source=tests/support/patience.sh
. "$(dirname "$0")/../../support/patience.sh" "$tutti"
# The cores of this process, and the CPU limit of its cgroup if that is below two.
has_two_cores() {
  local limit=max period=1
  if [ -r /sys/fs/cgroup/cpu.max ]; then read -r limit period </sys/fs/cgroup/cpu.max; fi
  [ "$(nproc)" -ge 2 ] && { [ "$limit" = max ] || [ "$limit" -ge $((2 * period)) ]; }
}
has_two_cores || { echo 'two ranks need a core each' && exit 77; }
unset TUTTI_MEASURE
export XDG_CACHE_HOME=$here/cache TUTTI_LOG=info
folder=$here/cache/tutti

# job RANKS [COMMAND...]: runs a small job, with this prefix, which must succeed.
job() {
  local ranks=$1
  shift
  timeout -k 5 "$patience_s" "$@" "$tutti" run -n "$ranks" -- "$tutti" perf all_reduce -b 8 -e 8 -n 1 -w 0 \
    >"$here/out" 2>&1 || fail "the job ended with status $?"
}
has_measured() { grep -q 'measured this machine with' "$here/out"; }
# measure RANKS [COMMAND...]: runs jobs until one has measured. On a busy machine the first one may not.
measure() {
  try() { job "$@" && has_measured; }
  wait_until try "$@" || fail 'no job has measured'
}
numbers_of_ranks() { sed -n 's/^ *"ranks": \([0-9]*\),$/\1/p' "$folder"/*.json | tr '\n' ' '; }

the_first_job_measures_and_later_ones_do_not() {
  measure 2
  expect_line out 'measured this machine with 2 ranks: all_reduce by one_shot up to [0-9]+ bytes; copies .*; stored in '
  expect_equal 'ranks' "$(numbers_of_ranks)" '2 '
  local before
  before=$(sha256sum "$folder"/*)
  job 2
  ! grep -q 'measured this machine\|is not measured' "$here/out" || fail 'the second job has measured, too'
  expect_equal 'the file' "$(sha256sum "$folder"/*)" "$before"
  "$tutti" tune --explain all_reduce 8K --ranks 2 >"$here/out" 2>&1 || fail 'tune --explain'
  expect_line out "^file: $folder/[0-9a-f]+.json$"
  expect_line out 'Its sizes are those of the file: all_reduce '
  # The costs were not measured.
  expect_line out '^The costs of this machine have not been measured'
  expect_line out '^costs: host, defaults$'
}

# Noise could not be told from what is measured.
ranks_that_share_a_core_do_not_measure() {
  job 2 taskset -c "$(taskset -cp $$ | sed 's/.*: //; s/[,-].*//')"
  ! has_measured || fail 'it has measured'
  [ ! -e "$folder" ] || fail 'there is a folder'
}

# A file that could not be replaced, and a folder in which none can be created.
nothing_is_measured_without_a_writable_folder() {
  XDG_CACHE_HOME=/proc/none job 2
  ! has_measured || fail 'it has measured'
  expect_line out 'this machine is not measured: (/proc/none/tutti: |/proc belongs to another user)'
  measure 2
  local file
  file=$(echo "$folder"/*.json)
  mv "$file" "$here/elsewhere" && ln -s "$here/nothing" "$file"
  job 2
  ! has_measured || fail 'it has measured, although there is a link'
  expect_line out 'this machine is not measured: .* is not a regular file and is not replaced'
}

one_job_measures_at_a_time() {
  mkdir -p "$folder"
  flock "$folder" "$0" "$tutti" job_beside_another || exit 1
  expect_equal 'the files' "$(ls "$folder")" ''
  measure 2
}
job_beside_another() {
  XDG_CACHE_HOME=$OUTER_CACHE job 2
  ! has_measured || fail 'it has measured'
  expect_line out 'tutti is locked, because a job or `tutti tune` measures this machine'
}

settings_that_exclude_the_measurement() {
  TUTTI_MEASURE=0 job 2
  ! has_measured || fail 'it has measured with TUTTI_MEASURE=0'
  TUTTI_TUNE_FILE=/nowhere/file job 2
  ! has_measured || fail 'it has measured with a file of the user'
  for setting in TUTTI_TRANSPORT=tcp TUTTI_ATTACH=off TUTTI_CHECKSUM=1; do
    job 2 env $setting
    ! has_measured || fail "it has measured with $setting"
  done
  [ ! -e "$folder" ] || fail 'there is a folder'
}

# The job locks the folder while it measures. Rank 1 is then killed, if it is not too late. (The look at the lock takes
# the lock for a moment, which can keep the job from measuring. Then the next try counts.)
kill_rank_1() {
  rm -rf "$folder" "$here/pid"
  # shellcheck disable=SC2016 # the variables are those of the rank
  timeout -k 5 "$patience_s" "$tutti" run -n 2 --grace-ms 600000 -- \
    sh -c '[ "$TUTTI_RANK" = 0 ] || echo $$ >"$0"; exec "$@"' "$here/pid" \
    "$tutti" perf all_reduce -b 8 -e 8 -n 1 -w 0 >"$here/out" 2>&1 &
  local job=$!
  is_locked() { [ -d "$folder" ] && ! flock -n "$folder" true || [ ! -d "/proc/$job" ]; }
  wait_until is_locked || fail 'the job does not lock the folder'
  if [ -d "/proc/$job" ]; then kill -KILL "$(cat "$here/pid")" 2>/dev/null; fi
  wait "$job"
  status=$?
  grep -q 'this machine is not measured: .*rank 1' "$here/out"
}
rank_0_ends_if_rank_1_is_killed_while_measuring() {
  wait_until kill_rank_1 || fail 'rank 1 could not be killed in time'
  expect_equal status "$status" 137
}

export OUTER_CACHE=${OUTER_CACHE-$XDG_CACHE_HOME}
"$promise"
