#!/usr/bin/env bash
# wheel.sh PYTHON TUTTI [PREFIX]: builds a wheel like `pip wheel ./python`, installs it into a new virtual
# environment outside the tree, and runs python/examples/all_reduce.py there, with TUTTI as the launcher.
#
# With PREFIX, the wheel uses the Tutti that is installed there, which takes seconds. Otherwise the library is built
# as well. Status 77 (skipped) if this Python does not exist.

set -euo pipefail
python=$1 tool=$(realpath "$2") prefix=${3-}
tree=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)

if ! [ -x "$python" ]; then
  echo "skipped: $python does not exist; scripts/build-python creates it"
  exit 77
fi
place=$(mktemp -d)
trap 'rm -rf "$place"' EXIT
settings=()
[ -z "$prefix" ] || settings=("--config-settings=cmake.define.tutti_ROOT=$prefix")
"$python" -m pip wheel -q --no-deps --wheel-dir "$place" "${settings[@]}" "$tree/python"
wheel=$(echo "$place"/tutti-*.whl)
"$python" -m venv "$place/fresh"
"$place/fresh/bin/python" -m pip install -q "$wheel"
cp "$tree/python/examples/all_reduce.py" "$place"
cd "$place"
said=$(env -u PYTHONPATH -u LD_LIBRARY_PATH "$tool" run -n 4 -- "$place/fresh/bin/python" all_reduce.py)
echo "$said"
[ "$(grep -c '^.*rank [0-3] of 4: 10\.0 \.\.\. 10\.0$' <<<"$said")" = 4 ] || {
  echo "not every rank has the sum of 1, 2, 3 and 4"
  exit 1
}
"$place/fresh/bin/python" - "$place/fresh" <<'END'
import sys
import tutti
assert tutti.__file__.startswith(sys.argv[1]), tutti.__file__
libraries = {line.split()[-1] for line in open("/proc/self/maps") if "libtutti" in line}
assert libraries and all(library.startswith(sys.argv[1]) for library in libraries), libraries
END
echo "$(basename "$wheel"): $(($(stat -c %s "$wheel") / 1000)) kB, runs outside the tree"
