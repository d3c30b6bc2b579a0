# shellcheck shell=bash
# Sourced by scripts/test: the part for --changed.
#
# The tests of a folder are in the folder of tests/ with the same name, for example those of src/plan in tests/plan. A
# changed file selects only the tests of its folder. This is fast but not complete, because other folders may use it.

# changed_files: prints the files that differ from the last commit. If there are none, prints the files of the last
# commit.
changed_files() {
  local files others
  files=$(git diff --name-only HEAD) && others=$(git ls-files --others --exclude-standard) || return 1
  files=$(printf '%s\n%s\n' "$files" "$others" | sed '/^$/d')
  [ -n "$files" ] || files=$(git diff --name-only HEAD^ HEAD) || return 1
  printf '%s\n' "$files"
}

# tests_of FILE: prints the folder of tests/ that has the tests of the file, if there is one.
tests_of() {
  local folder
  case $1 in
    tests/*/*) folder=${1#tests/} ;;
    tests/*) return 0 ;;
    src/cuda/*) folder=device ;;
    src/*) folder=${1#src/} ;;
    include/nccl.h) folder=nccl ;;
    include/*) folder=communicator ;;
    scripts/rdma-vm) folder=rdma ;;
    scripts/*) folder=scripts ;;
    *.md) folder=tidy ;;
    *) folder=$1 ;;
  esac
  folder=${folder%%/*}
  if [ -f "tests/$folder/CMakeLists.txt" ]; then printf '%s\n' "$folder"; fi
}

part_changed() {
  local files file folders folder targets=() listed labels='^(units|emulated|processes|tidy|quiet)$'
  files=$(changed_files) || { count_fail '--changed: git cannot list the changes since the last commit' && return 1; }
  folders=$(while read -r file; do tests_of "$file"; done <<<"$files" | sort -u)
  say "changed:" "$(tr '\n' ' ' <<<"$files")"
  for folder in $folders; do targets+=("tests/$folder/all"); done
  while read -r file; do
    [ -n "$(tests_of "$file")" ] || say "no folder of tests/ belongs to $file: scripts/test has its tests, if any"
  done <<<"$files"
  build dev tutti_tool "${targets[@]}" || return 1
  count_pass
  for folder in $folders; do
    listed=$(ctest --test-dir "build/dev/tests/$folder" -N -L "$labels") || count_fail "ctest -N in tests/$folder"
    if [[ $listed == *'  Test '* ]]; then
      run_ctest "dev/tests/$folder" -L "$labels"
    else
      say "tests/$folder has no unit or process tests: scripts/test --parts $folder may have others"
    fi
  done
}
