# shellcheck shell=bash disable=SC2154
# Sourced by scripts/test: the parts of the quick run. docs/testing.md explains them.
# SC2154 is disabled because count.sh sets some of the variables.

# NAME:BUDGET, with the budget in minutes, in the order of the run.
quick_parts=(build:8 units:3 processes:9 faults:1 python:4 train:2 gpu:1 rdma:2 asan:3 tsan:4 fuzz:3 house:2)

not_sanitized='tidy|install|python|rdma'  # rdma: with a sanitizer these tests take minutes in an emulated guest

# The tests of these parts that only --full runs (its part "left"), as regular expressions for ctest. Each of them
# tests one more strategy, launcher or failure of a kind that the quick run tests. docs/testing.md has the list.
train_long='Strategies/Equal\..*/(all|tensor_(4|mics)|pipeline_(4|zero)|mics|zero[12]|zero3_rec|ddp_[^2]|two)'
train_long+='|Strategies/BitsOfTwoRuns\..*/(all|mics|tensor|zero[12]|gpipe)|Bits\.OfDataParallel.*/[34]|Equal\.ForEvery'
train_long+='|PlantedMistakes\.(A|Two|The|Grad).*Twice|train\.(elastic_|a_torn|resume_goes|bad_options|a_diverged'
train_long+='|early_stop|a_checkpoint_of|recompute|plot_draws|values_that|another_launcher)'
python_long='Python\.torch_(launch|training|beside|errors|death)|torchrun\.(restarts|a_failing|jobs)'
rdma_quick='rdma\.(device|verbs|verbs_two_hosts|ucx_two_hosts)$|rdma_vm\.(the_command|command_line|what_is_missing)'
faults_quick='FaultSeeds\.(1to1000|1001to2000)|SurvivorSeeds\.1to250$'

# The programs of each folder for which the sanitizers are important, because of their memory or threads. --full runs
# all programs with both sanitizers.
asan_programs=(base_test heap_test kernels_test transports_test tcp_test executor_test job_test consensus_test
  engine_test selection_test communicator_test allocation_test)
asan_folders=(base heap kernels transports executor job membership engine selection communicator)
tsan_programs=(transports_test executor_test job_test engine_test selection_test communicator_test)
tsan_folders=(transports executor job engine selection communicator)
# Tests of these programs that take long with a sanitizer, and differ from other tests only in ranks, types, operations
# or text, or wait for a deadline most of the time. The quick run runs them without a sanitizer, and --full with both,
# except for the repetitions that full.sh names.
asan_leaves='Consensus.WhoeverIsStopped|WhoGivesUpFindsIts|DirectKinds.GiveTheBits.*/[3-9]|AllReduceRanks.*/[0-9]*[4-9]'
asan_leaves+='|ShmMailboxes.DisagreementWith|Simulated\.(Reg|More)'
asan_leaves+='|EveryTypeAndOp/Targets.*_(min|max|prod|avg)|ASendBehindOthersHasTime|ARootAheadOfALateReader'
# From the sweeps over failed allocations, only each type of call over TCP is kept, to find leaks.
asan_leaves+='|(Slow|Lasting)/Alloc|Once/Alloc.*/(Shm|Mixed)|Tcp.*Repeated'
tsan_leaves="$asan_leaves|(Device|Mapped)Windows.*With0With0With1|EveryTypeAndOperation|Direct.GivesTheBits"
tsan_leaves+='|DirectKinds.GiveTheBits|AllReduceRanks.*/2|ThreadsShare.*/Mixed|AnAbortInTheMiddleIsNamed'
tsan_leaves+='|Deadline.NamesTheRank|TilesAreMany|SamePlanGives|RandomDisagreements|TakesTurnsWith'
# The fuzzers that need only a small part of the library; the others take minutes to build.
quick_fuzzers=(plan_json_fuzzer recording_fuzzer topology_xml_fuzzer)

# How many tests run at once if they wait half of the time or more, for other processes or for deadlines: tests with the
# label "units" under a sanitizer, and some long ones.
waiting() { echo $((4 * $(cores))); }

part_setup() {
  "$root/scripts/setup" --tests || die "packages for the tests are missing"
  "$root/scripts/setup" --plots --without-train ||
    say 'matplotlib cannot be installed: the tests that draw plots are skipped'
  count_pass
}

# Builds the parts of the dev build that the quick run needs: without long tests, and with only those benchmarks that
# tests start.
build_quick() { build dev tutti_tool tutti_shared tutti_nccl_shared compare_drivers fuzz_seeds quick_tests; }

part_build() { build_quick && count_pass; }

part_units() { run_ctest dev -L '^(units|emulated)$'; }

# Process tests mostly wait. So the programs of the parts asan, tsan and fuzz are built during these tests and those
# of the next parts, with the lowest priority. These parts build the rest themselves, and count failures.
part_processes() {
  "$root/scripts/setup" --fuzz --without-train || say 'clang cannot be installed'
  start_background_builds
  run_ctest dev -L '^processes$'
}

