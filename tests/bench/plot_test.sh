#!/usr/bin/env bash
# plot_test.sh PYTHON FILE: runs the tests of a file that draws plots, with the interpreter of build/python.
set -eu
# shellcheck source=tests/support/matplotlib.sh
. "$(dirname "$0")/../support/matplotlib.sh"
needs_matplotlib "$1"
exec "$1" -W error "$2"
