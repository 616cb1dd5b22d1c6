# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=sh disable=SC2034,SC2154
# What `run gpu` writes down. Functions only; run_gpu.sh reads them. The two files of results are
# written anew after each part, so a run that is cut off leaves what it has. Whole outputs are a third.

# plain: of what comes in, what is text in ASCII; a byte that is not becomes '?', a control character nothing
plain() {
  LC_ALL=C tr '\200-\377' '?' | LC_ALL=C tr -cd '\n\t -~'
}

# brief TEXT: its start, on one line
brief() {
  printf '%s' "$1" | plain | tr '\n\t' '  ' | cut -c 1-400
}

# last_line LOG: what a program said last, if it is not too long
last_line() {
  tail -c 1000 "$1" | tail -n 1 | tr -d '\000'
}

# say TEXT...: to whoever watches. Nobody may: a terminal that is gone must not end the run.
say() {
  echo "$*" >&2 || exec 2>/dev/null
}

# show LOG: to whoever watches; not all of what is very long
show() {
  tail -c 100000 "$1" | sed 's/^/  /' >&2 || exec 2>/dev/null
}

# quoted TEXT: as a string of JSON
quoted() {
  printf '%s\n' "$(brief "$1")" | sed 's/ $//; s/[\\"]/\\&/g; s/.*/"&"/'
}

# slug TEXT: as a part of a file's name
slug() {
  printf '%s' "$1" | tr '[:upper:]' '[:lower:]' | tr -cs '[:lower:][:digit:]' '-' | sed 's/^-*//; s/-*$//'
}

# gpu_state: clock, power and temperature now
gpu_state() {
  smi clocks.sm,power.draw,temperature.gpu
}

