# Sourced by shell tests: a temporary folder, $here, which is removed at the end, and functions that end the test with
# an explanation.
# shellcheck shell=bash
here=$(mktemp -d)
trap 'rm -rf "$here"' EXIT
export TUTTI_MEASURE=0 # otherwise the first job would measure the machine, and later ones would use the result

# fail TEXT...: ends the test with this text and the files in $here.
fail() {
  echo "FAILED: $*"
  local file
  for file in "$here"/*; do
    [ -f "$file" ] || continue
    echo "--- ${file##*/}"
    if [ "$(stat -c %s "$file")" -le 8000 ]; then
      cat "$file"
    else
      head -c 4000 "$file" && printf '\n[...]\n' && tail -c 4000 "$file"
    fi
  done
  exit 1
}
# expect_equal NAME ACTUAL EXPECTED
expect_equal() { [ "$2" = "$3" ] || fail "$1 is '$2', not '$3'"; }
# expect_line FILE REGEX: a line of this file in $here matches the expression.
expect_line() { grep -qE -- "$2" "$here/$1" || fail "no line of $1 matches '$2'"; }
