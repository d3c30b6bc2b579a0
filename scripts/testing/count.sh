# shellcheck shell=bash
# Sourced by scripts/test and scripts/stress-tests: counts checks, runs ctest, times the parts and prints the report.
#
# A part is a shell function part_NAME. It counts each of its checks with count_pass, count_fail or run_ctest. Its
# return value is ignored, but a part that has counted no check counts as failed. A skipped check must be listed in
# tests/skips.txt (scripts/check-skips).

passed=0
failed=0
skipped=0
failures=()  # descriptions of the failures, for the end of the report
times=()    # one line for each part, for the end of the report

count_pass() { passed=$((passed + 1)); }
count_fail() {
  failed=$((failed + 1))
  failures+=("$1")
  say "failed: $1"
}

# count_skip NAME REASON: counts a check that was not made. It also counts a failure, unless tests/skips.txt allows
# the skip.
count_skip() {
  skipped=$((skipped + 1))
  say "skipped: $1: $2"
  "$root/scripts/check-skips" --skipped "$1" || count_fail "$1 was skipped and may not be: $2"
}

# unrandomised DIR COMMAND...: runs the command. Some kernels, for example that of Ubuntu 24.04, randomise more bits
# of addresses than the thread sanitizer of GCC 12 and 13 supports. In this case programs with that sanitizer run
# without address randomisation.
unrandomised() {
  local dir=$1 bits
  shift
  bits=$(cat /proc/sys/vm/mmap_rnd_bits 2>/dev/null || echo 0)
  if [[ $dir == build/*tsan* ]] && [ "$bits" -gt 28 ] && setarch "$(uname -m)" -R true 2>/dev/null; then
    setarch "$(uname -m)" -R "$@"
  else
    "$@"
  fi
}

# what_failed LOG: prints the failed tests in a log of ctest, with the end of their output. The report repeats them,
# because a system that stores the output may cut out its middle.
what_failed() {
  awk '/^ *([0-9]+\/[0-9]+ )?Test .*\*\*\*(Failed|Timeout|Exception|Not Run)/ { ++count; inside = 1 }
    inside && (/^ *Start +[0-9]+: / || /^[0-9]+% tests passed/ || (/Test +#[0-9]+: / && !/\*\*\*/)) { inside = 0 }
    inside && count <= 5 { lines[++kept] = $0 }
    END { for (i = kept > 80 ? kept - 79 : 1; i <= kept; ++i) print lines[i] }' "$1"
}

# Converts the last line of ctest to "FAILED TOTAL".
closing_line='s/^[0-9]+% tests passed, ([0-9]+) tests? failed out of ([0-9]+)$/\1 \2/p'

# run_ctest DIR ARGUMENTS...: runs ctest in build/DIR once, and adds its counts. As many tests run at once as there are
# cores, unless -j says otherwise. A run without tests is a failure. Skipped tests must be listed in tests/skips.txt.
# The JUnit file includes the output of passed tests, which has the skips inside of them. TUTTI_MEASURE=0: jobs of
# tests do not measure the machine, because later jobs would use the result.
run_ctest() {
  local dir=build/$1 log=build/$1/ctest.log results=$root/build/$1/ctest.xml status=0 total bad left_out
  shift
  rm -f "$results"
  TUTTI_MEASURE=0 unrandomised "$dir" ctest --test-dir "$dir" -j "$(cores)" --output-on-failure --no-tests=error \
    --output-junit "$results" --test-output-size-passed 100000000 "$@" 2>&1 | tee "$log" || status=$?
  read -r bad total _ <<<"$(sed -nE "$closing_line" "$log" | tail -n 1) 0 0"
  left_out=$(grep -cE '^ *([0-9]+/[0-9]+ )?Test .*\*\*\*Skipped' "$log" || true)  # ctest counts skipped tests as passed
  passed=$((passed + total - bad - left_out))
  skipped=$((skipped + left_out))
  failed=$((failed + bad))
  if [ "$bad" -gt 0 ]; then failures+=("$dir: $bad of $total tests"$'\n'"$(what_failed "$log")"); fi
  # ctest ignores a regular expression that it cannot read. It would then run tests that should be left out.
  if grep -q '^RegularExpression::compile' "$log"; then count_fail "$dir: ctest cannot read an expression of: $*"; fi
  if [ "$status" != 0 ] && [ "$bad" -eq 0 ]; then count_fail "$dir: ctest $* ended with status $status"; fi
  check_skips "$dir" "$results"
}

# check_skips DIR RESULTS: counts one failure if any skipped test in the results is not allowed.
check_skips() {
  local report build_dir
  build_dir=$(cut -d/ -f1,2 <<<"$1")
  if report=$("$root/scripts/check-skips" --build "$build_dir" "$2" 2>&1); then
    [ -z "$report" ] || say "$report"
  else
    count_fail "$1: skips that are not accepted"$'\n'"$report"
  fi
}

# build ARGUMENTS...: calls scripts/build. If it fails, counts one failure and returns 1, so that the part ends.
build() {
  if "$root/scripts/build" "$@"; then return 0; fi
  count_fail "scripts/build $*"
  return 1
}

# check COMMAND...: makes one check, which may take 900 s, or $check_limit seconds if this variable is set. The output
# goes to a log; if the check fails, the end of the log is printed.
check() {
  local log=build/check.log
  if timeout "${check_limit:-900}" "$@" >"$log" 2>&1 </dev/null; then
    count_pass
  else
    count_fail "$*"
    tail -n 5 "$log"
    return 1
  fi
}

# processor_time: sets processor_ms to the milliseconds of processor time that the commands of this script have used so
# far, without those that still run.
processor_time() {
  mkdir -p build
  times >build/times # not in a subshell, which would have no children
  processor_ms=$(sed 's/,/./g' build/times | # some locales have a decimal comma
    LC_ALL=C awk -F '[ms ]+' 'NR == 2 { print int(1000 * (60 * $1 + $2 + 60 * $3 + $4)) }')
}

# run_part NAME:BUDGET: runs part_NAME, and records its time, its processor time and its counts. BUDGET is in minutes. A
# part that exceeds its budget is only marked, because the machine may be slow.
run_part() {
  local name=${1%:*} budget_s=$((60 * ${1#*:})) start=$SECONDS note='' processor_ms before_ms
  processor_time
  before_ms=$processor_ms
  local counts=("$passed" "$failed" "$skipped")
  say "== $name"
  "part_$name" || true  # every failure has been counted
  if [ $((passed + failed + skipped)) = $((counts[0] + counts[1] + counts[2])) ]; then
    count_fail "part $name made no check"
  fi
  part_s=$((SECONDS - start))
  if [ "$part_s" -gt "$budget_s" ]; then note=' OVER BUDGET'; fi
  part_result="$((passed - counts[0])) passed, $((failed - counts[1])) failed, $((skipped - counts[2])) skipped"
  processor_time
  times+=("$(printf '%-14s %5d s of %5d s, processor %5d s   %s%s' "$name" "$part_s" "$budget_s" \
    $(((processor_ms - before_ms + 500) / 1000)) "$part_result" "$note")")
}

# Prints the report. Its last line is the last line of every run; continuous integration reads it.
report() {
  say '== time and checks of each part'
  if [ ${#times[@]} -gt 0 ]; then printf '%s\n' "${times[@]}"; fi
  if [ ${#failures[@]} -gt 0 ]; then printf 'failed: %s\n' "${failures[@]}"; fi
  say "$passed passed, $failed failed, $skipped skipped"
  [ "$failed" = 0 ] && [ "$passed" -gt 0 ]
}
