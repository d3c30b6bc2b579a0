#!/usr/bin/env bash
# headers.sh ROOT COMPILER [FLAGS...]: compiles each header of the tree at ROOT alone, and prints the headers that do
# not compile because they do not include everything that they need.
#
# The include path is ROOT/include, ROOT/src, ROOT and ROOT/tests. Exit status: 0 if all headers are self-contained; 1
# otherwise.

set -euo pipefail
root=$1
compiler=$2
shift 2

check_header() {
  local header=$1
  shift
  "$@" -x c++ -fsyntax-only - <<<"#include \"$header\"" 2>&1 || {
    printf '%s: not self-contained\n' "$header"
    return 1
  }
}
export -f check_header

cd "$root"
folders=()
for folder in include src topology transports kernels tools bench tests; do
  if [ -d "$folder" ]; then folders+=("$folder"); fi
done
# Files that end in -inl.h are not checked, because they are parts of a source file that is compiled once for each SIMD
# target. The headers of tests/peers need the headers of another library, which may not be installed. Those of train
# (not in the list above) and tests/train need libtorch's, for which the compiler takes 15 s each.
mapfile -t headers < <(find "${folders[@]}" -name '*.h' -not -name '*-inl.h' -not -path 'tests/peers/*' \
  -not -path 'tests/train/*' | sort)
[ ${#headers[@]} -gt 0 ] || { printf 'no headers in %s\n' "$root"; exit 1; }
printf '%s\0' "${headers[@]}" |
  xargs -0 -P "$(nproc)" -I{} bash -c 'check_header "$@"' check {} "$compiler" -std=c++20 "$@" \
    -Iinclude -Isrc -I. -Itests ||
  exit 1
printf '%d headers are self-contained\n' "${#headers[@]}"
