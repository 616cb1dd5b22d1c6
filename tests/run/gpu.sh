#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Tests what `run gpu` does where things are missing, fail, hang or are cut off: small programs stand in
# for the driver's tool, nvcc, CMake and all that is built. Needs no GPU, and runs none.
# usage: gpu.sh SOURCE SCRATCH
set -eu
source=$1
scratch=$2
rm -rf "$scratch"
mkdir -p "$scratch/tools" "$scratch/gpu" "$scratch/cuda/bin" "$scratch/cmake" "$scratch/programs"
unset CUDACXX CUDA_HOME CUDA_PATH NCCL_ROOT
export ZBPP_CUDA_FOLDERS=
export SCRATCH="$scratch" SAYING='it "broke" here' FAILING='' OFF=nothing HANGING='' UNBUILDABLE='' LEFT_OUT='' NO_DEVICE='' TAKING_LONG='' KILLED='' SMI=''

# ---- what stands in -----------------------------------------------------------------------------

# A PATH of these alone has neither CMake nor a trace of CUDA.
for tool in sh sed grep tr cat mkdir mv rm cp ls date mktemp timeout od head tail basename dirname env \
  git nproc sleep id cut kill ps touch chmod tar gzip find wc; do
  if path=$(command -v "$tool") && [ -x "$path" ]; then
    ln -s "$path" "$scratch/tools/$tool"
  fi
done
# script FILE: its text comes from the standard input
script() {
  cat >"$1"
  chmod +x "$1"
}

# Programs that take long move this clock on, so that nothing has to wait.
rm "$scratch/tools/date"
script "$scratch/tools/date" <<END
#!/bin/sh
case \$* in
  +%s) echo \$((\$($(command -v date) +%s) + \$(cat "\$SCRATCH/later"))) ;;
  *) exec $(command -v date) "\$@" ;;
esac
END
echo 0 >"$scratch/later"
script "$scratch/tools/g++-12" <<'END'
#!/bin/sh
echo 12
END
script "$scratch/gpu/nvidia-smi" <<'END'
#!/bin/sh
echo "nvidia-smi $*" >>"$SCRATCH/calls"
case $SMI,$1 in
  hangs,--query*) exit 124 ;; # as `timeout` ends where it does not answer
  warns,--query*) echo "WARNING: infoROM is corrupted at gpu 0000:01:00.0" ;;
esac
case $1 in
  -L) echo "GPU 0: NVIDIA Fake 100 (UUID: none)" ;;
  --query-gpu=clocks.max.mem) echo 'Field "clocks.max.mem" is not a valid field to query.' ;;
  --query-gpu=clocks.sm,*) echo "1980 MHz, 95.30 W, 41" ;;
  *) echo "570.1" ;;
esac
END
script "$scratch/cuda/bin/nvcc" <<'END'
#!/bin/sh
case $1 in
  --version) echo "Cuda compilation tools, release 13.0, V13.0.88" ;;
  --list-gpu-arch) printf 'compute_%s\n' 75 80 90 100 ;;
  *)
    while [ "$1" != -o ]; do shift; done
    cp "$SCRATCH/programs/describe_gpu" "$2"
    ;;
esac
END
script "$scratch/gpu/compute-sanitizer" <<'END'
#!/bin/sh
while [ "$1" != --error-exitcode ]; do shift; done
shift 2
exec "$@"
END
script "$scratch/cmake/cmake" <<'END'
#!/bin/sh
echo "cmake $*" >>"$SCRATCH/calls"
case $1 in
  --version) echo "cmake version 3.25.1" ;;
  --preset)
    all="$*"
    while [ "$1" != -B ]; do shift; done
    sh "$SCRATCH/make_lists" "$2"
    echo "$all" | sed 's/.*-D\(CMAKE_CUDA_ARCHITECTURES\)=\([^ ]*\).*/\1:STRING=\2/' >"$2/CMakeCache.txt"
    echo "-- zbpp: without component nccl: NCCL 2.22 or newer was not found (set NCCL_ROOT)"
    ;;
  --build)
    case $TAKING_LONG in
      cmake) echo 3000 >"$SCRATCH/later" ;;
    esac
    for target in $UNBUILDABLE; do
      case " $* " in
        *" $target "*)
          echo "error: no such thing in $target"
          exit 1
          ;;
      esac
    done
    ;;
