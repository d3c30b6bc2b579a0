# shellcheck shell=bash disable=SC2154
# Sourced by scripts/test and scripts/stress-tests: the ledger of long runs, which can be divided into several calls.
# A quick run writes its row, too, so that --full need not repeat it.
#
# The ledger has one line for each part that was run, with tabs between the fields: part, commit, processor, date,
# seconds, result. For each part the last row that belongs to the current source counts. It is valid if some checks
# passed and none failed. A row belongs to the current source if no file has changed since its commit, except files in
# docs/ and the ledger itself. A row of the quick run, which checks the documents, counts only if no file has changed
# except those in docs/results/. If there were uncommitted changes, "+changes" is appended to the commit, and the row
# never counts. SC2154 is disabled because count.sh sets some of the variables.

ledger=build/ledger.tsv
ledger_head='part	commit	processor	date	seconds	result'

processor() { sed -n 's/^model name[[:space:]]*: //p' /proc/cpuinfo | head -n 1; }

# source_files [PART]: prints the files on which a row of the part depends, as arguments for git.
source_files() {
  local documents=docs
  [ "${1-}" != quick ] || documents=docs/results
  printf '%s\n' . ":(exclude)$documents"
  # git accepts only names in the repository
  case $ledger in
    "$root"/* | [!/]*) printf '%s\n' ":(exclude)${ledger#"$root/"}" ;;
  esac
}

# source_commit [PART]: prints the commit of the source, with "+changes" if there are uncommitted changes in files on
# which the part depends. Without a git repository it ends the script.
source_commit() {
  local commit changes files
  mapfile -t files < <(source_files "${1-}")
  commit=$(git rev-parse --short=12 HEAD) && changes=$(git status --porcelain -- "${files[@]}") ||
    die 'the ledger needs the git repository'
  printf '%s' "$commit${changes:++changes}"
}

# is_current COMMIT PART: whether the files on which the part depends are the same as in COMMIT.
is_current() {
  local files
  case $1 in *+changes) return 1 ;; esac
  mapfile -t files < <(source_files "$2")
  [[ $(source_commit "$2") != *+changes ]] && git diff --quiet "$1" HEAD -- "${files[@]}" 2>/dev/null
}

# valid_row PART: prints the last row of the part for the current source, if it is valid. Returns 1 if there is none.
valid_row() {
  local part commit rest last=''
  [ -f "$ledger" ] || return 1
  while IFS=$'\t' read -r part commit rest; do
    if [ "$part" = "$1" ] && is_current "$commit" "$part"; then last="$commit $rest"; fi
  done <"$ledger"
  [[ $last =~ [[:space:]][1-9][0-9]*' passed, 0 failed,' ]] && printf '%s' "$last"
}

# write_row PART BEFORE SECONDS RESULT: appends the row of a part that has just ended. BEFORE is what source_commit
# printed when it began: if the commit has changed since then, the row does not count.
write_row() {
  local before=$2 after
  after=$(source_commit "$1")
  [ "$before" = "$after" ] || before=${before%+changes}+changes
  mkdir -p "$(dirname "$ledger")"
  [ -f "$ledger" ] || printf '%s\n' "$ledger_head" >"$ledger"
  printf '%s\t%s\t%s\t%s\t%s\t%s\n' "$1" "$before" "$(processor)" "$(date -u +%Y-%m-%dT%H:%MZ)" "$3" "$4" >>"$ledger"
}

# run_into_ledger NAME:BUDGET: runs the part and appends its row.
run_into_ledger() {
  local before
  before=$(source_commit "${1%:*}")
  run_part "$1"
  write_row "${1%:*}" "$before" "$part_s" "$part_result"
}

# run_by_ledger MINUTES NAME:BUDGET...: runs the parts that have no valid row, and writes a row for each. It does not
# start a part with a budget that exceeds the rest of MINUTES; 0 means no limit. At the end it prints the parts
# without a valid row, and returns 1 if there are any.
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
