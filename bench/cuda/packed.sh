#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# sh gpu.sh [OPTION...] [GROUP...]: what `./run gpu --as-built` does, with the programs packed beside this
# script, and needs nothing else of zbpp. Results go to the folder results, unless --results says where.
set -eu
root=$(CDPATH='' cd -- "$(dirname -- "$0")" && pwd)
ZBPP_COMMIT=${ZBPP_COMMIT:-$(cat "$root/commit")}
export ZBPP_COMMIT
if [ -d "$root/build/gpu_models" ]; then
  set -- --dry "$@"
fi
case " $* " in
  *" --results"*) ;;
  *) set -- --results "$root/results" "$@" ;;
esac
exec sh "$root/bench/cuda/run_gpu.sh" "$root" '' --as-built --build "$root/build" "$@"
