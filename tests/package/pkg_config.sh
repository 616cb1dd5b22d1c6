#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Builds programs with what pkg-config says of an installation, after moving it to another folder.
# usage: pkg_config.sh PREFIX SCRATCH COMPILER VERSION MODULE=SOURCE...
set -eu
prefix=$1
scratch=$2
compiler=$3
version=$4
shift 4
if ! command -v pkg-config >/dev/null; then
  echo "skipped: pkg-config was not found"
  exit 77
fi

rm -rf "$scratch"
mkdir -p "$scratch"
cp -R "$prefix" "$scratch/moved here"
found=$(find "$scratch/moved here" -name zbpp.pc)
PKG_CONFIG_PATH=$(dirname "$found")
export PKG_CONFIG_PATH

for pair in "$@"; do
  module=${pair%%=*}
  main=${pair#*=}
  said=$(pkg-config --modversion "$module")
  if [ "$said" != "$version" ]; then
    echo "$module.pc says version $said, and it is $version" >&2
    exit 1
  fi
  flags=$(pkg-config --cflags --libs "$module")
  case $flags in
    *-W* | *-fsanitize* | *"$prefix"*)
      echo "$module.pc forces flags on its users, or names where it was installed: $flags" >&2
      exit 1
      ;;
  esac
  # pkg-config quotes what the shell would split.
  eval "\"\$compiler\" -std=c++20 -o \"\$scratch/\$module\" \"\$main\" $flags"
  "$scratch/$module"
  echo "$module: works"
done
