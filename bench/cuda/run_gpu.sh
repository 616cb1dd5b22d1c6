#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# run_gpu.sh ROOT CXX [ARGUMENT...]: what `./run gpu` does, ARGUMENT being its arguments (`./run help`)
# and CXX the C++ compiler. Exit status: 0 all that ran is well; 1 something failed; 2 wrong arguments,
# or CMake failed; 3 there is no GPU, or something without which nothing can be built; 4 nothing failed,
# and some groups are not whole, since something is missing for them or the time was over.
set -eu
root=$1
cxx=$2
shift 2
# shellcheck source=bench/cuda/gpu_machine.sh
. "$root/bench/cuda/gpu_machine.sh"
# shellcheck source=bench/cuda/gpu_results.sh
. "$root/bench/cuda/gpu_results.sh"
# shellcheck source=bench/cuda/gpu_groups.sh
. "$root/bench/cuda/gpu_groups.sh"
# shellcheck source=bench/cuda/gpu_pack.sh
. "$root/bench/cuda/gpu_pack.sh"

# In the order of what one learns first from one GPU in three quarters of an hour.
all_groups="contact device trainer sanitizer plan nccl nccl_sums nccl_faults"
group_seconds=580 # of each group, its build included: ten minutes, less what its end takes

# ---- arguments ----------------------------------------------------------------------------------

# folder OPTION FOLDER: its whole path; made if it is not there
folder() {
  if [ -z "$2" ] || ! mkdir -p "$2" 2>/dev/null; then
    stop 2 "$1 takes a folder, not '$2'"
  fi
  (CDPATH='' cd -- "$2" && pwd)
}

read_arguments() {
  groups=
  arch=
  boost=
  build=
  results=
  limit=
  within=
  pack=
  listing=no
  full=no
  dry=no
  as_built=no
  whole=
  while [ $# -gt 0 ]; do
    value=${2:-}
    case $1 in
      --arch)
        case $value in
          '' | *[!0-9a-z,-]*) stop 2 "--arch takes architectures such as 90 or 90,100, not '$value'" ;;
        esac
        arch=$(printf '%s' "$value" | tr , ';')
        ;;
      --boost)
        if [ ! -e "$value/boost/version.hpp" ]; then
          stop 2 "--boost takes a folder with boost/version.hpp in it, not '$value'"
        fi
        boost=$(folder --boost "$value")
        ;;
      --build) build=$(folder --build "$value") ;;
      --results) results=$(folder --results "$value") ;;
      --limit | --within)
        case $value in
          '' | 0* | *[!0-9]* | ?????????*) stop 2 "$1 takes a number of seconds from 1 to 99999999, not '$value'" ;;
        esac
        case $1 in
          --limit) limit=$value ;;
          --within) within=$value ;;
        esac
        ;;
      --pack)
        if [ -z "$value" ] || [ -d "$value" ] || [ ! -d "$(dirname -- "$value")" ]; then
          stop 2 "--pack takes a file to write, such as gpu.tar.gz, not '$value'"
        fi
        pack=$value
        ;;
      --list | --full | --dry | --as-built | --whole-gpu) ;;
      *)
        case " $all_groups " in
          *" $1 "*) groups="$groups $1" ;;
          *)
            stop 2 "gpu takes --arch LIST, --boost DIR, --build DIR, --results DIR, --limit SECONDS," \
              "--within SECONDS, --pack FILE, --list, --dry, --full, --as-built, --whole-gpu and groups ($all_groups), not '$1'"
            ;;
        esac
        ;;
    esac
    case $1 in
      --list) listing=yes ;;
      --full) full=yes ;;
      --dry) dry=yes ;;
      --as-built) as_built=yes ;;
      --whole-gpu) whole=--whole-gpu ;;
      --*) shift ;;
    esac
    shift
  done
  settle_arguments
}

