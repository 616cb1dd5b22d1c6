#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# fresh.sh COMMAND [ARGUMENT...]: runs a command in a copy of this repository within a minimal Debian 12 that is
# made anew for it, so that nothing is there but what the command itself installs. Debian and its packages come
# from where this machine's apt gets them. Ends with 77 and the reason where such a Debian cannot be made.
set -eu
source=$(CDPATH='' cd -- "$(dirname -- "$0")/.." && pwd)

skip() {
  echo "skipped: $*"
  exit 77
}
[ "$(id -u)" -eq 0 ] || skip "a Debian made anew needs root"
command -v debootstrap >/dev/null || skip "debootstrap is missing (Debian: debootstrap)"
unshare --mount --pid --fork true 2>/dev/null || skip "a Debian made anew needs the right to mount"
apt-get -qq update || true  # else apt may know no address
# shellcheck disable=SC2016  # apt puts the address there
mirror=$(apt-get indextargets --format '$(REPO_URI)' 'Created-By: Packages' 'Codename: bookworm' |
  head -n 1)
[ -n "$mirror" ] || skip "this machine's apt knows no mirror of Debian 12"

scratch=$(mktemp -d)
inside=
trap '[ -z "$inside" ] || kill -KILL "$inside" 2>/dev/null || true; rm -rf --one-file-system "$scratch"' EXIT
trap 'exit 1' HUP INT TERM
debian=$scratch/debian
echo "fresh.sh: making a Debian 12"
debootstrap --variant=minbase bookworm "$debian" "$mirror" >"$scratch/log" 2>&1 || {
  tail -n 5 "$scratch/log"
  skip "debootstrap cannot make a Debian from this machine's mirror"
}
# What apt needs to reach the same mirror.
apt-config dump Acquire >"$debian/etc/apt/apt.conf.d/90as-here"
cp -L /etc/resolv.conf /etc/hosts "$debian/etc/"
cp -rL /etc/ssl/certs "$debian/etc/ssl/"
# No path may be taken to be one word.
mkdir "$debian/srv/a copy"
tar -C "$source" --exclude-vcs --exclude=./build -c . | tar -C "$debian/srv/a copy" -x

# Its processes and mounts end with the first of them, which is in the background so that a signal ends it.
# shellcheck disable=SC2016
unshare --mount --pid --fork --kill-child sh -euc '
  debian=$1
  shift
  mount -t proc proc "$debian/proc"
  mount --rbind /sys "$debian/sys"
  mount --rbind /dev "$debian/dev"
  chroot "$debian" env --ignore-environment --chdir="/srv/a copy" HOME=/root LANG=C.UTF-8 \
    PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin "$@"
  exit
' sh "$debian" "$@" &
inside=$!
wait "$inside"
