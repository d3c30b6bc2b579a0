#!/usr/bin/env bash
# Tests of scripts/test: its parts, its time limit and its ledger. Each function with the name of a promise is one
# test: testing_test.sh ROOT PROMISE. The scripts are copied into a new repository, in which the test replaces the
# parts by short ones.
set -u
# otherwise variables of a git hook would redirect the commits of this test into the hook's repository
unset "${!GIT_@}"
source_root=$1
promise=$2
# shellcheck source=tests/support/script.sh
. "$(dirname "$0")/../support/script.sh"

expect_status() { [ "$status" -eq "$1" ] || fail "status $status, not $1"; }

# Replaces the real parts: `good` passes, `bad` fails, and `slow` takes longer than its budget of 0 minutes.
make_tree() {
  mkdir -p "$here/tree/scripts" "$here/tree/docs" "$here/tree/src"
  cp -r "$source_root"/scripts/{test,lib.sh,testing,check-skips,skips} "$here/tree/scripts/"
  cp -r "$source_root/tests" "$here/tree/tests"
  cd "$here/tree" || exit 1
  cat >>scripts/testing/full.sh <<'END'
quick_parts=(good:1 slow:0 bad:1)
full_parts=(good:1 slow:0)
part_setup() { count_pass; }
part_good() { count_pass; }
part_slow() { sleep 1.2 && count_pass; }
part_bad() { [ -e good ] && count_pass || count_fail 'the bad part'; }
part_left() { count_skip "$(cat build/left)" 'for no reason'; }
part_empty() { return 0; }
part_expression() { run_ctest dev -E '(a)(b)(c)(d)(e)(f)(g)(h)(i)(j)'; }
END
  echo first >src/file
  echo first >docs/file
  printf 'build/\ngood\n' >.gitignore
  commit
}
commit() { git init -q . && git add -A && git -c user.name=t -c user.email=t@t commit -qm "$RANDOM$RANDOM"; }
# shellcheck disable=SC2065
run_test() {
  status=0
  scripts/test "$@" >"$here/out" 2>&1 || status=$?
}

# ctest ignores an expression with more than nine pairs of parentheses, and then runs all tests.
an_expression_that_ctest_cannot_read_fails_the_part() {
  echo 'quick_parts=(expression:1)' >>scripts/testing/full.sh
  mkdir -p build/dev && echo 'TUTTI_SANITIZER:STRING=' >build/dev/CMakeCache.txt
  echo 'add_test(one true)' >build/dev/CTestTestfile.cmake
  run_test
  expect_status 1
  expect_line out '^failed: build/dev: ctest cannot read an expression of: -E '
}

a_failed_part_fails_the_run_and_is_named() {
  run_test
  expect_status 1
  expect_line out '^failed: the bad part$'
  expect_line out '^3 passed, 1 failed, 0 skipped$'
  touch good
  run_test
  expect_status 0
  expect_line out '^good +[0-9]+ s of +60 s, processor +[0-9]+ s   1 passed, 0 failed, 0 skipped$'
  expect_line out '^slow .* OVER BUDGET$'
  expect_line out '^4 passed, 0 failed, 0 skipped$'
}

the_processor_time_of_a_part_is_reported() {
  printf '%s\n' 'full_parts=(slow:0 busy:1)' \
    "part_busy() { bash -c 'ulimit -t 2; while :; do :; done' || count_pass; }" >>scripts/testing/full.sh
  run_test --parts busy,slow
  expect_status 0
  expect_line out '^busy +[0-9]+ s of +60 s, processor +2 s'
  expect_line out '^slow .*, processor +0 s '
}

a_part_that_is_left_out_fails_the_run() {
  touch good
  export QUICK_LIMIT_MIN=0
  run_test
  expect_status 1
  expect_line out 'part bad was left out: the limit of 0 minutes'
}

a_skip_that_is_not_listed_fails_the_run() {
  echo 'quick_parts=(good:1 left:1)' >>scripts/testing/full.sh
  mkdir -p build/dev && echo 'TUTTI_SANITIZER:STRING=' >build/dev/CMakeCache.txt
  echo 'a test that is listed | memory<1000000GiB | for a good reason' >>tests/skips.txt
  echo 'a test that is listed' >build/left
  run_test
  expect_status 0
  expect_line out '^2 passed, 0 failed, 1 skipped$'
  echo 'a test that nobody listed' >build/left
  run_test
  expect_status 1
  expect_line out 'a test that nobody listed was skipped and may not be: for no reason'
}

a_part_that_checks_nothing_fails_the_run() {
  echo 'full_parts=(good:1 empty:1)' >>scripts/testing/full.sh
  commit
  run_test --full
  expect_status 1
  expect_line out '^failed: part empty made no check$'
  expect_line out '^== parts without a valid row in build/ledger.tsv: empty$'
}