settle_arguments() {
  asked=$(printf '%s' "$groups" | tr ' ' -)
  groups=${groups:-$all_groups}
  if [ "$full,$dry" = yes,no ]; then
    stop 2 "--full goes with --dry; a GPU gets full arguments anyway"
  fi
  if [ "$dry" = no ]; then
    build=${build:-$root/build/gpu}
    results=${results:-$root/bench/results}
    list=gpu_programs
    return 0
  fi
  build=${build:-$root/build/gpu_model}
  case $results in
    "$root"/bench/results | "$root"/bench/results/*)
      stop 2 "--dry measures a model of CUDA; give --results another folder than $results"
      ;;
  esac
  results=${results:-$(mktemp -d)}
  list=gpu_models
}

# ---- what is there ------------------------------------------------------------------------------

# look_around: finds compilers and the GPU, and sets device (JSON), found_by and arch
look_around() {
  nvcc=$(find_nvcc)
  if [ -n "$nvcc" ]; then
    use_nvcc "$nvcc"
  fi
  if [ "$dry$pack" = no ]; then
    look_for_traces
  fi
  if [ "$as_built" = no ]; then
    look_for_compilers
  fi
  if [ "$dry" = yes ]; then
    find_libraries
    found_by="nothing: it is a model"
    arch=${arch:-90}
    return 0
  fi
  look_for_nccl
  if [ -n "$pack" ]; then
    arch=${arch:-"80;90;100"} # whichever the other machine has
  else
    find_libraries
    look_for_gpu
  fi
}

look_for_compilers() {
  if [ -z "$cxx" ]; then
    stop 3 "g++ 12 or newer is missing (Debian and Ubuntu: apt-get install g++-12); nothing was built or measured"
  fi
  if ! has_cmake; then
    stop 3 "CMake 3.24 or newer is missing (pip install cmake, and put it on the PATH); nothing was built or measured"
  fi
  if [ -z "$nvcc" ] && [ "$dry" = no ]; then
    stop 3 "nvcc is missing: put it on the PATH, or set CUDA_HOME to the folder of the CUDA Toolkit" \
      "(12.8 or newer); nothing was built or measured"
  elif [ -z "$nvcc" ]; then
    echo "run: nvcc is not there, so what is for GPUs is not compiled" >&2
  fi
}

# look_for_traces: sets found_by; without any, and without nvcc, there is nobody to ask
look_for_traces() {
  found_by=$(how_gpus_show)
  if [ -z "$found_by" ] && [ -z "$nvcc" ] && [ "$as_built" = no ]; then
    stop 3 "there is no GPU here (nvidia-smi lists none, there is no /dev/nvidia0, and CUDA cannot be" \
      "asked without nvcc); nothing was built or measured"
  fi
}

look_for_gpu() {
  if ! device=$(describe_device 2>"$scratch/why"); then
    if [ "$as_built" = no ] && [ ! -x "$scratch/describe_gpu" ]; then
      stop 3 "nvcc ($CUDACXX, CUDA $(toolkit_version)) compiles nothing with $cxx:" \
        "$(grep -m 1 -i error "$scratch/why" || tail -n 1 "$scratch/why"); nothing was built or measured"
    fi
    stop 3 "there is no GPU here that CUDA can use (${found_by:+$found_by shows one; }$(tail -n 1 "$scratch/why"));" \
      "nothing was built or measured"
  fi
  found_by=${found_by:-a program that asks CUDA}
  echo "run: $(field name "$device"), found by $found_by" >&2
  if [ "$as_built" = yes ]; then
    arch=$(cat "$build/arch" 2>/dev/null || echo unknown)
  elif [ -z "$arch" ]; then
    arch=$(arch_for "$(field compute_capability "$device")")
  fi
}

# describe_device: a line of JSON, by a small program that asks CUDA
describe_device() {
  if [ "$as_built" = yes ]; then
    describer=$(program "$list" describe_gpu)
  else
    describer=$scratch/describe_gpu
    timeout 120 "$CUDACXX" -ccbin "$cxx" "$root/bench/cuda/describe_gpu.cpp" -o "$describer" >&2 || return 1
  fi
  timeout -k 5 60 "$describer" || {
    [ $? -lt 124 ] || echo "describe_gpu did not answer within 60 s: the GPU or its driver hangs" >&2
    return 1
  }
}

look_for_nccl() {
  if [ -z "${NCCL_ROOT:-}" ] && ! has_system_nccl; then
    wheel=$(nccl_wheel)
    if [ -n "$wheel" ]; then
      NCCL_ROOT=$wheel
      export NCCL_ROOT
      echo "run: NCCL of the Python package in $wheel" >&2
    fi
  fi
}

# find_libraries: makes programs find those of CUDA and NCCL in Python packages, and last those packed
find_libraries() {
  blanks=$IFS
  IFS=$newline
  packages=
  if is_packed; then # what is built here finds what it was linked with
    packages=$(package_libraries)
  fi
  for folder in ${NCCL_ROOT:+"$NCCL_ROOT/lib"} $packages "$build/lib"; do
    if [ -d "$folder" ]; then
      LD_LIBRARY_PATH=${LD_LIBRARY_PATH:+$LD_LIBRARY_PATH:}$folder
    fi
  done
  IFS=$blanks
  export LD_LIBRARY_PATH="${LD_LIBRARY_PATH:-}"
}

# ---- time and programs that run -----------------------------------------------------------------

now() {
  date +%s
}

# seconds_left: of the group; at least 1, for a `timeout` of 0 means none
seconds_left() {
  left=$((group_end - $(now)))
  echo $((left > 0 ? left : 1))
}

# seconds_for SECONDS: what a part may take that asks for so many
seconds_for() {
  allowed=$(seconds_left)
  for most in "$1" ${limit:+"$limit"}; do
    if [ "$most" -lt "$allowed" ]; then
      allowed=$most
    fi
  done
  echo "$allowed"
}

# wait_for PID: its exit status, in status. A signal to this script ends both: it would wait for a
# program in the foreground.
wait_for() {
  status=0
  children=$1
  wait "$1" || status=$?
  children=
}

# ---- build --------------------------------------------------------------------------------------

# configure: makes the build folder, unless it was made the same way before; what CMake leaves out is
# told in a line each
configure() {
  preset=gpu
  if [ "$dry" = yes ]; then
    preset=gpu_model
  fi
  set -- -B "$build" "-DCMAKE_CXX_COMPILER=$cxx" "-DCMAKE_CUDA_ARCHITECTURES=$arch"
  if ! command -v ninja >/dev/null; then
    set -- "$@" -G "Unix Makefiles"
  fi
  if [ -n "$boost" ]; then
    set -- "$@" "-DBoost_INCLUDE_DIR=$boost" -DBoost_NO_BOOST_CMAKE=ON
  fi
  mkdir -p "$build"
  log=$build/configure.log
  how="$preset $* ${CUDACXX:-} ${NCCL_ROOT:-} ${CMAKE_PREFIX_PATH:-}"
  # What was missing may be there by now.
  if [ "$how" != "$(cat "$build/configured" 2>/dev/null || true)" ] || [ -s "$build/missing" ]; then
    rm -f "$build/configured"
    if ! (cd "$root" && cmake --preset "$preset" "$@") >"$log" 2>&1; then
      cat "$log" >&2
      stop 2 "CMake failed; the lines above say why"
    fi
    echo "$how" >"$build/configured"
  fi
  sed -n '/ is OFF$/d; s/^-- zbpp: \(without .*\)/\1/p' "$log" >"$build/missing"
  sed 's/^/run: /' "$build/missing" >&2
}

# target LIST PROGRAM, program LIST PROGRAM: its target and its path; nothing if CMake left it out
target() {
  sed -n 1p "$build/$1/$2" 2>/dev/null || true
}
program() {
  path_in_build=$(sed -n 2p "$build/$1/$2" 2>/dev/null || true)
  printf '%s' "${path_in_build:+$build/$path_in_build}"
}

# make_targets LOG TARGET...: builds them in what is left of the group's time
make_targets() {
  log=$1
  shift
  timeout -k 10 "$(seconds_left)" \
    cmake --build "$build" -j "$(nproc)" --target "$@" -- "$keep_going" >"$log" 2>&1 &
  wait_for $!
  [ "$status" -eq 0 ]
}

# build_all: builds all programs of the list, in whatever time that takes
build_all() {
  if [ "$as_built" = yes ]; then
    return 0
  fi
  cmake --build "$build" -j "$(nproc)" --target "$list" >"$build/build.log" 2>&1 &
  wait_for $!
  if [ "$status" -ne 0 ]; then
    cat "$build/build.log" >&2
    stop 2 "the programs do not build; the lines above say why"
  fi
}

# build_group: builds what the group needs; what does not build takes nothing else with it
build_group() {
  unbuilt=
  targets=
  keep_going=-k
  if [ -e "$build/build.ninja" ]; then
    keep_going=-k0
  fi
  for each in $(programs_of "$group"); do
    targets="$targets $(target "$list" "$each")"
    if [ "$dry" = yes ]; then
      targets="$targets $(target gpu_programs "$each")"
    fi
  done
  # Splitting is wanted: one word is one target.
  # shellcheck disable=SC2086
  set -- $targets
  name="build of $group"
  if [ $# -eq 0 ] || make_targets "$logs/build-$group.log" "$@"; then
    return 0
  fi
  for each in "$@"; do
    if has_run_out || make_targets "$logs/build-$each.log" "$each"; then
      continue # each part says itself where the time of the run is over
    fi
    unbuilt="$unbuilt $each"
    if [ "$(now)" -lt "$group_end" ]; then
      note "$each" failed "it does not build: $(grep -m 1 -i error "$log" || tail -n 1 "$log")"
    elif ! has_run_out; then
      note "$each" failed "the time of the group is over, and it is not built yet; run the group again"
    fi
  done
}

# why_left_out PROGRAM: the reason that CMake gave
why_left_out() {
  case $1 in
    12_gpu_processes | *nccl*) what='component \(asio\|nccl\)' ;;
    train_gpt_cuda_compare) what='examples\/train_gpt' ;;
    train_gpt_cuda | contact_cublas) what='train_gpt_cuda' ;;
    *) what='bench\/cuda\|examples on GPUs\|component cuda' ;;
  esac
  why=$(sed -n "s/^without \($what\)[:,] *//p" "$build/missing" 2>/dev/null | head -n 1)
  echo "${why:-it was not built}"
}

