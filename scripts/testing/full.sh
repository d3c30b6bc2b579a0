# shellcheck shell=bash disable=SC2154
# Sourced by scripts/test: the parts of --full. The first one is the whole quick run. The others make further checks;
# those with sanitizers and fuzzers also repeat checks of the quick run, in optimised builds or for a longer time.
# SC2154 is disabled because count.sh and quick.sh set some of the variables.

# NAME:BUDGET, with the budget in minutes. No part may take longer than 30 minutes.
full_parts=(quick:25 left:30 ptx:30 gpu_bundle:20 long:30 sweeps_calls:30 sweeps_set_up:30 sweeps_gpu:30
  reliability:30 torch_suite:30 torch_versions:30 rdma_long:20 asan_units:30 asan_processes:30 rdma_asan:20
  tsan_calls:30 tsan_device:30 tsan_rest:20 fuzz_long:25 plans:15 matrix:30 nccl_judges:30 format:2 lint_library:30
  lint_tests:30)

part_quick() {
  local part
  for part in "${quick_parts[@]}"; do run_part "$part"; done
}

# The tests of train, python, faults and rdma that the quick run does not run.
part_left() {
  prepare_rdma || return 1
  build_quick && build dev tests_rdma || return 1
  run_ctest dev -L '^train$' -R "$train_long"
  run_ctest dev -L '^faults$' -E "$faults_quick"
  run_ctest dev -L '^rdma$' -E "$rdma_quick"
  if build_python; then run_ctest dev -L '^python$' -R "$python_long"; fi
  run_ctest dev -R '^Python\.wheel$'  # compiles on all cores
}

# nvcc's PTX of the device code, translated into C++, with fake GPUs.
part_ptx() { build dev tests_ptx && run_ctest dev -L '^ptx$'; }

# The archive for machines with GPUs, in an empty system over the fake driver.
part_gpu_bundle() {
  build dev fake_gpus && scripts/gpu-bundle || { count_fail 'scripts/gpu-bundle' && return 1; }
  check tests/device/hardware/bundle_test.sh build/gpu-bundle/tutti-gpu.tar.xz build/dev && tail -n 4 build/check.log
  # Without a GPU, only the script itself is tested.
  check env PYTHON="$root/build/python/bin/python" GPU_TORCH_OPTIONS='--backend gloo --device cpu --most-bytes 10000' \
    scripts/gpu-torch --rounds 1 build/gpu-torch.md || true
}

