#compdef slip
# made by slip generate zsh
_slip() {
  local at='' word
  local -a list options
  for word in ${words[2,CURRENT-1]}; do
    case "$at/$word" in (@paths@) at="$at/$word" ;; esac
  done
  case "$at" in
@cases@
  esac
  if [[ ${words[CURRENT-1]} == --device ]]; then
    compadd -- @devices@
  elif [[ ${words[CURRENT]} == -* ]]; then
    _describe -o option options
  elif (( $#list )); then
    _describe command list
  else
    _files
  fi
}
_slip "$@"
