#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# keep_report.sh COMPILER... -o OBJECT...: runs the compiler and keeps what ptxas reports about each kernel (registers,
# stack, spills) in OBJECT.ptxas, for tests/check/spills.py. Everything else it says is passed on.
object=
previous=
for argument in "$@"; do
  if [ "$previous" = -o ]; then object=$argument; fi
  previous=$argument
done
"$@" 2>"$object.ptxas"
code=$?
grep -vE '^(ptxas info|    [0-9]+ bytes stack frame|$)' "$object.ptxas" >&2
exit $code
