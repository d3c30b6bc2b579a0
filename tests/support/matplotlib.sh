# shellcheck shell=bash
# Sourced by tests that draw plots: needs_matplotlib PYTHON ends the test as skipped if PYTHON, the interpreter of
# build/python, is missing or has no matplotlib, because pip could not install it.

needs_matplotlib() {
  if ! "$1" -c 'import importlib.util as u, sys; sys.exit(u.find_spec("matplotlib") is None)' 2>/dev/null; then
    echo "skipped: $1 is missing or lacks matplotlib; scripts/setup --plots installs it"
    exit 77
  fi
}
