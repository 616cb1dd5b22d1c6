# SPDX-License-Identifier: Apache-2.0
# Completes options, policies, placements and files of zbpp-plan in bash.

# Bash passes the program, the word to complete and the word before it.
_zbpp_plan() {
  local program=$1 word=$2 option=$3 listed= names=
  # Bash takes --option=VALUE for three words.
  if [[ $word == = ]]; then
    word=
  elif [[ $option == = ]]; then
    option=${COMP_WORDS[COMP_CWORD - 2]}
  fi
  case $option in
    --policy | --compare)
      if [[ $option == --compare ]]; then
        names='all find_plan '
        compopt -o nospace 2>/dev/null
        if [[ $word == *,* ]]; then
          listed=${word%,*},
        fi
      fi
      mapfile -t COMPREPLY < <(
        compgen -P "$listed" -W "$names$("$program" --list 2>/dev/null | cut -d ' ' -f 1)" -- "${word##*,}"
      )
      ;;
    --placement)
      mapfile -t COMPREPLY < <(compgen -W 'linear looped v' -- "$word")
      ;;
    --check | --explain | --plan | --against | --problem | --json | --csv | --svg | --trace)
      compopt -o filenames 2>/dev/null
      mapfile -t COMPREPLY < <(compgen -f -- "$word")
      ;;
    --sweep-memory | --ranks | --microbatches | --layers | --forward | --backward-input | --backward-weight | \
      --overlapped | --transfer | --chunks | --activation | --weight-gradient-input | \
      --output-gradient | --memory-limit | --seconds | --seed)
      COMPREPLY=() # numbers
      ;;
    *)
      mapfile -t COMPREPLY < <(compgen -W '--help --version --list --check --compare --sweep-memory
        --explain --plan --against --policy --problem --ranks --microbatches --layers --forward --backward-input --backward-weight
        --overlapped --transfer --placement --chunks --activation --weight-gradient-input --output-gradient
        --memory-limit --json --csv --csv-overlap --csv-transfers --svg --trace --ascii --gpus
        --seconds --seed' -- "$word")
      ;;
  esac
}
complete -F _zbpp_plan zbpp-plan