esac
END
script "$scratch/program" <<'END'
#!/bin/sh
name=${0##*/}
echo "$name $* rank ${RANK:-none} hostid ${NCCL_HOSTID:-none}" \
  "queues $CUDA_DEVICE_MAX_CONNECTIONS loading $CUDA_MODULE_LOADING" \
  "libraries ${LD_LIBRARY_PATH:-none}" >>"$SCRATCH/calls"
case " $FAILING " in
  *" $name "*)
    echo "$SAYING"
    exit 1
    ;;
esac
case " $KILLED " in
  *" $name "*) kill -KILL $$ ;;
esac
case " $TAKING_LONG " in
  *" $name "*) echo 3000 >"$SCRATCH/later" ;;
esac
case $name,$OFF in
  contact_nccl,nccl | contact_cublas,product* | contact,parts*) echo "turned off: $OFF" ;;
  contact*) echo "turned off: nothing" ;;
esac
if [ "$name" = describe_gpu ]; then
  if [ -n "$NO_DEVICE" ]; then
    echo "CUDA finds no device: no driver" >&2
    exit 3
  fi
  echo '{"name": "NVIDIA Fake 100", "devices": 1, "multiprocessors": 132, "compute_capability": "9.0"}'
fi
case $*,${RANK:-} in
  kill*,1) exit 9 ;;
esac
while [ $# -gt 0 ]; do
  case $1 in
    --json) echo '[{"title": "speed", "rows": []}]' >"$2" ;;
    --markdown) echo "## speed of $name" >"$2" ;;
  esac
  shift
done
case " $HANGING " in
  *" $name "*) exec sleep 600 ;;
esac
END
export PROGRAMS='contact contact_nccl contact_cublas describe_gpu 10_one_gpu 11_many_gpus 12_gpu_processes
  device_check bench_cuda nccl_check bench_nccl train_gpt_cuda train_gpt_cuda_compare'
cat >"$scratch/make_lists" <<'END'
rm -rf "$1/gpu_programs"
mkdir -p "$1/gpu_programs"
for name in $PROGRAMS; do
  case " $LEFT_OUT " in
    *" $name "*) ;;
    *) printf '%s\n%s\n' "$name" "../programs/$name" >"$1/gpu_programs/$name" ;;
  esac
done
END
for name in $PROGRAMS; do
  cp "$scratch/program" "$scratch/programs/$name"
done
bare=$scratch/tools
with_gpu=$scratch/gpu:$bare
complete=$scratch/cmake:$scratch/cuda/bin:$with_gpu

# ---- checks -------------------------------------------------------------------------------------

# fail WHY: ends the test
fail() {
  echo "FAILED  $case: $*"
  cat "$scratch/said"
  exit 1
}

# run_gpu PATH [ARGUMENT...]: `run gpu` with this PATH
run_gpu() {
  path=$1
  shift
  PATH=$path sh "$source/run" gpu --results "$scratch/results" --build "$scratch/build" "$@"
}

# gpu STATUS PATH [ARGUMENT...]: the same ends with this status
gpu() {
  expected=$1
  shift
  : >"$scratch/calls"
  rm -rf "$scratch/results"
  status=0
  run_gpu "$@" >"$scratch/said" 2>&1 || status=$?
  if [ "$status" -ne "$expected" ]; then
    fail "ended with $status, not $expected"
  fi
}

# late STATUS [ARGUMENT...]: the same for a run that TAKING_LONG keeps beyond its 2,700 s
late() {
  expected=$1
  shift
  gpu "$expected" "$complete" --within 2700 "$@"
  echo 0 >"$scratch/later"
}

