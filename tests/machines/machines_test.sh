#!/usr/bin/env bash
# machines_test.sh MACHINES_RANK TUTTI PROMISE: tests ranks on several machines. Each promise is a function of this
# script. The machines are network namespaces (see with_machines.sh). Exit status 77: they cannot be created here.
set -u
rank_program=$1
tutti=$2
promise=$3
# shellcheck source=tests/support/patience.sh
. "$(dirname "$0")/../support/patience.sh" "$tutti"

# Checks that the machines end if their script is killed. It runs outside of them. A process that stayed alive would
# keep the pipe open.
a_killed_script_leaves_nothing() {
  local here
  here=$(mktemp -d)
  mkfifo "$here/pipe"
  # shellcheck disable=SC2016
  "$(dirname "$0")/with_machines.sh" 2 bash -c '
    for name in $MACHINES; do ip netns exec "$name" sleep 600 & done
    echo ready
    wait' >"$here/pipe" &
  exec 3<"$here/pipe"
  rm -rf "$here"
  local word
  read -r word <&3
  if [ "$word" != ready ]; then # skipped; the word is the start of the reason
    echo "$word $(cat <&3)"
    wait $!
    exit
  fi
  kill -KILL $!
  timeout "$patience_s" cat <&3 || { echo 'FAILED: a process of the machines is still alive' && exit 1; }
  ! ip netns list | grep "tutti-$!-" || { echo 'FAILED: a namespace is left' && exit 1; }
  exit 0
}

case $promise in
  a_killed_script_leaves_nothing) "$promise" ;;
  four_*) machines=4 ;;
  *) machines=2 ;;
esac
if [ -z "${MACHINES-}" ]; then
  while read -r name; do unset "$name"; done < <(compgen -e | grep -E '^TUTTI_' | grep -v '^TUTTI_TEST_')
  exec "$(dirname "$0")/with_machines.sh" "$machines" "$0" "$@"
fi
read -r -a names <<<"$MACHINES"
# shellcheck source=tests/support/script.sh
. "$(dirname "$0")/../support/script.sh"

limit_ms=$((${patience_s%.*} * 1000))
# The environment of the ranks, in addition to rank, size and root. Test cases change it.
variables=(TUTTI_INTERFACE=eth0 "TUTTI_TIMEOUT_MS=$limit_ms" "TUTTI_SETUP_TIMEOUT_MS=$limit_ms")
root=10.77.0.1:29477

now_ms() { date +%s%3N; }

