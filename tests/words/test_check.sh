#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# check.sh finds what it is for, and nothing else.
# usage: test_check.sh SCRATCH
set -eu
check=$(CDPATH='' cd -- "$(dirname -- "$0")" && pwd)/check.sh
rm -rf "$1"
mkdir -p "$1/include" "$1/docs"
cd "$1"
fail() {
  echo "$*" >&2
  exit 1
}
printf '# a comment\nold::word | include | new\nold phrase | include,docs | a phrase\n' >table
echo 'old::words, cold::word and new' >include/good.hpp
echo 'old::word is allowed here' >docs/page.md
sh "$check" . table || fail "words that merely hold a retired one were refused"
echo 'an old phrase' >docs/bad.md
if sh "$check" . table >said; then fail "a retired phrase was not found"; fi
grep -q "docs/bad.md:1:an old phrase" said || fail "where it stands was not said"
grep -q "say 'a phrase'" said || fail "what to say instead was not said"
rm docs/bad.md
printf 'word without columns\n' >broken
if sh "$check" . broken 2>said; then fail "a broken table was accepted"; fi
grep -q 'broken:1: expected' said || fail "the broken line was not named"
