#!/usr/bin/env bash
# header_test.sh INCLUDE PROGRAM FACTS CUDA COMPILER...: compiles PROGRAM, which is C99 and C++11, with
# INCLUDE/nccl.h and each of the C++ compilers, with and without CUDA's headers, and also compiles the assertions in
# FACTS. CUDA is the folder of the toolkit's headers. If it has none, the test uses stand-ins.

set -euo pipefail
include=$1 program=$2 facts=$3 cuda=$4
shift 4

fail() {
  printf 'header: %s\n' "$*" >&2
  exit 1
}

place=$(mktemp -d)
trap 'rm -rf "$place"' EXIT

# Stand-ins for CUDA's headers, with the parts that nccl.h uses. Each defines a macro that shows that it was
# included.
mkdir "$place/cuda"
cat >"$place/cuda/cuda_runtime.h" <<'HEADER'
#ifndef __DRIVER_TYPES_H__
#define __DRIVER_TYPES_H__
#define CUDART_VERSION 13000
typedef struct CUstream_st* cudaStream_t;
typedef struct CUevent_st* cudaEvent_t;
#endif
HEADER
for name in fp16 bf16 fp8; do printf '#define HAS_%s 1\n' "$name" >"$place/cuda/cuda_$name.h"; done

# How a program includes nccl.h if it needs the CUDA types.
cat "$program" - >"$place/types.c" <<'SOURCE'
#if !defined(HAS_fp16) || !defined(HAS_bf16) || defined(HAS_fp8) != defined(__cplusplus)
#error "CUDA's headers of small types are missing, or one too many"
#endif
SOURCE
{ printf '#include "nccl.h"\n#include <cuda_runtime.h>\n'; cat "$program"; } >"$place/before.c"
{ printf '#include <cuda_runtime.h>\n#include "nccl.h"\n'; cat "$program"; } >"$place/after.c"
{ cat "$program"; printf 'ncclDataType_t wrong = 3;\n'; } >"$place/loose.c"

compile() { # compile LANGUAGE STANDARD FILE FLAGS...
  "$compiler" -x "$1" -std="$2" -Wall -Wextra -Werror -pedantic -fsyntax-only -I"$include" "${@:4}" "$3"
}

check() { # check LANGUAGE STANDARD
  local cudas=("$place/cuda") folder option
  if [ -f "$cuda/cuda_runtime.h" ]; then cudas+=("$cuda"); fi
  compile "$@" "$program" || fail "$compiler $2: with the headers that are installed"
  compile "$@" "$place/types.c" -isystem "$place/cuda" || fail "$compiler $2: the types of CUDA's headers"
  for folder in "${cudas[@]}"; do
    compile "$@" "$program" -isystem "$folder" || fail "$compiler $2: with $folder"
    for option in NCCL_NO_CUDA TUTTI_NCCL_NO_CUDA; do
      for file in "$program" "$place/before.c" "$place/after.c"; do
        compile "$@" "$file" -isystem "$folder" -D$option || fail "$compiler $2: $file with $option and $folder"
      done
    done
  done
}

# scripts/check-skips reads these lines.
if [ $# -lt 2 ]; then echo 'inner skip: second_compiler: CMake has found no clang++'; fi
if ! [ -f "$cuda/cuda_runtime.h" ]; then echo "inner skip: cuda_headers: there is no cuda_runtime.h in '$cuda'"; fi
for compiler in "$@"; do
  for standard in c99 c11 c17; do check c "$standard"; done
  for standard in c++11 c++17 c++20; do check c++ "$standard"; done
  compile c++ c++20 "$facts" || fail "$compiler: the layouts and numbers of the interface"
  # The assertions must fail if one number is changed, and C++ must reject a number in place of an enumerator.
  { cat "$facts"; printf 'static_assert(ncclAvg == 5);\n'; } >"$place/broken.cc"
  if compile c++ c++20 "$place/broken.cc" 2>/dev/null; then fail "$compiler accepts a wrong number"; fi
  if compile c++ c++20 "$place/loose.c" 2>/dev/null; then fail "$compiler accepts a number as a data type"; fi
done
printf 'nccl.h compiles with %s\n' "$*"