# ---- parts --------------------------------------------------------------------------------------

# has_run_out: is the time of the whole run over?
has_run_out() {
  [ -n "$run_end" ] && [ "$(now)" -ge "$run_end" ]
}

# ran_out PART [SECONDS STATE]: the same; then notes that the part has no result for that reason
ran_out() {
  has_run_out || return 1
  note "$1" skipped "the $within s of the run are over (--within)" "${2:-}" "${3:-}"
  lack
}

# can_run PART PROGRAM: is it built, is there time, and can it go well? Else notes why not.
can_run() {
  if [ "$listing" = yes ]; then
    printf '%s\t%s\t%s\n' "$group" "$seconds" "$1"
    return 1
  fi
  if ran_out "$1"; then
    return 1
  fi
  path=$(program "$list" "$2")
  case " $unbuilt " in
    *" $(target "$list" "$2") "*) path= ;;
  esac
  if [ -z "$path" ] || [ ! -x "$path" ]; then
    not_there "$1" "$2"
    return 1
  fi
  if [ "$(now)" -ge "$group_end" ]; then
    note "$1" failed "the $group_seconds s of the group are over"
    return 1
  fi
  case $group,$unmade_in in
    nccl*,?*)
      note "$1" skipped "NCCL did not start in $unmade_in"
      return 1
      ;;
  esac
  if why=$(turned_off "$1"); then
    note "$1" skipped "$why, see the group contact"
    return 1
  fi
}