# said TEXT, called TEXT: with basic regular expressions; wrote TEXT: both files of results have it
said() {
  grep -q -e "$1" "$scratch/said" || fail "did not say '$1'"
}
called() {
  grep -q -e "$1" "$scratch/calls" || fail "did not call '$1': $(cat "$scratch/calls")"
}
never_called() {
  if grep -q -e "$1" "$scratch/calls"; then
    fail "called '$1': $(cat "$scratch/calls")"
  fi
}
wrote() {
  for kind in md json; do
    cat "$scratch"/results/*."$kind" | grep -q -e "$1" ||
      fail "did not write '$1': $(cat "$scratch"/results/*."$kind")"
  done
}
is_json() {
  if command -v python3 >/dev/null; then
    python3 -m json.tool "$1" >/dev/null || fail "$1 is no JSON: $(cat "$1")"
  fi
}

case="wrong arguments"
gpu 2 "$complete" trainers
said "groups (contact device trainer sanitizer plan nccl nccl_sums nccl_faults), not 'trainers'"
gpu 2 "$complete" --arch ninety!
said "not 'ninety!'"
gpu 2 "$complete" --arch
said "not ''"
for option in --limit --within; do
  gpu 2 "$complete" $option 123456789
  said "not '123456789'"
  gpu 2 "$complete" $option 0
  said "$option takes a number of seconds from 1 to 99999999, not '0'"
done
gpu 2 "$complete" --boost "$scratch"
said "boost/version.hpp"
gpu 2 "$complete" --build /dev/null/nowhere
said "takes a folder, not '/dev/null/nowhere'"
gpu 2 "$complete" --full
said "--full goes with --dry"
for file in '' "$scratch" "$scratch/nowhere/gpu.tar.gz"; do
  gpu 2 "$complete" --pack "$file"
  said "a file to write, such as gpu.tar.gz, not '$file'"
done
gpu 2 "$complete" --dry --results "$source/bench/results"
said "measures a model"

case="nothing of CUDA"
if ! ls /dev/nvidia[0-9]* >/dev/null 2>&1; then
  gpu 3 "$bare"
  said "there is no GPU here (nvidia-smi lists none"
  said "nothing was built or measured"
fi
never_called cmake

case="a GPU without nvcc"
gpu 3 "$scratch/cmake:$with_gpu"
said "nvcc is missing: put it on the PATH, or set CUDA_HOME"

case="a wrong nvcc"
export CUDACXX=/nowhere/nvcc
gpu 2 "$complete"
said "CUDACXX is '/nowhere/nvcc', which is not there"
unset CUDACXX

case="no CMake"
gpu 3 "$scratch/cuda/bin:$with_gpu"
said "CMake 3.24 or newer is missing"

case="nvcc, and CUDA finds no GPU"
NO_DEVICE=yes
gpu 3 "$scratch/cmake:$scratch/cuda/bin:$bare"
said "there is no GPU here that CUDA can use .*CUDA finds no device: no driver"
NO_DEVICE=

case="nvcc in a folder of CUDA, without nvidia-smi"
for where in CUDA_HOME CUDA_PATH ZBPP_CUDA_FOLDERS; do
  (
    folder=$scratch/cuda
    if [ $where = ZBPP_CUDA_FOLDERS ]; then # a list of patterns
      folder=$(echo "$folder" | tr ' ' '?')
    fi
    export $where="$folder"
    rm -rf "$scratch/build"
    gpu 0 "$scratch/cmake:$bare" plan
    if ! ls /dev/nvidia[0-9]* >/dev/null 2>&1; then
      said "NVIDIA Fake 100, found by a program that asks CUDA"
    fi
  )
done
called 'preset gpu .*-DCMAKE_CUDA_ARCHITECTURES=90 '
called 'cmake --build .*--target bench_cuda -- '
called 'bench_cuda plan --json'
wrote 'unknown' # clocks

case="options of the build, and a program that is left out"
mkdir -p "$scratch/boost/boost"
touch "$scratch/boost/boost/version.hpp"
LEFT_OUT=bench_nccl
gpu 4 "$complete" --arch 90,100 --boost "$scratch/boost" plan nccl
called 'ARCHITECTURES=90;100 .*-DBoost_INCLUDE_DIR=.*/boost '
called 'G Unix Makefiles'
called 'cmake --build .*--target 12_gpu_processes nccl_check -- -k'
never_called 'target.*train_gpt'
said "without component nccl: NCCL 2.22 or newer was not found (set NCCL_ROOT)"
said 'run: nccl_pair, 2 processes: skipped, NCCL 2.22 or newer was not found (set NCCL_ROOT)'
said 'run: nccl train, 2 processes: ok'
wrote 'NCCL 2.22 or newer was not found'
tail -n 1 "$scratch/said" | grep -q 'the lines above say why: nccl$' ||
  fail "the group that lacks something is not named last"
FAILING=nccl_check
gpu 1 "$complete" --as-built nccl
tail -n 1 "$scratch/said" | grep -q 'say why: nccl$' || fail "a failure hides what is missing"
FAILING=
LEFT_OUT=
gpu 0 "$complete" --arch 90,100 --boost "$scratch/boost" plan
called 'cmake --preset' # what was missing may be there now
gpu 0 "$complete" --arch 90 plan
called 'cmake --preset'

case="all of it"
gpu 0 "$complete"
for result in 10_one_gpu device_parts device_bits device_bits_eight_queues transfers issuing plan \
  nccl_self nccl_to_itself \
  '12_gpu_processes, 2 processes' 'nccl train, 4 processes' 'nccl_pair, 2 processes' \
  'nccl kill, 4 processes' train_gpt train_gpt_traced \
  train_gpt_steps train_gpt_replayed train_gpt_at_once train_gpt_compare 'nccl sums, 4 processes' 'nccl_sums, 2 processes' \
  device_optimizers 'memcheck bits' 'racecheck trainer' 'synccheck optimizers' 'initcheck trainer'; do
  said "run: $result: ok"
  wrote "$result"
done
called 'nccl_check kill rank 3 hostid zbpp-3'
called 'nccl_check throw rank 1 '
for asked in 'queues 1 loading EAGER' 'queues 8 loading EAGER' 'queues 32 loading LAZY'; do
  called "device_check bits --short rank none .*$asked"
done
called 'device_check bits rank none .*queues 32 loading EAGER'
called 'device_check optimizers --short rank none'
called 'train_gpt_cuda --check --steps 2 --width 64 .*--text .* rank none'
wrote '1980 MHz, 95.30 W, 41'
wrote 'found.by'
wrote 570.1
wrote unknown
grep -q '^## speed of bench_nccl' "$scratch"/results/*.md || fail "no figures of bench_nccl"
is_json "$scratch"/results/*.json
set -- "$scratch"/results/*
[ $# -eq 3 ] || fail "three files are not all: $*"
tar -tzf "$scratch"/results/*-logs.tar.gz | grep -q part-device-bits.log || fail "no log of device_bits"

case="the order and the names of groups"
gpu 0 "$with_gpu" --as-built trainer plan
never_called 'cmake --'
ls "$scratch"/results/*-gpu-nvidia-fake-100-trainer-plan.md >/dev/null || fail "another name"

case="no compute-sanitizer"
mv "$scratch/gpu/compute-sanitizer" "$scratch/away"
gpu 4 "$with_gpu" --as-built sanitizer plan
said 'run: memcheck bits: skipped, compute-sanitizer is not there'
said 'run: initcheck trainer: skipped, compute-sanitizer is not there'
tail -n 1 "$scratch/said" | grep -q 'say why: sanitizer$' || fail "the group is not named last"
mv "$scratch/away" "$scratch/gpu/compute-sanitizer"

case="a GPU that stays whole"
gpu 0 "$with_gpu" --as-built --whole-gpu device trainer
called 'device_check bits --whole-gpu rank none'
called 'bench_cuda issuing --whole-gpu --json'
called 'train_gpt_cuda --check --steps 20 --whole-gpu rank none'

case="programs packed for another machine"
gpu 0 "$scratch/cmake:$scratch/cuda/bin:$bare" --pack "$scratch/gpu.tar.gz"
called 'preset gpu .*-DCMAKE_CUDA_ARCHITECTURES=80;90;100 '
called 'cmake --build .*--target gpu_programs$'
never_called '^[a-z0-9_]* .*rank' # no program
mkdir "$scratch/elsewhere"
tar -C "$scratch/elsewhere" -xzf "$scratch/gpu.tar.gz"
mv "$scratch/build" "$scratch/build.away"
mv "$scratch/programs" "$scratch/programs.away"
mkdir -p "$scratch/python/nvidia/cublas/lib"
if python=$(python3 -c 'import sys; print(sys.executable)' 2>/dev/null); then
  script "$scratch/gpu/python3" <<END
#!/bin/sh
PYTHONPATH="$scratch/python" exec "$python" "\$@"
END
fi
: >"$scratch/calls"
(
  cd "$scratch/elsewhere"
  PATH=$with_gpu sh zbpp-gpu/gpu.sh --results "$scratch/results"
) >"$scratch/said" 2>&1 || fail "what was packed ended with $?"
called '^train_gpt_cuda_compare '
if grep '^train_gpt_cuda ' "$scratch/calls" | grep -v -q -e "--text $scratch/elsewhere/zbpp-gpu/text"; then
  fail "the trainer looks for its text where it was compiled: $(cat "$scratch/calls")"
fi
# So the sources may be out of reach; the folder of this test may lie among them.
if sed "s|$scratch||g" "$scratch/calls" | grep -q -F "$source/"; then
  fail "what was packed needs the sources: $(cat "$scratch/calls")"
fi
if [ -x "$scratch/gpu/python3" ]; then
  called "^nccl_check self .*libraries .*$scratch/python/nvidia/cublas/lib:$scratch/elsewhere"
fi
wrote '80;90;100'
wrote "$(git -C "$source" rev-parse HEAD 2>/dev/null || echo unknown)"
mv "$scratch/build.away" "$scratch/build"
mv "$scratch/programs.away" "$scratch/programs"
rm -f "$scratch/gpu/python3"

case="programs that are missing where they are packed"
LEFT_OUT='nccl_check train_gpt_cuda_compare'
gpu 4 "$complete" --arch 90 --pack "$scratch/gpu.tar.gz"
said 'run: nccl without nccl_check: NCCL 2.22 or newer was not found'
tail -n 1 "$scratch/said" | grep -q 'say why: trainer nccl nccl_sums nccl_faults$' ||
  fail "the groups are not named last"
LEFT_OUT=
gpu 0 "$complete" --arch 90,100 plan # as before

case="programs too large to pack"
head -c 26000000 /dev/urandom >"$scratch/programs/bench_cuda"
gpu 1 "$complete" --as-built --pack "$scratch/gpu.tar.gz"
said 'more than 25000000; compile for fewer GPUs'
cp "$scratch/program" "$scratch/programs/bench_cuda"

case="programs that fail and hang"
FAILING='device_check nccl_check'
HANGING='10_one_gpu 12_gpu_processes'
gpu 1 "$complete" --as-built --limit 3 device nccl
said 'run: device_bits: failed, status 1: it "broke" here'
said 'run: nccl train, 2 processes: failed, rank 0 ended with 1: it "broke" here'
said 'run: 10_one_gpu: failed, it took more than 3 s'
said 'run: 12_gpu_processes, 2 processes: failed, rank 0 ended with 124'
said 'run: transfers: ok'
said 'run: nccl_pair, 2 processes: ok'
wrote 'failed'
is_json "$scratch"/results/*.json
FAILING=
HANGING=

case="limits"
gpu 0 "$bare" --list
limits=$(grep '	' "$scratch/said")
for group in contact device trainer sanitizer plan nccl nccl_sums nccl_faults; do
  sum=$(echo "$limits" | sed -n "s/^$group	\([0-9]*\)	.*/\1/p" | sed 's/$/+/' | tr -d '\n')
  [ "$((${sum}0))" -le 580 ] || fail "the limits of $group are ${sum}0 s in all, and it has 580 s"
  [ "$((${sum}0))" -gt 0 ] || fail "$group has no parts"
done
# Those over which ranks meet, or NCCL starts, end by themselves after 60 s, in nccl_check after 40 s.
echo "$limits" | while IFS='	' read -r _ seconds name; do
  case $name in
    12_gpu_processes* | nccl_pair* | nccl_sums* | nccl_to_itself) deadline=60 ;;
    nccl*) deadline=40 ;;
    *) deadline=0 ;;
  esac
  [ "$seconds" -gt "$deadline" ] || fail "$name is ended after $seconds s, before its own deadline"
