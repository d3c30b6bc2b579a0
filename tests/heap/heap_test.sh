#!/usr/bin/env bash
# Tests of libtutti_heap.so in real programs. heap_test.sh TUTTI HEAP_LIBRARY STRESS RANKS PROMISE
set -u
tutti=$1
heap=$2
stress=$3
ranks=$4
# shellcheck source=tests/support/script.sh
. "$(dirname "$0")/../support/script.sh"
# shellcheck source=tests/support/patience.sh
. "$(dirname "$0")/../support/patience.sh" "$tutti"

# expect_lines COUNT REGEX: COUNT lines of the output match the expression.
expect_lines() {
  [ "$(grep -cE -- "$2" "$here/out")" = "$1" ] || fail "not $1 lines of the output match '$2'"
}
# run OPTIONS...: runs the ranks, which must succeed.
run() {
  timeout -k 5 "$patience_s" "$tutti" run "$@" >"$here/out" 2>"$here/err" || fail "tutti run $* ended with $?"
}

calls_need_no_copies() {
  run -n 3 --shared-heap -- "$ranks"
  expect_lines 3 '3 heap segments are mapped'
  # Without the heap nothing is mapped, so the check above can fail.
  run -n 3 -- "$ranks"
  expect_lines 3 '0 heap segments are mapped'
}

later_segments_are_used() {
  run -n 2 --shared-heap -- "$ranks" segments
  # 300 blocks of 1.2 MB fill segments of 64, 64, 128 and 256 MiB. The peer has mapped those with buffers of calls.
  expect_lines 2 '[6-8] heap segments are mapped'
}

it_needs_only_the_c_library() {
  readelf -d "$heap" | grep NEEDED >"$here/out"
  if grep -v 'libc\.so\|ld-linux' "$here/out"; then fail 'it needs other libraries'; fi
}

# The messages between the two "machines" are sent from the heap.
ranks_of_two_machines_call() {
  # shellcheck disable=SC2016 # the variable is that of the rank
  run -n 4 --shared-heap -- sh -c 'TUTTI_NODE_ID=machine$((TUTTI_RANK / 2)) exec "$0"' "$ranks"
  expect_lines 4 '2 heap segments are mapped'
}

a_child_has_its_own_memory() {
  run -n 2 --shared-heap -- "$ranks" fork
  expect_lines 2 '2 heap segments are mapped'
}

a_program_may_close_the_descriptors() {
  run -n 2 --shared-heap -- "$ranks" close
  expect_lines 2 '1 heap segments are mapped' # their own
}

a_rank_with_a_limit_gets_by_without_heaps() {
  # shellcheck disable=SC2016 # the variable is that of the rank
  run -n 3 --shared-heap -- sh -c '[ "$TUTTI_RANK" != 1 ] || exec prlimit --as=8000000000 "$0"; exec "$0"' "$ranks"
  expect_lines 2 '1 heap segments are mapped' # their own
  expect_lines 1 '0 heap segments are mapped'
}

other_preloaded_libraries_stay() {
  # shellcheck disable=SC2016 # the variable is that of the rank
  LD_PRELOAD=libm.so.6 run -n 1 --shared-heap -- sh -c 'echo "[$LD_PRELOAD]"'
  expect_lines 1 '\[[^:]*/libtutti_heap.so:libm.so.6\]'
}

a_limit_is_reported() {
  (ulimit -f 1000000 && run -n 2 --shared-heap -- "$ranks") || exit 1
  expect_lines 2 '0 heap segments are mapped'
  grep -q 'the shared heap serves no memory: the size of files is limited' "$here/err" || fail 'there is no warning'

  (ulimit -v 8000000 && run -n 2 --shared-heap -- "$ranks") || exit 1
  expect_lines 2 '0 heap segments are mapped'
  grep -q 'the shared heap serves no memory: the address space of the process is limited' "$here/err" ||
    fail 'there is no warning'
}

random_calls_keep_all_contents() {
  LD_PRELOAD=$heap "$stress" 1 300000 3 >"$here/out" 2>&1 || fail 'the stress program has failed'
  expect_lines 1 '[1-9][0-9]* forks: no error'
}

python_programs_run() {
  cat >"$here/program.py" <<'PROGRAM'
import multiprocessing, os, subprocess
data = bytearray(50_000_000)
data[::4096] = b"x" * len(data[::4096])
maps = open("/proc/self/maps").read()
assert "memfd:tutti heap" in maps
context = multiprocessing.get_context("fork")
def work(number):
    data[0] = number  # of the child
    return data[4096] + number
with context.Pool(3) as pool:
    assert pool.map(work, range(30)) == [ord("x") + n for n in range(30)]
assert data[0] == ord("x")
assert subprocess.run(["echo", "hello"], capture_output=True, check=True).stdout == b"hello\n"
read_end, write_end = os.pipe()
if os.fork() == 0:
    data.extend(b"y" * 10_000_000)
    os.write(write_end, bytes([data[-1]]))
    os._exit(0)
assert os.read(read_end, 1) == b"y" and data[-1] == 0
try:
    bytearray(1 << 50)
    raise SystemExit("no MemoryError")
except MemoryError:
    pass
print("done")
PROGRAM
  LD_PRELOAD=$heap timeout -k 5 "$patience_s" python3 "$here/program.py" >"$here/out" 2>"$here/err" || fail 'it ended'
  expect_lines 1 'done'
}

"$5"
