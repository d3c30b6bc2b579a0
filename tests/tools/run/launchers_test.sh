#!/usr/bin/env bash
# Tests that ranks which other launchers start find each other. Each function with the name of a promise is one test:
# launchers_test.sh TUTTI PROMISE. The MPI launchers are real. The test imitates torchrun, srun and Kubernetes with
# their environment variables. Status 77 means that a launcher is not installed.
set -u
tutti=$1
promise=$2
# shellcheck source=tests/support/script.sh
. "$(dirname "$0")/../../support/script.sh"
# shellcheck source=tests/support/patience.sh
. "$(dirname "$0")/../../support/patience.sh" "$tutti"
# shellcheck source=tests/support/ports.sh
. "$(dirname "$0")/../../support/ports.sh"
limit_s=$(scaled 100) # for one job; ranks that an MPI starts may have to share a core
while read -r name; do unset "$name"; done < <(compgen -e | grep -E '^(SLURM|PMI|PMIX|OMPI|PET|TORCHELASTIC)_')
unset RANK WORLD_SIZE LOCAL_RANK LOCAL_WORLD_SIZE MASTER_ADDR MASTER_PORT
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
# In a sanitizer build, the leak check also examines the MPI's own library, which has leaks.
echo 'leak:libpmix' >"$here/.suppressions"
export LSAN_OPTIONS="suppressions=$here/.suppressions:print_suppressions=0"
open_mpi=("$(dirname "$0")/../../support/open_mpi.sh" mpirun.openmpi)
perf=("$tutti" perf all_reduce -b 64 -e 64 -n 2 -w 1)

need() { command -v "$1" >/dev/null || { echo "$1 is not installed" && exit 77; }; }
expect_one_report() { # expect_one_report RANKS: $here/out must contain one report with right results
  [ "$(grep -c " perf all_reduce: $1 ranks" "$here/out")" = 1 ] || fail "not one report of $1 ranks"
  grep -q '^# Out of bounds values : 0 OK$' "$here/out" || fail 'the report does not show that all results are right'
}

# play RANKS VARIABLES_OF_RANK: starts each rank with the environment variables that VARIABLES_OF_RANK RANK prints.
# Their output goes to $here/out and $here/err, and their exit statuses to $statuses.
play() {
  local ranks=$1 variables_of=$2 rank pids=() pid
  statuses=
  for ((rank = ranks - 1; rank >= 0; rank--)); do
    # shellcheck disable=SC2046
    env $($variables_of "$rank") timeout "$limit_s" "${perf[@]}" >>"$here/out" 2>>"$here/err" &
    pids+=($!)
  done
  for pid in "${pids[@]}"; do
    wait "$pid"
    statuses+="$? "
  done
}
expect_statuses() { [ "$statuses" = "$1" ] || fail "statuses are $statuses"; }

mpirun_of_open_mpi() {
  need mpirun.openmpi
  local run
  for run in 1 2 3; do
    timeout "$limit_s" "${open_mpi[@]}" -n 4 --oversubscribe "${perf[@]}" >"$here/out" 2>"$here/err" ||
      fail "run $run: status $?"
    expect_one_report 4
  done
}

# Each rank assumes that it is alone on its machine, so the ranks must find each other through the launcher's store.
mpirun_of_open_mpi_over_machines() {
  need mpirun.openmpi
  local run
  for run in 1 2 3; do
    timeout "$limit_s" "${open_mpi[@]}" -n 3 --oversubscribe -x TUTTI_INTERFACE=lo \
      env OMPI_COMM_WORLD_LOCAL_SIZE=1 OMPI_COMM_WORLD_LOCAL_RANK=0 "${perf[@]}" >"$here/out" 2>"$here/err" ||
      fail "run $run: status $?"
    expect_one_report 3
  done
}

mpirun_of_mpich() {
  need mpirun.mpich
  local run
  for run in $(seq 8); do # MPICH may sporadically take the normal end of a rank for a crash, so repeat it
    timeout "$limit_s" mpirun.mpich -n 4 "${perf[@]}" >"$here/out" 2>"$here/err" || fail "run $run: status $?"
    expect_one_report 4
  done
}

jobs_at_the_same_time_stay_apart() {
  need mpirun.mpich
  need mpirun.openmpi
  local job pids=() pid
  for job in 1 2; do
    timeout "$limit_s" mpirun.mpich -n 2 "${perf[@]}" >"$here/mpich$job" 2>&1 &
    pids+=($!)
    timeout "$limit_s" "${open_mpi[@]}" -n 2 --oversubscribe "${perf[@]}" >"$here/openmpi$job" 2>&1 &
    pids+=($!)
  done
  for pid in "${pids[@]}"; do wait "$pid" || fail "a job ends with status $?"; done
  for job in mpich1 mpich2 openmpi1 openmpi2; do
    cp "$here/$job" "$here/out"
    expect_one_report 2
  done
}

mpirun_of_mpich_over_machines() {
  need mpirun.mpich
  timeout "$limit_s" mpirun.mpich -n 3 -genv TUTTI_INTERFACE lo env MPI_LOCALNRANKS=1 MPI_LOCALRANKID=0 "${perf[@]}" \
    >"$here/out" 2>"$here/err" || fail "status $?"
  expect_one_report 3
}