# The tests of the label long that no other part runs. First it checks that no folder lacks tests, for example because
# CMake did not find a library.
part_long() {
  build dev || return 1
  check "$root/scripts/check-skips" --build build/dev --tests || true
  run_ctest dev -j "$(waiting)" -L '^processes_long$' -E '^reliability|^Long\..*Sweep\.|^elastic\.ten_minutes'
  run_ctest dev -L long -LE 'rdma|processes_long' -E '^Python|^reliability'
}
# The sweeps, in which every allocation and every system call fails once: first those of calls, then those of the
# set-up of communicators, then those with fake GPUs. elastic.ten_minutes_of_random_kills waits most of the time, so it
# runs beside the first ones.
set_up_sweeps='^Long\..*/(SetUp|CreateAll)Sweep\.|^Long\.UniqueIdSweep\.'
part_sweeps_calls() {
  build dev && run_ctest dev -j "$(waiting)" -R '^Long\..*Sweep\.|^elastic\.ten_minutes' -E "$set_up_sweeps|/Gpu"
}
part_sweeps_set_up() { build dev && run_ctest dev -j "$(waiting)" -R "$set_up_sweeps"; }
part_sweeps_gpu() { build dev && run_ctest dev -j "$(waiting)" -R '^Long\..*/Gpu[A-Za-z]*Sweep\.'; }
part_reliability() { build dev && run_ctest dev -j "$(waiting)" -L long -R '^reliability'; }
part_torch_suite() { build dev && build_python && run_ctest dev -R 'torch_suite'; }
# The tests of the torch backend with a newer and with an older version of PyTorch than the quick run has.
part_torch_versions() {
  build dev && build_python || return 1
  local version
  for version in 2.14.1 debian; do
    if check_limit=1800 check scripts/test-torch $version; then grep -E 'passed|^==' build/check.log; fi
  done
}
# The RDMA tests that take minutes in a guest.
part_rdma_long() { prepare_rdma && build dev tests_rdma && run_ctest dev -L rdma_long; }
# The verbs transport with a real RDMA stack and the address sanitizer, which checks for leaks at the end of every
# process.
part_rdma_asan() { prepare_rdma && build asan tests_rdma && run_ctest asan -R '^rdma\.verbs' -L '^rdma$'; }
# Tests that take long with a sanitizer, and repeat others with more ranks, other transports, or longer messages.
repeats='CutLongMessages.*/(Shm[13-9]|Tcp[124-9]|Mixed[1-35-9]|Calls[13-9])'
repeats+='|CutLongMessages.*/(Ucx(Sm|Tcp[34])|(Shm|Mixed)Check|TcpChecksums[34])'
repeats+='|ChecksumWorlds/Collectives.*Checksums[346]|PiecesOfCalls.*(Tcp|Machines|Attached)|DeviceCall.TwelveRanks'
repeats+='|DirectKinds.GiveTheBits.*/[3-9]|AllReduceRanks.*/[0-9]*[4-9]|(Slow|Once)/Alloc.*/(Shm|Mixed)|Tcp.*Repeated'
# Computations that take up to three minutes with a sanitizer: proofs of the largest plans, simulated faults from more
# seeds, and second runs of programs with eight hardware queues. Smaller proofs and other seeds remain. asan_units and
# asan_processes also keep the second runs with one hardware queue: these are of fewer tests, partly of other programs.
# (A regular expression of ctest may have at most nine pairs of parentheses. If one has more, run_ctest fails the part.)
computations='^Mutants\.AMissing|^Mutants\.OneCredit|^Mutants\.AnUnchecked|ProvesEveryAlgorithm|ProvesPlansThat'
computations+='|Rounds\.AreEnough.*/[abr][lre][lod]|Mutations\..*/h|Mutations\..*/ci'
computations+='|^FaultSeeds\.[2-7]00|^FaultSeeds\.Every|_eight_queues$'
# How many tests of processes run at once with a sanitizer: they wait about half of the time.
sanitized_processes() { echo $((2 * $(cores))); }
part_asan_units() {
  build asan && run_ctest asan -j "$(waiting)" -L '^units$' -LE "long|$not_sanitized" -E "$repeats|$computations"
}
part_asan_processes() {
  build asan || return 1
  run_ctest asan -j "$(sanitized_processes)" -LE "long|$not_sanitized|^units\$" -E "$repeats|$computations"
}
# Proofs of plans and simulated faults, which use one thread. The thread sanitizer cannot find a race in them.
one_thread='\.IsProved|\.HasNoMutant|\.MutationsAreRefused|^FaultSeeds\.|^SurvivorSeeds\.'
# The folders of part_tsan_calls. part_tsan_device and part_tsan_rest run the tests of all other folders.
tsan_calls=' bootstrap job membership engine selection communicator '
part_tsan_calls() {
  local folder
  build tsan || return 1
  for folder in $tsan_calls; do tsan_folder "tests/$folder"; done
}
part_tsan_device() { build tsan && tsan_folder tests/device; }
part_tsan_rest() {
  local folder
  build tsan || return 1
  for folder in tests/*/CMakeLists.txt; do
    folder=${folder%/CMakeLists.txt}
    [[ "$tsan_calls device " == *" ${folder#tests/} "* ]] || tsan_folder "$folder"
  done
}
# Tests that take too long with the thread sanitizer, so that only the address sanitizer runs them: BlockBudgetJobs,
# which have more ranks than the thread sanitizer can run within their timeouts; a call of nine ranks that takes
# minutes; sweeps over failures of three machines with fake GPUs; calls with more ranks, GPUs or parts than others;
# second runs of programs with one hardware queue; and the routes of every published topology, which use one thread.
slow_with_tsan='^BlockBudgetJobs|DeviceVariableCalls.*/On000000000|AcrossMachines.AFail|Windows.*With0With0With1'
slow_with_tsan+='|^PiecesOfCalls.GiveTheBitsOfTheWhole|^StagedCalls.GiveTheBits|^DeviceVariableJobs.All'
slow_with_tsan+='|_one_queue$|^Routes.OfEvery'
# tsan_folder FOLDER: runs the tests of this folder, if there are any. It leaves out those that emulate kernels: they
# use fibers in one thread, and take minutes each. tests/device/unit and tests/device/calls run the same code with
# threads.
tsan_folder() {
  local dir=build/tsan/$1 labels="long|$not_sanitized|emulated"
  local names="$repeats|$computations|$one_thread|$slow_with_tsan"
  if has_tests "$dir" -L '^units$' -LE "$labels" -E "$names"; then
    run_ctest "tsan/$1" -j "$(waiting)" -L '^units$' -LE "$labels" -E "$names"
  fi
  if has_tests "$dir" -LE "$labels|^units\$" -E "$names"; then
    run_ctest "tsan/$1" -j "$(sanitized_processes)" -LE "$labels|^units\$" -E "$names"
  fi
}
# has_tests DIR ARGUMENTS...: whether ctest finds tests in DIR with these arguments.
has_tests() {
  local dir=$1 listed
  shift
  listed=$(unrandomised "$dir" ctest --test-dir "$dir" -N "$@") || count_fail "ctest -N in $dir"
  [[ $listed == *'  Test '* ]]
}

part_fuzz_long() {
  local targets=(tests/fuzz/*_fuzzer.cc)
  targets=("${targets[@]#tests/fuzz/}")
  fuzz "${targets[*]%.cc}" --seconds 60
}

# Verifies every algorithm for 2 to 64 ranks, and prints the number of mutated plans that were refused.
part_plans() {
  build release tutti_tool || return 1
  check build/release/bin/tutti verify --ranks 2..64 && tail -n 3 build/check.log
}

# All-reduce with every type and operation, with one to three elements and a count that is not a multiple of anything.
# Each run checks in place and out of place.
part_matrix() {
  build release tutti_tool || return 1
  local types=(int8:1 uint8:1 int32:4 uint32:4 int64:8 uint64:8 float8_e4m3:1 float8_e5m2:1 float16:2 bfloat16:2
    float32:4 float64:8)
  local ranks memory type count one
  for ranks in 1 2 3 4 7 8 16; do
    for memory in plain registered; do
      for type in "${types[@]}"; do
        one=${type#*:}
        for count in 3 1000003; do
          # the sizes from -b in steps of -i: 1, 2, and 3 elements, or only 1000003
          check build/release/bin/tutti perf all_reduce --ranks "$ranks" --memory "$memory" -d "${type%:*}" -o all \
            -b $((count == 3 ? one : count * one)) -e $((count * one)) -i "$one" -n 1 -w 0 || true
        done
      done
      say "matrix: $ranks ranks, $memory: $passed passed, $failed failed so far"
    done
  done
}

# Programs and packages that others made for NCCL. The script prints a line for each check and for each skipped judge.
part_nccl_judges() {
  local log=build/nccl-judges.log line status=0
  scripts/nccl-judges >"$log" 2>&1 || status=$?
  while read -r line; do
    case $line in
      'ok '*) count_pass ;;
      'not ok '*) count_fail "scripts/nccl-judges: $line" ;;
      'skipped '*) line=${line#skipped } && count_skip "scripts/nccl-judges ${line%%:*}" "${line#*: }" ;;
    esac
  done <"$log"
  grep -E '^==|^[0-9]+ passed' "$log" || true
  if [ "$(tail -n 1 "$log" | sed -nE 's/^[0-9]+ passed, [0-9]+ failed, [0-9]+ skipped$/counts/p')" != counts ]; then
    count_fail "scripts/nccl-judges ended with status $status"$'\n'"$(tail -n 20 "$log")"
  fi
}

# Prints all C++ files of the tree, one per line.
cxx_files() {
  find include src topology transports kernels tools bench examples python tests -name '*.cc' -o -name '*.h' | sort
}

part_format() {
  "$root/scripts/setup" --dev
  local file
  while read -r file; do check clang-format --dry-run --Werror "$file" || true; done < <(cxx_files)
}

part_lint_library() { lint -vE '^(tests|train)/'; }
part_lint_tests() { lint '^tests/'; }

# lint ARGUMENTS OF GREP: runs clang-tidy for those sources of the dev build whose paths grep selects, on all cores.
# Headers are checked with their sources. clang-tidy needs a list of commands with one source each, so a separate folder
# is configured, in which nothing is built. A missing #include is an error here, because each source is parsed alone
# and without a precompiled header.
lint() {
  "$root/scripts/setup" --dev || { count_fail 'scripts/setup --dev' && return 1; }
  cmake --preset dev -B build/lint -DCMAKE_UNITY_BUILD=OFF >build/lint.log || { count_fail 'cmake' && return 1; }
  local file log
  # clang cannot use GCC's precompiled headers. -Wno-deprecated-declarations: headers of GCC and Boost use deprecated
  # names. Sources that include libtorch's headers (train) are not checked, because those headers take much time.
  sed -E -i 's# -include [^ ]*cmake_pch.hxx##g; s# -Winvalid-pch##g' build/lint/compile_commands.json
  cxx_files | grep '\.cc$' | grep -v '^tests/train/' | grep "$@" | while read -r file; do
    grep -qF "\"$root/$file\"" build/lint/compile_commands.json && echo "$file"
  done >build/lint/files
  # Writes the output of clang-tidy for one file to a log, with its exit status in the last line.
  # shellcheck disable=SC2016
  local one='log=build/lint/${1//\//_}.log
    timeout 600 build/python/bin/clang-tidy --quiet --extra-arg=-Wno-deprecated-declarations -p build/lint "$1" \
      >"$log" 2>&1
    echo "status $?" >>"$log"'
  xargs -P "$(cores)" -I{} bash -c "$one" _ {} <build/lint/files
  while read -r file; do
    log=build/lint/${file//\//_}.log
    if [ "$(tail -n 1 "$log")" = 'status 0' ]; then
      count_pass
    else
      count_fail "clang-tidy $file"
      grep -E '(warning|error):' "$log" | head -n 5
    fi
  done <build/lint/files
}