# start PLACES COMMAND...: starts one rank on each machine in PLACES, all at the same time. For example, "0 0 1"
# starts ranks 0 and 1 on machine 0. LOCAL_RANK in COMMAND is replaced by the rank's number on its machine. The
# output is in $here/<rank>, the process ids in pids.
start() {
  local places=$1 rank=0 place local_rank=(0 0 0 0)
  local -a at
  read -r -a at <<<"$places"
  shift
  pids=()
  for place in "${at[@]}"; do
    ip netns exec "${names[place]}" env "${variables[@]}" TUTTI_RANK=$rank TUTTI_WORLD_SIZE=${#at[@]} \
      TUTTI_ROOT="$root" "${@/#LOCAL_RANK/${local_rank[place]}}" >"$here/$rank" 2>&1 &
    pids+=($!)
    rank=$((rank + 1))
    local_rank[place]=$((local_rank[place] + 1))
  done
}

# join: waits for all ranks and stores their exit statuses in $statuses. Ranks that hang end at their deadlines.
join() {
  local pid
  statuses=
  for pid in "${pids[@]}"; do
    wait "$pid"
    statuses+="$? "
  done 2>/dev/null
}

# all_right RANKS: checks that every rank ended with status 0.
all_right() {
  local want
  want=$(printf '0 %.0s' $(seq "$1"))
  [ "$statuses" = "$want" ] || fail "statuses are $statuses"
}

collectives() { # collectives PLACES
  start "$1" "$rank_program" collectives
  join
  all_right ${#pids[@]}
  grep -h 'calls right' "$here"/[0-9]* || fail 'no rank printed the number of its calls'
}

two_machines_of_two_ranks() { collectives '0 0 1 1'; }
uneven_machines() { collectives '0 1 1 1'; }
four_machines() { collectives '0 1 2 3'; }
four_machines_of_two_ranks() {
  collectives '0 0 1 1 2 2 3 3'
  collectives '0 1 2 3 0 1 2 3'
}
ranks_dealt_in_turn() { collectives '0 1 0 1'; }
ipv6() {
  variables=(TUTTI_INTERFACE=fd00::/64)
  root='[fd00::1]:29477'
  collectives '0 1 1'
}

interface_by_subnet() {
  variables=('TUTTI_INTERFACE=192.168.0.0/16,10.77.0.0/16')
  start '0 1 1' "$rank_program" bytes ring
  join
  all_right 3
}

wrong_interfaces_are_refused_with_the_list() {
  variables=(TUTTI_INTERFACE=eth7)
  start '0 1' "$rank_program" bytes ring
  join
  [ "$statuses" = '2 2 ' ] || fail "statuses are $statuses"
  local rank
  for rank in 0 1; do
    grep -q "no network interface \"eth7\"; there are: eth0 (10.77.0.$((rank + 1)), fd00::.*lo (127.0.0.1" \
      "$here/$rank" || fail "rank $rank: the list is missing"
  done
}

# wait_for_loop: waits until every rank has made its first calls.
wait_for_loop() {
  all_run() { [ "$(grep -l ' runs$' "$here"/[0-9]* | wc -l)" = ${#pids[@]} ]; }
  wait_until all_run || fail 'the ranks do not make calls'
}

ports_stay_in_their_range() {
  command -v ss >/dev/null || { echo 'skipped: ss is not installed' && exit 77; }
  variables=(TUTTI_INTERFACE=eth0 TUTTI_PORT_RANGE=31000-31009)
  root=10.77.0.1:31005
  start '0 0 1 1' "$rank_program" loop auto 1
  wait_for_loop
  local name port listening=0
  for name in "${names[@]}"; do
    while read -r _ _ _ address _; do
      port=${address##*:}
      listening=$((listening + 1))
      ((port >= 31000 && port <= 31009)) || fail "$address is outside the range"
      [[ $address == 10.77.0.* ]] || fail "$address is not on the interface"
    done < <(ip netns exec "$name" ss -Htnl)
  done
  [ "$listening" -ge 4 ] || fail "only $listening sockets listen: ss sees too little"
  kill -KILL "${pids[@]}"
  join
  echo "$listening sockets listen, all in their range"
}

# The ranks meet over IPv4 at TUTTI_ROOT. The program selects another address of the same cable for the data.
the_options_interface_alone_is_where_data_goes() {
  command -v ss >/dev/null || { echo 'skipped: ss is not installed' && exit 77; }
  variables=("TUTTI_TIMEOUT_MS=$limit_ms" "TUTTI_SETUP_TIMEOUT_MS=$limit_ms")
  start '0 1' "$rank_program" loop ring 1 fd00::/64
  wait_for_loop
  local name
  for name in "${names[@]}"; do
    ip netns exec "$name" ss -Htnl | grep -q '\[fd00::' || fail "no socket of $name listens on the interface"
    ip netns exec "$name" ss -Htn state established | grep -q '\[fd00::.*\[fd00::' || fail "no data of $name goes there"
  done
  kill -KILL "${pids[@]}"
  join
}

neighbours_share_memory_and_others_do_not() {
  variables+=(TUTTI_LOG=info)
  start '0 1 1' "$rank_program" bytes ring
  join
  all_right 3
  grep -q 'rank 0 of 3, transport tcp; on this machine: 1 of the 3 ranks, itself included' "$here/0" || fail 'rank 0'
  grep -q 'rank 1 of 3, transport mixed; on this machine: 2 of the 3 ranks, itself included' "$here/1" || fail 'rank 1'
  variables+=(TUTTI_TRANSPORT=shm)
  start '0 1 1' "$rank_program" bytes ring
  join
  [ "$statuses" = '2 2 2 ' ] || fail "statuses are $statuses"
  grep -q 'TUTTI_TRANSPORT=shm, but the ranks cannot all share memory' "$here/1" || fail 'shm alone goes'
}

# gVisor has no boot id, and containers may hide it. Ranks that can share memory must find each other anyway.
without_a_boot_id_neighbours_share_memory() {
  mount -t tmpfs none /proc/sys/kernel/random || fail 'the boot id cannot be hidden'
  variables+=(TUTTI_LOG=info)
  start '0 1 1' "$rank_program" bytes ring
  join
  all_right 3
  grep -q 'rank 0 of 3, transport tcp; on this machine: 1 of the 3 ranks, itself included' "$here/0" || fail 'rank 0'
  grep -q 'rank 1 of 3, transport mixed; on this machine: 2 of the 3 ranks, itself included' "$here/1" || fail 'rank 1'
}

# Set-up must fail at once, because no packets can arrive. This is tested with `tutti run` and with ranks that are
# started in another way.
a_loopback_that_is_down_is_named() {
  local start_ms took_ms name=${names[0]} whole=$((2 * limit_ms))
  variables+=("TUTTI_SETUP_TIMEOUT_MS=$whole" TUTTI_INTERFACE=lo)
  root=127.0.0.1:29477
  ip -n "$name" link set lo down
  start_ms=$(now_ms)
  ip netns exec "$name" env TUTTI_SETUP_TIMEOUT_MS=$whole "$tutti" run -n 2 -- "$rank_program" bytes ring \
    >"$here/run" 2>&1 && fail 'tutti run must fail without loopback'
  grep -q 'the loopback interface "lo" is down' "$here/run" || fail 'tutti run does not name it'
  start '0 0' "$rank_program" bytes ring
  join
  [ "$statuses" = '2 2 ' ] || fail "statuses are $statuses"
  for rank in 0 1; do grep -q '"lo" is down' "$here/$rank" || fail "rank $rank does not name it"; done
  variables=("TUTTI_SETUP_TIMEOUT_MS=$whole")
  root=10.77.0.1:29477 # packets to an address of the own machine go over loopback, too
  start '0 0' "$rank_program" bytes ring
  join
  [ "$statuses" = '2 2 ' ] || fail "statuses are $statuses"
  for rank in 0 1; do grep -q '"lo" is down' "$here/$rank" || fail "rank $rank does not name it"; done
  took_ms=$(($(now_ms) - start_ms))
  [ "$took_ms" -lt $whole ] || fail "that took $took_ms ms"
  echo "all three have ended after $took_ms ms"
}

# Runs everything on one machine that has no IPv4 address.
a_loopback_with_ipv6_alone_serves() {
  local name=${names[0]}
  ip -n "$name" addr del 127.0.0.1/8 dev lo
  ip -n "$name" addr del 10.77.0.1/24 dev eth0
  variables=()
  for transport in auto tcp; do
    ip netns exec "$name" env TUTTI_TRANSPORT=$transport "$tutti" run -n 2 -- "$rank_program" bytes ring \
      >"$here/run" 2>&1 || fail "tutti run over $transport"
    ip netns exec "$name" env TUTTI_TRANSPORT=$transport "$tutti" perf all_reduce --threads --ranks 2 -b 8 -e 8 -n 1 \
      >"$here/threads" 2>&1 || fail "threads of one process over $transport"
  done
  root=:29477 # on the default interface
  start '0 0' "$rank_program" bytes ring
  join
  all_right 2
  pids=()
  for rank in 0 1; do # a launcher that provides only the information that all ranks are on one machine
    ip netns exec "$name" env SLURM_PROCID=$rank SLURM_NTASKS=2 SLURM_LOCALID=$rank SLURM_JOB_ID=7 SLURM_STEP_ID=0 \
      SLURM_NNODES=1 "$rank_program" bytes ring >"$here/$rank" 2>&1 &
    pids+=($!)
  done
  join
  all_right 2
}

# set_hosts LINE...: sets the hosts file of this test run.
set_hosts() {
  printf '%s\n' "$@" >"$here/hosts"
  mount --bind "$here/hosts" /etc/hosts || fail 'the hosts file cannot be replaced'
}

# As in Kubernetes, a name is published only after its container runs. This includes rank 0's own name.
a_root_name_may_resolve_late() {
  set_hosts '127.0.0.1 localhost'
  root='rank-0.late:29477'
  start '0 1' "$rank_program" bytes ring
  all_wait() { [ "$(grep -l 'host "rank-0.late" has no address yet' "$here/0" "$here/1" | wc -l)" = 2 ]; }
  wait_until all_wait || fail 'the ranks do not wait for the name'
  echo '10.77.0.1 rank-0.late' >>"$here/hosts"
  join
  all_right 2
  variables+=(TUTTI_SETUP_TIMEOUT_MS=100)
  root='rank-0.never:29477'
  start '0 1' "$rank_program" bytes ring
  join
  [ "$statuses" = '2 2 ' ] || fail "statuses are $statuses"
  local rank
  for rank in 0 1; do
    grep -q 'root host "rank-0.never" could not be resolved within 100 ms' "$here/$rank" || fail "rank $rank"
  done
}

# In this case the system's resolver waits for a minute and cannot be interrupted.
a_silent_name_server_does_not_outlast_the_deadline() {
  local name start_ms took_ms
  set_hosts '127.0.0.1 localhost'
  printf 'nameserver 10.77.0.9\noptions timeout:30 attempts:2\n' >"$here/resolv"
  mount --bind "$here/resolv" /etc/resolv.conf || fail 'the name server cannot be replaced'
  for name in "${names[@]}"; do # packets to it are sent, and no machine receives them
    ip -n "$name" neigh add 10.77.0.9 lladdr 02:00:00:00:00:09 dev eth0
  done
  variables+=(TUTTI_SETUP_TIMEOUT_MS=500)
  root='rank-0.silent:29477'
  start_ms=$(now_ms)
  start '0 1' "$rank_program" bytes ring
  join
  took_ms=$(($(now_ms) - start_ms))
  [ "$statuses" = '2 2 ' ] || fail "statuses are $statuses"
  grep -q 'could not be resolved within 500 ms (the name server has not answered)' "$here/0" || fail 'rank 0'
  [ "$took_ms" -lt 50000 ] || fail "the ranks have ended after $took_ms ms"
}

one_working_address_of_a_root_name_is_enough() {
  variables=("TUTTI_TIMEOUT_MS=$limit_ms" "TUTTI_SETUP_TIMEOUT_MS=$limit_ms")
  root=dual:29477
  set_hosts '10.77.0.9 dual' 'fd00::1 dual' # no machine has the IPv4 address
  start '0 0 1' "$rank_program" bytes ring
  join
  all_right 3
  set_hosts '10.77.0.1 dual' 'fd00::1 dual' # only rank 0 has a route to its IPv4 address
  ip -n "${names[1]}" route add blackhole 10.77.0.1/32
  start '0 0 1' "$rank_program" bytes ring
  join
  all_right 3
}

# Some distributions resolve a machine's own name to 127.0.1.1, while other machines resolve it to the real address.
a_root_name_may_be_loopback_in_its_own_hosts_file() {
  variables=("TUTTI_TIMEOUT_MS=$limit_ms" "TUTTI_SETUP_TIMEOUT_MS=$limit_ms")
  root=first:29477
  echo '127.0.1.1 first' >"$here/hosts.0"
  cp "$here/hosts.0" "$here/hosts.1"
  echo '10.77.0.1 first' >"$here/hosts.2"
  # shellcheck disable=SC2016
  start '0 0 1' bash -c 'mount --bind "$0.$TUTTI_RANK" /etc/hosts && exec "$@"' "$here/hosts" "$rank_program" bytes ring
  join
  all_right 3
}

# bytes_by ALGORITHM: measures the bytes that all machines send for one all_reduce of 4 MiB, with ranks assigned
# round-robin. Each machine has two ranks that read the same counter, so the sum is divided by two.
bytes_by() {
  start '0 1 0 1' "$rank_program" bytes "$1"
  join
  all_right 4
  moved=$((($(sed -n 's/.*: \([0-9]*\) bytes left this machine/\1/p' "$here"/[0-3] | paste -sd+)) / 2))
  echo "all_reduce of 4 MiB by $1: $moved bytes over the cables"
}

# In a ring through ranks that are assigned round-robin, every hop crosses a cable: 6 x 4 MiB. In the hierarchical
# algorithm, each rank sends half of its message.
hierarchical_spares_the_cable() {
  local moved ring
  bytes_by ring
  ring=$moved
  ((ring > 25000000 && ring < 30000000)) || fail "by ring $ring bytes, not 25.2 million and headers"
  bytes_by hierarchical
  ((moved > 8000000 && moved < 10000000)) || fail "hierarchically $moved bytes, not 8.4 million"
  bytes_by hierarchical_tree
  [ "$moved" -lt $((ring / 2)) ] || fail "by tree across $moved bytes"
}

splits_follow_the_machines() {
  variables+=(TUTTI_LOG=info)
  start '0 1 0 1' "$rank_program" split LOCAL_RANK
  join
  all_right 4
  local rank said
  for rank in 0 1 2 3; do
    said=$(grep -oE 'splitting .*|rank [01] of 2, transport [a-z]*; on this machine: [0-9]' "$here/$rank" | tr '\n' '|')
    [[ $said == 'splitting by machine|rank '?' of 2, transport shm; on this machine: 2|'* ]] || fail "rank $rank: $said"
    [[ $said == *'splitting across|rank '?' of 2, transport tcp; on this machine: 1|' ]] || fail "rank $rank: $said"
  done
  grep -h 'inside has' "$here"/[0-3]
}

# Both sides must end within their deadline, and the error of every rank must name ranks beyond the cut that have not
# entered or finished the call.
a_pulled_cable_ends_every_rank() {
  local algorithm start_ms rank beyond
  variables=(TUTTI_INTERFACE=eth0 TUTTI_TIMEOUT_MS=$((limit_ms / 10)))
  for algorithm in auto ring hierarchical; do
    start '0 0 1 1' "$rank_program" loop "$algorithm" 8
    wait_for_loop
    ip link set cable1 down
    start_ms=$(now_ms)
    join
    echo "$algorithm: all have ended $(($(now_ms) - start_ms)) ms after the cable was pulled"
    [ "$statuses" = '3 3 3 3 ' ] || fail "statuses are $statuses"
    for rank in 0 1 2 3; do
      if [ $rank -lt 2 ]; then beyond='[23]'; else beyond='[01]'; fi
      grep -qE "timeout: .*(entered|finished) by ranks? ([0-9], )*$beyond" "$here/$rank" ||
        fail "$algorithm: rank $rank names no rank beyond the cut"
    done
    ip link set cable1 up
  done
}

a_rank_killed_elsewhere_is_named_by_all() {
  local algorithm start_ms rank
  for algorithm in auto ring hierarchical; do
    start '0 0 1 1' "$rank_program" loop "$algorithm" 4
    wait_for_loop
    kill -KILL "${pids[2]}"
    start_ms=$(now_ms)
    join
    echo "$algorithm: all have ended $(($(now_ms) - start_ms)) ms after rank 2 was killed"
    [ "$statuses" = '3 3 137 3 ' ] || fail "statuses are $statuses"
    for rank in 0 1 3; do
      grep -qE 'blames 2: peer lost: .*rank 2' "$here/$rank" || fail "rank $rank does not name rank 2"
    done
  done
}

# sent_again_by RANK: prints how many segments the kernel has sent again on the TCP connections of the rank.
sent_again_by() {
  ip netns exec "${names[$(($1 > 0))]}" ss -HtinpO | grep "pid=${pids[$1]}," |
    sed -nE 's|.*retrans:[0-9]+/([0-9]+).*|\1|p' | awk '{sum += $1} END {print sum + 0}'
}

# metric_of RANK: prints the same number from the metrics of the rank's recording.
metric_of() {
  "$tutti" metrics | awk -v rank=",rank=\"$1\"," \
    '/^tutti_tcp_retransmitted_segments_total/ && index($0, rank) {sum += $NF; ++n} END {print n ? sum : "none"}'
}

# Machine 1 is disconnected from the switch for a while, so that all packets are lost. Rank 0 uses only TCP. Ranks 1 and
# 2 also use shared memory. TUTTI_CHECKSUM adds the third kind of transport that passes the numbers on.
segments_that_were_sent_again_are_in_the_metrics() {
  command -v ss >/dev/null || { echo 'skipped: ss is not installed' && exit 77; }
  export TUTTI_RECORD_DIR=$here/records
  variables+=(TUTTI_CHECKSUM=1)
  start '0 1 1' "$rank_program" loop ring 1
  wait_for_loop
  local before=("$(sent_again_by 0)" "$(sent_again_by 1)") metrics
  has_lines() { [ "$(metric_of 0)" != none ] && [ "$(metric_of 1)" != none ]; }
  wait_until has_lines || fail 'the metrics have no lines before the loss'
  echo "before the loss: ${before[*]} segments in the kernels, in the metrics $(metric_of 0) $(metric_of 1)"
  ip link set cable1 nomaster
  # Rank 1 sends data only to rank 2, so it may have sent nothing to rank 0 in this time.
  sent_again() { [ "$(sent_again_by 0)" -gt "${before[0]}" ]; }
  wait_until sent_again || fail 'the kernel has sent nothing again for rank 0'
  ip link set cable1 master switch
  kill -STOP "${pids[2]}" # the other ranks wait for it and send nothing, so that their numbers do not change any more
  equal() { [ "$(metric_of 0)" = "$(sent_again_by 0)" ] && [ "$(metric_of 1)" = "$(sent_again_by 1)" ]; }
  wait_until equal || fail "metrics $(metric_of 0) $(metric_of 1), kernels $(sent_again_by 0) $(sent_again_by 1)"
  metrics="$(metric_of 0) $(metric_of 1)"
  echo "after the loss: $metrics segments, in the metrics and in the kernels"
  "$tutti" metrics | grep 'retransmitted_segments.*rank="1",peer="2"' && fail 'there is a number for shared memory'
  kill -KILL "${pids[@]}"
  join
  [ "$(metric_of 0) $(metric_of 1)" = "$metrics" ] || fail 'the recordings of the killed ranks have other numbers'
}

perf_over_two_machines() {
  start '0 0 1 1' "$tutti" perf all_reduce -b 8 -e 1M -f 64 -n 5 -w 1
  join
  all_right 4
  [ "$(cat "$here"/[0-3] | grep -c ' perf all_reduce: 4 ranks')" = 1 ] || fail 'there must be exactly one report'
  grep -q '^# Out of bounds values : 0 OK$' "$here/0" || fail 'the verdict is not OK'
}

"$promise"
