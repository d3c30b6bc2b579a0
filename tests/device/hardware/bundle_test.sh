#!/usr/bin/env bash
# bundle_test.sh ARCHIVE BUILD: unpacks an archive of scripts/gpu-bundle in an empty Debian or Ubuntu, and runs its
# scripts there over the fake driver of the build folder BUILD (target fake_gpus).
#
# The empty system has the files of this machine's essential packages and of what they depend on, and nothing else: no
# compiler, no Python, no package of ours, no network but the loopback. Only the fake driver is added, in /fake. Needs
# root. Exit status: 0; 1 if something failed; 77 if namespaces cannot be made here.
set -euo pipefail

archive=$(realpath "$1") build=$(realpath "$2")
here=$(mktemp -d)
trap 'rm -rf "$here"' EXIT
root=$here/root

fail() {
  echo "FAILED: $*"
  if [ -e "$here/out" ]; then tail -n 40 "$here/out"; fi
  if [ -e "$root/report.md" ]; then grep -A 12 '^- \*\*\|^\*\*' "$root/report.md" | head -n 80; fi
  exit 1
}

# Prints the essential packages, mawk for `awk`, the C++ runtime, and all that they depend on. (The variables are lists,
# and the formats are dpkg's.)
# shellcheck disable=SC2016,SC2086
packages() {
  local known='' next
  next=$(dpkg-query -W -f '${Package} ${Essential}\n' | awk '$2 == "yes" { print $1 }')
  next="$next mawk libstdc++6"
  while [ -n "$next" ]; do
    known=$(printf '%s\n' $known $next | sort -u)
    # Of alternatives, those that are installed.
    next=$(dpkg-query -W -f '${Pre-Depends}, ${Depends}, ' $known | tr ',|' '\n' | sed 's/(.*//; s/:any//; s/ //g' |
      grep . | sort -u | comm -13 <(echo "$known") - | xargs -r dpkg-query -W -f '${Package} ${db:Status-Status}\n' \
      2>/dev/null | awk '$2 == "installed" { print $1 }') || true
  done
  echo "$known"
}

# Copies the packages' files. On a merged system, /bin and the like are links to /usr/bin.
make_root() {
  local folder
  mkdir -p "$root"/{dev/shm,proc,sys,tmp,fake,usr}
  for folder in bin sbin lib lib64; do
    if [ -L "/$folder" ]; then cp -P "/$folder" "$root/"; fi
    mkdir -p "$root/usr/$folder"
  done
  # shellcheck disable=SC2046
  dpkg-query -L $(packages) | grep -v '^/\.$' | grep -v '^/usr/share/\(doc\|man\|locale\|info\)/' |
    while read -r file; do
      folder=/${file#/}
      if [ -L "/$(cut -d / -f 2 <<<"$file")" ]; then folder=/usr$file; fi
      if [ -L "$folder" ] || [ -f "$folder" ]; then echo ".$folder"; fi
    done | sort -u | tar -C / -c --no-recursion -T - | tar -C "$root" -x
  ln -s /proc/self/fd "$root/dev/fd"
  ln -s mawk "$root/usr/bin/awk"  # as update-alternatives does
  cp "$build"/fake_driver/*.so* "$build"/fake_gpus/*.so "$root/fake/"
  ldd "$build"/fake_gpus/*.so | sed -n 's/^.* => \(\/[^ ]*\) .*/\1/p' | grep -E 'boost|fmt' |
    xargs -I{} cp -L {} "$root/fake/"
  if [ -e "$root/usr/bin/gcc" ] || [ -e "$root/usr/bin/python3" ]; then fail 'the empty system is not empty'; fi
  tar -C "$root" -xf "$archive"
}

# Runs COMMAND in the empty system.
inside() {
  # shellcheck disable=SC2016
  unshare --mount --net --pid --fork --kill-child bash -c '
    mount -t proc proc "$0/proc" && mount -t sysfs sysfs "$0/sys" && mount -t tmpfs tmpfs "$0/dev/shm" &&
      ip link set lo up || exit 77
    for device in null zero urandom; do touch "$0/dev/$device" && mount --bind /dev/$device "$0/dev/$device"; done
    exec chroot "$0" /usr/bin/env -i PATH=/usr/bin:/bin HOME=/tmp LD_LIBRARY_PATH=/fake \
      LD_PRELOAD="/fake/libcuda.so.1 /fake/libtutti_device_kernels.so" FAKE_CUDA_DEVICES=2 FAKE_CUDA_BLOCKS=32 \
      TUTTI_DEVICE_THREADS=32 TUTTI_DEVICE_BLOCKS=4 TUTTI_DEVICE_SLOT_BYTES=4096 "$@"' "$root" "$@"
}

if ! unshare --mount --net --pid --fork true 2>/dev/null; then
  echo 'skipped: namespaces cannot be made here'
  exit 77
fi
make_root
echo "the empty system has $(du -sm "$root" | cut -f 1) MB, with the archive"
for script in gpu-first gpu-check; do
  begin=$SECONDS
  rm -f "$root/report.md"
  inside "/tutti-gpu/scripts/$script" /report.md >"$here/out" 2>&1 || fail "$script ends with status $?"
  grep -q 'carried out by the GPUs$\|passed' "$root/report.md" || fail "the report of $script has no results"
  echo "$script: $((SECONDS - begin)) s; $(tail -n 1 "$here/out")"
done
inside /tutti-gpu/scripts/gpu-sweep --quick all_reduce /report.md >"$here/out" 2>&1 ||
  fail "gpu-sweep ends with status $?"
grep -q '^- 1024 to ' "$root/report.md" || fail 'gpu-sweep prints no rule'
echo "gpu-sweep: $(tail -n 1 "$here/out")"
