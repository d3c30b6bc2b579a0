# shellcheck shell=bash disable=SC2154
# Sourced by scripts/test: the parts that only --full runs. They count their checks through count_pass and count_fail.
# The variables that are not set here (the warning that is off) are those of scripts/test.

part_long() { run_ctest dev -L long --no-tests=ignore; }
# What is too long in guests for the quick parts; after the part rdma, which installs what they need.
part_rdma_whole() { build dev tests/rdma/all && run_ctest dev -L rdma-whole; }
# The verbs transport over a real stack under the address sanitizer, leaks looked for at every process's end.
part_rdma_asan() {
  build asan tests/rdma/all conformance_test tutti_tool && run_ctest asan -R '^rdma\.verbs' -LE rdma-whole
}
part_asan_whole() { build asan && run_ctest asan -LE "$not_sanitized"; }
# Without what the emulator runs by fibers of one thread, which takes this sanitizer minutes a test: the device double
# runs the same code among threads.
part_tsan_whole() { build tsan && run_ctest tsan -LE "$not_sanitized|emulated"; }

# check COMMAND...: one check. Its output goes to a log, of which the end is shown when it fails.
check() {
  local log=build/check.log
  if timeout 600 "$@" >"$log" 2>&1 </dev/null; then
    count_pass
  else
    count_fail "$*"
    tail -n 5 "$log"
    return 1
  fi
}

# Every algorithm proved for 2 to 64 ranks, and the count of mutations refused.
part_plans() {
  build release tutti_tool || return 1
  check build/release/bin/tutti verify --ranks 2..64 && tail -n 3 build/check.log
}

# All-reduce of every type and operation over counts that divide nothing; each run checks in place and out of place.
part_matrix() {
  build release tutti_tool || return 1
  local types=(int8:1 uint8:1 int32:4 uint32:4 int64:8 uint64:8 float8_e4m3:1 float8_e5m2:1 float16:2 bfloat16:2
    float32:4 float64:8)
  local ranks memory type count bytes
  for ranks in 1 2 3 4 7 8 16; do
    for memory in plain registered; do
      for type in "${types[@]}"; do
        for count in 1 2 3 1000003; do
          bytes=$((count * ${type#*:}))
          check build/release/bin/tutti perf all_reduce --ranks "$ranks" --memory "$memory" -d "${type%:*}" -o all \
            -b "$bytes" -e "$bytes" -n 1 -w 0 || true
        done
      done
      say "matrix: $ranks ranks, $memory: $passed passed, $failed failed so far"
    done
  done
}

# All C++ files of the tree, one a line.
cxx_files() {
  find include src topology transports kernels tools bench examples python tests -name '*.cc' -o -name '*.h' | sort
}

part_format() {
  "$root/scripts/setup" --dev
  local file
  while read -r file; do check clang-format --dry-run --Werror "$file" || true; done < <(cxx_files)
}

# clang-tidy over every source that the dev build compiles, on all cores; headers through their sources.
part_lint() {
  "$root/scripts/setup" --dev
  build dev || return 1
  rm -rf build/lint && mkdir -p build/lint
  local file log
  # GCC's precompiled headers are none of clang's. What includes libtorch's headers, all of train but its drawings, is
  # left out: clang 14 does not take these for C++20.
  sed -E 's# -include [^ ]*cmake_pch.hxx##g; s# -Winvalid-pch##g' build/dev/compile_commands.json \
    >build/lint/compile_commands.json
  cxx_files | grep '\.cc$' | awk '!/^(tests\/)?train\// || /\/plot/' | while read -r file; do
    grep -qF "\"$root/$file\"" build/dev/compile_commands.json && echo "$file"
  done >build/lint/files
  # What clang-tidy says of a file, and its exit status in the last line.
  # shellcheck disable=SC2016
  local one='log=build/lint/${1//\//_}.log
    timeout 600 clang-tidy --quiet -p build/lint "$1" >"$log" 2>&1
    echo "status $?" >>"$log"'
  xargs -P "$(cores)" -I{} bash -c "$one" _ {} <build/lint/files
  while read -r file; do
    log=build/lint/${file//\//_}.log
    if [ "$(tail -n 1 "$log")" = 'status 0' ]; then
      count_pass
    else
      count_fail "clang-tidy $file"
      grep -E '(warning|error):' "$log" | head -n 5
    fi
  done <build/lint/files
}
