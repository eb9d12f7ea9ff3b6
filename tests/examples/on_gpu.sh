#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The clients on a machine with an NVIDIA GPU: leaving with work on the stream, the C engine's tokens against the
# simulator's, the Python module with PyTorch tensors on a stream of their own, the list that goes on without a device.
#
# usage: tests/examples/on_gpu.sh [BUILD]   BUILD: a build folder with the cuda backend (default build/gpu)
set -euo pipefail
cd "$(dirname "$0")/../.."
readonly BUILD=$PWD/${1:-build/gpu}
export NIBBLE_BACKEND_DIR=$BUILD/lib/nibble NIBBLE_BACKEND=cuda
readonly LIBRARY=$BUILD/lib/libnibble.so.1

for way in tidy leave pending thread plugin; do
  "$BUILD/tests/unload" "$LIBRARY" "$way" "$BUILD/tests/libengine_plugin.so"
  printf 'unload %s: ok\n' "$way"
done
python3 tests/examples/engine.py "$BUILD/examples/engine" "$LIBRARY"
python3 -B tests/examples/python_client.py "$LIBRARY" cuda
CUDA_VISIBLE_DEVICES='' NIBBLE_BACKEND=cuda,sim "$BUILD/bin/nibble" info | grep 'chosen   sim'
