# shellcheck shell=bash disable=SC2154
# Sourced by scripts/test: the parts of the quick run. docs/testing.md explains them.
# The variables that are not set here (the warning that is off) are those of count.sh.

# Name and budget in minutes, in the order of the run.
quick_parts=(build:8 units:2 processes:9 faults:1 python:2 train:2 gpu:1 rdma:2 asan:3 tsan:4 fuzz:3 house:2)

not_sanitized='tidy|install|python|rdma' # rdma: in an emulated guest, where a sanitizer takes minutes

# What of these parts is left to --full, as regular expressions of ctest: its part "left" runs it. Each
# is one more strategy, launcher or failure of what stays; docs/testing.md has the list.
train_long='Strategies/Equal\..*/(all|tensor_(4|mics)|pipeline_(4|zero)|mics|zero[12]|zero3_rec|ddp_[^2]|two)'
train_long+='|Strategies/BitsOfTwoRuns\..*/(all|mics|tensor|zero[12]|gpipe)|Bits\.OfDataParallel.*/[34]|Equal\.ForEvery'
train_long+='|PlantedMistakes\.(A|Two|The|Grad).*Twice|train\.(elastic_|a_torn|resume_goes|bad_options|a_diverged'
train_long+='|early_stop|a_checkpoint_of|recompute|plot_draws|values_that|another_launcher)'
python_long='Python\.torch_(launch|training|beside|errors|death)|torchrun\.(restarts|a_failing|jobs)'
rdma_quick='rdma\.(device|verbs|verbs_two_hosts|ucx_two_hosts)$|rdma_vm\.(the_command|command_line|what_is_missing)'
faults_quick='FaultSeeds\.(1to1000|1001to2000)|SurvivorSeeds\.1to250$'

# Programs of every folder whose memory or threads the sanitizers have to see; --full runs all programs under both.
asan_programs=(base_test kernels_test transports_test tcp_test executor_test job_test consensus_test engine_test
  selection_test communicator_test allocation_test)
asan_folders=(base kernels transports executor job membership engine selection communicator)
tsan_programs=(transports_test executor_test job_test engine_test selection_test communicator_test)
tsan_folders=(transports executor job engine selection communicator)
# Tests of these programs that take long there, and repeat a neighbour with more ranks, types or words. The quick run
# has them in the part units, and --full under both sanitizers.
asan_leaves='Consensus.WhoeverIsStopped|WhoGivesUpFindsIts|DirectKinds.GiveTheBits.*/[3-9]|AllReduceRanks.*/[0-9]*[4-9]'
asan_leaves+='|ShmMailboxes.DisagreementWith|Simulated\.(Reg|More)'
# Of the sweeps over failed allocations, for leaks: each kind of call over TCP.
asan_leaves+='|(Slow|Lasting)/Alloc|Once/Alloc.*/(Shm|Mixed)|Tcp.*Repeated'
tsan_leaves="$asan_leaves|(Device|Mapped)Windows.*With0With0With1|EveryTypeAndOperation|Direct.GivesTheBits"
tsan_leaves+='|DirectKinds.GiveTheBits|AllReduceRanks.*/2|ThreadsShare.*/Mixed|AnAbortInTheMiddleIsNamed'
tsan_leaves+='|Deadline.NamesTheRank|TilesAreMany|SamePlanGives|RandomDisagreements|TakesTurnsWith'
# The fuzzers that need little of the library; the others take minutes to build.
quick_fuzzers=(plan_json_fuzzer recording_fuzzer topology_xml_fuzzer)

part_setup() {
  "$root/scripts/setup" --tests || die "what the tests need is not there"
  count_pass
}

# Everything that the quick run needs of the dev build: no long tests, no benchmarks but those that tests start.
build_quick() { build dev tutti_tool tutti_shared tutti_nccl_shared compare_drivers fuzz_seeds quick_tests; }

part_build() { build_quick && count_pass; }

part_units() { run_ctest dev -j "$(cores)" -L '^(units|emulated)$'; }

# Most of a process test is waiting, so the programs of the parts asan, tsan and fuzz are built beside these tests and
# those of the next parts, at the lowest priority. Those parts build again what is missing, and count what fails.
part_processes() {
  "$root/scripts/setup" --fuzz --without-train || say 'clang cannot be installed'
  start_background_builds
  run_ctest dev -L '^processes$'
}

