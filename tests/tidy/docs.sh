#!/usr/bin/env bash
# docs.sh ROOT TUTTI: what the documents show must be there. Every relative link of every *.md file leads to a file, and
# the picture in the README is the one that its own command draws.

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
    echo "docs/ring4.svg is not what tutti plan draws: draw it anew"
    status=1
  fi
fi
exit $status
