#!/usr/bin/env bash
# Tests of `tutti train` (docs/training.md). Each function with the name of a promise is one test: train_test.sh
# TUTTI PROMISE. Exit status 77 means that the test needs something that is not installed.
set -u
command -v python3 >/dev/null || exit 77 # the test reads the logs with it
tutti=$1
promise=$2
here=$(mktemp -d)
log=$here/log.json
launcher=
ranks=()
mount_point=
gpt=(gpt --data generated --samples 64 --width 16 --blocks 2 --batch 8 --decay none --threads 1)

clean_up() {
  if [ -n "$launcher" ]; then
    read -r -a ranks 2>/dev/null <"/proc/$launcher/task/$launcher/children"
    kill -9 "$launcher" "${ranks[@]}" 2>/dev/null
  fi
  [ -z "$mount_point" ] || umount -l "$mount_point"
  rm -rf "$here"
}
trap clean_up EXIT
# shellcheck source=tests/support/patience.sh
. "$(dirname "$0")/../support/patience.sh" "$tutti"

fail() {
  echo "FAILED: $*"
  head -c 5000 "$here/err"
  exit 1
}
train() { # train ARGS...: runs to the end; sets $status, and writes the messages to $here/err
  timeout -k 5 "$(scaled 60)" "$tutti" train "$@" >"$here/out" 2>"$here/err"
  status=$?
}
expect_good() { # expect_good ARGS...
  train "$@"
  [ $status = 0 ] || fail "'$*' ends with status $status"
}
expect_failure() { # expect_failure STATUS REGEX ARGS...
  local wanted=$1 regex=$2
  shift 2
  train "$@"
  [ $status = "$wanted" ] || fail "'$*' ends with status $status, not $wanted"
  grep -qE -- "$regex" "$here/err" || fail "'$*' prints no message that matches '$regex'"
}
expect_lines() { # expect_lines COUNT REGEX
  local lines
  lines=$(grep -cE -- "$2" "$here/err")
  [ "$lines" -eq "$1" ] || fail "$lines lines match '$2', not $1"
}
begin() { # begin ARGS...: starts it in the background and sets $launcher to its process number
  rm -f "$log"
  ranks=()
  "$tutti" train "$@" --json "$log" >"$here/out" 2>"$here/err" &
  launcher=$!
}
are_there() {
  read -r -a ranks 2>/dev/null <"/proc/$launcher/task/$launcher/children" || true
  [ ${#ranks[@]} -eq "$1" ]
}
rank_pids() { # rank_pids COUNT: waits for the ranks and sets $ranks, in the order of their start
  wait_until are_there "$1" || fail "there are ${#ranks[@]} ranks, not $1"
}
reaches() { # reaches STEP: waits until the log contains this step
  wait_until grep -qs "\"record\":\"step\",\"step\":$1," "$log" || fail "step $1 does not appear in the log"
}
has_ended() { ! kill -0 "$launcher" 2>/dev/null; }
ends_with() { # ends_with STATUS: waits for the end
  wait_until has_ended || fail "it does not end within $patience_s s"
  wait "$launcher"
  status=$?
  launcher=
  [ "$status" -eq "$1" ] || fail "status $status, not $1"
  ! pgrep -f -- "--json $log" >>"$here/err" || fail 'processes are left'
}
# records SCRIPT FILES...: runs Python with `logs`, the records of each file. check() is an assertion with a message.
records() {
  local script=$1
  shift
  python3 - "$script" "$@" >>"$here/err" 2>&1 <<'PYTHON' || fail "the records of $*"
import json, sys
script, *files = sys.argv[1:]
logs = [[json.loads(line) for line in open(file)] for file in files]
def of(log, kind): return [record for record in log if record["record"] == kind]
def losses(log): return {record["step"]: record["loss"] for record in of(log, "step")}
def near(a, b): return abs(a - b) <= 5e-6 * max(abs(a), abs(b))
def check(good, *what):
    if not good: sys.exit("not so: " + " ".join(map(str, what)))
def same(one, other):
    check(one.keys() == other.keys(), "the same steps", sorted(one), sorted(other))
    for step in one: check(near(one[step], other[step]), "step", step, one[step], other[step])
exec(script)
PYTHON
}
same_losses() { records 'same(losses(logs[0]), losses(logs[1]))' "$@"; }
# damage FILE HOW: truncates the file, or flips a bit in its middle, or changes its step
damage() {
  python3 - "$@" <<'PYTHON' || fail "cannot damage $*"
import sys
path, how = sys.argv[1:]
data = bytearray(open(path, "rb").read())
if how == "cut": data = data[:len(data) // 2]
if how == "flip": data[len(data) // 2] ^= 0x10
if how == "step":
    at = data.index(b'"step": 10') + 9 # the number becomes 11
    data[at] ^= 1
open(path, "wb").write(data)
PYTHON
}

the_log_is_json_lines() {
  expect_good "${gpt[@]}" --steps 24 --ranks 2 --clip 1 --json "$log"
  records '
log = logs[0]
check([r["record"] for r in log].count("run") == 1 and log[0]["record"] == "run", "one run record, first")
check(log[-1]["record"] == "result", "the result is last")
run, steps, tests, result = log[0], of(log, "step"), of(log, "epoch"), log[-1]
check(set(run) == set("""record version time model parameters strategy ranks data tensor pipeline group batch seed
    optimizer lr precision threads overlap bucket_kb algorithm as_ranks""".split()), sorted(run))
check((run["model"], run["strategy"], run["ranks"], run["batch"], run["seed"]) == ("gpt", "ddp", 2, 8, 1), run)
check([r["step"] for r in steps] == list(range(1, 25)), "24 steps")
for r in steps:
    check(set(r) == set("""record step epoch loss lr samples load_s compute_s exposed_s step_s skipped grad_norm
        scale""".split()), sorted(r))
    check(r["samples"] == 8 and abs(r["epoch"] - r["step"] / 8) < 1e-4 and r["grad_norm"] > 0, r)
    check(abs(r["load_s"] + r["compute_s"] + r["exposed_s"] - r["step_s"]) < 1e-5, "the parts of the time", r)
check([r["step"] for r in tests] == [8, 16, 24], "a test after each epoch")
for r in tests: check(set(r) == {"record", "step", "epoch", "test_loss", "test_accuracy"}, sorted(r))
check(set(result) == set("""record steps epochs loss test_loss test_accuracy seconds samples_per_s peak_bytes
    state_bytes sent_bytes""".split()), sorted(result))
check((result["steps"], result["epochs"], result["loss"]) == (24, 3, steps[-1]["loss"]), result)
check(result["peak_bytes"] >= result["state_bytes"] > 4 * run["parameters"] and result["sent_bytes"] > 0, result)
check(steps[-1]["loss"] < steps[0]["loss"] - 0.3, "the loss falls")
check(tests[-1]["test_loss"] < tests[0]["test_loss"], "that of the test, too")' "$log"
}

processes_equal_one_process() {
  expect_good "${gpt[@]}" --steps 12 --ranks 1 --json "$here/one.json"
  local how
  for how in '--ranks 2' '--ranks 3 --strategy zero3' '--ranks 4 --tensor 2 --pipeline 2' \
    '--ranks 4 --strategy mics --group 2' '--ranks 3 --strategy server'; do
    # shellcheck disable=SC2086
    expect_good "${gpt[@]}" --steps 12 $how --json "$log"
    same_losses "$here/one.json" "$log"
    records 'check(near(logs[0][-1]["test_loss"], logs[1][-1]["test_loss"]), "the test")' "$here/one.json" "$log"
  done
}

a_missing_data_set_names_the_package() {
  mkdir "$here/empty"
  local start=$SECONDS # a rank that waited for the others would need a minute or more
  expect_failure 1 'dataset-fashion-mnist' cnn --ranks 3 --data-dir "$here/empty"
  [ $((SECONDS - start)) -le "${patience_s%.*}" ] || fail "it takes $((SECONDS - start)) s"
  expect_lines 1 .
  expect_failure 1 '--data-dir' gpt --ranks 3 --data text --data-dir "$here/empty"
  expect_lines 1 .
}

bad_options_are_refused() {
  local regex arguments
  while IFS='|' read -r regex arguments; do
    [ "$regex" != '--device cuda' ] || [ ! -e /dev/nvidiactl ] || continue
    # shellcheck disable=SC2086
    expect_failure 2 "$regex" $arguments --json "$log"
    expect_lines 1 '^tutti train: '
    [ "$(grep -vcE '^tutti train: |^See tutti train --help\.$' "$here/err")" = 0 ] || fail "'$arguments': more lines"
    if [ -s "$here/out" ] || [ -e "$log" ]; then fail "'$arguments' starts something"; fi
  done <<'END'
model: "lenet" is not one of cnn, |lenet
--bogus|cnn --data generated --bogus
"zero4" is not one of ddp, |cnn --data generated --strategy zero4
give --ranks a multiple of 2|gpt --data generated --ranks 3 --tensor 2
give --group a divisor|gpt --data generated --ranks 3 --strategy mics --group 2
--servers 2: .*at least one server and one worker|gpt --data generated --ranks 2 --strategy server --servers 2
--checkpoint|gpt --data generated --resume
--elastic needs ranks that each have the whole state|gpt --data generated --elastic 2:3 --strategy zero3
--slow: .*RANK:FACTOR|gpt --data generated --slow much
--device cuda|gpt --data generated --device cuda
"0" is not a number from 1 to 4096|gpt --data generated --ranks 0
--ranks: "" is not a number|gpt --data generated --ranks=
"fp8" is not one of|gpt --data generated --precision fp8
--pipeline 9: gpt has 4 layers only|gpt --data generated --blocks 2 --ranks 9 --pipeline 9
this model reads text|gpt --data fashion-mnist
"cifar" is not one of fashion-mnist, text, generated|cnn --data cifar
--offload needs --recompute|gpt --data generated --offload /tmp
--elastic|gpt --data generated --elastic 3:2
--max-restarts|gpt --data generated --max-restarts 2
--tensor|gpt --data generated --ranks 3 --tensor 3
--tensor|gpt --data generated --tensor 65536 --pipeline 65536
END
  expect_failure 2 '--elastic' "${gpt[@]}" --steps 1 --elastic # without its argument MIN:MAX
}

a_killed_rank_is_named() {
  local how
  for how in '--strategy ddp' '--strategy zero3' '--pipeline 3'; do
    # shellcheck disable=SC2086
    begin "${gpt[@]}" --steps 1000000 --test-every 0 --ranks 3 $how
    reaches 5
    rank_pids 3
    kill -9 "${ranks[1]}"
    ends_with 137
    expect_lines 1 'rank 1 was killed by signal 9 \(Killed\)'
    ! grep -q '"record":"result"' "$log" || fail "'$how': it has a result"
  done
}

# The job continues whichever rank is killed, even rank 0, which writes the log.
elastic_goes_on() {
  local killed
  expect_good "${gpt[@]}" --steps 300 --ranks 3 --json "$here/undisturbed.json"
  for killed in 1 0; do
    begin "${gpt[@]}" --steps 300 --elastic 2:3
    reaches 30
    rank_pids 3
    kill -9 "${ranks[killed]}" || fail 'the rank has already ended'
    ends_with 0
    expect_lines 1 "rank $killed was killed by signal 9 \\(Killed\\); replaced"
    records "killed = $killed"'
one, other = logs
steps = [r["step"] for r in of(other, "step")]
check(all(a < b for a, b in zip(steps, steps[1:])), "every step once, in order", steps)
check(len(steps) >= 300 - (killed == 0), "none is missing, but the one that rank 0 was killed in", len(steps))
for step, loss in losses(other).items(): check(near(loss, losses(one)[step]), "step", step)
check(other[-1]["record"] == "result" and other[-1]["steps"] == 300, other[-1])
check(near(one[-1]["loss"], other[-1]["loss"]) and near(one[-1]["test_loss"], other[-1]["test_loss"]), other[-1])
' "$here/undisturbed.json" "$log"
  done
}

a_full_disk_is_told() {
  local before
  mkdir "$here/disk"
  mount -t tmpfs -o size=900k tutti_train_test "$here/disk" 2>/dev/null || exit 77
  mount_point=$here/disk
  expect_good "${gpt[@]}" --ranks 2 --steps 10 --checkpoint "$here/disk/saved"
  dd if=/dev/zero of="$here/disk/filler" bs=4k count=1000 2>/dev/null
  truncate -s -64k "$here/disk/filler"
  before=$(find "$here/disk/saved" -type f -exec cksum {} +)
  expect_failure 1 'No space left on device.*free some space' "${gpt[@]}" --ranks 2 --steps 20 --resume \
    --checkpoint "$here/disk/saved"
  expect_lines 1 'going on at step 10'
  [ "$(find "$here/disk/saved" -type f -exec cksum {} +)" = "$before" ] || fail 'the previous checkpoint is not alone'
  # A full disk for the log: training continues, and the message at the end names the missing part.
  dd if=/dev/zero of="$here/disk/more" bs=4k count=1000 2>/dev/null
  expect_failure 1 'full' "${gpt[@]}" --ranks 2 --steps 20 --json "$here/disk/log.json"
  expect_lines 1 'the log ends here, training goes on'
  expect_lines 1 'tutti train: rank 0: .*log\.json.*(Free some space|give another)'
  rm "$here/disk/filler" "$here/disk/more"
  expect_good "${gpt[@]}" --ranks 2 --steps 20 --resume --checkpoint "$here/disk/saved"
  expect_lines 1 'going on at step 10'
}

resume_goes_on_by_another_strategy() {
  local saved=$here/saved at=0 how
  expect_good "${gpt[@]}" --ranks 1 --steps 24 --json "$here/at_once.json"
  for how in '--ranks 2 --strategy ddp' '--ranks 3 --strategy zero3 --resume' \
    '--ranks 4 --tensor 2 --pipeline 2 --resume' '--ranks 2 --strategy zero1 --resume' \
    '--ranks 4 --strategy mics --group 2 --resume' '--ranks 3 --strategy server --resume'; do
    # shellcheck disable=SC2086
    expect_good "${gpt[@]}" $how --steps $((at + 4)) --checkpoint "$saved" --json "$log"
    [ $at = 0 ] || expect_lines 1 "going on at step $at\$"
    at=$((at + 4))
  done
  records '
same(losses(logs[0]), losses(logs[1]))
check(near(logs[0][-1]["test_loss"], logs[1][-1]["test_loss"]), "the test")' "$here/at_once.json" "$log"
}

# An elastic job either resumes or reports that it does not. It must not silently start again from the first step.
elastic_resumes() {
  expect_good "${gpt[@]}" --ranks 2 --steps 10 --checkpoint "$here/saved" --json "$log"
  expect_good "${gpt[@]}" --ranks 2 --steps 20 --json "$here/at_once.json"
  train "${gpt[@]}" --elastic 2:3 --steps 20 --checkpoint "$here/saved" --resume --json "$log"
  if [ $status = 2 ]; then
    grep -q -- '--elastic.*--resume\|--resume.*--elastic' "$here/err" || fail 'it is refused without a reason'
    return
  fi
  [ $status = 0 ] || fail "status $status"
  expect_lines 1 'going on at step 10$'
  same_losses "$here/at_once.json" "$log"
}

# The last line of a log is incomplete, because the run was killed, or its disk became full, while it wrote the line.
a_torn_log_goes_on() {
  expect_good "${gpt[@]}" --ranks 1 --steps 4 --checkpoint "$here/saved" --json "$log"
  truncate -s -30 "$log"
  expect_good "${gpt[@]}" --ranks 1 --steps 8 --checkpoint "$here/saved" --json "$log" --resume
  grep -q '^{"record":"step","step":5,.*}$' "$log" || fail 'step 5 has no line of its own'
  records 'check([r["step"] for r in of(logs[0], "step")] == list(range(1, 9)), "every step once")' "$log"
}

a_torn_checkpoint_is_passed_over() {
  local saved=$here/saved newest file how
  expect_good "${gpt[@]}" --ranks 2 --steps 15 --json "$here/at_once.json"
  expect_good "${gpt[@]}" --ranks 2 --steps 10 --checkpoint "$here/made" --checkpoint-every 5
  [ "$(ls "$here/made")" = "$(printf 'step-00000005\nstep-00000010')" ] || fail 'there are not two checkpoints'
  newest=step-00000010
  while read -r file how; do
    rm -rf "$saved"
    cp -r "$here/made" "$saved"
    if [ "$how" = gone ]; then rm "$saved/$newest/$file"; else damage "$saved/$newest/$file" "$how"; fi
    expect_good "${gpt[@]}" --ranks 2 --steps 15 --checkpoint "$saved" --resume --json "$log"
    expect_lines 1 "skipped a checkpoint: .*$newest"
    expect_lines 1 'going on at step 5$'
    records 'same({s: l for s, l in losses(logs[0]).items() if s > 5}, losses(logs[1]))' "$here/at_once.json" "$log"
    rm "$log"
  done <<'END'
rank-0.part cut
rank-0.part flip
rank-1.part gone
manifest.json cut
manifest.json step
END
  rm -rf "$saved"
  cp -r "$here/made" "$saved"
  damage "$saved/step-00000005/rank-0.part" flip
  damage "$saved/$newest/rank-0.part" cut
  expect_failure 1 "no complete checkpoint in $saved" "${gpt[@]}" --ranks 2 --steps 15 --checkpoint "$saved" --resume
  grep -q "$newest.*damaged" "$here/err" || fail 'what is torn is not named'
}

a_checkpoint_of_another_model_is_refused() {
  local saved=$here/saved before other
  expect_good "${gpt[@]}" --ranks 2 --steps 2 --checkpoint "$saved"
  before=$(find "$saved" -type f -exec cksum {} +)
  for other in 'gpt --width 32 --blocks 2' 'gpt --width 16 --blocks 3' 'gpt --width 16 --blocks 2 --optimizer sgd' \
    'vit --width 16 --blocks 2'; do
    # shellcheck disable=SC2086
    expect_failure 1 "$saved/step-00000002 was written with (model|optimizer) .*, but this training has " \
      $other --data generated --samples 64 --steps 4 --ranks 2 --resume --checkpoint "$saved"
    [ "$(find "$saved" -type f -exec cksum {} +)" = "$before" ] || fail "'$other': the checkpoint has changed"
  done
}

# The plot of real logs (bench/training/plot_runs.py).
plot_draws() {
  local root python
  root=$(cd "$(dirname "$0")/../.." && pwd)
  python=$root/build/python/bin/python
  # shellcheck source=tests/support/matplotlib.sh
  . "$root/tests/support/matplotlib.sh"
  needs_matplotlib "$python"
  expect_good "${gpt[@]}" --ranks 1 --steps 12 --json "$here/one.json"
  expect_good "${gpt[@]}" --ranks 2 --steps 12 --json "$here/two & <more>.json"
  PYTHONDONTWRITEBYTECODE=1 "$python" "$root/bench/training/plot_runs.py" "$here/one.json" "$here/two & <more>.json" \
    -o "$here/plot.svg" >>"$here/err" 2>&1 || fail 'the logs cannot be drawn'
  python3 - "$here/plot.svg" <<'PYTHON' >>"$here/err" 2>&1 || fail 'the plot'
import sys, xml.etree.ElementTree as tree
root = tree.parse(sys.argv[1]).getroot()
panels = {group.get("id") for group in root.iter("{http://www.w3.org/2000/svg}g")}
assert {"loss", "throughput", "time"} <= panels, panels
text = " ".join(root.itertext())
assert "1 rank" in text and "2 ranks" in text, text
PYTHON
}

recompute_needs_less_memory() {
  local how=(gpt --data generated --samples 64 --width 32 --blocks 8 --batch 64 --steps 1 --ranks 1 --threads 1)
  expect_good "${how[@]}" --json "$here/all.json"
  expect_good "${how[@]}" --recompute --json "$here/recompute.json"
  mkdir "$here/spill"
  expect_good "${how[@]}" --recompute --offload "$here/spill" --json "$here/offload.json"
  records '
all, recompute, offload = (log[-1]["peak_bytes"] for log in logs)
check(recompute < 0.6 * all, "recomputing needs far less", all, recompute)
check(offload <= recompute, "offloading no more", recompute, offload)
for log in logs: same(losses(logs[0]), losses(log))
' "$here/all.json" "$here/recompute.json" "$here/offload.json"
  [ -z "$(ls -A "$here/spill")" ] || fail 'files are left in the folder of --offload'
}

a_diverged_loss_stops() {
  local how
  for how in '--ranks 3' '--ranks 3 --strategy zero3' '--ranks 3 --pipeline 3' '--elastic 2:3'; do
    # shellcheck disable=SC2086
    begin "${gpt[@]}" --steps 1000 --lr 1e30 $how
    ends_with 1
    grep -qE 'the loss of step [0-9]+ is not finite .*Lower --lr' "$here/err" || fail "'$how' does not report the loss"
    ! grep -q '; replaced' "$here/err" || fail 'the rank was replaced, which cannot help'
  done
}

# The values diverge in the last step, so there is no later loss that could show it.
values_that_diverge_at_the_end_are_told() {
  expect_failure 1 'not finite' "${gpt[@]}" --ranks 2 --steps 1 --lr 1e30 --checkpoint "$here/saved"
}

# With a learning rate of 0, no test is better than the first one.
early_stop_is_agreed() {
  local how
  for how in '--ranks 3' '--ranks 4 --tensor 2 --pipeline 2' '--elastic 2:3'; do
    # shellcheck disable=SC2086
    expect_good "${gpt[@]}" --lr 0 --epochs 50 --patience 1 $how --json "$log"
    expect_lines 1 'without a better loss: all ranks stop'
    records '
check(logs[0][-1]["record"] == "result" and 2 <= logs[0][-1]["epochs"] < 5, logs[0][-1])
check(logs[0][-1]["steps"] == len(of(logs[0], "step")), logs[0][-1])' "$log"
  done
}

another_launcher_starts_it() {
  local program
  for program in "$tutti train" "$(dirname "$tutti")/tutti-train"; do
    # shellcheck disable=SC2086
    timeout -k 5 "$(scaled 60)" "$tutti" run -n 2 -- $program cnn --data generated --samples 32 --batch 16 --steps 3 \
      --test-every 0 --json "$log" >"$here/out" 2>"$here/err" || fail "status $?"
    records '
check([r["record"] for r in logs[0]] == ["run", "step", "step", "step", "epoch", "result"], logs[0])
check(logs[0][0]["ranks"] == 2 and logs[0][0]["data"] == 2, logs[0][0])' "$log"
    expect_lines 1 '^(\[0\] )?cnn: .* 2 ranks'
  done
}

# Two threads per rank share cores with other processes. Threads that wait must not spin. On two cores the job was
# measured to need 1.7 s of processor time, and 7.3 s with threads that spin. Other load makes it slower, but it then
# needs hardly more processor time.
threads_share_cores() {
  local TIMEFORMAT='%U %S'
  { time expect_good "${gpt[@]/%1/2}" --ranks 2 --steps 60 --test-every 0 --json "$log"; } 2>"$here/time"
  awk -v limit="$(scaled 4)" '{ exit !($1 + $2 < limit) }' "$here/time" ||
    fail "it takes $(cat "$here/time") s of processor time (user and system)"
}

fashion_mnist_is_learned() {
  [ -e /usr/share/datasets/fashion-mnist/train-images-idx3-ubyte.gz ] || exit 77
  expect_good cnn --ranks 2 --samples 4000 --epochs 1 --batch 32 --test-every 0 --json "$log"
  records 'check(logs[0][-1]["test_accuracy"] > 0.75, logs[0][-1])' "$log"
}

# The model needs petabytes. It must be refused before a rank is started.
a_model_beyond_memory_is_refused() {
  local words='gpt with [0-9]{15} parameters needs about [0-9]{7}[0-9.]* GiB of memory on 2 ranks, and [0-9.]* GiB are'
  expect_failure 1 "$words available" gpt --data generated --width 65536 --blocks 4096
}

"$promise"
