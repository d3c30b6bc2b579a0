#!/usr/bin/env bash
# into_machine.sh MACHINE COMMAND...: runs COMMAND in the network namespace MACHINE, with MACHINE as host name. mpirun
# calls it in place of ssh, so it skips ssh's options, and accepts a command that is written for a shell.
set -euo pipefail

while [[ ${1-} == -* ]]; do shift; done
machine=$1
shift
inside=(ip netns exec "$machine" unshare --uts sh -c)
# shellcheck disable=SC2016  # the inner shell expands $0, $1 and $@
if [ $# -gt 1 ] && [ -x "$(command -v -- "$1")" ]; then
  exec "${inside[@]}" 'hostname "$0" && exec "$@"' "$machine" "$@"
else
  # One string, or words of which the first is not a program: a shell in the namespace parses them, as with ssh.
  exec "${inside[@]}" 'hostname "$0" && eval "$1"' "$machine" "$*"
fi
