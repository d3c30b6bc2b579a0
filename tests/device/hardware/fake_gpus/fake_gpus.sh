#!/usr/bin/env bash
# fake_gpus.sh BUILD COMMAND...: runs a command with fake GPUs. The fake driver and the library's kernels are preloaded,
# and the kernels run in the emulator. There are two GPUs, unless FAKE_CUDA_DEVICES has another number. The GPUs are
# small, so that launches are emulated quickly. Variables that are already set keep their values. BUILD is a build
# folder in which the target fake_gpus is built. FAKE_GPUS_KERNELS names another library with the kernels
# (tests/device/ptx).
set -eu
build=$1
shift
export LD_PRELOAD="$build/fake_driver/libcuda.so.1 ${FAKE_GPUS_KERNELS:-$build/fake_gpus/libtutti_device_kernels.so}"
export LD_LIBRARY_PATH="$build/fake_driver"
export FAKE_CUDA_DEVICES=${FAKE_CUDA_DEVICES:-2} FAKE_CUDA_BLOCKS=${FAKE_CUDA_BLOCKS:-32}
export TUTTI_DEVICE_THREADS=${TUTTI_DEVICE_THREADS:-32} TUTTI_DEVICE_BLOCKS=${TUTTI_DEVICE_BLOCKS:-4}
export TUTTI_DEVICE_SLOT_BYTES=${TUTTI_DEVICE_SLOT_BYTES:-4096}
exec "$@"