# turned_off PART: why it is not run, by what does not work here
turned_off() {
  case " $off /$group/$1" in
    *" nccl "*/nccl*) echo "NCCL does not carry a message between two processes" ;;
    *" late "*/*lazy_loading*) echo "kernels cannot be loaded late" ;;
    *" products "*/trainer/* | *" products "*/sanitizer/*trainer) echo "products of cuBLASLt do not work" ;;
    *" product_graphs "*/train_gpt_replayed | *" product_graphs "*/train_gpt_at_once) echo "products of cuBLASLt cannot be captured" ;;
    *" replay "*/"nccl replay"*) echo "messages of NCCL cannot be captured" ;;
    *" revoke "*/"nccl adopted"*) echo "communicators are not revoked in time" ;;
    *) return 1 ;;
  esac
}

# see_start_of_nccl: where the part that ended could not make communicators, no other part will
see_start_of_nccl() {
  if [ "$result" = failed ] && grep -q -e 'was not made within' -e 'does not get ready' "$log"; then
    unmade_in=$name
  fi
}

# not_there PART PROGRAM: notes why it cannot run, and whether it compiles at least
not_there() {
  own=$(program gpu_programs "$2")
  case " $unbuilt " in
    *" $2 "*) own= ;;
  esac
  if [ "$dry" = yes ] && [ -n "$own" ] && [ -x "$own" ]; then
    note "$1" skipped "it compiles, and the model of CUDA cannot run it"
  else
    note "$1" skipped "$(why_left_out "$2")"
    lack_program
  fi
}

# lack: the group is not whole
lack() {
  case "$lacking " in
    *" $group "*) ;;
    *) lacking="$lacking $group" ;;
  esac
}

