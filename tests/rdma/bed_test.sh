#!/usr/bin/env bash
# Tests of scripts/rdma-vm. Each function with the name of a promise is one test: bed_test.sh RDMA_VM TUTTI PROMISE
#
# Exits with status 77 (skipped) if virtual machines ("guests") cannot be started here.
set -u
rdma_vm=$1
tutti=$2
promise=$3
# shellcheck source=tests/support/script.sh
. "$(dirname "$0")/../support/script.sh"
# shellcheck source=tests/support/patience.sh
. "$(dirname "$0")/../support/patience.sh" "$tutti"

run() { # run ARGS...: writes the output to $here/out and $here/err, and sets $status
  "$rdma_vm" run "$@" >"$here/out" 2>"$here/err"
  status=$?
  if [ $status = 77 ]; then cat "$here/err" && exit 77; fi
}
in_guest() { # in_guest FUNCTION: makes a function of this script the command for run
  command=(bash "$0" "$rdma_vm" "$tutti" "$1")
}

as_if_here() {
  pwd
  echo "word is $WORD, of ours is ${NOT_PASSED-nothing}"
  echo 'for stderr' >&2
  echo thrown away >"$BED/lost" || echo 'cannot write'
  echo real >"$BED/shared/kept"
  ibv_devinfo -d "$RDMA_VM_DEVICES" | grep -o PORT_ACTIVE
  sleep 2
  echo "time $(date +%s)"
  exit 7
}
the_command_is_as_if_it_ran_here() {
  in_guest as_if_here
  mkdir "$here/shared"
  cd "$here" || exit 1
  export NOT_PASSED=something BED=$here
  local before now ours
  before=$(date +%s)
  run --env 'WORD=two  words' --env BED --share shared -- "${command[@]}"
  now=$(date +%s)
  expect_equal status $status 7
  ours=$(sed -n 's/^time //p' "$here/out")
  expect_equal stdout "$(grep -v ^time "$here/out" | tr '\n' '|')" \
    "$here|word is two  words, of ours is nothing|PORT_ACTIVE|"
  expect_equal stderr "$(cat "$here/err")" 'for stderr'
  [ ! -e "$here/lost" ] || fail 'a write outside of the shared folder is real'
  expect_equal 'the shared file' "$(cat "$here/shared/kept")" real
  # The clock of the guest must agree with ours. Its start value has a resolution of one second.
  if [ $((now - ours)) -lt -2 ] || [ $((ours - before)) -lt -2 ]; then
    fail "the guest's clock shows $ours, and the host's clock showed $before before and $now after that"
  fi
}

time_over_is_124() {
  run --time 12 -- sleep 1000
  expect_equal status $status 124
  expect_line err 'the time of 12 s ran out'
}

a_dead_guest_is_125() {
  run -- sh -c 'echo last words; echo c >/proc/sysrq-trigger'
  expect_equal status $status 125
  expect_line err 'ended without a status'
  expect_line err 'Kernel panic'
}

host_of_two() {
  echo "boot $(cat /proc/sys/kernel/random/boot_id)"
  "$tutti" perf all_reduce -b 8 -e 8K -f 32 -n 3 -w 1 || exit 1
  if [ "$RANK" = 1 ]; then exit 3; fi
  sleep 3 # the other guest has failed by then, and this one must still be able to end
  echo 'rank 0 has ended'
}
two_guests_are_two_hosts() {
  in_guest host_of_two
  run --guests 2 -- "${command[@]}"
  expect_equal status $status 3
  expect_equal 'number of boots' "$(sed -n 's/.*boot //p' "$here/out" | sort -u | wc -l)" 2
  expect_line out '^\[0\] # tutti .*: 2 ranks .*tcp transport.* 2 nodes$'
  expect_line out '^\[0\] # Out of bounds values : 0 OK$'
  expect_line out '^\[0\] rank 0 has ended$'
}

