#!/usr/bin/env bash
# Tests scripts/gpu-check with the programs of this build. Usage: gpu_check_test.sh BIN FAKE_GPUS PROMISE. BIN is the
# folder of the programs. FAKE_GPUS is the command prefix that runs a command with fake GPUs (fake_gpus.sh and a build
# folder). PROMISE is the name of one of the tests below.
set -u
bin=$1
read -ra pretend <<<"$2"
promise=$3
here=$(mktemp -d)
trap 'rm -rf "$here"' EXIT
root=$(cd "$(dirname "$0")/../../../.." && pwd)
file=$here/found.md

fail() {
  echo "FAILED: $*"
  head -c 3000 "$here/out"
  if [ -f "$file" ]; then grep -B 12 '^\*\*' "$file" | head -n 60; fi
  exit 1
}
expect() { # expect STATUS COMMAND...: runs "COMMAND... gpu-check ..." and checks its exit status
  local expected=$1 status=0
  shift
  "$@" "$root/scripts/gpu-check" --bin "$bin" "$file" >"$here/out" 2>&1 || status=$?
  [ $status = "$expected" ] || fail "ends with status $status, not $expected"
}
expect_no_file() { [ ! -e "$file" ] || fail 'there is a file'; }
expect_file() { # expect_file PATTERN
  [ -s "$file" ] || fail 'there is no file'
  grep -q "$1" "$file" || fail "the file does not say '$1'"
}

# These tests need a machine without a GPU and are skipped otherwise.
without_a_driver_ends_with_three() {
  if nvidia-smi -L >/dev/null 2>&1; then exit 77; fi
  expect 3 env LD_LIBRARY_PATH=
  expect_no_file
  grep -q 'there is no GPU to check with: .*driver' "$here/out" || fail 'does not say why'
}
without_a_gpu_ends_with_three() {
  if nvidia-smi -L >/dev/null 2>&1; then exit 77; fi
  expect 3 env FAKE_CUDA_DEVICES=0 "${pretend[@]}"
  expect_no_file
  grep -q 'there is no GPU to check with: .*NO_DEVICE' "$here/out" || fail 'does not say why'
}

# nvidia-smi finds a GPU, but the library does not.
a_gpu_that_the_library_does_not_see_is_written_down() {
  printf '#!/bin/sh\necho "GPU 0: Pretend (UUID: GPU-0)"\n' >"$here/nvidia-smi"
  chmod +x "$here/nvidia-smi"
  expect 1 env "PATH=$here:$PATH" LD_LIBRARY_PATH= TUTTI_LOG=error
  expect_file '^\*\*the library sees no GPU\*\*$'
}

# The first allocation on a device fails in every process. Programs that only query the device do not notice it.
a_first_call_that_fails_is_written_down() {
  expect 1 env FAKE_CUDA_FAIL=cuMemAlloc:1:2 "${pretend[@]}"
  expect_file 'cuMemAlloc.*CUDA_ERROR_OUT_OF_MEMORY'
  expect_file '^\*\*exit status 1\*\*$'
  grep -q 'FAILED (exit status 1): .*/tutti perf all_reduce' "$here/out" || fail 'does not name what failed'
}
calls_by_the_host_are_written_down() {
  expect 1 env TUTTI_DEVICE_CALLS=staged "${pretend[@]}"
  expect_file '^\*\*the GPUs did not execute the calls, although'
}

all_is_right_on_pretended_gpus() {
  expect 0 "${pretend[@]}"
  expect_file '# Calls on device memory were carried out by the GPUs$'
  expect_file 'TUTTI_DEVICE_PROTOCOL=ll128 .*/tutti perf scatter --threads'
  expect_file '^## All 2 GPUs with every protocol$'
}

"$promise"
