#!/usr/bin/env bash
# hosts_test.sh TUTTI verbs|ucx: a hierarchical all-reduce across hosts, checked. Runs as every rank of two guests of
# scripts/rdma-vm. Exit status 0: it was right, and went the way that was asked for.
set -euo pipefail
tutti=$1 transport=$2
export TUTTI_RDMA_DEVICES=$RDMA_VM_DEVICES
case $transport in
  verbs) export TUTTI_TRANSPORT=auto && way=shm+verbs ;; # memory inside a host, the named device between them
  ucx) export TUTTI_TRANSPORT=ucx UCX_TLS=rc_v && way=ucx ;; # by the device, not by TCP
esac
text=$(mktemp)
trap 'rm -f "$text"' EXIT

"$tutti" perf all_reduce -b 8 -e 256K -f 512 -n 3 -w 1 --algorithm hierarchical >"$text" 2>&1 || {
  echo "hosts_test: rank $RANK failed:" && cat "$text" && exit 1
}
if [ "$RANK" = 0 ]; then
  cat "$text"
  grep -q "4 ranks .* $way transport.* 2 nodes" "$text" || { echo "hosts_test: not over $way" && exit 1; }
  grep -q 'Out of bounds values : 0 OK' "$text"
fi
