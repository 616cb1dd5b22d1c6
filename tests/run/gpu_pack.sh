#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Packs programs on the model of CUDA as `run gpu --pack` packs those for GPUs, and runs them in another
# place, where neither the sources nor the build are.
# usage: gpu_pack.sh SOURCE BUILD SCRATCH
set -eu
source=$1
build=$2
scratch=$3
rm -rf "$scratch"
mkdir -p "$scratch"
sh "$source/run" gpu --dry --as-built --build "$build" --pack "$scratch/gpu.tar.gz"

elsewhere=$(mktemp -d)
trap 'rm -rf "$elsewhere"' EXIT
tar -C "$elsewhere" -xzf "$scratch/gpu.tar.gz"
cd "$elsewhere"
# One program says which libraries it is given, since libraries that are packed may be missing elsewhere only.
# Every build has this program, with or without examples.
device_check=zbpp-gpu/build/programs/device_check
mv "$device_check" "$device_check.packed"
# The program expands its variables.
# shellcheck disable=SC2016
printf '#!/bin/sh\necho "libraries ${LD_LIBRARY_PATH:-none}"\nexec "$0.packed" "$@"\n' >"$device_check"
chmod +x "$device_check"
set -- sh zbpp-gpu/gpu.sh --results "$elsewhere/results" device trainer
# Where the system allows it, nothing is left in these folders. The inner shell expands its arguments.
# shellcheck disable=SC2016
hide='mount -t tmpfs none "$1" && { [ ! -e "$2" ] || mount -t tmpfs none "$2"; }'
if unshare --mount sh -c "$hide" sh "$source" "$build" 2>/dev/null; then
  unshare --mount sh -c "$hide"' && shift 2 && exec "$@"' sh "$source" "$build" "$@"
else
  echo "the sources stay where they are: mounting needs root"
  "$@"
fi
grep -q "libraries .*zbpp-gpu/build/lib" results/*.md || {
  echo "FAILED  programs do not find the libraries that are packed"
  exit 1
}
parts=device_bits
if [ -e "$build/gpu_models/train_gpt_cuda_compare" ]; then # where examples are built
  parts="$parts train_gpt_compare"
fi
for part in $parts; do
  grep -q "\"part\": \"$part\", \"result\": \"ok\"" results/*.json || {
    echo "FAILED  $part did not run, or not well"
    exit 1
  }
done
