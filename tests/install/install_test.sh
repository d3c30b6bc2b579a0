#!/usr/bin/env bash
# install_test.sh BUILD EXAMPLES COMPILER: installs the build folder BUILD, builds the programs in EXAMPLES with only
# the installed files, through find_package() and pkg-config, and runs them.

set -euo pipefail
build=$1
examples=$2
compiler=$3

fail() {
  printf 'install: %s\n' "$*" >&2
  exit 1
}

place=$(mktemp -d)
trap 'rm -rf "$place"' EXIT

cmake --install "$build" --prefix "$place/prefix" >"$place/install.log" || fail "cmake --install failed"
# Move the installed files once, because they must not depend on the folder into which they were installed.
mv "$place/prefix" "$place/moved"
prefix=$place/moved
for file in bin/tutti include/tutti/tutti.h include/nccl.h; do
  [ -f "$prefix/$file" ] || fail "$file is missing"
done
# Only these files may be installed: no ".a" files and no internal headers.
ours='bin/tutti(-train)?|include/(tutti/[a-z_]+|nccl)\.h'
ours+='|lib.*/lib(tutti|nccl|tutti_heap)\.so[.0-9]*|lib.*/cmake/tutti/[^/]+\.cmake|lib.*/pkgconfig/tutti\.pc'
foreign=$(find "$prefix" -type f -o -type l | sed "s|^$prefix/||" | grep -vE "^($ours)\$" || true)
[ -z "$foreign" ] || fail "unexpected files: $foreign"

cmake -S "$examples" -B "$place/examples" -G Ninja -DCMAKE_PREFIX_PATH="$prefix" -DCMAKE_CXX_COMPILER="$compiler" \
  >"$place/configure.log" || fail "find_package(tutti) failed"
cmake --build "$place/examples" >"$place/build.log" || { cat "$place/build.log"; fail "the examples do not compile"; }

run() { # run RANKS EXAMPLE
  local status=0
  "$prefix/bin/tutti" run -n "$1" -- "$place/examples/$2" >"$place/run.log" 2>&1 || status=$?
  cat "$place/run.log"
  [ "$status" = 0 ] || fail "$2 on $1 ranks ended with status $status"
}

run 2 all_reduce
# Ranks 0 and 1 contribute 999 and 1998 to the last of 1000 numbers.
for rank in 0 1; do
  grep -qx "\[$rank\] rank $rank of 2: the last sum is 2997" "$place/run.log" || fail "rank $rank printed another sum"
done
# The launcher finds the shared heap in the folder to which the installation was moved.
# shellcheck disable=SC2016 # the variable is that of the rank
preload=$("$prefix/bin/tutti" run -n 1 --no-prefix --shared-heap -- sh -c 'echo "$LD_PRELOAD"')
[[ -f $preload && $preload == "$prefix"/lib*/libtutti_heap.so ]] || fail "--shared-heap preloads '$preload'"
for ranks in 1 4; do
  run "$ranks" tour
  [ "$(grep -c "of $ranks completed the tour" "$place/run.log")" = "$ranks" ] ||
    fail "a rank of $ranks did not complete the tour"
done

# A separate CMake project, and a program without CMake. They are copied, so that they cannot use any file of the
# source tree.
cp -r "$examples/find-package" "$examples/pkg-config" "$place"
cmake -S "$place/find-package" -B "$place/sum" -G Ninja -DCMAKE_PREFIX_PATH="$prefix" -DCMAKE_CXX_COMPILER="$compiler" \
  >"$place/configure.log" || fail "find_package(tutti) failed in examples/find-package"
cmake --build "$place/sum" >"$place/build.log" ||
  { cat "$place/build.log" && fail "examples/find-package does not compile"; }
mkdir "$place/examples"/{find-package,pkg-config}
mv "$place/sum/sum" "$place/examples/find-package"
run 3 find-package/sum
[ "$(grep -c 'the numbers of 3 ranks add up to 3' "$place/run.log")" = 3 ] || fail "a sum is wrong"

if ! command -v pkg-config >/dev/null; then
  echo 'pkg-config is not installed, so tutti.pc is not tested'
  exit 0
fi
PKG_CONFIG_PATH=$(dirname "$(find "$prefix" -name tutti.pc)")
export PKG_CONFIG_PATH
read -ra options <<<"$(pkg-config --cflags --libs tutti) -Wl,-rpath,$(pkg-config --variable=libdir tutti)"
"$compiler" -std=c++20 "$place/pkg-config/gather.cc" -o "$place/examples/pkg-config/gather" "${options[@]}" ||
  fail "examples/pkg-config does not compile with ${options[*]}"
run 2 pkg-config/gather
for rank in 0 1; do
  grep -qx "\[$rank\] rank $rank of 2 received the numbers up to rank 1" "$place/run.log" ||
    fail "rank $rank received nothing"
done
version=$(sed -n 's/.*TUTTI_VERSION_[A-Z]* //p' "$prefix/include/tutti/version.h" | paste -sd .)
[ "$(pkg-config --modversion tutti)" = "$version" ] || fail "tutti.pc is of version $(pkg-config --modversion tutti)"
