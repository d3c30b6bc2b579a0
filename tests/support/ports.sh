# Sourced by shell tests: reserves ports until the script and its children have exited. See ports.h.
# shellcheck shell=bash

# free_port [COUNT]: prints the first of COUNT (default 1) consecutive free ports.
free_port() { python3 "$(dirname "${BASH_SOURCE[0]}")/ports.py" "$ports_lock" "${1-1}"; }

# The lock belongs to the open file description, which subshells and their programs share with the script.
exec {ports_lock}<>"${TMPDIR:-/tmp}/tutti-test-ports-$UID"