ranks_asked_for_are_started_inside_a_job_too() {
  need mpirun.mpich
  timeout "$limit_s" mpirun.mpich -n 1 "${perf[@]}" --ranks 3 >"$here/out" 2>"$here/err" || fail "status $?"
  expect_one_report 3
}

torchrun_variables() {
  echo "RANK=$1 WORLD_SIZE=3 LOCAL_RANK=$1 LOCAL_WORLD_SIZE=3 GROUP_RANK=0 ROLE_RANK=$1 GROUP_WORLD_SIZE=1
    ROLE_WORLD_SIZE=3 MASTER_ADDR=localhost MASTER_PORT=$port TORCHELASTIC_RUN_ID=none
    TORCHELASTIC_RESTART_COUNT=${restart:-0} TORCHELASTIC_MAX_RESTARTS=3 TORCHELASTIC_USE_AGENT_STORE=True"
}

# The agent's store listens on MASTER_PORT and does not speak the protocol of the ranks. Another program has the next
# port.
torchrun_with_its_agent_on_the_port() {
  need perl
  local agent restart port
  port=$(free_port 9) # for the store, and for the eight ports that the ranks try afterwards
  # shellcheck disable=SC2016
  perl -MIO::Socket::INET -e '
    my @sockets = map { IO::Socket::INET->new(LocalAddr => "127.0.0.1", LocalPort => $_, Listen => 50) }
        $ARGV[0], $ARGV[0] + 1;
    exit 1 if grep { !$_ } @sockets;
    $| = 1;
    print "ready\n";
    while (my $one = $sockets[1]->accept()) { print $one "who are you?\n"; close($one); }' "$port" >"$here/port" &
  agent=$!
  wait_until [ -s "$here/port" ] || fail 'the agent did not start'
  for restart in 0 1; do
    : >"$here/out"
    play 3 torchrun_variables
    expect_statuses '0 0 0 '
    expect_one_report 3
  done
  kill $agent
}

srun_variables() {
  echo "SLURM_PROCID=$1 SLURM_NTASKS=3 SLURM_LOCALID=$1 SLURM_NODEID=0 SLURM_JOB_ID=$$ SLURM_STEP_ID=0
    SLURM_STEP_NUM_TASKS=3 SLURM_NNODES=1 SLURM_STEP_NUM_NODES=1 SLURM_STEP_NODELIST=n[07]"
}
srun_over_hosts_variables() {
  echo "$(srun_variables "$1") SLURM_STEP_NUM_NODES=2 SLURM_NNODES=2 SLURM_STEP_NODELIST=localhost,n[07-08]
    SLURM_STEP_ID=1"
}
srun_on_one_host_and_on_several() {
  play 3 srun_variables
  expect_statuses '0 0 0 '
  expect_one_report 3
  : >"$here/out"
  play 3 srun_over_hosts_variables
  expect_statuses '0 0 0 '
  expect_one_report 3
}

kubernetes_variables() {
  echo "RANK=$1 WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 MASTER_PORT=$port PET_NNODES=2
    PET_NPROC_PER_NODE=${per_node:-1} PET_NODE_RANK=$1"
}
kubernetes_with_one_rank_a_pod() {
  local port
  port=$(free_port)
  play 2 kubernetes_variables
  expect_statuses '0 0 '
  expect_one_report 2
  local per_node=8
  play 2 kubernetes_variables
  expect_statuses '1 1 '
  grep -q 'PET_NPROC_PER_NODE=8 .*RANK counts nodes here' "$here/err" || fail 'the reason is missing'
}

contradictory_variables() { echo "$(srun_variables "$1") SLURM_STEP_NUM_TASKS=1"; }
contradictions_are_told() {
  play 2 contradictory_variables
  grep -q 'SLURM_PROCID=1 and SLURM_STEP_NUM_TASKS=1 contradict each other' "$here/err" || fail 'the reason is missing'
}

unique_id_variables() { echo "TUTTI_RANK=$1 TUTTI_WORLD_SIZE=2 TUTTI_UNIQUE_ID=00ff"; }
bad_unique_ids_are_told() {
  play 2 unique_id_variables
  expect_statuses '1 1 '
  grep -q 'a unique id has 256 hexadecimal digits, not 4' "$here/err" || fail 'the reason is missing'
}

missing_rank_variables() { echo "$(srun_variables "$1") TUTTI_SETUP_TIMEOUT_MS=$limit_ms"; }
a_missing_rank_is_named_to_all() {
  # Both ranks must join within the limit. A machine that is too busy for the short limit gets a longer one.
  local limit_ms
  for limit_ms in 700 3000 12000; do
    : >"$here/err"
    play 2 missing_rank_variables
    expect_statuses '1 1 '
    [ "$(grep -c "rank(s) 2 of 3 did not join within $limit_ms ms" "$here/err")" != 2 ] || return 0
  done
  fail 'not both ranks reported the missing rank'
}

"$promise"
