#!/usr/bin/env bash
# elastic_soak.sh TUTTI PROGRAM SECONDS RANKS EVERY_MS: runs an elastic job for about SECONDS, and kills or stops
# random ranks about every EVERY_MS. One hit in ten stops a rank for up to a second. Another one in ten stops it
# forever; then the deadline of the other ranks passes, and the launcher ends and replaces the rank. Fails if the job
# fails or hangs, or if no rank was killed, or none was stopped for a while.
set -u
tutti=$1 program=$2 seconds=$3 ranks=$4 every_ms=$5
step_us=4000
# A quarter of the time is left for set-up and for a busy machine. The steps take at least the other three quarters.
# Ranks are hit only in the first 74 % of the time, so no rank has finished its steps by then. After that, a death
# rightly fails the job.
steps=$((seconds * 1000000 / step_us * 3 / 4))
hits_ms=$((seconds * 740))
log=$(mktemp)
trap 'rm -f "$log"' EXIT
start=$(date +%s%N)
TUTTI_TIMEOUT_MS=2000 "$tutti" run --elastic "2:$ranks" --max-restarts 100000 --rejoin-s 3 \
  --timeout-s $((seconds * 4 + 120)) -- "$program" "$steps" "$step_us" >"$log" 2>&1 &
launcher=$!
kills=0 pauses=0 stops=0
elapsed_ms() { echo $((($(date +%s%N) - start) / 1000000)); }
# hit PID: kills the process. The second hit of ten stops it for a while, and the fifth stops it forever.
hit() {
  case $(((kills + pauses + stops) % 10)) in
    4) kill -STOP "$1" 2>/dev/null && stops=$((stops + 1)) ;;
    1)
      kill -STOP "$1" 2>/dev/null && pauses=$((pauses + 1))
      sleep "0.$((RANDOM % 10))"
      kill -CONT "$1" 2>/dev/null
      ;;
    *) kill -9 "$1" 2>/dev/null && kills=$((kills + 1)) ;;
  esac
}
sleep 1
while kill -0 "$launcher" 2>/dev/null; do
  children=()
  read -r -a children 2>/dev/null <"/proc/$launcher/task/$launcher/children" || true # the file has no newline
  if [ ${#children[@]} -eq "$ranks" ]; then
    victims=1
    [ $((RANDOM % 4)) -ne 0 ] || victims=2
    for ((i = 0; i < victims; ++i)); do
      [ "$(elapsed_ms)" -lt "$hits_ms" ] || break # a pause takes some time
      hit "${children[RANDOM % ranks]}"
    done
  fi
  sleep "$(awk "BEGIN { srand($RANDOM); print $every_ms * 2 * rand() / 1000 }")"
done
wait "$launcher"
status=$?
echo "$kills kills, $pauses pauses, $stops final stops in $(elapsed_ms) ms of a job of $ranks ranks," \
  "$steps steps; status $status"
grep -v 'replaced (' "$log" | tail -n 20
if [ "$status" -ne 0 ] || [ "$kills" -eq 0 ] || [ "$pauses" -eq 0 ]; then
  head -c 20000 "$log"
  exit 1
fi
[ "$(grep -c 'every sum right' "$log")" -eq "$ranks" ]
