#!/usr/bin/env bash
# Tests of scripts/check-skips. Each function with the name of a promise is one test: check_skips_test.sh CHECK_SKIPS
# PROMISE. The results come from a real ctest, which runs small tests that each function writes.
set -u
check_skips=$1
promise=$2
# shellcheck source=tests/support/script.sh
. "$(dirname "$0")/../support/script.sh"
mkdir "$here/build"
echo 'TUTTI_SANITIZER:STRING=' >"$here/build/CMakeCache.txt"

# test_that NAME SCRIPT [PROPERTIES...]: adds a test to the next run of ctest.
test_that() {
  local name=$1 script=$2
  shift 2
  printf '%s\n' "$script" >"$here/build/$name.sh"
  {
    printf 'add_test([=[%s]=] bash [=[%s]=])\n' "$name" "$here/build/$name.sh"
    printf 'set_tests_properties([=[%s]=] PROPERTIES WORKING_DIRECTORY [=[%s]=] %s)\n' \
      "$name" "$here/build/tests/folder" "$*"
  } >>"$here/build/CTestTestfile.cmake"
  mkdir -p "$here/build/tests/folder"
}
# check [OPTIONS...]: runs check-skips with the list $here/skips.txt. Sets $status, and writes the output to
# $here/out.
check() {
  [ -f "$here/skips.txt" ] || : >"$here/skips.txt"
  (cd "$here/build" && ctest --output-junit "$here/results.xml" --test-output-size-passed 100000000) >"$here/ctest.log"
  "$check_skips" --build "$here/build" --list "$here/skips.txt" "$@" "$here/results.xml" >"$here/out" 2>&1
  status=$?
}
expect() { # expect STATUS PATTERN
  [ "$status" = "$1" ] || fail "status $status, not $1"
  grep -qE -- "$2" "$here/out" || fail "no line of the output matches '$2'"
}
skips_by_status='SKIP_RETURN_CODE 77'
skips_by_words='SKIP_REGULAR_EXPRESSION [=[\[  SKIPPED \]]=]'

