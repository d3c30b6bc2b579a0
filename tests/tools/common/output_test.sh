#!/usr/bin/env bash
# Tests of every command of tutti when its output cannot be written: output_test.sh TUTTI PROMISE
set -u
tutti=$1
promise=$2
here=$(mktemp -d)
trap 'rm -rf "$here"' EXIT
# shellcheck source=tests/support/patience.sh
. "$(dirname "$0")/../../support/patience.sh" "$tutti"

# Expects that the command fails with status 1, and that the message gives the reason in the usual form.
fails() { # fails NAME ARGS...
  local name=$1
  shift
  timeout -k 5 "$patience_s" "$tutti" "$@" >/dev/full 2>"$here/err"
  local status=$?
  if [ "$status" != 1 ] || ! grep -q "^$name: .*cannot write to stdout: " "$here/err"; then
    echo "FAILED: tutti $*: status $status" && cat "$here/err"
    failed=1
  fi
}

a_full_disk_fails_every_command() {
  failed=0
  fails tutti --version
  fails tutti --help
  for command in run perf plan points verify topo sim top doctor metrics tune; do
    fails "tutti $command" "$command" --help
  done
  fails 'tutti run' run -n 1 -- echo text
  fails 'tutti perf' perf all_reduce --ranks 2 --threads -b 8 -e 8 -n 1
  fails 'tutti plan' plan all_reduce --algorithm ring --ranks 2
  fails 'tutti verify' verify --ranks 2 --collective all_reduce --algorithm ring
  fails 'tutti topo' topo
  fails 'tutti sim' sim all_reduce --shape dgx-h100 --nodes 2 --bytes 1K
  fails 'tutti metrics' metrics
  exit $failed
}

# The same for files that a command writes. The full disk is noticed only when the work has been done.
a_full_disk_fails_every_file() {
  failed=0
  local plan=(plan all_reduce --algorithm ring --ranks 2) perf=(perf all_reduce --ranks 2 --threads -b 8 -e 8 -n 1)
  local full=/dev/full
  fails_to_write "${plan[@]}" --json $full
  fails_to_write "${plan[@]}" --svg $full
  fails_to_write "${plan[@]}" --bytes 8 --goal $full
  fails_to_write "${perf[@]}" --json $full
  fails_to_write "${perf[@]}" --csv $full
  fails_to_write topo --write-xml $full
  fails_to_write topo --svg $full
  fails_to_write sim all_reduce --json $full
  fails_to_write sim all_reduce --svg $full
  fails_to_write metrics --output $full
  fails_to_write tune --regret --ranks 2 --sizes 8 --transports shm --rounds 1 --point-s 0.01 --csv $full
  exit $failed
}

fails_to_write() { # fails_to_write ARGS...
  timeout -k 5 "$patience_s" "$tutti" "$@" >"$here/out" 2>"$here/err"
  local status=$?
  if [ "$status" != 1 ] || ! grep -q "^tutti $1: .*cannot write /dev/full: No space left on device$" "$here/err"; then
    echo "FAILED: tutti $*: status $status" && cat "$here/err"
    failed=1
  fi
}

"$promise"
