#!/usr/bin/env bash
# run.sh PYTHON TUTTI FILE: runs the tests of one file with the Python of the package's environment, and with TUTTI
# as the launcher.
#
# Status 77 (skipped) if scripts/setup --python could not install the environment. If the environment exists, it must
# contain the package tutti. Otherwise scripts/build-python was not run or has failed, and the tests fail.

set -euo pipefail
python=$1 tool=$2 file=$3

has() {
  "$python" -c 'import importlib.util as u, sys; sys.exit(any(u.find_spec(name) is None for name in sys.argv[1:]))' "$@"
}
if ! [ -x "$python" ] || ! has pytest numpy torch; then
  echo "skipped: $python is missing or lacks pytest, numpy or torch; scripts/setup --python installs them"
  exit 77
fi
cd "$(dirname "$file")" # not a folder in which a subfolder named tutti could be taken for the package
if ! has tutti; then
  echo "FAILED: $python has no package tutti; scripts/build-python builds and installs it"
  exit 1
fi
LAUNCHER_OF_RANKS=$tool exec "$python" -m pytest -q -p no:cacheprovider "$file"
