# Sourced by tests, `. patience.sh [PROGRAM]`: how long a test waits for something that must happen before it fails.
# See patience.h. Shell scripts cannot know how the programs under test were built, so they name one of them.
# shellcheck shell=bash

# scaled SECONDS: that many seconds, times TUTTI_TEST_PATIENCE and what the sanitizer of the program costs.
scaled() {
  awk -v time="$1" -v build="$patience_build" -v asked="${TUTTI_TEST_PATIENCE:-1}" \
    'BEGIN { print time * build * (asked > 0 ? asked : 1) }'
}

# wait_until COMMAND...: repeats the command until it succeeds. Status 1: it did not within $patience_s.
wait_until() {
  local latest=$((${EPOCHREALTIME/[.,]/} + ${patience_s%.*} * 1000000))
  until "$@"; do
    [ "${EPOCHREALTIME/[.,]/}" -lt "$latest" ] || return 1
    sleep 0.02
  done
}

patience_build=1
if [ -n "${1-}" ] && grep -qa __tsan_init "$1"; then
  patience_build=10
elif [ -n "${1-}" ] && grep -qa __asan_init "$1"; then
  patience_build=5
fi
patience_s=$(scaled 30)