background_builds=''
start_background_builds() {
  # A kernel that groups processes by session for scheduling ("autogroup") weighs the session, not its processes.
  setsid nice -n 19 bash -c 'echo 19 2>/dev/null >/proc/self/autogroup
    "$0" quick-asan '"${asan_programs[*]}"'
    "$0" quick-tsan '"${tsan_programs[*]}"'
    "$0" fuzz '"${quick_fuzzers[*]}" "$root/scripts/build" >build/background.log 2>&1 &
  background_builds=$!
  trap 'kill -- "-$background_builds" 2>/dev/null || true' EXIT
}

# What is left of these builds is done at full speed.
finish_background_builds() {
  [ -n "$background_builds" ] || return 0
  renice -n 0 -g "$background_builds" >/dev/null 2>&1 || true
  { echo 0 >"/proc/$background_builds/autogroup"; } 2>/dev/null || true
  wait "$background_builds" || true
  background_builds=''
}

# Faults from seeds under a simulated clock and network (docs/reliability.md).
part_faults() { run_ctest dev -j "$(cores)" -L '^faults$' -R "$faults_quick"; }

# The Python package, NumPy, PyTorch and its torchrun. "Cannot be installed" and "does not build" are two results: the
# first skips the tests, if the list allows that, the second fails.
part_python() {
  if build_python; then run_ctest dev -L '^python$' -E "$python_long"; fi
}

build_python() {
  local status=0
  "$root/scripts/build-python" dev || status=$?
  case $status in
    0) count_pass ;;
    77) say 'what the Python package needs cannot be installed: its tests are skipped' ;;
    *) count_fail 'scripts/build-python dev: the Python package does not build' && return 1 ;;
  esac
}

# The training harness; it is built where libtorch is (scripts/setup).
part_train() {
  if [ -x build/dev/bin/tutti-train ]; then
    run_ctest dev -j "$(cores)" -L '^train$' -E "$train_long"
  else
    count_skip 'part train' 'there is no libtorch, so the training harness is not built'
  fi
}

# On a GPU. Without one ctest shows these tests as skipped, and they count so.
part_gpu() { run_ctest dev -L '^gpu$'; }

# In guests with a real RDMA stack (scripts/rdma-vm); the tests are skipped if there can be none. CMake looks for the
# libraries again, because they may have been installed just now.
part_rdma() {
  prepare_rdma || return 1
  build dev tests_rdma || return 1
  run_ctest dev -L '^rdma$' -R "$rdma_quick"
}

prepare_rdma() {
  "$root/scripts/setup" --rdma || say 'what the guests need cannot be installed: tests over RDMA are skipped'
  "$root/scripts/rdma-vm" prepare || say 'there are no guests: tests over RDMA are skipped'
  rm -f build/dev/preset # scripts/build runs CMake again
}

part_asan() { sanitize quick-asan "$asan_leaves" asan_programs asan_folders; }
part_tsan() { sanitize quick-tsan "$tsan_leaves" tsan_programs tsan_folders; }

# sanitize PRESET LEFT PROGRAMS FOLDERS: builds the programs and runs their unit tests, but not those that fit LEFT.
sanitize() {
  local preset=$1 left=$2 folder
  local -n programs=$3 folders=$4
  finish_background_builds
  build dev tutti_model || return 1 # with the libraries that these presets take from dev
  build "$preset" "${programs[@]}" || return 1
  for folder in "${folders[@]}"; do
    run_ctest "$preset/tests/$folder" -j "$(cores)" -L '^units$' -E "$left"
  done
}

# A few targets of libFuzzer's for a few seconds, with the same seed every time, so that a result is about the change.
part_fuzz() { fuzz "${quick_fuzzers[*]}" --seconds 5 --seed 1; }

what_fuzz_found() { grep -E 'runtime error|ERROR|SUMMARY|Test unit' "build/fuzz/$1.log"; }

# fuzz "TARGET..." OPTIONS...: each target with these options of scripts/fuzz.
fuzz() {
  local target targets status
  read -ra targets <<<"$1"
  shift
  "$root/scripts/setup" --fuzz --without-train || say 'clang cannot be installed: nothing is fuzzed'
  for target in "${targets[@]}"; do
    status=0
    "$root/scripts/fuzz" "$@" "$target" || status=$?
    case $status in
      0) count_pass ;;
      77) count_skip "scripts/fuzz $target" 'there is no clang++ that can link fuzzers' ;;
      *) count_fail "scripts/fuzz $target"$'\n'"$(what_fuzz_found "$target")" ;;
    esac
  done
}

part_house() { run_ctest dev -L '^(tidy|install)$'; }
