# Sourced by tests: ports that nobody else gets until the script and its children have ended. See ports.h.
# shellcheck shell=bash

# free_port [COUNT]: prints the first of so many free ports in a row.
free_port() { python3 "$(dirname "${BASH_SOURCE[0]}")/ports.py" "$ports_lock" "${1-1}"; }

# The lock belongs to the open file, which a subshell and its programs share with the script.
exec {ports_lock}<>"${TMPDIR:-/tmp}/tutti-test-ports-$UID"
