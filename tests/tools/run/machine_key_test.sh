#!/usr/bin/env bash
# machine_key_test.sh TUTTI: two ranks that were started by hand, without a key, on a machine on which none of the usual
# folders for this machine's key can be written to, but TMPDIR can. They share the key that is made there.
#
# Namespaces of its own hide the folders. Exits with 77 where these cannot be made.
set -euo pipefail
tool=$(realpath "$1")

if [ "${2-}" != --inside ]; then
  unshare -rmn true 2>/dev/null || exit 77
  exec timeout -k 1 60 unshare -rmn --kill-child bash "${BASH_SOURCE[0]}" "$tool" --inside
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
