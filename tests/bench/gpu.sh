#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Everything that needs a GPU, in one go.
#
# usage: tests/bench/gpu.sh [BUILD] [SECTION...]
#
# BUILD: a build folder, named with a slash (default build/gpu): made for this GPU alone if it is not there, brought up to
# date if it is; one that was carried here without its CMake cache is taken as it is.
# SECTIONS, in this order (default: all):
#   probe          the tensor core, and the products of the Blackwell core, against core/num/mma_model.h
#   differential   random cases, every byte against the simulator (NIBBLE_TEST_CASES, default 2000)
#   conformance    the suite of tests/conformance with NIBBLE_BACKEND=cuda
#   cache          served traces, the cache's tests, snapshots between sim and cuda, all against recomputations
#   graph          append and attend captured in a CUDA graph and replayed at other lengths
#   misuse         out of memory, host pointers, wrong streams, a device fault, leaks
#   sanitizer      compute-sanitizer: memcheck, racecheck, initcheck, synccheck on a fixed set of random cases
#   bench          nibble bench: decode, prefill, append, gather, copy_pages, transcode
#   peers          the same shapes beside torch SDPA in bf16, ratios against the bars
# A section that cannot run here says why; one that fails does not stop the others.
set -euo pipefail
cd "$(dirname "$0")/../.."

readonly ALL=(probe differential conformance cache graph misuse sanitizer bench peers)
readonly SANITIZED_CASES=4
readonly EXIT_SKIPPED=77
BUILD=build/gpu
if [ $# -gt 0 ] && [[ $1 == */* ]]; then
  BUILD=$1
  shift
fi
readonly BUILD
export NIBBLE_BACKEND_DIR=$PWD/$BUILD/lib/nibble
export LD_LIBRARY_PATH=$PWD/$BUILD/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
failed=()

step() { printf '\n== %s [%ds]\n' "$*" "$SECONDS"; }
left_out() { printf 'left out: %s\n' "$*"; }

# section NAME: runs the function of that name and notes how it ended.
section() {
  local code=0
  step "$1"
  "run_$1" || code=$?
  case $code in
    0) ;;
    "$EXIT_SKIPPED") left_out "the program skipped itself" ;;
    *) failed+=("$1 ($code)") ;;
  esac
}

build() {
  local capability
  if [ ! -e "$BUILD/CMakeCache.txt" ]; then
    [ ! -e "$BUILD/lib/nibble/libnibble-backend-cuda.so.1" ] || return 0
    capability=$(nvidia-smi --query-gpu=compute_cap --format=csv,noheader | head -1 | tr -d .)
    case $capability in 90) capability=90a ;; 100 | 103 | 120) capability=${capability}f ;; esac
    cmake -S . -B "$BUILD" -DCMAKE_BUILD_TYPE=RelWithDebInfo -DNIBBLE_CUDA=ON -DNIBBLE_CUDA_ARCHS="$capability-real"
  fi
  cmake --build "$BUILD" --parallel "$(nproc)"
}

# program NAME ARGUMENTS...: a program of the build, wherever it was put.
program() {
  local name=$1 folder
  shift
  for folder in tests bin; do
    if [ -x "$BUILD/$folder/$name" ]; then
      "$BUILD/$folder/$name" "$@"
      return
    fi
  done
  left_out "$name is not built (needs Criterion)"
}

run_probe() {
  program mma-probe 2
  program block-probe 2
}
run_differential() {
  local cases=${NIBBLE_TEST_CASES:-2000}
  NIBBLE_TEST_CASES=$cases program differential
  NIBBLE_TEST_FORMATS=fp4 NIBBLE_TEST_CASES=$((cases / 5)) program differential # the Blackwell core's are slow in sim
}
run_graph() { program cuda-graph; }
run_misuse() { program cuda-misuse; }

run_conformance() {
  local suite=$BUILD/tests/test-conformance
  if [ ! -x "$suite" ] || ldd "$suite" | grep -q 'not found'; then
    left_out "no conformance suite here, or no Criterion to run it"
    return
  fi
  NIBBLE_BACKEND=cuda "$suite" --jobs 12
}

# Served traces, each attend compared with a recomputation; then the cache's own tests, and snapshots from sim to cuda
# and back.
run_cache() {
  local serve=("$BUILD/bin/nibble" serve-sim --backend cuda) tests=$BUILD/tests/test_cache saver=$BUILD/bin/cache_saver
  local file from to code=0
  "${serve[@]}" || code=1
  "${serve[@]}" --policy kv4,recent=40,layers=last1:kv8 --tokens 1500 || code=1
  "${serve[@]}" --policy mxkv4,sinks=0 --tokens 500 --prefixes 10 --host-kib 200 --file-kib 400 || code=1
  if [ ! -x "$tests" ] || ldd "$tests" | grep -q 'not found'; then
    left_out "no tests of the cache here, or no Criterion to run them"
    return $code
  fi
  NIBBLE_BACKEND=cuda "$tests" --jobs 1 --filter 'cache_@(policy|prefix|reports|tiers|snapshot)/!(kill*|another*)' ||
    code=1
  file=$(mktemp)
  for from in sim cuda; do
    for to in sim cuda; do
      NIBBLE_BACKEND=$from "$saver" save "$file" && NIBBLE_BACKEND=$to "$saver" check "$file" || code=1
    done
  done
  rm -f "$file"
  return $code
}

run_sanitizer() {
  local tool code=0
  command -v compute-sanitizer >/dev/null || { left_out "no compute-sanitizer"; return; }
  for tool in memcheck racecheck initcheck synccheck; do
    printf -- '-- %s\n' "$tool"
    NIBBLE_TEST_CASES=$SANITIZED_CASES compute-sanitizer --tool "$tool" --error-exitcode 1 "$BUILD/bin/differential" ||
      code=1
  done
  return $code
}

bench() { program nibble bench --backend cuda --cold --hkv 8 --d 128 "$@"; }

run_bench() {
  local all=kv4,mxkv4,k4v8,qk4v8,kv8
  bench --op attend --hq 32 --batch 16 --kv 32768 --nq 1 --recipe "$all"
  bench --op attend --hq 32 --batch 1 --kv 131072 --nq 1 --recipe kv4
  bench --op attend --hq 32 --batch 64 --kv 4096 --nq 1 --recipe kv4
  bench --op prefill --hq 32 --batch 2 --kv 16384 --nq 16384 --calls 2 --recipe qk4v8,k4v8
  bench --op append --hq 8 --batch 8 --kv 4096 --nq 4096 --recipe "$all"
  bench --op append --hq 8 --batch 16 --kv 4096 --nq 1 --recipe kv4
  bench --op gather --hq 8 --batch 8 --kv 4096 --recipe "$all"
  bench --op copy_pages --hq 8 --batch 8 --kv 4096 --recipe kv4,kv8
  bench --op transcode --hq 8 --batch 8 --kv 4096 --recipe kv4,mxkv4,kv8
}

run_peers() { python3 tests/bench/gpu_peers.py --build "$BUILD"; }

if [ $# -eq 0 ]; then set -- "${ALL[@]}"; fi
for name in "$@"; do
  if [[ " ${ALL[*]} " != *" $name "* ]]; then
    printf 'gpu: unknown section "%s" (known: %s)\n' "$name" "${ALL[*]}" >&2
    exit 2
  fi
done
step "build"
build
for name in "$@"; do section "$name"; done
step "done"
if [ ${#failed[@]} -gt 0 ]; then
  printf 'FAILED: %s\n' "${failed[*]}"
  exit 1
fi
