#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# run_gpu.sh BUILD RESULTS [GROUP...]: runs what `./run gpu` has built in the folder BUILD, on the
# machine's GPUs, and writes RESULTS/<date>-gpu-<device>.json and .md, with the groups in the name where
# some are stated. A part that lacks what it needs is skipped with a reason. Ends well if none failed.
set -eu
build=$1
results=$2
shift 2
groups=$*
programs=$build/bench/cuda
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# All streams of a plan get hardware queues of their own, and no kernel is loaded while others run.
CUDA_DEVICE_MAX_CONNECTIONS=32
CUDA_MODULE_LOADING=EAGER
export CUDA_DEVICE_MAX_CONNECTIONS CUDA_MODULE_LOADING

failed=no
: >"$work/parts.json"
: >"$work/parts.md"

# wants GROUP: whether its parts are to run
wants() {
  case " ${groups:-$1} " in
    *" $1 "*) return 0 ;;
  esac
  return 1
}

# note PART RESULT WHY
note() {
  echo "run: $1: $2${3:+, $3}" >&2
  why=$(printf '%s' "$3" | tr '"\\\n' "'/ ")
  printf '%s{"part": "%s", "result": "%s", "why": "%s"}' \
    "$([ -s "$work/parts.json" ] && printf ',\n  ')" "$1" "$2" "$why" >>"$work/parts.json"
  echo "| $1 | $2 | $why |" >>"$work/parts.md"
  write_results # whoever ends this early keeps what is known
}

# part NAME SECONDS COMMAND...: its output goes to the log of that name
part() {
  name=$1
  limit=$2
  shift 2
  echo "run: $name" >&2
  status=0
  timeout -k 10 "$limit" "$@" >"$work/$name.log" 2>&1 || status=$?
  sed 's/^/  /' "$work/$name.log" >&2
  case $status in
    0) note "$name" ok "" ;;
    77) note "$name" skipped "$(tail -n 1 "$work/$name.log")" ;;
    124 | 137) failed=yes; note "$name" failed "it took more than $limit s" ;;
    *) failed=yes; note "$name" failed "status $status: $(tail -n 1 "$work/$name.log")" ;;
  esac
}

# part_if_built NAME SECONDS WHY PROGRAM [ARGUMENT...]: the part; where the program is not there it is
# skipped, and WHY says for what reason
part_if_built() {
  if [ -x "$4" ]; then
    name=$1
    limit=$2
    shift 3
    part "$name" "$limit" "$@"
  else
    note "$1" skipped "$3"
  fi
}

# reason WHAT PROGRAM: why CMake left a program out
reason() {
  why=$(sed -n "s/.*zbpp: without $1[:,] *//p" "$build/configure.log" | head -n 1)
  echo "${why:-$2 was not built}"
}

# processes RANKS ACT: one process per rank. Where ranks share a GPU, NCCL takes each for a machine of
# its own and uses sockets: good for correctness, not for speed.
processes() {
  ranks=$1
  act=$2
  attempt=$((${attempt:-0} + 1))
  ZBPP_TOKEN=$(od -An -N32 -tx1 /dev/urandom | tr -d ' \n')
  MASTER_ADDR=127.0.0.1
  MASTER_PORT=$((20000 + ($$ * 31 + attempt * 977) % 12000)) # below what the kernel gives away
  export ZBPP_TOKEN MASTER_ADDR MASTER_PORT
  echo "run: nccl $act, $ranks processes" >&2
  pids=
  rank=0
  while [ "$rank" -lt "$ranks" ]; do
    set -- RANK="$rank" WORLD_SIZE="$ranks" LOCAL_RANK="$rank"
    if [ "$gpus" -lt "$ranks" ]; then
      set -- "$@" NCCL_HOSTID="zbpp-$rank" NCCL_SOCKET_IFNAME=lo NCCL_IB_DISABLE=1 NCCL_MNNVL_ENABLE=0
    fi
    env "$@" timeout -k 10 150 "$programs/nccl_check" "$act" >"$work/rank$rank.log" 2>&1 &
    pids="$pids $!"
    rank=$((rank + 1))
  done
  wrong=
  rank=0
  for pid in $pids; do
    status=0
    wait "$pid" || status=$?
    expected=0
    if [ "$act" = kill ] && [ "$rank" -eq 1 ]; then
      expected=9
    fi
    if [ "$status" -ne "$expected" ]; then
      wrong="${wrong}rank $rank ended with $status: $(tail -n 1 "$work/rank$rank.log"); "
    fi
    sed "s/^/  [$rank] /" "$work/rank$rank.log" >&2
    rank=$((rank + 1))
  done
  if [ -z "$wrong" ]; then
    note "nccl $act, $ranks processes" ok ""
  else
    failed=yes
    note "nccl $act, $ranks processes" failed "$wrong"
  fi
}

