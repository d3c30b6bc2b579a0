#!/usr/bin/env bash
# Tests of `tutti run` (docs/run.md). Each function with the name of a promise is one test: run_test.sh TUTTI PROMISE
set -u
tutti=$1
promise=$2
# shellcheck source=tests/support/script.sh
. "$(dirname "$0")/../../support/script.sh"
# shellcheck source=tests/support/patience.sh
. "$(dirname "$0")/../../support/patience.sh" "$tutti"

now_ms() { echo $(($(date +%s%N) / 1000000)); }
# run ARGS...: writes the output to $here/out and $here/err; sets $status (124: it hung) and $took_ms.
run() {
  local start
  start=$(now_ms)
  timeout -k 5 "$patience_s" "$tutti" run "$@" >"$here/out" 2>"$here/err"
  status=$?
  took_ms=$(($(now_ms) - start))
}
wait_for_files() { # wait_for_files NAME...: waits until the ranks have written these files
  local name
  for name in "$@"; do wait_until [ -s "$here/$name" ] || fail "$name was not written"; done
}
gone() { [ ! -d "/proc/$1" ] || grep -q '^State:.*[ZX] ' "/proc/$1/status" 2>/dev/null; }
expect_gone() { # expect_gone NAME...: the processes whose numbers are in these files must end
  local name
  for name in "$@"; do wait_until gone "$(cat "$here/$name")" || fail "process $name is still there"; done
}

lines_have_their_rank() {
  run -n 3 -- bash -c 'echo "out of $TUTTI_RANK"; echo "err of $TUTTI_RANK" >&2; printf "no newline"'
  expect_equal status $status 0
  expect_equal 'sorted stdout' "$(sort "$here/out" | tr '\n' '|')" \
    '[0] no newline|[0] out of 0|[1] no newline|[1] out of 1|[2] no newline|[2] out of 2|'
  expect_equal 'sorted stderr' "$(sort "$here/err" | tr '\n' '|')" '[0] err of 0|[1] err of 1|[2] err of 2|'
  run -n 2 --no-prefix -- echo plain
  expect_equal 'stdout without prefix' "$(tr '\n' '|' <"$here/out")" 'plain|plain|'
}

environment_is_complete() {
  TUTTI_RANK=9 TUTTI_ROOT_FD=77 run -n 2 -- bash -c 'env | grep ^TUTTI_ | sort
    (exec 3<>"/dev/tcp/${TUTTI_ROOT%:*}/${TUTTI_ROOT##*:}") 2>/dev/null && echo "somebody listens"
    [ "$TUTTI_RANK" != 0 ] || { [ -S "/proc/self/fd/$TUTTI_ROOT_FD" ] && echo inherited; }'
  for rank in 0 1; do
    for pair in "RANK=$rank" WORLD_SIZE=2 "LOCAL_RANK=$rank" LOCAL_SIZE=2 \
      'ROOT=127\.0\.0\.1:[1-9][0-9]*' 'JOB_ID=[0-9a-f]{32}' 'JOB_KEY=[0-9a-f]{64}'; do
      expect_line out "^\[$rank\] TUTTI_$pair\$"
    done
  done
  expect_equal 'ranks with the socket' "$(grep -c ROOT_FD "$here/out")" 1
  expect_line out '^\[0\] inherited$'
  expect_equal 'listeners before rank 0 makes one' "$(grep -c 'somebody listens' "$here/out")" 0
  expect_equal 'job ids' "$(sed -n 's/.*JOB_ID=//p' "$here/out" | sort -u | wc -l)" 1
}

many_lines_stay_whole() {
  "$tutti" run -n 4 -- seq 1 50000 2>&1 | awk '
    NF != 2 || $1 !~ /^\[[0-3]\]$/ || $2 != ++next_of[$1] { bad++ }
    END { print NR, bad + 0 }' >"$here/out"
  expect_equal 'lines and bad ones' "$(cat "$here/out")" '200000 0'
  # Both streams go into one file, with lines that are longer than a pipe takes at once.
  "$tutti" run -n 3 -- bash -c 'for i in $(seq 20); do
    head -c 30000 /dev/zero | tr "\0" o; echo; head -c 30000 /dev/zero | tr "\0" e >&2; echo >&2; done' 2>&1 |
    awk 'length == 30004 && /^\[[0-2]\] (o+|e+)$/ { good++ } END { print good + 0 }' >"$here/out"
  expect_equal 'long lines' "$(cat "$here/out")" 120
}

# The other ranks end after the launcher has read the exit status of rank 1, which is then no longer a zombie. The
# job must end when no rank is left, without waiting for the grace period, which is longer than the test.
first_failure_decides() {
  run -n 3 --grace-ms 3600000 -- bash -c '
    if [ "$TUTTI_RANK" = 1 ]; then echo $$ >'"$here"'/pid; exit 7; fi
    until [ -s '"$here"'/pid ] && [ ! -d "/proc/$(cat '"$here"'/pid)" ]; do sleep 0.01; done
    echo "last words of $TUTTI_RANK"; exit 9'
  expect_equal status $status 7
  expect_line err '^tutti run: rank 1 ended with exit status 7$'
  expect_line out '^\[0\] last words of 0$'
  expect_line out '^\[2\] last words of 2$'
}

