#!/usr/bin/env bash
# hosts_test.sh TUTTI verbs|ucx [FAKE_GPUS...]: runs an all-reduce across hosts and checks the result. Runs as every
# rank of two guests of scripts/rdma-vm. Without FAKE_GPUS the algorithm is hierarchical. FAKE_GPUS is a command that
# gives `tutti perf` fake GPUs; the GPUs then reduce within each host, and no algorithm may be named.
# Exit status 0 means that the result was right and the requested transport was used.
set -euo pipefail
tutti=$1 transport=$2
shift 2
export TUTTI_RDMA_DEVICES=$RDMA_VM_DEVICES
# On a busy machine the system can stop one of the emulated hosts for longer than the defaults of 4 s (Tutti) and 7 s
# (UCX), after which a peer counts as unreachable.
export TUTTI_RDMA_TIMEOUT=22 UCX_RC_VERBS_TIMEOUT=17s # seven times 17 s
case $transport in
  # Shared memory inside a host, the named device between hosts.
  verbs) export TUTTI_TRANSPORT=auto && expected=shm+verbs ;;
  ucx) export TUTTI_TRANSPORT=ucx UCX_TLS=rc_v && expected=ucx ;; # UCX must use the device and not TCP
esac
text=$(mktemp)
trap 'rm -f "$text"' EXIT

perf=("$tutti" perf all_reduce -b 8 -e 256K -f 512 -n 3 -w 1 --algorithm hierarchical)
if [ $# -gt 0 ]; then perf=("$@" "$tutti" perf all_reduce --memory cuda -b 256K -e 600K -f 2 -n 3 -w 1); fi
"${perf[@]}" >"$text" 2>&1 || {
  echo "hosts_test: rank $RANK failed:" && cat "$text" && exit 1
}
if [ "$RANK" = 0 ]; then
  cat "$text"
  grep -q "4 ranks .* $expected transport.* 2 nodes" "$text" || { echo "hosts_test: not over $expected" && exit 1; }
  grep -q 'Out of bounds values : 0 OK' "$text" || { echo 'hosts_test: wrong results' && exit 1; }
  [ $# = 0 ] || grep -q '^# Calls on device memory were carried out by the GPUs$' "$text" ||
    { echo 'hosts_test: not by the GPUs' && exit 1; }
fi