a_part_with_a_valid_row_is_not_run_again() {
  run_test --full
  expect_status 0
  expect_line out '^== parts without a valid row in build/ledger.tsv: none$'
  echo second >docs/file
  commit
  run_test --full
  expect_status 0
  expect_line out '^== slow: has a valid row'
  expect_line out '^1 passed, 0 failed, 0 skipped$' # only the part `setup` runs again
}

a_document_ends_the_row_of_the_quick_run() {
  printf '%s\n' 'full_parts=(good:1 quick:1)' 'part_quick() { count_pass; }' >>scripts/testing/full.sh
  commit
  run_test --full
  expect_status 0
  echo second >docs/file
  commit
  run_test --full --minutes 1
  expect_line out '^== good: has a valid row'
  expect_line out '^quick .* 1 passed'
}

the_quick_run_writes_its_row() {
  printf '%s\n' 'full_parts=(good:1 quick:1)' 'part_quick() { count_fail "the quick run, again"; }' \
    >>scripts/testing/full.sh
  commit
  run_test
  expect_status 1
  run_test --full --minutes 1
  expect_line out '^failed: the quick run, again$' # a run with a failure has no valid row
  touch good
  run_test
  expect_status 0
  run_test --full
  expect_status 0
  expect_line out '^== quick: has a valid row .*[[:space:]]4 passed, 0 failed, 0 skipped$'
}

without_git_the_quick_run_has_no_row() {
  touch good
  rm -rf .git
  GIT_CEILING_DIRECTORIES=$here run_test
  expect_status 0
  [ ! -e build/ledger.tsv ] || fail 'there is a row without a commit'
}

rows_end_with_a_change_outside_docs() {
  run_test --full
  echo second >src/file
  run_test --full --minutes 1
  expect_status 1
  expect_line out 'there are changes that are not committed'
  expect_line out '^== parts without a valid row in build/ledger.tsv: good slow$'
  commit
  run_test --full
  expect_status 0
  expect_line out '^good .* 1 passed'
}

a_failed_part_has_no_valid_row() {
  echo 'full_parts=(good:1 bad:1)' >>scripts/testing/full.sh
  commit
  run_test --full --ledger docs/ledger.tsv
  expect_status 1
  expect_line out '^== parts without a valid row in docs/ledger.tsv: bad$'
  touch good
  run_test --full --ledger docs/ledger.tsv
  expect_status 0
  expect_line out '^== good: has a valid row'
}

named_parts_write_rows_into_a_named_ledger() {
  run_test --parts slow
  [ ! -e build/ledger.tsv ] || fail 'a ledger was not asked for'
  run_test --parts slow --ledger build/ledger.tsv
  expect_status 0
  expect_line out '^== parts without a valid row in build/ledger.tsv: none$'
  run_test --full
  expect_status 0
  expect_line out '^== slow: has a valid row'
  run_test --parts slow --ledger "$here/outside.tsv"
  expect_status 0
  expect_line out '^== parts without a valid row in .*/outside.tsv: none$'
}

a_part_that_does_not_fit_is_not_begun() {
  echo 'full_parts=(good:1 slow:9)' >>scripts/testing/full.sh
  commit
  run_test --full --minutes 5
  expect_status 1
  expect_line out '^== slow: not begun'
  expect_line out '^== parts without a valid row in build/ledger.tsv: slow$'
}

expect_tests_of_plan() {
  grep -q -- '--test-dir build/dev/tests/plan .*--output-on-failure' build/bin/calls || fail 'the tests did not run'
}

# In place of CMake and ctest: a folder with two tests, one of which fails.
changed_files_select_their_folder() {
  mkdir -p src/plan tests/plan build/bin && touch src/plan/new.cc tests/plan/CMakeLists.txt
  printf '#!/bin/sh\nexit 0\n' >scripts/build
  cat >build/bin/ctest <<'END'
#!/bin/sh
echo "$*" >>"$(dirname "$0")/calls"
case "$*" in *\ -N\ *) seq -f '  Test #%g: X' 1 20000 ;; esac
END
  chmod +x scripts/build build/bin/ctest
  PATH=$here/tree/build/bin:$PATH
  run_test --changed
  expect_line out '^changed: .*src/plan/new.cc'
  expect_tests_of_plan
  commit
  : >build/bin/calls
  run_test --changed # of the last commit
  expect_tests_of_plan
}

wrong_arguments_are_refused() {
  local arguments
  for arguments in '--parts none' '--parts' '--preset none' '--minutes x' '--full x' '--full --changed' '--ledger'; do
    # shellcheck disable=SC2086
    run_test $arguments
    expect_status 2
  done
}

make_tree
case $(type -t "$promise") in function) "$promise" ;; *) fail "there is no promise '$promise'" ;; esac