if [ ! -x "$programs/device_check" ]; then
  echo "run: device_check does not build; nothing was measured" >&2
  exit 2
fi
if ! device=$("$programs/device_check" --describe); then
  echo "run: CUDA cannot use the GPU; nothing was measured" >&2
  exit 3
fi
gpus=$(nvidia-smi -L 2>/dev/null | grep -c '^GPU' || true)
driver=$(nvidia-smi --query-gpu=driver_version --format=csv,noheader 2>/dev/null | head -n 1)
model=$(printf '%s' "$device" | sed 's/.*"name": "\([^"]*\)".*/\1/')
slug=$(printf '%s' "$model" | tr '[:upper:]' '[:lower:]' | tr -cs '[:lower:][:digit:]\n' '-' | sed 's/-*$//')
day=$(date -u +%F)
toolkit=$("${CUDACXX:-nvcc}" --version | sed -n 's/.*release \([0-9.]*\),.*/\1/p')

mkdir -p "$results"
file=$results/$day-gpu-$slug$(printf '%s' "${groups:+ $groups}" | tr ' ' '-')
nccl=

# Writes what is known by now.
write_results() {
  {
    printf '{"date": "%s", "device": %s,\n "gpus": %s, "driver": "%s", "toolkit": "%s", "nccl": "%s",\n' \
      "$day" "$device" "${gpus:-0}" "$driver" "$toolkit" "$nccl"
    printf ' "parts": [\n  %s],\n "figures": ' "$(cat "$work/parts.json")"
    if [ -s "$work/figures.json" ]; then cat "$work/figures.json"; else echo '[]'; fi
    echo '}'
  } >"$file.json"
  {
    echo "# $day, $model"
    echo
    echo "Written by \`./run gpu\`; $file.json holds the same for programs." | sed "s#$results/##"
    echo
    echo "Driver $driver, CUDA $toolkit, NCCL ${nccl:-not used}, ${gpus:-0} GPU(s): \`$device\`."
    echo
    echo "| part | result | why |"
    echo "|---|---|---|"
    cat "$work/parts.md"
    if [ -s "$work/figures.md" ]; then cat "$work/figures.md"; fi
    for log in device_check train_gpt_cuda train_gpt_cuda_steps train_gpt_cuda_compare; do
      if [ -s "$work/$log.log" ]; then
        printf '\n## %s\n\n```text\n' "$log"
        tail -n 60 "$work/$log.log"
        echo '```'
      fi
    done
  } >"$file.md"
}

if wants device; then
  for example in 10_one_gpu 11_many_gpus; do
    part_if_built "$example" 60 "it was not built" "$build/examples/$example"
  done
  part device_check 300 "$programs/device_check" --all
  part device_fault 60 "$programs/device_check" --fault
fi

if wants sanitizer; then
  if ! command -v compute-sanitizer >/dev/null; then
    note compute-sanitizer skipped "compute-sanitizer is not on the PATH"
  elif ! compute-sanitizer "$programs/device_check" --describe >"$work/sanitizer.log" 2>&1; then
    note compute-sanitizer skipped "$(tail -n 1 "$work/sanitizer.log")"
  else
    for tool in memcheck racecheck; do
      part "$tool" 400 compute-sanitizer --tool "$tool" --error-exitcode 9 \
        "$programs/device_check" --short
    done
  fi
fi

if wants nccl; then
  if [ -x "$programs/nccl_check" ]; then
    part nccl_self 60 "$programs/nccl_check" self
    nccl=$(sed -n 's/^NCCL \([0-9.]*\)$/\1/p' "$work/nccl_self.log")
    for ranks in 2 4; do
      for act in train throw kill; do
        processes "$ranks" "$act"
      done
    done
  else
    note nccl skipped "$(reason 'component \(asio\|nccl\)' nccl_check)"
  fi
fi

if wants train_gpt; then
  gpt=$build/examples/train_gpt_cuda/train_gpt_cuda
  unbuilt=$(reason '\(examples\/\)\{0,1\}train_gpt_cuda' train_gpt_cuda)
  part_if_built train_gpt_cuda 500 "$unbuilt" "$gpt" --check
  part_if_built train_gpt_cuda_steps 500 "$unbuilt" \
    "$gpt" --check --clip 1 --step synchronous,post-validated --policy zb_h2,zb_v
  part_if_built train_gpt_cuda_compare 200 \
    "$(reason 'examples\/train_gpt' train_gpt_cuda_compare)" \
    "${gpt}_compare" "$build/../../examples/train_gpt_cuda/lanes.hpp"
fi

if wants bench && [ ! -x "$programs/bench_cuda" ]; then
  failed=yes
  note bench_cuda failed "it does not build"
elif wants bench; then
  part bench_cuda 580 "$programs/bench_cuda" --json "$work/figures.json" \
    --markdown "$work/figures.md"
fi

echo "run: wrote $file.md and $file.json" >&2
[ "$failed" = no ]
