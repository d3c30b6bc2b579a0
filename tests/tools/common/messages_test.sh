#!/usr/bin/env bash
# Tests that all commands of tutti give the same message and exit status for the same error: messages_test.sh TUTTI
# PROMISE
#
# Each function runs every command in which the error can occur, and compares the first line of stderr after "tutti
# COMMAND: ".
set -u
tutti=$1
promise=$2
here=$(mktemp -d)
trap 'rm -rf "$here"' EXIT
# shellcheck source=tests/support/patience.sh
. "$(dirname "$0")/../../support/patience.sh" "$tutti"
failed=0
# The training harness is built only if libtorch is installed.
has_train() { "$tutti" train --help >/dev/null 2>&1; }

# says STATUS 'TEXT' COMMAND ARGS...: expects that the command fails with STATUS, and that its first line begins with
# TEXT.
says() {
  local status=$1 text=$2
  shift 2
  timeout -k 5 "${patience_s:?}" "$tutti" "$@" >"$here/out" 2>"$here/err" </dev/null
  local got=$?
  local line
  line=$(head -n 1 "$here/err")
  if [ $got != "$status" ] || [[ $line != "tutti $1: $text"* ]]; then
    echo "FAILED: tutti $*: status $got, not $status; '$line' does not begin with 'tutti $1: $text'"
    failed=1
  fi
  if [ "$status" = 2 ] && ! grep -qx "See tutti $1 --help\." "$here/err"; then
    echo "FAILED: tutti $*: names no help"
    failed=1
  fi
}

# Checks each command that reads a file.
readers() { # readers STATUS 'TEXT' FILE
  says "$1" "$2" verify --plan "$3"
  says "$1" "$2" topo --xml "$3"
  says "$1" "$2" sim all_reduce --xml "$3"
  says "$1" "$2" sim all_reduce --parameters "$3"
  says "$1" "$2" tune --explain all_reduce 1K --xml "$3"
  says "$1" "$2" tune --explain all_reduce 1K --parameters "$3"
  says "$1" "$2" points "$3" --systems "$3"
  says "$1" "$2" doctor "$3"
  says "$1" "$2" metrics "$3"
}

files_that_cannot_be_opened() { readers 1 "cannot open $here/none: No such file or directory" "$here/none"; }

files_that_cannot_be_read() { readers 1 "cannot read $here: Is a directory" "$here"; }

files_with_wrong_content() {
  echo 'neither XML nor JSON' >"$here/file"
  local text="$here/file: line 1, column "
  says 1 "$text" verify --plan "$here/file"
  says 1 "$text" sim all_reduce --parameters "$here/file"
  says 1 "$text" tune --explain all_reduce 1K --parameters "$here/file"
  text="$here/file:2:1: error: this is not XML"
  says 1 "$text" sim all_reduce --xml "$here/file"
  says 1 "$text" tune --explain all_reduce 1K --xml "$here/file"
  timeout -k 5 "${patience_s:?}" "$tutti" topo --xml "$here/file" 2>&1 | grep -qF "$text" || failed=1
  says 1 "$here/file: " doctor "$here/file"
  says 1 "$here/file: " metrics "$here/file"
  says 1 "$here/file: " points "$here/file" --systems "$here/file"
  echo '<file/>' >"$here/file"
  says 1 "$here/file: this is XML; give" verify --plan "$here/file"
  says 1 "$here/file: this is XML; give" sim all_reduce --parameters "$here/file"
}

# writers TEXT FILE: checks each command that writes a file.
writers() {
  local plan=(plan all_reduce --algorithm ring --ranks 2)
  local perf=(perf all_reduce --ranks 2 --threads -b 8 -e 8 -n 1)
  says 1 "$1" "${plan[@]}" --json "$2"
  says 1 "$1" "${plan[@]}" --svg "$2"
  says 1 "$1" "${plan[@]}" --bytes 8 --goal "$2"
  says 1 "$1" topo --write-xml "$2"
  says 1 "$1" topo --svg "$2"
  says 1 "$1" sim all_reduce --json "$2"
  says 1 "$1" sim all_reduce --svg "$2"
  says 1 "$1" metrics --output "$2"
  says 1 "$1" "${perf[@]}" --json "$2"
  says 1 "$1" "${perf[@]}" --csv "$2"
  says 1 "$1" tune --regret --csv "$2" --ranks 2 --sizes 8
  if has_train; then says 1 "$1" train cnn --data generated --json "$2"; fi
}

