#!/usr/bin/env bash
# library_test.sh CHECK LIBRARY [ARGUMENTS]: tests of libnccl.so.2 as the program sees it that loads it.
#
#   symbols LIST   it exports the functions of LIST as nccl... (weak) and pnccl... (strong), and no other symbol. A line
#                  "T NAME" of LIST is a function that has only this name (strong)
#   needs          it has the right name, needs only system libraries, and is smaller than 10 MiB
#   program SOURCE COMPILER INCLUDE [FLAGS]   a C99 program that is linked to it runs
#   load           opening or preloading it, also in the children of a shell, changes nothing and starts nothing

set -euo pipefail
check=$1 library=$2
shift 2

fail() {
  printf 'library: %s\n' "$*" >&2
  exit 1
}

place=$(mktemp -d)
trap 'rm -rf "$place"' EXIT

# Prints both names of each function, with the symbol type that nm shows.
wanted_symbols() {
  local name
  grep '^T ' "$1" || true
  while read -r name; do printf 'T p%s\nW %s\n' "$name" "$name"; done < <(grep -v '^#\|^T ' "$1")
}

symbols() {
  wanted_symbols "$1" | sort >"$place/wanted"
  nm -D --defined-only "$library" | awk '{print $2, $3}' | sort >"$place/there"
  [ -s "$place/wanted" ] || fail "$1 names nothing"
  diff "$place/wanted" "$place/there" >"$place/difference" ||
    fail "< is missing, > is too much:"$'\n'"$(grep '[<>]' "$place/difference")"
  # Symbols must have no versions, because PyTorch is linked with unversioned symbols.
  if readelf -V "$library" | grep -q 'Version definition'; then fail "the symbols have versions"; fi
  printf '%s symbols\n' "$(wc -l <"$place/there")"
}

needs() {
  local name needed size
  name=$(readelf -d "$library" | sed -n 's/.*Library soname: \[\(.*\)\]/\1/p')
  [ "$name" = libnccl.so.2 ] || fail "its name is '$name'"
  case $(readlink -f "$library") in
    */libnccl.so.2.*) ;;
    *) fail "the file is $(readlink -f "$library")" ;;
  esac
  needed=$(readelf -d "$library" | sed -n 's/.*NEEDED.*\[\(.*\)\]/\1/p')
  grep -qx 'libc.so.6' <<<"$needed" || fail "it needs no C library: is this the library?"
  needed=$(grep -vE '^(lib(c|m|dl|rt|pthread|gcc_s|stdc\+\+)\.so\.[0-9]+|ld-linux.*)$' <<<"$needed" || true)
  [ -z "$needed" ] || fail "it needs ${needed//$'\n'/, }"
  if readelf -d "$library" | grep -qE 'R(UN)?PATH'; then fail "it names folders of the machine it was built on"; fi
  strip -o "$place/stripped" "$library"
  size=$(stat -c %s "$place/stripped")
  [ "$size" -lt $((10 * 1024 * 1024)) ] || fail "$((size / 1024)) KiB without debug information"
  printf '%s KiB\n' $((size / 1024))
}

program() {
  local source=$1 compiler=$2 include=$3 folder
  shift 3
  folder=$(dirname "$library")
  "$compiler" -x c -std=c99 -I"$include" "$@" "$source" -o "$place/program" -x none -L"$folder" -lnccl \
    -Wl,-rpath,"$folder" || fail "a C program does not link"
  readelf -d "$place/program" | grep -q 'NEEDED.*\[libnccl.so.2\]' || fail "it is linked to something else"
  "$place/program" || fail "the program ended with status $?"
}

# The system calls of a process at its start, without those that differ from run to run.
calls_of() {
  strace -f -qq -e 'trace=!mmap,mprotect,munmap,read,pread64,newfstatat,fstat,openat,close,brk,access' \
    -E LD_PRELOAD="$1" /bin/true 2>&1 | sed 's/(.*//' | sort | uniq -c
}

load() {
  local out libraries
  # PyTorch opens the library with immediate binding, so every symbol that the library needs must be found.
  out=$(LD_BIND_NOW=1 LD_PRELOAD=$library /bin/true 2>&1) || fail "a preloaded /bin/true ended with status $?"
  [ -z "$out" ] || fail "a preloaded /bin/true prints: $out"
  # The children of a shell load it too. They must print nothing, and must have only one thread.
  out=$(LD_PRELOAD=$library NCCL_DEBUG=INFO bash -c \
    'grep -q libnccl.so.2 /proc/self/maps || echo "not loaded"; ls /proc/self/task | wc -l; ls -d /' 2>&1)
  [ "$out" = $'1\n/' ] || fail "the children of a preloaded shell print: $out"
  # It must load no library of a driver.
  libraries=$(LD_PRELOAD=$library grep -oE '/[^ ]*\.so[^ ]*' /proc/self/maps | sort -u)
  if grep -E 'lib(cuda|nvidia|cudart|fmt|hwy|X11)[.-]' <<<"$libraries"; then fail "it loads other libraries"; fi
  if command -v strace >/dev/null && strace -qq /bin/true 2>/dev/null; then
    calls_of "$(ldd "$library" | awk '/libstdc/ {print $3}')" >"$place/usual"
    calls_of "$library" >"$place/with"
    grep -q exit_group "$place/usual" || fail "strace shows nothing"
    diff "$place/usual" "$place/with" >"$place/calls" ||
      fail "more than the C++ library's own calls:"$'\n'"$(cat "$place/calls")"
    printf 'no system call of its own\n'
  fi
}

case $check in
  symbols | needs | program | load) "$check" "$@" ;;
  *) fail "unknown check '$check'" ;;
esac
