#!/usr/bin/env bash
# measure_test.sh TUTTI: measures this machine with `tutti tune`. Then the choices inside the machine are in its file,
# --explain prints them, and calls use them. A file that TUTTI_TUNE_FILE
# names is used even if it was measured on other hardware.
set -euo pipefail
tutti=$1
here=$(mktemp -d)
trap 'rm -rf "$here"' EXIT
export XDG_CACHE_HOME=$here
fail() {
  echo "FAILED: $*"
  cat "$here/out"
  exit 1
}
expect() { grep -qE -- "$1" "$here/out" || fail "no line '$1'"; }
run() { timeout 120 "$tutti" "$@" >"$here/out" 2>&1 || fail "tutti $* ended with status $?"; }

run tune --explain all_reduce 8K --ranks 2
expect 'Its sizes are defaults from other machines: all_reduce by one_shot up to 8192 bytes; '
run tune
expect '^2    ranks .*all_reduce by one_shot up to [0-9]+ bytes; copies .*; a rank.s share of an all_reduce '
file=$(sed -n 's/^Written to //p' "$here/out")
python3 - "$file" <<'P' >"$here/out" 2>&1 || fail "the file has other choices"
import json, os, sys
parameters = json.load(open(sys.argv[1]))
cores = parameters["cores"]
ranks = [one["ranks"] for one in parameters["choices"]]
crowd = min(2 * cores, 16)
assert ranks == sorted({2, min(cores, 16), min(cores + 1, 16), crowd} - {1}), (ranks, cores)
assert all(512 <= one["one_shot_bytes"] <= 16384 for one in parameters["choices"]), parameters["choices"]
names = {one["what"] for one in parameters["measured"]}
for number in ranks:
    for way in ("one_shot", "registered two_shot", "all_gather by messages", "broadcast by calls"):
        assert f"{number} ranks: {way}" in names, (number, way)
P
run tune --explain all_reduce 8K --ranks 2
expect 'Its sizes are those of the file '

# The algorithm of a call changes at the size in the file.
sed -i -E 's/"one_shot_bytes": [0-9]+/"one_shot_bytes": 2048/' "$file"
sed -E 's/"one_shot_bytes": [0-9]+/"one_shot_bytes": 2048/; s/"hardware": "[^"]*"/"hardware": "0123"/' "$file" \
  >"$here/other.json"
for variable in XDG_CACHE_HOME="$here" TUTTI_TUNE_FILE="$here/other.json"; do
  env XDG_CACHE_HOME="$here/nothing" "$variable" timeout 60 "$tutti" perf all_reduce --ranks 2 -b 2K -e 4K -n 1 -w 0 \
    >"$here/out" 2>&1 || fail 'perf'
  expect '^ +2048 .* one_shot '
  expect '^ +4096 .* two_shot '
done