files_that_cannot_be_written() {
  writers "cannot write $here/none/file: No such file or directory" "$here/none/file"
  writers "cannot write $here: Is a directory" "$here"
  : >"$here/file"
  says 1 "cannot write $here/file/plans: Not a directory" plan all_reduce --algorithm ring --ranks 2 --bytes 8 \
    --chakra "$here/file/plans"
}

unknown_names() {
  local kinds='is not one of all_reduce, broadcast, reduce, all_gather, reduce_scatter, all_to_all, gather, scatter'
  says 2 "collective: \"all\" $kinds" plan all --algorithm ring --ranks 2
  says 2 "collective: \"all\" $kinds" perf all
  says 2 "collective: \"all\" $kinds" sim all
  says 2 "--collective: \"all\" $kinds" verify --collective all
  says 2 "--explain: \"all\" $kinds" tune --explain all 1K
  says 2 "--collectives: \"all\" $kinds" tune --regret --collectives all
  says 2 '--algorithm: "rign" is not one of ring, ' plan all_reduce --algorithm rign --ranks 2
  says 2 '--algorithm: "rign" is not one of ring, ' verify --algorithm rign
  says 2 '--algorithm: "rign" is not one of ring, ' sim all_reduce --algorithm rign
  says 2 '--algorithm: "rign" is not one of auto, ring, ' perf all_reduce --algorithm rign
  says 2 '--transport: "tpc" is not one of auto, shm, tcp, verbs, ucx; did you mean tcp?' \
    perf all_reduce --transport tpc
  says 2 '--transports: "tpc" is not one of shm, tcp; did you mean tcp?' tune --regret --transports tpc
  says 2 '--datatype: "int9" is not one of int8, ' perf all_reduce -d int9
  says 2 '--op: "smu" is not one of sum, ' perf all_reduce -o smu
  says 2 '--memory: "x" is not one of plain, registered' perf all_reduce --memory x
  says 2 '--memory: "x" is not one of plain, registered' tune --regret --memory x
  local command
  for command in topo 'sim all_reduce' 'tune --explain all_reduce 1K'; do
    # shellcheck disable=SC2086
    says 2 '--shape: "dgx" is not one of dgx-1v, ' $command --shape dgx
  done
  says 2 '--format: "x" is not one of openmetrics, prometheus' metrics --format x
  says 2 '--model: "x" is not one of auto, sweep, events, flows' sim all_reduce --model x
  if has_train; then
    says 2 'model: "x" is not one of cnn, ' train x
    says 2 '--strategy: "x" is not one of ddp, ' train cnn --strategy x
    says 2 '--algorithm: "rign" is not one of ' train cnn --data generated --algorithm rign
    says 2 '--data: "x" is not one of fashion-mnist, ' train cnn --data x
  fi
}

