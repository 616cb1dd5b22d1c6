#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Looks at each command of `run` from the state that only its own set-up makes: hides the files of all
# packages that another command needs and this one does not, then configures what the command would
# build, and the project as a plain `cmake -S . -B build` does. Needs Debian 12 with the packages of all these
# commands, and root, for mounts of its own; nothing outside them changes.
# usage: own_setup.sh SOURCE SCRATCH
set -eu
source=$1
scratch=$2
run=$source/run
commands="demo plan test bench"

skip() {
  echo "skipped: this needs $*"
  exit 77
}

# ---- within the mount ---------------------------------------------------------------------------

# hide PACKAGE...: what only these packages have is gone from /usr.
hide() {
  files=$scratch/files
  hidden=$scratch/overlay/hidden
  mkdir -p "$scratch/overlay"
  mount -t tmpfs none "$scratch/overlay"
  mkdir -p "$hidden" "$scratch/overlay/work"
  # What an overlay takes for a file that was removed.
  mknod "$scratch/overlay/nothing" c 0 0 || skip "the right to make devices"
  # What another package has as well is a shared folder.
  dpkg -L "$@" | grep '^/usr/' | sort -u >"$files"
  dpkg-query -W -f='${binary:Package}\n' | grep -vxF "$(dpkg-query -W -f='${binary:Package}\n' "$@")" |
    xargs dpkg -L | grep '^/usr/' | sort -u >"$files.kept"
  # What is in a folder comes right after it: a.b would stand between a and a/c.
  comm -23 "$files" "$files.kept" | tr / '\001' | LC_ALL=C sort | tr '\001' / >"$files.own"
  last=/nothing/
  while read -r file; do
    case $file in "$last"*) continue ;; esac
    mkdir -p "$hidden$(dirname "${file#/usr}")"
    ln "$scratch/overlay/nothing" "$hidden${file#/usr}"
    last=$file/
  done <"$files.own"
  mount -t overlay overlay -o "lowerdir=/usr,upperdir=$hidden,workdir=$scratch/overlay/work" /usr ||
    skip "a system that lays a file system over another"
}

# try WHAT PRESET: configures in the state for WHAT, without CUDA, which no command installs.
try() {
  "$run" setup "$1"
  cd "$source"
  cmake --preset "$2" -B "$scratch/$1" -DCMAKE_CXX_COMPILER=g++-12 -DZBPP_CUDA=OFF
  cmake -S . -B "$scratch/$1_plain" -DZBPP_CUDA=OFF -DZBPP_CUDA_HOST_TEST=OFF
}

if [ "${3:-}" = inside ]; then
  what=$4
  shift 4
  hide "$@"
  if [ -e /usr/include/benchmark ] && [ "$what" != bench ]; then
    echo "the files of libbenchmark-dev are still there" >&2
    exit 1
  fi
  # Nothing is installed here: what is missing is written down.
  mkdir -p "$scratch/bin"
  printf '#!/bin/sh\necho "$@" >>"%s"\n' "$scratch/installed" >"$scratch/bin/apt-get"
  chmod +x "$scratch/bin/apt-get"
  PATH=$scratch/bin:$PATH
  : >"$scratch/installed"
  case $what in
    demo) try demo release ;;
    plan)
      try plan release
      if ! cmake --build "$scratch/plan" --target help | grep -q '^zbpp-plan:'; then
        echo "run setup plan does not bring what zbpp-plan needs" >&2
        exit 1
      fi
      ;;
    bench) try bench bench ;;
    test)
      try test dev
      if [ -s "$scratch/installed" ]; then
        echo "run setup test installs: $(cat "$scratch/installed")" >&2
        exit 1
      fi
      # Then bench: it sees that the headers of Open MPI are missing, though its wrapper is there.
      "$run" setup bench
      if ! grep -q 'libbenchmark-dev libopenmpi-dev' "$scratch/installed"; then
        echo "run setup bench installs: $(cat "$scratch/installed")" >&2
        exit 1
      fi
      : >"$scratch/installed"
      cd "$source"
      cmake --preset bench -B "$scratch/bench_after_test" -DCMAKE_CXX_COMPILER=g++-12 \
        -DZBPP_CUDA=OFF
      ;;
  esac
  if [ -s "$scratch/installed" ]; then
    echo "run setup $what installs: $(cat "$scratch/installed")" >&2
    exit 1
  fi
  exit 0
fi

# ---- outside ------------------------------------------------------------------------------------

rm -rf "$scratch"
mkdir -p "$scratch"
mkdir "$scratch/probe"
if ! (. /etc/os-release && [ "$ID $VERSION_ID" = "debian 12" ]) ||
  ! unshare -m mount -t tmpfs none "$scratch/probe" 2>/dev/null; then
  skip "Debian 12 and the right to mount"
fi
for package in $(for what in $commands; do "$run" packages "$what"; done); do
  dpkg -s "$package" >/dev/null 2>&1 || skip "the packages of all commands; $package is not installed"
done
for what in $commands; do
  others=
  for package in $("$run" packages ci); do
    case " $("$run" packages "$what") " in
      *" $package "*) ;;
      *)
        if dpkg -s "$package" >/dev/null 2>&1; then
          others="$others $package"
        fi
        ;;
    esac
  done
  echo "==== $what, without$others"
  # Splitting is wanted: one word is one package.
  # shellcheck disable=SC2086
  unshare -m sh "$0" "$source" "$scratch" inside "$what" $others
done
