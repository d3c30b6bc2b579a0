#!/usr/bin/env bash
# into_machine.sh MACHINE COMMAND...: runs COMMAND in the network namespace MACHINE, under that host name. It stands
# where mpirun expects ssh, and so leaves out ssh's options and takes a command that is meant for a shell.
set -euo pipefail

while [[ ${1-} == -* ]]; do shift; done
machine=$1
shift
inside=(ip netns exec "$machine" unshare --uts sh -c)
# shellcheck disable=SC2016  # for the shell inside
if [ $# -gt 1 ] && [ -x "$(command -v -- "$1")" ]; then
  exec "${inside[@]}" 'hostname "$0" && exec "$@"' "$machine" "$@"
else # one string, or words with quotes among them, as ssh would hand them to the other machine's shell
  exec "${inside[@]}" 'hostname "$0" && eval "$1"' "$machine" "$*"
fi
