# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=sh disable=SC2034,SC2154
# What `run gpu` writes down. Functions only; run_gpu.sh reads them. The two files of results are
# written anew after each part, so a run that is cut off leaves what it has. Whole outputs are a third.

# quoted TEXT: as a string of JSON
quoted() {
  printf '%s\n' "$1" | tr '\n\t' '  ' | sed 's/[[:cntrl:]]//g; s/ $//; s/[\\"]/\\&/g; s/.*/"&"/'
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
  commit=${ZBPP_COMMIT:-$(git -C "$root" rev-parse HEAD 2>/dev/null || echo unknown)}
  tree=unknown
  if changes=$(git -C "$root" status --porcelain 2>/dev/null); then
    tree=${changes:+changed}
    tree=${tree:-clean}
  fi
}

# begin_results FOLDER: from here on there are results
begin_results() {
  day=$(date -u +%F)
  describe_tree
  toolkit=unknown
  if [ -n "${CUDACXX:-}" ]; then
    toolkit=$(toolkit_version)
  fi
  nccl=
  mkdir -p "$1"
  file=$(CDPATH='' cd -- "$1" && pwd)/$day-gpu-$(slug "$(field name "$device")")$asked
  logs=$file-logs
  rm -rf "$logs" "$logs.tar.gz"
  mkdir "$logs"
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
  echo "run: $1: $2${3:+, $3}" >&2
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
  why=$(printf '%s' "$3" | tr '\n|' ' /')
  echo "| $group | $1 | $2 | $why | ${4:-0} | $before | $after |" >>"$logs/parts.md"
  write_results
}

# keep_output PART LOG: the end of what a part said
keep_output() {
  {
    printf '\n## Output of %s\n\n```text\n' "$1"
    tail -n 60 "$2"
    echo '```'
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
  tar -C "${logs%/*}" -czf "$logs.tar.gz" "${logs##*/}" && rm -rf "$logs"
}