no_skip_is_fine() {
  test_that suite.passes 'echo fine'
  check
  [ "$status" = 0 ] || fail "status $status"
}
an_unlisted_skip_fails() {
  test_that suite.skips 'echo "no such tool"; exit 77' "$skips_by_status"
  test_that Suite.Skips 'echo "[  SKIPPED ] Suite.Skips (0 ms)"' "$skips_by_words"
  echo 'suite.skip | no-nvcc | a part of the name is not the name' >"$here/skips.txt"
  check
  expect 1 '^skip not accepted: suite.skips \(no such tool\): it is not in the list$'
  expect 1 '^skip not accepted: Suite.Skips .*: it is not in the list$'
}
a_listed_skip_passes_if_its_condition_holds() {
  test_that suite.skips 'exit 77' "$skips_by_status"
  test_that suite.skips_too 'exit 77' "$skips_by_status"
  echo 'suite\.\w+ | memory<900000GiB | needs a very large machine' >"$here/skips.txt"
  check
  expect 0 '^2 skipped, memory<900000GiB: needs a very large machine$'
}
a_listed_skip_fails_if_its_condition_does_not_hold() {
  test_that suite.skips 'exit 77' "$skips_by_status"
  printf '%s\n' 'suite\.skips | memory<0GiB | never' 'suite\.skips | sanitizer=thread | never' >"$here/skips.txt"
  check
  expect 1 '^skip not accepted: suite.skips .*: its condition does not hold here: memory<0GiB, sanitizer=thread$'
}
the_build_names_the_sanitizer() {
  test_that suite.skips 'exit 77' "$skips_by_status"
  echo 'suite\.skips | sanitizer=address | the sanitizer needs it' >"$here/skips.txt"
  echo 'TUTTI_SANITIZER:STRING=address,undefined' >"$here/build/CMakeCache.txt"
  check
  expect 0 '^1 skipped, sanitizer=address'
}
an_inner_skip_is_seen() {
  test_that guest 'echo "[0] [  SKIPPED ] Verbs.Cable (3 ms)"; echo "[  SKIPPED ] 1 test, listed below:"'
  test_that brief 'echo "[  SKIPPED ] 2 tests."'
  test_that python 'seq 2000; echo "inner skip: test_gpu[a]: no driver"'
  check
  expect 1 '^skip not accepted: guest::Verbs.Cable .*not in the list$'
  expect 1 '^skip not accepted: brief::2 tests\. .*not in the list$'
  expect 1 '^skip not accepted: python::test_gpu\[a\] \(no driver\): it is not in the list$'
  [ "$(wc -l <"$here/out")" = 3 ] || fail 'there are other lines'
}
an_inner_skip_may_run_elsewhere() {
  test_that plain 'echo "[  SKIPPED ] Verbs.Cable (3 ms)"'
  test_that cables 'echo "[       OK ] Verbs.Cable (3 ms)"'
  echo 'plain::Verbs\.Cable | runs-in=cables | no cables' >"$here/skips.txt"
  check
  expect 0 '^1 skipped, runs-in=cables: no cables$'
  echo 'echo "[  SKIPPED ] Verbs.Cable (3 ms)"' >"$here/build/cables.sh"
  check
  expect 1 '^skip not accepted: plain::Verbs.Cable .*does not hold here: runs-in=cables$'
}
# ctest reports such a test as skipped, whatever its exit status is.
a_failure_behind_a_skip_is_seen() {
  test_that Suite.Leaks 'echo "[  SKIPPED ] Suite.Leaks (0 ms)"; echo "ERROR: LeakSanitizer: leaks"; exit 23' \
    "$skips_by_words"
  echo 'Suite\.Leaks | memory<900000GiB | always' >"$here/skips.txt"
  check
  grep -q '100% tests passed' "$here/ctest.log" || fail 'ctest did not report the test as passed'
  expect 1 '^skip not accepted: Suite.Leaks .*: it failed, too: LeakSanitizer'
}
a_reason_may_name_a_sanitizer() {
  test_that Suite.Races \
    'printf "%s\n" "a.cc:1: Skipped" "ThreadSanitizer would find it" "[  SKIPPED ] Suite.Races (0 ms)"' \
    "$skips_by_words"
  echo 'Suite\.Races | memory<900000GiB | always' >"$here/skips.txt"
  check
  expect 0 '^1 skipped, memory<900000GiB: always$'
}
a_disabled_test_is_a_skip() {
  test_that Suite.DISABLED_Runs 'true' 'DISABLED TRUE'
  check
  expect 1 '^skip not accepted: Suite.DISABLED_Runs \(disabled\)'
}
a_part_that_was_left_out_is_a_skip() {
  test_that suite.passes 'true'
  echo 'part train | memory<900000GiB | always' >"$here/skips.txt"
  check --skipped 'part train' --skipped 'part late'
  expect 1 '^skip not accepted: part late \(left out by scripts/test\): it is not in the list$'
  expect 1 '^1 skipped, memory<900000GiB: always$'
}
output_that_ctest_has_cut_is_refused() {
  test_that suite.passes 'seq 2000'
  (cd "$here/build" && ctest --output-junit "$here/results.xml") >"$here/ctest.log"
  "$check_skips" --build "$here/build" "$here/results.xml" >"$here/out" 2>&1
  status=$?
  expect 2 'ctest cut the output of suite.passes'
}
a_wrong_list_is_refused() {
  test_that suite.passes 'true'
  echo 'suite\.skips | no-gpux | there is no such condition' >"$here/skips.txt"
  check
  expect 2 "skips.txt:1: unknown condition 'no-gpux'"
  echo 'suite\.skips | no-gpu' >"$here/skips.txt"
  check
  expect 2 'skips.txt:1: not of the form'
  echo '(outer::)?inner | no-gpu | no half of it is an expression' >"$here/skips.txt"
  check
  expect 2 "skips.txt:1: '\(outer' is not a regular expression"
}
# count LINES...: runs check-skips --tests with these minimum numbers of tests.
count() {
  printf '%s\n' "$@" >"$here/counts.txt"
  "$check_skips" --build "$here/build" --list "$here/skips.txt" --counts "$here/counts.txt" --tests >"$here/out" 2>&1
  status=$?
}
a_folder_without_its_tests_is_seen() {
  test_that suite.one 'true'
  test_that suite.two 'true'
  echo 'suite\.(one|two) | no-gpu | exists' >"$here/skips.txt"
  count 'folder/bash | 2 | -'
  expect 0 '^2 tests'
  count 'folder/.* | 2 | -' 'gone/.* | 5 | -'
  expect 1 '^gone/\.\*: 0 tests, not 5 or more'
  count 'folder/.* | 2 | -' 'gone/.* | 5 | memory<0GiB'
  expect 1 '^gone/\.\*: 0 tests, not 5 or more'
  count 'folder/.* | 2 | -' 'gone/.* | 5 | memory<900000GiB'
  expect 0 '^2 tests'
  count 'other/.* | 0 | -'
  expect 1 '^folder/bash: has tests, and .* no minimum for it'
}
stale_entries_and_names_given_twice_are_seen() {
  test_that suite.one 'true'
  printf '%s\n' 'suite\.one::inner | no-gpu | exists' 'suite\.gone | no-gpu | is stale' >"$here/skips.txt"
  count 'folder/.* | 1 | -'
  expect 1 'no test is called suite\\\.gone$'
  [ "$(wc -l <"$here/out")" = 1 ] || fail 'another entry is stale'
  echo 'suite\.one::inner | runs-in=suite.gone | runs elsewhere' >"$here/skips.txt"
  count 'folder/.* | 1 | -'
  expect 1 'no test is called suite.gone, which runs-in=suite.gone names$'
  test_that suite.one 'true'
  count 'folder/.* | 1 | -'
  expect 1 '^1 names belong to more than one test, for example suite.one$'
}

"$promise"
