#!/usr/bin/env bash
# run.sh PYTHON TUTTI FILE: the tests of one file, by the Python of the package's environment, with TUTTI as the
# launcher. Status 77 where there is no such Python, or it has not the package.

set -euo pipefail
python=$1 tool=$2 file=$3

if ! [ -x "$python" ]; then
  echo "skipped: there is no $python; scripts/build-python makes it"
  exit 77
fi
cd "$(dirname "$file")" # not where a folder called tutti could be taken for the package
found='import importlib.util as u, sys; sys.exit(any(u.find_spec(name) is None for name in ("tutti", "pytest")))'
if ! "$python" -c "$found"; then
  echo "skipped: $python has no package tutti, or no pytest; scripts/build-python installs both"
  exit 77
fi
LAUNCHER_OF_RANKS=$tool exec "$python" -m pytest -q -p no:cacheprovider "$file"