done

case="a run that ends before all groups"
TAKING_LONG=bench_cuda
for built in --as-built ''; do # a group that begins too late is not built
  # Splitting is wanted: nothing, or one word.
  # shellcheck disable=SC2086
  late 4 $built contact plan nccl trainer
  said 'run: plan: ok'
  said 'run: nccl train, 2 processes: skipped, the 2700 s of the run are over (--within)'
  said 'run: train_gpt: skipped, the 2700 s of the run are over'
  tail -n 1 "$scratch/said" | grep -q 'say why: nccl trainer$' || fail "the groups are not named last"
done
FAILING=bench_cuda
late 1 --as-built plan nccl
said 'run: plan: failed, status 1'
FAILING=

case="a part, processes and a build that the end of a run cuts off"
HANGING='bench_cuda nccl_check'
late 4 --as-built --limit 1 plan
said 'run: plan: skipped, the 2700 s of the run are over'
TAKING_LONG=nccl_check
late 4 --as-built --limit 1 nccl_faults
said 'run: nccl kill, 4 processes: skipped, the 2700 s of the run are over'
HANGING=
TAKING_LONG=cmake
UNBUILDABLE=bench_cuda
late 4 plan
said 'run: plan: skipped, the 2700 s of the run are over'
if grep 'does not build' "$scratch/said"; then
  fail "called a build wrong that had no time"
