# bash completion for slip; made by slip generate bash
_slip() {
  local at='' words='' options='' word i
  local cur=${COMP_WORDS[COMP_CWORD]} prev=${COMP_WORDS[COMP_CWORD-1]}
  for ((i = 1; i < COMP_CWORD; i++)); do
    word=${COMP_WORDS[i]}
    case "$at/$word" in @paths@) at="$at/$word" ;; esac
  done
  case "$at" in
@cases@
  esac
  COMPREPLY=()
  if [[ $prev == --device ]]; then
    mapfile -t COMPREPLY < <(compgen -W '@devices@' -- "$cur")
    type __ltrim_colon_completions >/dev/null 2>&1 && __ltrim_colon_completions "$cur"
  elif [[ $cur == -* ]]; then
    mapfile -t COMPREPLY < <(compgen -W "$options" -- "$cur")
  elif [[ -n $words ]]; then
    mapfile -t COMPREPLY < <(compgen -W "$words" -- "$cur")
  fi
}
complete -o default -F _slip slip
