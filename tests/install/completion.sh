#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# completion.sh FILE BIN: completes a few lines as bash would; prints "ok" for each that comes out right.
set -u
PATH=$2:$PATH
# shellcheck disable=SC1090
source "$1"

# try WORD... EXPECTED: the last word is completed.
try() {
  local expected=${*: -1}
  COMP_WORDS=("${@:1:$#-1}")
  COMP_CWORD=$(($# - 2))
  COMPREPLY=()
  _nibble
  if [ "${COMPREPLY[*]}" = "$expected" ]; then echo ok; else echo "${COMP_WORDS[*]}: ${COMPREPLY[*]}"; fi
}

try nibble doc doctor
try nibble --ver --version
try nibble doctor --js --json
try nibble attend --backend- --backend-dir
try nibble attend --backend c "cuda cuda,sim"
try nibble attend --isa avx5 avx512
try nibble attend --recipe kv8 kv8
try nibble tune --max --max-error
try nibble serve serve-sim
try nibble compare --recipes nvfp4_ nvfp4_4over6
try nibble nonsense --x ""
