#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Writes the sources of the compiled form of components into a folder, as zbpp_compiled_sources of
# ZbppComponent.cmake does: one for each paragraph of includes of an impl/src.hpp.
# usage: compiled_sources.sh FOLDER COMPONENT...     (component: core json checkpoint asio mpi)
set -eu
include=$(CDPATH='' cd -- "$(dirname -- "$0")/../include/zbpp" && pwd)
folder=$1
shift
for component in "$@"; do
  if [ "$component" = core ]; then
    sed -n 's/^#include <zbpp\/\(.*\)\/impl\/src.hpp>$/\1/p' "$include/impl/src.hpp"
  else
    echo "$component"
  fi
done | while read -r room; do
  awk -v RS= -v source="$folder/zbpp_$room" '/#include/ { print >(source number++ ".cpp") }' \
    "$include/$room/impl/src.hpp"
done