survivors_get_their_grace_and_no_more() {
  run -n 2 --grace-ms 400 -- bash -c '[ "$TUTTI_RANK" = 1 ] && kill -9 $$; exec sleep 3600'
  expect_equal status $status 137
  expect_line err '^tutti run: rank 1 was killed by signal 9 \(Killed\)$'
  expect_line err '^tutti run: ending ranks 0 after 400 ms of grace$'
  [ "$took_ms" -ge 400 ] || fail "took $took_ms ms"
}

stubborn_ranks_are_killed() {
  run -n 2 --grace-ms 100 -- bash -c 'trap "" TERM; echo $$ >'"$here"'/pid$TUTTI_RANK;
    if [ "$TUTTI_RANK" = 1 ]; then until [ -s '"$here"'/pid0 ]; do sleep 0.01; done; exit 3; fi
    while :; do sleep 0.1; done'
  expect_equal status $status 3
  expect_gone pid0 pid1
}

program_must_exist() {
  run -n 2 -- "$here/no-such-program"
  expect_equal status $status 127
  expect_line err 'cannot start ".*no-such-program": No such file or directory'
  echo text >"$here/text"
  run -n 2 -- "$here/text"
  expect_equal status $status 126
  expect_line err 'Permission denied'
}

command_line_is_checked() {
  local args
  for args in '-n 2' '-n 0 -- true' '-n x -- true' '-n 2 --bogus -- true' '-- true' '-n 2 --grace-ms -1 -- true'; do
    # shellcheck disable=SC2086
    run $args
    expect_equal "status of '$args'" $status 2
    [ -s "$here/err" ] || fail "'$args' is refused without an error message"
  done
  local own program
  for own in '-n 2' '-n2' '--ranks=2 --no-prefix'; do
    for program in 'sh -c x' 'env --timeout-s 5 --epochs 3' 'tutti perf all_reduce'; do
      # shellcheck disable=SC2086
      run $own $program
      expect_equal "status of '$own $program'" $status 2
      expect_line err "-- is missing before the program; write \`tutti run $own -- $program\`"
    done
  done
}

stdin_goes_to_rank_0() {
  printf 'one\ntwo\n' | "$tutti" run -n 2 -- cat >"$here/out" 2>&1
  expect_equal stdout "$(tr '\n' '|' <"$here/out")" '[0] one|[0] two|'
}

killed_launcher_leaves_nothing() {
  "$tutti" run -n 2 -- bash -c "echo \$\$ >$here/pid\$TUTTI_RANK; exec sleep 3600" >/dev/null 2>&1 &
  local launcher=$!
  wait_for_files pid0 pid1
  kill -9 $launcher
  wait $launcher 2>/dev/null
  expect_gone pid0 pid1
}

# The ranks get as much time as the test: after the grace period they would be killed, and could not print their line.
signals_are_forwarded_and_end_the_job() {
  local signal
  for signal in TERM HUP; do
    rm -f "$here"/pid*
    "$tutti" run -n 2 --grace-ms "${patience_s%.*}000" -- \
      bash -c "trap 'echo caught; exit 0' $signal; echo \$\$ >$here/pid\$TUTTI_RANK;
      while :; do sleep 0.05; done" \
      >"$here/out" 2>"$here/err" &
    local launcher=$!
    wait_for_files pid0 pid1
    kill -$signal $launcher
    wait $launcher
    expect_equal "status after SIG$signal" $? $((128 + $(kill -l $signal)))
    expect_line out '^\[0\] caught$'
    expect_line out '^\[1\] caught$'
    expect_gone pid0 pid1
  done
}

grandchildren_are_ended() {
  run -n 2 -- bash -c "setsid sleep 3600 & echo \$! >$here/pid\$TUTTI_RANK"
  expect_equal status $status 0
  expect_gone pid0 pid1
}

# A process that does not belong to the job has the rank's output open, and writes to it as long as it can.
a_foreign_writer_does_not_hold_the_job() {
  local rank="echo \$\$ >$here/pid0; until [ -e $here/go ]; do sleep 0.01; done"
  timeout -k 5 "$patience_s" "$tutti" run -n 1 -- bash -c "$rank" >"$here/out" 2>"$here/err" &
  local launcher=$!
  wait_for_files pid0
  (while echo tick; do sleep 0.05; done) >"/proc/$(cat "$here/pid0")/fd/1" 2>/dev/null &
  local writer=$!
  wait_until grep -q tick "$here/out" || fail "the output of the writer did not arrive"
  : >"$here/go"
  wait $launcher
  expect_equal status $? 0
  wait_until gone $writer || fail "the writer can still write"
}

