# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=sh disable=SC2154
# What `run gpu --pack` takes to a machine that has a GPU, and neither nvcc nor a network. Functions only;
# run_gpu.sh reads them.

most_bytes=25000000 # what travels easily beside other files

# pack FILE: all programs of the list that are there, the libraries that a bare machine may lack, a text
# to learn, and these scripts
pack() {
  packed=$scratch/zbpp-gpu
  mkdir -p "$packed/build/$list" "$packed/build/programs" "$packed/build/lib" "$packed/bench/cuda" \
    "$packed/examples/train_gpt_cuda"
  for group in $all_groups; do
    for each in describe_gpu $(programs_of "$group"); do
      pack_program "$each"
    done
  done
  if [ -z "$(ls "$packed/build/programs")" ]; then
    stop 3 "no program is built in $build; leave out --as-built to build them"
  fi
  cp "$root"/bench/cuda/run_gpu.sh "$root"/bench/cuda/gpu_*.sh "$packed/bench/cuda"
  cp "$root/bench/cuda/packed.sh" "$packed/gpu.sh"
  cp "$root/examples/train_gpt_cuda/lanes.hpp" "$packed/examples/train_gpt_cuda" # the dry run learns it
  (cd "$root" && find include docs -type f \( -name '*.hpp' -o -name '*.md' \) -exec cat {} +) >"$packed/text"
  cp "$build/missing" "$packed/build" 2>/dev/null || true
  sed -n 's/^CMAKE_CUDA_ARCHITECTURES:[^=]*=//p' "$build/CMakeCache.txt" >"$packed/build/arch"
  describe_tree
  echo "$commit, $tree" >"$packed/commit"
  write_pack "$1"
}

# pack_program NAME
pack_program() {
  path=$(program "$list" "$1")
  if [ ! -x "$path" ]; then
    echo "run: $group without $1: $(why_left_out "$1")" >&2
    lack_program
    return 0
  elif [ -e "$packed/build/programs/$1" ]; then
    return 0
  fi
  strip -o "$packed/build/programs/$1" "$path" 2>/dev/null || cp "$path" "$packed/build/programs/$1"
  printf '%s\n' "$(target "$list" "$1")" "programs/$1" >"$packed/build/$list/$1"
  for library in $(libraries_of "$path"); do
    cp -L "$library" "$packed/build/lib"
  done
}

# libraries_of PROGRAM: those that travel. Those of the system, of its compiler and of the driver belong to
# each other and to the machine; those of NCCL and of matrix products are too large.
libraries_of() {
  ldd "$1" 2>/dev/null | sed -n 's/.* => \(\/[^ ]*\) .*/\1/p' |
    grep -v -e '/lib\(c\|m\|dl\|rt\|pthread\|resolv\|gcc_s\|stdc++\)\.so' -e '/lib\(cuda\|nccl\|cublas\|cublasLt\)\.so' ||
    true
}

write_pack() {
  tar -C "$scratch" -czf "$1" zbpp-gpu
  bytes=$(wc -c <"$1")
  if [ "$bytes" -gt "$most_bytes" ]; then
    stop 1 "$1 has $bytes bytes, more than $most_bytes; compile for fewer GPUs (--arch 90)"
  fi
  echo "run: wrote $1; there, unpack it and run: sh zbpp-gpu/gpu.sh" >&2
}
