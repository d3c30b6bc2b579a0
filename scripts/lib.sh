# Sourced by the scripts beside it: where the tree is, and how to speak. Changes to the root of the tree.
# shellcheck shell=bash

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
cd "$root" || exit

say() { printf '%s\n' "$*"; }
die() {
  printf '%s: %s\n' "$(basename "$0")" "$*" >&2
  exit 2
}

# The comment that a script opens with, less its first line, is its --help.
usage() { sed -n '2,/^$/{s/^# \{0,1\}//;p}' "$0"; }

cores() { nproc 2>/dev/null || echo 1; }

# Presets that the scripts know; their build folders are build/<preset>, and build/release for demo.
is_preset() {
  case $1 in
    dev | release | demo | asan | tsan | quick-asan | quick-tsan | cuda | fuzz | trace) return 0 ;;
    *) return 1 ;;
  esac
}

# take_no_install ARGUMENTS...: whether the first argument is --no-install; then scripts/setup, which the scripts call,
# installs nothing (SETUP_NO_INSTALL).
take_no_install() {
  [ "${1-}" = --no-install ] || return 1
  export SETUP_NO_INSTALL=1
}

# Clones in different folders share what they have compiled. ccache keeps what was compiled with a precompiled header
# only if it may trust that the header's macros, and __DATE__ and __TIME__ in it, are the same: none of the tree uses
# these.
share_compiler_cache() {
  export CCACHE_BASEDIR=$root CCACHE_NOHASHDIR=1 CCACHE_SLOPPINESS=pch_defines,time_macros
}
