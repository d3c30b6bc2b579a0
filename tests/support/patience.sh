# Sourced by shell tests, `. patience.sh [PROGRAM]`: the time limit for events that must happen; see patience.h. PROGRAM
# is one of the programs under test. The script reads from it whether it was built with a sanitizer.
# shellcheck shell=bash

# scaled SECONDS: prints SECONDS times TUTTI_TEST_PATIENCE (default 1) times the slowdown of PROGRAM's sanitizer.
scaled() {
  awk -v time="$1" -v build="$patience_build" -v asked="${TUTTI_TEST_PATIENCE:-1}" \
    'BEGIN { print time * build * (asked > 0 ? asked : 1) }'
}

# wait_until COMMAND...: repeats the command until it succeeds. Returns 1 if it does not succeed within $patience_s.
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
