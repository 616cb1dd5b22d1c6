# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=sh disable=SC2034,SC2086,SC2154
# The groups of `run gpu`, with their programs and parts. Functions only; run_gpu.sh reads them. $short and
# $whole are an option, or nothing, so they are not quoted.

# programs_of GROUP
programs_of() {
  case $1 in
    contact) echo "contact contact_nccl contact_cublas" ;;
    device) echo "10_one_gpu 11_many_gpus device_check bench_cuda" ;;
    plan) echo "bench_cuda" ;;
    nccl) echo "12_gpu_processes nccl_check bench_nccl" ;;
    nccl_sums) echo "nccl_check bench_nccl" ;;
    nccl_faults) echo "nccl_check" ;;
    trainer) echo "train_gpt_cuda train_gpt_cuda_compare" ;;
    sanitizer) echo "device_check train_gpt_cuda" ;;
  esac
}

# The limits of a group's parts are at most its own in all. Each is above the deadlines of the program,
# so that the library's own message is what ends it: 60 s, and 40 s in nccl_check.

# The programs of all other groups rely on what this one tries. What it finds holds for this device until
# it is run again.
group_contact() {
  part contact 90 contact
  part contact_nccl 170 contact_nccl
  CUDA_MODULE_LOADING=LAZY # or each line loads all kernels of cuBLASLt
  part contact_cublas 210 contact_cublas
  CUDA_MODULE_LOADING=EAGER
  if [ "$listing" = no ]; then
    {
      printf '%s\n' "$device"
      cat "$logs"/part-contact*.log 2>/dev/null || true
    } >"$scratch/contact"
    cp "$scratch/contact" "$build/contact" || say "run: what contact found holds for this run only"
    heed_contact "$scratch/contact"
  fi
}

# heed_contact FILE: sets off, and whole where a GPU cannot be cut into parts, by what contact found
heed_contact() {
  off=
  if [ "$(head -n 1 "$1" 2>/dev/null)" != "$device" ]; then
    return 0
  fi
  off=$(sed -n 's/^turned off://p' "$1" | tr '\n' ' ')
  case " $off " in
    *" parts "*)
      whole=--whole-gpu
      say "run: ranks share the whole GPU, for parts of it do not work (see the group contact)"
      ;;
  esac
}

group_device() {
  part 10_one_gpu 30 10_one_gpu
  part 11_many_gpus 30 11_many_gpus
  part device_parts 70 device_check parts $short $whole
  part device_bits 150 device_check bits $short $whole
  # What is set for all programs otherwise: main says why.
  CUDA_DEVICE_MAX_CONNECTIONS=1
  part device_bits_one_queue 35 device_check bits --short $whole
  CUDA_DEVICE_MAX_CONNECTIONS=8 # CUDA's default
  part device_bits_eight_queues 30 device_check bits --short $whole
  CUDA_DEVICE_MAX_CONNECTIONS=32
  CUDA_MODULE_LOADING=LAZY
  part device_bits_lazy_loading 35 device_check bits --short $whole
  CUDA_MODULE_LOADING=EAGER
  part device_optimizers 30 device_check optimizers $short
  part device_fault 30 device_check fault
  figures transfers 70 bench_cuda transfers $whole
  figures issuing 70 bench_cuda issuing $whole
}

group_plan() {
  figures plan 540 bench_cuda plan $whole
}

group_nccl() {
  rank_1_ends_with=0
  part nccl_self 45 nccl_check self
  processes 12_gpu_processes 2 65 12_gpu_processes
  figures nccl_to_itself 70 bench_nccl self
  for act in train replay at_once adopted; do
    processes "nccl $act" 2 50 nccl_check "$act"
  done
  CUDA_DEVICE_MAX_CONNECTIONS=1
  processes "nccl one_queue" 2 50 nccl_check one_queue
  CUDA_DEVICE_MAX_CONNECTIONS=32
  CUDA_MODULE_LOADING=LAZY
  processes "nccl lazy_loading" 2 50 nccl_check train
  CUDA_MODULE_LOADING=EAGER
  processes nccl_pair 2 100 bench_nccl pair $short --json "$logs/figures-nccl_pair.json" \
    --markdown "$logs/figures-nccl_pair.md"
}

