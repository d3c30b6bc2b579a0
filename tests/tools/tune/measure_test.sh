#!/usr/bin/env bash
# measure_test.sh TUTTI: measures this machine with `tutti tune`. Then the choices inside the machine are in its file,
# --explain prints them, and calls use them. A file that TUTTI_TUNE_FILE names is used even if it was measured on other
# hardware.
set -euo pipefail
tutti=$1
# shellcheck source=tests/support/script.sh
. "$(dirname "$0")/../../support/script.sh"
# shellcheck source=tests/support/patience.sh
. "$(dirname "$0")/../../support/patience.sh" "$tutti"
export XDG_CACHE_HOME=$here

limit_s=$(scaled 120)

run() { timeout "$limit_s" "$tutti" "$@" >"$here/out" 2>&1 || fail "tutti $* ended with status $?"; }

run tune --explain all_reduce 8K --ranks 2
expect_line out 'Its sizes are defaults from other machines: all_reduce by one_shot up to 8192 bytes; '
run tune
expect_line out '^2    ranks .*all_reduce by one_shot up to [0-9]+ bytes; copies .*; a rank.s share of an all_reduce '
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
expect_line out 'Its sizes are those of the file: all_reduce '
expect_line out "^file: $file$"

# The algorithm of a call changes at the size in the file.
sed -i -E 's/"one_shot_bytes": [0-9]+/"one_shot_bytes": 2048/' "$file"
sed -E 's/"one_shot_bytes": [0-9]+/"one_shot_bytes": 2048/; s/"hardware": "[^"]*"/"hardware": "0123"/' "$file" \
  >"$here/other.json"
for variable in XDG_CACHE_HOME="$here" TUTTI_TUNE_FILE="$here/other.json"; do
  env XDG_CACHE_HOME="$here/nothing" "$variable" timeout "$limit_s" "$tutti" perf all_reduce --ranks 2 -b 2K -e 4K \
    -n 1 -w 0 >"$here/out" 2>&1 || fail 'perf'
  expect_line out '^ +2048 .* one_shot '
  expect_line out '^ +4096 .* two_shot '
done
