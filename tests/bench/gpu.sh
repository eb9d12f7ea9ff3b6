#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Everything that needs a GPU, in one go: its tensor core against the model, bits against the simulator, the conformance suite, the sanitizer, speed.
#
# usage: tests/bench/gpu.sh [BUILD]   BUILD: a build folder, made if it is not there and cmake and nvcc are
#
# NIBBLE_TEST_CASES: random cases of the differential (default 2000). A part that cannot run here says why.
set -euo pipefail
cd "$(dirname "$0")/../.."

readonly BUILD=${1:-build/gpu}
readonly SANITIZED_CASES=4
export NIBBLE_BACKEND_DIR=$PWD/$BUILD/lib/nibble
export LD_LIBRARY_PATH=$PWD/$BUILD/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
failed=()

step() { printf '\n== %s [%ds]\n' "$*" "$SECONDS"; }
left_out() { printf 'left out: %s\n' "$*"; }

# part NAME COMMAND...: runs a part; its failure does not stop the others.
part() {
  local name=$1 code=0
  shift
  step "$name"
  "$@" || code=$?
  if [ $code -ne 0 ]; then failed+=("$name ($code)"); fi
}

build() {
  [ -e "$BUILD/lib/nibble/libnibble-backend-cuda.so.1" ] && return
  local capability
  capability=$(nvidia-smi --query-gpu=compute_cap --format=csv,noheader | head -1 | tr -d .)
  case $capability in 90) capability=90a ;; 100 | 103 | 120) capability=${capability}f ;; esac
  cmake -S . -B "$BUILD" -G Ninja -DNIBBLE_CUDA=ON -DNIBBLE_CUDA_ARCHS="$capability-real"
  cmake --build "$BUILD" --parallel
}

probe() { "$BUILD/bin/mma-probe" 2; }
differential() { NIBBLE_TEST_CASES=${NIBBLE_TEST_CASES:-2000} "$BUILD/bin/differential"; }

conformance() {
  local suite=$BUILD/tests/test-conformance
  if [ ! -x "$suite" ] || ldd "$suite" | grep -q 'not found'; then
    left_out "no conformance suite here, or no Criterion to run it"
    return
  fi
  NIBBLE_BACKEND=cuda "$suite" --jobs 1
}

sanitizer() {
  local tool
  command -v compute-sanitizer >/dev/null || { left_out "no compute-sanitizer"; return; }
  for tool in memcheck racecheck initcheck synccheck; do
    NIBBLE_TEST_CASES=$SANITIZED_CASES compute-sanitizer --tool "$tool" --error-exitcode 1 "$BUILD/bin/differential"
  done
}

# Decode and prefill at the sizes of docs/performance.md.
bench() {
  local run=("$BUILD/bin/nibble" bench --backend cuda --hq 32 --hkv 8 --d 128) recipe
  for recipe in kv4 mxkv4 k4v8 qk4v8; do
    "${run[@]}" --op attend --recipe "$recipe" --batch 16 --kv 32768 --nq 1
  done
  "${run[@]}" --op attend --recipe kv4 --batch 1 --kv 131072 --nq 1
  "${run[@]}" --op attend --recipe kv4 --batch 64 --kv 4096 --nq 1
  "${run[@]}" --op attend --recipe qk4v8 --batch 2 --kv 16384 --nq 16384
}

step "build"
build
part "probe" probe
part "differential" differential
part "conformance" conformance
part "sanitizer" sanitizer
part "bench" bench
step "done"
if [ ${#failed[@]} -gt 0 ]; then
  printf 'FAILED: %s\n' "${failed[*]}"
  exit 1
fi