fi
TAKING_LONG=
UNBUILDABLE=

case="NCCL that does not start"
FAILING=nccl_check
for SAYING in 'communicator 0: it was not made within ranks_settings::init_deadline' \
  'nccl_check self: the communicator does not get ready'; do
  gpu 1 "$complete" --as-built nccl nccl_faults
  said 'run: nccl_self: failed, status 1: '
  said 'run: nccl_pair, 2 processes: skipped, NCCL did not start in nccl_self'
  said 'run: nccl kill, 4 processes: skipped, NCCL did not start in nccl_self'
  said 'run: 12_gpu_processes, 2 processes: skipped, NCCL did not start in nccl_self'
  never_called 'bench_nccl'
done
FAILING=
SAYING=

case="what contact turns off"
OFF='parts late replay revoke'
for groups in '' 'device trainer nccl'; do # in the same run, and in later ones
  # Splitting is wanted: one word is one group.
  # shellcheck disable=SC2086
  gpu 0 "$complete" --as-built $groups
  said 'run: device_bits_lazy_loading: skipped, kernels cannot be loaded late'
  said 'run: nccl lazy_loading, 2 processes: skipped, kernels cannot be loaded late'
  said 'run: nccl replay, 2 processes: skipped'
  said 'run: nccl adopted, 2 processes: skipped'
  said 'run: nccl train, 2 processes: ok'
  called 'device_check bits --whole-gpu rank none'
  called 'train_gpt_cuda .*--whole-gpu rank none'
  OFF=nothing
