# Sourced by the scripts in this folder: functions for messages and options. Changes to the root of the tree.
# shellcheck shell=bash

script=$(cd "$(dirname "$0")" && pwd)/$(basename "$0") # for usage(), because $0 may be relative
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
cd "$root" || exit

say() { printf '%s\n' "$*"; }
die() {
  printf '%s: %s\n' "$(basename "$0")" "$*" >&2
  exit 2
}

# Prints the help of a script: its first comment.
usage() { sed -n '2,/^$/{s/^# \{0,1\}//;p}' "$script"; }

cores() { nproc 2>/dev/null || echo 1; }

# The presets that the scripts accept. Their build folders are build/<preset>, and build/release for demo.
is_preset() {
  case $1 in
    dev | release | demo | asan | tsan | quick-asan | quick-tsan | quick-fuzz | cuda | fuzz | trace) return 0 ;;
    *) return 1 ;;
  esac
}

# take_no_install ARGUMENTS...: whether the first argument is --no-install. If so, sets SETUP_NO_INSTALL, so that
# scripts/setup, which the scripts call, installs nothing.
take_no_install() {
  [ "${1-}" = --no-install ] || return 1
  export SETUP_NO_INSTALL=1
}

# Makes clones in different folders share the compiler cache. ccache caches files that use a precompiled header only
# if it may assume that the macros of the header, and __DATE__ and __TIME__, have not changed. The tree does not use
# __DATE__ and __TIME__.
share_compiler_cache() {
  export CCACHE_BASEDIR=$root CCACHE_NOHASHDIR=1 CCACHE_SLOPPINESS=pch_defines,time_macros
}

# For scripts about GPUs. is_fake_driver BIN: whether `tutti topo` in the folder BIN sees the fake driver of the tests,
# which has no real devices. emulated_tests: the tests of gpu_test that the emulator can run in time.
is_fake_driver() { timeout 20 "$1/tutti" topo | grep -q 'Pretend GPU'; }
# shellcheck disable=SC2034
emulated_tests='*Short*:GpuProtocols.*:GpuGraphs.*:GpuCommunicators.*:GpuFailures.*:GpuProcesses.*'
