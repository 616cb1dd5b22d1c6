#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# train_gpt_cuda_table.sh TABLE NVCC CXX ROOT: compiles the kernels for an H100 as train_gpt_cuda does,
# and has the program TABLE print what they take.
table=$1
nvcc=$2
host=$3
root=$4
told=$(mktemp) || exit 1
trap 'rm -f "$told"' EXIT
"$nvcc" -ccbin "$host" -std=c++20 -O3 -arch=sm_90 --fmad=false -Xptxas -v -cubin -o /dev/null \
  -DZBPP_SEPARATE_COMPILATION -I"$root/include" -I"$root/examples" \
  "$root/examples/train_gpt_cuda/kernels.cu" 2>"$told" || { cat "$told"; exit 1; }
"$table" "$told"
