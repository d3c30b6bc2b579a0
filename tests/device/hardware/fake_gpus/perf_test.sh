#!/usr/bin/env bash
# Tests `tutti perf` with fake GPUs (see fake_gpus.sh). Usage: perf_test.sh TUTTI PROMISE. TUTTI is the program, and
# PROMISE is the name of one of the tests below.
set -u
tutti=$1
promise=$2
# shellcheck source=tests/support/script.sh
. "$(dirname "$0")/../../../support/script.sh"

perf() { # perf COLLECTIVE ARGS...: writes the output to $here/out and $here/err, and sets $status
  "$tutti" perf "$@" --memory cuda -w 0 >"$here/out" 2>"$here/err"
  status=$?
}
expect_by() { # expect_by WHO COLLECTIVE ARGS...: checks the results, and that WHO carried out the calls
  local who=$1
  shift
  perf "$@"
  [ $status = 0 ] || fail "'$*' ends with status $status"
  grep -q '^# Out of bounds values : 0 OK$' "$here/out" || fail "'$*' has no good verdict"
  grep -q "^# Calls on device memory were carried out by $who\$" "$here/out" || fail "'$*' is not by $who"
}

# All collectives that GPUs carry out, on 3 GPUs.
every_collective_is_right() {
  local collective
  for collective in all_reduce broadcast reduce all_gather reduce_scatter all_to_all gather scatter all_gather_v \
    reduce_scatter_v all_to_all_v gather_v scatter_v send_recv ping_pong; do
    FAKE_CUDA_DEVICES=3 expect_by 'the GPUs' $collective --ranks 3 -r 1 -b 1000 -e 30000 -f 30 -n 1 "$@"
  done
}
every_collective_is_right_by_processes() { every_collective_is_right; }
every_collective_is_right_by_threads() { every_collective_is_right --threads; }

# Two or four ranks share a GPU. Ranks of one process share launches; ranks of several processes run their calls in
# rounds.
ranks_share_gpus() {
  local each protocol
  for each in 2 4; do
    expect_by 'the GPUs' all_reduce --ranks 4 --ranks-per-gpu $each -b 4 -e 40000 -f 100 -n 2
    for protocol in simple ll ll128; do
      TUTTI_DEVICE_PROTOCOL=$protocol \
        expect_by 'the GPUs' all_to_all --threads --ranks 4 --ranks-per-gpu $each -b 4 -e 40000 -f 100 -n 2
    done
  done
  expect_by 'the GPUs' all_reduce --threads --ranks 2 --ranks-per-gpu 2 -d all -o all -b 1000 -e 1000 -n 1
}

# The GPUs of each machine reduce, and the host sends between the machines.
the_gpus_of_two_machines_reduce() {
  local way
  export FAKE_CUDA_DEVICES=4
  for way in --threads '--transport tcp' '--transport ucx'; do
    # shellcheck disable=SC2086  # several words
    UCX_TLS=tcp expect_by 'the GPUs' all_reduce --ranks 4 --nodes 2 -b 262144 -e 1100000 -f 2 -n 2 $way
  done
  expect_by 'the GPUs' all_reduce --ranks 4 --nodes 2 --threads -d all -b 300000 -e 300000 -n 1
  expect_by 'the GPUs' all_reduce --ranks 4 --nodes 2 --threads -o min -b 300000 -e 300000 -n 1 --in-place 1
  expect_by 'the host' all_reduce --ranks 4 --nodes 2 --threads -b 1000 -e 200000 -f 14 -n 1
  expect_by 'the host' all_gather --ranks 4 --nodes 2 --threads -b 300000 -e 300000 -n 1
}

what_the_host_does_is_told() {
  local collective
  for collective in gather_v all_to_all_v send_recv ping_pong; do
    expect_by 'the host' $collective --threads --ranks 2 --ranks-per-gpu 2 -b 1000 -e 1000 -n 1
  done
  expect_by 'the host' barrier --threads --ranks 2 -n 1
  TUTTI_DEVICE_CALLS=staged expect_by 'the host' all_reduce --ranks 2 -b 1000 -e 1000 -n 1
  FAKE_CUDA_P2P=0 expect_by 'the host' all_reduce --ranks 2 -b 1000 -e 1000 -n 1
  expect_by 'the GPUs' all_reduce --ranks 2 -b 1000 -e 1000 -n 1 --json "$here/json"
  [ "$(grep -c '"carried_out_by": "devices"' "$here/json")" = 2 ] || fail 'the JSON file does not say devices'
  expect_by 'the host' gather_v --ranks 2 --ranks-per-gpu 2 -b 1000 -e 1000 -n 1 --json "$here/json"
  grep -q '"carried_out_by": "host"' "$here/json" || fail 'the JSON file does not say host'
}

a_wrong_element_is_found() {
  perf all_reduce --ranks 2 -b 1000 -e 1000 -n 1 --corrupt 1
  [ $status = 1 ] || fail "a wrong element on a GPU ends with status $status"
}

"$promise"
