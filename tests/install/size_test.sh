#!/usr/bin/env bash
# size_test.sh LIBRARY...: checks that each library, including its device code, is smaller than 10 MB without debug
# symbols.
set -euo pipefail
most=10000000
place=$(mktemp -d)
trap 'rm -rf "$place"' EXIT

for library in "$@"; do
  strip -o "$place/stripped" "$library"
  bytes=$(stat -c %s "$place/stripped")
  echo "$(basename "$library"): $bytes bytes"
  if [ "$bytes" -ge "$most" ]; then
    echo "FAILED: $library has $bytes bytes without debug symbols, but the limit is $most"
    exit 1
  fi
done