closed_stdout_ends_the_job() {
  local both="until [ -s $here/pid0 ] && [ -s $here/pid1 ]; do sleep 0.01; done"
  "$tutti" run -n 2 -- bash -c "echo \$\$ >$here/pid\$TUTTI_RANK; $both; exec yes" 2>"$here/err" |
    head -n 3 >"$here/out"
  expect_equal status "${PIPESTATUS[0]}" 141
  expect_equal lines "$(grep -cE '^\[[01]\] y$' "$here/out")" 3
  expect_gone pid0 pid1
}

full_disk_is_told() {
  "$tutti" run -n 1 -- echo text >/dev/full 2>"$here/err"
  expect_equal status $? 1
  expect_line err 'cannot write to stdout: No space left on device'
}

timeout_ends_the_job() {
  run -n 2 --timeout-s 0.4 -- sleep 3600
  expect_equal status $status 124
  expect_line err 'did not end within 400 ms; ranks still running: 0, 1'
  [ "$took_ms" -ge 400 ] || fail "took $took_ms ms"
}

# All ranks wait until the pipe is opened for writing. The launcher's CPU time is measured while they wait.
waiting_costs_no_cpu() {
  mkfifo "$here/end"
  "$tutti" run -n 2 -- bash -c "echo \$\$ >$here/pid\$TUTTI_RANK; : <$here/end" &
  local launcher=$! before after
  ticks() { sed 's/.*) //' /proc/$launcher/stat | awk '{ print $12 + $13 }'; }
  wait_for_files pid0 pid1
  before=$(ticks)
  sleep 1
  after=$(ticks)
  : >"$here/end"
  wait $launcher
  [ $((after - before)) -le 5 ] || fail "the launcher used $((after - before)) ticks of CPU in a second of waiting"
}

# Python's subprocess closes the descriptors that it does not know, as many wrapper scripts do. The wrapper process
# itself continues and keeps its copy of the socket.
wrapped_ranks_find_each_other() {
  local wrapper='import subprocess, sys; sys.exit(subprocess.call(sys.argv[1:]))'
  run -n 2 -- python3 -c "$wrapper" "$tutti" perf all_reduce -b 8 -e 8 -n 1 -w 0
  expect_equal status $status 0
  expect_line out '^\[0\] # Out of bounds values : 0 OK$'
  # The same descriptor number may refer to another file.
  run -n 2 -- bash -c 'if [ "$TUTTI_RANK" = 0 ]; then eval "exec $TUTTI_ROOT_FD</dev/null"; fi
    exec "$0" perf all_reduce -b 8 -e 8 -n 1 -w 0' "$tutti"
  expect_equal status $status 0
}

# The inherited socket was closed, and the rank cannot listen on TUTTI_ROOT instead. The error must give both
# reasons.
a_lost_socket_is_told_with_its_cause() {
  run -n 1 -- bash -c 'exec 3<&0; eval "exec $TUTTI_ROOT_FD>&-"
    TUTTI_WORLD_SIZE=2 TUTTI_ROOT=203.0.113.7:1 exec "$0" perf all_reduce -b 8 -e 8 --timeout-s 20' "$tutti"
  expect_equal status $status 1
  expect_line err 'cannot listen on 203\.0\.113\.7:1.*TUTTI_ROOT_FD=[0-9]* is not an open descriptor.*has closed it'
}

ranks_share_our_process_group() {
  run -n 2 -- bash -c 'sed "s/.*) //" /proc/$$/stat | cut -d" " -f3; sed "s/.*) //" /proc/$PPID/stat | cut -d" " -f3'
  expect_equal 'process groups' "$(sed 's/.* //' "$here/out" | sort -u | wc -l)" 1
}

closed_descriptors_are_harmless() {
  local perf=(perf all_reduce --ranks 2 -b 64 -e 64 -n 2)
  timeout "$patience_s" "$tutti" run -n 2 -- echo hi >&- || fail "run with a closed stdout: $?"
  timeout "$patience_s" "$tutti" "${perf[@]}" --threads >&- || fail "perf with a closed stdout: $?"
  timeout "$patience_s" "$tutti" "${perf[@]}" <&- >&- 2>&- || fail "perf with all three closed: $?"
}

# Rank 2 is killed by a signal, and the other ranks fail at once because of it. Whichever end the launcher notices
# first, it must report rank 2 as the cause.
the_killed_rank_is_named_not_those_who_gave_up() {
  for _ in 1 2 3 4 5; do
    run -n 4 --grace-ms 1000 -- bash -c "
      if [ \$TUTTI_RANK = 2 ]; then echo \$\$ >$here/pid; exec sleep 60; fi
      while [ ! -s $here/pid ]; do sleep 0.01; done
      pid=\$(cat $here/pid)
      if [ \$TUTTI_RANK = 0 ]; then sleep 0.1; kill -9 \$pid; fi
      while kill -0 \$pid 2>/dev/null && ! grep -q 'State:.Z' /proc/\$pid/status; do sleep 0.001; done
      exit 1"
    expect_equal 'exit status' "$status" 137
    expect_line err 'rank 2 was killed by signal 9'
    rm -f "$here/pid"
  done
}

"$promise"
