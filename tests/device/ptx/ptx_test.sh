#!/usr/bin/env bash
# Tests with kernels that were translated from PTX. Usage: ptx_test.sh BUILD PTX PROMISE. BUILD is the build folder, PTX
# the file of nvcc, and PROMISE the name of one of the tests below.
set -u
build=$1
ptx=$2
promise=$3
source_folder=$(cd "$(dirname "$0")" && pwd)
fake_gpus=$source_folder/../hardware/fake_gpus/fake_gpus.sh
export FAKE_GPUS_KERNELS=$build/ptx/libtutti_ptx_kernels.so
# shellcheck source=tests/support/script.sh
. "$(dirname "$0")/../../support/script.sh"

perf() { # perf COLLECTIVE ARGS...: returns 0 if the GPUs carried out the calls, and all results are right
  "$fake_gpus" "$build" "$build/bin/tutti" perf "$@" --memory cuda -w 0 -n 1 >"$here/out" 2>"$here/err" &&
    grep -q '^# Out of bounds values : 0 OK$' "$here/out" &&
    grep -q '^# Calls on device memory were carried out by the GPUs$' "$here/out"
}

every_collective() {
  local collective protocol
  for collective in all_reduce broadcast reduce all_gather reduce_scatter all_to_all gather scatter all_gather_v \
    reduce_scatter_v; do
    for protocol in simple ll ll128; do
      FAKE_CUDA_DEVICES=3 TUTTI_DEVICE_PROTOCOL=$protocol perf $collective --ranks 3 -r 1 -b 1000 -e 30000 -f 30 "$@" ||
        fail "$collective with $protocol"
    done
  done
}
every_collective_by_processes() { every_collective; }
every_collective_by_threads() { every_collective --threads; }

# Sends and receives have a kernel of their own.
sends_and_receives() {
  local collective
  for collective in send_recv ping_pong all_to_all_v gather_v scatter_v; do
    FAKE_CUDA_DEVICES=3 perf $collective --threads --ranks 3 -b 1000 -e 300000 -f 17 || fail "$collective"
  done
}

every_type_and_operation() {
  local ranks protocol
  for ranks in 2 4; do
    for protocol in simple ll ll128; do
      FAKE_CUDA_DEVICES=$ranks TUTTI_DEVICE_PROTOCOL=$protocol \
        perf all_reduce --threads --ranks $ranks -d all -o all -b 20000 -e 20000 || fail "$ranks ranks with $protocol"
    done
  done
}

# weak_run COLLECTIVE PROTOCOL: a few seeds of the random order of threads, with weakly ordered memory. The call has
# many messages.
weak_run() {
  local seed
  for seed in 1 2 3; do
    FAKE_CUDA_SEED=$seed FAKE_CUDA_WEAK=1 FAKE_CUDA_POLICY=random FAKE_CUDA_STALL_MS=5000 TUTTI_TIMEOUT_MS=20000 \
      TUTTI_DEVICE_PROTOCOL=$2 perf "$1" --threads --ranks 2 -b 200000 -e 200000 || return 1
  done
}
weak_memory() {
  local protocol
  for protocol in simple ll ll128; do
    weak_run all_reduce $protocol || fail "$protocol with weakly ordered memory"
  done
  weak_run send_recv simple || fail 'sends and receives with weakly ordered memory'
}

# Each planted mistake must give a wrong result, a crash, or a call that does not end.
mistakes_are_noticed() {
  local collective mistake barrier count noticed=''
  for collective in all_reduce send_recv; do
    # there is no barrier with this number
    PTX_MISTAKE=1000000 weak_run $collective simple || fail "a run of $collective without a mistake"
    for mistake in relaxed_post relaxed_look; do
      PTX_MISTAKE=$mistake weak_run $collective simple && fail "nothing notices $mistake in $collective"
    done
  done
  # One barrier is left out. Not all are noticed: many belong to programs and protocols that this call does not use.
  count=$(grep -c 'block_barrier(' "$build/tests/device/ptx/kernels.cc")
  for collective in all_reduce send_recv; do
    noticed=''
    for ((barrier = 0; barrier < count; ++barrier)); do
      PTX_MISTAKE=$barrier weak_run $collective simple || noticed+=" $barrier"
    done
    echo "$collective: noticed of $count barriers:$noticed"
    [ "$(wc -w <<<"$noticed")" -ge 2 ] || fail "$collective does not notice that a barrier is missing"
  done
}

# An operation with the scope of one GPU is no instruction of port_cuda.h, so the translator refuses it.
a_narrower_scope_is_refused() {
  local from
  for from in ld.acquire st.release; do
    sed "0,/$from.sys/s//$from.gpu/" "$ptx" >"$here/changed.ptx"
    cmp -s "$ptx" "$here/changed.ptx" && fail "the PTX has no $from.sys"
    python3 "$source_folder/translate.py" "$here/changed.ptx" "$here/kernels.cc" >"$here/out" 2>"$here/err" &&
      fail "$from.gpu is translated"
    grep -q "not known: $from.gpu" "$here/err" || fail "$from.gpu is not named"
  done
}

"$promise"
