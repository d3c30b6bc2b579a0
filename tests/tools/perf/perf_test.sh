#!/usr/bin/env bash
# Tests of `tutti perf` on the command line. Each function with the name of a promise is one test: perf_test.sh TUTTI
# PROMISE
set -u
tutti=$1
promise=$2
# shellcheck source=tests/support/script.sh
. "$(dirname "$0")/../../support/script.sh"

perf() { # perf ARGS...: writes the output to $here/out and $here/err, and sets $status
  "$tutti" perf all_reduce "$@" >"$here/out" 2>"$here/err"
  status=$?
}
expect_good() { # expect_good ROWS ARGS...
  local rows=$1
  shift
  perf "$@"
  [ $status = 0 ] || fail "'$*' ends with status $status"
  [ "$(grep -c '^ ' "$here/out")" = "$rows" ] || fail "'$*' prints $(grep -c '^ ' "$here/out") rows, not $rows"
  grep -q '^# Out of bounds values : 0 OK$' "$here/out" || fail "'$*' does not report that all results are right"
}

processes_are_right() {
  local ranks
  for ranks in 1 2 3 4; do expect_good 4 --ranks $ranks -b 4 -e 4000 -f 10 -n 3 -w 1; done
}

threads_are_right() {
  local ranks
  for ranks in 1 2 3 4; do expect_good 4 --threads --ranks $ranks -b 4 -e 4000 -f 10 -n 3 -w 1; done
}

every_type_and_op_is_right() { expect_good 72 --threads --ranks 3 -d all -o all -b 1000 -e 1000 -n 1 -w 0; }

# Uses the fake CUDA driver, which is in a folder next to that of the tool.
cuda_memory_is_right() {
  local double
  double=$(dirname "$(dirname "$tutti")")/fake_driver
  LD_LIBRARY_PATH=$double expect_good 2 --ranks 3 --ranks-per-gpu 2 --memory cuda -b 12 -e 120000 -f 10000 -n 3 -w 1
  local collective
  for collective in broadcast reduce_scatter all_gather_v all_to_all_v gather scatter send_recv barrier; do
    LD_LIBRARY_PATH=$double "$tutti" perf $collective --threads --ranks 3 --memory cuda -b 1000 -e 1000 -n 2 -w 1 \
      >"$here/out" 2>"$here/err" || fail "$collective on cuda memory ends with status $?"
    grep -q '^# Out of bounds values : 0 OK$' "$here/out" ||
      fail "$collective does not report that all results are right"
  done
  LD_LIBRARY_PATH=$double perf --ranks 2 --memory cuda -b 1000 -e 1000 --corrupt 1
  [ $status = 1 ] || fail "a wrong element on a GPU ends with status $status"
}

# On a machine without a GPU.
cuda_memory_needs_a_driver() {
  # a driver is installed
  if LD_LIBRARY_PATH='' perf --ranks 1 --memory cuda -b 8 -e 8 && [ $status = 0 ]; then exit 77; fi
  grep -q 'install NVIDIA.s driver\|no device\|is a GPU there' "$here/err" || fail "does not say what is missing"
}

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

# Runs every collective, with both types of memory, with the given options.
every_collective_is_right() { # RANKS ROOT ARGS...
  local ranks=$1 root=$2
  shift 2
  local collective memory verdict rows
  for collective in all_reduce broadcast reduce all_gather reduce_scatter all_to_all gather scatter barrier send_recv \
    all_gather_v reduce_scatter_v all_to_all_v gather_v scatter_v; do
    for memory in plain registered; do
      "$tutti" perf $collective --threads --ranks $ranks -r $root --memory $memory -b 4 -e 400000 -f 100000 \
        -n 2 -w 0 "$@" >"$here/out" 2>"$here/err" || fail "'$collective $memory $*' ends with status $?"
      verdict='0 OK'
      [ "$collective $*" != 'barrier --nodes 2' ] || verdict='N/A' # the clocks of several machines cannot be compared
      grep -q "^# Out of bounds values : $verdict\$" "$here/out" ||
        fail "'$collective $memory $*' does not report that all results are right"
      rows=2
      [ $collective != barrier ] || rows=1
      [ "$(grep -c '^ ' "$here/out")" = $rows ] || fail "'$collective $memory $*' does not print $rows rows"
    done
  done
}

every_collective_is_right_over_shm() { every_collective_is_right 3 1 --transport shm; }

every_collective_is_right_over_tcp() { every_collective_is_right 3 1 --transport tcp; }

every_collective_is_right_over_two_nodes() { every_collective_is_right 3 1 --nodes 2; }

