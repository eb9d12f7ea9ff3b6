# bash completion for nibble. Asks the tool itself, so it knows what the tool knows.
_nibble() {
  local word=${COMP_WORDS[COMP_CWORD]} previous=${COMP_WORDS[COMP_CWORD - 1]} tool=${COMP_WORDS[0]} text
  if [ "$COMP_CWORD" -eq 1 ]; then
    text=$("$tool" --help 2>/dev/null | sed -n 's/^  \([a-z-]\{1,\}\)  .*/\1/p')
    mapfile -t COMPREPLY < <(compgen -W "$text --help --version" -- "$word")
    return
  fi
  text=$("$tool" "${COMP_WORDS[1]}" --help 2>/dev/null)
  case $previous in
    --recipe | --recipes)
      text=$(sed -n "s/^  $previous [A-Z]*  *\([a-z0-9_,]*\).*/\1/p" <<<"$text")
      mapfile -t COMPREPLY < <(compgen -W "${text//,/ }" -- "$word")
      ;;
    --backend) mapfile -t COMPREPLY < <(compgen -W "cuda sim cuda,sim" -- "$word") ;;
    --isa) mapfile -t COMPREPLY < <(compgen -W "scalar avx2 avx512 amx neon i8mm" -- "$word") ;;
    --backend-dir | --file-folder) mapfile -t COMPREPLY < <(compgen -d -- "$word") ;;
    --input | --q | --k | --v | --out | --trace) mapfile -t COMPREPLY < <(compgen -f -- "$word") ;;
    *)
      text=$(sed -n 's/^  \(--[a-z0-9-]*\).*/\1/p' <<<"$text")
      mapfile -t COMPREPLY < <(compgen -W "$text" -- "$word")
      ;;
  esac
}
complete -F _nibble nibble
