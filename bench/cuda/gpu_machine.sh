# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=sh disable=SC2154
# What a machine has for `run gpu`: compilers, GPUs, NCCL. Functions only; run_gpu.sh reads them.

# stop STATUS WHY: ends with one line.
stop() {
  status=$1
  shift
  echo "run: $*" >&2
  exit "$status"
}

# ---- the CUDA Toolkit ---------------------------------------------------------------------------

# find_nvcc: prints the path of nvcc, wherever the toolkit lies; nothing if it is not there.
find_nvcc() {
  if [ -n "${CUDACXX:-}" ]; then
    command -v "$CUDACXX" || stop 2 "CUDACXX is '$CUDACXX', which is not there; set it to the path of nvcc"
    return 0
  fi
  if command -v nvcc; then
    return 0
  fi
  found=
  # Splitting is wanted: one word is one folder, or a pattern; the last of several versions counts.
  for folder in ${ZBPP_CUDA_FOLDERS-/opt/cuda /usr/local/cuda-* /usr/local/cuda} \
    ${CUDA_PATH:+"$CUDA_PATH"} ${CUDA_HOME:+"$CUDA_HOME"}; do
    if [ -x "$folder/bin/nvcc" ]; then
      found=$folder/bin/nvcc
    fi
  done
  echo "$found"
}

# use_nvcc PATH: makes CMake and the rest of the script find the toolkit of this nvcc.
use_nvcc() {
  CUDACXX=$1
  PATH=$PATH:$(dirname -- "$1")
  export CUDACXX PATH
}

# toolkit_version: that of nvcc, such as 13.0
toolkit_version() {
  "$CUDACXX" --version 2>/dev/null | sed -n 's/.*release \([0-9.]*\),.*/\1/p'
}

# ---- CMake --------------------------------------------------------------------------------------

# has_cmake: is it there, and new enough for the presets?
has_cmake() {
  version=$(cmake --version 2>/dev/null | sed -n 's/^cmake version \([0-9]*\)\.\([0-9]*\).*/\1 \2/p')
  # Splitting is wanted: two numbers.
  # shellcheck disable=SC2086
  set -- ${version:-0 0}
  [ "$1" -gt 3 ] || { [ "$1" -eq 3 ] && [ "$2" -ge 24 ]; }
}

# ---- GPUs ---------------------------------------------------------------------------------------

# is_packed: do these scripts come from a pack, whose programs were built elsewhere?
is_packed() {
  [ -e "$root/commit" ]
}

# smi FIELD: what nvidia-smi says of the first GPU, or "unknown"
smi() {
  if [ -e "$scratch/smi_hangs" ]; then
    echo unknown
    return 0
  fi
  smi_status=0
  timeout -k 5 20 nvidia-smi "--query-gpu=$1" --format=csv,noheader ${gpu_id:+"--id=$gpu_id"} \
    >"$scratch/smi" 2>/dev/null || smi_status=$?
  if [ "$smi_status" -eq 124 ] || [ "$smi_status" -eq 137 ]; then
    : >"$scratch/smi_hangs"
    : >"$scratch/smi"
  fi
  said=$(sed -e '/^WARNING/d; /^No devices/d; /^Unable to/d; /^$/d' -e 's,\[N/A\],unknown,g; s,\[Not Supported\],unknown,g' \
    "$scratch/smi" | head -n 1)
  case $said in
    '' | *'not a valid'* | *ailed*) echo unknown ;;
    *) echo "$said" ;;
  esac
}

# how_gpus_show: what shows that there is a GPU; nothing if neither the driver's tool nor its devices do
how_gpus_show() {
  if timeout 20 nvidia-smi -L 2>/dev/null | grep -q '^GPU'; then
    echo nvidia-smi
    return 0
  fi
  for file in /dev/nvidia[0-9]*; do
    if [ -e "$file" ]; then
      echo "$file"
      return 0
    fi
  done
}

# field NAME JSON: a value of one line of flat JSON
field() {
  printf '%s\n' "$2" | sed -n "s/.*\"$1\": \"\{0,1\}\([^\",}]*\).*/\1/p"
}

# arch_for CAPABILITY: what nvcc is to compile for, such as 90 for 9.0; where nvcc is too old for it, the
# newest that it knows, which the driver translates
arch_for() {
  wanted=$(printf '%s' "$1" | tr -cd '0-9')
  if [ -z "$wanted" ]; then
    echo native
    return 0
  fi
  known=$("$CUDACXX" --list-gpu-arch 2>/dev/null | sed -n 's/^compute_\([0-9]*\)$/\1/p')
  best=
  for one in $known; do
    if [ "$one" -eq "$wanted" ]; then
      echo "$wanted"
      return 0
    fi
    if [ "$one" -lt "$wanted" ] && [ "$one" -gt "${best:-0}" ]; then
      best=$one
    fi
  done
  if [ -n "$best" ]; then
    echo "$best-virtual"
  else
    echo native
  fi
}

# ---- NCCL ---------------------------------------------------------------------------------------

# has_system_nccl: is its header where CMake looks anyway?
has_system_nccl() {
  # Splitting is wanted: one word is one folder.
  for prefix in /usr /usr/local ${CUDACXX:+"$(dirname -- "$(dirname -- "$CUDACXX")")"} \
    $(echo "${CMAKE_PREFIX_PATH:-}" | tr ':;' '  '); do
    for file in "$prefix/include/nccl.h" "$prefix"/include/*-linux-gnu/nccl.h \
      "$prefix"/targets/*/include/nccl.h; do
      if [ -e "$file" ] && nccl_is_new "$file"; then
        return 0
      fi
    done
  done
  return 1
}

# nccl_is_new HEADER: 2.22 or newer, as CMake wants it?
nccl_is_new() {
  # Splitting is wanted: two numbers.
  # shellcheck disable=SC2046
  set -- $(sed -n 's/^#define NCCL_M[AI][JN]OR *\([0-9]*\).*/\1/p' "$1") 0 0
  [ "$1" -gt 2 ] || { [ "$1" -eq 2 ] && [ "$2" -ge 22 ]; }
}

# Between folders, whose names may have blanks.
newline='
'

# package_folders MODULE: where a Python package lies, whichever Python has it; nothing if none has
package_folders() {
  for python in python3 python "${VIRTUAL_ENV:-}/bin/python" "${CONDA_PREFIX:-}/bin/python" \
    /opt/conda/bin/python; do
    "$python" -c '
import importlib.util, sys
print(*importlib.util.find_spec(sys.argv[1]).submodule_search_locations, sep="\n")' "$1" 2>/dev/null || true
  done
}

# nccl_wheel: the folder of NCCL in a Python package (nvidia-nccl-cu12, nvidia-nccl-cu13); nothing if
# there is none
nccl_wheel() {
  IFS=$newline # of the subshell that this is called in
  for folder in $(package_folders nvidia.nccl); do
    if [ -e "$folder/include/nccl.h" ] && [ -e "$folder/lib" ]; then
      echo "$folder"
      return 0
    fi
  done
}

# package_libraries: the folders of the libraries that NVIDIA's Python packages bring along
package_libraries() {
  IFS=$newline
  for folder in $(package_folders nvidia); do
    ls -d "$folder"/*/lib 2>/dev/null || true
  done
}