rank_with_cables() {
  echo "rank $RANK of $WORLD_SIZE has $RDMA_VM_DEVICES"
  "$tutti" perf all_reduce -b 8 -e 8K -f 32 -n 3 -w 1 || exit 1
  if [ "$RANK" = 1 ]; then exit 0; fi
  state=/sys/class/infiniband/rxe_right1/ports/1/state
  "$rdma_vm" link left1 down && echo "down: $(cat $state)"
  "$rdma_vm" link left1 up && echo "up: $(cat $state)"
  "$rdma_vm" loss left0 2 && tc qdisc show dev left0
  "$rdma_vm" link left7 down 2>&1
}
ranks_of_one_guest_have_a_cable_between_them() {
  in_guest rank_with_cables
  run --cables 2 --ranks 2 -- "${command[@]}"
  expect_equal status $status 2 # the status of rank 0's last command, which fails
  expect_line out '^\[0\] rank 0 of 2 has rxe_left0,rxe_left1$'
  expect_line out '^\[1\] rank 1 of 2 has rxe_right0,rxe_right1$'
  expect_line out '^\[0\] # Out of bounds values : 0 OK$'
  expect_line out '^\[0\] down: 1: DOWN$'
  expect_line out '^\[0\] up: 4: ACTIVE$'
  expect_line out 'netem.*loss 2%'
  expect_line out "there is no NIC 'left7'; there are: left0 left1 lo right0 right1"
}

guest_of() { # guest_of PID: prints the process number of the QEMU that this run has started
  local pid children
  read -ra children <"/proc/$1/task/$1/children"
  for pid in "${children[@]}"; do
    if [ "$(cat "/proc/$pid/comm" 2>/dev/null)" = qemu-system-x86 ]; then echo "$pid" && return; fi
  done
}
is_gone() { [ ! -d "/proc/$1" ]; }
a_killed_script_leaves_nothing() {
  local script guest='' folder tries=0
  "$rdma_vm" run -- sleep 1000 >"$here/out" 2>"$here/err" &
  script=$!
  until [ -n "$guest" ]; do
    if ! kill -0 $script 2>/dev/null; then
      wait $script
      status=$?
      [ $status = 77 ] || fail "the run has ended by itself with $status"
      cat "$here/err" && exit 77
    fi
    sleep 0.1
    tries=$((tries + 1))
    [ $tries -lt 1000 ] || fail 'no guest was started'
    guest=$(guest_of $script)
  done
  folder=$(readlink "/proc/$guest/cwd")
  [ -f "$folder/settings" ] || fail "'$folder' is no run's folder"
  kill -KILL $script
  wait $script 2>/dev/null
  wait_until is_gone "$guest" || fail "QEMU $guest lives on"
  sleep 1
  run -- true
  expect_equal status $status 0
  [ ! -e "$folder" ] || fail "the next run must remove the folder $folder of the killed run"
}

refused() { # refused REGEX ARGS...: expects that the command line is rejected with this message
  local pattern=$1
  shift
  "$rdma_vm" "$@" >"$here/out" 2>"$here/err"
  expect_equal "status of $*" $? 2
  expect_line err "$pattern"
}
command_line_is_checked() {
  refused 'deps, prepare, run' ruin
  refused 'no command' run --
  refused 'no command' run
  refused 'comes after --' run true
  refused "unknown option '--guest'" run --guest 2 -- true
  refused "guests takes a number from 1 to 8, not '9'" run --guests 9 -- true
  refused "memory takes a number .* not 'much'" run --memory much -- true
  refused 'mtu takes a number' run --mtu 08 -- true
  refused 'takes NAME=VALUE' run --env 1=2 -- true
  refused 'accel takes' run --accel warp -- true
  refused 'needs a value' run --time
  refused 'inside a guest only' link left0 down
  "$rdma_vm" --help | grep -q -- '--cables N' || fail 'no help'
}

what_is_missing_is_said() {
  local tool
  mkdir "$here/bin"
  for tool in bash dirname basename busybox python3 flock setpriv ip rdma uname; do
    ln -s "$(command -v $tool || echo /bin/false)" "$here/bin/$tool"
  done
  PATH=$here/bin "$rdma_vm" run -- true >"$here/out" 2>"$here/err"
  expect_equal status $? 77
  expect_line err 'qemu-system-x86_64 is missing; as root: scripts/setup --rdma'
}

"$promise"
