# shellcheck shell=bash disable=SC2154
# Sourced by scripts/test and scripts/stress-tests: the ledger of long runs that are made in instalments.
#
# One line for each part that was run, its fields separated by tabs: part, commit, processor, date, seconds, result.
# The last row of a part that belongs to the current source decides. It is valid if it says that some checks passed and
# none failed. A row belongs to the current source if no file outside docs/results/ has changed since its commit; the
# ledger itself may. A row made with uncommitted changes has "+changes" behind its commit and never counts.
# The variables that are not set here (the warning that is off) are those of count.sh.

ledger=build/ledger.tsv
ledger_head='part	commit	processor	date	seconds	result'

processor() { sed -n 's/^model name[[:space:]]*: //p' /proc/cpuinfo | head -n 1; }

# source_files: what a row depends on, as arguments of git.
source_files() { printf '%s\n' . ':(exclude)docs/results' ":(exclude)${ledger#"$root/"}"; }

# source_commit: the commit of the source, with "+changes" if there are some. Ends the script without a repository.
source_commit() {
  local commit changes files
  mapfile -t files < <(source_files)
  commit=$(git rev-parse --short=12 HEAD) && changes=$(git status --porcelain -- "${files[@]}") ||
    die 'the ledger needs the git repository'
  printf '%s' "$commit${changes:++changes}"
}

# is_current COMMIT: whether the source is that of COMMIT.
is_current() {
  local files
  case $1 in *+changes) return 1 ;; esac
  mapfile -t files < <(source_files)
  [[ $(source_commit) != *+changes ]] && git diff --quiet "$1" HEAD -- "${files[@]}" 2>/dev/null
}

# valid_row PART: prints the last row of the part for the current source if it is valid; status 1 if there is none.
valid_row() {
  local part commit rest last=''
  [ -f "$ledger" ] || return 1
  while IFS=$'\t' read -r part commit rest; do
    if [ "$part" = "$1" ] && is_current "$commit"; then last="$commit $rest"; fi
  done <"$ledger"
  [[ $last =~ [[:space:]][1-9][0-9]*' passed, 0 failed,' ]] && printf '%s' "$last"
}

# run_into_ledger NAME:BUDGET: runs the part and appends its row. A commit that is made meanwhile spoils the row.
run_into_ledger() {
  local before after
  before=$(source_commit)
  run_part "$1"
  after=$(source_commit)
  [ "$before" = "$after" ] || before=${before%+changes}+changes
  mkdir -p "$(dirname "$ledger")"
  [ -f "$ledger" ] || printf '%s\n' "$ledger_head" >"$ledger"
  printf '%s\t%s\t%s\t%s\t%s\t%s\n' "${1%:*}" "$before" "$(processor)" "$(date -u +%Y-%m-%dT%H:%MZ)" "$part_s" \
    "$part_result" >>"$ledger"
}

# run_by_ledger MINUTES NAME:BUDGET...: runs the parts that have no valid row and writes a row for each. A part whose
# budget does not fit into the rest of MINUTES is not begun; 0 is no limit. Then it names the parts without a valid row;
# status 1 if there are any.
run_by_ledger() {
  local minutes=$1 part row missing=()
  shift
  if [[ $(source_commit) == *+changes ]]; then
    say "there are changes that are not committed: this run's rows will not count ($ledger)"
  fi
  for part in "$@"; do
    if row=$(valid_row "${part%:*}"); then
      say "== ${part%:*}: has a valid row in $ledger: $row"
    elif [ "$minutes" -gt 0 ] && [ $((SECONDS / 60 + ${part#*:})) -gt "$minutes" ]; then
      say "== ${part%:*}: not begun, because its ${part#*:} minutes do not fit into the rest of $minutes"
    else
      run_into_ledger "$part"
    fi
  done
  for part in "$@"; do
    valid_row "${part%:*}" >/dev/null || missing+=("${part%:*}")
  done
  say "== parts without a valid row in $ledger: ${missing[*]:-none}"
  [ ${#missing[@]} -eq 0 ]
}