# describe_tree: sets commit and tree
describe_tree() {
  commit=${ZBPP_COMMIT:-$(git -c safe.directory="*" -C "$root" rev-parse HEAD 2>/dev/null || echo unknown)}
  tree=unknown
  if is_packed; then # what lies around it is something else
    tree=${commit##*, }
    commit=${commit%%, *}
  elif changes=$(git -c safe.directory="*" -C "$root" status --porcelain 2>/dev/null); then
    tree=${changes:+changed}
    tree=${tree:-clean}
  fi
}

# begin_results FOLDER: from here on there are results
begin_results() {
  day=$(date -u +%F)
  describe_tree
  toolkit=$(field runtime_cuda "$device") # of a pack: what it was compiled with
  toolkit=${toolkit:-unknown}
  if [ -n "${CUDACXX:-}" ]; then
    toolkit=$(toolkit_version)
  fi
  nccl=
  mkdir -p "$1"
  first=$(CDPATH='' cd -- "$1" && pwd)/$day-gpu-$(slug "$(field name "$device")")$asked
  file=$first
  number=1
  # What an earlier run left stays; making the folder is what claims a name.
  while [ -e "$file.json" ] || [ -e "$file-logs.tar.gz" ] || ! mkdir "$file-logs" 2>/dev/null; do
    number=$((number + 1))
    if [ "$number" -gt 999 ] || [ ! -w "$1" ]; then
      stop 2 "nothing can be written in $1; say where with --results DIR"
    fi
    file=$first-$number
  done
  logs=$file-logs
  : >"$logs/parts.json"
  : >"$logs/parts.md"
  : >"$logs/outputs.md"
  begin_files
}

# begin_files: what stands at the start of both files
begin_files() {
  driver=$(smi driver_version)
  most_sm_clock=$(smi clocks.max.sm)
  most_memory_clock=$(smi clocks.max.mem)
  power_limit=$(smi power.limit)
  model=false
  if [ "$dry" = yes ]; then
    model=true
  fi
  cat >"$logs/head.json" <<END
{"date": "$day", "model": $model, "commit": $(quoted "$commit"), "tree": "$tree",
 "device": $device,
 "found_by": $(quoted "$found_by"), "driver": $(quoted "$driver"), "power_limit": $(quoted "$power_limit"),
 "most_sm_clock": $(quoted "$most_sm_clock"), "most_memory_clock": $(quoted "$most_memory_clock"),
 "toolkit": $(quoted "$toolkit"), "arch": $(quoted "$arch"),
END
  {
    echo "# $day, $(field name "$device")"
    echo
    if [ "$dry" = yes ]; then
      echo "**Figures of a model of CUDA, from \`./run gpu --dry\`: they say nothing about any GPU.**"
      echo
    fi
    cat <<END
Written by \`./run gpu\`; ${file##*/}.json holds the same for programs.

Commit $commit, tree $tree. GPU found by $found_by: \`$device\`. Driver $driver, CUDA $toolkit, compiled
for $arch. Highest clocks: $most_sm_clock, memory $most_memory_clock. Power limit: $power_limit.

END
    if [ -s "$build/missing" ]; then
      sed 's/^/- /' "$build/missing"
      echo
    fi
    echo "| group | part | result | why | seconds | clock, power, temperature before | after |"
    echo "|---|---|---|---|---|---|---|"
  } >"$logs/head.md"
}

# note PART RESULT WHY [SECONDS [STATE_BEFORE]]: the result of a part
note() {
  say "run: $1: $2${3:+, $(brief "$3")}"
  result=$2
  if [ "$2" = failed ]; then
    failed=yes
  fi
  after=$(gpu_state)
  before=${5:-$after}
  comma=
  if [ -s "$logs/parts.json" ]; then
    comma=,
  fi
  cat >>"$logs/parts.json" <<END
$comma
 {"group": "$group", "part": $(quoted "$1"), "result": "$2", "why": $(quoted "$3"), "seconds": ${4:-0},
  "gpu_before": $(quoted "$before"), "gpu_after": $(quoted "$after")}
END
  why=$(brief "$3" | tr '|' '/')
  echo "| $group | $1 | $2 | $why | ${4:-0} | $before | $after |" >>"$logs/parts.md"
  write_results
}

# keep_output PART LOG: the end of what a part said
keep_output() {
  if [ -z "$nccl" ]; then # NCCL says so itself, by NCCL_DEBUG=WARN
    nccl=$(sed -n 's/.*NCCL version \([0-9][0-9.]*\).*/\1/p; s/^NCCL \([0-9.]*\)$/\1/p' "$2" | head -n 1)
  fi
  {
    printf '\n## Output of %s\n\n```text\n' "$1"
    tail -n 200 "$2" | tail -c 30000 | plain
    printf '\n```\n'
  } >>"$logs/outputs.md"
}

write_json() {
  cat "$logs/head.json"
  printf ' "nccl": "%s", "parts": [' "$nccl"
  cat "$logs/parts.json"
  printf '],\n "figures": {'
  comma=
  for table in "$logs"/figures-*.json; do
    if [ -s "$table" ]; then
      name_of_table=${table##*/figures-}
      printf '%s\n"%s": ' "$comma" "${name_of_table%.json}"
      cat "$table"
      comma=,
    fi
  done
  echo '}}'
}

write_markdown() {
  cat "$logs/head.md" "$logs/parts.md"
  if [ -n "$nccl" ]; then
    printf '\nNCCL %s.\n' "$nccl"
  fi
  for table in "$logs"/figures-*.md; do
    if [ -s "$table" ]; then
      cat "$table"
    fi
  done
  cat "$logs/outputs.md"
}

# write_results: both files, each whole at any time
write_results() {
  write_json >"$logs/new.json"
  mv "$logs/new.json" "$file.json"
  write_markdown >"$logs/new.md"
  mv "$logs/new.md" "$file.md"
}

# pack_logs: the folder of logs as one file
pack_logs() {
  if tar -C "${logs%/*}" -czf "$logs.tar.gz" "${logs##*/}"; then
    rm -rf "$logs"
  else
    say "run: the outputs could not be packed; they are in $logs"
  fi
}
