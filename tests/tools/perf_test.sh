#!/usr/bin/env bash
# What `tutti perf` promises on the command line, one function for each promise: perf_test.sh TUTTI PROMISE
set -u
tutti=$1
promise=$2
here=$(mktemp -d)
trap 'rm -rf "$here"' EXIT

fail() {
  echo "FAILED: $*"
  head -c 3000 "$here"/out "$here"/err
  exit 1
}
perf() { # perf ARGS...: output in $here/out and $here/err, status in $status
  "$tutti" perf all_reduce "$@" >"$here/out" 2>"$here/err"
  status=$?
}
expect_good() { # expect_good ROWS ARGS...
  local rows=$1
  shift
  perf "$@"
  [ $status = 0 ] || fail "'$*' ends with status $status"
  [ "$(grep -c '^ ' "$here/out")" = "$rows" ] || fail "'$*' prints $(grep -c '^ ' "$here/out") rows, not $rows"
  grep -q '^# Out of bounds values : 0 OK$' "$here/out" || fail "'$*' has no good verdict"
}

processes_are_right() {
  local ranks
  for ranks in 1 2 3 4; do expect_good 4 --ranks $ranks -b 4 -e 4000 -f 10 -n 3 -w 1; done
}

threads_are_right() {
  local ranks
  for ranks in 1 2 3 4; do expect_good 4 --threads --ranks $ranks -b 4 -e 4000 -f 10 -n 3 -w 1; done
}

every_type_and_op_is_right() { expect_good 60 --threads --ranks 3 -d all -o all -b 1000 -e 1000 -n 1 -w 0; }

registered_memory_is_right() {
  expect_good 3 --ranks 2 --memory registered -b 12 -e 1200 -f 10 -n 3 -w 1
  expect_good 3 --threads --ranks 3 --memory registered -b 12 -e 1200 -f 10 -n 3 -w 1
}

every_algorithm_is_right() {
  local algorithm
  for algorithm in ring double_tree one_shot two_shot; do
    expect_good 2 --threads --ranks 3 --algorithm $algorithm -b 12 -e 12000 -f 1000 -n 3 -w 1
  done
}

columns_follow_in_place() {
  expect_good 1 --threads --in-place 1 -b 64 -e 64 -n 2
  awk -F '|' '/^ /{ exit !($2 ~ /-/ && $3 !~ / - /) }' "$here/out" || fail 'in place only'
  expect_good 1 --threads --in-place 0 -b 64 -e 64 -n 2
  awk -F '|' '/^ /{ exit !($2 !~ / - / && $3 ~ /-/) }' "$here/out" || fail 'out of place only'
}

joins_a_job() {
  "$tutti" run -n 3 -- "$tutti" perf all_reduce -b 64 -e 64 -n 2 >"$here/out" 2>"$here/err" || fail "status $?"
  grep -q '^\[0\] # tutti .* 3 ranks' "$here/out" || fail 'rank 0 prints no header'
  grep -q '^\[[12]\]' "$here/out" && fail 'another rank prints'
  "$tutti" run -n 2 -- "$tutti" perf all_reduce --ranks 3 -b 64 -e 64 -n 2 >"$here/out" 2>"$here/err" &&
    fail '--ranks disagrees'
  grep -q 'the job has 2 ranks' "$here/err" || fail 'no word about the ranks'
}

bad_options_are_refused() {
  "$tutti" perf all_reduce --algoritm ring >"$here/out" 2>"$here/err" && fail 'a typo in an option'
  grep -q 'unknown option --algoritm; did you mean --algorithm?' "$here/err" || fail 'no nearest option'
  "$tutti" prf >"$here/out" 2>"$here/err" && fail 'a typo in a command'
  grep -q 'unknown command prf; did you mean perf?' "$here/err" || fail 'no nearest command'
  local args
  for args in '-b 8 -e 4' '-b many' '-d float8' '-o xor' '--memory device' '-r 2' '--algorithm star' '-f 1' '--bogus' \
    '--ranks 0x' '--in-place 2' '--json /nonexistent/file' '--ranks 100000'; do
    # shellcheck disable=SC2086
    perf $args
    [ $status = 2 ] || fail "'$args' ends with status $status"
    [ -s "$here/err" ] && [ ! -s "$here/out" ] || fail "'$args' is not refused in words"
  done
  "$tutti" perf all_gather_scatter >"$here/out" 2>"$here/err"
  [ $? = 2 ] || fail 'an unknown collective is accepted'
}

disk_errors_are_told() {
  perf --ranks 1 -b 8 -e 8 -n 1 --json /dev/full
  [ $status != 0 ] || fail 'a full disk goes unnoticed'
  grep -q 'No space left on device' "$here/err" || fail 'the reason is missing'
  "$tutti" perf all_reduce --ranks 1 -b 8 -e 8 -n 1 >/dev/full 2>"$here/err" && fail 'a full stdout goes unnoticed'
  : >"$here/out"
}

"$promise"