done
OFF=nccl
gpu 0 "$complete" --as-built contact nccl
said 'run: nccl train, 2 processes: skipped, NCCL does not carry a message between two processes'
OFF=products
gpu 0 "$complete" --as-built contact trainer sanitizer
said 'run: train_gpt: skipped, products of cuBLASLt do not work, see the group contact'
said 'run: train_gpt_compare: skipped, products of cuBLASLt do not work'
said 'run: racecheck trainer: skipped, products of cuBLASLt do not work'
said 'run: racecheck optimizers: ok'
never_called '^train_gpt_cuda'
OFF=product_graphs
gpu 0 "$complete" --as-built contact trainer
for result in train_gpt_replayed train_gpt_at_once; do
  said "run: $result: skipped, products of cuBLASLt cannot be captured"
done
said 'run: train_gpt: ok'
never_called '^train_gpt_cuda .*--replay'
OFF=nothing
gpu 0 "$complete" --as-built contact device
called 'device_check bits rank none'

case="a program that does not build"
UNBUILDABLE=10_one_gpu
gpu 1 "$complete" device
said 'run: 10_one_gpu: failed, it does not build: error: no such thing in 10_one_gpu'
said 'run: device_bits: ok'
never_called '^10_one_gpu'
UNBUILDABLE=

