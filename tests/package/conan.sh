#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Makes the Conan package without a network, and builds and runs its test.
# usage: conan.sh SOURCE SCRATCH
set -eu
if ! command -v conan >/dev/null || ! conan --version | grep -q ' 2'; then
  echo "skipped: Conan 2 was not found"
  exit 77
fi
rm -rf "$2"
mkdir -p "$2"
CONAN_HOME=$2/home
export CONAN_HOME
conan profile detect
conan create "$1/packaging/conan" --no-remote -s compiler.cppstd=20 \
  -c tools.cmake.cmake_layout:test_folder="$2/test" -c tools.cmake.cmaketoolchain:user_presets=
