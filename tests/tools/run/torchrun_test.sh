#!/usr/bin/env bash
# Tests that ranks which PyTorch's torchrun starts find each other. Each function with the name of a promise is one
# test: torchrun_test.sh TORCHRUN TUTTI PROMISE. Status 77 means that torchrun is not installed.
set -u
torchrun=$1
tutti=$2
promise=$3
if [ ! -x "$torchrun" ] && ! torchrun=$(command -v torchrun); then
  echo 'skipped: torch is not installed; scripts/setup --python installs it'
  exit 77
fi
variables='^(TUTTI|SLURM|PMI|PMIX|OMPI|PET|TORCHELASTIC)_'
while read -r name; do unset "$name"; done < <(compgen -e | grep -E "$variables" | grep -v '^TUTTI_TEST_')
unset RANK WORLD_SIZE LOCAL_RANK LOCAL_WORLD_SIZE MASTER_ADDR MASTER_PORT
export OMP_NUM_THREADS=1 # avoids a warning of torchrun
if [ "$promise" = two_machines_meet ] && [ -z "${MACHINES-}" ]; then
  exec "$(dirname "$0")/../../machines/with_machines.sh" 2 "$0" "$@"
fi
# shellcheck source=tests/support/script.sh
. "$(dirname "$0")/../../support/script.sh"
# shellcheck source=tests/support/patience.sh
. "$(dirname "$0")/../../support/patience.sh" "$tutti"
limit_s=$(scaled 150) # for one job
# shellcheck source=tests/support/ports.sh
. "$(dirname "$0")/../../support/ports.sh"
perf=("$tutti" perf all_reduce -b 64 -e 64 -w 1)

expect_one_report() { # expect_one_report RANKS FILE
  [ "$(grep -c " perf all_reduce: $1 ranks" "$2")" = 1 ] || fail "not one report of $1 ranks in ${2##*/}"
  grep -q '^# Out of bounds values : 0 OK$' "$2" || fail "no report of right results in ${2##*/}"
}
somebody_listens() { (: <>"/dev/tcp/127.0.0.1/$1") 2>/dev/null; }

# The store of torchrun's agent occupies MASTER_PORT during the set-up of the ranks.
starts_every_rank() {
  local log port
  port=$(free_port 9) # for the store, and for the eight ports that the ranks try afterwards
  TUTTI_LOG=info timeout "$limit_s" "$torchrun" --master-port "$port" --nproc-per-node 4 --no-python "${perf[@]}" \
    >"$here/out" 2>"$here/err" || fail "status $?"
  expect_one_report 4 "$here/out"
  log="torchrun: rank 3 (RANK), 4 ranks (WORLD_SIZE), local rank 3 (LOCAL_RANK), .*ports $((port + 1)) to $((port + 8))"
  grep -q "$log" "$here/err" || fail 'rank 3 was not found by its variables'
}

jobs_at_the_same_time_stay_apart() {
  local job pids=() ports
  # The two jobs use neighbouring ports. So the store or the ranks of the other job occupy the first port that each
  # job tries. The store of the second job starts first, because torchrun does not look for another port.
  ports=$(free_port 10)
  for job in 1 0; do
    timeout "$limit_s" "$torchrun" --master-port $((ports + job)) --nproc-per-node $((2 + job)) --no-python \
      "${perf[@]}" >"$here/out$job" 2>"$here/err$job" &
    pids[job]=$!
    if [ "$job" = 1 ]; then wait_until somebody_listens $((ports + 1)) || fail 'no store of job 1'; fi
  done
  for job in 0 1; do wait "${pids[job]}" || fail "job $job ends with status $?"; done
  expect_one_report 2 "$here/out0"
  expect_one_report 3 "$here/out1"
}

# The shell commands of a rank that works until the heading of the job is in the file $OUT, and then kills itself.
# shellcheck disable=SC2016
until_killed='"$@" -n 10000000 &
  until grep -q " perf all_reduce: . ranks" "$OUT"; do sleep 0.05; done
  kill -9 $! $$'

# The job starts three times. Rank 2 fails before it joins, while the others wait for it; then in the middle of its
# work; and then not at all.
restarts_find_each_other_anew() {
  cat >"$here/life" <<LIFE
#!/bin/bash
if [ "\$RANK" = 2 ]; then
  case \$TORCHELASTIC_RESTART_COUNT in
    0) sleep 0.5 && exit 9 ;;
    1) $until_killed ;;
  esac
elif [ "\$TORCHELASTIC_RESTART_COUNT" = 1 ]; then
  exec "\$@" -n 10000000
fi
exec "\$@"
LIFE
  chmod +x "$here/life"
  OUT=$here/out timeout "$limit_s" "$torchrun" --master-port "$(free_port 9)" --nproc-per-node 4 --max-restarts 2 \
    --no-python "$here/life" "${perf[@]}" >"$here/out" 2>"$here/err" || fail "status $?"
  # The second attempt prints a heading as well. The first attempt does not get that far.
  [ "$(grep -c ' perf all_reduce: 4 ranks' "$here/out")" = 2 ] || fail 'there were not two attempts with a heading'
  [ "$(grep -c '^# Out of bounds values : 0 OK$' "$here/out")" = 1 ] ||
    fail 'there is not exactly one report of right results'
}

a_failing_rank_fails_the_job() {
  local status=0
  # shellcheck disable=SC2016
  OUT=$here/out timeout "$limit_s" "$torchrun" --master-port "$(free_port 9)" --nproc-per-node 3 --no-python \
    bash -c 'if [ "$RANK" = 1 ]; then '"$until_killed"'; fi; exec "$@" -n 10000000' rank "${perf[@]}" \
    >"$here/out" 2>"$here/err" || status=$?
  [ "$status" = 1 ] || fail "status $status"
  # Check that the ranks had joined. The output of the survivors may be cut off by the SIGTERM of their agent.
  grep -q ' perf all_reduce: 3 ranks' "$here/out" || fail 'the job had not started'
  # The agent names the rank that it sees end first. That is the killed rank, or one that has reported the death of
  # the killed rank.
  grep -qE 'exitcode: -9\) local_rank: 1 |rank 1 is gone' "$here/err" || fail 'something else has failed'
}

# One agent on each of two machines, with two ranks each.
two_machines_meet() {
  local names node pids=()
  read -r -a names <<<"$MACHINES"
  for node in 1 0; do
    ip netns exec "${names[node]}" env TUTTI_INTERFACE=eth0 GLOO_SOCKET_IFNAME=eth0 TUTTI_LOG=info \
      timeout "$limit_s" "$torchrun" --nnodes 2 --node-rank $node --master-addr 10.77.0.1 --master-port 29500 \
      --nproc-per-node 2 --no-python "${perf[@]}" >"$here/out$node" 2>"$here/err$node" &
    pids+=($!)
  done
  for node in 0 1; do wait "${pids[node]}" || fail "an agent ends with status $?"; done
  expect_one_report 4 "$here/out0"
  grep -q 'rank 3 of 4, transport mixed; on this machine: 2 of the 4 ranks, itself included' "$here/err1" ||
    fail 'rank 3 is elsewhere'
}

"$promise"