case="a run where an earlier one has left its results"
gpu 0 "$complete" --as-built plan
for name in '' -2 -3; do
  ls "$scratch"/results/*-plan$name.json "$scratch"/results/*-plan$name.md \
    "$scratch"/results/*-plan$name-logs.tar.gz >/dev/null || fail "did not keep results, or did not write '$name'"
  run_gpu "$complete" --as-built plan >"$scratch/said" 2>&1 || fail "did not end well"
done

case="a program that prints what is no text"
FAILING=bench_cuda
for SAYING in "$(printf 'bad \377\376')" "$(printf 'cut off \303')" "$(printf 'a bell \007 and "quotes"')"; do
  gpu 1 "$complete" --as-built plan
  said 'run: plan: failed, status 1: '
  is_json "$scratch"/results/*.json
  if LC_ALL=C grep -q '[^ -~]' "$scratch"/results/*.json; then
    fail "wrote bytes that are no text"
  fi
done
FAILING=
SAYING=

case="a program that the system kills"
KILLED=bench_cuda
gpu 1 "$complete" --as-built plan
said 'run: plan: failed, status 137 (137: killed, as where memory is short)'
KILLED=

case="nvidia-smi that does not answer, and one that warns"
SMI=hangs
gpu 0 "$complete" --as-built device
[ "$(grep -c 'nvidia-smi --query' "$scratch/calls")" -eq 1 ] || fail "asked nvidia-smi again"
SMI=warns
gpu 0 "$complete" --as-built plan
wrote '1980 MHz'
if grep -q infoROM "$scratch"/results/*.json; then
  fail "took a warning for a value"
fi
SMI=

case="a run that nobody watches any more"
rm -rf "$scratch/results"
run_gpu "$complete" --as-built device plan 2>&1 | head -n 1 >/dev/null
ls "$scratch"/results/*-logs.tar.gz >/dev/null || fail "did not go on"
grep -q '"part": "plan", "result": "ok"' "$scratch"/results/*.json || fail "did not run all"

case="a run that is cut off"
rm -rf "$scratch/results"
HANGING=bench_cuda
PATH=$complete sh "$source/run" gpu --results "$scratch/results" --build "$scratch/build" plan \
  >"$scratch/said" 2>&1 &
run=$!
tries=0
until cat "$scratch"/results/*-logs/figures-plan.md 2>/dev/null | grep -q speed; do
  tries=$((tries + 1))
  if [ "$tries" -gt 600 ]; then
    fail "did not start"
  fi
  sleep 0.1
done
kill "$run"
status=0
wait "$run" || status=$?
[ "$status" -eq 1 ] || fail "ended with $status, not 1"
wrote 'the run was cut off'
wrote 'speed'
is_json "$scratch"/results/*.json
HANGING=

case="the model of CUDA is not there"
gpu 3 "$complete" --dry
said "the tests' model of CUDA is not built"

# ---- functions ----------------------------------------------------------------------------------

# is EXPECTED TEXT
is() {
  [ "$1" = "$2" ] || fail "'$2' is not '$1'"
}

case="functions"
# shellcheck source=bench/cuda/gpu_machine.sh
. "$source/bench/cuda/gpu_machine.sh"
CUDACXX=$scratch/cuda/bin/nvcc
is 90 "$(arch_for 9.0)"
is 90-virtual "$(arch_for 9.9)"
is 100-virtual "$(arch_for 12.0)"
is native "$(arch_for '')"
is native "$(arch_for 5.0)"
is "Fake 100" "$(field name '{"name": "Fake 100", "devices": 3}')"
is 3 "$(field devices '{"name": "Fake 100", "devices": 3}')"
if command -v python3 >/dev/null; then
  mkdir -p "$scratch/wheels/nvidia/nccl/include" "$scratch/wheels/nvidia/nccl/lib"
  touch "$scratch/wheels/nvidia/nccl/include/nccl.h"
  is "$scratch/wheels/nvidia/nccl" "$(PYTHONPATH=$scratch/wheels nccl_wheel)"
fi
echo "all is well"