background_builds=''
start_background_builds() {
  # Kernels that group processes by session for scheduling ("autogroup") use the priority of the session, not that of
  # its processes.
  setsid nice -n 19 bash -c 'echo 19 2>/dev/null >/proc/self/autogroup
    "$0" quick-asan '"${asan_programs[*]}"'
    "$0" quick-tsan '"${tsan_programs[*]}"'
    "$0" quick-fuzz '"${quick_fuzzers[*]}" "$root/scripts/build" >build/background.log 2>&1 &
  background_builds=$!
  trap 'kill -- "-$background_builds" 2>/dev/null || true' EXIT
}

# Waits for these builds, and lets them run with normal priority.
finish_background_builds() {
  [ -n "$background_builds" ] || return 0
  renice -n 0 -g "$background_builds" >/dev/null 2>&1 || true
  { echo 0 >"/proc/$background_builds/autogroup"; } 2>/dev/null || true
  wait "$background_builds" || true
  background_builds=''
}

# Faults that are generated from seeds, with a simulated clock and network (docs/reliability.md).
part_faults() { run_ctest dev -L '^faults$' -R "$faults_quick"; }

# The Python package with NumPy, PyTorch and torchrun. If its packages cannot be installed, the tests are skipped, if
# the list allows this. If the package does not build, the part fails.
part_python() {
  if build_python; then run_ctest dev -L '^python$' -E "$python_long"; fi
}

build_python() {
  local status=0
  "$root/scripts/build-python" dev || status=$?
  case $status in
    0) count_pass ;;
    77) say 'the packages for the Python package cannot be installed: its tests are skipped' ;;
    *) count_fail 'scripts/build-python dev: the Python package does not build' && return 1 ;;
  esac
}

# The training harness; it is built if libtorch is installed (scripts/setup).
part_train() {
  if [ -x build/dev/bin/tutti-train ]; then
    run_ctest dev -L '^train$' -E "$train_long"
  else
    count_skip 'part train' 'there is no libtorch, so the training harness is not built'
  fi
}

# Tests on a GPU. Without a GPU ctest reports these tests as skipped, and they are counted as skipped.
part_gpu() { run_ctest dev -L '^gpu$'; }

# Tests in guests with a real RDMA stack (scripts/rdma-vm). The tests are skipped if guests cannot run. CMake looks
# for the libraries again, because they may have just been installed.
part_rdma() {
  prepare_rdma || return 1
  build dev tests_rdma || return 1
  run_ctest dev -L '^rdma$' -R "$rdma_quick"
}

prepare_rdma() {
  "$root/scripts/setup" --rdma || say 'the packages for the guests cannot be installed: tests over RDMA are skipped'
  "$root/scripts/rdma-vm" prepare || say 'guests cannot run: tests over RDMA are skipped'
  rm -f build/dev/preset # scripts/build runs CMake again
}

part_asan() { sanitize quick-asan "$asan_leaves" asan_programs asan_folders; }
part_tsan() { sanitize quick-tsan "$tsan_leaves" tsan_programs tsan_folders; }

# sanitize PRESET LEFT PROGRAMS FOLDERS: builds the programs and runs their unit tests, except those that match LEFT.
sanitize() {
  local preset=$1 left=$2 folder
  local -n programs=$3 folders=$4
  finish_background_builds
  build dev tutti_model || return 1  # includes the libraries that these presets take from dev
  build "$preset" "${programs[@]}" || return 1
  for folder in "${folders[@]}"; do
    run_ctest "$preset/tests/$folder" -j "$(waiting)" -L '^units$' -E "$left"
  done
}

# Runs a few libFuzzer targets for a few seconds. The seed is always the same, so that a change of the result is
# caused by the change of the code.
part_fuzz() { fuzz "${quick_fuzzers[*]}" --quick --seconds 5 --seed 1; }

what_fuzz_found() { grep -E 'runtime error|ERROR|SUMMARY|Test unit' "$1"; }

# fuzz "TARGET..." OPTIONS...: runs the targets with these options of scripts/fuzz.
fuzz() {
  local target targets status=0 dir=build/fuzz
  read -ra targets <<<"$1"
  shift
  if [ "$1" = --quick ]; then dir=build/quick-fuzz; fi
  "$root/scripts/setup" --fuzz --without-train || say 'clang cannot be installed: nothing is fuzzed'
  rm -f "$dir"/*_fuzzer.log  # logs of an earlier run
  "$root/scripts/fuzz" "$@" "${targets[@]}" | tee build/fuzz.out || status=$?
  for target in "${targets[@]}"; do
    if grep -q "^$target: .*nothing found" build/fuzz.out; then
      count_pass
    elif [ "$status" = 77 ]; then
      count_skip "scripts/fuzz $target" 'there is no clang++ that can link fuzzers'
    else
      count_fail "scripts/fuzz $target"$'\n'"$(what_fuzz_found "$dir/$target.log" 2>&1)"
    fi
  done
}

part_house() { run_ctest dev -L '^(tidy|install|quiet)$'; }
