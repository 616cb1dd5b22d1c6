#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Tests what `run demo` and `run plan` build, in which order, and what they say of it: small programs stand in for
# CMake, the compiler and all that is built.
# usage: demo.sh SOURCE SCRATCH
set -eu
source=$1
scratch=$2
rm -rf "$scratch"
mkdir -p "$scratch/tools" "$scratch/root"
cp "$source/run" "$scratch/root/run"
export SCRATCH="$scratch" UNBUILDABLE=''

# ---- what stands in -----------------------------------------------------------------------------

for package in eigen3/Eigen/Core CLI/CLI.hpp nlohmann/json.hpp; do
  mkdir -p "$scratch/include/$(dirname "$package")"
  touch "$scratch/include/$package"
done
export CMAKE_PREFIX_PATH="$scratch"

# stand_in FILE: its text comes from the standard input
stand_in() {
  cat >"$1"
  chmod +x "$1"
}

for tool in g++-12 ninja; do
  stand_in "$scratch/tools/$tool" </dev/null
done
# Of the arguments the last is the target. What it builds says its name and what it was asked for.
stand_in "$scratch/tools/cmake" <<'END'
#!/bin/sh
for target; do :; done
case $* in *--build*) ;; *) echo "configured" >>"$SCRATCH/calls"; echo "-- Configuring done"; exit ;; esac
echo "built $target" >>"$SCRATCH/calls"
echo "[0/2] Re-checking globbed directories..."
echo "[1/3] Building CXX object main.cpp.o"
echo "[2/3] Building CXX object other.cpp.o"
if [ "$UNBUILDABLE" = "$target" ]; then
  echo "main.cpp:1:1: error: it broke here"
  exit 1
fi
echo "[3/3] Linking CXX executable $target"
folder=build/release/examples/train_gpt
[ "$target" != zbpp-plan ] || folder=build/release/tools/zbpp_plan
mkdir -p "$folder"
cp "$SCRATCH/program" "$folder/$target"
END
# As train_gpt_options does: refuses, gives help, or names a program.
stand_in "$scratch/program" <<'END'
#!/bin/sh
case $(basename "$0"),$* in
  train_gpt_options,--bogus) echo "train_gpt: --bogus was not expected" >&2; exit 2 ;;
  train_gpt_options,--help) echo "Trains a GPT." ;;
  train_gpt_options,*greedy_auto*) echo train_gpt_threads ;;
  train_gpt_options,*tcp*) echo train_gpt ;;
  train_gpt_options,*) echo train_gpt_handcrafted ;;
  *) echo "$(basename "$0") runs with $*"; exit 7 ;;
esac
END

# ---- the tests ----------------------------------------------------------------------------------

fail() {
  echo "demo.sh: $*" >&2
  exit 1
}

# run ARGUMENT...: notes calls, what is printed, and the status
run() {
  : >"$scratch/calls"
  status=0
  (cd "$scratch" && PATH="$scratch/tools:$PATH" sh "$scratch/root/run" "$@" >"$scratch/out" 2>"$scratch/err") ||
    status=$?
}

# expect STATUS OUT CALLS: all calls in one line, and all of the standard output
expect() {
  [ "$status" = "$1" ] || fail "status $status, not $1: $(cat "$scratch/err")"
  [ "$(cat "$scratch/out")" = "$2" ] || fail "the standard output is '$(cat "$scratch/out")', not '$2'"
  calls=$(tr '\n' ' ' <"$scratch/calls")
  [ "$calls" = "$3 " ] || fail "called '$calls', not '$3'"
}

# says LINE...: all lines of the standard error
says() {
  printf '%s\n' "$@" | diff - "$scratch/err" || fail "the standard error differs"
}

options="configured built train_gpt_options"
run demo --bogus
expect 2 '' "$options"
says "run: building train_gpt_options, 1 of 3" "train_gpt: --bogus was not expected"
run demo --help
expect 0 "Trains a GPT." "$options"

run demo --steps "two words"
expect 7 "train_gpt_handcrafted runs with --steps two words" "$options built train_gpt_handcrafted"
says "run: building train_gpt_options, 1 of 3" "run: building train_gpt_handcrafted, 1 of 3"
run demo --policy greedy_auto
expect 7 "train_gpt_threads runs with --policy greedy_auto" "$options built train_gpt_threads"
run demo --transport tcp
expect 7 "train_gpt runs with --transport tcp" "$options built train_gpt"
run plan --list
expect 7 "zbpp-plan runs with --list" "configured built zbpp-plan"
says "run: building zbpp-plan, 1 of 3"

UNBUILDABLE=train_gpt_handcrafted
run demo
expect 1 '' "$options built train_gpt_handcrafted"
grep -q "it broke here" "$scratch/err" || fail "what the compiler says is not shown"

# On a terminal the line is written anew.
if command -v script >/dev/null; then
  UNBUILDABLE=''
  (cd "$scratch" && PATH="$scratch/tools:$PATH" script -qec "sh root/run plan" /dev/null </dev/null) >"$scratch/terminal" || :
  tr '\r' '\n' <"$scratch/terminal" | grep -q 'run: building zbpp-plan, 2 of 3' ||
    fail "on a terminal not every count is shown"
  [ "$(wc -l <"$scratch/terminal")" = 1 ] || fail "on a terminal the count takes lines of its own"
fi
