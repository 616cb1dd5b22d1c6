#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# cut_link.sh ASIO_RANK: two ranks in network namespaces of their own, joined by a pair of virtual
# network cards, of which one is put down in the middle of a long run. Both ranks have to end with 3
# in time and name the other one. Ends with 77 where namespaces may not be made.
set -eu
program=$1
left=zbpp_left_$$
right=zbpp_right_$$
out=$(mktemp -d)
pids=

clean_up() {
  for pid in $pids; do
    kill "$pid" 2>/dev/null || true
  done
  ip netns delete "$left" 2>/dev/null || true
  ip netns delete "$right" 2>/dev/null || true
  rm -rf "$out"
}
trap clean_up EXIT
trap 'exit 1' HUP INT TERM

fail() {
  echo "cut_link.sh: $1" >&2
  cat "$out"/* >&2
  exit 1
}

# Whoever may not do this gets the reason of the system, and a skipped test.
ip netns add "$left" || exit 77
ip netns add "$right" || exit 77
ip -n "$left" link add veth0 type veth peer name veth0 netns "$right" || exit 77
ip -n "$left" address add 10.77.0.1/24 dev veth0
ip -n "$right" address add 10.77.0.2/24 dev veth0
for space in "$left" "$right"; do
  ip -n "$space" link set lo up
  ip -n "$space" link set veth0 up
done

ZBPP_TOKEN=$(od -An -N32 -tx1 /dev/urandom | tr -d ' \n')
export ZBPP_TOKEN WORLD_SIZE=2 MASTER_ADDR=10.77.0.1 MASTER_PORT=29400

# rank SPACE RANK ADDRESS; the time is far beyond all deadlines
rank() {
  RANK=$2 exec ip netns exec "$1" timeout -s KILL 110 \
    "$program" "bind=$3" steps=100000000 deadline=5000 >"$out/$2" 2>&1
}
rank "$left" 0 10.77.0.1 &
first=$!
rank "$right" 1 10.77.0.2 &
second=$!
pids="$first $second"

packets() {
  ip netns exec "$right" cat /sys/class/net/veth0/statistics/rx_packets
}
tries=0
while [ "$(packets)" -lt 2000 ]; do
  tries=$((tries + 1))
  if [ "$tries" -gt 800 ]; then
    fail "the ranks exchange nothing"
  fi
  sleep 0.1
done
kill -0 "$first" && kill -0 "$second" || fail "a rank ended before the link was cut"
ip -n "$right" link set veth0 down

status=0
wait "$first" || status=$?
[ "$status" -eq 3 ] || fail "rank 0 ended with $status, not 3"
status=0
wait "$second" || status=$?
[ "$status" -eq 3 ] || fail "rank 1 ended with $status, not 3"
pids=
grep -q 'rank 1' "$out/0" || fail "rank 0 does not name rank 1"
grep -q 'rank 0' "$out/1" || fail "rank 1 does not name rank 0"
cat "$out"/*