# lack_program: the same where a program is not built; not all have a model of CUDA
lack_program() {
  [ "$dry" = yes ] || lack
}

# part NAME SECONDS PROGRAM [ARGUMENT...]: runs a program of the list; its output goes to a log
part() {
  name=$1
  seconds=$2
  if can_run "$1" "$3"; then
    shift 3
    run_part "$path" "$@"
  fi
}

# run_part COMMAND...: the part `name`, in at most `seconds`
run_part() {
  say "run: $name"
  log=$logs/part-$(slug "$name").log
  state=$(gpu_state)
  allowed=$(seconds_for "$seconds")
  start=$(now)
  timeout -k 10 "$allowed" "$@" >"$log" 2>&1 &
  wait_for $!
  took=$(($(now) - start))
  show "$log"
  keep_output "$name" "$log"
  case $status in
    0) note "$name" ok "" "$took" "$state" ;;
    77) note "$name" skipped "$(last_line "$log")" "$took" "$state" ;;
    124 | 137) note_ended ;;
    *) note "$name" failed "status $status: $(last_line "$log")" "$took" "$state" ;;
  esac
  see_start_of_nccl
}

# note_ended: the result of a part that did not end by itself
note_ended() {
  if [ "$took" -lt "$allowed" ]; then
    note "$name" failed "status $status (137: killed, as where memory is short): $(last_line "$log")" "$took" "$state"
  elif ! ran_out "$name" "$took" "$state"; then
    note "$name" failed "it took more than $allowed s" "$took" "$state"
  fi
}

# figures NAME SECONDS PROGRAM [ARGUMENT...]: a part that writes tables
figures() {
  name=$1
  seconds=$2
  if can_run "$1" "$3"; then
    shift 3
    # Splitting is wanted: nothing, or one word.
    # shellcheck disable=SC2086
    run_part "$path" "$@" $short --json "$logs/figures-$name.json" --markdown "$logs/figures-$name.md"
  fi
}

# processes NAME RANKS SECONDS PROGRAM [ARGUMENT...]: one process per rank; rank 1 ends with
# rank_1_ends_with. On the model of CUDA one program is all ranks, and ends well if they do as they should.
processes() {
  name="$1, $2 processes"
  ranks=$2
  seconds=$3
  if can_run "$name" "$4"; then
    shift 4
    if [ "$dry" = yes ]; then
      run_part env WORLD_SIZE="$ranks" "$path" "$@"
    else
      run_processes "$path" "$@"
    fi
  fi
}

# run_processes COMMAND...: tries another port where somebody listens already
run_processes() {
  say "run: $name"
  state=$(gpu_state)
  start=$(now)
  for attempt in 1 2 3; do
    start_processes "$@"
    judge_processes
    if [ -z "$wrong" ] || ! grep -q 'cannot listen' "$logs/rank0.log"; then
      break
    fi
  done
  took=$(($(now) - start))
  log=$logs/part-$(slug "$name").log
  cat "$logs"/rank[0-9]*.log >"$log"
  show "$log"
  keep_output "$name" "$log"
  if [ -z "$wrong" ]; then
    note "$name" ok "" "$took" "$state"
  elif [ "$was_ended" = no ] || ! ran_out "$name" "$took" "$state"; then
    note "$name" failed "$wrong" "$took" "$state"
  fi
  see_start_of_nccl
}

# start_processes COMMAND...: all ranks, in the background. Where ranks share a GPU, NCCL takes each for
# a machine of its own and uses sockets: good for correctness, not for speed.
start_processes() {
  ZBPP_TOKEN=$(od -An -N32 -tx1 /dev/urandom | tr -d ' \n')
  MASTER_ADDR=127.0.0.1
  MASTER_PORT=$((20000 + ($$ * 31 + attempt * 977 + $(now)) % 12000)) # below what the kernel gives away
  export ZBPP_TOKEN MASTER_ADDR MASTER_PORT
  allowed=$(seconds_for "$seconds")
  rm -f "$logs"/rank[0-9]*.log
  children=
  rank=0
  while [ "$rank" -lt "$ranks" ]; do
    (
      if [ "$gpus" -lt "$ranks" ]; then
        export NCCL_HOSTID="zbpp-$rank" NCCL_SOCKET_IFNAME=lo NCCL_IB_DISABLE=1 NCCL_MNNVL_ENABLE=0
      fi
      export RANK="$rank" WORLD_SIZE="$ranks" LOCAL_RANK="$rank"
      exec timeout -k 10 "$allowed" "$@"
    ) >"$logs/rank$rank.log" 2>&1 &
    children="$children $!"
    rank=$((rank + 1))
  done
}