every_collective_is_right_for_one_rank() { every_collective_is_right 1 0 --nodes 1; }

nodes_split_a_job_of_processes() {
  "$tutti" run -n 5 -- "$tutti" perf all_gather_v --nodes 2 -b 64 -e 64 -n 2 -w 0 >"$here/out" 2>"$here/err" ||
    fail "status $?"
  grep -q 'perf all_gather_v: 5 ranks .* mixed transport, .* 2 nodes' "$here/out" || fail 'no two machines'
  "$tutti" perf broadcast --ranks 5 --nodes 2 -r 4 -b 64 -e 64 -n 2 -w 0 >"$here/out" 2>"$here/err" ||
    fail "status $?"
  grep -q 'perf broadcast: 5 ranks (processes), root 4, .* mixed transport, .* 2 nodes' "$here/out" || fail 'the header'
}

# Every rank must fail, whichever rank has the wrong element, and whichever buffer the element is in.
a_wrong_element_fails_every_rank() {
  local collective rank
  for collective in all_reduce all_to_all_v gather send_recv; do
    for rank in 0 2; do
      "$tutti" run -n 3 --no-prefix -- sh -c '"$@"; echo "status $?"' sh \
        "$tutti" perf $collective -b 4000 -e 4000 -n 2 -w 0 --corrupt $rank >"$here/out" 2>"$here/err"
      [ "$(grep -c '^status 1$' "$here/out")" = 3 ] || fail "not all ranks fail in $collective, rank $rank is wrong"
      grep -q '^# Out of bounds values : [1-9][0-9]* FAILED$' "$here/out" || fail 'no bad verdict'
    done
  done
  "$tutti" perf all_reduce --threads --ranks 3 -b 8 -e 8 -n 1 -w 0 --corrupt 2 >"$here/out" 2>"$here/err"
  [ $? = 1 ] || fail 'threads do not notice'
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
  grep -q 'the job has 2 ranks' "$here/err" || fail 'the message does not give the number of ranks'
}

bad_options_are_refused() {
  "$tutti" perf all_reduce --algoritm ring >"$here/out" 2>"$here/err" && fail 'a typo in an option'
  grep -q 'unknown option --algoritm; did you mean --algorithm?' "$here/err" || fail 'no nearest option'
  "$tutti" prf >"$here/out" 2>"$here/err" && fail 'a typo in a command'
  grep -q 'unknown command prf; did you mean perf?' "$here/err" || fail 'no nearest command'
  local args
  for args in '-b 8 -e 4' '-b many' '-d float8' '-o xor' '--memory device' '-r 2' '--algorithm star' '-f 1' '--bogus' \
    '--ranks 0x' '--in-place 2' '--ranks 100000' '--transport ib' '--nodes 0' '--nodes 3' '--nodes 2 --transport shm' \
    '--algorithm pairwise' '--corrupt 2'; do
    # shellcheck disable=SC2086
    perf $args
    [ $status = 2 ] || fail "'$args' ends with status $status"
    [ -s "$here/err" ] && [ ! -s "$here/out" ] || fail "'$args' is not refused with an error message"
  done
  "$tutti" perf all_gather --algorithm two_shot >"$here/out" 2>"$here/err" && fail 'an algorithm of another collective'
  grep -q 'is not one of auto, ring, ' "$here/err" || fail 'no list of the algorithms'
  "$tutti" run -n 2 -- "$tutti" perf gather -r 2 >"$here/out" 2>"$here/err"
  [ $? = 2 ] || fail 'a root outside of the job'
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

# No machine has 4 TiB of memory for this test. No memory is allocated for the row that is left out.
messages_beyond_memory_are_left_out() {
  local how words='^# messages of more than 8 bytes are left out: messages of 1.0 TiB need 4.0 TiB of memory for 2'
  for how in --ranks=2 '--ranks=2 --threads'; do
    # shellcheck disable=SC2086
    expect_good 1 $how -b 8 -e 1024G -f 137438953472 -n 1 -w 0 --json "$here/json"
    grep -q "$words ranks.*and [0-9.]* [MGT]iB are available" "$here/out" ||
      fail "$how: the needed and the available memory are not reported"
    grep -q '"left_out": "messages of more than 8 bytes' "$here/json" ||
      fail "$how: the file does not contain the reason"
  done
  perf --ranks 2 -b 1024G -e 1024G
  [ $status = 1 ] || fail "with nothing that fits: status $status"
  grep -q 'nothing can be measured: messages of 1.0 TiB need 4.0 TiB' "$here/err" || fail 'the reason is not reported'
}

"$promise"