numbers_out_of_range() {
  local bad
  for bad in 0 5000 x; do
    says 2 "--ranks: \"$bad\" is not a number" run -n "$bad" -- true
    says 2 "--ranks: \"$bad\" is not a number" perf all_reduce --ranks "$bad"
    if has_train; then says 2 "--ranks: \"$bad\" is not a number from 1 to 4096" train cnn --ranks "$bad"; fi
    [ $bad = 5000 ] || says 2 "--ranks: \"$bad\" is not a number" plan all_reduce --algorithm ring --ranks "$bad"
    [ $bad = 5000 ] || says 2 "--nodes: \"$bad\" is not a number from 1 to 1048576" sim all_reduce --nodes "$bad"
    [ $bad = 5000 ] || says 2 "--nodes: \"$bad\" is not a number from 1 to 1048576" topo --shape dgx-h100 --nodes "$bad"
  done
  says 2 '--ranks: "5000" is not a number from 1 to 4096' verify --ranks 5000
  says 2 '--root: "2" is not a number from 0 to 1' plan broadcast --algorithm chain --ranks 2 --root 2
  says 2 '--root: "2" is not a number from 0 to 1' perf broadcast --ranks 2 --root 2
  says 2 '--root: "8" is not a number from 0 to 7' sim broadcast --shape dgx-h100 --root 8
  says 2 '--interval-ms: "x" is not a number from 100 to 60000' top --interval-ms x
  says 2 '--interval-ms: "5" is not a number from 100 to 3600000' metrics --interval-ms 5 --output "$here/file"
  says 2 '--interval-ms needs --output' metrics --interval-ms 500
  says 2 '--rounds: "x" is not a number' tune --regret --rounds x
  says 2 '--rounds: "0" is not a number from 1 to 1000' tune --regret --rounds 0
}

wrong_sizes() {
  local bytes
  local text='"1X" is not a size; write bytes like 8, 4K, 64M, 1G or 1GiB'
  says 2 "--minbytes: $text" perf all_reduce -b 1X
  says 2 "--bytes: $text" sim all_reduce --bytes 1X
  says 2 "--slot-bytes: $text" sim all_reduce --slot-bytes 1X
  says 2 "--bytes: $text" plan all_reduce --algorithm ring --ranks 2 --bytes 1X --goal "$here/goal"
  says 2 "--slot-bytes: $text" plan all_reduce --algorithm ring --ranks 2 --slot-bytes 1X
  says 2 '--slot-bytes: "" is not a size' plan all_reduce --algorithm ring --ranks 2 --slot-bytes ''
  says 2 '--element-bytes: "" is not a size' plan all_reduce --algorithm ring --ranks 2 --element-bytes ''
  for bytes in 0 100 128G; do
    says 2 "--slot-bytes: $bytes is not a multiple of 64 from 64 to 64G" sim all_reduce --slot-bytes "$bytes"
    says 2 "--slot-bytes: $bytes is not a multiple of 64 from 64 to 64G" plan all_reduce --algorithm ring --ranks 2 \
      --slot-bytes "$bytes"
  done
  says 2 "--explain: $text" tune --explain all_reduce 1X
  says 2 "--sizes: $text" tune --regret --sizes 1X
}

unknown_options() {
  local command
  for command in 'run -n 1' 'perf all_reduce' 'plan all_reduce' points verify topo sim top doctor metrics tune; do
    # shellcheck disable=SC2086
    says 2 'unknown option --nothing' $command --nothing
  done
  if has_train; then says 2 'unknown option --nothing' train cnn --nothing; fi
}

# All ranks that a command would start have the same invalid variable. The error must be printed only once, and not
# by each of them.
wrong_variables() {
  local command commands=('perf all_reduce -b 8 -e 8' 'perf all_reduce -b 8 -e 8 --threads' topo 'sim all_reduce' tune
    'verify --algorithm ring' 'plan all_reduce --algorithm ring --ranks 2' 'top --once' doctor metrics)
  if has_train; then commands+=('train cnn --data generated'); fi
  for command in "${commands[@]}"; do
    # shellcheck disable=SC2086
    TUTTI_SLOTS=x timeout -k 5 "$patience_s" "$tutti" $command >"$here/out" 2>"$here/err" </dev/null
    local got=$? text="tutti ${command%% *}: configuration: TUTTI_SLOTS=\"x\" is not valid: "
    if [ $got != 2 ] || [ "$(wc -l <"$here/err")" != 1 ] || [[ $(cat "$here/err") != "$text"* ]]; then
      echo "FAILED: tutti $command: status $got, not 2, or not one line that begins with '$text':"
      cat "$here/err"
      failed=1
    fi
  done
}

"$promise"
exit $failed