# judge_processes: waits for all, and says in wrong what is not as it should be, and in was_ended whether one
# took too long
judge_processes() {
  wrong=
  was_ended=no
  rank=0
  for child in $children; do
    status=0
    wait "$child" || status=$?
    expected=0
    if [ "$rank" -eq 1 ]; then
      expected=$rank_1_ends_with
    fi
    if [ "$status" -ne "$expected" ]; then
      wrong="${wrong}rank $rank ended with $status: $(last_line "$logs/rank$rank.log"); "
      case $status in
        124 | 137) was_ended=yes ;;
      esac
    fi
    rank=$((rank + 1))
  done
  children=
}

# ---- all of it ----------------------------------------------------------------------------------

# run_group GROUP: builds and runs it, and writes its results
run_group() {
  group=$1
  group_end=$((${began:-$(now)} + group_seconds))
  began= # what goes before the first group counts as its own
  if [ -n "$run_end" ] && [ "$run_end" -lt "$group_end" ]; then
    group_end=$run_end
  fi
  unbuilt=
  if [ "$as_built$listing" = nono ] && [ "$(now)" -lt "$group_end" ]; then
    build_group
  fi
  "group_$group"
}

run_groups() {
  for each_group in $groups; do
    run_group "$each_group"
  done
}

# cut_off: ends what runs, and keeps what is known
cut_off() {
  trap '' HUP INT TERM
  say "run: cut off; what is known is kept"
  : >"$scratch/smi_hangs" # whoever ends this may not wait
  for child in $children; do
    kill "$child" 2>/dev/null || true
  done
  note "${name:-build}" failed "the run was cut off"
  pack_logs
  exit 1
}

# finish: names in the last line what is not whole; its status is that of the run
finish() {
  if [ -n "$lacking" ]; then
    say "run: these groups are not whole, and the lines above say why:$lacking"
  fi
  if [ "$failed" = yes ]; then
    return 1
  elif [ -n "$lacking" ]; then
    return 4
  fi
}

# describe_model: sets device, from a program on the model of CUDA
describe_model() {
  describer=$(program "$list" describe_gpu)
  if [ -z "$describer" ]; then
    stop 3 "the tests' model of CUDA is not built in $build; it needs Catch2 and the headers of CUDA and NCCL"
  fi
  if [ "$as_built" = no ]; then
    cmake --build "$build" -j "$(nproc)" --target "$(target gpu_models describe_gpu)" >"$build/describe.log" 2>&1 || {
      cat "$build/describe.log" >&2
      stop 2 "the model of CUDA does not build; the lines above say why"
    }
  fi
  device=$("$describer")
}

main() {
  # All streams of a plan get hardware queues of their own, and no kernel is loaded while others run.
  CUDA_DEVICE_MAX_CONNECTIONS=32
  CUDA_MODULE_LOADING=EAGER
  NCCL_DEBUG=${NCCL_DEBUG:-WARN} # what NCCL says itself of a failure
  export CUDA_DEVICE_MAX_CONNECTIONS CUDA_MODULE_LOADING NCCL_DEBUG
  began=$(now)
  children=
  name=
  failed=no
  short=
  logs=
  unmade_in=
  lacking=
  off=
  scratch=$(mktemp -d)
  trap 'rm -rf "$scratch"' EXIT
  read_arguments "$@"
  run_end=${within:+$((began + within))}
  if [ "$listing" = yes ]; then
    run_groups
    return 0
  fi
  look_around
  if [ "$as_built" = no ]; then
    configure
  fi
  if [ -n "$pack" ]; then
    build_all
    pack "$pack"
    finish
    return
  fi
  if [ "$dry" = yes ]; then
    describe_model
    if [ "$full" = no ]; then
      short=--short
    fi
  fi
  gpus=$(field devices "$device")
  gpu_id=$(field pci "$device") # that of CUDA, which may be another one than nvidia-smi's first
  begin_results "$results"
  trap cut_off HUP INT TERM
  trap '' PIPE
  heed_contact "$build/contact"
  run_groups
  pack_logs
  say "run: wrote $file.md, $file.json and $logs.tar.gz"
  finish
}

main "$@"
