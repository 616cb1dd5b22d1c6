#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# What `run check` does before anything is tested: looks at format and texts, and compiles all headers, the compiled
# form and the sources that changed, warnings as errors, with all compilers of README: g++ at -O3, clang 14 and clang 16.
# Leaves out the components that CMake leaves out here. Builds in build/check, as the preset of that name says.
# usage: check.sh G++ [COMMIT]     (looks at the sources that changed since COMMIT; by default since the last one)
set -eu
root=$(CDPATH='' cd -- "$(dirname -- "$0")/.." && pwd)
cd "$root"
gxx=$1
since=${2:-HEAD}
build=build/check
start=$(date +%s)

stage() {
  printf 'check: [%3d s] %s\n' "$(($(date +%s) - start))" "$*"
}

commit=$(git rev-parse --verify --quiet "$since^{commit}" 2>/dev/null || true)
if [ -z "$commit" ] && [ $# -gt 1 ]; then
  echo "check: there is no commit '$2' here; name one that git log shows" >&2
  exit 2
fi

# ---- format and texts -----------------------------------------------------------------------------

mkdir -p "$build"
stage "format and texts"
./run format --check
rm -f "$build"/cmake/zbpp-*.cmake  # CMake writes one for each component that it finds here
cmake --preset check -DCMAKE_CXX_COMPILER="$gxx" -DZBPP_TESTS_UNITY=OFF >"$build/configure.log" 2>&1 || {
  cat "$build/configure.log" >&2
  exit 1
}
ctest --preset check -j "$(nproc)" -L texts >"$build/texts.log" 2>&1 || {
  cat "$build/texts.log" >&2
  exit 1
}

# ---- sources that changed -------------------------------------------------------------------------

# They compile as the build has them; the headers of others lie where the build found them.
for_asio=-DBOOST_ASIO_DISABLE_THREAD_KEYWORD_EXTENSION
others=$(grep _verify_interface_header_sets "$build/compile_commands.json" | grep -o -e '-isystem [^ ]*' | sort -u | tr '\n' ' ')

# changed: the sources that differ from the commit, and new ones
changed() {
  {
    git diff --name-only --diff-filter=d "$since" --
    git ls-files --others --exclude-standard
  } | grep '\.cpp$' | sort -u
}

# commands SOURCE: a line for each compiler that compiles it; none for what this build leaves out
commands() {
  command=$(ninja -C "$build" -t commands "$root/$1^" 2>/dev/null | tail -n 1 |
    sed 's/ -MD -MT .* -c / /; s/ --param=[^ ]*//')
  [ -n "$command" ] || return 0
  case $1 in
    tests/*) echo "$command -c -o /dev/null" ;;  # no build optimizes those at -O3
    *) echo "$command -O3 -c -o /dev/null" ;;
  esac
  case $command in
    *torch*) return ;;  # compiled with g++ alone
    *cuda* | *nccl*) compilers=clang++-16 ;;  # clang 14 has no std::source_location
    *) compilers="clang++-14 clang++-16" ;;
  esac
  for compiler in $compilers; do
    echo "$command -fsyntax-only" | sed "s|^\([^ ]*ccache \)\{0,1\}[^ ]* |$compiler $for_asio |"
  done
}

if [ -n "$commit" ]; then
  changed >"$build/changed" || true
  stage "$(wc -l <"$build/changed") sources that changed since $(git log -1 --format=%h "$since")"
  while read -r source; do
    commands "$source"
  done <"$build/changed" >"$build/commands"
  xargs -r -d '\n' -P "$(nproc)" -I COMMAND sh -c "cd $build && COMMAND" <"$build/commands"
else
  stage "no git here that tells which sources changed"
fi

# ---- headers and compiled form --------------------------------------------------------------------

# found COMPONENT...: those of them that CMake found all for
found() {
  for component in "$@"; do
    if [ -e "$build/cmake/zbpp-$component.cmake" ]; then
      echo "$component"
    fi
  done
}

# here COMPONENT...: the same in capitals
here() {
  found "$@" | tr '[:lower:]' '[:upper:]'
}

stage "each header and .ipp alone: clang 16"
# Splitting is wanted here and below: one word is one component.
# shellcheck disable=SC2046
sh cmake/check_headers.sh alone "clang++-16 $for_asio $others" \
  $(here core json checkpoint asio mpi cuda nccl torch) &
alone=$!
stage "all headers, header-only: g++, clang 14, clang 16"
# shellcheck disable=SC2046
for component in $(here core json checkpoint asio mpi); do
  for compiler in "$gxx" "clang++-14 $for_asio" "clang++-16 $for_asio"; do
    echo "$compiler $others"
    echo "$component"
  done
done | xargs -d '\n' -P "$(nproc)" -n 2 sh cmake/check_headers.sh together
wait "$alone"

stage "compiled form: g++ at -O3"
cmake --build --preset check --target compiled_form >"$build/build.log" || {
  cat "$build/build.log" >&2
  exit 1
}
stage "compiled form: clang 14, and programs linked to it"
linked=$(grep -o 'libcrypto' "$build/build.ninja" | sed -n '1s/lib/-l/p')
if [ -n "$(found mpi)" ]; then
  linked="$linked $(mpicxx --showme:link)"
fi
# shellcheck disable=SC2046
sh cmake/compiled_form.sh "clang++-14 $for_asio $others" "$linked" $(found core json checkpoint asio mpi)
stage "end"
