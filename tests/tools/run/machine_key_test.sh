#!/usr/bin/env bash
# machine_key_test.sh TUTTI: starts two ranks by hand, without a job key, on a machine on which the usual folders for
# the machine's key cannot be written to, except TMPDIR. The ranks must share the key that is created there.
#
# The test hides the usual folders in namespaces of its own. Exits with 77 if it cannot create namespaces.
set -euo pipefail
tool=$(realpath "$1")
# shellcheck source=tests/support/patience.sh
. "$(dirname "$0")/../../support/patience.sh" "$tool"

if [ "${2-}" != --inside ]; then
  unshare -rmn true 2>/dev/null || exit 77
  exec timeout -k 1 "$(scaled 60)" unshare -rmn --kill-child bash "${BASH_SOURCE[0]}" "$tool" --inside
fi

ip link set lo up
mount -t tmpfs tmpfs /mnt
for folder in /tmp /run /dev/shm; do mount -t tmpfs -o ro tmpfs "$folder"; done
for rank in 0 1; do
  env -i PATH="$PATH" HOME=/ TMPDIR=/mnt TUTTI_RANK=$rank TUTTI_WORLD_SIZE=2 \
    "$tool" perf all_reduce -b 8 -e 8 -n 1 >"/mnt/$rank" 2>&1 &
  ranks[rank]=$!
done
status=0
for rank in 0 1; do wait "${ranks[rank]}" || status=1; done
cat /mnt/0 /mnt/1
key=/mnt/tutti-$(id -u)/machine.key
[ "$(stat -c '%a %s' "$key")" = '600 32' ] || status=1
exit $status