# Replicas add up gradients on the devices.
group_nccl_sums() {
  rank_1_ends_with=0
  for ranks in 2 4; do
    processes "nccl sums" "$ranks" 80 nccl_check sums
  done
  CUDA_DEVICE_MAX_CONNECTIONS=1
  processes "nccl one_queue_sums" 4 80 nccl_check one_queue_sums
  CUDA_DEVICE_MAX_CONNECTIONS=32
  processes nccl_sums 2 200 bench_nccl sums $short --json "$logs/figures-nccl_sums.json" \
    --markdown "$logs/figures-nccl_sums.md"
}

group_nccl_faults() {
  rank_1_ends_with=0
  processes "nccl train" 4 100 nccl_check train
  for ranks in 2 4; do # one of them throws, and dies
    processes "nccl throw" "$ranks" 100 nccl_check throw
    rank_1_ends_with=9
    processes "nccl kill" "$ranks" 100 nccl_check kill
    rank_1_ends_with=0
  done
}

# find_text: sets text, which the trainer learns
find_text() {
  text=$root/examples/train_gpt_cuda/lanes.hpp
  if [ "$dry" = no ] && [ -e "$root/text" ]; then # packed, for its own is where it was compiled
    text=$root/text
  fi
}

group_trainer() {
  find_text
  if [ "$dry" = yes ]; then
    set -- --steps 2 --width 16 --heads 2 --context 8 --batch 2 --layers 5 --microbatches 4 --text "$text"
  elif [ -e "$root/text" ]; then
    set -- --steps 20 --text "$text"
  else
    set -- --steps 20 # it learns the documentation
  fi
  set -- "$@" ${whole:+"$whole"}
  part train_gpt 130 train_gpt_cuda --check "$@"
  part train_gpt_traced 110 train_gpt_cuda --measure --trace "$logs/trace.json" "$@"
  part train_gpt_steps 110 train_gpt_cuda --check --clip 1 --step synchronous,post-validated \
    --policy zb_h2,zb_v "$@"
  part train_gpt_replayed 60 train_gpt_cuda --check --replay step --policy zb_v "$@"
  part train_gpt_at_once 60 train_gpt_cuda --check --replay step --steps-at-once 2 --policy zb_v "$@"
  part train_gpt_compare 50 train_gpt_cuda_compare "$root/examples/train_gpt_cuda/lanes.hpp"
}

# The optimizers and a tiny trainer have kernels with shared memory, barriers and exchanges.
group_sanitizer() {
  find_text
  set -- --check --steps 2 --width 64 --heads 2 --context 32 --batch 2 --layers 4 --microbatches 4 \
    --policy zb_v --text "$text" ${whole:+"$whole"}
  CUDA_MODULE_LOADING=LAZY # or the tools go through all kernels of cuBLASLt
  for tool in memcheck racecheck synccheck initcheck; do
    sanitize optimizers 30 device_check optimizers --short
    sanitize trainer 80 train_gpt_cuda "$@"
  done
  tool=memcheck
  sanitize bits 140 device_check bits --short $whole
  CUDA_MODULE_LOADING=EAGER
}

# sanitize NAME SECONDS PROGRAM [ARGUMENT...]: runs a program under a tool of compute-sanitizer
sanitize() {
  name="$tool $1"
  seconds=$2
  if ! can_run "$name" "$3"; then
    return 0
  elif [ "$dry" = yes ]; then
    note "$name" skipped "it needs a GPU"
  elif ! command -v compute-sanitizer >/dev/null; then
    note "$name" skipped "compute-sanitizer is not there; install it with the CUDA Toolkit (cuda-sanitizer)"
    lack
  else
    shift 3
    case $tool in
      memcheck) more="--report-api-errors no" ;; # calls may fail that find out what a machine has
      *) more= ;;
    esac
    run_part compute-sanitizer --tool "$tool" $more --error-exitcode 9 "$path" "$@"
  fi
}
