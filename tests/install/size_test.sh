#!/usr/bin/env bash
# size_test.sh LIBRARY...: each has less than 10 MB, device code included, once what only debuggers read is taken away.
set -euo pipefail
most=10000000
place=$(mktemp -d)
trap 'rm -rf "$place"' EXIT

for library in "$@"; do
  strip -o "$place/stripped" "$library"
  bytes=$(stat -c %s "$place/stripped")
  echo "$(basename "$library"): $bytes bytes"
  [ "$bytes" -lt "$most" ] || { echo "FAILED: $library has $bytes bytes, stripped, and may have $most" && exit 1; }
done
