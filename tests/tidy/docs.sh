#!/usr/bin/env bash
# docs.sh ROOT TUTTI: checks the documents. Every relative link of every *.md file must lead to a file, and the picture
# in the README must be identical to the one that its command draws. An empty TUTTI skips the check of the picture.

set -euo pipefail
root=$1 tutti=$2 status=0

while read -r file; do
  while read -r link; do
    target=${link%%#*}
    [ -n "$target" ] || continue
    if [ ! -e "$(dirname "$file")/$target" ]; then
      echo "${file#"$root"/}: the link to $link leads nowhere"
      status=1
    fi
  done < <(grep -oE '\]\([^) ]+\)' "$file" | sed 's/^](//; s/)$//' | grep -vE '^[a-z]+:' || true)
done < <(find "$root" -name '*.md' -not -path "$root/build/*")

if [ -n "$tutti" ]; then
  drawn=$(mktemp)
  trap 'rm -f "$drawn"' EXIT
  "$tutti" plan all_reduce --algorithm ring --ranks 4 --svg "$drawn" >/dev/null
  if ! cmp -s "$drawn" "$root/docs/ring4.svg"; then
    echo "docs/ring4.svg differs from the output of tutti plan: draw it again"
    status=1
  fi
fi
exit $status
